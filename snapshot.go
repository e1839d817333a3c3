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
	// MaxSnapshots is how many Snapshots a Tenant may have.
	MaxSnapshots = 20000
	// MaxForks is how many Sandboxes one Fork makes.
	MaxForks = 100
)

// SnapshotState is where a Snapshot is in its life.
type SnapshotState string

const (
	SnapshotSaving   SnapshotState = "saving"   // recorded, its bytes perhaps not there
	SnapshotReady    SnapshotState = "ready"    // whole, and never changed again
	SnapshotDeleting SnapshotState = "deleting" // given up, its bytes perhaps still there
)

// Snapshot is the saved state of one Sandbox at one moment: its files, and its
// memory if that was saved too. The Sandbox can resume from it or go back to it,
// and any number of others can start from it.
type Snapshot struct {
	ID        string
	Tenant    TenantID
	SandboxID string // whose state it is; that Sandbox may have ended
	// Parent is the Snapshot that this state came from; empty: none. When one is
	// deleted its own parent takes its place.
	Parent string
	// Name is NAME or NAME:TAG, unique among those of one Sandbox; may be empty.
	Name string
	// Kept says that it stays until somebody deletes it. Others stay for as long
	// as a Sandbox that has not ended refers to them.
	Kept bool
	// Layer names the steps of a Template's build that made it. Then it is what builds
	// go on from: ListSnapshots shows it only to who asks for layers, it counts for no
	// Quota, and it goes as LayersBeyond says. Empty: it is none.
	Layer     string
	UsedAt    time.Time // of a Layer: when it was made, or a Sandbox last started from it
	State     SnapshotState
	CreatedAt time.Time
	Node      string // that has its bytes
	Bytes     int64  // on disk
	Memory    bool   // memory was saved too; otherwise what starts from it boots
	Build     string // of the engine, which alone can restore memory
	Digest    string // of the engine's manifest

	// What it was saved from, and what is started from it has unless it is asked
	// for otherwise.
	Template string
	Image    string
	Shape    Shape
	Limits   Limits
	Network  NetworkPolicy
	Env      map[string]string
	User     string
	Cwd      string
	Timeline int64
	// Volumes are those that what is started from it has; one may be gone by then.
	Volumes []VolumeMount

	Uses    int   // Sandboxes that have not ended and refer to it; read, never written
	Version int64 // of the record; a write names the version it read
}

// SnapshotRequest asks for a Snapshot of a Sandbox.
type SnapshotRequest struct {
	// ID is the one it will have, for a request that must take effect once. Empty:
	// a fresh one.
	ID        string
	Name      string // may be empty
	FilesOnly bool   // leave memory out
	// TakeName has a Snapshot of the running Sandbox that has Name lose it to this
	// one, instead of a Conflict.
	TakeName bool
	// Layer is Snapshot.Layer: 64 lower-case hex digits, and no name. Empty: none.
	Layer string
}

// SnapshotQuery selects Snapshots of one Tenant, newest first.
type SnapshotQuery struct {
	SandboxID string // empty: of all its Sandboxes, also ended ones
	Name      string // empty: any
	Tags      bool   // those too that have Name with a tag
	Kept      bool   // only those that somebody asked for
	Layers    bool   // those with a Layer, instead of those without
	Limit     int    // 1 to 100; zero: 100
	Cursor    string // from an earlier SnapshotPage; empty: the beginning
}

// SnapshotPage is one page of a list.
type SnapshotPage struct {
	Snapshots []Snapshot
	Next      string // empty: no more
}

// ForkRequest asks for copies of a Sandbox. Zero fields mean what the original
// has.
type ForkRequest struct {
	// ID is what those of the copies are made from, for a request that must take
	// effect once. Empty: fresh ones.
	ID    string
	Count int // 1 to MaxForks
	// Name is that of a single copy; of several the beginning, followed by "-1"
	// and so on. Empty: none.
	Name        string
	Timeout     time.Duration
	IdleTimeout *time.Duration // zero: never
	OnTimeout   OnTimeout
	StayPaused  *bool
	Network     NetworkPolicy
	// Secrets are those of the copies; nil: none, or with KeepSecrets the
	// original's.
	Secrets     *SecretUses
	KeepSecrets bool
	// Metadata and Env change these pairs of the original's and leave the others;
	// nil removes one.
	Metadata map[string]*string
	Env      map[string]*string
}

// ImportRequest asks for a Snapshot of a file that ExportSnapshot wrote.
type ImportRequest struct {
	// ID is the one it will have, for a request that must take effect once. Empty:
	// a fresh one.
	ID   string
	Name string // may be empty: the one that it had
}

// Forked is what became of one copy.
type Forked struct {
	Sandbox Sandbox
	Err     error // nil: it runs
}

// Snapshots saves the state of Sandboxes and starts from it. The rules of Sandboxes
// apply.
type Snapshots interface {
	// TakeSnapshot saves a running Sandbox, which runs on, or keeps what a paused
	// one is saved in. A name that the Sandbox has a Snapshot of is a Conflict.
	TakeSnapshot(ctx context.Context, tenant TenantID, idOrName string, req SnapshotRequest) (Snapshot, error)
	// SnapshotByID returns one that is ready.
	SnapshotByID(ctx context.Context, tenant TenantID, id string) (Snapshot, error)
	// ListSnapshots returns a page of those that are ready.
	ListSnapshots(ctx context.Context, tenant TenantID, query SnapshotQuery) (SnapshotPage, error)
	// History returns the Snapshots of a Sandbox and those that they came from,
	// oldest first: their Parents make a tree.
	History(ctx context.Context, tenant TenantID, idOrName string) ([]Snapshot, error)
	// DeleteSnapshot deletes one and returns its last record; Conflict while a
	// Sandbox is paused in it or starts from it.
	DeleteSnapshot(ctx context.Context, tenant TenantID, id string) (Snapshot, error)
	// Rollback has a Sandbox go on from a Snapshot, by ID or name, that is in its
	// History, and returns it running, in its next Timeline. A running one is paused
	// first; when the rest fails it stays so.
	Rollback(ctx context.Context, tenant TenantID, idOrName, snapshot string) (Sandbox, error)
	// Fork returns copies of a running or paused Sandbox, which itself stays as it
	// is. Some may fail and others not; the error is of what comes before.
	Fork(ctx context.Context, tenant TenantID, idOrName string, req ForkRequest) ([]Forked, error)
}

// SnapshotFiles carries Snapshots between installations, each as one file. The rules of
// Sandboxes apply.
type SnapshotFiles interface {
	// ExportSnapshot writes a Snapshot as one file that ImportSnapshot takes, at
	// any installation that has its Template's image; with image, which the file then
	// holds, at any. What was written when it fails is not such a file. Exhausted
	// when too many are under way.
	ExportSnapshot(ctx context.Context, tenant TenantID, id string, image bool, file io.Writer) error
	// ImportSnapshot makes a Snapshot, which is kept, of such a file, and reads it to
	// its end. It belongs to no Sandbox that is here and came from no other Snapshot.
	// Invalid when the file is not whole as it was written, Denied when it comes from
	// an installation that this one does not trust, Conflict when what it needs is
	// not here: its Template's image, its build of the Engine. Then nothing is left. An
	// image that comes with it becomes a version of the Tenant's Template of its name.
	ImportSnapshot(ctx context.Context, tenant TenantID, req ImportRequest, file io.Reader) (Snapshot, error)
}

// SnapshotStore keeps Snapshots. Session-manager alone writes here.
type SnapshotStore interface {
	SnapshotRecords
	SnapshotNeeds
	// InsertSnapshot adds a record at version 1. A Parent that is not there
	// becomes none. A known ID, and a name that the Sandbox has a Snapshot of, is a
	// Conflict; Exhausted when the Tenant has MaxSnapshots, and when its Quota has
	// no room for one that is Kept: none at all while its size is not known.
	InsertSnapshot(ctx context.Context, s Snapshot) (Snapshot, error)
	// UpdateSnapshot writes s, all but Parent, if its stored version is s.Version,
	// and returns it with the next one; Conflict otherwise, NotFound if there is
	// none. Exhausted when s becomes Kept and ready by that and the Quota has no room
	// for all then, exactly, however many write at once.
	UpdateSnapshot(ctx context.Context, s Snapshot) (Snapshot, error)
	// RetireSnapshot records that one is deleted. It is a Conflict while a Sandbox
	// is paused in it, resumes or starts from it; with loose, of one that is ready,
	// also while any refers to it that has not ended, and when it is Kept.
	RetireSnapshot(ctx context.Context, id string, loose bool) error
	// SnapshotsLeft returns those that are saving or deleting, and those that are
	// not Kept and that no Sandbox refers to which has not ended.
	SnapshotsLeft(ctx context.Context) ([]Snapshot, error)
	// SnapshotTenants returns the Tenants that have Snapshots.
	SnapshotTenants(ctx context.Context) ([]TenantID, error)
	// DropSnapshot removes a record; those whose Parent it was get its own.
	DropSnapshot(ctx context.Context, id string) error
}

// SnapshotRecords reads the records of Snapshots.
type SnapshotRecords interface {
	// SnapshotByID returns the record, whoever owns it; callers check Tenant.
	SnapshotByID(ctx context.Context, id string) (Snapshot, error)
	// ListSnapshots returns a page of one Tenant's that are ready.
	ListSnapshots(ctx context.Context, tenant TenantID, query SnapshotQuery) (SnapshotPage, error)
}

// SnapshotNeeds tells which images and builds of the Engine the Snapshots of all Tenants
// still need.
type SnapshotNeeds interface {
	// SnapshotOfImage returns the newest Snapshot, of whatever Tenant, that stands on
	// an image and is neither a layer nor being deleted; NotFound when there is none.
	SnapshotOfImage(ctx context.Context, image string) (Snapshot, error)
	// SnapshotOfBuild returns some Snapshot, of whatever Tenant, whose memory only that
	// build of the Engine restores and that is not being deleted; NotFound when there
	// is none.
	SnapshotOfBuild(ctx context.Context, build string) (Snapshot, error)
	// SnapshotBuilds returns how many Snapshots each build of the Engine has, of
	// whatever Tenant, in the sense of SnapshotOfBuild.
	SnapshotBuilds(ctx context.Context) (map[string]int, error)
}

// Check returns Invalid, saying what to change, when the request breaks a rule
// that needs no other knowledge than the request.
func (r SnapshotRequest) Check() error {
	if r.ID != "" && !ValidSnapshotID(r.ID) {
		return Errorf(Invalid, "the snapshot ID is not one")
	}
	if r.Layer != "" && (!layerPattern.MatchString(r.Layer) || r.Name != "") {
		return Errorf(Invalid, "a layer has 64 lower-case hex digits, and no name")
	}
	return checkSnapshotName(r.Name)
}

// Check returns Invalid as SnapshotRequest.Check does.
func (r ImportRequest) Check() error { return SnapshotRequest{ID: r.ID, Name: r.Name}.Check() }

// templatePattern is what a Template may be called by, with its tag or version.
var templatePattern = lazily(`^[a-z0-9][a-z0-9._@:-]{0,150}$`)

// CheckOrigin returns Invalid when what s says of what it was saved from, which
// somebody else wrote, is nothing that a Sandbox can have.
func (s Snapshot) CheckOrigin() error {
	if !templatePattern.MatchString(s.Template) {
		return Errorf(Invalid, "the snapshot names no template")
	}
	if s.Timeline < 1 {
		return Errorf(Invalid, "the snapshot has no timeline")
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
		return Errorf(Invalid, "the tag %q is that of a name without a tag: leave it out", snapshotLatest)
	}
	return nil
}

// snapshotPattern is what a Snapshot may be called by, and snapshotLatest the tag that
// is left out there.
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
