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
	// suspendLook is how often it is looked for what runs of who is suspended: what
	// was being created or resumed then runs a little later.
	suspendLook = 3 * time.Second
	// suspendTries is how often a Sandbox of a suspended Tenant is to be paused before
	// it ends, a pauseRetry apart.
	suspendTries = 3
)

// suspended is who is suspended, as far as is known.
type suspended struct {
	mu    sync.Mutex
	known sandbox.Suspensions
}

func (s *suspended) hold(id sandbox.TenantID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known.Hold(id)
}

// set reports whether that is another than was known.
func (s *suspended) set(now sandbox.Suspensions) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := !maps.Equal(s.known, now)
	s.known = now
	return changed
}

// An attempt is how often a Sandbox could not be paused, and when it is tried next.
type attempt struct {
	failed int
	next   time.Time
}

// keepSuspended pauses what runs of suspended Tenants, until ctx ends.
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

// pauseSuspended pauses all that runs of suspended Tenants. What cannot be paused
// after several attempts, or at all, ends.
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

// keepPaused has a paused Sandbox of a suspended Tenant stay, which could not
// resume it.
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
