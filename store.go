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
	SnapshotStore
	VolumeStore
	NodeStore
	SigningKeyStore
	KeyStore
	SecretStore
	OnceStore
	QuotaStore
	TenantStore
	UserStore
	AuditStore
	UsageStore
	WebhookStore
	// CheckWrite tries to write something that changes nothing, and returns why it
	// could not: the Detail is for operators, and the Code Exhausted is for want of
	// room. The result may be a second old.
	CheckWrite(ctx context.Context) error
	// Close waits for writes under way and releases the database.
	Close() error
}

// SandboxStore keeps Sandboxes and the Boots they had. Session-manager alone
// writes here.
type SandboxStore interface {
	SandboxRecords
	// InsertSandbox adds a record at version 1. A name that another Sandbox of
	// the Tenant has, and that has not ended, is a Conflict; so is a known ID, and a
	// Snapshot to start from or a Volume that is not a ready one of the Tenant.
	// What goes beyond the Tenant's Quota is Exhausted, exactly, however many
	// insert at once.
	InsertSandbox(ctx context.Context, s Sandbox) (Sandbox, error)
	// UpdateSandbox writes s if its stored version is s.Version, and returns it
	// with the next one; Conflict otherwise, NotFound if there is none. Tenant,
	// ID and CreatedAt never change. It is a Conflict too for s to be paused in, or resume
	// from, what is not a ready Snapshot of the Tenant.
	UpdateSandbox(ctx context.Context, s Sandbox) (Sandbox, error)
	// SandboxesNotEnded returns every Tenant's records that have not ended, for
	// reconciling.
	SandboxesNotEnded(ctx context.Context) ([]Sandbox, error)
	// SandboxesDue returns up to limit records that are not ended or stopping
	// and whose Deadline is not after now, earliest first.
	SandboxesDue(ctx context.Context, now time.Time, limit int) ([]Sandbox, error)
	// NextDeadline returns the earliest Deadline of a record that is not ended
	// or stopping; false when there is none.
	NextDeadline(ctx context.Context) (time.Time, bool, error)
	// DeleteEnded removes records that ended before the given time, and those with
	// CauseRefused that ended before refused. It returns how many. Other writes get
	// their turns while it removes many.
	DeleteEnded(ctx context.Context, before, refused time.Time) (int, error)
}

// SandboxRecords reads the records of Sandboxes.
type SandboxRecords interface {
	// SandboxByID returns the record, whoever owns it; callers check Tenant.
	SandboxByID(ctx context.Context, id string) (Sandbox, error)
	// SandboxByName returns the Tenant's Sandbox of that name that has not
	// ended.
	SandboxByName(ctx context.Context, tenant TenantID, name string) (Sandbox, error)
	// ListSandboxes returns a Page of one Tenant's records.
	ListSandboxes(ctx context.Context, tenant TenantID, query ListQuery) (Page, error)
	// CountSandboxes counts a Tenant's records by State, ended ones left out.
	CountSandboxes(ctx context.Context, tenant TenantID) (map[State]int, error)
}

// KeyStore keeps API Keys, by the hash of their secret. Gateway alone writes
// here.
type KeyStore interface {
	// InsertKey adds a Key; Conflict when its ID is known, Exhausted when the
	// Tenant has MaxKeys. Those that expired KeyMemory before it was made are
	// removed.
	InsertKey(ctx context.Context, k Key) error
	// KeyByHash returns the Key whose secret, or whose previous one, has this hash,
	// valid or not; NotFound when there is none.
	KeyByHash(ctx context.Context, hash KeyHash) (Key, error)
	// Keys returns a Tenant's Keys, newest first, at most MaxKeys.
	Keys(ctx context.Context, tenant TenantID) ([]Key, error)
	// DeleteKey removes a Tenant's Key; NotFound when it has none of this ID.
	DeleteKey(ctx context.Context, tenant TenantID, id string) error
	// RenameKey gives a Tenant's Key another name; NotFound when it has none of this
	// ID.
	RenameKey(ctx context.Context, tenant TenantID, id, name string) error
	// RotateKey gives the Key with k's Tenant, ID and had as Hash the Hash, Hint,
	// UsedAt and Previous of k. NotFound when the Tenant has none of this ID, Conflict when its
	// Hash is another by now.
	RotateKey(ctx context.Context, k Key, had KeyHash) error
	// UsedKeys records when secrets were last used, by their hash. Unknown ones are
	// passed over, and a time never moves back.
	UsedKeys(ctx context.Context, used map[KeyHash]time.Time) error
}

// Once is a request that must take effect once: the first one with an
// Idempotency-Key, and its answer.
type Once struct {
	Tenant   TenantID
	Key      string // the client's
	Request  KeyHash
	Resource string // ID that what the request makes will have
	At       time.Time
	Holder   string // the process that carries it out
	Status   int    // of the answer; 0: under way, or its process died
	Answer   []byte
}

// OnceStore keeps requests that must take effect once. Gateway alone writes
// here.
type OnceStore interface {
	// BeginOnce records o when there is none of this Tenant and Key that began
	// after expired, and returns what is there then; began reports whether that
	// is o. One without an answer that another Holder has or had, for the same
	// request, is taken over: it keeps its Resource, so that what both make is one
	// thing.
	BeginOnce(ctx context.Context, o Once, expired time.Time) (there Once, began bool, err error)
	// FinishOnce records the answer.
	FinishOnce(ctx context.Context, o Once) error
	// DropOnce forgets a request of this Holder that failed.
	DropOnce(ctx context.Context, o Once) error
	// LetGoOnce leaves a request of this Holder, of which nobody knows whether it
	// took effect, to be taken over by the next one.
	LetGoOnce(ctx context.Context, o Once) error
	// DeleteOnces removes what began before the given time and returns how many.
	DeleteOnces(ctx context.Context, before time.Time) (int, error)
}

// NodeRecord is a Node and its Lease: its time-limited right to run Boots.
type NodeRecord struct {
	Name   string
	Engine string
	// Address is where other processes reach the Node, "unix:PATH" or an http
	// URL; empty for one that is reached in its own process only.
	Address    string
	LeaseUntil time.Time
}

// NodeStore keeps Nodes and their Leases.
type NodeStore interface {
	// RenewLease inserts or updates the Node's record.
	RenewLease(ctx context.Context, n NodeRecord) error
	// Nodes returns all records by name.
	Nodes(ctx context.Context) ([]NodeRecord, error)
}

// SigningKeyStore keeps the keys that sign URLs of files, one for each Tenant
// that ever signed one. Gateway alone writes here.
type SigningKeyStore interface {
	// EnsureSigningKey returns the key of k's Tenant, which is k when it had none.
	EnsureSigningKey(ctx context.Context, k SigningKey) (SigningKey, error)
	// ReplaceSigningKey makes k its Tenant's key; the one before is gone.
	ReplaceSigningKey(ctx context.Context, k SigningKey) error
	// SigningKeyByID returns a key, whoever has it; NotFound for one that was
	// replaced.
	SigningKeyByID(ctx context.Context, id string) (SigningKey, error)
}
