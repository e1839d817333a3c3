// Package webhook tells the operator's receivers of security events: each as a
// signed POST, tried again while a receiver fails. What cannot be told is counted
// and lost: the audit log and the network logs are what is kept.
package webhook

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// maxWaiting bounds the different events of one kind that wait for a receiver.
	maxWaiting = 250
	// maxTries bounds how often one is sent to a receiver that fails.
	maxTries = 10
	// longestPause is the longest one between two tries.
	longestPause = time.Minute
	// sendTime bounds one try.
	sendTime = 10 * time.Second
	// lastTime is what all that waits gets when the process ends.
	lastTime = 3 * time.Second
)

// Config is what a Sender is made of. URLs and Secret are required; without a URL
// events go nowhere.
type Config struct {
	URLs   []string
	Secret []byte // signs what is sent
	Log    *slog.Logger
	// Registry is where its metrics go.
	Registry prometheus.Registerer
	// Gather is how long equal events are counted before they are told as one;
	// zero: a second.
	Gather time.Duration
	// Pause is the first one before another try, which doubles; zero: a second.
	Pause time.Duration
}

// Sender tells receivers of events. Its methods are safe for concurrent use.
type Sender struct {
	cfg       Config
	receivers []*receiver
	told      *prometheus.CounterVec
}

// New returns a Sender, which sends while Run runs.
func New(c Config) *Sender {
	c.Gather = cmp.Or(c.Gather, time.Second)
	c.Pause = cmp.Or(c.Pause, time.Second)
	s := &Sender{cfg: c, told: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "cloud_sandbox_webhook_events_total",
		Help: "Security events for each webhook, equal ones together, by what came of them: delivered, failed after all tries, or dropped because too many waited.",
	}, []string{"outcome"})}
	for _, outcome := range []string{delivered, failed, dropped} {
		s.told.WithLabelValues(outcome) // so that the first one shows as a change
	}
	c.Registry.MustRegister(s.told)
	client := newClient()
	for _, url := range c.URLs {
		s.receivers = append(s.receivers, &receiver{
			url: url, secret: c.Secret, client: client, waiting: map[sandbox.EventKind]int{},
			equal: map[sandbox.SecurityEvent]*event{}, more: make(chan struct{}, 1),
		})
	}
	return s
}

// What became of an event.
const (
	delivered = "delivered"
	failed    = "failed"
	dropped   = "dropped"
)

// Tell has the receivers told of e. It never waits.
func (s *Sender) Tell(e sandbox.SecurityEvent) {
	now := time.Now().UTC()
	for _, r := range s.receivers {
		if !r.add(e, now) {
			s.told.WithLabelValues(dropped).Inc()
		}
	}
}

// Run sends until ctx ends; what waits then is tried once more.
func (s *Sender) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, r := range s.receivers {
		all.Go(func() { s.serve(ctx, r) })
	}
	all.Wait()
	return ctx.Err()
}

// serve sends one receiver its events, one after the other.
func (s *Sender) serve(ctx context.Context, r *receiver) {
	for ctx.Err() == nil {
		e, wait := r.next(time.Now().UTC(), s.cfg.Gather)
		if e != nil {
			s.deliver(ctx, r, e)
		} else {
			r.sleep(ctx, wait)
		}
	}
	s.finish(r)
}

// deliver tries until the receiver took e, refused it for good, or failed too
// often. At the end of ctx e goes back, to be tried with what else is left.
func (s *Sender) deliver(ctx context.Context, r *receiver, e *event) {
	pause := s.cfg.Pause
	for try := 1; ; try++ {
		err := r.send(ctx, e)
		switch {
		case err == nil:
			s.told.WithLabelValues(delivered).Inc()
			return
		case ctx.Err() != nil:
			r.back(e)
			return
		case try == maxTries || isFinal(err):
			s.giveUp(r, e, err)
			return
		}
		s.cfg.Log.Debug("a webhook will be tried again", "receiver", r.name(), telemetry.KeyError, err, "try", try)
		t := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			r.back(e)
			return
		}
		pause = min(2*pause, longestPause)
	}
}

// giveUp counts an event that was not told. The next one says that it is missing.
func (s *Sender) giveUp(r *receiver, e *event, err error) {
	s.told.WithLabelValues(failed).Inc()
	r.lose()
	s.cfg.Log.Warn("a webhook did not take an event", "receiver", r.name(), telemetry.KeyError, err, "event", e.what.Kind,
		telemetry.KeyTenant, e.what.Tenant, telemetry.KeySandbox, e.what.Sandbox)
}

// finish tries what waits once, for as long as there is time.
func (s *Sender) finish(r *receiver) {
	ctx, cancel := context.WithTimeout(context.Background(), lastTime)
	defer cancel()
	for {
		e, _ := r.next(time.Now().UTC(), 0)
		if e == nil {
			return
		}
		if err := r.send(ctx, e); err != nil {
			s.giveUp(r, e, err)
			continue
		}
		s.told.WithLabelValues(delivered).Inc()
	}
}
