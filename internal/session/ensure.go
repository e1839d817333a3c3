package session

import (
	"context"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const (
	// ensureFirst and ensureLast are the first and the longest pause between polls of a
	// Sandbox that neither runs nor has ended.
	ensureFirst = 5 * time.Millisecond
	ensureLast  = 250 * time.Millisecond
)

// Ensure implements sandbox.Sandboxes. Of concurrent calls for one name, one creates the
// Sandbox and all return it.
func (m *Manager) Ensure(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest) (sandbox.Sandbox, bool, error) {
	if err := req.Check(); err != nil {
		return sandbox.Sandbox{}, false, err
	}
	if req.Name == "" {
		return sandbox.Sandbox{}, false, sandbox.Errorf(sandbox.Invalid, "if_exists \"return\" needs a name")
	}
	limited, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for pause := ensureFirst; ; pause = min(2*pause, ensureLast) {
		sb, err := m.store.SandboxByName(ctx, tenant, req.Name)
		switch {
		case errors.Is(err, sandbox.NotFound):
			sb, err = m.Create(ctx, tenant, req)
			if err == nil || !isConflict(err) {
				return sb, err == nil, err
			}
		case err != nil:
			return sandbox.Sandbox{}, false, sandbox.NotBegun(err)
		case sb.State == sandbox.Running:
			m.idle.use(sb.ID)
			return sb, false, nil
		case sb.State == sandbox.Pausing, sb.State == sandbox.Paused, sb.State == sandbox.Resuming:
			sb, err = m.resume(ctx, sb.ID, false)
			return sb, false, err
		}
		if sleep(limited, pause) != nil {
			if ctx.Err() != nil {
				return sandbox.Sandbox{}, false, ctx.Err()
			}
			return sandbox.Sandbox{}, false, sandbox.Errorf(sandbox.Conflict, "the sandbox %q is still changing its state: try again", req.Name)
		}
	}
}
