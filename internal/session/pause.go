package session

import (
	"context"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// pauseLimit bounds a pause, including the writing of all memory.
	pauseLimit = 5 * time.Minute
	// pauseRetry is the time between attempts to pause a Sandbox.
	pauseRetry = time.Minute
)

// Pause implements sandbox.Sandboxes. Of concurrent calls, one pauses the Sandbox and all
// return the result.
func (m *Manager) Pause(ctx context.Context, tenant sandbox.TenantID, idOrName string, filesOnly bool) (sandbox.Sandbox, error) {
	sb, err := m.Get(ctx, tenant, idOrName)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	paused, err := m.pause(ctx, sb.ID, filesOnly, nil)
	return paused, m.whyNotSaved(ctx, sb.ID, err)
}

// pause pauses a running Sandbox. It does nothing if still is not nil and returns false
// for the current record.
func (m *Manager) pause(ctx context.Context, id string, filesOnly bool, still func(sandbox.Sandbox) bool) (sandbox.Sandbox, error) {
	sb, done, err := m.move(ctx, id)
	if err != nil {
		return sandbox.Sandbox{}, sandbox.NotBegun(err)
	}
	if still != nil && !still(sb) || sb.State == sandbox.Paused {
		done()
		return sb, nil
	}
	// Finish the pause even if the client disconnects.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pauseLimit)
	defer cancel()
	paused, err := m.pauseHeld(ctx, sb, filesOnly)
	if err != nil {
		done()
		return sandbox.Sandbox{}, err
	}
	// The caller does not wait until the old Boot's memory is free. Only the next pause,
	// resume or end of the Sandbox waits, about 10 to 100 ms. A resume must wait too:
	// Volume requests of the frozen Boot may still execute, and could take effect after
	// the same requests, repeated by the next Boot. Also, a Node has at most one Boot
	// of a Sandbox at a time. So after a crash, the Node can tell which Boot runs.
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
		m.stopPaused(ctx, sb)
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

// Settled implements sandbox.Sandboxes. It queues for the Sandbox's lock, so that it
// returns even if other callers change the State all the time.
func (m *Manager) Settled(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	sb, err := m.Get(ctx, tenant, idOrName)
	if err != nil || !onItsWay(sb.State) {
		return sb, err
	}
	sb, done, err := m.move(ctx, sb.ID)
	if err != nil {
		return sandbox.Sandbox{}, sandbox.NotBegun(err)
	}
	done()
	return sb, nil
}

// onItsWay reports whether a State is transitional.
func onItsWay(s sandbox.State) bool {
	return s == sandbox.Starting || s == sandbox.Pausing || s == sandbox.Resuming
}

// move gives the caller the exclusive right to change the State of a Sandbox until it
// calls done, except for an end that is already recorded. It returns the record, after it
// waited for a create in this process and undid any half-done change.
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

// isMoving reports whether this process is changing the State of a Sandbox.
func (m *Manager) isMoving(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.moving[id]
}

// change applies edit to the newest record and writes it. edit may be called several
// times; its error ends the change.
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

// pauseHeld pauses sb, which the caller holds by move: it records sb as pausing, saves it
// and records it as paused. Only then may the caller stop the frozen Boot.
func (m *Manager) pauseHeld(ctx context.Context, sb sandbox.Sandbox, filesOnly bool) (sandbox.Sandbox, error) {
	if err := runs(sb); err != nil {
		return sandbox.Sandbox{}, err
	}
	began := time.Now()
	snap, release, err := m.beginSnapshot(ctx, sb, sandbox.SnapshotRequest{FilesOnly: filesOnly}, false)
	if err != nil {
		return sandbox.Sandbox{}, sandbox.NotBegun(err)
	}
	defer release()
	paused, err := m.pauseInto(ctx, sb, snap, false, func(sandbox.Sandbox) (func(*sandbox.Sandbox) error, error) {
		return func(s *sandbox.Sandbox) error {
			s.Snapshot, s.Boot.ID, s.Deadline = snap.ID, "", now().Add(sandbox.PausedLife)
			return s.To(sandbox.Paused)
		}, nil
	})
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

// pauseInto freezes sb and saves it as snap, within pauseLimit; if it leaves its Node, next is
// part of that, within leaveLimit. Then it calls next with the last record that says running, and
// records the State that the returned edit sets. On error sb continues to run, at once or after
// reconciling.
func (m *Manager) pauseInto(ctx context.Context, sb sandbox.Sandbox, snap sandbox.Snapshot, leaves bool, next func(running sandbox.Sandbox) (edit func(*sandbox.Sandbox) error, err error)) (sandbox.Sandbox, error) {
	limit := pauseLimit
	if leaves {
		limit = leaveLimit
	}
	_, err := m.change(ctx, sb.ID, func(s *sandbox.Sandbox) error {
		sb.Deadline, sb.RunsUntil = s.Deadline, s.RunsUntil
		s.Deadline = now().Add(limit)
		return s.To(sandbox.Pausing)
	})
	if err != nil {
		return sandbox.Sandbox{}, sandbox.NotBegun(err)
	}
	if err = m.save(ctx, sb, snap, sandbox.SaveRequest{Freeze: true, Leaves: leaves}); err == nil {
		var edit func(*sandbox.Sandbox) error
		if edit, err = next(sb); err == nil {
			var after sandbox.Sandbox
			if after, err = m.change(ctx, sb.ID, edit); err == nil {
				return after, nil
			}
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

// errLeft is the cause of undoing a start of another process, which may have succeeded.
var errLeft = errors.New("another process started it")

// undoMove undoes a half-done pause or resume of a Sandbox that no process works on.
func (m *Manager) undoMove(ctx context.Context, sb sandbox.Sandbox) (sandbox.Sandbox, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	m.log.InfoContext(ctx, "undid a half-done change of state", telemetry.KeySandbox, sb.ID, "was", sb.State)
	if sb.State == sandbox.Pausing {
		return m.runOn(ctx, sb, sb.Bounded(now().Add(sb.Timeout)))
	}
	snap, timeline, err := m.wayBack(ctx, sb)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return m.stayPaused(ctx, sb, errLeft, snap, timeline, now().Add(sandbox.PausedLife))
}

// wayBack returns the Snapshot and the Timeline in which a resuming Sandbox is paused again if
// it does not start.
func (m *Manager) wayBack(ctx context.Context, sb sandbox.Sandbox) (sandbox.Snapshot, int64, error) {
	if back, ok := sb.WayBack(); ok {
		snap, err := m.store.SnapshotByID(ctx, back.Snapshot)
		switch {
		case errors.Is(err, sandbox.NotFound), err == nil && snap.State != sandbox.SnapshotReady: // an earlier version of this program deletes it
		default:
			return snap, back.Timeline, err
		}
	}
	return sandbox.Snapshot{ID: sb.Snapshot, Node: sb.Boot.Node}, sb.Timeline, nil
}

// runOn moves a pausing Sandbox back to running. If its Boot is gone, reconciling will
// find that. It thaws nothing if the record says something else: a write that seemed to
// fail may have been committed.
func (m *Manager) runOn(ctx context.Context, sb sandbox.Sandbox, deadline time.Time) (sandbox.Sandbox, error) {
	pausing := func(s sandbox.Sandbox) error {
		if s.State != sandbox.Pausing || s.Boot != sb.Boot {
			return notRunning(s)
		}
		return nil
	}
	present, err := m.store.SandboxByID(ctx, sb.ID)
	if err == nil {
		err = pausing(present)
	}
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	err = m.nodes.Thaw(ctx, sb.Boot.Node, refOf(sb))
	switch sandbox.CodeOf(err) {
	case "", sandbox.NotFound, sandbox.Conflict, sandbox.Unsupported: // an Engine without pause did not freeze it
	default:
		return sandbox.Sandbox{}, err
	}
	running, err := m.change(ctx, sb.ID, func(s *sandbox.Sandbox) error {
		if err := pausing(*s); err != nil {
			return err
		}
		s.Deadline = deadline
		return s.To(sandbox.Running)
	})
	if err == nil {
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
