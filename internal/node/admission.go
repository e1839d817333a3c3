package node

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// A queue lets a few starts and restores, or saves, run at a time. The Tenants
// that wait take turns, each in the order of its requests, so that one with a
// thousand delays another's first by one turn only; refills of Pools come after
// everybody.
//
// Where turns are long a Tenant can wait long for its first one: slots that are
// reserved for Tenants that hold none keep it short.
//
// Who would wait too long is refused at once. What counts is the Tenant's own
// place: one that fills the queue is refused, and others are not.
type queue struct {
	queueConfig

	mu       sync.Mutex
	free     int                      // slots
	held     map[sandbox.TenantID]int // slots, of those that hold any
	tenants  []sandbox.TenantID       // that wait, in the order of their turns
	waiting  map[sandbox.TenantID][]chan struct{}
	waiters  int
	refills  []chan struct{}
	duration time.Duration // that a slot is held, a moving average
}

// queueConfig is how a queue is.
type queueConfig struct {
	slots    int
	reserved int           // of slots, only for Tenants that hold none; fewer than slots
	maxAhead int           // turns before a request at most
	maxWait  time.Duration // that they may take
	refusal  string        // for who would wait longer
}

func newQueue(c queueConfig) *queue {
	return &queue{
		queueConfig: c, free: c.slots, held: map[sandbox.TenantID]int{},
		waiting: map[sandbox.TenantID][]chan struct{}{}, duration: 100 * time.Millisecond,
	}
}

// enter waits for a slot on behalf of tenant, which leave gives back. The error is
// ctx's, or Unavailable when that would take too long.
func (q *queue) enter(ctx context.Context, tenant sandbox.TenantID) error {
	q.mu.Lock()
	if q.open(tenant) {
		q.take(tenant)
		q.mu.Unlock()
		return nil
	}
	if err := q.refuse(tenant); err != nil {
		q.mu.Unlock()
		return err
	}
	turn := make(chan struct{})
	if len(q.waiting[tenant]) == 0 {
		q.tenants = append(q.tenants, tenant)
	}
	q.waiting[tenant] = append(q.waiting[tenant], turn)
	q.waiters++
	q.mu.Unlock()
	return q.await(ctx, turn, func() { q.giveBack(tenant) })
}

// open reports whether tenant may have a slot now. q.mu is held.
func (q *queue) open(tenant sandbox.TenantID) bool {
	if q.held[tenant] == 0 {
		return q.free > 0
	}
	return q.free > q.reserved
}

// take gives tenant a slot. q.mu is held.
func (q *queue) take(tenant sandbox.TenantID) {
	q.free--
	q.held[tenant]++
}

// giveBack takes a slot of tenant back. q.mu is held.
func (q *queue) giveBack(tenant sandbox.TenantID) {
	if q.held[tenant]--; q.held[tenant] == 0 {
		delete(q.held, tenant)
	}
	q.free++
}

// refuse returns why one more request of tenant shall not wait, and when it
// might; nil when it may now. q.mu is held.
func (q *queue) refuse(tenant sandbox.TenantID) error {
	turn := max(q.duration/time.Duration(q.slots-q.reserved), time.Millisecond)
	most := min(q.maxAhead, max(1, int(q.maxWait/turn)))
	ahead := q.ahead(tenant)
	if ahead < most {
		return nil
	}
	err := sandbox.Errorf(sandbox.Unavailable, "%s", q.refusal)
	err.RetryAfter = max(retryAfter, time.Duration(ahead-most+1)*turn)
	return err
}

// ahead is how many turns come before one more request of tenant, if no other
// Tenant comes: each has one turn a round. q.mu is held.
func (q *queue) ahead(tenant sandbox.TenantID) int {
	mine := len(q.waiting[tenant])
	n := mine
	for other, turns := range q.waiting {
		if other != tenant {
			n += min(len(turns), mine+1)
		}
	}
	return n
}

// enterLast waits for a slot that nobody else wants, which leaveLast gives back.
func (q *queue) enterLast(ctx context.Context) error {
	q.mu.Lock()
	if q.free > q.reserved {
		q.free--
		q.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	q.refills = append(q.refills, turn)
	q.mu.Unlock()
	return q.await(ctx, turn, func() { q.free++ })
}

// await waits until turn is closed, which hands over a slot; undo takes the slot
// back of who has left by then.
func (q *queue) await(ctx context.Context, turn chan struct{}, undo func()) error {
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-turn: // it came at the same time: pass it on
		undo()
		q.pass()
	default:
		q.drop(turn)
	}
	return ctx.Err()
}

// leave gives a slot of tenant back; took is how long it was held.
func (q *queue) leave(tenant sandbox.TenantID, took time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.duration += (took - q.duration) / 8
	q.giveBack(tenant)
	q.pass()
}

// leaveLast gives back the slot of a refill.
func (q *queue) leaveLast(took time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.duration += (took - q.duration) / 8
	q.free++
	q.pass()
}

// pass hands free slots to whoever is next of those that may have one. q.mu is
// held.
func (q *queue) pass() {
	for {
		next := slices.IndexFunc(q.tenants, q.open)
		if next < 0 {
			break
		}
		tenant := q.tenants[next]
		turns := q.waiting[tenant]
		q.tenants = slices.Delete(q.tenants, next, next+1)
		if len(turns) > 1 {
			q.waiting[tenant] = turns[1:]
			q.tenants = append(q.tenants, tenant)
		} else {
			delete(q.waiting, tenant)
		}
		q.waiters--
		q.take(tenant)
		close(turns[0])
	}
	for len(q.tenants) == 0 && len(q.refills) > 0 && q.free > q.reserved {
		turn := q.refills[0]
		q.refills = q.refills[1:]
		q.free--
		close(turn)
	}
}

// drop removes a turn that nobody waits for any more.
func (q *queue) drop(turn chan struct{}) {
	for i, r := range q.refills {
		if r == turn {
			q.refills = append(q.refills[:i:i], q.refills[i+1:]...)
			return
		}
	}
	for tenant, turns := range q.waiting {
		for i, r := range turns {
			if r != turn {
				continue
			}
			q.waiters--
			if len(turns) > 1 {
				q.waiting[tenant] = append(turns[:i:i], turns[i+1:]...)
				return
			}
			delete(q.waiting, tenant)
			for k, name := range q.tenants {
				if name == tenant {
					q.tenants = append(q.tenants[:k:k], q.tenants[k+1:]...)
					break
				}
			}
			return
		}
	}
}
