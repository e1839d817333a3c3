// Package ratelimittest is the suite of limiters: buckets in memory, and buckets in Redis.
package ratelimittest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit"
)

// A Limiter counts requests against the rate limits of their callers.
type Limiter interface {
	Take(caller string, class ratelimit.Class, now time.Time) ratelimit.Decision
}

// slow is a rate at which nothing comes back while a test runs.
const slow = 0.001

// Run checks a Limiter. open returns one with full buckets and registers its own cleanup.
func Run(t *testing.T, open func(*testing.T, ratelimit.Rules) Limiter) {
	for name, check := range map[string]func(*testing.T, func(*testing.T, ratelimit.Rules) Limiter){
		"a burst and no more":                     burst,
		"fractions add up":                        fractions,
		"classes without a rule are not limited":  unlimited,
		"callers and classes are apart":           apart,
		"a refused request passes after its wait": wait,
		"refused requests cost nothing":           refused,
		"a bucket fills up and no further":        refill,
		"concurrent requests are counted exactly": concurrent,
	} {
		t.Run(name, func(t *testing.T) { check(t, open) })
	}
}

func burst(t *testing.T, open func(*testing.T, ratelimit.Rules) Limiter) {
	rule := ratelimit.Rule{PerSecond: slow, Burst: 3}
	l := open(t, ratelimit.Rules{ratelimit.Create: rule})
	for i, want := range []struct {
		ok        bool
		remaining int
		reset     time.Duration // some seconds less, on a slow machine
		wait      time.Duration
	}{
		{true, 2, 1000 * time.Second, 0},
		{true, 1, 2000 * time.Second, 0},
		{true, 0, 3000 * time.Second, 0},
		{false, 0, 3000 * time.Second, 1000 * time.Second},
		{false, 0, 3000 * time.Second, 1000 * time.Second},
	} {
		d := l.Take("a", ratelimit.Create, time.Now())
		if d.OK != want.ok || d.Remaining != want.remaining || !d.Limited || d.Rule != rule || !near(d.Reset, want.reset) || !near(d.Wait, want.wait) {
			t.Errorf("request %d: %+v, want %+v", i, d, want)
		}
	}
}

// near reports whether got is want, or less by the time that a test may take.
func near(got, want time.Duration) bool {
	return got <= want && got >= max(0, want-100*time.Second)
}

func fractions(t *testing.T, open func(*testing.T, ratelimit.Rules) Limiter) {
	const most = 1000
	l := open(t, ratelimit.Rules{ratelimit.Create: {PerSecond: slow * 0.7, Burst: most}})
	for i := range most {
		if d := l.Take("a", ratelimit.Create, time.Now()); !d.OK || d.Remaining != most-1-i {
			t.Fatalf("request %d of %d: %+v", i, most, d)
		}
	}
	if d := l.Take("a", ratelimit.Create, time.Now()); d.OK {
		t.Errorf("beyond the burst: %+v", d)
	}
}

func unlimited(t *testing.T, open func(*testing.T, ratelimit.Rules) Limiter) {
	l := open(t, ratelimit.Rules{ratelimit.Create: {PerSecond: slow, Burst: 1}})
	for range 3 {
		if d := l.Take("a", ratelimit.Read, time.Now()); d != (ratelimit.Decision{OK: true}) {
			t.Errorf("a class without a rule: %+v", d)
		}
	}
	if d := open(t, nil).Take("a", ratelimit.Create, time.Now()); d != (ratelimit.Decision{OK: true}) {
		t.Errorf("no rules: %+v", d)
	}
}

func apart(t *testing.T, open func(*testing.T, ratelimit.Rules) Limiter) {
	rule := ratelimit.Rule{PerSecond: slow, Burst: 1}
	l := open(t, ratelimit.Rules{ratelimit.Create: rule, ratelimit.Read: rule})
	for _, caller := range []string{"a", "b", "", "key:1", "user:t/1", "address:192.0.2.1"} {
		for _, class := range []ratelimit.Class{ratelimit.Create, ratelimit.Read} {
			if d := l.Take(caller, class, time.Now()); !d.OK {
				t.Errorf("the first of %q and %s: %+v", caller, class, d)
			}
			if d := l.Take(caller, class, time.Now()); d.OK {
				t.Errorf("the second of %q and %s: %+v", caller, class, d)
			}
		}
	}
}

func wait(t *testing.T, open func(*testing.T, ratelimit.Rules) Limiter) {
	l := open(t, ratelimit.Rules{ratelimit.Create: {PerSecond: 5, Burst: 1}})
	l.Take("a", ratelimit.Create, time.Now())
	for refusals := 0; refusals < 3; {
		d := l.Take("a", ratelimit.Create, time.Now())
		if d.OK {
			continue // this machine is slow
		}
		refusals++
		if d.Wait <= 0 || d.Wait > 200*time.Millisecond || d.Reset != d.Wait {
			t.Errorf("refused: %+v", d)
		}
		<-time.After(d.Wait + time.Millisecond)
		if d := l.Take("a", ratelimit.Create, time.Now()); !d.OK {
			t.Errorf("after the wait: %+v", d)
		}
	}
}

func refused(t *testing.T, open func(*testing.T, ratelimit.Rules) Limiter) {
	l := open(t, ratelimit.Rules{ratelimit.Create: {PerSecond: slow, Burst: 1}})
	l.Take("a", ratelimit.Create, time.Now())
	last := 1000 * time.Second
	for range 100 {
		d := l.Take("a", ratelimit.Create, time.Now())
		if d.OK || d.Wait > last {
			t.Fatalf("a later request waits for %v, one before it for %v: %+v", d.Wait, last, d)
		}
		last = d.Wait
	}
}

func refill(t *testing.T, open func(*testing.T, ratelimit.Rules) Limiter) {
	l := open(t, ratelimit.Rules{ratelimit.Create: {PerSecond: 50, Burst: 3}})
	var d ratelimit.Decision
	for range 3 {
		d = l.Take("a", ratelimit.Create, time.Now())
	}
	<-time.After(d.Reset + 100*time.Millisecond) // and long enough for five more
	if d := l.Take("a", ratelimit.Create, time.Now()); !d.OK || d.Remaining != 2 {
		t.Errorf("after %v: %+v", d.Reset, d)
	}
}

func concurrent(t *testing.T, open func(*testing.T, ratelimit.Rules) Limiter) {
	const most = 100
	l := open(t, ratelimit.Rules{ratelimit.Create: {PerSecond: slow, Burst: most}})
	var admitted [2]atomic.Int64
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			for range 20 {
				if l.Take(fmt.Sprint(i%2), ratelimit.Create, time.Now()).OK {
					admitted[i%2].Add(1)
				}
			}
		})
	}
	all.Wait()
	if a, b := admitted[0].Load(), admitted[1].Load(); a != most || b != most {
		t.Errorf("of 200 requests of two callers each, %d and %d were admitted, want %d", a, b, most)
	}
}
