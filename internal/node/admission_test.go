package node

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// How many wait does not matter, but how many come before.
func TestQueueRefuses(t *testing.T) {
	const a, b, c = sandbox.TenantID("a"), sandbox.TenantID("b"), sandbox.TenantID("c")
	for _, tt := range []struct {
		name     string
		slots    int
		maxAhead int
		maxWait  time.Duration
		waiting  map[sandbox.TenantID]int
		tenant   sandbox.TenantID
		duration time.Duration
		after    time.Duration // zero: it may wait
	}{
		{"nobody waits", 2, 10, time.Minute, nil, a, time.Second, 0},
		{"room for one", 1, 10, time.Minute, map[sandbox.TenantID]int{a: 9}, a, time.Second, 0},
		{"no room", 1, 10, time.Minute, map[sandbox.TenantID]int{a: 10}, a, 3 * time.Second, 3 * time.Second},
		{"no room, soon over", 2, 10, time.Minute, map[sandbox.TenantID]int{a: 10}, a, time.Millisecond, retryAfter},
		{"another's requests count once a turn", 1, 10, time.Minute, map[sandbox.TenantID]int{a: 10, b: 1000}, c, time.Second, 0},
		{"in a later round too", 1, 10, time.Minute, map[sandbox.TenantID]int{a: 4, b: 1000}, a, time.Second, 0},
		{"until there are too many", 1, 10, time.Minute, map[sandbox.TenantID]int{a: 5, b: 1000}, a, 4 * time.Second, 8 * time.Second},
		{"as long as is allowed", 2, 1000, time.Minute, map[sandbox.TenantID]int{a: 59}, a, 2 * time.Second, 0},
		{"longer", 2, 1000, time.Minute, map[sandbox.TenantID]int{a: 69}, a, 2 * time.Second, 10 * time.Second},
		{"one waits however long it takes", 2, 1000, time.Minute, nil, a, time.Hour, 0},
	} {
		q := newQueue(queueConfig{slots: tt.slots, maxAhead: tt.maxAhead, maxWait: tt.maxWait})
		q.duration = tt.duration
		for tenant, n := range tt.waiting {
			q.waiting[tenant] = make([]*waiter, n)
		}
		err := q.refuse(tt.tenant, tt.maxWait, false, time.Now())
		var e *sandbox.Error
		switch {
		case tt.after == 0 && err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case tt.after != 0 && (!errors.As(err, &e) || e.Code != sandbox.Unavailable || e.RetryAfter != tt.after):
			t.Errorf("%s: %#v, want to retry after %v", tt.name, err, tt.after)
		}
	}
}

// Each that is refused is told another time, later by a turn, and another Tenant's
// count once a turn.
func TestQueueTellsEachAnotherTime(t *testing.T) {
	const a, b, c = sandbox.TenantID("a"), sandbox.TenantID("b"), sandbox.TenantID("c")
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(queueConfig{slots: 1, maxAhead: 1000, maxWait: 10 * time.Second})
		q.duration = time.Second
		q.waiting[a] = make([]*waiter, 10)
		// comes has a request come and returns how long it is told to stay away; zero:
		// it may wait.
		comes := func(tenant sandbox.TenantID) time.Duration {
			t.Helper()
			q.lapse(time.Now())
			err := q.refuse(tenant, q.maxWait, q.redeem(tenant, time.Now()), time.Now())
			var e *sandbox.Error
			if err == nil {
				q.waiting[tenant] = append(q.waiting[tenant], &waiter{})
				return 0
			}
			if !errors.As(err, &e) {
				t.Fatal(err)
			}
			return e.RetryAfter
		}
		check := func(what string, got, want time.Duration) {
			t.Helper()
			if got != want {
				t.Errorf("%s is told %v, want %v", what, got, want)
			}
		}
		check("the first that is refused", comes(a), 2*time.Second)
		check("the second", comes(a), 2*time.Second)
		check("the third", comes(a), 3*time.Second)
		check("the fourth", comes(a), 4*time.Second)
		check("another tenant, which has its turn soon,", comes(b), 0)
		for range 4 {
			check("it", comes(b), 0)
		}
		q.waiting[c] = make([]*waiter, 4)
		check("a tenant of which others have as many,", comes(b), 6*time.Second)
		time.Sleep(2 * time.Second)
		q.waiting[a] = q.waiting[a][:4]
		delete(q.waiting, b)
		delete(q.waiting, c)
		check("who comes when it was told to", comes(a), 0)
		check("another one", comes(a), 0)
		check("who was told to come later, but finds room", comes(a), 0)
		check("who would be the eleventh with those who come back", comes(a), 2*time.Second)
		check("one more", comes(a), 2*time.Second)
		time.Sleep(time.Minute)
		check("when nobody came back, one that the line has room for", comes(b), 0)
		if q.promised != 0 || len(q.places) != 0 {
			t.Errorf("%d places are kept for those who do not come: %v", q.promised, q.places)
		}
	})
}

// The places kept for refused requests are bounded, per Tenant and in total.
func TestQueueKeepsFewPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(queueConfig{slots: 1, maxAhead: 8, maxWait: time.Second})
		q.duration = time.Hour
		for i := range 100 {
			tenant := sandbox.TenantID(fmt.Sprint("t", i))
			q.waiting[tenant] = make([]*waiter, 8)
			for range 100 {
				if q.refuse(tenant, q.maxWait, false, time.Now()) == nil {
					t.Fatal("it may wait")
				}
			}
			if n := len(q.places[tenant]); n > 8 {
				t.Fatalf("a tenant has %d places", n)
			}
		}
		if q.promised != 8*maxPlaces {
			t.Errorf("%d places are kept, want %d", q.promised, 8*maxPlaces)
		}
	})
}

// herd is a crowd of requests that come to a queue at once and, when they are
// refused, again when they were told to.
type herd struct {
	q        *queue
	hold     func() time.Duration // how long a slot is held that is taken now
	mu       sync.Mutex
	refusals []int // how often each was refused
	last     time.Duration
	longest  time.Duration // that one waited in one go
}

// request runs request n of the herd to its end.
func (h *herd) request(t *testing.T, tenant sandbox.TenantID, n int, chance float64) {
	began := time.Now()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		came := time.Now()
		err := h.q.enter(ctx, tenant)
		cancel()
		h.mu.Lock()
		h.longest = max(h.longest, time.Since(came))
		h.mu.Unlock()
		if err == nil {
			break
		}
		var e *sandbox.Error
		if !errors.As(err, &e) || e.Code != sandbox.Unavailable || e.RetryAfter <= 0 {
			t.Errorf("request %d of %s failed after %v: %v", n, tenant, time.Since(came), err)
			return
		}
		h.mu.Lock()
		h.refusals[n]++
		h.mu.Unlock()
		wait := time.Duration(math.Ceil(e.RetryAfter.Seconds())) * time.Second // as HTTP says it
		time.Sleep(wait + time.Duration(chance*float64(wait)/10))
	}
	hold := h.hold()
	time.Sleep(hold)
	h.q.leave(tenant, hold)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = max(h.last, time.Since(began))
}

// A crowd that obeys is served whole, in the time that its turns take: no client waits
// for longer than a request lasts, few are refused twice, and the slots are never
// idle while refused clients wait to return. A request that arrives meanwhile has its
// turn soon.
func TestQueueServesAHerd(t *testing.T) {
	for _, tt := range []struct {
		name    string
		n       int
		tenants int
		hold    func(since time.Duration) time.Duration
		once    int           // refused at most, of the crowd
		twice   int           // refused twice or more
		within  time.Duration // all are served
	}{
		{"one that the queue can take", 500, 20, steady(200 * time.Millisecond), 0, 0, 53 * time.Second},
		{"twice as many", 1800, 20, steady(200 * time.Millisecond), 950, 60, 190 * time.Second},
		{"of one tenant", 1800, 1, steady(200 * time.Millisecond), 950, 60, 190 * time.Second},
		{"more tenants than turns", 900, 500, steady(400 * time.Millisecond), 550, 150, 200 * time.Second},
		{"when turns become thrice as long", 1000, 20, func(since time.Duration) time.Duration {
			return min(100*time.Millisecond+since/100, 300*time.Millisecond)
		}, 600, 200, 150 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(7, 7))
				began := time.Now()
				h := &herd{
					q: newQueue(queueConfig{slots: 2, maxAhead: 1024, maxWait: 90 * time.Second}), refusals: make([]int, tt.n),
					hold: func() time.Duration { return tt.hold(time.Since(began)) },
				}
				h.q.duration = tt.hold(0)
				var wg sync.WaitGroup
				for n := range tt.n {
					tenant, chance := sandbox.TenantID(fmt.Sprint("t", n%tt.tenants)), random.Float64()
					wg.Go(func() { h.request(t, tenant, n, chance) })
				}
				other := &herd{q: h.q, hold: h.hold, refusals: make([]int, 1000)}
				for n := range 30 {
					wg.Go(func() {
						time.Sleep(time.Duration(n) * 5 * time.Second)
						other.request(t, "other", n, 0)
					})
				}
				wg.Wait()
				once, twice := 0, 0
				for _, n := range h.refusals {
					if n > 0 {
						once++
					}
					if n > 1 {
						twice++
					}
				}
				t.Logf("%d were refused, %d of them again; the longest wait was %v, another tenant's request took %v at most, and the last was done after %v",
					once, twice, h.longest, other.last, h.last)
				if once > tt.once || twice > tt.twice {
					t.Errorf("%d were refused, %d of them again, want at most %d and %d", once, twice, tt.once, tt.twice)
				}
				if h.longest > 115*time.Second {
					t.Errorf("one waited for %v", h.longest)
				}
				if h.last > tt.within {
					t.Errorf("the last was done after %v, want %v", h.last, tt.within)
				}
				if round := time.Duration(tt.tenants+2) * tt.hold(time.Hour); tt.tenants < 100 && other.last > round {
					t.Errorf("another tenant's request took %v, want at most %v", other.last, round)
				}
				if h.q.free != h.q.slots || h.q.waiters != 0 || len(h.q.waiting) != 0 || len(h.q.held) != 0 {
					t.Errorf("at the end %d slots are free and %d wait", h.q.free, h.q.waiters)
				}
			})
		})
	}
}

func steady(d time.Duration) func(time.Duration) time.Duration {
	return func(time.Duration) time.Duration { return d }
}

// The queue is cut where most wait, and of Tenants with as many where one came last.
func TestQueueIsCutFromItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(queueConfig{slots: 1, maxAhead: 100, maxWait: 8 * time.Second})
		q.duration = time.Second
		if err := q.enter(t.Context(), "first"); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var refused []string
		var wg sync.WaitGroup
		for _, who := range []string{"a1", "a2", "a3", "a4", "z1", "z2", "b1", "b2", "c1"} {
			wg.Go(func() {
				tenant := sandbox.TenantID(who[:1])
				if err := q.enter(t.Context(), tenant); err != nil {
					mu.Lock()
					defer mu.Unlock()
					refused = append(refused, who)
					return
				}
				time.Sleep(time.Second)
				q.leave(tenant, time.Second)
			})
			time.Sleep(time.Millisecond)
		}
		q.mu.Lock()
		q.duration = 2 * time.Second // so that five turns take ten seconds
		q.mu.Unlock()
		q.leave("first", 2*time.Second)
		synctest.Wait()
		mu.Lock()
		slices.Sort(refused)
		if want := []string{"a4", "b2", "z2"}; !slices.Equal(refused, want) {
			t.Errorf("%v were turned away, want %v", refused, want)
		}
		mu.Unlock()
		wg.Wait()
	})
}

// A request does not wait longer than its client does.
func TestQueueKnowsDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(queueConfig{slots: 1, maxAhead: 100, maxWait: time.Minute})
		q.duration = 2 * time.Second
		if err := q.enter(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		enter := func(limit time.Duration) (time.Duration, error) {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			began := time.Now()
			err := q.enter(ctx, "b")
			return time.Since(began), err
		}
		// No request is before the first, but the turn under way takes longer than it was
		// expected to: time must be left for its own.
		took, err := enter(10 * time.Second)
		if !errors.Is(err, sandbox.Unavailable) || took != 8*time.Second {
			t.Errorf("the first was told %v after %v", err, took)
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if err := q.enter(t.Context(), "b"); err != nil {
					t.Error(err)
					return
				}
				q.leave("b", 2*time.Second)
			})
		}
		synctest.Wait()
		took, err = enter(9 * time.Second) // four turns of two seconds, and its own
		if !errors.Is(err, sandbox.Unavailable) || took != 0 {
			t.Errorf("one that cannot have its turn in time was told %v after %v", err, took)
		}
		q.leave("a", 2*time.Second)
		wg.Wait()
	})
}

// customers use a queue and check what it promises.
type customers struct {
	q     *queue
	mu    sync.Mutex
	busy  int
	turns map[sandbox.TenantID][]int // requests that wait, in the order of their turns
	// passed counts the turns that others had since a Tenant that waits had one.
	passed map[sandbox.TenantID]map[sandbox.TenantID]int
	faults []string
}

func (c *customers) fault(format string, args ...any) {
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

// got notes that a request has a slot.
func (c *customers) got(tenant sandbox.TenantID, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy++; c.busy > c.q.slots {
		c.fault("%d of %d slots are taken", c.busy, c.q.slots)
	}
	if turns := c.turns[tenant]; len(turns) == 0 || turns[0] != n {
		c.fault("request %d of %s overtook %v", n, tenant, turns)
	}
	c.gone(tenant, n)
	delete(c.passed, tenant)
	for other, turns := range c.turns {
		if other == tenant || len(turns) == 0 {
			continue
		}
		if c.passed[other] == nil {
			c.passed[other] = map[sandbox.TenantID]int{}
		}
		if c.passed[other][tenant]++; c.passed[other][tenant] > 1 {
			c.fault("%s had %d turns while %s waited for one", tenant, c.passed[other][tenant], other)
		}
	}
}

// gone forgets a request that waits no more. c.mu is held.
func (c *customers) gone(tenant sandbox.TenantID, n int) {
	var rest []int
	for _, other := range c.turns[tenant] {
		if other != n {
			rest = append(rest, other)
		}
	}
	if c.turns[tenant] = rest; len(rest) == 0 {
		delete(c.turns, tenant)
		delete(c.passed, tenant)
	}
}

// visit waits for a slot for at most patience, and holds it.
func (c *customers) visit(tenant sandbox.TenantID, n int, patience, hold time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c.mu.Lock()
	c.turns[tenant] = append(c.turns[tenant], n)
	c.mu.Unlock()
	if err := c.q.enter(ctx, tenant); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		// One whose turn comes after its patience ends may be told so before.
		if ctx.Err() == nil && (patience == time.Hour || !errors.Is(err, sandbox.Unavailable)) {
			c.fault("request %d of %s left with %v", n, tenant, err)
		}
		c.gone(tenant, n)
		return
	}
	c.got(tenant, n)
	time.Sleep(hold)
	c.mu.Lock()
	c.busy--
	c.mu.Unlock()
	c.q.leave(tenant, hold)
}

// Whatever comes and goes: no more than the slots are taken, a Tenant's requests
// are served in their order, no Tenant has two turns while another waits for
// one, and no request is forgotten.
func TestQueueForecast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(queueConfig{slots: 2, maxAhead: 1000, maxWait: time.Hour})
		check := func(what string, wait time.Duration, want ...sandbox.WaitingStarts) {
			t.Helper()
			synctest.Wait()
			gotWait, turn, waiting := q.forecast()
			if gotWait != wait || turn != 50*time.Millisecond || !slices.Equal(waiting, want) {
				t.Errorf("%s: %s, %s, %v, want %s, 50ms, %v", what, gotWait, turn, waiting, wait, want)
			}
		}
		var wg sync.WaitGroup
		done := make(chan struct{})
		enter := func(tenant sandbox.TenantID, n int) {
			for range n {
				wg.Go(func() {
					if err := q.enter(t.Context(), tenant); err != nil {
						t.Error(err)
					}
					<-done
					q.leave(tenant, 100*time.Millisecond)
				})
			}
		}
		enter("a", 1)
		check("a slot is free", 0)
		enter("a", 1)
		check("none waits", 50*time.Millisecond)
		enter("b", 3)
		enter("c", 5)
		check("some wait", 150*time.Millisecond, sandbox.WaitingStarts{Tenant: "c", Starts: 5}, sandbox.WaitingStarts{Tenant: "b", Starts: 3})
		for i := range sandbox.MaxWaitingTenants {
			enter(sandbox.TenantID(fmt.Sprint("t", i)), 2)
		}
		synctest.Wait()
		if _, _, waiting := q.forecast(); len(waiting) != sandbox.MaxWaitingTenants || waiting[0].Tenant != "c" {
			t.Errorf("%d tenants are reported, %v first", len(waiting), waiting[0])
		}
		close(done)
		wg.Wait()
	})
}

func TestQueueIsFair(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			c := &customers{
				q:     newQueue(queueConfig{slots: 1 + random.IntN(4), maxAhead: 1 << 20, maxWait: 100 * time.Hour}),
				turns: map[sandbox.TenantID][]int{}, passed: map[sandbox.TenantID]map[sandbox.TenantID]int{},
			}
			var wg sync.WaitGroup
			for n := range 300 {
				tenant := sandbox.TenantID(fmt.Sprint("t", min(random.IntN(6), random.IntN(6))))
				patience := time.Hour
				if random.IntN(4) == 0 {
					patience = time.Duration(1+random.IntN(5000)) * time.Millisecond
				}
				hold := time.Duration(1+random.IntN(400))*time.Millisecond + time.Duration(n)*time.Microsecond
				wg.Go(func() { c.visit(tenant, n, patience, hold) })
				synctest.Wait()
				if random.IntN(3) == 0 {
					time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
				}
			}
			refills := 0
			for range 5 {
				wg.Go(func() {
					if err := c.q.enterLast(context.Background()); err != nil {
						t.Error(err)
					}
					c.mu.Lock()
					if len(c.turns) > 0 {
						c.fault("a refill came before %v", c.turns)
					}
					refills++
					c.mu.Unlock()
					c.q.leaveLast(time.Millisecond)
				})
			}
			wg.Wait()
			for _, fault := range c.faults {
				t.Errorf("seed %d: %s", seed, fault)
			}
			q := c.q
			if q.free != q.slots || len(q.held) != 0 || q.waiters != 0 || len(q.waiting) != 0 || len(q.tenants) != 0 || len(q.refills) != 0 || refills != 5 {
				t.Errorf("seed %d: at the end %d of %d slots are free, %d wait, %v, %v, %d refills", seed, q.free, q.slots, q.waiters, q.waiting, q.tenants, refills)
			}
		})
	}
}

// Reserved slots keep a Tenant with many long turns from blocking another one.
func TestQueueReserves(t *testing.T) {
	const a, b, c = sandbox.TenantID("a"), sandbox.TenantID("b"), sandbox.TenantID("c")
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(queueConfig{slots: 3, reserved: 1, maxAhead: 100, maxWait: 100 * time.Hour})
		var mu sync.Mutex
		holds := map[sandbox.TenantID]int{}
		ends := map[sandbox.TenantID]chan struct{}{a: make(chan struct{}), b: make(chan struct{}), c: make(chan struct{})}
		add := func(tenant sandbox.TenantID, n int) {
			mu.Lock()
			defer mu.Unlock()
			holds[tenant] += n
		}
		var wg sync.WaitGroup
		enter := func(tenant sandbox.TenantID) {
			wg.Go(func() {
				if err := q.enter(context.Background(), tenant); err != nil {
					t.Error(err)
					return
				}
				add(tenant, 1)
				<-ends[tenant]
				add(tenant, -1)
				q.leave(tenant, time.Second)
			})
			synctest.Wait()
		}
		check := func(when string, ofA, ofB, ofC int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if holds[a] != ofA || holds[b] != ofB || holds[c] != ofC {
				t.Errorf("%s they hold %v, want %d, %d and %d", when, holds, ofA, ofB, ofC)
			}
		}
		for range 8 {
			enter(a)
		}
		check("alone", 2, 0, 0)
		enter(b)
		check("when another comes", 2, 1, 0)
		enter(b)
		enter(c)
		check("when all are taken", 2, 1, 0)
		ends[a] <- struct{}{}
		check("after a turn of the one with two", 1, 1, 1)
		ends[c] <- struct{}{}
		check("when those who wait have one each, and one is reserved", 1, 1, 0)
		enter(c)
		check("who comes anew has the reserved one", 1, 1, 1)
		ends[a] <- struct{}{}
		check("a turn of its own that ends is its next", 1, 1, 1)
		ends[b] <- struct{}{}
		check("so for another", 1, 1, 1)
		ends[b] <- struct{}{}
		check("nobody waits but one", 1, 0, 1)
		ends[c] <- struct{}{}
		check("alone again", 2, 0, 0)
		for range 6 {
			ends[a] <- struct{}{}
			synctest.Wait()
		}
		wg.Wait()
		if q.free != q.slots || len(q.held) != 0 || q.waiters != 0 {
			t.Errorf("%d of %d slots are free, held %v, %d wait", q.free, q.slots, q.held, q.waiters)
		}
	})
}

// Places of clients that do not return keep no request out of an empty queue.
func TestQueueKeepsRoomForWhoIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(queueConfig{slots: 1, maxAhead: 1000, maxWait: 10 * time.Second})
		q.duration = time.Second
		q.waiting["a"] = make([]*waiter, 10)
		for range 100 {
			if q.refuse("a", q.maxWait, false, time.Now()) == nil {
				t.Fatal("a request waits that has ten before it")
			}
		}
		delete(q.waiting, "a")
		if err := q.refuse("a", q.maxWait, false, time.Now()); err != nil {
			t.Errorf("one that nobody is before: %v", err)
		}
	})
}

// enterNow takes a slot that is free and waits for none.
func TestQueueEnterNow(t *testing.T) {
	q := newQueue(queueConfig{slots: 2, reserved: 1, maxAhead: 10, maxWait: time.Second})
	if !q.enterNow("a") || q.enterNow("a") || !q.enterNow("b") || q.enterNow("c") {
		t.Error("the slots are not what was entered")
	}
	q.leave("a", time.Millisecond)
	if q.enterNow("b") || !q.enterNow("a") {
		t.Error("the one that was left is not free for who holds none")
	}
}
