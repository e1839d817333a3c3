package session

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// End implements sandbox.Sandboxes. Of concurrent calls one ends the Sandbox
// and the others, having waited for that, get NotFound. Once the end is
// decided it is made, whether or not ctx ends.
func (m *Manager) End(ctx context.Context, tenant sandbox.TenantID, idOrName string, cause sandbox.Cause) (sandbox.Sandbox, error) {
	sb, err := m.Get(ctx, tenant, idOrName)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return m.endLive(ctx, sb.ID, cause)
}

// endLive ends a Sandbox that may also be just starting.
func (m *Manager) endLive(ctx context.Context, id string, cause sandbox.Cause) (sandbox.Sandbox, error) {
	first, err := m.abandon(ctx, id, cause)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	sb, err := m.end(ctx, id, cause, nil)
	if first && errors.Is(err, sandbox.NotFound) {
		return m.store.SandboxByID(ctx, id) // the create ended it for us
	}
	return sb, err
}

// EndAll ends every Sandbox of every Tenant and returns how many it ended. It
// goes on past failures and returns them joined.
func (m *Manager) EndAll(ctx context.Context, cause sandbox.Cause) (int, error) {
	records, err := m.store.SandboxesNotEnded(ctx)
	if err != nil {
		return 0, err
	}
	var ended atomic.Int64
	work := newGroup()
	for _, sb := range records {
		work.do(func() error {
			_, err := m.endLive(ctx, sb.ID, cause)
			if errors.Is(err, sandbox.NotFound) {
				return nil // somebody else was faster
			}
			if err == nil {
				ended.Add(1)
			}
			return err
		})
	}
	err = work.wait()
	return int(ended.Load()), err
}

// BootEnded is a Node's word that a bound Boot ended by itself: the Sandbox
// ends with the cause told. A report of a Boot that is no longer the Sandbox's
// is ignored. The Node repeats a report until this returns nil.
func (m *Manager) BootEnded(ctx context.Context, e sandbox.BootEnd) error {
	_, err := m.end(ctx, e.SandboxID, e.Cause, func(sb sandbox.Sandbox) bool {
		if sb.Boot.Number != e.Number {
			return false
		}
		// A Boot from a Pool keeps its own name, which the record learns only
		// when it runs.
		return sb.State == sandbox.Starting || sb.Boot.ID == e.BootID
	})
	if errors.Is(err, sandbox.NotFound) {
		return nil
	}
	if err == nil {
		m.log.Info("boot ended", telemetry.KeySandbox, e.SandboxID, telemetry.KeyBoot, e.BootID, "cause", e.Cause)
	}
	return err
}

// end decides, makes and records the end of a Sandbox, or finishes one that was
// decided before, whose cause then stays. When still is not nil and says no of
// the present record, nothing happens. It returns NotFound for a Sandbox that
// has ended.
func (m *Manager) end(ctx context.Context, id string, cause sandbox.Cause, still func(sandbox.Sandbox) bool) (sandbox.Sandbox, error) {
	release, err := m.locks.acquire(ctx, id)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer release()
	sb, err := m.decide(ctx, id, cause, still)
	if err != nil || sb.Live() {
		return sb, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	if sb, err = m.finish(ctx, sb); err != nil {
		m.mendSoon()
		return sandbox.Sandbox{}, fmt.Errorf("end sandbox: %w", err)
	}
	return sb, nil
}

// decide records that a Sandbox ends and why, and returns its record: stopping,
// or still live when still said no.
func (m *Manager) decide(ctx context.Context, id string, cause sandbox.Cause, still func(sandbox.Sandbox) bool) (sandbox.Sandbox, error) {
	for range attempts {
		sb, err := m.store.SandboxByID(ctx, id)
		switch {
		case err != nil:
			return sandbox.Sandbox{}, err
		case sb.State == sandbox.Ended:
			return sandbox.Sandbox{}, notFound()
		case sb.State == sandbox.Stopping:
			return sb, nil
		case still != nil && !still(sb):
			return sb, nil
		}
		if err := sb.To(sandbox.Stopping); err != nil {
			return sandbox.Sandbox{}, err
		}
		sb.Ended = &sandbox.Certificate{Cause: cause, At: now()}
		if sb, err = m.store.UpdateSandbox(ctx, sb); !isConflict(err) {
			return sb, err
		}
	}
	return sandbox.Sandbox{}, sandbox.Errorf(sandbox.Conflict, "the sandbox is being changed by others")
}

// finish stops what runs of a stopping Sandbox and records it ended.
func (m *Manager) finish(ctx context.Context, sb sandbox.Sandbox) (sandbox.Sandbox, error) {
	if err := m.stopBoots(ctx, sb); err != nil {
		return sb, err
	}
	if err := sb.To(sandbox.Ended); err != nil {
		return sb, err
	}
	return m.store.UpdateSandbox(ctx, sb)
}

// stopBoots stops the Boot of a Sandbox. One that never ran may have a Boot
// from a Pool whose name was not recorded: its Node knows. A Node whose Lease
// is over runs nothing.
func (m *Manager) stopBoots(ctx context.Context, sb sandbox.Sandbox) error {
	ids := []string{sb.Boot.ID}
	err := func() error {
		if sb.StartedAt.IsZero() {
			boots, err := m.nodes.Boots(ctx, sb.Boot.Node)
			if err != nil {
				return err
			}
			for _, b := range boots {
				if b.SandboxID == sb.ID && b.BootID != sb.Boot.ID {
					ids = append(ids, b.BootID)
				}
			}
		}
		for _, id := range ids {
			if err := m.nodes.Stop(ctx, sb.Boot.Node, id, m.cfg.StopGrace); err != nil {
				return err
			}
		}
		return nil
	}()
	if errors.Is(err, sandbox.Unavailable) {
		if lost, lostErr := m.nodeLost(ctx, sb.Boot.Node); lostErr == nil && lost {
			return nil
		}
	}
	return err
}

// mendSoon has Run reconcile soon.
func (m *Manager) mendSoon() {
	select {
	case m.mendCh <- struct{}{}:
	default:
	}
}
