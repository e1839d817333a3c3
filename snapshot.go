package sandbox

import (
	"context"
	"io"
	"strings"
	"time"
)

const (
	// PausedLife is how long a Sandbox stays paused before it ends.
	PausedLife = 30 * 24 * time.Hour
	// MaxSnapshots bounds the Snapshots of a Tenant.
	MaxSnapshots = 20000
	// MaxForks bounds the Sandboxes that one Fork makes.
	MaxForks = 100
)

// SnapshotState is a Snapshot's position in its life cycle.
type SnapshotState string

const (
	SnapshotSaving   SnapshotState = "saving"   // recorded; its bytes may not exist yet
	SnapshotReady    SnapshotState = "ready"    // complete and immutable
	SnapshotDeleting SnapshotState = "deleting" // deleted; its bytes may still exist
)

// Snapshot is the saved state of one Sandbox at one moment: its files, and its memory if
// that was saved too. The Sandbox can resume from it or roll back to it, and any number
// of other Sandboxes can start from it.
type Snapshot struct {
	ID        string
	Tenant    TenantID
	SandboxID string // owner of the state; that Sandbox may have ended
	// Parent is the Snapshot that this state came from; empty: none. When the parent is
	// deleted, its own parent takes its place.
	Parent string
	// Name is NAME or NAME:TAG, unique among the Snapshots of one Sandbox; may be empty.
	Name string
	// Kept Snapshots stay until they are deleted. Others stay while a Sandbox that has
	// not ended refers to them.
	Kept bool
	// Layer identifies the steps of a Template's build that made it. A layer is a cache
	// for builds: ListSnapshots returns it only to a query for layers, it counts for no
	// Quota, and LayersBeyond decides when it is deleted. Empty: not a layer.
	Layer     string
	UsedAt    time.Time // of a layer: when it was made, or a Sandbox last started from it
	State     SnapshotState
	CreatedAt time.Time
	Node      string // that stores its bytes
	Bytes     int64  // on disk
	Memory    bool   // memory was saved too; otherwise a Sandbox that starts from it boots
	Build     string // of the engine; only the same build can restore the memory
	Digest    string // of the engine's manifest
	// CPU are the features that a Node needs to start from it; empty: any Node can, or
	// they were not recorded.
	CPU CPUFeatures

	// Properties of the Sandbox that it was saved from. A Sandbox that starts from it has
	// the same unless its request overrides them.
	Template string
	Image    string
	Shape    Shape
	Limits   Limits
	Network  NetworkPolicy
	Env      map[string]string
	User     string
	Cwd      string
	Timeline int64
	// Volumes are mounted in a Sandbox that starts from it; one may have been deleted by
	// then.
	Volumes []VolumeMount

	Uses    int   // number of Sandboxes that have not ended and refer to it; read-only
	Version int64 // of the record; a write passes the version that it read
}

// SnapshotRequest asks for a Snapshot of a Sandbox.
type SnapshotRequest struct {
	// ID is the ID of the new Snapshot and makes the request idempotent. Empty: a fresh
	// ID.
	ID        string
	Name      string // may be empty
	FilesOnly bool   // leave memory out
	// TakeName moves Name from the running Sandbox's Snapshot that has it to this one,
	// instead of a Conflict.
	TakeName bool
	// Layer is Snapshot.Layer: 64 lower-case hex digits, without a Name. Empty: none.
	Layer string
}

// SnapshotQuery selects Snapshots of one Tenant, newest first.
type SnapshotQuery struct {
	SandboxID string // empty: all Sandboxes of the Tenant, ended ones too
	Name      string // empty: any
	Tags      bool   // include Snapshots that have Name with a tag
	Kept      bool   // only Snapshots that are Kept
	Layers    bool   // only layers, which are left out otherwise
	Limit     int    // 1 to 100; zero: 100
	Cursor    string // SnapshotPage.Next; empty: first page
}

// SnapshotPage is one page of a list.
type SnapshotPage struct {
	Snapshots []Snapshot
	Next      string // empty: last page
}

// ForkRequest asks for copies of a Sandbox. Zero fields keep the original's values.
type ForkRequest struct {
	// ID is the base of the copies' IDs and makes the request idempotent. Empty: fresh
	// IDs.
	ID    string
	Count int // 1 to MaxForks
	// Name is the name of a single copy, or the prefix for several, followed by "-1" and
	// so on. Empty: no names.
	Name        string
	Timeout     time.Duration
	IdleTimeout *time.Duration // zero: never
	OnTimeout   OnTimeout
	StayPaused  *bool
	Network     NetworkPolicy
	// Secrets are the copies' Secrets; nil: none, or with KeepSecrets the original's.
	Secrets     *SecretUses
	KeepSecrets bool
	// Metadata and Env override these pairs of the original and keep the others; nil
	// removes a pair.
	Metadata map[string]*string
	Env      map[string]*string
}

// ImportRequest asks for a Snapshot from a file that ExportSnapshot wrote.
type ImportRequest struct {
	// ID is the ID of the new Snapshot and makes the request idempotent. Empty: a fresh
	// ID.
	ID   string
	Name string // empty: the name in the file
}

// Forked is the result of one copy.
type Forked struct {
	Sandbox Sandbox
	Err     error // nil: the copy runs
}

// Snapshots saves the state of Sandboxes and starts from it. The rules of Sandboxes
// apply.
type Snapshots interface {
	// TakeSnapshot saves a running Sandbox, which keeps running, or keeps the Snapshot
	// that a paused one is saved in. A name that another Snapshot of the Sandbox has is a
	// Conflict.
	TakeSnapshot(ctx context.Context, tenant TenantID, idOrName string, req SnapshotRequest) (Snapshot, error)
	// SnapshotByID returns a ready Snapshot.
	SnapshotByID(ctx context.Context, tenant TenantID, id string) (Snapshot, error)
	// ListSnapshots returns a page of ready Snapshots.
	ListSnapshots(ctx context.Context, tenant TenantID, query SnapshotQuery) (SnapshotPage, error)
	// History returns the Snapshots of a Sandbox and their ancestors, oldest first. Their
	// Parents form a tree.
	History(ctx context.Context, tenant TenantID, idOrName string) ([]Snapshot, error)
	// DeleteSnapshot deletes a Snapshot and returns its last record; Conflict while a
	// Sandbox is paused in it or starts from it.
	DeleteSnapshot(ctx context.Context, tenant TenantID, id string) (Snapshot, error)
	// Rollback restarts a Sandbox from a Snapshot in its History, by ID or name, and
	// returns it running, in its next Timeline. A running Sandbox is paused first; if a
	// later step fails, it stays paused.
	Rollback(ctx context.Context, tenant TenantID, idOrName, snapshot string) (Sandbox, error)
	// Fork returns copies of a running or paused Sandbox, which is not changed. Each
	// Forked has the error of its copy; Fork itself returns an error only for the steps
	// before.
	Fork(ctx context.Context, tenant TenantID, idOrName string, req ForkRequest) ([]Forked, error)
}

// SnapshotFiles carries Snapshots between installations, each as one file. The rules of
// Sandboxes apply.
type SnapshotFiles interface {
	// ExportSnapshot writes a Snapshot as one file for ImportSnapshot. The importing
	// installation needs the Template's image, unless image includes it in the file. On
	// error the bytes written so far are not a valid file. Exhausted when too many
	// exports are in progress.
	ExportSnapshot(ctx context.Context, tenant TenantID, id string, image bool, file io.Writer) error
	// ImportSnapshot creates a Kept Snapshot from such a file and reads the file to its
	// end. The Snapshot belongs to no Sandbox here and has no Parent. Invalid when the
	// file is incomplete or altered, Denied when it comes from an untrusted installation,
	// Conflict when its Template's image or its build of the Engine is missing here. On
	// error nothing is left. An image in the file becomes a version of the Tenant's
	// Template of the same name.
	ImportSnapshot(ctx context.Context, tenant TenantID, req ImportRequest, file io.Reader) (Snapshot, error)
}

// SnapshotStore keeps Snapshots. Only session-manager writes here.
type SnapshotStore interface {
	SnapshotRecords
	SnapshotNeeds
	// InsertSnapshot adds a record at version 1. An unknown Parent is cleared. A known ID
	// is a Conflict, and so is a name that another Snapshot of the Sandbox has. Exhausted
	// when the Tenant has MaxSnapshots, or when its Quota has no room for a Kept
	// Snapshot. While the size is unknown, any room left is enough.
	InsertSnapshot(ctx context.Context, s Snapshot) (Snapshot, error)
	// UpdateSnapshot writes s, all but Parent, if its stored version is s.Version, and
	// returns it with the next version. Conflict otherwise, NotFound if no record exists.
	// Exhausted when the write makes s Kept and ready and exceeds the Quota; concurrent
	// writes cannot exceed it.
	UpdateSnapshot(ctx context.Context, s Snapshot) (Snapshot, error)
	// RetireSnapshot marks a Snapshot as deleted. Conflict while a Sandbox is paused in
	// it, or resumes or starts from it. With loose, a ready Snapshot is also a Conflict
	// if it is Kept, or while any Sandbox that has not ended refers to it.
	RetireSnapshot(ctx context.Context, id string, loose bool) error
	// SnapshotsLeft returns the Snapshots to garbage-collect: saving or deleting ones,
	// and those not Kept that no Sandbox refers to, except ended Sandboxes.
	SnapshotsLeft(ctx context.Context) ([]Snapshot, error)
	// SnapshotTenants returns the Tenants that have Snapshots.
	SnapshotTenants(ctx context.Context) ([]TenantID, error)
	// DropSnapshot removes a record; its children get its Parent.
	DropSnapshot(ctx context.Context, id string) error
}

// LeftStates keeps which saved states are to be deleted on Nodes that were away when their
// Snapshots were dropped, or that their Snapshots have left. Only session-manager writes here.
type LeftStates interface {
	// LeaveSnapshot is DropSnapshot for a Snapshot whose Node cannot delete the state now.
	LeaveSnapshot(ctx context.Context, id string) error
	// StatesLeft returns up to limit states on Nodes that have their Lease.
	StatesLeft(ctx context.Context, limit int) ([]LeftState, error)
	// ClaimState returns NotFound if the state is not left any more, and Conflict if it is of a
	// ready Snapshot on that Node. It is a write, which the end of a leader's term refuses.
	ClaimState(ctx context.Context, s LeftState) error
	// ForgetState removes a record once the Node has deleted the state.
	ForgetState(ctx context.Context, s LeftState) error
}

// LeftState is a saved state that may be on a Node, and that no Snapshot needs there.
type LeftState struct{ Node, Snapshot string }

// SnapshotMoves keeps where the states of Snapshots are while they move between Nodes. Only
// session-manager writes here.
type SnapshotMoves interface {
	// SnapshotsAlone returns up to limit Kept Snapshots on a Node, oldest first, of which no
	// complete copy is recorded. Layers are left out, and Snapshots that RetireSnapshot refuses
	// because a Sandbox needs them.
	SnapshotsAlone(ctx context.Context, node string, limit int) ([]Snapshot, error)
	// BeginSnapshotMove records that another Node may soon have files of s, which are a
	// LeftState until MoveSnapshot. Conflict if there is such a LeftState already, or if s is
	// not ready or not on s.Node any more.
	BeginSnapshotMove(ctx context.Context, s Snapshot, to string) error
	// MoveSnapshot records that the state of s is on s.Node, with the properties that it has
	// there, and that the files on the Node from are a LeftState. Conflict if s is not ready, Kept
	// and on from any more, if a Sandbox needs it, or without BeginSnapshotMove.
	MoveSnapshot(ctx context.Context, s Snapshot, from string) error
}

// SnapshotRecords reads the records of Snapshots.
type SnapshotRecords interface {
	// SnapshotByID returns the record of any Tenant; callers check Tenant.
	SnapshotByID(ctx context.Context, id string) (Snapshot, error)
	// ListSnapshots returns a page of one Tenant's ready Snapshots.
	ListSnapshots(ctx context.Context, tenant TenantID, query SnapshotQuery) (SnapshotPage, error)
}

// SnapshotNeeds finds the images and Engine builds that the Snapshots of all Tenants
// still need.
type SnapshotNeeds interface {
	// SnapshotOfImage returns the newest Snapshot of any Tenant that needs an image and
	// is neither a layer nor being deleted. NotFound when no such Snapshot exists.
	SnapshotOfImage(ctx context.Context, image string) (Snapshot, error)
	// SnapshotOfBuild returns some Snapshot of any Tenant that is not being deleted and
	// whose memory only that build of the Engine restores. NotFound when no such
	// Snapshot exists.
	SnapshotOfBuild(ctx context.Context, build string) (Snapshot, error)
	// SnapshotBuilds returns the number of Snapshots of all Tenants that SnapshotOfBuild
	// would match, by Engine build.
	SnapshotBuilds(ctx context.Context) (map[string]int, error)
}

// Check returns Invalid, saying what to change, when the request breaks a rule that can
// be checked from the request alone.
func (r SnapshotRequest) Check() error {
	if r.ID != "" && !ValidSnapshotID(r.ID) {
		return Errorf(Invalid, "the snapshot ID is invalid")
	}
	if r.Layer != "" && (!layerPattern.MatchString(r.Layer) || r.Name != "") {
		return Errorf(Invalid, "a layer has 64 lower-case hex digits, and no name")
	}
	return checkSnapshotName(r.Name)
}

// Check returns Invalid as SnapshotRequest.Check does.
func (r ImportRequest) Check() error { return SnapshotRequest{ID: r.ID, Name: r.Name}.Check() }

// templatePattern matches a Template's name with its tag or version.
var templatePattern = lazily(`^[a-z0-9][a-z0-9._@:-]{0,150}$`)

// CheckOrigin returns Invalid when s has properties that no Sandbox can have. It is for a
// Snapshot that another installation wrote.
func (s Snapshot) CheckOrigin() error {
	if !templatePattern.MatchString(s.Template) {
		return Errorf(Invalid, "the snapshot names no template")
	}
	if s.Timeline < 1 {
		return Errorf(Invalid, "the snapshot has no timeline")
	}
	if err := s.CPU.Check(); err != nil {
		return err
	}
	if err := s.Shape.Check(); err != nil {
		return err
	}
	if err := s.Shape.CheckLimits(s.Limits); err != nil {
		return Errorf(Invalid, "the snapshot has limits that its shape does not allow").WithCause(err)
	}
	if err := checkSnapshotName(s.Name); err != nil {
		return err
	}
	if err := s.Network.check(); err != nil {
		return err
	}
	if err := checkPlace(s.User, s.Cwd); err != nil {
		return err
	}
	return CheckEnv(s.Env)
}

func checkSnapshotName(name string) error {
	base, tag, _ := strings.Cut(name, ":")
	switch {
	case name == "":
	case !snapshotPattern.MatchString(name) || ValidSnapshotID(base):
		return Errorf(Invalid, "name must be 1 to 63 of a-z, 0-9, '.', '_' and '-', begin and end with a letter or digit, and not look like a snapshot ID; a tag, after a colon, likewise")
	case tag == snapshotLatest:
		return Errorf(Invalid, "a name without a tag has the tag %q: leave it out", snapshotLatest)
	}
	return nil
}

// snapshotPattern matches a Snapshot's NAME or NAME:TAG. snapshotLatest is the tag that
// must be left out.
var snapshotPattern = lazily(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?(:[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?)?$`)

const snapshotLatest = "latest"

// Check returns Invalid as SnapshotRequest.Check does.
func (r ForkRequest) Check() error {
	if r.Count < 1 || r.Count > MaxForks {
		return Errorf(Invalid, "count must be between 1 and %d", MaxForks)
	}
	if r.Count > 1 && len(r.Name) > maxForkName {
		return Errorf(Invalid, "the name of several forks may have at most %d characters: each gets a number", maxForkName)
	}
	if r.IdleTimeout != nil {
		if err := checkIdleTimeout(*r.IdleTimeout); err != nil {
			return err
		}
	}
	create := CreateRequest{ID: r.ID, Name: r.Name, Timeout: r.Timeout, OnTimeout: r.OnTimeout, Network: r.Network}
	if r.Secrets != nil {
		if create.Secrets = *r.Secrets; r.KeepSecrets {
			return Errorf(Invalid, "give the forks secrets of their own, or keep_secrets, not both")
		}
	}
	if err := create.Check(); err != nil {
		return err
	}
	return CheckEnv(merged(nil, r.Env))
}

const maxForkName = 58
