package sqlstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// webhookStatements are the writer's prepared statements for webhooks.
type webhookStatements struct {
	webhooksNow, addWebhook, dropWebhook, dropWaiting *sql.Stmt
	insertWaiting, countAlike, waitingOfKind          *sql.Stmt
	oldestWaiting, oldestOfKind, deleteWaiting        *sql.Stmt
	growWebhook, shrinkWebhook, cameToWebhook         *sql.Stmt
	waiting, restWaiting, retryWaiting, hastenWaiting *sql.Stmt
	queueOnce, trimQueued                             *sql.Stmt
	webhooksAndState, copiedFrom                      *sql.Stmt
	snapshotBefore, snapshotNow                       *sql.Stmt
}

func (s *webhookStatements) all() []prepared {
	return []prepared{
		{&s.webhooksNow, `SELECT id, kinds, since FROM webhooks ORDER BY id`},
		{&s.webhooksAndState, `SELECT id, kinds, since, COALESCE((SELECT state FROM sandboxes WHERE id = ?1 AND tenant = ?2), '') FROM webhooks ORDER BY id`},
		{&s.addWebhook, `INSERT INTO webhooks (id, kinds, since, waiting, bytes, missing, lost) VALUES (?, ?, ?, 0, 0, 0, 0)
			ON CONFLICT (id) DO UPDATE SET kinds = excluded.kinds`},
		{&s.dropWebhook, `DELETE FROM webhooks WHERE id = ?`},
		{&s.dropWaiting, `DELETE FROM outbox WHERE webhook = ?`},
		{&s.insertWaiting, `INSERT INTO outbox (webhook, id, kind, event, alike, count, first_at, last_at, tries, next_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, ?)`},
		{&s.countAlike, `UPDATE outbox SET count = count + ?3, last_at = CASE WHEN last_at < ?4 THEN ?4 ELSE last_at END WHERE webhook = ?1 AND alike = ?2 AND alike <> '' AND tries = 0`},
		{&s.waitingOfKind, `SELECT count(*) FROM outbox WHERE webhook = ? AND kind = ?`},
		{&s.oldestWaiting, `SELECT seq FROM outbox WHERE webhook = ? ORDER BY seq LIMIT 1`},
		{&s.oldestOfKind, `SELECT seq FROM outbox WHERE webhook = ? AND kind = ? ORDER BY seq LIMIT 1`},
		{&s.deleteWaiting, `DELETE FROM outbox WHERE seq = ? RETURNING octet_length(event)`},
		{&s.growWebhook, `UPDATE webhooks SET waiting = waiting + 1, bytes = bytes + ? WHERE id = ? RETURNING waiting, bytes`},
		{&s.shrinkWebhook, `UPDATE webhooks SET waiting = waiting - 1, bytes = bytes - ?2, missing = missing + ?3, lost = lost + ?3 WHERE id = ?1 RETURNING waiting, bytes`},
		{&s.cameToWebhook, `UPDATE webhooks SET missing = CASE WHEN missing > ?1 THEN missing - ?1 ELSE 0 END WHERE id = ?2`},
		{&s.waiting, `SELECT count, event, alike, last_at FROM outbox WHERE seq = ? AND id = ?`},
		{&s.restWaiting, `UPDATE outbox SET id = ?, count = ?, first_at = ?, tries = 0, next_at = ? WHERE seq = ?`},
		{&s.retryWaiting, `UPDATE outbox SET count = ?, tries = tries + 1, next_at = ? WHERE seq = ?`},
		{&s.hastenWaiting, `UPDATE outbox SET next_at = ?2 WHERE webhook = ?1 AND next_at > ?2`},
		{&s.queueOnce, `INSERT INTO told (id, at) VALUES (?, ?) ON CONFLICT (id) DO NOTHING`},
		{&s.trimQueued, `DELETE FROM told WHERE at < ?`},
		{&s.copiedFrom, `SELECT COALESCE(b.id, '') FROM snapshots s LEFT JOIN sandboxes b ON b.id = s.sandbox_id AND b.tenant = s.tenant
			WHERE s.id = ? AND s.layer = ''`},
		{&s.snapshotBefore, `SELECT kept AND state = 'ready' AND layer = '' FROM snapshots WHERE id = ?`},
		{&s.snapshotNow, `SELECT tenant, sandbox_id, name, template, kept AND state = 'ready' AND layer = '', state FROM snapshots WHERE id = ?`},
	}
}

// webhookQueries are the prepared statements of reading connections.
type webhookQueries struct{ webhooks, deliveries *sql.Stmt }

func (q *webhookQueries) all() []prepared {
	return []prepared{
		{&q.webhooks, `SELECT id, kinds, since, waiting, lost FROM webhooks ORDER BY id`},
		{&q.deliveries, `SELECT seq, webhook, outbox.id, event, count, first_at, last_at, tries, webhooks.missing
			FROM outbox JOIN webhooks ON webhooks.id = outbox.webhook WHERE webhook = ? AND next_at <= ? ORDER BY next_at, seq LIMIT ?`},
	}
}

// A hook is a Webhook in the writer's transaction.
type hook struct {
	id, kinds string
	since     int64
}

func (h hook) wants(k sandbox.EventKind) bool { return strings.Contains(h.kinds, " "+string(k)+" ") }

func (h hook) wantsAny(kinds []sandbox.EventKind) bool { return slices.ContainsFunc(kinds, h.wants) }

// hooks returns the Webhooks that are subscribed to one of kinds. Without any, the
// caller records no Event.
func (s *webhookStatements) hooks(kinds ...sandbox.EventKind) ([]hook, error) {
	all, err := collect(func(scan func(...any) error) (h hook, err error) {
		err = scan(&h.id, &h.kinds, &h.since)
		return h, err
	})(s.webhooksNow.Query())
	return slices.DeleteFunc(all, func(h hook) bool { return !h.wantsAny(kinds) }), err
}

// SetWebhooks implements sandbox.WebhookStore.
func (s *Store) SetWebhooks(ctx context.Context, all []sandbox.Webhook, at time.Time) error {
	return s.writer.write(ctx, func(st *statements) error {
		have, err := st.hooks(sandbox.EventKinds()...)
		if err != nil {
			return err
		}
		for _, h := range have {
			if slices.ContainsFunc(all, func(w sandbox.Webhook) bool { return w.ID == h.id }) {
				continue
			}
			for _, drop := range []*sql.Stmt{st.dropWaiting, st.dropWebhook} {
				if _, err := drop.Exec(h.id); err != nil {
					return err
				}
			}
		}
		for _, w := range all {
			kinds := " "
			for _, k := range w.Kinds {
				kinds += string(k) + " "
			}
			if _, err := st.addWebhook.Exec(w.ID, kinds, micros(at)); err != nil {
				return err
			}
		}
		return nil
	})
}

// Webhooks implements sandbox.WebhookStore.
func (s *Store) Webhooks(ctx context.Context) ([]sandbox.Webhook, error) {
	return collect(func(scan func(...any) error) (w sandbox.Webhook, err error) {
		var kinds string
		var since int64
		err = scan(&w.ID, &kinds, &since, &w.Waiting, &w.Lost)
		for _, k := range strings.Fields(kinds) {
			w.Kinds = append(w.Kinds, sandbox.EventKind(k))
		}
		w.Since = fromMicros(since)
		return w, err
	})(s.query.webhooks.QueryContext(ctx))
}

// QueueEvents implements sandbox.WebhookStore.
func (s *Store) QueueEvents(ctx context.Context, events []sandbox.Event, gather time.Duration) error {
	return s.writer.write(ctx, func(st *statements) error {
		now := time.Now()
		if _, err := st.trimQueued.Exec(micros(now.Add(-sandbox.EventMemory))); err != nil {
			return err
		}
		for _, e := range events {
			hooks, err := st.hooks(e.Kind)
			if err != nil {
				return err
			}
			if len(hooks) == 0 {
				continue
			}
			if e.ID != "" {
				result, err := st.queueOnce.Exec(e.ID, micros(now))
				if err != nil {
					return err
				}
				if n, err := result.RowsAffected(); err != nil {
					return err
				} else if n == 0 {
					continue
				}
			}
			if err := st.queue(hooks, e, now, gather); err != nil {
				return err
			}
		}
		return nil
	})
}

// queue queues e for hooks. An event without an ID, with gather above zero, is merged with
// equal ones.
func (s *webhookStatements) queue(hooks []hook, e sandbox.Event, now time.Time, gather time.Duration) error {
	at, count, id := e.At, max(e.Count, 1), e.ID
	if at.IsZero() {
		at = now
	}
	e.At, e.Count, e.ID = time.Time{}, 0, ""
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	alike := ""
	if id == "" && gather > 0 {
		sum := sha256.Sum256(text)
		alike = hex.EncodeToString(sum[:16])
	}
	id = cmp.Or(id, sandbox.NewEventID())
	for _, h := range hooks {
		if !h.wants(e.Kind) || micros(at) < h.since {
			continue
		}
		if alike != "" {
			result, err := s.countAlike.Exec(h.id, alike, count, micros(at))
			if err != nil {
				return err
			}
			if n, err := result.RowsAffected(); err != nil {
				return err
			} else if n > 0 {
				continue
			}
		}
		if err := s.add(h.id, id, e.Kind, text, alike, count, at, at, now.Add(gather)); err != nil {
			return err
		}
	}
	return nil
}

// add queues an Event for a Webhook, and drops the oldest ones beyond the limits.
func (s *webhookStatements) add(webhook, id string, kind sandbox.EventKind, text []byte, alike string, count int64, first, last, next time.Time) error {
	if _, err := s.insertWaiting.Exec(webhook, id, string(kind), string(text), alike, count, micros(first), micros(last), micros(next)); err != nil {
		return err
	}
	var waiting, bytes int64
	if err := s.growWebhook.QueryRow(len(text), webhook).Scan(&waiting, &bytes); err != nil {
		return err
	}
	if alike != "" {
		var own int64
		if err := s.waitingOfKind.QueryRow(webhook, string(kind)).Scan(&own); err != nil {
			return err
		}
		if own > sandbox.MaxWaitingOfKind {
			var oldest int64
			if err := s.oldestOfKind.QueryRow(webhook, string(kind)).Scan(&oldest); err != nil {
				return err
			}
			return s.remove(webhook, oldest, true, &waiting, &bytes)
		}
	}
	for waiting > sandbox.MaxWaiting || bytes > sandbox.MaxWaitingBytes {
		var oldest int64
		if err := s.oldestWaiting.QueryRow(webhook).Scan(&oldest); err != nil {
			return err
		}
		if err := s.remove(webhook, oldest, true, &waiting, &bytes); err != nil {
			return err
		}
	}
	return nil
}

// remove deletes a queued event, and returns the remaining counts.
func (s *webhookStatements) remove(webhook string, seq int64, lost bool, waiting, bytes *int64) error {
	var length int64
	if err := s.deleteWaiting.QueryRow(seq).Scan(&length); err != nil {
		return err
	}
	missing := 0
	if lost {
		missing = 1
	}
	return s.shrinkWebhook.QueryRow(webhook, length, missing).Scan(waiting, bytes)
}

// DueDeliveries implements sandbox.WebhookStore.
func (s *Store) DueDeliveries(ctx context.Context, webhook string, now time.Time, limit int) ([]sandbox.Delivery, error) {
	return collect(func(scan func(...any) error) (d sandbox.Delivery, err error) {
		var id, text string
		var count, first, last int64
		if err := scan(&d.Seq, &d.Webhook, &id, &text, &count, &first, &last, &d.Tries, &d.Missing); err != nil {
			return d, err
		}
		if err := json.Unmarshal([]byte(text), &d.Event); err != nil {
			return d, fmt.Errorf("read an event: %w", err)
		}
		d.Event.ID, d.Event.Count, d.Event.At, d.Last = id, count, fromMicros(first), fromMicros(last)
		return d, nil
	})(s.query.deliveries.QueryContext(ctx, webhook, micros(now), limit))
}

// rest returns the count of Events that were merged into a Delivery since it was read.
// It also returns the Event's text, its hash for merging, and the time of the last
// merged Event. there is false if the Delivery was deleted.
func (s *webhookStatements) rest(d sandbox.Delivery) (count int64, text, alike string, last time.Time, there bool, err error) {
	var at int64
	err = s.waiting.QueryRow(d.Seq, d.Event.ID).Scan(&count, &text, &alike, &at)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, "", "", time.Time{}, false, nil
	}
	return max(count-d.Event.Count, 0), text, alike, fromMicros(at), err == nil, err
}

// EndDelivery implements sandbox.WebhookStore.
func (s *Store) EndDelivery(ctx context.Context, d sandbox.Delivery, taken bool) error {
	return s.writer.write(ctx, func(st *statements) error {
		if taken {
			if _, err := st.cameToWebhook.Exec(d.Missing, d.Webhook); err != nil {
				return err
			}
		}
		more, _, _, last, there, err := st.rest(d)
		switch {
		case err != nil || !there:
			return err
		case more > 0:
			_, err = st.restWaiting.Exec(sandbox.NewEventID(), more, micros(last), micros(time.Now()), d.Seq)
			return err
		}
		var waiting, bytes int64
		return st.remove(d.Webhook, d.Seq, !taken, &waiting, &bytes)
	})
}

// RetryDelivery implements sandbox.WebhookStore.
func (s *Store) RetryDelivery(ctx context.Context, d sandbox.Delivery, next time.Time) error {
	return s.writer.write(ctx, func(st *statements) error {
		more, text, alike, last, there, err := st.rest(d)
		if err != nil || !there {
			return err
		}
		if _, err := st.retryWaiting.Exec(d.Event.Count, micros(next), d.Seq); err != nil || more == 0 {
			return err
		}
		return st.add(d.Webhook, sandbox.NewEventID(), d.Event.Kind, []byte(text), alike, more, last, last, time.Now())
	})
}

// HastenDeliveries implements sandbox.WebhookStore.
func (s *Store) HastenDeliveries(ctx context.Context, webhook string, now time.Time) error {
	return s.writer.write(ctx, func(st *statements) error {
		_, err := st.hastenWaiting.Exec(webhook, micros(now))
		return err
	})
}

// sandboxKinds are the event kinds of a Sandbox's life.
func sandboxKinds() []sandbox.EventKind {
	return []sandbox.EventKind{
		sandbox.EventSandboxCreated, sandbox.EventSandboxForked, sandbox.EventSandboxPaused, sandbox.EventSandboxResumed, sandbox.EventSandboxEnded,
	}
}

// A life holds the hooks for a change of a Sandbox, and its State before.
type life struct {
	hooks  []hook
	before sandbox.State // empty without hooks, and for an unknown Sandbox
}

// lifeBefore reads l before sb is written.
func (s *webhookStatements) lifeBefore(p *pipeline, sb sandbox.Sandbox, l *life) {
	kinds := sandboxKinds()
	p.rows(s.webhooksAndState, func(scan scanner) error {
		var h hook
		if err := scan(&h.id, &h.kinds, &h.since, (*string)(&l.before)); err != nil {
			return err
		}
		if h.wantsAny(kinds) {
			l.hooks = append(l.hooks, h)
		}
		return nil
	}, sb.ID, string(sb.Tenant))
}

// queueLife queues the events of sb, which has been written.
func (p *pipeline) queueLife(l life, sb sandbox.Sandbox) error {
	if len(l.hooks) == 0 {
		return nil
	}
	s, err := p.direct()
	if err != nil {
		return err
	}
	e := sandbox.Event{Kind: sb.LifeEvent(l.before), Tenant: sb.Tenant, Sandbox: sb.ID, Name: sb.Name, Template: sb.Template, Snapshot: sb.Snapshot, Version: sb.Version}
	now := time.Now()
	switch {
	case e.Kind == "":
		return nil
	case e.Kind == sandbox.EventSandboxPaused && l.before == sandbox.Running:
		e.Reason = sandbox.ReasonBootLost
	case e.Kind == sandbox.EventSandboxEnded:
		e.Snapshot = ""
		if sb.Ended != nil {
			e.Reason = string(sb.Ended.Cause)
		}
	case e.Kind == sandbox.EventSandboxCreated && sb.Snapshot != "":
		err := s.copiedFrom.QueryRow(sb.Snapshot).Scan(&e.Parent)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			e.Snapshot = ""
		case err != nil:
			return err
		default:
			fork := e
			fork.Kind = sandbox.EventSandboxForked
			if err := s.queue(l.hooks, fork, now, 0); err != nil {
				return err
			}
		}
	}
	return s.queue(l.hooks, e, now, 0)
}

// keptBefore reports, before a change, whether a Tenant had kept a Snapshot.
func (s *webhookStatements) keptBefore(id string) (kept bool, err error) {
	err = s.snapshotBefore.QueryRow(id).Scan(&kept)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return kept, err
}

// queueSnapshot queues the events of a changed Snapshot.
func (s *webhookStatements) queueSnapshot(id string, kept bool) error {
	hooks, err := s.hooks(sandbox.EventSnapshotCreated, sandbox.EventSnapshotDeleted)
	if err != nil || len(hooks) == 0 {
		return err
	}
	e := sandbox.Event{Kind: sandbox.EventSnapshotCreated, Snapshot: id}
	var keeps bool
	var state sandbox.SnapshotState
	if err := s.snapshotNow.QueryRow(id).Scan((*string)(&e.Tenant), &e.Sandbox, &e.Name, &e.Template, &keeps, (*string)(&state)); err != nil {
		return err
	}
	switch {
	case kept == keeps:
		return nil
	case kept && state == sandbox.SnapshotDeleting:
		e.Kind = sandbox.EventSnapshotDeleted
	case kept:
		e.Kind, e.Reason = sandbox.EventSnapshotDeleted, sandbox.ReasonRetention
	}
	return s.queue(hooks, e, time.Now(), 0)
}
