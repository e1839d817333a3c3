package sandbox

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"
)

// Defaults and bounds of a Session.
const (
	DefaultSessionTimeout = 30 * time.Minute
	DefaultAcquireTimeout = 10 * time.Minute
	MaxTimeout            = 24 * time.Hour
	MinIdleTimeout        = time.Second
)

// CreateRequest asks for a Sandbox. Zero fields mean the defaults.
type CreateRequest struct {
	// ID is the ID of the new Sandbox. It makes the request idempotent: a second Create
	// with it is a Conflict. Empty: a fresh ID.
	ID       string
	Template string // empty: "base"
	Name     string
	Timeout  time.Duration // zero: DefaultSessionTimeout
	// IdleTimeout is the time without use after which OnTimeout acts; zero: never.
	IdleTimeout time.Duration
	OnTimeout   OnTimeout // empty: OnTimeoutEnd
	StayPaused  bool      // once paused, only Resume wakes it
	// CheckpointEvery is how often it is saved while it runs; zero: never.
	CheckpointEvery time.Duration
	// Snapshot is the ID of the Snapshot to start from, or a name, which selects the
	// Tenant's newest Snapshot of that name. The Snapshot fixes Template and Shape.
	// Network, Env, User and Cwd override its values, Env pair by pair.
	Snapshot string
	Shape    Shape // zero: DefaultShape
	// Bandwidth is Limits.Bandwidth; zero: the Snapshot's, or no limit.
	Bandwidth int64
	Network   NetworkPolicy // empty: the operator's default
	Ingress   Ingress
	Secrets   SecretUses
	// Volumes are mounted for the Sandbox's whole life. A Sandbox that starts from a
	// Snapshot has the Snapshot's Volumes.
	Volumes  []VolumeMount
	Metadata map[string]string
	Env      map[string]string
	User     string // default user of Processes; empty: "user"
	Cwd      string // empty: /workspace
}

// A Change updates a running Sandbox. Nil fields stay unchanged.
type Change struct {
	Name        *string        // empty: none
	Timeout     *time.Duration // moves the deadline to this long from now
	IdleTimeout *time.Duration // zero: never
	OnTimeout   *OnTimeout
	StayPaused  *bool
	// CheckpointEvery is how often it is saved while it runs; zero: never.
	CheckpointEvery *time.Duration
	Network         *NetworkPolicy
	Ingress         *Ingress
	Port            *PortChange // changes one port of Ingress
	Secrets         *SecretUses
	CPUs            *float64
	MemoryBytes     *int64
	Pids            *int64
	Bandwidth       *int64  // as Limits.Bandwidth
	User            *string // default user of new Processes; empty: "user"
	Cwd             *string // default working directory of new ones; empty: /workspace
	// Metadata and Env set these pairs and keep the others; nil removes a pair.
	Metadata map[string]*string
	Env      map[string]*string // of new Processes

	// These fields are fixed when a Sandbox starts: another value is a Conflict.
	Template  *string
	DiskBytes *int64
	Volumes   *[]VolumeMount // as in a CreateRequest
}

// Use reports that a Sandbox was used just now.
type Use struct {
	SandboxID string
	// Output is the output of its Processes since the last Use, at most its last
	// MaxOutputTail bytes.
	Output []byte
}

// ListQuery selects Sandboxes of one Tenant, newest first.
type ListQuery struct {
	States      []State           // empty: all but Ended
	Metadata    map[string]string // every pair must match
	Template    string            // a name without tag and version; empty: any
	From        time.Time         // created at or after; zero: no bound
	OldestFirst bool
	Limit       int    // 1 to 100; zero: 100
	Cursor      string // Page.Next of the same order; empty: first page
}

// Page is one page of a list.
type Page struct {
	Sandboxes []Sandbox
	Next      string // empty: last page
}

// Sandboxes is the whole session manager, which controls the life of every Sandbox. It
// joins the ports below for the code that connects roles. Other code depends only on the
// ports whose methods it calls.
//
// In each port, an ID or name that another Tenant owns is NotFound, exactly as if it did
// not exist. Methods are safe for concurrent use.
type Sandboxes interface {
	SandboxReader
	Lifecycle
	Updates
	Snapshots
	SnapshotFiles
	Volumes
}

// SandboxReader reads the Sandboxes of a Tenant and changes nothing. The rules of
// Sandboxes apply.
type SandboxReader interface {
	// Get returns a Sandbox by ID or name. An ended Sandbox is found by ID while its
	// TerminationRecord is kept.
	Get(ctx context.Context, tenant TenantID, idOrName string) (Sandbox, error)
	// Settled is Get, but first waits for a create, pause or resume in progress.
	Settled(ctx context.Context, tenant TenantID, idOrName string) (Sandbox, error)
	List(ctx context.Context, tenant TenantID, query ListQuery) (Page, error)
	// Counts returns the number of a Tenant's Sandboxes in each State but Ended.
	Counts(ctx context.Context, tenant TenantID) (map[State]int, error)
	// Idle returns the number of a Tenant's running Sandboxes that were not used for
	// IdleAfter. It counts only use that the current session-manager process has seen.
	Idle(ctx context.Context, tenant TenantID) (int, error)
}

// Lifecycle starts, pauses, resumes and ends Sandboxes. The rules of Sandboxes apply.
// Concurrent calls for one Sandbox are serialized.
type Lifecycle interface {
	// Create records, starts and binds a Sandbox, and returns it running. A name in use
	// is a Conflict, lack of capacity Exhausted, an unknown Template NotFound, and an
	// unknown Volume Invalid.
	Create(ctx context.Context, tenant TenantID, req CreateRequest) (Sandbox, error)
	// Ensure returns the Tenant's running Sandbox of req.Name and ignores the rest of
	// req, or creates the Sandbox. A name is required. Ensure waits for a starting
	// Sandbox and resumes a paused one.
	Ensure(ctx context.Context, tenant TenantID, req CreateRequest) (sb Sandbox, created bool, err error)
	// Pause saves a running Sandbox and frees its Boot. It returns the paused record once
	// the state is safe on disk; it completes even if the client disconnects earlier. A
	// paused Sandbox is returned unchanged. If saving fails, the Sandbox keeps running.
	// Unsupported when the Engine cannot pause, Exhausted when the host lacks disk
	// space or memory for the state.
	Pause(ctx context.Context, tenant TenantID, idOrName string, filesOnly bool) (Sandbox, error)
	// Resume resumes a paused Sandbox and returns it once it runs. A running Sandbox is
	// returned unchanged. Concurrent calls share one resume and its result. If the resume
	// fails, the Sandbox stays paused: Conflict means that its saved state is damaged or
	// gone; Exhausted and Unavailable may be transient.
	Resume(ctx context.Context, tenant TenantID, idOrName string) (Sandbox, error)
	// Reboot is Resume from the files alone. Processes that ran when the Sandbox was
	// paused are gone and never run again. The files are in the state that a power cut
	// would leave.
	Reboot(ctx context.Context, tenant TenantID, idOrName string) (Sandbox, error)
	// End ends a Sandbox and returns its last record once nothing of it runs. Ending an
	// ended Sandbox is NotFound.
	End(ctx context.Context, tenant TenantID, idOrName string, cause Cause) (Sandbox, error)
}

// Updates changes settings and deadlines of Sandboxes without starting, pausing or
// ending them. The rules of Sandboxes apply.
type Updates interface {
	// Update changes a running or paused Sandbox and returns the new record. On error the
	// Sandbox is unchanged, or is soon reverted. Conflict names the field that cannot
	// change.
	Update(ctx context.Context, tenant TenantID, idOrName string, change Change) (Sandbox, error)
	// SetTimeout moves the deadline to timeout from now, nearer or farther. timeout must
	// be in (0, MaxTimeout]; an ended Sandbox is a Conflict. For a paused Sandbox the
	// timeout begins when it resumes. SetTimeout waits for a pause or resume in progress.
	// Exhausted when the Quota does not allow that long.
	SetTimeout(ctx context.Context, tenant TenantID, idOrName string, timeout time.Duration) (Sandbox, error)
	// RunFor is SetTimeout for the current run only: the Sandbox keeps its Timeout for
	// the next run. It does not change a paused Sandbox.
	RunFor(ctx context.Context, tenant TenantID, idOrName string, timeout time.Duration) (Sandbox, error)
	// Touch counts as use of a running Sandbox and moves its deadline to Timeout from
	// now, within the Quota, but never earlier. A paused Sandbox is kept for another
	// PausedLife. Touch waits for a pause or resume in progress.
	Touch(ctx context.Context, tenant TenantID, idOrName string) (Sandbox, error)
	// SecretChanged reports that a Tenant's Secret has a new value or was deleted. It
	// returns when all running Sandboxes that use the Secret have applied that, or will
	// soon.
	SecretChanged(ctx context.Context, tenant TenantID, name string) error
	// Used reports Sandboxes that were used; unknown ones are ignored. A proxy of
	// requests to Sandboxes calls it every UseEvery for the Sandboxes that had a request
	// since then, or have one in progress.
	Used(ctx context.Context, uses []Use) error
}

// IdleAfter is the time after its last use from which a running Sandbox counts as idle.
const IdleAfter = 30 * time.Second

// UseEvery is the interval at which use of Sandboxes is reported; see Sandboxes.Used.
const UseEvery = 500 * time.Millisecond

var namePattern = lazily(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)

// Check returns Invalid, saying what to change, when the request breaks a rule that can
// be checked from the request alone.
func (r CreateRequest) Check() error {
	if r.ID != "" && !ValidSandboxID(r.ID) {
		return Errorf(Invalid, "the sandbox ID is invalid")
	}
	if err := checkName(r.Name); err != nil {
		return err
	}
	if r.Timeout != 0 {
		if err := CheckTimeout(r.Timeout); err != nil {
			return err
		}
	}
	if err := cmp.Or(checkIdleTimeout(r.IdleTimeout), checkCheckpointEvery(r.CheckpointEvery)); err != nil {
		return err
	}
	if r.Network != "" {
		if err := r.Network.check(); err != nil {
			return err
		}
	}
	if err := cmp.Or(r.Ingress.check(), r.Secrets.check()); err != nil {
		return err
	}
	if r.OnTimeout != "" {
		if err := r.OnTimeout.check(); err != nil {
			return err
		}
	}
	if err := r.checkSnapshot(); err != nil {
		return err
	}
	if err := checkPlace(r.User, r.Cwd); err != nil {
		return err
	}
	if r.Shape != (Shape{}) {
		if err := r.Shape.Check(); err != nil {
			return err
		}
	}
	if err := CheckEnv(r.Env); err != nil {
		return err
	}
	return cmp.Or(CheckBandwidth(r.Bandwidth), CheckVolumeMounts(r.Volumes), checkMetadata(r.Metadata))
}

func (r CreateRequest) checkSnapshot() error {
	switch {
	case r.Snapshot == "":
	case !snapshotPattern.MatchString(r.Snapshot): // IDs have the form of names
		return Errorf(Invalid, "snapshot_id is neither the ID nor the name of a snapshot: names are 1 to 63 of a-z, 0-9, '.', '_' and '-', perhaps with a tag after a colon")
	case r.Template != "":
		return Errorf(Invalid, "a snapshot has its template: leave out template or snapshot_id")
	case r.Shape != (Shape{}):
		return Errorf(Invalid, "a snapshot has its resources: leave out resources or snapshot_id; limits can be changed later")
	case len(r.Volumes) > 0:
		return Errorf(Invalid, "a snapshot has its volumes: leave out volumes or snapshot_id")
	}
	return nil
}

func checkName(name string) error {
	if name != "" && (!namePattern.MatchString(name) || ValidSandboxID(name)) {
		return Errorf(Invalid, "name must be 1 to 63 of a-z, 0-9, '.', '_' and '-', begin and end with a letter or digit, and not look like a sandbox ID")
	}
	return nil
}

// CheckTimeout returns Invalid unless d is in (0, MaxTimeout].
func CheckTimeout(d time.Duration) error {
	if d <= 0 || d > MaxTimeout {
		return Errorf(Invalid, "timeout_seconds must be more than 0 and at most %d", int(MaxTimeout.Seconds()))
	}
	return nil
}

func checkIdleTimeout(d time.Duration) error {
	if d != 0 && (d < MinIdleTimeout || d > MaxTimeout) {
		return Errorf(Invalid, "idle_timeout_seconds must be between %d and %d, or 0 for none", int(MinIdleTimeout.Seconds()), int(MaxTimeout.Seconds()))
	}
	return nil
}

// checkPlace checks the form of a user and a folder. Only the Guest knows whether they
// exist.
func checkPlace(user, cwd string) error {
	const maxUser, maxCwd = 64, 4096
	if len(user) > maxUser || strings.ContainsRune(user, 0) {
		return Errorf(Invalid, "user must have at most %d bytes and no zero byte", maxUser)
	}
	if len(cwd) > maxCwd || strings.ContainsRune(cwd, 0) {
		return Errorf(Invalid, "cwd must have at most %d bytes and no zero byte", maxCwd)
	}
	return nil
}

// Apply returns s with the Change c applied at the time now. It returns Invalid for a bad
// value and Conflict for a field that cannot change while s runs. It does not check the
// State. The Revision grows when the Boot must learn of the change.
func (c Change) Apply(s Sandbox, now time.Time) (Sandbox, error) {
	if err := c.checkFixed(s); err != nil {
		return s, err
	}
	next := s
	next.Metadata, next.Env = merged(s.Metadata, c.Metadata), merged(s.Env, c.Env)
	set(&next.Name, c.Name)
	set(&next.IdleTimeout, c.IdleTimeout)
	set(&next.OnTimeout, c.OnTimeout)
	set(&next.StayPaused, c.StayPaused)
	set(&next.CheckpointEvery, c.CheckpointEvery)
	set(&next.Network, c.Network)
	var err error
	if c.Ingress != nil {
		if next.Ingress, err = c.Ingress.after(s.Ingress); err != nil {
			return s, err
		}
	}
	if c.Port != nil {
		if next.Ingress, err = c.Port.apply(next.Ingress); err != nil {
			return s, err
		}
	}
	set(&next.Secrets, c.Secrets)
	set(&next.Limits.CPUs, c.CPUs)
	set(&next.Limits.MemoryBytes, c.MemoryBytes)
	set(&next.Limits.Pids, c.Pids)
	set(&next.Limits.Bandwidth, c.Bandwidth)
	set(&next.User, c.User)
	set(&next.Cwd, c.Cwd)
	if c.Timeout != nil {
		if err := CheckTimeout(*c.Timeout); err != nil {
			return s, err
		}
		if err := next.SetTimeout(*c.Timeout, now); err != nil {
			return s, err
		}
	}
	if err := next.checkChanged(s); err != nil {
		return s, err
	}
	if next.Limits != s.Limits || next.Network != s.Network || next.Secrets != s.Secrets || next.User != s.User || next.Cwd != s.Cwd || !maps.Equal(next.Env, s.Env) {
		next.Revision++
	}
	return next, nil
}

// checkFixed returns Conflict if c changes a field that is fixed when a Sandbox starts.
func (c Change) checkFixed(s Sandbox) error {
	if c.Template != nil && *c.Template != s.Template {
		return Errorf(Conflict, "the template of a sandbox cannot change: create another sandbox from %q", *c.Template)
	}
	if c.DiskBytes != nil && *c.DiskBytes != s.Shape.DiskBytes {
		return Errorf(Conflict, "disk_mb cannot change while the sandbox runs: its disk has %d MiB since it started; create another one", s.Shape.DiskBytes>>20)
	}
	if c.Volumes != nil && !s.hasVolumes(*c.Volumes) {
		return Errorf(Conflict, "the volumes cannot change: they are mounted when the sandbox starts; create another one with them")
	}
	return nil
}

// hasVolumes reports whether s has exactly the asked Volumes mounted, matched by name or
// ID.
func (s Sandbox) hasVolumes(asked []VolumeMount) bool {
	has := func(m VolumeMount) bool {
		return slices.ContainsFunc(asked, func(a VolumeMount) bool { return a.Path == m.Path && (a.Volume == m.Volume || a.Volume == m.Name) })
	}
	return len(asked) == len(s.Volumes) && !slices.ContainsFunc(s.Volumes, func(m VolumeMount) bool { return !has(m) })
}

// checkChanged checks the fields of s that may differ from before.
func (s Sandbox) checkChanged(before Sandbox) error {
	if s.Limits != before.Limits {
		if err := s.Shape.CheckLimits(s.Limits); err != nil {
			return err
		}
	}
	if s.OnTimeout != before.OnTimeout {
		if err := s.OnTimeout.check(); err != nil {
			return err
		}
	}
	return cmp.Or(checkName(s.Name), checkIdleTimeout(s.IdleTimeout), checkCheckpointEvery(s.CheckpointEvery), s.Network.check(), s.Ingress.check(), s.Secrets.check(), checkPlace(s.User, s.Cwd),
		CheckEnv(s.Env), checkMetadata(s.Metadata))
}

func set[T any](field *T, value *T) {
	if value != nil {
		*field = *value
	}
}

// merged returns a copy of m with the pairs of change set; a nil value removes its key.
func merged(m map[string]string, change map[string]*string) map[string]string {
	out := maps.Clone(m)
	for k, v := range change {
		switch {
		case v == nil:
			delete(out, k)
		case out == nil:
			out = map[string]string{k: *v}
		default:
			out[k] = *v
		}
	}
	return out
}

const (
	maxMetadataPairs = 64
	maxMetadataBytes = 16 << 10
	maxEnvPairs      = 512
	maxEnvBytes      = 96 << 10
)

func checkMetadata(m map[string]string) error {
	size := 0
	for k, v := range m {
		if k == "" {
			return Errorf(Invalid, "a metadata key is empty")
		}
		if strings.ContainsRune(k, 0) || strings.ContainsRune(v, 0) {
			return Errorf(Invalid, "the metadata %.80q holds a zero byte: remove it", k)
		}
		size += len(k) + len(v)
	}
	if len(m) > maxMetadataPairs || size > maxMetadataBytes {
		return Errorf(Invalid, "metadata may hold at most %d pairs and %d bytes in all", maxMetadataPairs, maxMetadataBytes)
	}
	return nil
}

var envNamePattern = lazily(`^[A-Za-z_][A-Za-z0-9_]*$`)

// CheckEnv returns Invalid when env cannot be the environment of a Process.
func CheckEnv(env map[string]string) error {
	size := 0
	for _, k := range slices.Sorted(maps.Keys(env)) { // sorted, so that the same error is reported each time
		v := env[k]
		if !envNamePattern.MatchString(k) {
			return Errorf(Invalid, "%q is not a name for an environment variable: use letters, digits and '_', not beginning with a digit", k)
		}
		for i := range len(v) {
			if v[i] == 0 {
				return Errorf(Invalid, "the environment variable %s holds a zero byte", k)
			}
		}
		size += len(k) + len(v)
	}
	if len(env) > maxEnvPairs || size > maxEnvBytes {
		return Errorf(Invalid, "env may hold at most %d variables and %d bytes in all", maxEnvPairs, maxEnvBytes)
	}
	return nil
}
