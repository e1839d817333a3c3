package rest

import (
	"context"
	"net/http"
	"net/url"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

func contextViewOf(c execution.Context) v1.Context {
	v := v1.Context{
		ID: c.ID, SandboxID: c.SandboxID, SessionID: c.SandboxID, Language: c.Language, Cwd: c.Cwd, User: c.User,
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

// targetQuery names a Sandbox in the query.
type targetQuery struct{ v1.Target }

func (in *targetQuery) read(r *http.Request) error {
	values, err := query(r, targetParameters...)
	in.Target = targetIn(values)
	return err
}

// targetParameters are the parameters of a query that name a Sandbox.
var targetParameters = []string{"sandbox_id", "session_id"}

// targetIn is the Sandbox that a query names.
func targetIn(values url.Values) v1.Target {
	return v1.Target{SandboxID: values.Get("sandbox_id"), SessionID: values.Get("session_id")}
}

// ListContexts returns the contexts of a Sandbox.
func (a *API) ListContexts(ctx context.Context, c Call, in *targetQuery) (v1.Contexts, error) {
	id, err := in.Required()
	if err != nil {
		return v1.Contexts{}, err
	}
	all, err := a.Executions.Contexts(ctx, c.Who.Tenant, id)
	views := make([]v1.Context, len(all))
	for i, one := range all {
		views[i] = contextViewOf(one)
	}
	return v1.Contexts{Contexts: views}, err
}

// CreateContext creates a context.
func (a *API) CreateContext(ctx context.Context, c Call, in *v1.ContextRequest) (v1.Context, error) {
	id, err := in.Required()
	if err != nil {
		return v1.Context{}, err
	}
	made, err := a.Executions.CreateContext(ctx, c.Who.Tenant, id, execution.ContextSpec{Language: in.Language, Cwd: in.Cwd, User: in.User})
	return contextViewOf(made), err
}

// RestartContext gives a context a new interpreter.
func (a *API) RestartContext(ctx context.Context, c Call, in *v1.Target) (v1.Context, error) {
	id, err := in.Required()
	if err != nil {
		return v1.Context{}, err
	}
	restarted, err := a.Executions.RestartContext(ctx, c.Who.Tenant, id, c.ID)
	return contextViewOf(restarted), err
}

// InterruptContext ends the execution in a context.
func (a *API) InterruptContext(ctx context.Context, c Call, in *v1.Target) (v1.Interrupted, error) {
	id, err := in.Required()
	if err != nil {
		return v1.Interrupted{}, err
	}
	ran, err := a.Executions.InterruptContext(ctx, c.Who.Tenant, id, c.ID)
	return v1.Interrupted{Interrupted: ran}, err
}

// DeleteContext ends a context.
func (a *API) DeleteContext(ctx context.Context, c Call, in *targetQuery) (Nothing, error) {
	id, err := in.Required()
	if err != nil {
		return Nothing{}, err
	}
	return Nothing{}, a.Executions.DeleteContext(ctx, c.Who.Tenant, id, c.ID)
}
