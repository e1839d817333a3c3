package session

import (
	"context"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// pauseLimit bounds a pause, the writing of all memory included.
	pauseLimit = 5 * time.Minute
	// pauseRetry is the time between attempts to pause what should be paused.
	pauseRetry = time.Minute
)

// Pause implements sandbox.Sandboxes. Of concurrent calls one pauses and the
// others return what it made.
func (m *Manager) Pause(ctx context.Context, tenant sandbox.TenantID, idOrName string, filesOnly bool) (sandbox.Sandbox, error) {
	sb, err := m.Get(ctx, tenant, idOrName)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	paused, err := m.pause(ctx, sb.ID, filesOnly, nil)
	return paused, m.whyNotSaved(ctx, sb.ID, err)
}

// pause pauses a Sandbox that runs. When still is not nil and says no of the
// present record, nothing happens.
func (m *Manager) pause(ctx context.Context, id string, filesOnly bool, still func(sandbox.Sandbox) bool) (sandbox.Sandbox, error) {
	sb, done, err := m.move(ctx, id)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	if still != nil && !still(sb) || sb.State == sandbox.Paused {
		done()
		return sb, nil
	}
	// The client may leave: what is begun is finished.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pauseLimit)
	defer cancel()
	paused, err := m.pauseHeld(ctx, sb, filesOnly)
	if err != nil {
		done()
		return sandbox.Sandbox{}, err
	}
	// Nobody waits until its memory is free, but who moves the Sandbox next or ends it.
	// Also who resumes it: what the frozen Boot has asked of a Volume may still be done
	// while it is there, and would come after what the next Boot, which asks for the
	// same again, does then; and a Node has one Boot of a Sandbox at a time, by which it
	// knows after a crash what runs. The wait is some 10 to 100 ms.
	gone := make(chan struct{})
	m.mu.Lock()
	m.leaving[id] = gone
	m.mu.Unlock()
	m.stopping.Go(func() {
		defer done()
		defer func() {
			m.mu.Lock()
			delete(m.leaving, id)
			m.mu.Unlock()
			close(gone)
		}()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
		defer cancel()
		m.letGo(ctx, sb)
	})
	return paused, nil
}

// left waits until the Boot of a Sandbox that was just paused is gone, or ctx ends.
func (m *Manager) left(ctx context.Context, id string) {
	m.mu.Lock()
	gone := m.leaving[id]
	m.mu.Unlock()
	if gone == nil {
		return
	}
	select {
	case <-gone:
	case <-ctx.Done():
	}
}

// Settled implements sandbox.Sandboxes. It waits for those who move the Sandbox one
// after the other, so that it returns also while others move it all the time.
func (m *Manager) Settled(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	sb, err := m.Get(ctx, tenant, idOrName)
	if err != nil || !onItsWay(sb.State) {
		return sb, err
	}
	sb, done, err := m.move(ctx, sb.ID)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	done()
	return sb, nil
}

// onItsWay reports whether a State is left soon, for one that lasts.
func onItsWay(s sandbox.State) bool {
	return s == sandbox.Starting || s == sandbox.Pausing || s == sandbox.Resuming
}

// move returns the record of a Sandbox of which the caller, until it calls done,
// alone changes the State, but for an end that is decided. What an earlier change
// left half done has been undone, and a create that is under way here is over.
func (m *Manager) move(ctx context.Context, id string) (_ sandbox.Sandbox, done func(), err error) {
	if err := m.created(ctx, id); err != nil {
		return sandbox.Sandbox{}, nil, err
	}
	release, err := m.locks.acquire(ctx, id)
	if err != nil {
		return sandbox.Sandbox{}, nil, err
	}
	m.mu.Lock()
	m.moving[id] = true
	m.mu.Unlock()
	done = func() {
		m.mu.Lock()
		delete(m.moving, id)
		m.mu.Unlock()
		release()
	}
	sb, err := m.store.SandboxByID(ctx, id)
	if err == nil && (sb.State == sandbox.Pausing || sb.State == sandbox.Resuming) {
		sb, err = m.undoMove(ctx, sb)
	}
	if err != nil {
		done()
		return sandbox.Sandbox{}, nil, err
	}
	return sb, done, nil
}

// isMoving reports whether the State of a Sandbox is being changed here.
func (m *Manager) isMoving(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.moving[id]
}

// change writes a record as edit makes it, of the newest there is. edit may be
// called several times; its error ends the change.
func (m *Manager) change(ctx context.Context, id string, edit func(*sandbox.Sandbox) error) (sandbox.Sandbox, error) {
	lost := error(errRaced())
	for range tries(ctx) {
		sb, err := m.store.SandboxByID(ctx, id)
		if err != nil {
			return sandbox.Sandbox{}, err
		}
		if err := edit(&sb); err != nil {
			return sandbox.Sandbox{}, err
		}
		if sb, err = m.store.UpdateSandbox(ctx, sb); !isConflict(err) {
			return sb, err
		}
		lost = err
	}
	return sandbox.Sandbox{}, lost
}

// pauseHeld pauses sb, which nobody else moves: it is recorded pausing, saved and
// recorded paused. Only then may the caller let its Boot go, which stands still.
func (m *Manager) pauseHeld(ctx context.Context, sb sandbox.Sandbox, filesOnly bool) (sandbox.Sandbox, error) {
	if err := runs(sb); err != nil {
		return sandbox.Sandbox{}, err
	}
	began := time.Now()
	snap, release, err := m.beginSnapshot(ctx, sb, sandbox.SnapshotRequest{FilesOnly: filesOnly}, false)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer release()
	paused, err := m.pauseInto(ctx, sb, snap)
	m.observe("pause", err, began)
	if err != nil {
		m.log.WarnContext(ctx, "pausing a sandbox failed", telemetry.KeySandbox, sb.ID, telemetry.KeyNode, sb.Boot.Node, telemetry.KeyError, err)
		return sandbox.Sandbox{}, err
	}
	m.untrack(sb.ID)
	m.alarm.set(paused.Deadline)
	m.log.InfoContext(ctx, "a sandbox is paused", telemetry.KeySandbox, sb.ID, telemetry.KeyTenant, sb.Tenant, telemetry.KeyNode, sb.Boot.Node,
		telemetry.KeySnapshot, snap.ID, telemetry.KeyDuration, float64(time.Since(began).Microseconds())/1000)
	return paused, nil
}

// pauseInto takes sb from running to paused in snap; on error it runs on, at
// once or when it is reconciled.
func (m *Manager) pauseInto(ctx context.Context, sb sandbox.Sandbox, snap sandbox.Snapshot) (sandbox.Sandbox, error) {
	_, err := m.change(ctx, sb.ID, func(s *sandbox.Sandbox) error {
		s.Deadline = now().Add(pauseLimit)
		return s.To(sandbox.Pausing)
	})
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	if err = m.save(ctx, sb, snap, true); err == nil {
		var paused sandbox.Sandbox
		paused, err = m.change(ctx, sb.ID, func(s *sandbox.Sandbox) error {
			s.Snapshot, s.Boot.ID, s.Deadline = snap.ID, "", now().Add(sandbox.PausedLife)
			return s.To(sandbox.Paused)
		})
		if err == nil {
			return paused, nil
		}
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	if _, undoErr := m.runOn(undo, sb, sb.Deadline); undoErr != nil {
		m.log.WarnContext(ctx, "undoing a failed pause failed; will retry", telemetry.KeySandbox, sb.ID, telemetry.KeyError, undoErr)
		m.mendSoon()
	}
	return sandbox.Sandbox{}, err
}

// undoMove takes a Sandbox that a pause or resume left half done back to where
// it was. No process works on it.
func (m *Manager) undoMove(ctx context.Context, sb sandbox.Sandbox) (sandbox.Sandbox, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	m.log.InfoContext(ctx, "undid a half-done change of state", telemetry.KeySandbox, sb.ID, "was", sb.State)
	if sb.State == sandbox.Pausing {
		return m.runOn(ctx, sb, sb.Bounded(now().Add(sb.Timeout)))
	}
	return m.stayPaused(ctx, sb, sb.Snapshot, sb.Timeline, now().Add(sandbox.PausedLife))
}

// runOn takes a pausing Sandbox back to running. A Boot that is gone is for
// reconciling to find.
func (m *Manager) runOn(ctx context.Context, sb sandbox.Sandbox, deadline time.Time) (sandbox.Sandbox, error) {
	err := m.nodes.Thaw(ctx, sb.Boot.Node, refOf(sb))
	switch sandbox.CodeOf(err) {
	case "", sandbox.NotFound, sandbox.Conflict, sandbox.Unsupported: // what cannot pause was not stopped
	default:
		return sandbox.Sandbox{}, err
	}
	running, err := m.change(ctx, sb.ID, func(s *sandbox.Sandbox) error {
		s.Deadline = deadline
		return s.To(sandbox.Running)
	})
	if err == nil {
		m.alarm.set(running.Deadline)
		m.track(running)
	}
	return running, err
}

// runs returns Conflict for a Sandbox that has no Boot of its own.
func runs(sb sandbox.Sandbox) error {
	if sb.State == sandbox.Running {
		return nil
	}
	return notRunning(sb)
}
