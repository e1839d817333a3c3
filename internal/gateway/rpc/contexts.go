package rpc

import (
	"context"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	contextv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/context/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// contexts is the service of interpreters that keep their state.
type contexts struct{ executions *execution.Service }

func contextOf(c execution.Context) *contextv1.Context {
	v := &contextv1.Context{
		ContextId: text(c.ID), SandboxId: c.SandboxID, Language: text(c.Language), Cwd: text(c.Cwd), User: text(c.User),
		Default: c.Default, State: "stopped", ExecutionCount: c.Count,
	}
	switch {
	case c.Busy:
		v.State = "busy"
	case c.Alive:
		v.State = "idle"
	}
	return v
}

// contextNamed returns the Sandbox and the context in a message.
func contextNamed(ctx context.Context, m interface {
	GetSandboxId() string
	GetContextId() string
},
) (box, id string, err error) {
	if box, err = required(m.GetSandboxId()); err != nil {
		return "", "", err
	}
	if m.GetContextId() == "" {
		return "", "", sandbox.Errorf(sandbox.Invalid, "context_id is missing")
	}
	rest.Names(ctx, m.GetContextId())
	return box, m.GetContextId(), nil
}

// Create implements the service.
func (s contexts) Create(ctx context.Context, r *connect.Request[contextv1.CreateRequest]) (*connect.Response[contextv1.CreateResponse], error) {
	id, err := required(r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	c, err := s.executions.CreateContext(ctx, tenantOf(ctx), id, execution.ContextSpec{Language: r.Msg.Language, Cwd: r.Msg.Cwd, User: r.Msg.User})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&contextv1.CreateResponse{Context: contextOf(c)}), nil
}

// List implements the service.
func (s contexts) List(ctx context.Context, r *connect.Request[contextv1.ListRequest]) (*connect.Response[contextv1.ListResponse], error) {
	id, err := required(r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	all, err := s.executions.Contexts(ctx, tenantOf(ctx), id)
	if err != nil {
		return nil, err
	}
	res := &contextv1.ListResponse{}
	for _, c := range all {
		res.Contexts = append(res.Contexts, contextOf(c))
	}
	return connect.NewResponse(res), nil
}

// Restart implements the service.
func (s contexts) Restart(ctx context.Context, r *connect.Request[contextv1.RestartRequest]) (*connect.Response[contextv1.RestartResponse], error) {
	box, id, err := contextNamed(ctx, r.Msg)
	if err != nil {
		return nil, err
	}
	c, err := s.executions.RestartContext(ctx, tenantOf(ctx), box, id)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&contextv1.RestartResponse{Context: contextOf(c)}), nil
}

// Interrupt implements the service.
func (s contexts) Interrupt(ctx context.Context, r *connect.Request[contextv1.InterruptRequest]) (*connect.Response[contextv1.InterruptResponse], error) {
	box, id, err := contextNamed(ctx, r.Msg)
	if err != nil {
		return nil, err
	}
	ran, err := s.executions.InterruptContext(ctx, tenantOf(ctx), box, id)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&contextv1.InterruptResponse{Interrupted: ran}), nil
}

// Delete implements the service.
func (s contexts) Delete(ctx context.Context, r *connect.Request[contextv1.DeleteRequest]) (*connect.Response[contextv1.DeleteResponse], error) {
	box, id, err := contextNamed(ctx, r.Msg)
	if err != nil {
		return nil, err
	}
	if err := s.executions.DeleteContext(ctx, tenantOf(ctx), box, id); err != nil {
		return nil, err
	}
	return connect.NewResponse(&contextv1.DeleteResponse{}), nil
}
