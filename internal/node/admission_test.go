package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
			q.waiting[tenant] = make([]chan struct{}, n)
		}
		err := q.refuse(tt.tenant)
		var e *sandbox.Error
		switch {
		case tt.after == 0 && err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case tt.after != 0 && (!errors.As(err, &e) || e.Code != sandbox.Unavailable || e.RetryAfter != tt.after):
			t.Errorf("%s: %#v, want to retry after %v", tt.name, err, tt.after)
		}
	}
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
		if ctx.Err() == nil {
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
// one, and nobody is forgotten.
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

// Slots that are reserved keep those of a Tenant with many long turns from another.
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
