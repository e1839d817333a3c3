package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlitetest"
)

var secret = []byte("0123456789abcdef0123456789abcdef")

// got is a delivery as a receiver sees it.
type got struct {
	body
	header http.Header
	text   []byte
}

// receiving is a receiver that passes on what comes and answers as told.
func receiving(t *testing.T, answer func(try int64, w http.ResponseWriter, r *http.Request)) (url string, all chan got) {
	t.Helper()
	all = make(chan got, 2000)
	var tries atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		g := got{header: r.Header, text: text}
		if err != nil || json.Unmarshal(text, &g.body) != nil {
			t.Errorf("%q comes: %v", text, err)
		}
		all <- g
		answer(tries.Add(1), w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, all
}

func ok(int64, http.ResponseWriter, *http.Request) {}

// sender is a Sender that works fast.
func sender(st sandbox.WebhookStore, log io.Writer, urls ...string) *Sender {
	return New(Config{
		Store: st, URLs: urls, Kinds: sandbox.EventKinds(), Secret: secret, Log: slog.New(slog.NewTextHandler(log, nil)), Registry: prometheus.NewRegistry(),
		Gather: 20 * time.Millisecond, Pause: 2 * time.Millisecond, Poll: 5 * time.Millisecond,
	})
}

// run has a Sender work until the test ends, or stop is called.
func run(t *testing.T, s *Sender) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	if err := s.Open(ctx, s.cfg.Store); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() { _ = s.Run(ctx) }) // both end with their context
	all.Go(func() { _ = s.Deliver(ctx, s.cfg.Store) })
	stop = func() { cancel(); all.Wait() }
	t.Cleanup(stop)
	return stop
}

// sending runs a Sender over a Store of its own.
func sending(t *testing.T, log io.Writer, urls ...string) (s *Sender, stop func()) {
	t.Helper()
	s = sender(sqlitetest.Open(t), log, urls...)
	return s, run(t, s)
}

// until waits for what must come true.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not yet: %s", what)
		}
	}
}

// outcome waits until so many events came out so.
func outcome(t *testing.T, s *Sender, what string, want float64) {
	t.Helper()
	until(t, fmt.Sprintf("%v are %s", want, what), func() bool { return count(t, s, what) == want })
}

// count is how many events came out so.
func count(t *testing.T, s *Sender, what string) float64 {
	t.Helper()
	families, err := s.cfg.Registry.(*prometheus.Registry).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if len(m.GetLabel()) == 1 && m.GetLabel()[0].GetValue() == what {
				return m.GetCounter().GetValue()
			}
		}
	}
	return -1
}

// waiting is how many events wait in a Store.
func waiting(t *testing.T, st sandbox.WebhookStore) (n int) {
	t.Helper()
	all, err := st.Webhooks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range all {
		n += w.Waiting
	}
	return n
}

func TestEventsAreSigned(t *testing.T) {
	url, all := receiving(t, ok)
	s, _ := sending(t, io.Discard, url)
	s.Queue(sandbox.Event{Kind: sandbox.EventAuthFailed, Tenant: "acme", User: "ann", Key: "k1", Remote: "192.0.2.7", Operation: "execute", Reason: "scope"})
	g := <-all
	if g.Type != "auth.failed" || g.Tenant != "acme" || g.User != "ann" || g.Key != "k1" || g.Remote != "192.0.2.7" || g.Operation != "execute" ||
		g.Reason != "scope" || g.Count != 1 || g.ID == "" || g.FirstAt == "" || g.Missing != 0 {
		t.Errorf("%s", g.text)
	}
	if g.header.Get(headerEvent) != "auth.failed" || g.header.Get(headerDelivery) != g.ID || g.header.Get("Content-Type") != "application/json" {
		t.Errorf("%v", g.header)
	}
	stamp, _, _ := strings.Cut(strings.TrimPrefix(g.header.Get(headerSignature), "t="), ",")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if at := time.Unix(seconds, 0); err != nil || time.Since(at) > time.Minute || g.header.Get(headerSignature) != Signature(secret, at, g.text) {
		t.Errorf("the signature is %q, %v", g.header.Get(headerSignature), err)
	}
	if got, want := Signature(secret, time.Unix(1, 0), []byte("x")), "t=1,v1=8067a00a664b4f016775f95f3be661716a8710ddf6292575e6b815bf088e2275"; got != want {
		t.Errorf("the signature is %s, want %s", got, want)
	}
}

// Equal events become one, however many.
func TestEqualEventsAreCounted(t *testing.T) {
	url, all := receiving(t, ok)
	s, _ := sending(t, io.Discard, url)
	const n = 10_000
	for i := range n {
		s.Queue(sandbox.Event{Kind: sandbox.EventEgressDenied, Sandbox: "i" + strconv.Itoa(i%2), Count: 2})
	}
	counts := map[string]int64{}
	for counts["i0"]+counts["i1"] < 2*n {
		g := <-all
		counts[g.Sandbox] += g.Count
	}
	if counts["i0"] != n || counts["i1"] != n {
		t.Errorf("%v", counts)
	}
}

// A receiver that fails gets the same event again, one that refuses does not, and
// is told how many it missed.
func TestBadReceivers(t *testing.T) {
	for name, tt := range map[string]struct {
		bad     func(http.ResponseWriter, *http.Request)
		final   bool // it is not tried again
		visible string
	}{
		"fails":      {bad: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }},
		"wants less": {bad: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) }},
		"breaks off": {bad: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		"talks without end": {bad: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			for {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}},
		"has a head without end": {bad: func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) }},
		"refuses":                {bad: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(410) }, final: true},
		"sends it elsewhere": {bad: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusTemporaryRedirect)
		}, final: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, all := receiving(t, func(try int64, w http.ResponseWriter, r *http.Request) {
				if try < 3 && !tt.final || try == 1 {
					tt.bad(w, r)
				}
			})
			s, _ := sending(t, io.Discard, url)
			s.Queue(sandbox.Event{Kind: sandbox.EventQuotaHit, Tenant: "first"})
			first := <-all
			if tt.final {
				outcome(t, s, failed, 1)
				s.Queue(sandbox.Event{Kind: sandbox.EventQuotaHit, Tenant: "second"})
				if g := <-all; g.Tenant != "second" || g.Missing != 1 {
					t.Errorf("next comes %s", g.text)
				}
				return
			}
			for range 2 {
				if g := <-all; g.ID != first.ID || g.Tenant != "first" || g.Missing != 0 {
					t.Errorf("next comes %s", g.text)
				}
			}
			outcome(t, s, delivered, 1)
		})
	}
}

// A receiver that never works holds up no other, and what it does not take waits,
// however many are told in between.
func TestDeadReceiver(t *testing.T) {
	url, all := receiving(t, ok)
	const dead = "http://127.0.0.1:1" // no other program can get this port meanwhile
	var log bytes.Buffer
	st := sqlitetest.Open(t)
	s := sender(st, &log, dead+"/secret-path", url)
	stop := run(t, s)
	s.Queue(sandbox.Event{Kind: sandbox.EventLimitKill, Sandbox: "i1", Reason: "oom"})
	if g := <-all; g.Sandbox != "i1" || g.Reason != "oom" {
		t.Errorf("%s", g.text)
	}
	outcome(t, s, delivered, 1)
	until(t, "the other one is tried again", func() bool {
		due, err := st.DueDeliveries(t.Context(), idOf(dead+"/secret-path"), time.Now().Add(24*time.Hour), 10)
		return err == nil && len(due) == 1 && due[0].Tries > 2
	})
	stop()
	for i := range 2 * maxUnwritten { // nothing is written any more
		s.Queue(sandbox.Event{Kind: sandbox.EventAuthFailed, Remote: fmt.Sprint(i)})
	}
	s.Queue(sandbox.Event{Kind: sandbox.EventLimitKill, Sandbox: "i2"})
	if n := len(s.take()); n != maxUnwritten+1 || count(t, s, dropped) != maxUnwritten {
		t.Errorf("%d wait to be written, %v were dropped", n, count(t, s, dropped))
	}
	if text := log.String(); strings.Contains(text, "secret-path") {
		t.Errorf("the log says %q", text)
	}
}

// An event that a receiver fails on for a day is lost, and counted.
func TestOldEvents(t *testing.T) {
	url, all := receiving(t, func(_ int64, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	var log bytes.Buffer
	st := sqlitetest.Open(t)
	s := sender(st, &log, url)
	if err := st.SetWebhooks(t.Context(), []sandbox.Webhook{{ID: idOf(url)}}, time.Now().Add(-48*time.Hour)); err != nil {
		t.Fatal(err)
	}
	stop := run(t, s)
	if err := st.QueueEvents(t.Context(), []sandbox.Event{{Kind: sandbox.EventSandboxEnded, At: time.Now().Add(-maxAge), Sandbox: "i1"}}, 0); err != nil {
		t.Fatal(err)
	}
	<-all // it is tried all the same
	outcome(t, s, failed, 1)
	stop()
	if text := log.String(); !strings.Contains(text, "sandbox.ended") || waiting(t, st) != 0 {
		t.Errorf("the log says %q", text)
	}
}

// The next process sends the events that waited when a process ended or was killed. It
// sends events of unknown outcome again with the same ID.
func TestNextProcess(t *testing.T) {
	came, hold := make(chan struct{}), make(chan struct{})
	url, all := receiving(t, func(try int64, _ http.ResponseWriter, r *http.Request) {
		if try == 1 {
			close(came)
			select {
			case <-hold:
			case <-r.Context().Done():
			}
		}
	})
	defer close(hold)
	st := sqlitetest.Open(t)
	first := sender(st, io.Discard, url)
	stop := run(t, first)
	first.Queue(sandbox.Event{Kind: sandbox.EventLimitKill, Sandbox: "i1"})
	<-came
	first.Queue(sandbox.Event{Kind: sandbox.EventLimitKill, Sandbox: "i2"})
	stop()
	one := <-all

	second := sender(st, io.Discard, url)
	run(t, second)
	got := map[string]string{}
	for len(got) < 2 {
		g := <-all
		got[g.Sandbox] = g.ID
	}
	if one.Sandbox != "i1" || got["i1"] != one.ID || got["i2"] == "" || got["i2"] == one.ID {
		t.Errorf("%v after %s", got, one.text)
	}
	outcome(t, second, delivered, 2)
	if n := waiting(t, st); n != 0 {
		t.Errorf("%d wait", n)
	}
}

// A receiver that is back gets all at once, though each of what waits has longer to
// wait.
func TestReceiverComesBack(t *testing.T) {
	var away atomic.Bool
	away.Store(true)
	url, all := receiving(t, func(_ int64, w http.ResponseWriter, _ *http.Request) {
		if away.Load() {
			w.WriteHeader(503)
		}
	})
	st := sqlitetest.Open(t)
	s := sender(st, io.Discard, url)
	run(t, s)
	const n = 5
	for i := range n {
		s.Queue(sandbox.Event{Kind: sandbox.EventSandboxEnded, Sandbox: fmt.Sprint(i)})
	}
	for range 3 * n {
		<-all
	}
	due, err := st.DueDeliveries(t.Context(), idOf(url), time.Now().Add(24*time.Hour), n)
	if err != nil || len(due) != n {
		t.Fatalf("%d wait, %v", len(due), err)
	}
	for _, d := range due[1:] { // as after hours
		if err := st.RetryDelivery(t.Context(), d, time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	away.Store(false)
	outcome(t, s, delivered, n)
}

// A Store that does not take events for a while loses none.
func TestStoreThatFails(t *testing.T) {
	url, all := receiving(t, ok)
	st := &failing{WebhookStore: sqlitetest.Open(t)}
	st.fails.Store(3)
	s := sender(st, io.Discard, url)
	run(t, s)
	for range 10 {
		s.Queue(sandbox.Event{Kind: sandbox.EventQuotaHit, Tenant: "t"})
	}
	sum := int64(0)
	for sum < 10 {
		sum += (<-all).Count
	}
	if sum != 10 || st.fails.Load() > 0 {
		t.Errorf("%d came, %d failures are left", sum, st.fails.Load())
	}
}

// failing does not take the first events.
type failing struct {
	sandbox.WebhookStore
	fails atomic.Int64
}

func (f *failing) QueueEvents(ctx context.Context, events []sandbox.Event, gather time.Duration) error {
	if f.fails.Add(-1) >= 0 {
		return sandbox.Errorf(sandbox.Exhausted, "the server's disk is full")
	}
	return f.WebhookStore.QueueEvents(ctx, events, gather)
}

// Ends of builds are told once, however often they are seen, also by the next process.
func TestFollow(t *testing.T) {
	url, all := receiving(t, ok)
	st := sqlitetest.Open(t)
	begin := time.Now().UTC()
	var asked atomic.Int64
	follow := func(ended float64, events ...sandbox.Event) {
		s := sender(st, io.Discard, url)
		stop := run(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		asked.Store(0)
		go func() {
			done <- s.Follow(ctx, func(_ context.Context, since time.Time) (out []sandbox.Event, err error) {
				if asked.Add(1) == 1 {
					return nil, errors.New("the builder is away")
				}
				for _, e := range events {
					if !e.At.Before(since) {
						out = append(out, e)
					}
				}
				return out, nil
			})
		}()
		until(t, "it was asked often", func() bool { return asked.Load() > 5 })
		cancel()
		<-done
		outcome(t, s, delivered, ended) // a delivery that is cut off is made again
		stop()
	}
	built := func(id string, at time.Time) sandbox.Event {
		e, _ := (&sandbox.TemplateBuild{ID: id, State: sandbox.BuildReady, EndedAt: at}).Event()
		return e
	}
	late := begin.Add(time.Hour)
	follow(2, built("t0", begin.Add(-time.Hour)), built("t1", late), built("t2", late.Add(-time.Second)))
	follow(1, built("t1", late), built("t3", late.Add(time.Second)))
	ids := map[string]int{}
	for len(ids) < 3 {
		g := <-all
		ids[g.Build]++
	}
	if ids["t1"] != 1 || ids["t2"] != 1 || ids["t3"] != 1 {
		t.Errorf("%v", ids)
	}
}
