package gateway

import (
	"cmp"
	"context"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// placed creates Sandboxes with the user and the folder of their Templates, where the
// request names none.
type placed struct {
	sandbox.Lifecycle
	templates sandbox.TemplateCatalog
}

func (p placed) Create(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest) (sandbox.Sandbox, error) {
	return p.Lifecycle.Create(ctx, tenant, p.place(ctx, tenant, req))
}

func (p placed) Ensure(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest) (sandbox.Sandbox, bool, error) {
	return p.Lifecycle.Ensure(ctx, tenant, p.place(ctx, tenant, req))
}

// place is req with the user and the folder of its Template. A Template that is not
// found is left for the creation to report.
func (p placed) place(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest) sandbox.CreateRequest {
	if req.Snapshot != "" || req.User != "" && req.Cwd != "" {
		return req
	}
	if t, err := p.templates.Find(ctx, tenant, req.Template); err == nil {
		req.User, req.Cwd = cmp.Or(req.User, t.Defaults.User), cmp.Or(req.Cwd, t.Defaults.Cwd)
	}
	return req
}
