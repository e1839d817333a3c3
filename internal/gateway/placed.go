package gateway

import (
	"cmp"
	"context"
	"errors"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// placed creates Sandboxes with the user and the folder of their Templates, where the
// request names none.
type placed struct {
	sandbox.Lifecycle
	templates sandbox.TemplateFinder
}

func (p placed) Create(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest) (sandbox.Sandbox, error) {
	req, err := p.place(ctx, tenant, req)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return p.Lifecycle.Create(ctx, tenant, req)
}

func (p placed) Ensure(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest) (sandbox.Sandbox, bool, error) {
	req, err := p.place(ctx, tenant, req)
	if err != nil {
		return sandbox.Sandbox{}, false, err
	}
	return p.Lifecycle.Ensure(ctx, tenant, req)
}

// place is req with the user and the folder of its Template. A Template that is not
// found is left for the creation to report. Other errors are of a home of Templates that
// is away; without its answer the Sandbox would get another user.
func (p placed) place(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest) (sandbox.CreateRequest, error) {
	if req.Snapshot != "" || req.Template == "" || req.User != "" && req.Cwd != "" {
		return req, nil
	}
	t, err := p.templates.Find(ctx, tenant, req.Template)
	switch {
	case err == nil:
		req.User, req.Cwd = cmp.Or(req.User, t.Defaults.User), cmp.Or(req.Cwd, t.Defaults.Cwd)
	case !sandbox.NoSuchTemplate(err) && !errors.Is(err, sandbox.Invalid):
		return req, sandbox.NotBegun(err)
	}
	return req, nil
}
