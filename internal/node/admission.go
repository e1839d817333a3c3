package node

import (
	"context"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// A queue lets a few starts and restores run at a time. The Tenants that wait
// take turns, each in the order of its requests, so that one with a thousand
// delays another's first by one turn only; refills of Pools come after everybody.
//
// Who would wait too long is refused at once. What counts is the Tenant's own
// place: one that fills the queue is refused, and others are not.
type queue struct {
	maxAhead int           // turns before a request at most
	maxWait  time.Duration // that they may take

	mu       sync.Mutex
	free     int // slots
	slots    int
	tenants  []sandbox.TenantID // that wait, in the order of their turns
	waiting  map[sandbox.TenantID][]chan struct{}
	waiters  int
	refills  []chan struct{}
	duration time.Duration // that a slot is held, a moving average
}

func newQueue(slots, maxAhead int, maxWait time.Duration) *queue {
	return &queue{
		maxAhead: maxAhead, maxWait: maxWait, free: slots, slots: slots,
		waiting: map[sandbox.TenantID][]chan struct{}{}, duration: 100 * time.Millisecond,
	}
}

// enter waits for a slot on behalf of tenant. The error is ctx's, or Unavailable
// when that would take too long.
func (q *queue) enter(ctx context.Context, tenant sandbox.TenantID) error {
	q.mu.Lock()
	if q.free > 0 {
		q.free--
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
	return q.await(ctx, turn)
}

// refuse returns why one more request of tenant shall not wait, and when it
// might; nil when it may now. q.mu is held.
func (q *queue) refuse(tenant sandbox.TenantID) error {
	turn := max(q.duration/time.Duration(q.slots), time.Millisecond)
	most := min(q.maxAhead, max(1, int(q.maxWait/turn)))
	ahead := q.ahead(tenant)
	if ahead < most {
		return nil
	}
	err := sandbox.Errorf(sandbox.Unavailable, "too many sandboxes wait to be started or resumed; try again later")
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

// enterLast waits for a slot that nobody else wants.
func (q *queue) enterLast(ctx context.Context) error {
	q.mu.Lock()
	if q.free > 0 {
		q.free--
		q.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	q.refills = append(q.refills, turn)
	q.mu.Unlock()
	return q.await(ctx, turn)
}

// await waits until turn is closed, which hands over a slot.
func (q *queue) await(ctx context.Context, turn chan struct{}) error {
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-turn: // it came at the same time: pass it on
		q.pass()
	default:
		q.drop(turn)
	}
	return ctx.Err()
}

// leave gives the slot back; took is how long it was held.
func (q *queue) leave(took time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.duration += (took - q.duration) / 8
	q.pass()
}

// pass hands a slot to whoever is next.
func (q *queue) pass() {
	switch {
	case len(q.tenants) > 0:
		tenant := q.tenants[0]
		turns := q.waiting[tenant]
		q.tenants = q.tenants[1:]
		if len(turns) > 1 {
			q.waiting[tenant] = turns[1:]
			q.tenants = append(q.tenants, tenant)
		} else {
			delete(q.waiting, tenant)
		}
		q.waiters--
		close(turns[0])
	case len(q.refills) > 0:
		turn := q.refills[0]
		q.refills = q.refills[1:]
		close(turn)
	default:
		q.free++
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
