package sandbox

import (
	"context"
	"time"
)

const (
	// MaxWaiting and MaxWaitingBytes bound the queue of one Webhook; beyond them the
	// oldest Event is dropped.
	MaxWaiting      = 20_000
	MaxWaitingBytes = 16 << 20
	// MaxWaitingOfKind bounds each security kind in the queue, so that a stranger who
	// causes many Events of one kind cannot displace others.
	MaxWaitingOfKind = 1000
	// EventMemory is how long the ID of an Event is kept for deduplication.
	EventMemory = 48 * time.Hour
)

// Webhook is a receiver of Events.
type Webhook struct {
	ID    string
	Kinds []EventKind // that it receives

	// The fields below are read-only.
	Since   time.Time // registration; it receives later Events only
	Waiting int       // Events
	Lost    int64     // Events dropped from the queue since then
}

// Delivery is an Event in the queue of a Webhook.
type Delivery struct {
	Seq     int64
	Webhook string
	Event   Event     // with ID, At and Count; At is the time of the first of equal Events
	Last    time.Time // time of the last of equal Events
	Tries   int       // failed attempts
	Missing int64     // Events lost since the last successful delivery
}

// WebhookStore queues Events until they are delivered. InsertSandbox, UpdateSandbox,
// UpdateSnapshot and RetireSnapshot record the Events of their change in the same
// transaction.
type WebhookStore interface {
	// SetWebhooks replaces the set of Webhooks. The queues of removed ones are deleted.
	SetWebhooks(ctx context.Context, all []Webhook, at time.Time) error
	// Webhooks returns all, by ID.
	Webhooks(ctx context.Context) ([]Webhook, error)
	// QueueEvents queues Events for each Webhook that receives their kinds, due after
	// gather. Equal Events that are queued and not yet tried are merged and their counts
	// added. An Event with an ID is queued once within EventMemory.
	QueueEvents(ctx context.Context, events []Event, gather time.Duration) error
	// DueDeliveries returns up to limit due Deliveries, longest due first.
	DueDeliveries(ctx context.Context, webhook string, now time.Time, limit int) ([]Delivery, error)
	// EndDelivery removes a Delivery as taken or lost. Events merged into it since it was
	// read stay, under a new ID.
	EndDelivery(ctx context.Context, d Delivery, taken bool) error
	// RetryDelivery postpones a failed Delivery to next.
	RetryDelivery(ctx context.Context, d Delivery, next time.Time) error
	// HastenDeliveries makes all queued Deliveries of a Webhook due now.
	HastenDeliveries(ctx context.Context, webhook string, now time.Time) error
}
