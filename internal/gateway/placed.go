package gateway

import (
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
	if req.Snapshot == "" && (req.User == "" || req.Cwd == "") {
		// A Template that cannot be found is for the creation to tell.
		if t, err := p.templates.Find(ctx, tenant, req.Template); err == nil {
			if req.User == "" {
				req.User = t.Defaults.User
			}
			if req.Cwd == "" {
				req.Cwd = t.Defaults.Cwd
			}
		}
	}
	return p.Lifecycle.Create(ctx, tenant, req)
}
