package session

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// suspendLook is the interval of checks for running Sandboxes of suspended Tenants.
	// It repeats because a create or resume in progress may finish after the first check.
	suspendLook = 3 * time.Second
	// suspendTries is the number of attempts to pause a Sandbox of a suspended Tenant,
	// pauseRetry apart, before it is ended.
	suspendTries = 3
)

// suspended holds the last known Suspensions.
type suspended struct {
	mu    sync.Mutex
	known sandbox.Suspensions
}

func (s *suspended) hold(id sandbox.TenantID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known.Hold(id)
}

// set stores now and reports whether it differs from the last value.
func (s *suspended) set(now sandbox.Suspensions) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := !maps.Equal(s.known, now)
	s.known = now
	return changed
}

// retries are the failed attempts on Sandboxes, by ID, with the time of the next one. The
// zero value has none. Methods are safe for concurrent use.
type retries struct {
	mu   sync.Mutex
	byID map[string]attempt
}

type attempt struct {
	failed int
	next   time.Time
}

// due returns the number of failed attempts on a Sandbox, and whether another one is due.
func (a *retries) due(id string) (failed int, due bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	tried := a.byID[id]
	return tried.failed, !now().Before(tried.next)
}

// fail records another failed attempt on a Sandbox; the next one is due after pause.
func (a *retries) fail(id string, pause time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byID == nil {
		a.byID = map[string]attempt{}
	}
	a.byID[id] = attempt{a.byID[id].failed + 1, now().Add(pause)}
}

// keep forgets the attempts on all other Sandboxes.
func (a *retries) keep(ids map[string]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.byID, func(id string, _ attempt) bool { return !ids[id] })
}

// keepSuspended pauses running Sandboxes of suspended Tenants until ctx ends.
func (m *Manager) keepSuspended(ctx context.Context) error {
	var tried retries
	var looked time.Time
	failing := false
	for {
		suspensions, err := m.store.Suspensions(ctx)
		if err == nil && (m.suspended.set(suspensions) || len(suspensions) > 0 && now().Sub(looked) >= suspendLook) {
			looked = now()
			err = m.pauseSuspended(ctx, &tried)
		}
		if err != nil && !failing && ctx.Err() == nil {
			m.log.Warn("stopping the sandboxes of suspended tenants failed; will retry", telemetry.KeyError, err)
		}
		failing = err != nil
		if err := sleep(ctx, m.cfg.SuspensionsEvery); err != nil {
			return err
		}
	}
}

// pauseSuspended pauses all running Sandboxes of suspended Tenants. It ends a Sandbox
// after suspendTries failures, or at once if pause is unsupported.
func (m *Manager) pauseSuspended(ctx context.Context, tried *retries) error {
	all, err := m.store.SandboxesNotEnded(ctx)
	if err != nil {
		return err
	}
	still := func(sb sandbox.Sandbox) bool { return sb.State == sandbox.Running && m.suspended.hold(sb.Tenant) }
	work := newGroup()
	running := map[string]bool{}
	for _, sb := range all {
		if !still(sb) {
			continue
		}
		running[sb.ID] = true
		failed, due := tried.due(sb.ID)
		if !due {
			continue
		}
		work.do(func() error {
			err := m.suspendOne(ctx, sb.ID, failed, still)
			if err != nil {
				tried.fail(sb.ID, pauseRetry)
			}
			return err
		})
	}
	err = work.wait()
	tried.keep(running)
	return err
}

func (m *Manager) suspendOne(ctx context.Context, id string, failed int, still func(sandbox.Sandbox) bool) error {
	_, err := m.pause(ctx, id, false, still)
	if errors.Is(err, sandbox.Unsupported) || err != nil && ctx.Err() == nil && failed+1 >= suspendTries {
		_, err = m.end(ctx, id, sandbox.CauseSuspended, still)
	}
	if errors.Is(err, sandbox.NotFound) {
		return nil
	}
	return err
}

// keepPaused extends the deadline of a paused Sandbox of a suspended Tenant, because the
// Tenant cannot resume it.
func (m *Manager) keepPaused(ctx context.Context, id string, due func(sandbox.Sandbox) bool) error {
	kept, err := m.change(ctx, id, func(s *sandbox.Sandbox) error {
		if due(*s) {
			s.Deadline = now().Add(sandbox.PausedLife)
		}
		return nil
	})
	if err == nil {
		m.alarm.set(kept.Deadline)
	}
	return err
}
