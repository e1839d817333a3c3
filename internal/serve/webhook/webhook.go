// Package webhook delivers Events to receivers: each as a signed POST, retried for a
// day while a receiver fails. Queued Events are in the Store, so neither the end of a
// process nor a long outage of a receiver loses them.
package webhook

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// maxUnwritten bounds the different Events of one kind that wait in memory to be
	// written to the Store.
	maxUnwritten = 250
	// maxAge is the age of an Event up to which it is retried.
	maxAge = 24 * time.Hour
	// longestWait is the longest time between two tries of an Event. longestPause is the
	// longest time between two tries of any Events while a receiver fails.
	longestWait  = time.Hour
	longestPause = time.Minute
	// atOnce is the number of concurrent deliveries to a receiver that works.
	// steadyFailure is the number of failures in a row after which a receiver counts as
	// down.
	atOnce        = 8
	steadyFailure = 3
	// sendTime is the timeout of one try.
	sendTime = 10 * time.Second
	// writeEvery is the shortest interval between two writes: a flood of Events makes a
	// few rows, and not a transaction each.
	writeEvery = 100 * time.Millisecond
	// lastTime is the timeout for the last write when the process ends.
	lastTime = 3 * time.Second
	// overlap is the time before the latest known end of a build from which ends are read
	// again.
	overlap = time.Minute
)

// Config configures a Sender. Store, Log and Registry are required.
type Config struct {
	Store sandbox.WebhookStore
	// URLs are the receivers that Deliver sends to; none: it sends nothing.
	URLs   []string
	Kinds  []sandbox.EventKind // kinds to deliver; nil: SecurityEventKinds
	Secret []byte              // signs the bodies
	Log    *slog.Logger
	// Registry receives the metrics.
	Registry prometheus.Registerer
	// Gather is the shortest time for which equal Events are counted before they are sent
	// as one; zero: a second.
	Gather time.Duration
	// Pause is the time before the first retry, which doubles; zero: a second.
	Pause time.Duration
	// Poll is how often the Store is read for Events of other processes; zero: a second.
	Poll time.Duration
}

// Sender delivers Events to receivers. Its methods are safe for concurrent use.
type Sender struct {
	cfg       Config
	receivers []*receiver
	sent      *prometheus.CounterVec
	waiting   prometheus.Gauge

	more      chan struct{} // has room for one: Events wait to be written
	mu        sync.Mutex
	unwritten []sandbox.Event           // not written yet; equal Events are merged, with their count
	same      map[sandbox.Event]int     // index of each unwritten Event, without Count and At
	kind      map[sandbox.EventKind]int // number of unwritten Events of each kind
}

// Outcomes of an Event.
const (
	delivered = "delivered"
	failed    = "failed"
	dropped   = "dropped"
)

// New returns a Sender. Its Events are written while Run runs, and sent while Deliver
// does, in this or another process.
func New(c Config) *Sender {
	if c.Kinds == nil {
		c.Kinds = sandbox.SecurityEventKinds()
	}
	c.Gather = cmp.Or(c.Gather, time.Second)
	c.Pause = cmp.Or(c.Pause, time.Second)
	c.Poll = cmp.Or(c.Poll, time.Second)
	s := &Sender{
		cfg: c, more: make(chan struct{}, 1), same: map[sandbox.Event]int{}, kind: map[sandbox.EventKind]int{},
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cloud_sandbox_webhook_events_total",
			Help: "Events for each webhook, with equal events merged, by outcome: delivered, failed after all tries, or dropped because too many waited.",
		}, []string{"outcome"}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cloud_sandbox_webhook_events_waiting",
			Help: "Events that wait for webhooks, in the process that sends them.",
		}),
	}
	for _, outcome := range []string{delivered, failed, dropped} {
		s.sent.WithLabelValues(outcome) // so that the first one shows as a change
	}
	c.Registry.MustRegister(s.sent, s.waiting)
	client := newClient()
	for _, url := range c.URLs {
		s.receivers = append(s.receivers, &receiver{id: idOf(url), url: url, secret: c.Secret, client: client, more: make(chan struct{}, 1)})
	}
	return s
}

// Queue queues e for the receivers. It never waits: e is in the Store a moment later.
func (s *Sender) Queue(e sandbox.Event) {
	e.Count, e.At = max(e.Count, 1), time.Now().UTC()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(e)
	wake(s.more)
}

// add appends e to the unwritten Events, or merges it with an equal one. Sender.mu is
// held.
func (s *Sender) add(e sandbox.Event) {
	key := e
	key.Count, key.At = 0, time.Time{}
	switch i, is := s.same[key]; {
	case is:
		s.unwritten[i].Count += e.Count
	case s.kind[e.Kind] >= maxUnwritten:
		s.sent.WithLabelValues(dropped).Inc()
	default:
		s.same[key] = len(s.unwritten)
		s.kind[e.Kind]++
		s.unwritten = append(s.unwritten, e)
	}
}

// take removes and returns the Events to be written. Sender.mu is held.
func (s *Sender) take() []sandbox.Event {
	unwritten := s.unwritten
	s.unwritten, s.same, s.kind = nil, map[sandbox.Event]int{}, map[sandbox.EventKind]int{}
	return unwritten
}

// wake wakes a goroutine that waits on more.
func wake(more chan struct{}) {
	select {
	case more <- struct{}{}:
	default:
	}
}

// Run writes Events until ctx ends, and then the remaining ones.
func (s *Sender) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		select {
		case <-s.more:
			if err := s.write(ctx); err != nil && ctx.Err() == nil {
				s.cfg.Log.Warn("writing events failed; will retry", telemetry.KeyError, err)
				sleep(ctx, nil, s.cfg.Poll)
				wake(s.more)
			}
			sleep(ctx, nil, writeEvery)
		case <-ctx.Done():
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTime)
	defer cancel()
	if err := s.write(last); err != nil {
		s.cfg.Log.Warn("writing the last events at shutdown failed; they are lost", telemetry.KeyError, err)
	}
	return ctx.Err()
}

// write writes all Events in memory to the Store, or keeps them if that fails.
func (s *Sender) write(ctx context.Context) error {
	s.mu.Lock()
	unwritten := s.take()
	s.mu.Unlock()
	if len(unwritten) == 0 {
		return nil
	}
	if err := s.cfg.Store.QueueEvents(ctx, unwritten, s.cfg.Gather); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, e := range append(unwritten, s.take()...) {
			s.add(e)
		}
		return err
	}
	for _, r := range s.receivers {
		wake(r.more)
	}
	return nil
}

// sleep waits for d, until ctx ends, or until a wake of more.
func sleep(ctx context.Context, more <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-more:
	case <-t.C:
	case <-ctx.Done():
	}
}
