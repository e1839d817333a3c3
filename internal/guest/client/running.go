package client

import (
	"context"
	"time"

	"connectrpc.com/connect"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// asProcess starts a program or a cell as a Process, or finds one, and follows it.
// known is false when the Guest's version does not support such Processes.
func (c *Client) asProcess(ctx context.Context, as execution.RunAs, m *guestv1.RunProcessRequest, handle func(execution.RunEvent) error) (end execution.RunEnd, known bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.From = as.From
	if as.Attach {
		m.Id = as.ID
	} else {
		m.Start.Id, m.Start.IdempotencyKey, m.Start.Fingerprint = as.ID, as.Key, as.Fingerprint
		if s := as.Source; s != nil {
			m.Source = &guestv1.ProgramSource{Folder: s.Folder, File: s.File, Code: []byte(s.Code), Compile: s.Compile}
		}
	}
	stream, err := c.processes().RunProcess(ctx, connect.NewRequest(m))
	if err != nil {
		return end, true, fail(ctx, err)
	}
	defer stream.Close()
	r := running{cell: m.Cell != nil, handle: handle, next: as.From}
	for stream.Receive() {
		over, err := r.event(stream.Msg())
		if over {
			finish(stream, cancel)
		}
		if over || err != nil {
			return r.end, true, err
		}
	}
	if err := stream.Err(); err != nil {
		known := r.accepted || connect.CodeOf(err) != connect.CodeUnimplemented
		if !known && as.Again {
			return end, true, sandbox.Errorf(sandbox.Unsupported, "the sandbox was started by an earlier version, which ends programs with their connection: the program may have run in part")
		}
		return end, known, fail(ctx, err)
	}
	return end, true, sandbox.Errorf(sandbox.Unavailable, "the sandbox ended its answer early")
}

// running checks a Guest's events of a Process that runs for us.
type running struct {
	cell     bool
	accepted bool
	next     int64 // minimum offset of the next output
	handle   func(execution.RunEvent) error
	end      execution.RunEnd
}

// event handles a message. over says that it was the last one.
func (r *running) event(m *guestv1.RunProcessResponse) (over bool, err error) {
	if _, first := m.Event.(*guestv1.RunProcessResponse_Accepted); first == r.accepted {
		return false, errWrong()
	}
	var event execution.RunEvent
	switch e := m.Event.(type) {
	case *guestv1.RunProcessResponse_Accepted:
		r.accepted = true
		info, err := processOf(e.Accepted.Process)
		if err != nil {
			return false, err
		}
		event = execution.RunEvent{Process: &info, Repeated: e.Accepted.Repeated, PID: info.PID, Started: !r.cell}
	case *guestv1.RunProcessResponse_Began:
		event, err = cellEvent(&guestv1.ExecuteResponse{Event: &guestv1.ExecuteResponse_Started{Started: e.Began}})
	case *guestv1.RunProcessResponse_Output:
		event.Pieces, r.next, err = piecesOf(e.Output.Pieces, r.next)
	case *guestv1.RunProcessResponse_Result:
		event, err = cellEvent(&guestv1.ExecuteResponse{Event: &guestv1.ExecuteResponse_Result{Result: e.Result}})
	case *guestv1.RunProcessResponse_Error:
		event, err = cellEvent(&guestv1.ExecuteResponse{Event: &guestv1.ExecuteResponse_Error{Error: e.Error}})
	case *guestv1.RunProcessResponse_Ended:
		r.end, err = runEnd(e.Ended)
		return true, err
	}
	if err != nil {
		return false, err
	}
	return false, r.handle(event)
}

// runEnd checks the result of a Process that ran for us.
func runEnd(m *guestv1.RunProcessEnded) (execution.RunEnd, error) {
	info, err := processOf(m.Process)
	if err != nil {
		return execution.RunEnd{}, err
	}
	if info.End == nil || m.StdoutDropped < 0 || m.StderrDropped < 0 || m.ResultsDropped < 0 {
		return execution.RunEnd{}, errWrong()
	}
	end := *info.End
	end.StdoutDropped, end.StderrDropped, end.ResultsDropped = m.StdoutDropped, m.StderrDropped, m.ResultsDropped
	end.Unmade, end.Lost, end.Interrupted = m.Unmade, m.Lost, m.Interrupted
	end.Took = info.EndedAt.Sub(info.StartedAt)
	return end, nil
}

// EndProcessOf ends the Process that was started with a key. See
// execution.Processes.
func (c *Client) EndProcessOf(ctx context.Context, key string) (execution.ProcessInfo, error) {
	r, err := c.processes().EndProcess(ctx, connect.NewRequest(&guestv1.EndProcessRequest{IdempotencyKey: key}))
	return about(ctx, processIn(r), err)
}

// AbandonProcess has a Process end later. See execution.Processes.
func (c *Client) AbandonProcess(ctx context.Context, id string, after time.Duration) error {
	_, err := c.processes().EndProcess(ctx, connect.NewRequest(&guestv1.EndProcessRequest{Id: id, UnlessFollowedMillis: millis(after)}))
	return fail(ctx, err)
}
