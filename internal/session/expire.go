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
	deleteEvery = time.Hour
)

// expire ends Sandboxes at their deadlines until ctx ends. Between deadlines it
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
		m.log.Warn("deadlines wait", telemetry.KeyError, err)
	}
	return true
}

// endEach ends the Sandboxes whose deadline has passed, several at a time.
func (m *Manager) endEach(ctx context.Context, due []sandbox.Sandbox) error {
	work := newGroup()
	for _, sb := range due {
		work.do(func() error { return m.endAtDeadline(ctx, sb.ID) })
	}
	return work.wait()
}

func (m *Manager) endAtDeadline(ctx context.Context, id string) error {
	_, err := m.end(ctx, id, sandbox.CauseDeadline, func(sb sandbox.Sandbox) bool {
		return !sb.Deadline.After(now()) // it may have been moved meanwhile
	})
	if errors.Is(err, sandbox.NotFound) {
		return nil
	}
	return err
}

// deleteCertificates deletes old ones until ctx ends.
func (m *Manager) deleteCertificates(ctx context.Context) error {
	for {
		n, err := m.store.DeleteEnded(ctx, now().Add(-sandbox.CertificateLife))
		if err != nil && ctx.Err() == nil {
			m.log.Warn("old certificates stay", telemetry.KeyError, err)
		}
		if n > 0 {
			m.log.Info("deleted old certificates", "count", n)
		}
		if err := sleep(ctx, deleteEvery); err != nil {
			return err
		}
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
