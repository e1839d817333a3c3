package sandbox

import (
	"context"
	"time"
)

// Store keeps the rows. A write passes the version of the record that it read
// (Sandbox.Version); a lost race is a Conflict. Times are UTC with microseconds. Every
// method honours ctx.
type Store interface {
	SandboxStore
	SnapshotStore
	LeftStates
	SnapshotMoves
	VolumeStore
	NodeStore
	LeaderStore
	CopyStore
	SigningKeyStore
	KeyStore
	SecretStore
	IdempotencyStore
	QuotaStore
	TenantStore
	UserStore
	AuditStore
	UsageStore
	WebhookStore
	// CheckWrite tries a write that changes nothing, and returns its error. The Detail is
	// for operators; the Code is Exhausted when the disk is full. The result may be up to
	// 1 s old.
	CheckWrite(ctx context.Context) error
	// Close waits for writes in progress and releases the database.
	Close() error
}

type laterKey struct{}

// CommitLater returns a context for a write to a Store whose result is not answered to a
// client before another write, with an ordinary context, has been committed. The Store
// does not wait until the first write is durable, because the second one makes it durable.
// A crash of the database server in between may lose the first write, and then also every
// write after it.
func CommitLater(ctx context.Context) context.Context {
	return context.WithValue(ctx, laterKey{}, true)
}

// CommitsLater reports whether ctx is one of CommitLater.
func CommitsLater(ctx context.Context) bool {
	later, _ := ctx.Value(laterKey{}).(bool)
	return later
}

// SandboxStore keeps Sandboxes and their past Boots. Only session-manager writes here.
type SandboxStore interface {
	SandboxRecords
	// InsertSandbox adds a record at version 1. The name of another Sandbox of the Tenant
	// that has not ended is a Conflict. So is a known ID, and a Snapshot or Volume that
	// is not a ready one of the Tenant. Exceeding the Tenant's Quota is Exhausted;
	// concurrent inserts cannot exceed it.
	InsertSandbox(ctx context.Context, s Sandbox) (Sandbox, error)
	// UpdateSandbox writes s if its stored version is s.Version, and returns it with
	// the next version. Conflict otherwise, NotFound if no record exists. Tenant, ID
	// and CreatedAt never change. It is also a Conflict if s pauses in or resumes from
	// a Snapshot that is not a ready one of the Tenant.
	UpdateSandbox(ctx context.Context, s Sandbox) (Sandbox, error)
	// SandboxesNotEnded returns all Tenants' Sandboxes that have not ended, for
	// reconciling.
	SandboxesNotEnded(ctx context.Context) ([]Sandbox, error)
	// SandboxesDue returns up to limit Sandboxes that are neither Ended nor Stopping and
	// whose Deadline is at or before now, earliest first, of all Tenants but those in except.
	SandboxesDue(ctx context.Context, now time.Time, limit int, except []TenantID) ([]Sandbox, error)
	// NextDeadline returns the earliest Deadline of a Sandbox that is neither Ended nor
	// Stopping; false when no such Sandbox exists.
	NextDeadline(ctx context.Context) (time.Time, bool, error)
	// DeleteEnded removes Sandboxes that ended before the given time. It also removes
	// Sandboxes with CauseRefused that ended before refused. It returns the number of
	// removed Sandboxes. It does not block other writes while it removes many.
	DeleteEnded(ctx context.Context, before, refused time.Time) (int, error)
}

// SandboxRecords reads the records of Sandboxes.
type SandboxRecords interface {
	// SandboxByID returns the record of any Tenant; callers check Tenant.
	SandboxByID(ctx context.Context, id string) (Sandbox, error)
	// SandboxesByID returns the records of any Tenant with these IDs, in any order. It
	// skips IDs without a record. At most 4096 IDs are allowed.
	SandboxesByID(ctx context.Context, ids []string) ([]Sandbox, error)
	// SandboxByName returns the Tenant's Sandbox of that name that has not
	// ended.
	SandboxByName(ctx context.Context, tenant TenantID, name string) (Sandbox, error)
	// ListSandboxes returns a Page of one Tenant's records.
	ListSandboxes(ctx context.Context, tenant TenantID, query ListQuery) (Page, error)
	// CountSandboxes counts a Tenant's Sandboxes by State, without Ended.
	CountSandboxes(ctx context.Context, tenant TenantID) (map[State]int, error)
}

// KeyStore keeps API Keys, by the hash of their secret. Only gateway writes here.
type KeyStore interface {
	// InsertKey adds a Key; Conflict when its ID is known, Exhausted when the Tenant has
	// MaxKeys. It also removes Keys that expired KeyMemory before k's CreatedAt.
	InsertKey(ctx context.Context, k Key) error
	// KeyByHash returns the Key whose current or previous secret has this hash, valid
	// or not. NotFound when no such Key exists.
	KeyByHash(ctx context.Context, hash KeyHash) (Key, error)
	// Keys returns a Tenant's Keys, newest first, at most MaxKeys.
	Keys(ctx context.Context, tenant TenantID) ([]Key, error)
	// DeleteKey removes a Tenant's Key; NotFound when the ID is unknown.
	DeleteKey(ctx context.Context, tenant TenantID, id string) error
	// RenameKey renames a Tenant's Key; NotFound when the ID is unknown.
	RenameKey(ctx context.Context, tenant TenantID, id, name string) error
	// RotateKey sets Hash, Hint, UsedAt and Previous of the Key with k's Tenant and ID,
	// if its stored Hash is had. NotFound when the ID is unknown, Conflict when the
	// stored Hash is not had.
	RotateKey(ctx context.Context, k Key, had KeyHash) error
	// UsedKeys records when secrets were last used, by their hash. It skips unknown
	// hashes and never moves a time back.
	UsedKeys(ctx context.Context, used map[KeyHash]time.Time) error
}

// IdempotencyRecord is the first request with an Idempotency-Key, and its response.
type IdempotencyRecord struct {
	Tenant   TenantID
	Key      string // the client's
	Request  KeyHash
	Resource string // ID of the resource that the request creates
	At       time.Time
	Holder   string // the process that executes it
	Status   int    // of the response; 0: in progress, or its process died
	Answer   []byte
}

// IdempotencyStore keeps idempotency records. Only gateway writes here.
type IdempotencyStore interface {
	// BeginIdempotent records o unless this Tenant and Key have a record that began after
	// expired, and returns the stored record. began reports whether the caller must
	// execute the request. A record of the same request without a response from another
	// Holder is taken over and keeps its Resource, so that both attempts create one
	// resource.
	BeginIdempotent(ctx context.Context, o IdempotencyRecord, expired time.Time) (there IdempotencyRecord, began bool, err error)
	// FinishIdempotent records the response, and adds e to the audit log as AppendAudit
	// does, both or neither. A record of another Holder stays as it is.
	FinishIdempotent(ctx context.Context, o IdempotencyRecord, e AuditEntry, started ...string) (AuditMark, error)
	// DropIdempotent deletes the record of a failed request of this Holder.
	DropIdempotent(ctx context.Context, o IdempotencyRecord) error
	// ReleaseIdempotent releases a record of this Holder whose request may or may not have taken
	// effect, so that the next attempt takes it over.
	ReleaseIdempotent(ctx context.Context, o IdempotencyRecord) error
	// DeleteIdempotent removes records that began before the given time and returns their
	// number.
	DeleteIdempotent(ctx context.Context, before time.Time) (int, error)
}

// NodeRecord is a Node and its Lease: its time-limited right to run Boots.
type NodeRecord struct {
	Name string
	// Holder is the identity of the data folder that has the Lease. Two hosts that were
	// given the same name differ in it.
	Holder string
	// Epoch counts the terms of the Name's Lease, from 1. A term ends when the Lease
	// expires before it is renewed.
	Epoch  int64
	Engine string
	// Address is where other processes reach the Node, "unix:PATH" or an http URL; empty
	// if the Node is reachable only inside its own process.
	Address string
	// Version is the version of the program that the Node runs; empty: an earlier program,
	// which does not report it.
	Version string
	// Draining says that no Sandbox starts on the Node, and that those there leave it.
	Draining bool
	// MoveVolumes says that while the Node drains its Volumes leave it too.
	MoveVolumes bool
	// FenceAfter is how long after a renewal the Node cuts off and freezes its Boots by
	// itself, unless it renews its Lease again. It counts from before it asked. Zero: it does
	// not, or an earlier program has renewed the Lease.
	FenceAfter time.Duration
	// Lost says that the Lease has expired and that nothing on the Node reaches anything any
	// more: an operator says so, or the Node has fenced itself. Then its Sandboxes start
	// elsewhere. It ends when the Node renews its Lease.
	Lost bool
	// LostEpoch is the latest Epoch in which the Node was Lost, or that another Holder ended;
	// 0: none. Sandboxes of Boots from that Epoch or before may run elsewhere. Negative: an
	// earlier program, which does not know it, has renewed the Lease.
	LostEpoch int64
	// LeaseLeft is how long the Lease lasts from the read on, by the Store's clock;
	// negative: it expired so long ago. Clocks of processes do not matter.
	LeaseLeft time.Duration
	// LeaseAge is how long before the read the Lease was renewed, by the Store's clock. It is
	// longer if an earlier program has renewed the Lease.
	LeaseAge time.Duration
}

// MinFenceAfter and MaxFenceAfter bound FenceAfter of a NodeRecord. A shorter time would cut
// Sandboxes off at each short failure of the network.
const (
	MinFenceAfter = 9 * time.Second
	MaxFenceAfter = 24 * time.Hour
)

// NodeStore keeps Nodes and their Leases.
type NodeStore interface {
	// RenewLease gives a Node the Lease of its name for life from now, by the Store's
	// clock, and returns the record. n's Epoch, LeaseLeft, LeaseAge, Draining, MoveVolumes,
	// Lost and LostEpoch are ignored.
	// Conflict while another Holder has the Lease, and until that has fenced itself.
	RenewLease(ctx context.Context, n NodeRecord, life time.Duration) (NodeRecord, error)
	// RetireNodes deletes the records of Nodes whose Lease expired longer than away ago,
	// unless they are Draining or a Sandbox that has not ended, a Snapshot or a Volume is on the Node. It
	// returns their names.
	RetireNodes(ctx context.Context, away time.Duration) ([]string, error)
	// Nodes returns all records by name.
	Nodes(ctx context.Context) ([]NodeRecord, error)
	// SetDraining sets Draining and MoveVolumes of a Node; NotFound for an unknown name. Both
	// stay set when the Node restarts.
	SetDraining(ctx context.Context, name string, draining, volumes bool) error
	// SetLost sets Lost of a Node, and with true LostEpoch, which stays. Conflict while it has
	// its Lease, or if its Epoch is not epoch (0: any); NotFound for an unknown name.
	SetLost(ctx context.Context, name string, epoch int64, lost bool) error
	// NodeUse returns the numbers of records of all Tenants that name a Node.
	NodeUse(ctx context.Context, name string) (NodeUse, error)
}

// NodeUse counts the records that name a Node.
type NodeUse struct {
	Running   int // Sandboxes that have not ended and are not paused
	Paused    int // Sandboxes that are paused in a state on the Node, or return to one if they do not resume
	Snapshots int // Kept Snapshots
	Uncopied  int // the part of Snapshots of which no complete copy is recorded
	Volumes   int
}

// SigningKeyStore keeps the keys that sign file URLs, one for each Tenant that ever
// signed one. Only gateway writes here.
type SigningKeyStore interface {
	// EnsureSigningKey returns the key of k's Tenant. It stores k when the Tenant has
	// none.
	EnsureSigningKey(ctx context.Context, k SigningKey) (SigningKey, error)
	// ReplaceSigningKey makes k its Tenant's key and deletes the previous key.
	ReplaceSigningKey(ctx context.Context, k SigningKey) error
	// SigningKeyByID returns a key of any Tenant; NotFound for a replaced key.
	SigningKeyByID(ctx context.Context, id string) (SigningKey, error)
}
