package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-sandbox/cloud-sandbox"
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

// sending runs a Sender until the test ends, or stop is called.
func sending(t *testing.T, log io.Writer, urls ...string) (s *Sender, stop func()) {
	t.Helper()
	s = New(Config{
		URLs: urls, Secret: secret, Log: slog.New(slog.NewTextHandler(log, nil)), Registry: prometheus.NewRegistry(),
		Gather: 20 * time.Millisecond, Pause: 2 * time.Millisecond,
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx) // ends with its context
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return s, stop
}

// outcome waits until so many events came out so.
func outcome(t *testing.T, s *Sender, what string, want float64) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for count(t, s, what) != want {
		if time.Now().After(deadline) {
			t.Fatalf("%v are %s, want %v", count(t, s, what), what, want)
		}
		time.Sleep(time.Millisecond)
	}
}

// count is how many events came out so.
func count(t *testing.T, s *Sender, what string) float64 {
	t.Helper()
	families, err := s.cfg.Registry.(*prometheus.Registry).Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("%d families of metrics, %v", len(families), err)
	}
	for _, m := range families[0].GetMetric() {
		if m.GetLabel()[0].GetValue() == what {
			return m.GetCounter().GetValue()
		}
	}
	return -1
}

func TestEventsAreSigned(t *testing.T) {
	url, all := receiving(t, ok)
	s, _ := sending(t, io.Discard, url)
	s.Tell(sandbox.SecurityEvent{Kind: sandbox.EventAuthFailed, Tenant: "acme", User: "ann", Key: "k1", Remote: "192.0.2.7", Operation: "execute", Reason: "scope"})
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
		s.Tell(sandbox.SecurityEvent{Kind: sandbox.EventEgressDenied, Sandbox: "i" + strconv.Itoa(i%2), Count: 2})
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
			s.Tell(sandbox.SecurityEvent{Kind: sandbox.EventQuotaHit, Tenant: "first"})
			first := <-all
			if tt.final {
				outcome(t, s, failed, 1)
				s.Tell(sandbox.SecurityEvent{Kind: sandbox.EventQuotaHit, Tenant: "second"})
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

// A receiver that never works is given up, holds up no other, and costs no more
// memory than its queue.
func TestDeadReceiver(t *testing.T) {
	url, all := receiving(t, ok)
	const dead = "http://127.0.0.1:1" // not one that somebody else may get meanwhile
	var log bytes.Buffer
	s, stop := sending(t, &log, dead+"/secret-path", url)
	s.Tell(sandbox.SecurityEvent{Kind: sandbox.EventLimitKill, Sandbox: "i1", Reason: "oom"})
	if g := <-all; g.Sandbox != "i1" || g.Reason != "oom" {
		t.Errorf("%s", g.text)
	}
	outcome(t, s, failed, 1)
	stop() // so that nothing is sent while it fills
	for i := range 2 * maxWaiting {
		s.Tell(sandbox.SecurityEvent{Kind: sandbox.EventAuthFailed, Remote: fmt.Sprint(i)})
	}
	s.Tell(sandbox.SecurityEvent{Kind: sandbox.EventLimitKill, Sandbox: "i2"})
	for _, r := range s.receivers {
		if len(r.queue) != maxWaiting+1 || r.queue[maxWaiting].what.Sandbox != "i2" {
			t.Errorf("%d wait", len(r.queue))
		}
	}
	outcome(t, s, dropped, 2*maxWaiting)
	if text := log.String(); !strings.Contains(text, "limit.kill") || strings.Contains(text, "secret-path") {
		t.Errorf("the log says %q", text)
	}
}

// What waits when the process ends is sent once more, also what was being tried.
func TestLastEvents(t *testing.T) {
	url, all := receiving(t, ok)
	s := New(Config{URLs: []string{url}, Secret: secret, Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Gather: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	s.Tell(sandbox.SecurityEvent{Kind: sandbox.EventLimitKill, Sandbox: "i1"})
	cancel()
	<-done
	if g := <-all; g.Sandbox != "i1" {
		t.Errorf("%s", g.text)
	}
}
