package session

import (
	"context"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// SetTimeout implements sandbox.Sandboxes. Of concurrent calls the last one
// wins.
func (m *Manager) SetTimeout(ctx context.Context, tenant sandbox.TenantID, idOrName string, timeout time.Duration) (sandbox.Sandbox, error) {
	return m.timed(ctx, tenant, idOrName, timeout, (*sandbox.Sandbox).SetTimeout)
}

// RunFor implements sandbox.Sandboxes.
func (m *Manager) RunFor(ctx context.Context, tenant sandbox.TenantID, idOrName string, timeout time.Duration) (sandbox.Sandbox, error) {
	return m.timed(ctx, tenant, idOrName, timeout, (*sandbox.Sandbox).RunFor)
}

func (m *Manager) timed(ctx context.Context, tenant sandbox.TenantID, idOrName string, timeout time.Duration, set func(*sandbox.Sandbox, time.Duration, time.Time) error) (sandbox.Sandbox, error) {
	if err := sandbox.CheckTimeout(timeout); err != nil {
		return sandbox.Sandbox{}, err
	}
	return m.extend(ctx, tenant, idOrName, func(sb *sandbox.Sandbox) error { return set(sb, timeout, now()) })
}

// Touch implements sandbox.Sandboxes.
func (m *Manager) Touch(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	return m.extend(ctx, tenant, idOrName, func(sb *sandbox.Sandbox) error {
		sb.Touch(now())
		return nil
	})
}

// extend changes the deadline of a Sandbox, which counts as use.
func (m *Manager) extend(ctx context.Context, tenant sandbox.TenantID, idOrName string, change func(*sandbox.Sandbox) error) (sandbox.Sandbox, error) {
	for range tries(ctx) {
		sb, err := m.Settled(ctx, tenant, idOrName)
		if err != nil {
			return sandbox.Sandbox{}, err
		}
		if err := changeable(sb); err != nil {
			return sandbox.Sandbox{}, err
		}
		if err := change(&sb); err != nil {
			return sandbox.Sandbox{}, err
		}
		sb, err = m.store.UpdateSandbox(ctx, sb)
		if isConflict(err) {
			continue
		}
		if err == nil {
			m.idle.use(sb.ID)
			m.alarm.set(sb.Deadline)
		}
		return sb, sandbox.NotBegun(err)
	}
	return sandbox.Sandbox{}, errRaced()
}

// changeable returns Conflict for a Sandbox that neither runs nor is paused.
func changeable(sb sandbox.Sandbox) error {
	if sb.State == sandbox.Running || sb.State == sandbox.Paused {
		return nil
	}
	return notRunning(sb)
}

// notRunning returns the Conflict for an operation that needs a running Sandbox.
func notRunning(sb sandbox.Sandbox) error {
	switch {
	case !sb.Live():
		return sandbox.Errorf(sandbox.Conflict, "the sandbox has ended")
	case sb.State == sandbox.Starting:
		return sandbox.Errorf(sandbox.Conflict, "the sandbox is still starting")
	}
	return sandbox.Errorf(sandbox.Conflict, "the sandbox is %s", sb.State)
}
