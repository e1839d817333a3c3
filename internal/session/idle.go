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
	// idleMargin is how late a report of a Sandbox's use may arrive.
	idleMargin = 4 * sandbox.UseEvery
	// lateOutput is how long after a Sandbox's end its output may still arrive.
	lateOutput = 30 * time.Second
)

// Used implements sandbox.Sandboxes. It writes to the Store only for output of a Sandbox
// that has just ended.
func (m *Manager) Used(ctx context.Context, uses []sandbox.Use) error {
	for _, u := range uses {
		m.idle.use(u.SandboxID)
		if len(u.Output) == 0 {
			continue
		}
		if tail, ended := m.tails.add(u.SandboxID, u.Output); ended {
			if err := m.recordTail(ctx, u.SandboxID, tail); err != nil {
				m.log.Warn("reading the last output of a sandbox for its termination record failed", telemetry.KeySandbox, u.SandboxID, telemetry.KeyError, err)
			}
		}
	}
	return nil
}

// recordTail writes output that arrived late to a TerminationRecord.
func (m *Manager) recordTail(ctx context.Context, id, tail string) error {
	for range tries(ctx) {
		sb, err := m.store.SandboxByID(ctx, id)
		if err != nil || sb.Ended == nil {
			return err
		}
		sb.Ended.OutputTail = tail
		if _, err = m.store.UpdateSandbox(ctx, sb); !isConflict(err) {
			return err
		}
	}
	return errRaced()
}

// endIdle ends or pauses Sandboxes that were not used for their idle timeout, until ctx
// ends. Use reported to an earlier process is lost: the idle time of its Sandboxes
// restarts.
func (m *Manager) endIdle(ctx context.Context) error {
	for !m.trackAll(ctx) {
		if err := sleep(ctx, retryExpire); err != nil {
			return err
		}
	}
	for {
		due, next := m.idle.due(now())
		work := newGroup()
		for _, id := range due {
			work.do(func() error { return m.endIdleOne(ctx, id) })
		}
		wait := min(time.Until(next), longestSleep)
		if err := work.wait(); err != nil && ctx.Err() == nil {
			m.log.Warn("ending or pausing idle sandboxes failed; will retry", telemetry.KeyError, err)
			wait = retryExpire
		}
		if err := m.idle.wait(ctx, wait); err != nil {
			return err
		}
	}
}

// trackAll tracks the running Sandboxes of an earlier process, also for checkpoints;
// false when the Store could not be read.
func (m *Manager) trackAll(ctx context.Context) bool {
	records, err := m.store.SandboxesNotEnded(ctx)
	if err != nil {
		if ctx.Err() == nil {
			m.log.Warn("listing sandboxes for their idle timeouts failed", telemetry.KeyError, err)
		}
		return false
	}
	for _, sb := range records {
		if sb.State == sandbox.Running {
			m.track(sb)
		}
	}
	return true
}

func (m *Manager) endIdleOne(ctx context.Context, id string) error {
	if m.isMoving(id) { // others must not wait for that
		m.idle.postpone(id, now().Add(checkpointLater))
		return nil
	}
	due := func(sb sandbox.Sandbox) bool {
		return sb.IdleTimeout > 0 && m.idle.isDue(id, now())
	}
	sb, err := m.store.SandboxByID(ctx, id)
	switch pauses, filesOnly := sb.OnTimeout.Pauses(); {
	case err != nil:
	case sb.State == sandbox.Paused:
		m.idle.forget(id)
	case pauses:
		err = m.pauseDue(ctx, id, filesOnly, sandbox.CauseIdle, due)
	default:
		_, err = m.end(ctx, id, sandbox.CauseIdle, due)
	}
	if errors.Is(err, sandbox.NotFound) {
		m.idle.forget(id)
		return nil
	}
	return err
}

// Idle implements sandbox.Sandboxes.
func (m *Manager) Idle(_ context.Context, tenant sandbox.TenantID) (int, error) {
	return m.idle.count(tenant, now().Add(-sandbox.IdleAfter)), nil
}

// idle records when running Sandboxes were last used.
type idle struct {
	wake chan struct{}

	mu   *sync.Mutex
	byID map[string]idleness
}

type idleness struct {
	tenant  sandbox.TenantID
	timeout time.Duration // zero: none
	used    time.Time
}

func (i idleness) due() time.Time { return i.used.Add(i.timeout + idleMargin) }

func newIdle() idle {
	return idle{wake: make(chan struct{}, 1), mu: new(sync.Mutex), byID: map[string]idleness{}}
}

// track tracks the running Sandbox sb from now on.
func (i *idle) track(sb sandbox.Sandbox) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.byID[sb.ID] = idleness{tenant: sb.Tenant, timeout: sb.IdleTimeout, used: now()}
	if sb.IdleTimeout > 0 {
		i.look()
	}
}

// isTracked reports whether a Sandbox is tracked.
func (i *idle) isTracked(id string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	_, ok := i.byID[id]
	return ok
}

// look makes wait return.
func (i *idle) look() {
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

// use records that a Sandbox was used just now, so that it becomes due later.
func (i *idle) use(id string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if k, ok := i.byID[id]; ok {
		k.used = now()
		i.byID[id] = k
	}
}

// postpone makes a Sandbox due at a time, unless it is used before.
func (i *idle) postpone(id string, due time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	k, ok := i.byID[id]
	if used := due.Add(-k.timeout - idleMargin); ok && k.used.Before(used) { // not if it was just used
		k.used = used
		i.byID[id] = k
		i.look()
	}
}

func (i *idle) forget(id string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.byID, id)
}

// due returns the due Sandboxes, and when the next one becomes due.
func (i *idle) due(at time.Time) (ids []string, next time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	next = at.Add(longestSleep)
	for id, k := range i.byID {
		if k.timeout <= 0 {
			continue
		}
		if due := k.due(); !due.After(at) {
			ids = append(ids, id)
		} else if due.Before(next) {
			next = due
		}
	}
	return ids, next
}

func (i *idle) isDue(id string, at time.Time) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	k, ok := i.byID[id]
	return ok && k.timeout > 0 && !k.due().After(at)
}

// count returns the number of a Tenant's Sandboxes last used before a time.
func (i *idle) count(tenant sandbox.TenantID, before time.Time) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	n := 0
	for _, k := range i.byID {
		if k.tenant == tenant && k.used.Before(before) {
			n++
		}
	}
	return n
}

// wait sleeps for d or until another Sandbox is tracked; the error is ctx's.
func (i *idle) wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-i.wake:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tails keeps the last output of each Sandbox.
type tails struct {
	mu   *sync.Mutex
	byID map[string]*tail
}

type tail struct {
	text  []byte
	at    time.Time // of the last change
	ended bool
}

func newTails() tails { return tails{mu: new(sync.Mutex), byID: map[string]*tail{}} }

// add appends output, and returns the kept tail and whether the Sandbox has ended.
func (t *tails) add(id string, output []byte) (kept string, ended bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.byID[id]
	if k == nil {
		k = &tail{}
		t.byID[id] = k
	}
	k.text = sandbox.KeepTail(k.text, output)
	k.at = now()
	return sandbox.TailText(k.text), k.ended
}

// end marks a Sandbox as ended and returns its kept tail. add returns any later output.
func (t *tails) end(id string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.byID[id]
	if k == nil {
		k = &tail{}
		t.byID[id] = k
	}
	k.ended, k.at = true, now()
	return sandbox.TailText(k.text)
}

// sweep forgets Sandboxes that are not in live, lateOutput after their last output.
func (t *tails) sweep(live map[string]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, k := range t.byID {
		if !live[id] && now().Sub(k.at) > lateOutput {
			delete(t.byID, id)
		}
	}
}
