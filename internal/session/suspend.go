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

// An attempt counts failed pauses of a Sandbox, with the time of the next attempt.
type attempt struct {
	failed int
	next   time.Time
}

// keepSuspended pauses running Sandboxes of suspended Tenants until ctx ends.
func (m *Manager) keepSuspended(ctx context.Context) error {
	attempts := map[string]attempt{}
	var looked time.Time
	failing := false
	for {
		suspensions, err := m.store.Suspensions(ctx)
		if err == nil && (m.suspended.set(suspensions) || len(suspensions) > 0 && now().Sub(looked) >= suspendLook) {
			looked = now()
			err = m.pauseSuspended(ctx, attempts)
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
func (m *Manager) pauseSuspended(ctx context.Context, attempts map[string]attempt) error {
	all, err := m.store.SandboxesNotEnded(ctx)
	if err != nil {
		return err
	}
	still := func(sb sandbox.Sandbox) bool { return sb.State == sandbox.Running && m.suspended.hold(sb.Tenant) }
	var mu sync.Mutex
	work := newGroup()
	running := map[string]bool{}
	for _, sb := range all {
		if !still(sb) {
			continue
		}
		running[sb.ID] = true
		mu.Lock()
		tried := attempts[sb.ID]
		mu.Unlock()
		if now().Before(tried.next) {
			continue
		}
		work.do(func() error {
			err := m.suspendOne(ctx, sb.ID, tried.failed, still)
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				attempts[sb.ID] = attempt{tried.failed + 1, now().Add(pauseRetry)}
			}
			return err
		})
	}
	err = work.wait()
	maps.DeleteFunc(attempts, func(id string, _ attempt) bool { return !running[id] })
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
