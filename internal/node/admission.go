package node

import (
	"context"
	"math"
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
// A request that would wait too long is refused at once, and told when there will
// be room for it. What counts is the Tenant's own place: one that fills the queue
// is refused, and others are not. Turns may become longer than they were when a
// request was let in: then the queue is cut from its end.
//
// Refused requests reserve places, counted per Tenant, so that each is told another
// time and finds room then. Any request of the Tenant redeems a due one.
type queue struct {
	queueConfig

	mu       sync.Mutex
	free     int                      // slots
	held     map[sandbox.TenantID]int // slots, of those that hold any
	tenants  []sandbox.TenantID       // that wait, in the order of their turns
	waiting  map[sandbox.TenantID][]*waiter
	waiters  int
	refills  []*waiter
	duration time.Duration // that a slot is held, a moving average
	places   map[sandbox.TenantID][]place
	promised int // places of all Tenants
}

// queueConfig is how a queue is.
type queueConfig struct {
	slots    int
	reserved int           // of slots, only for Tenants that hold none; fewer than slots
	maxAhead int           // turns before a request at most
	maxWait  time.Duration // that they may take
	tooLong  string        // what one is told that would wait longer
	// noReturn says that refused requests go elsewhere, or had little time: no places are kept for them.
	noReturn bool
}

// waiter is a request that waits for a slot.
type waiter struct {
	turn     chan struct{} // closed when it has a slot, or is refused
	refused  error         // set before turn is closed; nil: it has a slot
	came     time.Time
	patience time.Duration // that it may be expected to wait
}

// place is one that a request which was refused has in the line of those who come
// back.
type place struct{ due, lapses time.Time }

const (
	// backPatience is how much later than told a refused request may come back, and
	// backShare the same as a share of the time that it was told: clients add
	// some, to keep apart.
	backPatience = 5 * time.Second
	backShare    = 0.25
	// maxPlaces caps reserved places, per turn that a request may have before it.
	// Beyond it Retry-After stops growing.
	maxPlaces = 16
)

// Tolerances of an expected wait over a request's patience, in eighths: dueSlack for
// requests that come back when they were told to, cutSlack for queued ones.
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

// enter waits for a slot on behalf of tenant, which leave gives back. The error is
// ctx's, or Unavailable when that would take too long, or longer than ctx lasts.
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

// enterNow is enter that does not wait; it reports whether tenant has a slot.
func (q *queue) enterNow(tenant sandbox.TenantID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.open(tenant) {
		return false
	}
	q.take(tenant)
	return true
}

// until is how long ctx lets a request wait that then holds a slot. q.mu is held.
func (q *queue) until(ctx context.Context, now time.Time) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return math.MaxInt64
	}
	return max(deadline.Sub(now)-q.duration, 0)
}

// inTime reports whether ctx lasts as long as a slot is held, by a request that has
// one now.
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

// giveBack takes a slot of tenant back. q.mu is held.
func (q *queue) giveBack(tenant sandbox.TenantID) {
	if q.held[tenant]--; q.held[tenant] == 0 {
		delete(q.held, tenant)
	}
	q.free++
}

// turn is how long it takes until the next of those who wait has a slot. q.mu is
// held.
func (q *queue) turn() time.Duration {
	return max(q.duration/time.Duration(q.slots-q.reserved), time.Millisecond)
}

// within is how many turns take no longer than d, one at least. q.mu is held.
func (q *queue) within(d time.Duration) int {
	return min(q.maxAhead, max(1, int(d/q.turn())))
}

// refuse returns a refusal if the expected wait of one more request of tenant exceeds
// patience; nil: it may wait. due says that it comes back as it was told to: then it
// comes before those who were refused after it. q.mu is held.
func (q *queue) refuse(tenant sandbox.TenantID, patience time.Duration, due bool, now time.Time) error {
	if due && q.ahead(tenant, q.waits) < q.within(stretched(patience, dueSlack)) {
		return nil
	}
	// Those who may never come back keep half of the room for themselves, not all.
	if 2*q.ahead(tenant, q.waits) < q.within(patience) {
		return nil
	}
	if beyond := q.beyond(tenant, patience); beyond >= 0 {
		return q.refusal(tenant, beyond, now)
	}
	return nil
}

// beyond is the number of turns before one more request of tenant over what patience
// allows; negative: it may wait. q.mu is held.
func (q *queue) beyond(tenant sandbox.TenantID, patience time.Duration) int {
	return q.ahead(tenant, q.wants) - q.within(patience)
}

// refusal turns a request of tenant away that is so many turns beyond what it may
// have before it, and gives it a place among those who come back. q.mu is held.
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

// waits is how many requests of a Tenant wait, and wants is how many would. q.mu is
// held.
func (q *queue) waits(tenant sandbox.TenantID) int { return len(q.waiting[tenant]) }

func (q *queue) wants(tenant sandbox.TenantID) int { return q.waits(tenant) + len(q.places[tenant]) }

// ahead is how many turns come before one more request of tenant, if no other
// Tenant comes: each has one turn a round. count says how many requests a Tenant
// has. q.mu is held.
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

// redeem takes the first place of tenant in the line of those who come back, if
// that is due. q.mu is held.
func (q *queue) redeem(tenant sandbox.TenantID, now time.Time) bool {
	places := q.places[tenant]
	if len(places) == 0 || now.Before(places[0].due) {
		return false
	}
	q.forfeit(tenant, 1)
	return true
}

// lapse takes back the places that nobody came for. q.mu is held.
func (q *queue) lapse(now time.Time) {
	for tenant, places := range q.places {
		n := 0
		for n < len(places) && now.After(places[n].lapses) {
			n++
		}
		q.forfeit(tenant, n)
	}
}

// forfeit takes the first n places of tenant back. q.mu is held.
func (q *queue) forfeit(tenant sandbox.TenantID, n int) {
	q.promised -= n
	if q.places[tenant] = q.places[tenant][n:]; len(q.places[tenant]) == 0 {
		delete(q.places, tenant)
	}
}

// shorten cuts the queue from its end while the last one there would wait too long.
// q.mu is held.
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

// last is the request whose turn comes last: that of the Tenant with the most, and of
// those with as many the one that came last. q.mu is held, and some wait.
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

// turnAway refuses a request of tenant that waits. q.mu is held.
func (q *queue) turnAway(tenant sandbox.TenantID, w *waiter, now time.Time) {
	q.drop(w)
	w.refused = q.refusal(tenant, q.beyond(tenant, q.maxWait), now)
	close(w.turn)
}

// enterLast waits for a slot that nobody else wants, which leaveLast gives back.
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

// await waits until w has a slot or is refused; undo takes the slot back of who has
// left by then.
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

// leave gives a slot of tenant back; took is how long it was held.
func (q *queue) leave(tenant sandbox.TenantID, took time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.duration += (took - q.duration) / 8
	q.giveBack(tenant)
	q.pass()
	q.shorten()
}

// leaveLast gives back the slot of a refill.
func (q *queue) leaveLast(took time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.duration += (took - q.duration) / 8
	q.free++
	q.pass()
	q.shorten()
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

// drop removes w, which waits no more. q.mu is held.
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
