package redis_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit/ratelimittest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit/redis"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit/redistest"
)

const (
	// patient is a wait that no answer exceeds, also on a slow and busy machine.
	patient = 30 * time.Second
	// patience is the longest wait of a test for an expected event.
	patience = time.Minute
	// slow is a rate at which nothing comes back while a test runs.
	slow = 0.001
)

// limiter is a Limiter that runs.
type limiter struct {
	*redis.Limiter
	registry *prometheus.Registry
	log      *safeBuffer
}

// open runs a Limiter until the test ends.
func open(t testing.TB, address ratelimit.Address, wait time.Duration, rules ratelimit.Rules) *limiter {
	t.Helper()
	l := &limiter{registry: prometheus.NewRegistry(), log: &safeBuffer{}}
	l.Limiter = redis.Open(t.Context(), redis.Config{Address: address, Rules: rules, Wait: wait, Log: slog.New(slog.NewJSONHandler(l.log, nil)), Registry: l.registry})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- l.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
		if strings.Contains(l.log.String(), address.Password) && address.Password != "" {
			t.Errorf("the log shows the password: %s", l.log)
		}
	})
	return l
}

// metric returns a value of the registry: of a counter by its label, or of a gauge.
func (l *limiter) metric(t testing.TB, name string) float64 {
	t.Helper()
	families, err := l.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch {
			case f.GetName() == name:
				return m.GetGauge().GetValue()
			case len(m.GetLabel()) == 1 && m.GetLabel()[0].GetValue() == name:
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// logged counts the lines of each level.
func (l *limiter) logged(t testing.TB) (warnings, infos int) {
	t.Helper()
	for line := range strings.Lines(l.log.String()) {
		var entry struct{ Level string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatal(err)
		}
		switch entry.Level {
		case "WARN":
			warnings++
		case "INFO":
			infos++
		}
	}
	return warnings, infos
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// within polls until ok returns true.
func within(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func TestLimiter(t *testing.T) {
	server := redistest.Start(t)
	databases := 0
	ratelimittest.Run(t, func(t *testing.T, rules ratelimit.Rules) ratelimittest.Limiter {
		address := server.Address
		address.DB = databases // an empty one for each
		databases++
		l := open(t, address, patient, rules)
		t.Cleanup(func() {
			if n := l.metric(t, "local"); n != 0 {
				t.Errorf("%g requests were not decided by Redis", n)
			}
		})
		return l
	})
}

// Two gateways admit a burst together, and then as many requests as come back.
func TestExactOverTwoGateways(t *testing.T) {
	server := redistest.Start(t)
	rule := ratelimit.Rule{PerSecond: 150, Burst: 40}
	rules := ratelimit.Rules{ratelimit.Execute: rule}
	gateways := []*limiter{open(t, server.Address, patient, rules), open(t, server.Address, patient, rules)}
	var admitted atomic.Int64
	take := func(i int) bool {
		ok := gateways[i%2].Take("user:acme/ann", ratelimit.Execute, time.Now()).OK
		if ok {
			admitted.Add(1)
		}
		return ok
	}
	before := server.Now(t)
	take(0)
	began := server.Now(t)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for end := time.Now().Add(time.Second); time.Now().Before(end); {
				take(i)
			}
		})
	}
	all.Wait()
	last := server.Now(t)
	for take(1) { // until nothing is left
	}
	after := server.Now(t)

	n := float64(admitted.Load())
	least := float64(rule.Burst) + rule.PerSecond*last.Sub(began).Seconds() - 1
	most := float64(rule.Burst) + rule.PerSecond*after.Sub(before).Seconds() + 0.001
	if n < least || n > most {
		t.Errorf("%g requests were admitted, want %g to %g", n, least, most)
	}
	for i, l := range gateways {
		if l.metric(t, "local") != 0 || l.metric(t, "redis") == 0 {
			t.Errorf("gateway %d decided %g requests by itself, Redis %g", i, l.metric(t, "local"), l.metric(t, "redis"))
		}
	}
}

func TestKeysShowNoCaller(t *testing.T) {
	server := redistest.Start(t)
	l := open(t, server.Address, patient, ratelimit.Rules{ratelimit.Read: {PerSecond: 1, Burst: 100}})
	callers := []string{"key:k-1234", "user:acme/ann", "address:192.0.2.7"}
	for _, caller := range callers {
		l.Take(caller, ratelimit.Read, time.Now())
	}
	found := 0
	for _, key := range server.Keys(t) {
		if !strings.HasPrefix(key, "cloud-sandbox:rate:") {
			t.Errorf("a key without the prefix: %q", key)
		}
		for _, part := range []string{"k-1234", "acme", "ann", "192.0.2.7"} {
			if strings.Contains(key, part) {
				t.Errorf("the key %q shows %q", key, part)
			}
		}
		if strings.HasPrefix(key, "cloud-sandbox:rate:read:") {
			found++
			if life := server.Client.PTTL(t.Context(), key).Val(); life <= 0 || life > 1100*time.Millisecond {
				t.Errorf("a bucket that is full again in a second is kept for %v", life)
			}
		}
	}
	if found > len(callers) {
		t.Errorf("%d buckets of %d callers", found, len(callers))
	}
	within(t, "the buckets expire", func() bool { return len(server.Keys(t)) == 0 })
}

// The hash of a caller depends on the password, which a copy of Redis's data lacks.
func TestKeysDependOnThePassword(t *testing.T) {
	server := redistest.Start(t)
	if err := server.Client.ConfigSet(t.Context(), "requirepass", "another").Err(); err != nil {
		t.Fatal(err)
	}
	rules := ratelimit.Rules{ratelimit.Read: {PerSecond: slow, Burst: 1}}
	other := server.Address
	other.Password = "another"
	if d := open(t, other, patient, rules).Take("a", ratelimit.Read, time.Now()); !d.OK {
		t.Errorf("the first: %+v", d)
	}
	if err := server.Client.ConfigSet(t.Context(), "requirepass", redistest.Password).Err(); err != nil {
		t.Fatal(err)
	}
	l := open(t, server.Address, patient, rules)
	if d := l.Take("a", ratelimit.Read, time.Now()); !d.OK || l.metric(t, "redis") != 1 {
		t.Errorf("by another password it is the same bucket: %+v", d)
	}
}

// flood takes requests from several goroutines until stop is called, which returns how
// many were admitted, how many waited as long as they may, and the longest wait.
func flood(l *limiter, caller string, wait time.Duration) (stop func() (admitted, waited int64, longest time.Duration)) {
	const clients = 4
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	var admitted, waited, longest atomic.Int64
	for range clients {
		all.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				if l.Take(caller, ratelimit.Read, began).OK {
					admitted.Add(1)
				}
				took := time.Since(began)
				if took >= wait {
					waited.Add(1)
				}
				for {
					old := longest.Load()
					if int64(took) <= old || longest.CompareAndSwap(old, int64(took)) {
						break
					}
				}
			}
		})
	}
	return func() (int64, int64, time.Duration) {
		cancel()
		all.Wait()
		return admitted.Load(), waited.Load(), time.Duration(longest.Load())
	}
}

// outage checks that requests are decided while Redis is away, that only the first ones
// wait for it, and that the gateways count together again afterwards. Each change is in
// the log once.
func outage(t *testing.T, server *redistest.Server, leave, comeBack func()) {
	const (
		wait  = 2 * time.Second
		burst = 50
		// A request waits once. One more than usual may begin before the breaker opens.
		mayWait = 8
	)
	l := open(t, server.Address, wait, ratelimit.Rules{ratelimit.Read: {PerSecond: slow, Burst: burst}})
	for i := range burst / 2 {
		if d := l.Take("a", ratelimit.Read, time.Now()); !d.OK || d.Remaining != burst-1-i {
			t.Fatalf("request %d: %+v", i, d)
		}
	}
	stop := flood(l, "b", wait)
	within(t, "Redis decides", func() bool { return l.metric(t, "redis") > 2*burst })
	leave()
	within(t, "Redis is known to be away", func() bool { warnings, _ := l.logged(t); return warnings == 1 })
	byLocal := l.metric(t, "local")
	within(t, "many requests are decided without Redis", func() bool { return l.metric(t, "local") > byLocal+10_000 })
	admitted, waited, longest := stop()
	if admitted != burst {
		t.Errorf("%d requests were admitted, want %d: what this gateway admitted before counts", admitted, burst)
	}
	if waited > mayWait || longest > wait+2*time.Second {
		t.Errorf("%d requests waited for %v and longer, the longest %v", waited, wait, longest)
	}
	if l.metric(t, "cloud_sandbox_redis_reachable") != 0 {
		t.Error("Redis is away, and counts as reachable")
	}
	comeBack()
	within(t, "Redis decides again", func() bool {
		before := l.metric(t, "redis")
		l.Take("c", ratelimit.Read, time.Now())
		return l.metric(t, "redis") > before
	})
	within(t, "Redis is reachable", func() bool { return l.metric(t, "cloud_sandbox_redis_reachable") == 1 })
	if warnings, infos := l.logged(t); warnings != 1 || infos != 2 {
		t.Errorf("%d warnings and %d other lines, want one when Redis went away, and one each when it came:\n%s", warnings, infos, l.log)
	}
}

func TestRedisIsKilled(t *testing.T) {
	server := redistest.Start(t)
	outage(t, server, func() { server.Kill(t) }, func() { server.Run(t) })
}

func TestRedisFreezes(t *testing.T) {
	server := redistest.Start(t)
	outage(t, server, func() { server.Freeze(t, true) }, func() { server.Freeze(t, false) })
}

// A server that cannot be used is as one that is away: limits apply, and the log says why.
func TestRedisRefuses(t *testing.T) {
	server := redistest.Start(t)
	rules := ratelimit.Rules{ratelimit.Read: {PerSecond: slow, Burst: 1}}
	wrong := server.Address
	wrong.Password = "not-the-password"
	for name, tt := range map[string]struct {
		address ratelimit.Address
		before  func(*testing.T)
		says    string
	}{
		"the password":     {wrong, func(*testing.T) {}, "WRONGPASS"},
		"an absent server": {ratelimit.Address{HostPort: "127.0.0.1:1"}, func(*testing.T) {}, "refused"},
		"TLS":              {ratelimit.Address{HostPort: server.Address.HostPort, TLS: true}, func(*testing.T) {}, "reach Redis"},
		"writes": {server.Address, func(t *testing.T) {
			if err := server.Client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
				t.Fatal(err)
			}
		}, "OOM"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.before(t)
			l := open(t, tt.address, patient, rules)
			if d := l.Take("a", ratelimit.Read, time.Now()); !d.OK {
				t.Errorf("the first: %+v", d)
			}
			if d := l.Take("a", ratelimit.Read, time.Now()); d.OK || d.Wait == 0 {
				t.Errorf("the second: %+v", d)
			}
			if l.metric(t, "local") != 2 || !strings.Contains(l.log.String(), tt.says) {
				t.Errorf("%g were decided here, and the log is %s, want %s", l.metric(t, "local"), l.log, tt.says)
			}
		})
	}
}

// A Redis that forgets the script, or was cut off for a moment, is asked again at once, and
// nothing is logged.
func TestRedisForgetsTheScript(t *testing.T) {
	server := redistest.Start(t)
	l := open(t, server.Address, patient, ratelimit.Rules{ratelimit.Read: {PerSecond: slow, Burst: 1e6}})
	for name, harm := range map[string]func() error{
		"the script is gone":     func() error { return server.Client.ScriptFlush(t.Context()).Err() },
		"the connection is gone": func() error { return server.Client.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal").Err() },
	} {
		if err := harm(); err != nil {
			t.Fatal(err)
		}
		within(t, name+", and Redis decides", func() bool {
			before := l.metric(t, "redis")
			l.Take("a", ratelimit.Read, time.Now())
			return l.metric(t, "redis") > before
		})
	}
	if warnings, infos := l.logged(t); warnings != 0 || infos != 1 {
		t.Errorf("the log is %s", l.log)
	}
}

// What a bucket holds decides, however it came to be.
func TestBuckets(t *testing.T) {
	server := redistest.Start(t)
	rule := ratelimit.Rule{PerSecond: 20, Burst: 2}
	l := open(t, server.Address, patient, ratelimit.Rules{ratelimit.Write: rule})
	take := func() ratelimit.Decision { return l.Take("a", ratelimit.Write, time.Now()) }
	take()
	var key string
	for _, k := range server.Keys(t) {
		if strings.HasPrefix(k, "cloud-sandbox:rate:write:") {
			key = k
		}
	}
	if key == "" {
		t.Skip("this machine is so slow that the bucket has expired")
	}
	future := server.Now(t).Add(time.Hour).UnixMicro()
	for name, tt := range map[string]struct {
		held string
		ok   bool
	}{
		"of a rule with a larger burst":        {fmt.Sprintf("200 %d", future), false},
		"of a clock that was set back":         {fmt.Sprintf("2 %d", future), false},
		"with room of a clock that went ahead": {fmt.Sprintf("0.5 %d", future), true},
		"not a bucket":                         {"junk", true},
		"half a bucket":                        {"1", true},
	} {
		if err := server.Client.Set(t.Context(), key, tt.held, time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
		d := take()
		if d.OK != tt.ok || d.Remaining < 0 || d.Remaining > rule.Burst {
			t.Errorf("a bucket %s: %+v", name, d)
		}
		if life := server.Client.PTTL(t.Context(), key).Val(); life > 11*time.Second {
			t.Errorf("a bucket %s is kept for %v", name, life)
		}
		if name == "of a clock that was set back" { // and is not refused for an hour
			<-time.After(d.Wait + 10*time.Millisecond)
			if d := take(); !d.OK {
				t.Errorf("a bucket %s, after its wait: %+v", name, d)
			}
		}
	}
}

// A gateway that stops decides what it is still asked, without Redis.
func TestAfterTheEnd(t *testing.T) {
	server := redistest.Start(t)
	l := redis.Open(t.Context(), redis.Config{
		Address: server.Address, Rules: ratelimit.Rules{ratelimit.Read: {PerSecond: slow, Burst: 1}}, Wait: patient,
		Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(),
	})
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := l.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	began := time.Now()
	if d := l.Take("a", ratelimit.Read, began); !d.OK || time.Since(began) >= patient {
		t.Errorf("%+v after %v", d, time.Since(began))
	}
}

func BenchmarkTake(b *testing.B) {
	rules := ratelimit.Rules{ratelimit.Read: {PerSecond: 1e6, Burst: 1e6}}
	for name, start := range map[string]func(*testing.B) ratelimittest.Limiter{
		"local": func(*testing.B) ratelimittest.Limiter { return ratelimit.New(rules) },
		"redis": func(b *testing.B) ratelimittest.Limiter {
			return open(b, redistest.Start(b).Address, patient, rules)
		},
	} {
		b.Run(name, func(b *testing.B) {
			l := start(b)
			b.Run("one", func(b *testing.B) {
				for b.Loop() {
					l.Take("user:acme/ann", ratelimit.Read, time.Now())
				}
			})
			b.Run("64 at once", func(b *testing.B) {
				b.SetParallelism(32) // on two processors
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						l.Take("user:acme/ann", ratelimit.Read, time.Now())
					}
				})
			})
		})
	}
}
