package contexts

import (
	"context"
	"errors"
	"net/http"
	"time"

	"connectrpc.com/connect"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1/guestv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// maxRequest bounds one request of the host: code and input.
const maxRequest = 8 << 20

// Service answers the host's calls about Contexts.
type Service struct{ Contexts *Contexts }

var _ guestv1connect.ContextServiceHandler = (*Service)(nil)

// Handler returns the service's path and handler.
func (s *Service) Handler() (string, http.Handler) {
	path, h := guestv1connect.NewContextServiceHandler(s, connect.WithReadMaxBytes(maxRequest), server.Uncompressed)
	return path, server.Gathered(h)
}

// Execute runs one piece of code.
func (s *Service) Execute(ctx context.Context, r *connect.Request[guestv1.ExecuteRequest], stream *connect.ServerStream[guestv1.ExecuteResponse]) error {
	m := r.Msg
	result, err := s.Contexts.Execute(ctx, Target{ID: m.ContextId, Language: m.Language, User: m.User}, Request{
		Code: m.Code, Stdin: m.Stdin, Env: m.Env, Cwd: m.Cwd,
		Timeout:     time.Duration(m.TimeoutMillis) * time.Millisecond,
		StdoutLimit: m.StdoutLimit, StderrLimit: m.StderrLimit,
	}, &sender{stream})
	if err != nil {
		return connectError(err)
	}
	return stream.Send(&guestv1.ExecuteResponse{Event: &guestv1.ExecuteResponse_Ended{Ended: &guestv1.ExecuteEnded{
		End:  server.EndMessage(result.RunResult),
		Lost: result.Lost, Interrupted: result.Interrupted, ResultsDropped: result.ResultsDropped,
	}}})
}

// sender streams the events of an execution.
type sender struct {
	stream *connect.ServerStream[guestv1.ExecuteResponse]
}

func (s *sender) Started(e Started) error {
	return s.stream.Send(&guestv1.ExecuteResponse{Event: &guestv1.ExecuteResponse_Started{Started: &guestv1.ExecuteStarted{
		ContextId: e.ContextID, ExecutionCount: e.Count, Restarted: e.Restarted,
	}}})
}

func (s *sender) Output(stderr bool, data []byte) error {
	m := &guestv1.ExecuteResponse{Event: &guestv1.ExecuteResponse_Stdout{Stdout: data}}
	if stderr {
		m = &guestv1.ExecuteResponse{Event: &guestv1.ExecuteResponse_Stderr{Stderr: data}}
	}
	return s.stream.Send(m)
}

func (s *sender) Result(main bool, data map[string]string) error {
	return s.stream.Send(&guestv1.ExecuteResponse{Event: &guestv1.ExecuteResponse_Result{Result: &guestv1.ContextResult{Main: main, Data: data}}})
}

func (s *sender) Error(name, value, traceback string) error {
	return s.stream.Send(&guestv1.ExecuteResponse{Event: &guestv1.ExecuteResponse_Error{Error: &guestv1.ContextError{
		Name: name, Value: value, Traceback: traceback,
	}}})
}

// ListContexts lists all contexts.
func (s *Service) ListContexts(context.Context, *connect.Request[guestv1.ListContextsRequest]) (*connect.Response[guestv1.ListContextsResponse], error) {
	m := &guestv1.ListContextsResponse{}
	for _, i := range s.Contexts.List() {
		m.Contexts = append(m.Contexts, message(i))
	}
	return connect.NewResponse(m), nil
}

// CreateContext creates a context.
func (s *Service) CreateContext(_ context.Context, r *connect.Request[guestv1.CreateContextRequest]) (*connect.Response[guestv1.CreateContextResponse], error) {
	i, err := s.Contexts.Create(r.Msg.Language, r.Msg.Cwd, r.Msg.User)
	if err != nil {
		return nil, connectError(err)
	}
	return connect.NewResponse(&guestv1.CreateContextResponse{Context: message(i)}), nil
}

// RestartContext ends the interpreter of a context.
func (s *Service) RestartContext(_ context.Context, r *connect.Request[guestv1.RestartContextRequest]) (*connect.Response[guestv1.RestartContextResponse], error) {
	i, err := s.Contexts.Restart(r.Msg.ContextId)
	if err != nil {
		return nil, connectError(err)
	}
	return connect.NewResponse(&guestv1.RestartContextResponse{Context: message(i)}), nil
}

// InterruptContext interrupts the current execution.
func (s *Service) InterruptContext(_ context.Context, r *connect.Request[guestv1.InterruptContextRequest]) (*connect.Response[guestv1.InterruptContextResponse], error) {
	ran, err := s.Contexts.Interrupt(r.Msg.ContextId)
	if err != nil {
		return nil, connectError(err)
	}
	return connect.NewResponse(&guestv1.InterruptContextResponse{Interrupted: ran}), nil
}

// DeleteContext ends a context.
func (s *Service) DeleteContext(_ context.Context, r *connect.Request[guestv1.DeleteContextRequest]) (*connect.Response[guestv1.DeleteContextResponse], error) {
	if err := s.Contexts.Delete(r.Msg.ContextId); err != nil {
		return nil, connectError(err)
	}
	return connect.NewResponse(&guestv1.DeleteContextResponse{}), nil
}

// ListPrograms returns the named programs that exist in the Sandbox.
func (s *Service) ListPrograms(_ context.Context, r *connect.Request[guestv1.ListProgramsRequest]) (*connect.Response[guestv1.ListProgramsResponse], error) {
	m := &guestv1.ListProgramsResponse{}
	for _, name := range r.Msg.Names {
		if _, err := s.Contexts.guest.Command([]string{name}, nil, "/", ""); err == nil {
			m.Names = append(m.Names, name)
		}
	}
	return connect.NewResponse(m), nil
}

func message(i Info) *guestv1.ContextInfo {
	return &guestv1.ContextInfo{
		ContextId: i.ID, Language: i.Language, Cwd: i.Cwd, User: i.User, Default: i.Default,
		Alive: i.Alive, Busy: i.Busy, ExecutionCount: i.Count,
	}
}

// connectError gives an error of this package its Connect code.
func connectError(err error) error {
	var bad *server.InvalidError
	switch {
	case errors.As(err, &bad):
		return connect.NewError(connect.CodeInvalidArgument, err)
	case errors.Is(err, server.ErrNotBound), errors.Is(err, ErrDeleted):
		return connect.NewError(connect.CodeFailedPrecondition, err)
	case errors.Is(err, ErrUnknown):
		return connect.NewError(connect.CodeNotFound, err)
	case errors.Is(err, ErrBusy), errors.Is(err, ErrTooMany):
		return connect.NewError(connect.CodeResourceExhausted, err)
	}
	return connect.NewError(connect.CodeInternal, err)
}
