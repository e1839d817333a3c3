package session

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// dueBatch is how many due Sandboxes are read at a time, and acted on at a time.
	dueBatch = 64
	// longestSleep bounds each sleep, because timers stop while a machine is suspended
	// but deadlines do not.
	longestSleep = 10 * time.Minute
	// retryExpire is the pause after a failed pass.
	retryExpire = time.Second
	// lookExpire is the time between two looks for deadlines while due Sandboxes wait for
	// others of their Tenant.
	lookExpire = time.Second
	// deleteEvery is the interval at which old TerminationRecords are deleted.
	deleteEvery = 10 * time.Minute
)

// expire ends or pauses Sandboxes at their deadlines until ctx ends. It sleeps between
// deadlines; setting an earlier deadline wakes it.
func (m *Manager) expire(ctx context.Context) error {
	defer m.expiring.work.Wait()
	for {
		wait := retryExpire
		next, failed := m.endDue(ctx)
		if !failed {
			wait = min(time.Until(next), longestSleep)
		}
		if err := m.alarm.wait(ctx, wait); err != nil {
			return err
		}
	}
}

// endDue begins to end or pause due Sandboxes and returns the next deadline. A Sandbox whose
// end failed is Stopping and no longer due; reconciling finishes it. failed means that the
// Store could not be read.
func (m *Manager) endDue(ctx context.Context) (next time.Time, failed bool) {
	for {
		m.alarm.arm() // before reading: a deadline set from now on wakes the sleep
		next, ok, err := m.store.NextDeadline(ctx)
		if err != nil {
			return next, m.expireFailed(ctx, err)
		}
		if !ok {
			return now().Add(longestSleep), false
		}
		m.alarm.sleepingUntil(next)
		if next.After(now()) {
			return next, false
		}
		due, err := m.store.SandboxesDue(ctx, now(), dueBatch, m.expiring.full())
		if err != nil {
			return next, m.expireFailed(ctx, err)
		}
		if !m.endEach(ctx, due) {
			return now().Add(lookExpire), false // the end of such work wakes the sleep, too
		}
	}
}

func (m *Manager) expireFailed(ctx context.Context, err error) bool {
	if ctx.Err() == nil {
		m.log.Warn("reading due sandboxes failed; will retry", telemetry.KeyError, err)
	}
	return true
}

// endEach begins to end or pause Sandboxes whose deadline has passed, and reports whether it
// began with one.
func (m *Manager) endEach(ctx context.Context, due []sandbox.Sandbox) (begun bool) {
	for _, sb := range due {
		if !m.expiring.begin(sb) {
			continue
		}
		begun = true
		m.expiring.work.Go(func() {
			if err := m.actAtDeadline(ctx, sb); err != nil && ctx.Err() == nil {
				m.log.Warn("ending or pausing a due sandbox failed; will retry", telemetry.KeySandbox, sb.ID, telemetry.KeyError, err)
				_ = sleep(ctx, retryExpire)
			}
			m.expiring.end(sb)
			m.alarm.set(time.Time{})
		})
	}
	return begun
}

// expiring holds the due Sandboxes that are being ended or paused: up to dueBatch at a time,
// and up to parallelEnds of one Tenant, so that no Tenant waits for the slow pauses of another
// one.
type expiring struct {
	work sync.WaitGroup

	mu     sync.Mutex
	acting map[string]bool // by Sandbox ID
	busy   map[sandbox.TenantID]int
}

// begin reports whether work on sb may begin. If so, end must be called after it.
func (e *expiring) begin(sb sandbox.Sandbox) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.acting[sb.ID] || len(e.acting) >= dueBatch || e.busy[sb.Tenant] >= parallelEnds {
		return false
	}
	if e.acting == nil {
		e.acting, e.busy = map[string]bool{}, map[sandbox.TenantID]int{}
	}
	e.acting[sb.ID] = true
	e.busy[sb.Tenant]++
	return true
}

func (e *expiring) end(sb sandbox.Sandbox) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.acting, sb.ID)
	if e.busy[sb.Tenant]--; e.busy[sb.Tenant] == 0 {
		delete(e.busy, sb.Tenant)
	}
}

// full returns the Tenants of whose Sandboxes no more may begin.
func (e *expiring) full() (tenants []sandbox.TenantID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for tenant, n := range e.busy {
		if n >= parallelEnds {
			tenants = append(tenants, tenant)
		}
	}
	return tenants
}

// actAtDeadline acts on a Sandbox at its deadline, by its State.
func (m *Manager) actAtDeadline(ctx context.Context, sb sandbox.Sandbox) error {
	due := func(present sandbox.Sandbox) bool { // it may have been moved meanwhile
		return present.State == sb.State && !present.Deadline.After(now())
	}
	pauses, filesOnly := sb.OnTimeout.Pauses()
	var err error
	switch {
	case sb.State == sandbox.Pausing, sb.State == sandbox.Resuming:
		err = m.undoLeft(ctx, sb.ID)
	case sb.State == sandbox.Paused && m.suspended.hold(sb.Tenant):
		err = m.keepPaused(ctx, sb.ID, due)
	case sb.State == sandbox.Running && pauses:
		err = m.pauseDue(ctx, sb.ID, filesOnly, sandbox.CauseDeadline, due)
	default:
		_, err = m.end(ctx, sb.ID, sandbox.CauseDeadline, due)
	}
	if errors.Is(err, sandbox.NotFound) {
		return nil
	}
	return err
}

// undoLeft waits for a pause or resume in progress, or undoes one that no process works
// on.
func (m *Manager) undoLeft(ctx context.Context, id string) error {
	_, done, err := m.move(ctx, id)
	if err == nil {
		done()
	}
	return err
}

// pauseDue pauses a due Sandbox. If the Engine does not support pause, it ends the
// Sandbox with cause. A failed pause is retried after pauseRetry.
func (m *Manager) pauseDue(ctx context.Context, id string, filesOnly bool, cause sandbox.Cause, due func(sandbox.Sandbox) bool) error {
	_, err := m.pause(ctx, id, filesOnly, due)
	switch {
	case err == nil, errors.Is(err, sandbox.NotFound), ctx.Err() != nil:
		return err
	case errors.Is(err, sandbox.Unsupported):
		_, err = m.end(ctx, id, cause, due)
		return err
	}
	m.log.WarnContext(ctx, "pausing a sandbox at its deadline failed; will retry", telemetry.KeySandbox, id, telemetry.KeyError, err)
	_, err = m.change(ctx, id, func(s *sandbox.Sandbox) error {
		if later := now().Add(pauseRetry); s.State == sandbox.Running && s.Deadline.Before(later) {
			s.Deadline = later
		}
		return nil
	})
	m.idle.use(id)
	return err
}

// deleteTerminationRecords deletes old TerminationRecords and old usage until ctx ends.
func (m *Manager) deleteTerminationRecords(ctx context.Context) error {
	for {
		n, err := m.store.DeleteEnded(ctx, now().Add(-sandbox.TerminationRecordLife), now().Add(-sandbox.RefusedLife))
		if err != nil && ctx.Err() == nil {
			m.log.Warn("deleting old termination records failed", telemetry.KeyError, err)
		}
		if n > 0 {
			m.log.Info("deleted old termination records", "count", n)
		}
		m.trimUsage(ctx)
		if err := sleep(ctx, deleteEvery); err != nil {
			return err
		}
	}
}

func (m *Manager) trimUsage(ctx context.Context) {
	if m.cfg.UsageLife == 0 {
		return
	}
	if _, err := m.store.TrimUsage(ctx, sandbox.DayOf(now().Add(-m.cfg.UsageLife))); err != nil && ctx.Err() == nil {
		m.log.Warn("deleting old usage failed", telemetry.KeyError, err)
	}
}

// An alarm wakes a sleeper only for deadlines earlier than the one it sleeps until.
type alarm struct {
	wake chan struct{}

	mu    *sync.Mutex
	until time.Time // zero: any deadline wakes
}

func newAlarm() alarm { return alarm{wake: make(chan struct{}, 1), mu: new(sync.Mutex)} }

// arm lets any deadline wake the next wait.
func (a *alarm) arm() { a.sleepingUntil(time.Time{}) }

// sleepingUntil lets only deadlines before until wake the next wait.
func (a *alarm) sleepingUntil(until time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.until = until
}

// set announces a deadline.
func (a *alarm) set(deadline time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.until.IsZero() || deadline.Before(a.until) {
		select {
		case a.wake <- struct{}{}:
		default:
		}
	}
}

// wait sleeps for d or until woken; the error is ctx's.
func (a *alarm) wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-a.wake:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
