package node

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// A queue limits how many starts and restores, or saves, run at a time. Waiting Tenants
// take turns, and each Tenant's requests run in order: a Tenant with a thousand requests
// delays another Tenant's first by one turn only. Pool refills run after all requests.
//
// Long turns can make a Tenant wait long for its first one. Slots reserved for Tenants
// that hold none keep that wait short.
//
// A request that would wait too long is refused at once, with the time when there will be
// room. The Tenant's own place counts: a Tenant that fills the queue is refused, and
// others are not. If turns become longer than expected, the queue is cut from its end.
//
// Each refused request reserves a place, counted per Tenant, so that refused clients
// return at different times and then find room. Any request of the Tenant redeems a due
// place.
type queue struct {
	queueConfig

	mu       sync.Mutex
	free     int                      // slots
	held     map[sandbox.TenantID]int // held slots; no entry for 0
	tenants  []sandbox.TenantID       // with waiting requests, in the order of their turns
	waiting  map[sandbox.TenantID][]*waiter
	waiters  int
	refills  []*waiter
	duration time.Duration // for which a slot is held, a moving average
	places   map[sandbox.TenantID][]place
	promised int // places of all Tenants
}

// queueConfig configures a queue.
type queueConfig struct {
	slots    int
	reserved int           // slots only for Tenants that hold none; fewer than slots
	maxAhead int           // turns before a request at most
	maxWait  time.Duration // maximum expected wait
	tooLong  string        // error detail for a request that would wait longer
	// noReturn: refused requests go elsewhere, or had little time; they get no places.
	noReturn bool
}

// waiter is a request that waits for a slot.
type waiter struct {
	turn     chan struct{} // closed when it has a slot, or is refused
	refused  error         // set before turn is closed; nil: it has a slot
	came     time.Time
	patience time.Duration // longest expected wait
}

// place is a refused request's reservation in the queue.
type place struct{ due, lapses time.Time }

const (
	// backPatience plus backShare of its Retry-After is how late a refused request may
	// come back: clients add jitter.
	backPatience = 5 * time.Second
	backShare    = 0.25
	// maxPlaces caps reserved places, per turn that a request may have before it.
	// Beyond it Retry-After stops growing.
	maxPlaces = 16
)

// Tolerances of an expected wait over a request's patience, in eighths: dueSlack for
// requests that come back in time, cutSlack for queued ones.
const dueSlack, cutSlack = 1, 2

// stretched is d with slack.
func stretched(d time.Duration, slack int) time.Duration { return d + d*time.Duration(slack)/8 }

func newQueue(c queueConfig) *queue {
	return &queue{
		queueConfig: c, free: c.slots, held: map[sandbox.TenantID]int{},
		waiting: map[sandbox.TenantID][]*waiter{}, duration: 100 * time.Millisecond,
		places: map[sandbox.TenantID][]place{},
	}
}

// enter waits for a slot for tenant; leave gives it back. The error is ctx's, or
// Unavailable if the wait would be too long or outlast ctx.
func (q *queue) enter(ctx context.Context, tenant sandbox.TenantID) error {
	now := time.Now()
	q.mu.Lock()
	q.lapse(now)
	due := q.redeem(tenant, now)
	if q.open(tenant) {
		q.take(tenant)
		q.mu.Unlock()
		return nil
	}
	until := q.until(ctx, now)
	w := &waiter{turn: make(chan struct{}), came: now, patience: min(q.maxWait, until)}
	if err := q.refuse(tenant, w.patience, due, now); err != nil {
		q.mu.Unlock()
		return err
	}
	if len(q.waiting[tenant]) == 0 {
		q.tenants = append(q.tenants, tenant)
	}
	q.waiting[tenant] = append(q.waiting[tenant], w)
	q.waiters++
	q.mu.Unlock()
	late := time.AfterFunc(min(stretched(w.patience, cutSlack), until), func() { q.cut(tenant, w) })
	defer late.Stop()
	return q.await(ctx, w, func() { q.giveBack(tenant) })
}

// enterNow takes a slot without waiting; it reports whether tenant got one.
func (q *queue) enterNow(tenant sandbox.TenantID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.open(tenant) {
		return false
	}
	q.take(tenant)
	return true
}

// until is how long a request may wait and still hold a slot before ctx ends. q.mu is
// held.
func (q *queue) until(ctx context.Context, now time.Time) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return math.MaxInt64
	}
	return max(deadline.Sub(now)-q.duration, 0)
}

// inTime reports whether ctx lasts long enough for a request that gets a slot now.
func (q *queue) inTime(ctx context.Context) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.until(ctx, time.Now()) > 0
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

// giveBack returns a slot of tenant. q.mu is held.
func (q *queue) giveBack(tenant sandbox.TenantID) {
	if q.held[tenant]--; q.held[tenant] == 0 {
		delete(q.held, tenant)
	}
	q.free++
}

// turn is the expected time until the next waiting request gets a slot. q.mu is held.
func (q *queue) turn() time.Duration {
	return max(q.duration/time.Duration(q.slots-q.reserved), time.Millisecond)
}

// forecast returns how long a request of a Tenant without others would wait, zero while a
// slot is free; how long a turn takes; and the waiting requests of the Tenants with the
// most.
func (q *queue) forecast() (wait, turn time.Duration, waiting []sandbox.WaitingStarts) {
	q.mu.Lock()
	defer q.mu.Unlock()
	turn = q.turn()
	if q.free > 0 {
		return 0, turn, nil
	}
	for tenant, line := range q.waiting {
		waiting = append(waiting, sandbox.WaitingStarts{Tenant: tenant, Starts: len(line)})
	}
	slices.SortFunc(waiting, func(a, b sandbox.WaitingStarts) int {
		return cmp.Or(cmp.Compare(b.Starts, a.Starts), cmp.Compare(a.Tenant, b.Tenant))
	})
	waiting = waiting[:min(len(waiting), sandbox.MaxWaitingTenants)]
	return time.Duration(len(q.tenants)+1) * turn, turn, waiting
}

// within is how many turns take no longer than d, one at least. q.mu is held.
func (q *queue) within(d time.Duration) int {
	return min(q.maxAhead, max(1, int(d/q.turn())))
}

// refuse returns a refusal if the expected wait of one more request of tenant exceeds
// patience; nil: it may wait. due: the request redeemed a place, and so comes before
// requests that were refused later. q.mu is held.
func (q *queue) refuse(tenant sandbox.TenantID, patience time.Duration, due bool, now time.Time) error {
	if due && q.ahead(tenant, q.waits) < q.within(stretched(patience, dueSlack)) {
		return nil
	}
	// Clients with places may never come back: their places hold half of the room only.
	if 2*q.ahead(tenant, q.waits) < q.within(patience) {
		return nil
	}
	if beyond := q.beyond(tenant, patience); beyond >= 0 {
		return q.refusal(tenant, beyond, now)
	}
	return nil
}

// beyond is by how many turns the wait of one more request of tenant exceeds patience;
// negative: it may wait. q.mu is held.
func (q *queue) beyond(tenant sandbox.TenantID, patience time.Duration) int {
	return q.ahead(tenant, q.wants) - q.within(patience)
}

// refusal refuses a request of tenant that is beyond turns over its limit, and reserves a
// place for its return. q.mu is held.
func (q *queue) refusal(tenant sandbox.TenantID, beyond int, now time.Time) error {
	err := sandbox.Errorf(sandbox.Unavailable, "%s", q.tooLong)
	err.RetryAfter = max(retryAfter, time.Duration(max(beyond, 0)+1)*q.turn())
	if !q.noReturn && q.promised < maxPlaces*q.maxAhead && len(q.places[tenant]) < q.maxAhead {
		back := now.Add(err.RetryAfter)
		at, _ := slices.BinarySearchFunc(q.places[tenant], back, func(p place, t time.Time) int { return p.due.Compare(t) })
		lapses := back.Add(backPatience + time.Duration(backShare*float64(err.RetryAfter)))
		q.places[tenant] = slices.Insert(q.places[tenant], at, place{back, lapses})
		q.promised++
	}
	return err
}

// waits counts a Tenant's waiting requests; wants adds its places. q.mu is held.
func (q *queue) waits(tenant sandbox.TenantID) int { return len(q.waiting[tenant]) }

func (q *queue) wants(tenant sandbox.TenantID) int { return q.waits(tenant) + len(q.places[tenant]) }

// ahead is how many turns come before one more request of tenant, if no other Tenant
// comes: each has one turn a round. count returns a Tenant's number of requests. q.mu is
// held.
func (q *queue) ahead(tenant sandbox.TenantID, count func(sandbox.TenantID) int) int {
	mine := count(tenant)
	n := mine
	for other := range q.waiting {
		if other != tenant {
			n += min(count(other), mine+1)
		}
	}
	for other := range q.places {
		if other != tenant && len(q.waiting[other]) == 0 {
			n += min(count(other), mine+1)
		}
	}
	return n
}

// redeem uses up the first place of tenant if it is due. q.mu is held.
func (q *queue) redeem(tenant sandbox.TenantID, now time.Time) bool {
	places := q.places[tenant]
	if len(places) == 0 || now.Before(places[0].due) {
		return false
	}
	q.forfeit(tenant, 1)
	return true
}

// lapse removes expired places. q.mu is held.
func (q *queue) lapse(now time.Time) {
	for tenant, places := range q.places {
		n := 0
		for n < len(places) && now.After(places[n].lapses) {
			n++
		}
		q.forfeit(tenant, n)
	}
}

// forfeit removes the first n places of tenant. q.mu is held.
func (q *queue) forfeit(tenant sandbox.TenantID, n int) {
	q.promised -= n
	if q.places[tenant] = q.places[tenant][n:]; len(q.places[tenant]) == 0 {
		delete(q.places, tenant)
	}
}

// shorten cuts the queue from its end while the last request would wait too long. q.mu is
// held.
func (q *queue) shorten() {
	now := time.Now()
	for q.waiters > 1 {
		longest, last := q.last()
		left := stretched(last.patience, cutSlack) - now.Sub(last.came)
		if time.Duration(q.waiters-1)*q.turn() <= left {
			return
		}
		q.turnAway(longest, last, now)
	}
}

// last is the request whose turn comes last: the newest last request among the Tenants
// with the most. q.mu is held, and some wait.
func (q *queue) last() (longest sandbox.TenantID, last *waiter) {
	most := 0
	for tenant, line := range q.waiting {
		w := line[len(line)-1]
		if len(line) > most || len(line) == most && w.came.After(last.came) {
			longest, last, most = tenant, w, len(line)
		}
	}
	return longest, last
}

// cut refuses w, which has waited too long, unless it has a slot.
func (q *queue) cut(tenant sandbox.TenantID, w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if slices.Contains(q.waiting[tenant], w) {
		q.turnAway(tenant, w, time.Now())
	}
}

// turnAway refuses a waiting request of tenant. q.mu is held.
func (q *queue) turnAway(tenant sandbox.TenantID, w *waiter, now time.Time) {
	q.drop(w)
	w.refused = q.refusal(tenant, q.beyond(tenant, q.maxWait), now)
	close(w.turn)
}

// enterLast waits for a slot that no request wants; leaveLast gives it back.
func (q *queue) enterLast(ctx context.Context) error {
	q.mu.Lock()
	if q.free > q.reserved {
		q.free--
		q.mu.Unlock()
		return nil
	}
	w := &waiter{turn: make(chan struct{})}
	q.refills = append(q.refills, w)
	q.mu.Unlock()
	return q.await(ctx, w, func() { q.free++ })
}

// await waits until w has a slot or is refused. undo returns the slot if ctx ended at the
// same time.
func (q *queue) await(ctx context.Context, w *waiter, undo func()) error {
	select {
	case <-w.turn:
		return w.refused
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-w.turn: // it came at the same time: pass it on
		if w.refused == nil {
			undo()
			q.pass()
		}
	default:
		q.drop(w)
	}
	return ctx.Err()
}

// leave returns a slot of tenant; took is how long it was held.
func (q *queue) leave(tenant sandbox.TenantID, took time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.duration += (took - q.duration) / 8
	q.giveBack(tenant)
	q.pass()
	q.shorten()
}

// leaveLast returns the slot of a refill.
func (q *queue) leaveLast(took time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.duration += (took - q.duration) / 8
	q.free++
	q.pass()
	q.shorten()
}

// pass hands free slots to the next requests that may have one. q.mu is held.
func (q *queue) pass() {
	for {
		next := slices.IndexFunc(q.tenants, q.open)
		if next < 0 {
			break
		}
		tenant := q.tenants[next]
		line := q.waiting[tenant]
		q.tenants = slices.Delete(q.tenants, next, next+1)
		if len(line) > 1 {
			q.waiting[tenant] = line[1:]
			q.tenants = append(q.tenants, tenant)
		} else {
			delete(q.waiting, tenant)
		}
		q.waiters--
		q.take(tenant)
		close(line[0].turn)
	}
	for len(q.tenants) == 0 && len(q.refills) > 0 && q.free > q.reserved {
		w := q.refills[0]
		q.refills = q.refills[1:]
		q.free--
		close(w.turn)
	}
}

// drop removes w, which no longer waits. q.mu is held.
func (q *queue) drop(w *waiter) {
	if i := slices.Index(q.refills, w); i >= 0 {
		q.refills = slices.Delete(q.refills, i, i+1)
		return
	}
	for tenant, line := range q.waiting {
		i := slices.Index(line, w)
		if i < 0 {
			continue
		}
		q.waiters--
		if len(line) > 1 {
			q.waiting[tenant] = append(line[:i:i], line[i+1:]...)
			return
		}
		delete(q.waiting, tenant)
		i = slices.Index(q.tenants, tenant)
		q.tenants = slices.Delete(q.tenants, i, i+1)
		return
	}
}
