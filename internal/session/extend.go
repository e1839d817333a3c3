package session

import (
	"context"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// SetTimeout implements sandbox.Sandboxes. Of concurrent calls the last one
// wins.
func (m *Manager) SetTimeout(ctx context.Context, tenant sandbox.TenantID, idOrName string, timeout time.Duration) (sandbox.Sandbox, error) {
	if timeout <= 0 || timeout > sandbox.MaxTimeout {
		return sandbox.Sandbox{}, sandbox.Errorf(sandbox.Invalid, "timeout_seconds must be between 1 and %d", int(sandbox.MaxTimeout.Seconds()))
	}
	for range attempts {
		sb, err := m.Get(ctx, tenant, idOrName)
		if err != nil {
			return sandbox.Sandbox{}, err
		}
		if !sb.Live() {
			return sandbox.Sandbox{}, sandbox.Errorf(sandbox.Conflict, "the sandbox has ended")
		}
		if sb.State == sandbox.Starting {
			return sandbox.Sandbox{}, sandbox.Errorf(sandbox.Conflict, "the sandbox is still starting")
		}
		sb.Timeout, sb.Deadline = timeout, now().Add(timeout)
		sb, err = m.store.UpdateSandbox(ctx, sb)
		if isConflict(err) {
			continue
		}
		if err == nil {
			m.alarm.set(sb.Deadline)
		}
		return sb, err
	}
	return sandbox.Sandbox{}, sandbox.Errorf(sandbox.Conflict, "the sandbox is being changed by others")
}
