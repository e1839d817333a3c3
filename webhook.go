package sandbox

import (
	"context"
	"time"
)

const (
	// MaxWaiting and MaxWaitingBytes bound what waits for one Webhook; beyond them
	// the oldest is lost.
	MaxWaiting      = 20_000
	MaxWaitingBytes = 16 << 20
	// MaxWaitingOfKind bounds it for each kind of security: many of one, which a
	// stranger may cause, are not the loss of others.
	MaxWaitingOfKind = 1000
	// EventMemory is how long an Event that must be told once is known.
	EventMemory = 48 * time.Hour
)

// Webhook is one who is told of Events.
type Webhook struct {
	ID    string
	Kinds []EventKind // that it is told of

	// What follows is read, never written.
	Since   time.Time // when it came: it is told of what happened afterwards
	Waiting int       // Events
	Lost    int64     // Events that waited and will not be told, since it came
}

// Delivery is an Event that waits for a Webhook.
type Delivery struct {
	Seq     int64
	Webhook string
	Event   Event     // with ID, At and Count; At is that of the first of equal ones
	Last    time.Time // of equal ones
	Tries   int       // that failed
	Missing int64     // Events that were lost since the last one that came
}

// WebhookStore keeps Events until the Webhooks took them. InsertSandbox,
// UpdateSandbox, UpdateSnapshot and RetireSnapshot record what there is to tell of
// their change, all or nothing with it.
type WebhookStore interface {
	// SetWebhooks makes these all that there are. What waits for others is gone.
	SetWebhooks(ctx context.Context, all []Webhook, at time.Time) error
	// Webhooks returns all, by ID.
	Webhooks(ctx context.Context) ([]Webhook, error)
	// TellEvents records Events for each Webhook that is told of their kinds, due in
	// gather. Equal ones that wait and were not tried yet become one, with their
	// counts together. One with an ID is recorded once, however often it is told
	// within EventMemory.
	TellEvents(ctx context.Context, events []Event, gather time.Duration) error
	// DueDeliveries returns up to limit Deliveries that are due, those that are due
	// for longest first.
	DueDeliveries(ctx context.Context, webhook string, now time.Time, limit int) ([]Delivery, error)
	// EndDelivery forgets a Delivery: it was taken, or it is lost. What was counted
	// into it since it was read stays, under another ID.
	EndDelivery(ctx context.Context, d Delivery, taken bool) error
	// RetryDelivery has a Delivery that failed wait until next.
	RetryDelivery(ctx context.Context, d Delivery, next time.Time) error
	// HastenDeliveries makes all that waits for a Webhook due now.
	HastenDeliveries(ctx context.Context, webhook string, now time.Time) error
}
