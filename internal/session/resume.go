package session

import (
	"context"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// resumeLimit bounds a resume, including its wait in the queue.
const resumeLimit = 2 * time.Minute

// Resume implements sandbox.Sandboxes.
func (m *Manager) Resume(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	sb, err := m.Get(ctx, tenant, idOrName)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return m.resume(ctx, sb.ID, false)
}

// Reboot implements sandbox.Sandboxes.
func (m *Manager) Reboot(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	sb, err := m.Get(ctx, tenant, idOrName)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return m.resume(ctx, sb.ID, true)
}

// resume resumes a Sandbox, with reboot from its files alone.
func (m *Manager) resume(ctx context.Context, id string, reboot bool) (sandbox.Sandbox, error) {
	sb, done, err := m.move(ctx, id)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer done()
	if sb.State == sandbox.Running {
		return sb, nil
	}
	began := time.Now()
	ctx, cancel := m.detached(ctx, id, resumeLimit)
	defer cancel()
	snap, err := m.store.SnapshotByID(ctx, sb.Snapshot)
	if sb.State == sandbox.Paused && err != nil {
		return sandbox.Sandbox{}, cannotStart(sb, began, err)
	}
	if reboot && sb.State == sandbox.Paused && snap.Memory {
		moved, from, release, err := m.withinReach(ctx, sb, snap)
		if err != nil {
			return sandbox.Sandbox{}, cannotStart(sb, began, err)
		}
		defer release()
		files, release, err := m.filesOf(ctx, moved, from)
		if err != nil {
			return sandbox.Sandbox{}, cannotStart(sb, began, err)
		}
		defer release() // then a sweep removes it if the Sandbox did not start
		sb, snap = moved, files
	}
	return m.resumeHeld(ctx, sb, snap, sb.Timeline)
}

// withinReach returns a paused Sandbox, which the caller holds by move, and its Snapshot
// snap, on a Node that can read it. If its Node is away, it moves to another one; if the Node
// has lost the Snapshot, that fetches it. Sweeps keep the Snapshot until release is called.
func (m *Manager) withinReach(ctx context.Context, sb sandbox.Sandbox, snap sandbox.Snapshot) (_ sandbox.Sandbox, _ sandbox.Snapshot, release func(), _ error) {
	if err := m.checkAlone(sb, snap); err != nil {
		return sb, snap, nil, err
	}
	moved, unhold := sb, func() {}
	var err error
	switch away := m.isAway(snap.Node); {
	case away:
		if moved, unhold, err = m.moveState(ctx, sb); err != nil {
			gone := sandbox.Errorf(sandbox.Unavailable, "the node of the sandbox is away")
			return sb, snap, nil, sandbox.NotBegun(awayError(gone, err))
		}
	case m.isMissing(ctx, sb):
		if moved, unhold, err = m.moveStateTo(ctx, sb, snap.Node); err != nil {
			return sb, snap, nil, err
		}
	default:
		return sb, snap, unhold, nil
	}
	release = func() {
		unhold()
		m.sweepSoon() // of the state that it left
	}
	snap, err = m.store.SnapshotByID(ctx, moved.Snapshot)
	if err != nil {
		release()
		return moved, snap, nil, err
	}
	return moved, snap, release, nil
}

// filesOf makes a files-only Snapshot of a paused Sandbox, which the caller holds by
// move. Sweeps keep the Snapshot until release is called, even if nothing refers to it.
func (m *Manager) filesOf(ctx context.Context, sb sandbox.Sandbox, from sandbox.Snapshot) (_ sandbox.Snapshot, release func(), err error) {
	sb.Boot.Node = from.Node
	snap, release, err := m.beginSnapshot(ctx, sb, sandbox.SnapshotRequest{FilesOnly: true}, false)
	if err != nil {
		return sandbox.Snapshot{}, nil, err
	}
	saved, err := m.nodes.SaveFiles(ctx, from.Node, sandbox.FilesRequest{
		Tenant: sb.Tenant, From: from.ID, Image: from.Image, Shape: from.Shape, Snapshot: snap.ID,
	})
	if err == nil {
		snap, err = m.saved(ctx, snap, saved)
	}
	if err != nil {
		release()
		return sandbox.Snapshot{}, nil, err
	}
	return snap, release, nil
}

// Rollback implements sandbox.Sandboxes. A running Sandbox is paused first, so that a
// failure loses nothing. A retry finds it paused and does not save it again.
func (m *Manager) Rollback(ctx context.Context, tenant sandbox.TenantID, idOrName, snapshot string) (sandbox.Sandbox, error) {
	sb, err := m.Get(ctx, tenant, idOrName)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	if !sb.Live() {
		return sandbox.Sandbox{}, notRunning(sb)
	}
	snap, err := m.inHistory(ctx, sb, snapshot)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	sb, done, err := m.move(ctx, sb.ID)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pauseLimit+resumeLimit)
	defer cancel()
	if sb.State != sandbox.Paused {
		before := sb
		if sb, err = m.pauseHeld(ctx, before, false); err != nil {
			return sandbox.Sandbox{}, err
		}
		m.stopPaused(ctx, before)
	}
	defer m.sweepSoon()
	return m.resumeHeld(ctx, sb, snap, sb.Timeline+1)
}

// resumeHeld starts a paused Sandbox, which the caller holds by move, from snap. If that
// fails, it stays paused as it was.
func (m *Manager) resumeHeld(ctx context.Context, sb sandbox.Sandbox, snap sandbox.Snapshot, timeline int64) (sandbox.Sandbox, error) {
	if sb.State != sandbox.Paused {
		return sandbox.Sandbox{}, notRunning(sb)
	}
	if err := m.checkAlone(sb, snap); err != nil {
		return sandbox.Sandbox{}, err
	}
	release := m.keep(sb.Snapshot) // it stays paused in that if it cannot start from snap
	moved := false
	defer func() {
		release()
		if moved {
			m.sweepSoon()
		}
	}()
	began := time.Now()
	resuming, err := m.change(ctx, sb.ID, func(s *sandbox.Sandbox) error {
		was := sandbox.Back{Snapshot: s.Snapshot, Timeline: s.Timeline}
		if err := resumeFrom(s, snap); err != nil {
			return err
		}
		s.Timeline = timeline
		if was.Snapshot != snap.ID || was.Timeline != timeline {
			was.Boot = s.Boot.Number
			s.Back = was
		}
		return nil
	})
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	running, started, err := m.startFrom(ctx, resuming)
	m.observe("resume", err, began)
	moved = running.Snapshot != snap.ID
	if err != nil {
		cause := err
		if started {
			cause = errLeft
		}
		m.stayAsBefore(ctx, sb, running, cause)
		return sandbox.Sandbox{}, cannotStart(running, began, err)
	}
	m.track(running)
	m.log.InfoContext(ctx, "a sandbox resumed", telemetry.KeySandbox, sb.ID, telemetry.KeyTenant, sb.Tenant, telemetry.KeyNode, running.Boot.Node,
		telemetry.KeyBoot, running.Boot.ID, telemetry.KeySnapshot, running.Snapshot, telemetry.KeyDuration, float64(time.Since(began).Microseconds())/1000)
	return running, nil
}

// checkAlone returns Unavailable if a paused Sandbox might run twice when it starts from
// snap.
func (m *Manager) checkAlone(sb sandbox.Sandbox, snap sandbox.Snapshot) error {
	node := sb.Boot.Node
	if !m.isTied(sb) || !m.isAway(node) && snap.Node == node {
		return nil
	}
	return sandbox.Errorf(sandbox.Unavailable, "the node of the sandbox does not answer, and the sandbox may still run on it: "+
		"it resumes once the node answers, or is lost")
}

// stayAsBefore moves a Sandbox whose resume failed with cause back to sb, its record before.
// tried is the record of the failed attempt.
func (m *Manager) stayAsBefore(ctx context.Context, sb, tried sandbox.Sandbox, cause error) {
	m.log.WarnContext(ctx, "resuming a sandbox failed", telemetry.KeySandbox, sb.ID, telemetry.KeyNode, tried.Boot.Node, telemetry.KeySnapshot, tried.Snapshot, telemetry.KeyError, cause)
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	snap, err := m.store.SnapshotByID(undo, sb.Snapshot)
	if err == nil {
		_, err = m.stayPaused(undo, tried, cause, snap, sb.Timeline, sb.Deadline)
	}
	if err != nil {
		m.log.WarnContext(ctx, "undoing a failed resume failed; will retry", telemetry.KeySandbox, sb.ID, telemetry.KeyError, err)
		m.mendSoon()
	}
}

// resumeFrom makes s resume from snap.
func resumeFrom(s *sandbox.Sandbox, snap sandbox.Snapshot) error {
	s.Back = sandbox.Back{}
	nextBoot(s, snap.Node)
	s.Snapshot, s.Deadline = snap.ID, now().Add(resumeLimit)
	return s.To(sandbox.Resuming)
}

// nextBoot gives s the intent of another Boot, on a Node. Its number invalidates anything that
// the Node of the Boot before may still do with that.
func nextBoot(s *sandbox.Sandbox, node string) {
	back, ok := s.WayBack()
	s.Boot = sandbox.Boot{ID: sandbox.NewBootID(), Number: s.Boot.Number + 1, Node: node}
	if ok {
		back.Boot = s.Boot.Number
		s.Back = back
	}
}

// startFrom starts the Boot of a resuming Sandbox, and records it as running. On error it
// returns the record of the attempt, and whether the Boot started.
func (m *Manager) startFrom(ctx context.Context, sb sandbox.Sandbox) (_ sandbox.Sandbox, started bool, _ error) {
	m.awaitVolumes(ctx, sb)
	quota, err := m.store.TenantQuota(ctx, sb.Tenant)
	if err != nil {
		return sb, false, err
	}
	sb, boot, release, err := m.startSaved(ctx, sb)
	defer release()
	if err != nil {
		return sb, false, err
	}
	running, err := m.change(ctx, sb.ID, func(s *sandbox.Sandbox) error {
		if s.Boot != sb.Boot {
			return notRunning(*s)
		}
		s.Boot.ID, s.SnapshotAt, s.MayRun, s.Back = boot.BootID, now(), false, sandbox.Back{}
		s.Start(quota, s.SnapshotAt)
		return s.To(sandbox.Running)
	})
	if err != nil {
		return sb, true, err
	}
	return running, true, nil
}

// stayPaused moves a resuming Sandbox back to paused in snap, and stops its Boot, if it
// exists. cause is the error of its start. If the Boot may be on another Node than snap,
// which cannot be asked to stop it, the Sandbox is paused in the copy of snap there: that
// Node itself refuses an older Boot when it starts a newer one. If the record says that the Boot
// runs, the write of that only seemed to fail: then it is returned as it is.
func (m *Manager) stayPaused(ctx context.Context, tried sandbox.Sandbox, cause error, snap sandbox.Snapshot, timeline int64, deadline time.Time) (sandbox.Sandbox, error) {
	present, err := m.store.SandboxByID(ctx, tried.ID)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	if present.State == sandbox.Running && present.Boot == tried.Boot {
		m.track(present)
		return present, nil
	}
	stopping, cancel := ctx, func() {}
	if end, has := ctx.Deadline(); has { // time is left for the record
		stopping, cancel = context.WithTimeout(ctx, time.Until(end)/2)
	}
	stopErr := m.nodes.Stop(stopping, tried.Boot.Node, tried.Boot.ID, 0)
	cancel()
	left := stopErr != nil && mayHaveStarted(cause)
	node := snap.Node
	if (left || tried.MayRun) && tried.Boot.Node != snap.Node {
		node = tried.Boot.Node
		// A rollback tried another state than a copy of snap.
		if there, err := m.store.SnapshotByID(ctx, tried.Snapshot); err == nil && there.Parent == snap.ID {
			snap = there
		}
	}
	paused, err := m.change(ctx, tried.ID, func(s *sandbox.Sandbox) error {
		if s.Boot != tried.Boot { // another process works on it
			return notRunning(*s)
		}
		s.Snapshot, s.Timeline, s.Boot.ID, s.Boot.Node, s.Deadline = snap.ID, timeline, "", node, deadline
		s.MayRun, s.Back = s.MayRun || left, sandbox.Back{}
		return s.To(sandbox.Paused)
	})
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	m.alarm.set(paused.Deadline)
	if stopErr != nil {
		m.mendSoon()
	}
	return paused, nil
}

// mayHaveStarted reports whether a start that failed with err may have left a Boot: its Node
// gave no answer to a request that it may have got.
func mayHaveStarted(err error) bool {
	var told *sandbox.Error
	if !errors.As(err, &told) {
		return true
	}
	switch told.Code {
	case sandbox.Unavailable: // NotBegun and Begun
		return told.RetryAfter == 0
	case sandbox.Timeout, sandbox.Internal:
		return true
	}
	return false
}

// late reports whether err is only an exceeded deadline.
func late(err error) bool {
	return sandbox.CodeOf(err) == sandbox.Internal && errors.Is(err, context.DeadlineExceeded)
}

// cannotStart returns the client's error for a failed start of sb from its saved state.
// The start began at began.
func cannotStart(sb sandbox.Sandbox, began time.Time, err error) error {
	switch {
	case sandbox.CodeOf(err) == sandbox.NotFound:
		return sandbox.Errorf(sandbox.Conflict, "the saved state %s, or version %.12s of the template %s that it is based on, is gone",
			sb.Snapshot, sb.Image, sb.Template).WithCause(err)
	case late(err):
		return sandbox.Errorf(sandbox.Timeout, "the sandbox did not resume within %d seconds", int(time.Since(began).Seconds())).WithCause(err)
	case sandbox.CodeOf(err) == sandbox.Internal: // for example a killed server process; the log says which
		return sandbox.Errorf(sandbox.Unavailable, "the sandbox could not be started from the saved state %s, which is unchanged: try again",
			sb.Snapshot).WithCause(err)
	}
	return err
}
