package session

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// parallelCheckpoints bounds the concurrent checkpoints of one Tenant, because the
	// Tenant's pauses queue behind them. The Node decides the order of Tenants.
	parallelCheckpoints = 2
	// checkpointLater is the delay before retrying a Sandbox that is just being paused,
	// saved or changed.
	checkpointLater = 5 * time.Second
)

// keepCheckpoints saves each Sandbox every CheckpointEvery until ctx ends.
func (m *Manager) keepCheckpoints(ctx context.Context) error {
	var work errgroup.Group
	defer func() { _ = work.Wait() }()
	for {
		id, tenant, next := m.checkpoints.take(now())
		if id != "" {
			work.Go(func() error {
				defer m.checkpoints.done(tenant)
				m.checkpoint(ctx, id, tenant)
				return nil
			})
			continue
		}
		if err := m.checkpoints.wait(ctx, time.Until(next)); err != nil {
			return err
		}
	}
}

// checkpoint saves a due Sandbox. Its last checkpoint stays until the new one is ready. A
// failed checkpoint is retried when the next is due.
func (m *Manager) checkpoint(ctx context.Context, id string, tenant sandbox.TenantID) {
	if m.isMoving(id) {
		m.checkpoints.set(id, tenant, now().Add(checkpointLater))
		return
	}
	sb, done, err := m.move(ctx, id)
	if err != nil {
		if !errors.Is(err, sandbox.NotFound) {
			if ctx.Err() == nil {
				m.log.WarnContext(ctx, "a checkpoint was postponed", telemetry.KeySandbox, id, telemetry.KeyTenant, tenant, telemetry.KeyError, err)
			}
			m.checkpoints.set(id, tenant, now().Add(checkpointLater))
		}
		return
	}
	defer done()
	if sb.State != sandbox.Running || sb.CheckpointEvery <= 0 {
		return // it is tracked again when it runs
	}
	if due := checkpointDue(sb); due.After(now()) { // it was saved meanwhile
		m.checkpoints.set(id, tenant, due)
		return
	}
	limited, cancel := context.WithTimeout(ctx, pauseLimit)
	defer cancel()
	_, err = m.saveRunning(limited, sb, "checkpoint", sandbox.SnapshotRequest{}, false)
	if errors.Is(err, sandbox.Unsupported) {
		m.log.WarnContext(ctx, "the engine does not support checkpoints", telemetry.KeySandbox, id, telemetry.KeyNode, sb.Boot.Node)
		return
	}
	if err != nil && ctx.Err() == nil {
		m.log.WarnContext(ctx, "a checkpoint failed", telemetry.KeySandbox, id, telemetry.KeyNode, sb.Boot.Node, telemetry.KeyError, err)
	}
	m.checkpoints.set(id, tenant, now().Add(sb.CheckpointEvery))
}

// checkpointDue returns the time of sb's next checkpoint.
func checkpointDue(sb sandbox.Sandbox) time.Time {
	last := sb.StartedAt
	if sb.SnapshotAt.After(last) {
		last = sb.SnapshotAt
	}
	return last.Add(sb.CheckpointEvery)
}

// track starts the deadline, idle timeout and checkpoints of a Sandbox that starts to run, or
// restarts them after a change.
func (m *Manager) track(sb sandbox.Sandbox) {
	m.alarm.set(sb.Deadline)
	m.idle.track(sb)
	if sb.CheckpointEvery > 0 {
		m.checkpoints.set(sb.ID, sb.Tenant, checkpointDue(sb))
	} else {
		m.checkpoints.forget(sb.ID)
	}
}

// untrack is the opposite of track.
func (m *Manager) untrack(id string) {
	m.idle.forget(id)
	m.checkpoints.forget(id)
}

// A loss describes how a Boot was lost, if it was.
type loss struct {
	cause sandbox.Cause
	at    time.Time // when it was lost, or the loss was noticed
	ran   time.Time // last time that the Boot is known to have run; zero: now
	down  bool      // the Boot has ended with all others of its Node, which is not called
}

// lastCounted is before the start of any Boot: only usage that reconciling has counted is
// charged.
var lastCounted = time.Unix(0, 0)

// used returns the time until which usage of the Boot counts.
func (l loss) used() time.Time {
	if present := now(); l.ran.After(present) { // a Node's clock may be ahead
		return present
	}
	return l.ran
}

// lose handles the loss of a Boot: its Sandbox returns to its last checkpoint, or ends if
// it has none. lose does nothing if still returns false for the current record.
func (m *Manager) lose(ctx context.Context, id string, l loss, still func(sandbox.Sandbox) bool) (sandbox.Sandbox, error) {
	sb, back, err := m.goBack(ctx, id, l, still)
	if back || err != nil {
		return sb, err
	}
	return m.endLost(ctx, id, l, still)
}

// goBack moves a Sandbox whose Boot was lost to paused in its last checkpoint; back
// reports whether it did. Only use or a resume starts it again, so that a state that
// kills each Boot causes no crash loop.
func (m *Manager) goBack(ctx context.Context, id string, l loss, still func(sandbox.Sandbox) bool) (_ sandbox.Sandbox, back bool, err error) {
	release, err := m.locks.acquire(ctx, id)
	if err != nil {
		return sandbox.Sandbox{}, false, err
	}
	defer release()
	for range tries(ctx) {
		before, err := m.store.SandboxByID(ctx, id)
		if err != nil || !still(before) || !before.Survives(l.cause) {
			return sandbox.Sandbox{}, false, err
		}
		snap, err := m.store.SnapshotByID(ctx, before.Snapshot)
		if errors.Is(err, sandbox.NotFound) || err == nil && snap.State != sandbox.SnapshotReady {
			return sandbox.Sandbox{}, false, nil // it was deleted
		}
		if err != nil {
			return sandbox.Sandbox{}, false, err
		}
		after := before
		if err := after.Restore(l.at, now()); err != nil {
			return sandbox.Sandbox{}, false, err
		}
		after.MeteredAt = l.used()
		after.MayRun = l.cause == sandbox.CauseNodeLost
		if after, err = m.store.UpdateSandbox(ctx, after); isConflict(err) {
			continue
		}
		if err != nil {
			return sandbox.Sandbox{}, false, err
		}
		m.survived(ctx, before, after, l.cause)
		return after, true, nil
	}
	return sandbox.Sandbox{}, false, errRaced()
}

// survived reports the loss of a Boot and stops the remains of the Boot.
func (m *Manager) survived(ctx context.Context, before, after sandbox.Sandbox, cause sandbox.Cause) {
	m.untrack(after.ID)
	m.alarm.set(after.Deadline)
	m.cfg.Survived(cause)
	m.log.WarnContext(ctx, "a sandbox lost its boot; it goes back to its last checkpoint", telemetry.KeySandbox, after.ID, telemetry.KeyTenant, after.Tenant,
		telemetry.KeyNode, before.Boot.Node, telemetry.KeyBoot, before.Boot.ID, "cause", cause, telemetry.KeySnapshot, after.Restored.From,
		"lost_seconds", after.Restored.Lost.Seconds(), "times", after.Restored.Times)
	if m.isLost(before.Boot.Node) { // reconciling stops it if the Node comes back
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	m.stopPaused(ctx, before)
}

// stopPaused stops the Boot of a Sandbox that is now recorded as paused. The record no longer
// names the Boot, so that reconciling stops it if this fails.
func (m *Manager) stopPaused(ctx context.Context, before sandbox.Sandbox) {
	if err := m.nodes.Stop(ctx, before.Boot.Node, before.Boot.ID, 0); err != nil {
		m.log.WarnContext(ctx, "stopping the boot of a paused sandbox failed; will retry", telemetry.KeySandbox, before.ID, telemetry.KeyBoot, before.Boot.ID, telemetry.KeyError, err)
		m.mendSoon()
	}
}

// checkpoints holds the times of due checkpoints and the running checkpoints per Tenant.
type checkpoints struct {
	wake chan struct{}

	mu   *sync.Mutex
	byID map[string]checkpointTime
	busy map[sandbox.TenantID]int
}

// checkpointTime is the time of a Sandbox's next checkpoint.
type checkpointTime struct {
	tenant sandbox.TenantID
	due    time.Time
}

func newCheckpoints() checkpoints {
	return checkpoints{
		wake: make(chan struct{}, 1), mu: new(sync.Mutex), byID: map[string]checkpointTime{}, busy: map[sandbox.TenantID]int{},
	}
}

// set sets the time of a Sandbox's next checkpoint.
func (c *checkpoints) set(id string, tenant sandbox.TenantID, due time.Time) {
	c.mu.Lock()
	c.byID[id] = checkpointTime{tenant, due}
	c.mu.Unlock()
	c.look()
}

// look makes wait return.
func (c *checkpoints) look() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *checkpoints) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.byID, id)
}

// take removes and returns the Sandbox that has been due for longest; it counts as
// running until done. If none is due, take returns an empty id and the next due time. It
// skips Tenants with parallelCheckpoints running.
func (c *checkpoints) take(at time.Time) (id string, tenant sandbox.TenantID, next time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next = at.Add(longestSleep)
	for k, t := range c.byID {
		if t.due.Before(next) && c.busy[t.tenant] < parallelCheckpoints {
			id, tenant, next = k, t.tenant, t.due
		}
	}
	if next.After(at) {
		return "", "", next
	}
	delete(c.byID, id)
	c.busy[tenant]++
	return id, tenant, next
}

// done ends a checkpoint that take returned.
func (c *checkpoints) done(tenant sandbox.TenantID) {
	c.mu.Lock()
	if c.busy[tenant]--; c.busy[tenant] == 0 {
		delete(c.busy, tenant)
	}
	c.mu.Unlock()
	c.look()
}

// wait sleeps for d, or until a time is set or a checkpoint ends; the error is ctx's.
func (c *checkpoints) wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-c.wake:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
