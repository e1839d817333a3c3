package sandbox

import (
	"context"
	"time"
)

// Store keeps the rows. A write names the version of the record that it read
// (Sandbox.Version); losing the race is Conflict. Times are UTC with
// microseconds. Every method honours ctx.
type Store interface {
	SandboxStore
	NodeStore
	// Close waits for writes under way and releases the database.
	Close() error
}

// SandboxStore keeps Sandboxes and the Boots they had. Session-manager alone
// writes here.
type SandboxStore interface {
	// InsertSandbox adds a record at version 1. A name that another Sandbox of
	// the Tenant has, and that has not ended, is a Conflict; so is a known ID.
	InsertSandbox(ctx context.Context, s Sandbox) (Sandbox, error)
	// UpdateSandbox writes s if its stored version is s.Version, and returns it
	// with the next one; Conflict otherwise, NotFound if there is none. Tenant
	// and ID never change.
	UpdateSandbox(ctx context.Context, s Sandbox) (Sandbox, error)
	// SandboxByID returns the record, whoever owns it; callers check Tenant.
	SandboxByID(ctx context.Context, id string) (Sandbox, error)
	// SandboxByName returns the Tenant's Sandbox of that name that has not
	// ended.
	SandboxByName(ctx context.Context, tenant TenantID, name string) (Sandbox, error)
	// ListSandboxes returns a Page of one Tenant's records.
	ListSandboxes(ctx context.Context, tenant TenantID, query ListQuery) (Page, error)
	// CountSandboxes counts a Tenant's records by State, ended ones left out.
	CountSandboxes(ctx context.Context, tenant TenantID) (map[State]int, error)
	// SandboxesNotEnded returns every Tenant's records that have not ended, for
	// reconciling.
	SandboxesNotEnded(ctx context.Context) ([]Sandbox, error)
	// SandboxesDue returns up to limit records that are not ended or stopping
	// and whose Deadline is not after now, earliest first.
	SandboxesDue(ctx context.Context, now time.Time, limit int) ([]Sandbox, error)
	// NextDeadline returns the earliest Deadline of a record that is not ended
	// or stopping; false when there is none.
	NextDeadline(ctx context.Context) (time.Time, bool, error)
	// DeleteEnded removes records that ended before the given time and returns
	// how many.
	DeleteEnded(ctx context.Context, before time.Time) (int, error)
}

// NodeRecord is a Node and its Lease: its time-limited right to run Boots.
type NodeRecord struct {
	Name       string
	Engine     string
	LeaseUntil time.Time
}

// NodeStore keeps Nodes and their Leases.
type NodeStore interface {
	// RenewLease inserts or updates the Node's record.
	RenewLease(ctx context.Context, n NodeRecord) error
	// Nodes returns all records by name.
	Nodes(ctx context.Context) ([]NodeRecord, error)
}
