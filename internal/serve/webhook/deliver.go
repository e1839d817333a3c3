package webhook

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// Open sets the receivers that the Store queues Events for, in place of earlier ones, by a
// write to store. It must be called before the first Event, and before Deliver.
func (s *Sender) Open(ctx context.Context, store sandbox.WebhookStore) error {
	var all []sandbox.Webhook
	for _, r := range s.receivers {
		all = append(all, sandbox.Webhook{ID: r.id, Kinds: s.cfg.Kinds})
	}
	return store.SetWebhooks(ctx, all, time.Now().UTC())
}

// Deliver sends queued Events until ctx ends. The next process resends the ones then
// in flight. Only one process of an installation may deliver. It reads and records
// deliveries through store, which may refuse a process that must not deliver any more.
func (s *Sender) Deliver(ctx context.Context, store sandbox.WebhookStore) error {
	d := delivery{s, store}
	var all sync.WaitGroup
	for _, r := range s.receivers {
		all.Go(func() { d.serve(ctx, r) })
	}
	all.Go(func() { d.observe(ctx) })
	all.Wait()
	return ctx.Err()
}

// A delivery is a run of Deliver.
type delivery struct {
	*Sender
	store sandbox.WebhookStore
}

// observe counts the queued Events, and the Events that the Store dropped.
func (s delivery) observe(ctx context.Context) {
	lost := map[string]int64{}
	for ; ctx.Err() == nil; sleep(ctx, nil, s.cfg.Poll) {
		all, err := s.store.Webhooks(ctx)
		if err != nil {
			continue // reading and writing deliveries reports the error
		}
		waiting := 0
		for _, w := range all {
			waiting += w.Waiting
			before, known := lost[w.ID]
			if lost[w.ID] = w.Lost; known && w.Lost > before {
				s.sent.WithLabelValues(dropped).Add(float64(w.Lost - before))
			}
		}
		s.waiting.Set(float64(waiting))
	}
	s.waiting.Set(0) // another process counts them now
}

// serve sends a receiver its due deliveries: several at once while it works, and one
// at a time with pauses while it fails.
func (s delivery) serve(ctx context.Context, r *receiver) {
	failures := 0 // in a row
	for ctx.Err() == nil {
		limit := atOnce
		if failures > 0 {
			limit = 1
		}
		due, err := s.store.DueDeliveries(ctx, r.id, time.Now().UTC(), limit)
		if err != nil && ctx.Err() == nil {
			s.cfg.Log.Warn("reading the deliveries that are due failed", "receiver", r.name(), telemetry.KeyError, err)
		}
		if len(due) == 0 {
			sleep(ctx, r.more, s.cfg.Poll)
			continue
		}
		if s.send(ctx, r, due) {
			if failures >= steadyFailure { // it was down: retry its failed deliveries now
				s.record(ctx, s.store.HastenDeliveries(ctx, r.id, time.Now().UTC()))
			}
			failures = 0
			continue
		}
		failures++
		sleep(ctx, nil, backoff(s.cfg.Pause, failures, longestPause))
	}
}

// backoff returns the pause after so many failures: it doubles with each failure up
// to longest, with jitter of up to half of it in both directions.
func backoff(first time.Duration, failures int, longest time.Duration) time.Duration {
	const enough = 30 // doublings, not to overflow
	pause := min(first<<min(failures-1, enough), longest)
	return pause/2 + rand.N(pause)
}

// send sends all of due at once, and reports whether none has to be retried.
func (s delivery) send(ctx context.Context, r *receiver, due []sandbox.Delivery) bool {
	again := make([]bool, len(due))
	var all sync.WaitGroup
	for i, d := range due {
		if i > 0 {
			d.Missing = 0 // the first one reports it
		}
		all.Go(func() { again[i] = !s.deliver(ctx, r, d) })
	}
	all.Wait()
	return !slices.Contains(again, true)
}

// deliver makes one try and records its outcome. It returns false if the try must be
// repeated, or if the Event was given up because of its age.
func (s delivery) deliver(ctx context.Context, r *receiver, d sandbox.Delivery) bool {
	err := r.send(ctx, d)
	now := time.Now().UTC()
	switch {
	case err == nil:
		defer s.sent.WithLabelValues(delivered).Inc() // a counted Event no longer waits
		return s.record(ctx, s.store.EndDelivery(ctx, d, true))
	case ctx.Err() != nil: // the next process sends it again
		return false
	case isFinal(err), now.Sub(d.Event.At) >= maxAge:
		defer s.sent.WithLabelValues(failed).Inc()
		s.cfg.Log.Warn("delivering an event failed; it is given up", "receiver", r.name(), telemetry.KeyError, err, "event", d.Event.Kind,
			telemetry.KeyTenant, d.Event.Tenant, telemetry.KeySandbox, d.Event.Sandbox)
		return s.record(ctx, s.store.EndDelivery(ctx, d, false)) && isFinal(err)
	}
	s.cfg.Log.Debug("delivering an event failed; will retry", "receiver", r.name(), telemetry.KeyError, err, "try", d.Tries+1)
	s.record(ctx, s.store.RetryDelivery(ctx, d, now.Add(backoff(s.cfg.Pause, d.Tries+1, longestWait))))
	return false
}

// record logs a failed write to the Store, and reports whether it succeeded.
func (s *Sender) record(ctx context.Context, err error) bool {
	if err != nil && ctx.Err() == nil {
		s.cfg.Log.Warn("recording the outcome of a delivery failed", telemetry.KeyError, err)
	}
	return err == nil
}

// Follow queues Events for ended builds of Templates, which no transaction of the
// Store records, until ctx ends. ended returns the Events since a time, with an error
// when they may be incomplete. The Store drops duplicates of earlier Events.
func (s *Sender) Follow(ctx context.Context, ended func(ctx context.Context, since time.Time) ([]sandbox.Event, error)) error {
	since := time.Now().UTC().Add(-maxAge)
	told := map[string]time.Time{}
	for ; ctx.Err() == nil; sleep(ctx, nil, s.cfg.Poll) {
		if !s.wanted(ctx, sandbox.EventTemplateBuilt, sandbox.EventTemplateFailed) {
			continue
		}
		all, unread := ended(ctx, since)
		if unread != nil {
			s.cfg.Log.Debug("reading ended builds for events failed", telemetry.KeyError, unread)
		}
		var events []sandbox.Event
		for _, e := range all {
			if _, is := told[e.ID]; !is {
				events = append(events, e)
			}
		}
		if len(events) == 0 {
			continue
		}
		if !s.record(ctx, s.cfg.Store.QueueEvents(ctx, events, 0)) {
			continue
		}
		for _, e := range events {
			told[e.ID] = e.At
			if unread == nil && e.At.Add(-overlap).After(since) { // else a late answer would be lost
				since = e.At.Add(-overlap)
			}
		}
		for id, at := range told {
			if at.Before(since) {
				delete(told, id)
			}
		}
	}
	return ctx.Err()
}

// wanted reports whether any receiver wants one of kinds.
func (s *Sender) wanted(ctx context.Context, kinds ...sandbox.EventKind) bool {
	all, err := s.cfg.Store.Webhooks(ctx)
	return err == nil && slices.ContainsFunc(all, func(w sandbox.Webhook) bool {
		return slices.ContainsFunc(w.Kinds, func(k sandbox.EventKind) bool { return slices.Contains(kinds, k) })
	})
}
