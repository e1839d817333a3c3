package rest

import (
	"net/http"

	"github.com/cloud-sandbox/cloud-sandbox"
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

// ListContexts answers GET /api/v1/contexts.
func (a *API) ListContexts(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	id, err := queryTarget(r)
	if err != nil {
		return err
	}
	all, err := a.Executions.Contexts(r.Context(), who.Tenant, id)
	if err != nil {
		return err
	}
	views := make([]v1.Context, 0, len(all))
	for _, c := range all {
		views = append(views, contextViewOf(c))
	}
	return Reply(w, http.StatusOK, v1.Contexts{Contexts: views})
}

// queryTarget is the Sandbox that a request without a body names.
func queryTarget(r *http.Request) (string, error) {
	q, err := query(r, "sandbox_id", "session_id")
	if err != nil {
		return "", err
	}
	return v1.Target{SandboxID: q.Get("sandbox_id"), SessionID: q.Get("session_id")}.Required()
}

// CreateContext answers POST /api/v1/contexts.
func (a *API) CreateContext(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.ContextRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	id, err := body.Required()
	if err != nil {
		return err
	}
	c, err := a.Executions.CreateContext(r.Context(), who.Tenant, id, execution.ContextSpec{Language: body.Language, Cwd: body.Cwd, User: body.User})
	if err != nil {
		return err
	}
	return Reply(w, http.StatusCreated, contextViewOf(c))
}

// bodyTarget is the Sandbox that a request's body names.
func bodyTarget(r *http.Request) (string, error) {
	var body v1.Target
	if err := Decode(r, &body); err != nil {
		return "", err
	}
	return body.Required()
}

// RestartContext answers POST /api/v1/contexts/{id}/restart.
func (a *API) RestartContext(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	id, err := bodyTarget(r)
	if err != nil {
		return err
	}
	c, err := a.Executions.RestartContext(r.Context(), who.Tenant, id, r.PathValue("id"))
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, contextViewOf(c))
}

// InterruptContext answers POST /api/v1/contexts/{id}/interrupt.
func (a *API) InterruptContext(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	id, err := bodyTarget(r)
	if err != nil {
		return err
	}
	ran, err := a.Executions.InterruptContext(r.Context(), who.Tenant, id, r.PathValue("id"))
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, v1.Interrupted{Interrupted: ran})
}

// DeleteContext answers DELETE /api/v1/contexts/{id}.
func (a *API) DeleteContext(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	id, err := queryTarget(r)
	if err != nil {
		return err
	}
	if err := a.Executions.DeleteContext(r.Context(), who.Tenant, id, r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
