package client

import (
	"context"
	"math"
	"strings"
	"time"

	"connectrpc.com/connect"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

const (
	// maxProcesses bounds a Guest's list.
	maxProcesses = 8192
	// maxShown bounds a text from a Guest about a Process, in bytes.
	maxShown = 8 << 10
)

// errWrong says that a Guest violates the protocol.
func errWrong() error { return sandbox.Errorf(sandbox.Unavailable, "the sandbox gives a wrong answer") }

// StartProcess starts a Process. See execution.Processes.
func (c *Client) StartProcess(ctx context.Context, req execution.ProcessStart) (execution.ProcessStarted, error) {
	m := &guestv1.StartProcessRequest{
		Id: req.ID, Args: req.Args, Command: req.Command, Shell: req.Shell, Name: req.Name, User: req.User, Cwd: req.Cwd, Env: req.Env,
		Terminal: terminalOf(req.PTY), Stdin: req.Stdin, KeepStdin: req.KeepStdin, TimeoutMillis: millis(req.Timeout),
		IdempotencyKey: req.Key, Fingerprint: req.Fingerprint, WaitMillis: millis(req.Wait), OutputLimit: req.MaxOutput,
	}
	r, err := c.processes().StartProcess(ctx, connect.NewRequest(m))
	if err != nil {
		return execution.ProcessStarted{}, fail(ctx, err)
	}
	info, err := processOf(r.Msg.Process)
	if err != nil {
		return execution.ProcessStarted{}, err
	}
	pieces, end, err := piecesOf(r.Msg.Pieces, 0)
	if err == nil && end > info.OutputEnd {
		info.OutputEnd = end // it continued to write while the answer was created
	}
	return execution.ProcessStarted{ProcessInfo: info, Repeated: r.Msg.Repeated, Output: pieces}, err
}

// millis rounds up, so that a shorter duration does not become zero.
func millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

func terminalOf(t *execution.TerminalSize) *guestv1.Terminal {
	if t == nil {
		return nil
	}
	return &guestv1.Terminal{Cols: uint32(t.Cols), Rows: uint32(t.Rows)}
}

// shown makes a Guest's text safe to show: bounded, valid UTF-8.
func shown(s string) string {
	if len(s) > maxShown {
		s = s[:maxShown]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// plausible converts a Guest's time to one that RFC 3339 can express.
func plausible(nanos int64) time.Time { return time.Unix(0, max(nanos, 0)).UTC() }

// processOf checks a Guest's description of a Process.
func processOf(m *guestv1.ProcessInfo) (execution.ProcessInfo, error) {
	if m == nil || !execution.ValidGuestProcessID(m.Id) || m.OutputStart < 0 || m.OutputEnd < m.OutputStart || m.TimeoutMillis < 0 {
		return execution.ProcessInfo{}, errWrong()
	}
	const maxTimeout = int64(execution.MaxProcessTimeout / time.Millisecond)
	info := execution.ProcessInfo{
		ID: m.Id, Name: shown(m.Name), PID: m.Pid, Command: shown(m.Command), Cwd: shown(m.Cwd), User: shown(m.User),
		Shell: shown(m.Shell), StartedAt: plausible(m.StartedUnixNanos),
		Timeout:     time.Duration(min(m.TimeoutMillis, maxTimeout)) * time.Millisecond,
		OutputStart: m.OutputStart, OutputEnd: m.OutputEnd,
	}
	if t := m.Terminal; t != nil {
		side := func(n uint32) int { return int(min(max(n, 1), execution.MaxTerminalSide)) }
		info.PTY = &execution.TerminalSize{Cols: side(t.Cols), Rows: side(t.Rows)}
	}
	if m.Ended != nil {
		end, err := endOf(m.Ended)
		if err != nil {
			return info, err
		}
		info.End, info.EndedAt = &end, plausible(m.EndedUnixNanos)
	}
	return info, nil
}

// piecesOf checks that pieces are consecutive, from an offset on, and returns their
// end.
func piecesOf(all []*guestv1.OutputPiece, from int64) ([]execution.OutputPiece, int64, error) {
	out := make([]execution.OutputPiece, 0, len(all))
	for _, p := range all {
		end := p.GetOffset() + int64(len(p.GetData()))
		if p.GetOffset() < from || end < from {
			return nil, from, errWrong()
		}
		from = end
		if len(p.Data) > 0 {
			out = append(out, execution.OutputPiece{Offset: p.Offset, Stderr: p.Stderr, Data: p.Data})
		}
	}
	return out, from, nil
}

// ListProcesses lists Processes. See execution.Processes.
func (c *Client) ListProcesses(ctx context.Context) ([]execution.ProcessInfo, error) {
	r, err := c.processes().ListProcesses(ctx, connect.NewRequest(&guestv1.ListProcessesRequest{}))
	if err != nil {
		return nil, fail(ctx, err)
	}
	if len(r.Msg.Processes) > maxProcesses {
		return nil, errWrong()
	}
	all := make([]execution.ProcessInfo, len(r.Msg.Processes))
	for i, m := range r.Msg.Processes {
		if all[i], err = processOf(m); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// about checks the result of a call about one Process.
func about(ctx context.Context, m *guestv1.ProcessInfo, err error) (execution.ProcessInfo, error) {
	if err != nil {
		return execution.ProcessInfo{}, fail(ctx, err)
	}
	return processOf(m)
}

// GetProcess returns one Process.
func (c *Client) GetProcess(ctx context.Context, id string) (execution.ProcessInfo, error) {
	r, err := c.processes().GetProcess(ctx, connect.NewRequest(&guestv1.GetProcessRequest{Id: id}))
	return about(ctx, processIn(r), err)
}

// SignalProcess sends a signal.
func (c *Client) SignalProcess(ctx context.Context, id string, signal int) (execution.ProcessInfo, error) {
	r, err := c.processes().SignalProcess(ctx, connect.NewRequest(&guestv1.SignalProcessRequest{Id: id, Signal: int32(signal)}))
	return about(ctx, processIn(r), err)
}

// ResizeProcess changes the size of a terminal.
func (c *Client) ResizeProcess(ctx context.Context, id string, size execution.TerminalSize) (execution.ProcessInfo, error) {
	r, err := c.processes().ResizeProcess(ctx, connect.NewRequest(&guestv1.ResizeProcessRequest{Id: id, Terminal: terminalOf(&size)}))
	return about(ctx, processIn(r), err)
}

// EndProcess ends a Process and everything it started.
func (c *Client) EndProcess(ctx context.Context, id string) (execution.ProcessInfo, error) {
	r, err := c.processes().EndProcess(ctx, connect.NewRequest(&guestv1.EndProcessRequest{Id: id}))
	return about(ctx, processIn(r), err)
}

// processIn returns the Process of an answer; nil when the answer has no Process.
func processIn[T any, P interface {
	*T
	GetProcess() *guestv1.ProcessInfo
}](r *connect.Response[T]) *guestv1.ProcessInfo {
	if r == nil {
		return nil
	}
	return P(r.Msg).GetProcess()
}

// ReadOutput reads output. See execution.Processes.
func (c *Client) ReadOutput(ctx context.Context, id string, from int64, follow bool, handle func(execution.Output) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.processes().ReadOutput(ctx, connect.NewRequest(&guestv1.ReadOutputRequest{Id: id, From: from, Follow: follow}))
	if err != nil {
		return fail(ctx, err)
	}
	defer stream.Close()
	var next int64
	left := int64(math.MaxInt64) // remaining bytes of the requested output
	for told := 0; told < 2; {
		if !stream.Receive() {
			if err := stream.Err(); err != nil {
				return fail(ctx, err)
			}
			return sandbox.Errorf(sandbox.Unavailable, "the sandbox ended its answer early")
		}
		o, err := outputOf(stream.Msg(), next)
		if err != nil {
			return err
		}
		for _, p := range o.Pieces {
			left -= int64(len(p.Data))
		}
		switch {
		case o.Process == nil && told == 0, left < 0:
			return errWrong()
		case told == 0 && !follow:
			left = o.Process.OutputEnd - o.Next
		}
		if o.Process != nil {
			told++
		}
		next = o.Next
		if err := handle(o); err != nil {
			return err
		}
	}
	finish(stream, cancel)
	return nil
}

// outputOf checks one message of a Guest against the end offset of the previous
// one.
func outputOf(m *guestv1.ReadOutputResponse, from int64) (o execution.Output, err error) {
	if o.Pieces, o.Next, err = piecesOf(m.Pieces, from); err != nil {
		return o, err
	}
	if m.NextOffset < o.Next {
		return o, errWrong()
	}
	o.Next = m.NextOffset
	if m.Process != nil {
		info, err := processOf(m.Process)
		if err != nil {
			return o, err
		}
		o.Process = &info
	}
	return o, nil
}

// WriteInput writes input to a Process. See execution.Processes.
func (c *Client) WriteInput(ctx context.Context, id string, in execution.Input) (int64, error) {
	r, err := c.processes().WriteInput(ctx, connect.NewRequest(&guestv1.WriteInputRequest{Id: id, Data: in.Data, Eof: in.EOF, From: in.From}))
	if err != nil {
		return 0, fail(ctx, err)
	}
	if n := r.Msg.Written; n >= 0 && n <= int64(len(in.Data)) {
		return n, nil
	}
	return 0, errWrong()
}

// WaitProcess waits for a condition. See execution.Processes.
func (c *Client) WaitProcess(ctx context.Context, id string, cond execution.Condition, timeout time.Duration) (execution.Waited, error) {
	m := &guestv1.WaitProcessRequest{Id: id, TimeoutMillis: millis(timeout)}
	switch {
	case cond.Port > 0:
		m.Condition = &guestv1.WaitProcessRequest_Port{Port: uint32(cond.Port)}
	case cond.HTTP > 0:
		m.Condition = &guestv1.WaitProcessRequest_Http{Http: &guestv1.HTTPCondition{Port: uint32(cond.HTTP), Path: cond.Path}}
	case cond.Log != "":
		m.Condition = &guestv1.WaitProcessRequest_Log{Log: cond.Log}
	default:
		m.Condition = &guestv1.WaitProcessRequest_Exit{Exit: true}
	}
	r, err := c.processes().WaitProcess(ctx, connect.NewRequest(m))
	if err != nil {
		return execution.Waited{}, fail(ctx, err)
	}
	const maxStatus = 999
	info, err := processOf(r.Msg.Process)
	if err == nil && (r.Msg.Offset < 0 || r.Msg.HttpStatus < 0 || r.Msg.HttpStatus > maxStatus) {
		err = errWrong()
	}
	return execution.Waited{
		ProcessInfo: info, Met: r.Msg.Met, HTTPStatus: int(r.Msg.HttpStatus), Line: shown(r.Msg.Line), Offset: r.Msg.Offset,
	}, err
}
