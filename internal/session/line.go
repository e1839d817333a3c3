package session

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const (
	// roomPatience is how long a create waits for room before it is refused.
	roomPatience = 10 * time.Second
	// roomRetry is the Retry-After of a create whose turn did not come.
	roomRetry = 2 * time.Second
	// roomPause is the time between two tries of a Tenant that found no room.
	roomPause = 250 * time.Millisecond
	// parallelTries bounds the creates of the line that look for room at the same time.
	parallelTries = 64
)

// A line orders creates that found no room on any Node, and creates that come while others
// wait. The Tenant that got room least recently goes first, and the creates of a Tenant go
// in order, so room that becomes free does not go to the Tenant that asks most often.
//
// After a try without room, the next Tenant tries, and the Tenant itself tries again after
// roomPause. Such a try also reduces the number of tries at the same time to one; each
// success doubles it. So the order is strict while there is hardly any room, and the line
// ends soon once there is.
type line struct {
	mu       sync.Mutex
	tenants  []*lineTenant // with creates in the line
	turns    int64         // turns given
	trying   int
	allowed  int  // tries at the same time; zero: one
	retrying bool // wake will run
}

// lineTenant is a Tenant with creates in the line. It is guarded by line.mu.
type lineTenant struct {
	id      sandbox.TenantID
	waiting []*lineTurn
	trying  int
	since   int64 // the turn that last found room, or before which it came
	resting bool  // until wake
}

// lineTurn is a create's turn to look for room.
type lineTurn struct {
	tenant *lineTenant
	given  chan struct{} // closed when it comes
	since  int64         // lineTenant.since before
}

// isEmpty reports whether no create waits or tries.
func (l *line) isEmpty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.tenants) == 0
}

// enter waits for a turn of a Tenant's create; leave ends it. again: the create has had a
// turn already and goes before the others of its Tenant. The error is ctx's.
func (l *line) enter(ctx context.Context, tenant sandbox.TenantID, again bool) (*lineTurn, error) {
	l.mu.Lock()
	t := l.tenant(tenant)
	w := &lineTurn{tenant: t, given: make(chan struct{})}
	if again {
		t.waiting = slices.Insert(t.waiting, 0, w)
	} else {
		t.waiting = append(t.waiting, w)
	}
	l.pass()
	l.mu.Unlock()
	select {
	case <-w.given:
		return w, nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(t.waiting, w)
	if i < 0 { // it came at the same time
		return w, nil
	}
	t.waiting = slices.Delete(t.waiting, i, i+1)
	l.drop(t)
	return nil, ctx.Err()
}

// tenant returns the entry of a Tenant. l.mu is held.
func (l *line) tenant(id sandbox.TenantID) *lineTenant {
	i := slices.IndexFunc(l.tenants, func(t *lineTenant) bool { return t.id == id })
	if i >= 0 {
		return l.tenants[i]
	}
	l.turns++
	t := &lineTenant{id: id, since: l.turns}
	l.tenants = append(l.tenants, t)
	return t
}

// leave ends a turn. found: the create found room.
func (l *line) leave(w *lineTurn, found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := w.tenant
	t.trying--
	l.trying--
	if found {
		l.allowed = min(2*max(l.allowed, 1), parallelTries)
		l.drop(t)
	} else {
		l.allowed = 1
		t.since = min(t.since, w.since)
		t.resting = true
		if !l.retrying {
			l.retrying = true
			time.AfterFunc(roomPause, l.wake)
		}
	}
	l.pass()
}

// wake lets all Tenants try again.
func (l *line) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.retrying = false
	for _, t := range slices.Clone(l.tenants) {
		t.resting = false
		l.drop(t)
	}
	l.pass()
}

// drop removes a Tenant without creates in the line, unless it rests: its next create
// may be on its way. l.mu is held.
func (l *line) drop(t *lineTenant) {
	if len(t.waiting) == 0 && t.trying == 0 && !t.resting {
		l.tenants = slices.DeleteFunc(l.tenants, func(other *lineTenant) bool { return other == t })
	}
}

// pass gives turns while there are some. l.mu is held.
func (l *line) pass() {
	for l.trying < max(l.allowed, 1) {
		var next *lineTenant
		for _, t := range l.tenants {
			if len(t.waiting) > 0 && !t.resting && (next == nil || t.since < next.since) {
				next = t
			}
		}
		if next == nil {
			return
		}
		w := next.waiting[0]
		next.waiting = next.waiting[1:]
		next.trying++
		l.trying++
		l.turns++
		w.since, next.since = next.since, l.turns
		close(w.given)
	}
}

// startInTurn is start. If no Node has room, or others wait for room, it waits for up to
// roomPatience, in the line. A Sandbox that starts from a Snapshot does not wait: it is
// tied to the Node that keeps the Snapshot, or is copied to another one.
func (m *Manager) startInTurn(ctx context.Context, sb sandbox.Sandbox, nodes []string, quota sandbox.Quota) (_ sandbox.Sandbox, pooled bool, err error) {
	m.awaitVolumes(ctx, sb)
	tied := sb.Snapshot != ""
	if tied || m.line.isEmpty() {
		sb, pooled, err = m.start(ctx, sb, nodes, quota)
		if tied || !errors.Is(err, sandbox.Exhausted) {
			return sb, pooled, err
		}
	} else {
		err = &sandbox.Error{Code: sandbox.Exhausted, Detail: "no node has room for the sandbox, and other creates wait for room", RetryAfter: roomRetry}
	}
	waiting, cancel := context.WithTimeout(ctx, roomPatience)
	defer cancel()
	for again := false; ; again = true {
		turn, late := m.line.enter(waiting, sb.Tenant, again)
		if late != nil {
			return sb, false, err
		}
		sb, pooled, err = m.tryAgain(ctx, sb, quota)
		m.line.leave(turn, err == nil)
		if !errors.Is(err, sandbox.Exhausted) {
			return sb, pooled, err
		}
	}
}

// tryAgain starts sb on the Node that is the best now.
func (m *Manager) tryAgain(ctx context.Context, sb sandbox.Sandbox, quota sandbox.Quota) (_ sandbox.Sandbox, pooled bool, _ error) {
	to := m.place(ctx, sb.Tenant, sb.Image, sb.Shape)
	if to.err != nil {
		return sb, false, to.err
	}
	return m.start(ctx, sb, to.nodes[:1], quota)
}
