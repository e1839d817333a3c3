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
	// dueBatch is how many Sandboxes are read at a time when their deadlines
	// have passed.
	dueBatch = 64
	// longestSleep corrects for clocks: timers stand still while a machine is
	// suspended, deadlines do not.
	longestSleep = 10 * time.Minute
	// retryExpire is the pause after a pass in which something failed.
	retryExpire = time.Second
	// deleteEvery is how often old Certificates are looked for.
	deleteEvery = 10 * time.Minute
)

// expire ends or pauses Sandboxes at their deadlines until ctx ends. Between deadlines it
// sleeps; whoever sets an earlier one wakes it.
func (m *Manager) expire(ctx context.Context) error {
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

// endDue ends what is due and returns the next deadline. What could not be
// ended is no longer due but stopping, and left to reconciling; failed tells
// that the Store could not be read or written.
func (m *Manager) endDue(ctx context.Context) (next time.Time, failed bool) {
	for {
		m.alarm.arm() // before looking: what is set from now on wakes the sleep
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
		due, err := m.store.SandboxesDue(ctx, now(), dueBatch)
		if err == nil {
			err = m.endEach(ctx, due)
		}
		if err != nil {
			return next, m.expireFailed(ctx, err)
		}
	}
}

func (m *Manager) expireFailed(ctx context.Context, err error) bool {
	if ctx.Err() == nil {
		m.log.Warn("reading due sandboxes failed; will retry", telemetry.KeyError, err)
	}
	return true
}

// endEach ends the Sandboxes whose deadline has passed, several at a time.
func (m *Manager) endEach(ctx context.Context, due []sandbox.Sandbox) error {
	work := newGroup()
	for _, sb := range due {
		work.do(func() error { return m.actAtDeadline(ctx, sb) })
	}
	return work.wait()
}

// actAtDeadline does to a Sandbox what its deadline means in its State.
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

// undoLeft waits for a pause or resume under way, or takes a Sandbox back from
// one that nobody works on.
func (m *Manager) undoLeft(ctx context.Context, id string) error {
	_, done, err := m.move(ctx, id)
	if err == nil {
		done()
	}
	return err
}

// pauseDue pauses a Sandbox that is due. Where the Engine cannot pause it ends
// for cause; what cannot be saved now is tried again later.
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

// deleteCertificates deletes old ones, and old usage, until ctx ends.
func (m *Manager) deleteCertificates(ctx context.Context) error {
	for {
		n, err := m.store.DeleteEnded(ctx, now().Add(-sandbox.CertificateLife), now().Add(-sandbox.RefusedLife))
		if err != nil && ctx.Err() == nil {
			m.log.Warn("deleting old end certificates failed", telemetry.KeyError, err)
		}
		if n > 0 {
			m.log.Info("deleted old end certificates", "count", n)
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

// An alarm lets a sleeper be woken by deadlines earlier than the one it sleeps
// until, and only by those.
type alarm struct {
	wake chan struct{}

	mu    *sync.Mutex
	until time.Time // zero: any deadline wakes
}

func newAlarm() alarm { return alarm{wake: make(chan struct{}, 1), mu: new(sync.Mutex)} }

// arm has any deadline wake the next wait.
func (a *alarm) arm() { a.sleepingUntil(time.Time{}) }

// sleepingUntil has only deadlines before until wake the next wait.
func (a *alarm) sleepingUntil(until time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.until = until
}

// set tells of a deadline.
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
