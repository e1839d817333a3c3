package client

import (
	"context"
	"strings"
	"unicode/utf8"

	"connectrpc.com/connect"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

const (
	// maxContexts bounds the contexts that a Guest may list.
	maxContexts = 100
	// maxName bounds an ID, a name or a MIME type from a Guest, in bytes.
	maxName = 200
	// maxFailure bounds the message of an exception, and its traceback, in bytes.
	maxFailure = 64 << 10
)

// Execute runs code in a context. See execution.Interpreters.
func (c *Client) Execute(ctx context.Context, req execution.CellRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error) {
	m := &guestv1.ExecuteRequest{
		ContextId: req.Context, Language: req.Language, User: req.User, Code: req.Code, Stdin: req.Stdin,
		Env: req.Env, Cwd: req.Cwd, TimeoutMillis: req.Timeout.Milliseconds(), StdoutLimit: req.MaxOutput, StderrLimit: req.MaxOutput,
	}
	if req.As != nil {
		run := &guestv1.RunProcessRequest{
			Start: &guestv1.StartProcessRequest{TimeoutMillis: millis(req.Timeout)}, Cell: m,
			StdoutLimit: req.MaxOutput, StderrLimit: req.MaxOutput,
		}
		if end, known, err := c.asProcess(ctx, *req.As, run, handle); known {
			return end, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // interrupts it if we leave early
	stream, err := c.contexts().Execute(ctx, connect.NewRequest(m))
	if err != nil {
		return execution.RunEnd{}, fail(ctx, err)
	}
	defer stream.Close()
	for stream.Receive() {
		if m := stream.Msg().GetEnded(); m != nil {
			finish(stream, cancel)
			return cellEnd(m)
		}
		event, err := cellEvent(stream.Msg())
		if err == nil {
			err = handle(event)
		}
		if err != nil {
			return execution.RunEnd{}, err
		}
	}
	if err := stream.Err(); err != nil {
		return execution.RunEnd{}, fail(ctx, err)
	}
	return execution.RunEnd{}, sandbox.Errorf(sandbox.Unavailable, "the sandbox ended its answer early")
}

// cellEvent checks an event of an execution from a Guest.
func cellEvent(m *guestv1.ExecuteResponse) (execution.RunEvent, error) {
	switch e := m.Event.(type) {
	case *guestv1.ExecuteResponse_Started:
		if !word(e.Started.ContextId) || e.Started.ExecutionCount < 0 {
			return execution.RunEvent{}, errWrongAnswer
		}
		return execution.RunEvent{Started: true, Cell: &execution.Cell{
			ContextID: e.Started.ContextId, Count: e.Started.ExecutionCount, Restarted: e.Started.Restarted,
		}}, nil
	case *guestv1.ExecuteResponse_Stdout:
		return execution.RunEvent{Stdout: e.Stdout}, nil
	case *guestv1.ExecuteResponse_Stderr:
		return execution.RunEvent{Stderr: e.Stderr}, nil
	case *guestv1.ExecuteResponse_Result:
		for mime := range e.Result.Data {
			if !word(mime) {
				delete(e.Result.Data, mime)
			}
		}
		return execution.RunEvent{Value: &execution.Value{Main: e.Result.Main, Data: e.Result.Data}}, nil
	case *guestv1.ExecuteResponse_Error:
		return execution.RunEvent{Failure: &execution.Failure{
			Name: shorten(tame(e.Error.Name), maxName), Message: shorten(e.Error.Value, maxFailure), Traceback: shorten(e.Error.Traceback, maxFailure),
		}}, nil
	}
	return execution.RunEvent{}, nil
}

// cellEnd checks the result of an execution from a Guest.
func cellEnd(m *guestv1.ExecuteEnded) (execution.RunEnd, error) {
	if m.End == nil || m.ResultsDropped < 0 {
		return execution.RunEnd{}, errWrongAnswer
	}
	end, err := endOf(m.End)
	end.Lost, end.Interrupted, end.ResultsDropped = m.Lost, m.Interrupted, m.ResultsDropped
	return end, err
}

// Contexts lists the contexts.
func (c *Client) Contexts(ctx context.Context) ([]execution.Context, error) {
	ctx, cancel := context.WithTimeout(ctx, headTime)
	defer cancel()
	r, err := c.contexts().ListContexts(ctx, connect.NewRequest(&guestv1.ListContextsRequest{}))
	if err != nil {
		return nil, fail(ctx, err)
	}
	if len(r.Msg.Contexts) > maxContexts {
		return nil, errWrongAnswer
	}
	all := make([]execution.Context, 0, len(r.Msg.Contexts))
	for _, m := range r.Msg.Contexts {
		one, err := contextOf(m)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// CreateContext creates a context.
func (c *Client) CreateContext(ctx context.Context, spec execution.ContextSpec) (execution.Context, error) {
	ctx, cancel := context.WithTimeout(ctx, headTime)
	defer cancel()
	r, err := c.contexts().CreateContext(ctx, connect.NewRequest(&guestv1.CreateContextRequest{
		Language: spec.Language, Cwd: spec.Cwd, User: spec.User,
	}))
	if err != nil {
		return execution.Context{}, fail(ctx, err)
	}
	return contextOf(r.Msg.Context)
}

// RestartContext ends a context's interpreter.
func (c *Client) RestartContext(ctx context.Context, id string) (execution.Context, error) {
	ctx, cancel := context.WithTimeout(ctx, headTime)
	defer cancel()
	r, err := c.contexts().RestartContext(ctx, connect.NewRequest(&guestv1.RestartContextRequest{ContextId: id}))
	if err != nil {
		return execution.Context{}, fail(ctx, err)
	}
	return contextOf(r.Msg.Context)
}

// InterruptContext interrupts the current execution of a context.
func (c *Client) InterruptContext(ctx context.Context, id string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, headTime)
	defer cancel()
	r, err := c.contexts().InterruptContext(ctx, connect.NewRequest(&guestv1.InterruptContextRequest{ContextId: id}))
	if err != nil {
		return false, fail(ctx, err)
	}
	return r.Msg.Interrupted, nil
}

// DeleteContext ends a context.
func (c *Client) DeleteContext(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, headTime)
	defer cancel()
	_, err := c.contexts().DeleteContext(ctx, connect.NewRequest(&guestv1.DeleteContextRequest{ContextId: id}))
	return fail(ctx, err)
}

// Programs returns the names of the programs that exist in the Sandbox.
func (c *Client) Programs(ctx context.Context, names []string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, headTime)
	defer cancel()
	r, err := c.contexts().ListPrograms(ctx, connect.NewRequest(&guestv1.ListProgramsRequest{Names: names}))
	if err != nil {
		return nil, fail(ctx, err)
	}
	if len(r.Msg.Names) > len(names) {
		return nil, errWrongAnswer
	}
	return r.Msg.Names, nil
}

func contextOf(m *guestv1.ContextInfo) (execution.Context, error) {
	if m == nil || !word(m.ContextId) || !word(m.Language) || m.ExecutionCount < 0 {
		return execution.Context{}, errWrongAnswer
	}
	return execution.Context{
		ID: m.ContextId, Language: m.Language, Cwd: shorten(m.Cwd, maxFailure), User: shorten(m.User, maxName),
		Default: m.Default, Alive: m.Alive, Busy: m.Busy, Count: m.ExecutionCount,
	}, nil
}

// word reports whether s is short, printable ASCII without blanks.
func word(s string) bool {
	return s != "" && len(s) <= maxName && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// shorten cuts s to at most n bytes, between characters.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
