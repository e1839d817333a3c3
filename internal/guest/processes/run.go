package processes

import (
	"context"
	"errors"
	"math"

	"connectrpc.com/connect"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/contexts"
)

// runStream is the answer stream of RunProcess.
type runStream interface {
	Send(m *guestv1.RunProcessResponse) error
}

// RunProcess starts a Process, or finds one, and follows it to its end.
func (s *Service) RunProcess(ctx context.Context, r *connect.Request[guestv1.RunProcessRequest], stream *connect.ServerStream[guestv1.RunProcessResponse]) error {
	p, repeated, err := s.run(ctx, r.Msg)
	if err != nil {
		return err
	}
	f := p.output.followAs(max(r.Msg.From, 0), true)
	defer f.leave()
	accepted := &guestv1.RunProcessAccepted{Process: infoOf(p), Repeated: repeated}
	if err := stream.Send(&guestv1.RunProcessResponse{Event: &guestv1.RunProcessResponse_Accepted{Accepted: accepted}}); err != nil {
		return err
	}
	if p.cell != nil {
		if err := p.cell.await(ctx, stream); err != nil {
			return err
		}
	}
	t := &running{p: p, f: f, next: max(r.Msg.From, 0), stream: stream, limits: [2]int64{r.Msg.StdoutLimit, r.Msg.StderrLimit}}
	return t.follow(ctx)
}

// run returns the Process of a request, and starts it if the request says so.
func (s *Service) run(ctx context.Context, m *guestv1.RunProcessRequest) (p *Process, repeated bool, err error) {
	if m.Start == nil {
		p, err = s.find(m.Id)
		return p, true, err
	}
	spec := specOf(m.Start)
	spec.Run = true
	if c := m.Cell; c != nil {
		spec.Cell = &Cell{
			Target:  contexts.Target{ID: c.ContextId, Language: c.Language, User: c.User},
			Request: contexts.Request{Code: c.Code, Stdin: c.Stdin, Env: c.Env, Cwd: c.Cwd},
		}
	}
	if src := m.Source; src != nil {
		spec.Source = &Source{Folder: src.Folder, File: src.File, Code: src.Code, Compile: src.Compile, Env: spec.Env}
	}
	p, repeated, err = s.registry.Start(ctx, spec)
	if err != nil {
		err = rpcError(err)
	}
	return p, repeated, err
}

// await reports the beginning of a cell, for which it may have to wait.
func (c *cell) await(ctx context.Context, stream runStream) error {
	select {
	case <-c.begun:
	case <-c.process.ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	c.mu.Lock()
	err, started := c.err, c.started
	c.mu.Unlock()
	if err != nil && started.ContextID == "" && !errors.Is(err, context.Canceled) {
		return rpcError(err)
	}
	if started.ContextID == "" {
		return nil // no interpreter was available; the result of the cell says so
	}
	return stream.Send(&guestv1.RunProcessResponse{Event: &guestv1.RunProcessResponse_Began{Began: &guestv1.ExecuteStarted{
		ContextId: started.ContextID, ExecutionCount: started.Count, Restarted: started.Restarted,
	}}})
}

// running streams the events of a Process.
type running struct {
	p      *Process
	f      *follower
	stream runStream
	limits [2]int64 // bytes of each stream; 0: none
	sent   [2]int64
	lost   [2]int64
	next   int64
	values int // number of values sent
}

// follow streams everything to the end.
func (t *running) follow(ctx context.Context) error {
	last := int64(math.MaxInt64) // offset of the end, once it is known
	next := t.f.next
	for {
		if last == math.MaxInt64 && t.p.over() {
			_, last = t.p.output.bounds()
		}
		v, waits := t.value()
		if waits && v.after <= next {
			t.values++
			if err := t.stream.Send(&guestv1.RunProcessResponse{Event: &guestv1.RunProcessResponse_Result{Result: v.message}}); err != nil {
				return err
			}
			continue
		}
		until := last
		if waits {
			until = min(until, v.after)
		}
		pieces, at, more, err := t.f.take(int(min(messageSize, max(until-next, 0))))
		if err != nil {
			return rpcError(err)
		}
		next = at
		if err := t.output(pieces, next); err != nil {
			return err
		}
		if _, another := t.value(); next >= last && !another {
			return t.end()
		} else if more == nil || another {
			continue
		}
		select {
		case <-more:
		case <-t.p.ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// value returns the next value of the code, if one is ready.
func (t *running) value() (value, bool) {
	if t.p.cell == nil {
		return value{}, false
	}
	return t.p.cell.valueAt(t.values)
}

// output sends the output within the limits, and counts the rest.
func (t *running) output(pieces []piece, next int64) error {
	kept := pieces[:0]
	for _, got := range pieces {
		stream := 0
		if got.stderr {
			stream = 1
		}
		if got.offset > t.next && t.limits[stream] > 0 { // without limits, readers see this by the offsets
			t.lost[stream] += got.offset - t.next
		}
		t.next = got.offset + int64(len(got.data))
		if room := t.limits[stream] - t.sent[stream]; t.limits[stream] > 0 && int64(len(got.data)) > room {
			t.lost[stream] += int64(len(got.data)) - room
			got.data = got.data[:room]
		}
		t.sent[stream] += int64(len(got.data))
		if len(got.data) > 0 {
			kept = append(kept, got)
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return t.stream.Send(&guestv1.RunProcessResponse{Event: &guestv1.RunProcessResponse_Output{
		Output: &guestv1.RunProcessOutput{Pieces: piecesOf(kept), NextOffset: next},
	}})
}

// end reports how the Process ended.
func (t *running) end() error {
	ended := &guestv1.RunProcessEnded{
		Process: infoOf(t.p), StdoutDropped: t.lost[0], StderrDropped: t.lost[1], Unmade: t.p.unmade,
	}
	if c := t.p.cell; c != nil {
		c.mu.Lock()
		failure := c.failure
		ended.Lost, ended.Interrupted, ended.ResultsDropped = c.result.Lost, c.result.Interrupted, c.result.ResultsDropped+c.lost
		c.mu.Unlock()
		if failure != nil {
			if err := t.stream.Send(&guestv1.RunProcessResponse{Event: &guestv1.RunProcessResponse_Error{Error: failure}}); err != nil {
				return err
			}
		}
	}
	if err := t.stream.Send(&guestv1.RunProcessResponse{Event: &guestv1.RunProcessResponse_Ended{Ended: ended}}); err != nil {
		return err
	}
	t.f.done()
	return nil
}
