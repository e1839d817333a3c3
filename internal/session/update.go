package session

import (
	"context"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// Update implements sandbox.Sandboxes. The change is recorded before it is sent to the
// Boot. If the Boot does not apply it, the record is reverted, and reconciling sends the
// reverted record to the Boot.
func (m *Manager) Update(ctx context.Context, tenant sandbox.TenantID, idOrName string, change sandbox.Change) (sandbox.Sandbox, error) {
	sb, err := m.Get(ctx, tenant, idOrName)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	_, done, err := m.move(ctx, sb.ID) // prevents a concurrent pause or resume
	if err != nil {
		return sandbox.Sandbox{}, sandbox.NotBegun(err)
	}
	defer done()
	before, after, err := m.recordChange(ctx, sb.ID, change)
	if err != nil {
		return sandbox.Sandbox{}, sandbox.NotBegun(err)
	}
	if after.Revision != before.Revision && after.State == sandbox.Running { // a paused one gets it when it resumes
		// Finish the change even if the client disconnects.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
		defer cancel()
		if err := m.sendRecord(ctx, after); err != nil {
			m.takeBack(ctx, before, after)
			return sandbox.Sandbox{}, err
		}
	}
	m.alarm.set(after.Deadline)
	if after.State == sandbox.Running {
		m.track(after)
	}
	return after, nil
}

// recordChange writes a change, and returns the record before and after it.
func (m *Manager) recordChange(ctx context.Context, id string, change sandbox.Change) (before, after sandbox.Sandbox, err error) {
	for range tries(ctx) {
		if before, err = m.store.SandboxByID(ctx, id); err != nil {
			return before, after, err
		}
		if err = changeable(before); err != nil {
			return before, after, err
		}
		if after, err = change.Apply(before, now()); err != nil {
			return before, after, err
		}
		if after.Network != before.Network {
			if err = m.changeNetwork(ctx, after); err != nil {
				return before, after, err
			}
		}
		if change.Bandwidth != nil {
			if err = m.boundBandwidth(ctx, &after); err != nil {
				return before, after, err
			}
		}
		if after.Secrets != before.Secrets {
			if err = m.checkSecrets(ctx, after.Tenant, after.Secrets); err != nil {
				return before, after, err
			}
		}
		if err = m.nameFree(ctx, before, after); err != nil {
			return before, after, err
		}
		if after, err = m.store.UpdateSandbox(ctx, after); !isConflict(err) {
			return before, after, err
		}
	}
	return before, after, errRaced()
}

// boundBandwidth returns Exhausted for a bandwidth beyond the Quota. It replaces no limit
// by the Quota's.
func (m *Manager) boundBandwidth(ctx context.Context, sb *sandbox.Sandbox) error {
	quota, err := m.store.TenantQuota(ctx, sb.Tenant)
	if err != nil {
		return err
	}
	if err := quota.AdmitBandwidth(sb.Limits.Bandwidth); err != nil {
		return err
	}
	sb.Limits.Bandwidth = quota.BoundBandwidth(sb.Limits.Bandwidth)
	return nil
}

// nameFree returns Conflict for a new name that another Sandbox has. The Conflict of a
// failed write does not show whether the name or the version caused it.
func (m *Manager) nameFree(ctx context.Context, before, after sandbox.Sandbox) error {
	if after.Name == before.Name || after.Name == "" {
		return nil
	}
	_, err := m.store.SandboxByName(ctx, after.Tenant, after.Name)
	switch {
	case err == nil:
		return sandbox.Errorf(sandbox.Conflict, "the name %q is in use", after.Name)
	case errors.Is(err, sandbox.NotFound):
		return nil
	}
	return err
}

// sendRecord sends the record of sb to its Boot.
func (m *Manager) sendRecord(ctx context.Context, sb sandbox.Sandbox) error {
	b, err := m.binding(ctx, sb)
	if err != nil {
		return err
	}
	err = m.nodes.Update(ctx, sb.Boot.Node, sb.Boot.ID, b)
	if errors.Is(err, sandbox.NotFound) { // of the Boot, not of the Sandbox
		return sandbox.Errorf(sandbox.Unavailable, "the sandbox does not answer").WithCause(err)
	}
	return err
}

// takeBack reverts a recorded change that the Boot did not apply, or applied only in
// part. The reverted record gets a new Revision, so that it is sent to the Boot.
func (m *Manager) takeBack(ctx context.Context, before, after sandbox.Sandbox) {
	defer m.mendSoon()
	for range tries(ctx) {
		sb, err := m.store.SandboxByID(ctx, after.ID)
		if err != nil || !sb.Live() {
			return
		}
		sb.Name, sb.Metadata, sb.Env, sb.User, sb.Cwd = before.Name, before.Metadata, before.Env, before.User, before.Cwd
		sb.Network, sb.Ingress, sb.Secrets, sb.Limits, sb.IdleTimeout = before.Network, before.Ingress, before.Secrets, before.Limits, before.IdleTimeout
		sb.OnTimeout, sb.StayPaused, sb.CheckpointEvery = before.OnTimeout, before.StayPaused, before.CheckpointEvery
		if sb.Deadline.Equal(after.Deadline) { // not moved since
			sb.Timeout, sb.Deadline = before.Timeout, before.Deadline
		}
		sb.Revision++
		if _, err = m.store.UpdateSandbox(ctx, sb); !isConflict(err) {
			if err != nil {
				m.log.WarnContext(ctx, "undoing a refused change in the record failed", telemetry.KeySandbox, after.ID, telemetry.KeyError, err)
			}
			return
		}
	}
}

// againLimit bounds one resendRecord. A Guest may never answer, and other Sandboxes are
// waiting.
const againLimit = 2 * time.Second

// resendRecord sends the current record to a Boot with an old Revision or a reverted record.
// A Boot's refusal does not fail reconciling: the next pass retries.
func (m *Manager) resendRecord(ctx context.Context, id string) error {
	if m.isMoving(id) { // reconciling must not wait for that, and looks again
		return nil
	}
	release, err := m.locks.acquire(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	sb, err := m.store.SandboxByID(ctx, id)
	if err != nil || sb.State != sandbox.Running {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, againLimit)
	defer cancel()
	err = m.sendRecord(limited, sb)
	m.log.Info("reconcile applied a sandbox's record to its boot", telemetry.KeySandbox, id, telemetry.KeyBoot, sb.Boot.ID, telemetry.KeyError, err)
	return ctx.Err()
}
