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
	// ID is the one it will have, for a request that must take effect once: a
	// second Create with it is a Conflict. Empty: a fresh one.
	ID       string
	Template string // empty: "base"
	Name     string
	Timeout  time.Duration // zero: DefaultSessionTimeout
	// IdleTimeout is after which time without use OnTimeout acts; zero: never.
	IdleTimeout time.Duration
	OnTimeout   OnTimeout // empty: OnTimeoutEnd
	StayPaused  bool      // once paused, only Resume wakes it
	// CheckpointEvery is how often it is saved while it runs; zero: never.
	CheckpointEvery time.Duration
	// Snapshot is the ID of one to start from, or a name, which means the Tenant's
	// newest of it; it decides Template and Shape;
	// Network, Env, User and Cwd are its own unless given here, Env pair by pair.
	Snapshot string
	Shape    Shape // zero: DefaultShape
	// Bandwidth is Limits.Bandwidth; zero: that of the Snapshot, or as much as there
	// is.
	Bandwidth int64
	Network   NetworkPolicy // empty: the operator's default
	Ingress   Ingress
	Secrets   SecretUses
	// Volumes are mounted as long as it lives. What starts from a Snapshot has those
	// of the Snapshot.
	Volumes  []VolumeMount
	Metadata map[string]string
	Env      map[string]string
	User     string // default user of Processes; empty: "user"
	Cwd      string // empty: /workspace
}

// A Change is what becomes different about a Sandbox that runs. Nil fields stay.
type Change struct {
	Name        *string        // empty: none
	Timeout     *time.Duration // the deadline becomes so long from now
	IdleTimeout *time.Duration // zero: never
	OnTimeout   *OnTimeout
	StayPaused  *bool
	// CheckpointEvery is how often it is saved while it runs; zero: never.
	CheckpointEvery *time.Duration
	Network         *NetworkPolicy
	Ingress         *Ingress
	Port            *PortChange // of what Ingress says of one port
	Secrets         *SecretUses
	CPUs            *float64
	MemoryBytes     *int64
	Pids            *int64
	Bandwidth       *int64  // as Limits.Bandwidth
	User            *string // default user of new Processes; empty: "user"
	Cwd             *string // default working directory of new ones; empty: /workspace
	// Metadata and Env change these pairs and leave the others; nil removes one.
	Metadata map[string]*string
	Env      map[string]*string // of new Processes

	// These are fixed when a Sandbox starts: another value is a Conflict.
	Template  *string
	DiskBytes *int64
	Volumes   *[]VolumeMount // as in a CreateRequest
}

// Use tells that a Sandbox was used just now.
type Use struct {
	SandboxID string
	// Output is what its Processes wrote since the last Use, at most the last
	// MaxOutputTail bytes of it.
	Output []byte
}

// ListQuery selects Sandboxes of one Tenant, newest first.
type ListQuery struct {
	States      []State           // empty: all that have not ended
	Metadata    map[string]string // every pair must match
	Template    string            // a name without tag and version; empty: any
	From        time.Time         // created then or later; zero: whenever
	OldestFirst bool
	Limit       int    // 1 to 100; zero: 100
	Cursor      string // from an earlier Page in the same order; empty: the beginning
}

// Page is one page of a list.
type Page struct {
	Sandboxes []Sandbox
	Next      string // empty: no more
}

// Sandboxes is the whole session manager: the life of every Sandbox. It joins the
// ports below for the code that connects roles; everything else takes the ports whose
// methods it calls.
//
// In each port, a Tenant's call for an ID or name that another Tenant owns answers
// exactly as for an absent one: NotFound. Methods are safe for concurrent use.
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
	// Get returns a Sandbox by ID or name, also an ended one by ID as long as
	// its Certificate is kept.
	Get(ctx context.Context, tenant TenantID, idOrName string) (Sandbox, error)
	// Settled is Get, but waits for a create, pause or resume that is under way.
	Settled(ctx context.Context, tenant TenantID, idOrName string) (Sandbox, error)
	List(ctx context.Context, tenant TenantID, query ListQuery) (Page, error)
	// Counts returns how many Sandboxes a Tenant has in each State that is not
	// Ended.
	Counts(ctx context.Context, tenant TenantID) (map[State]int, error)
	// Idle returns how many running Sandboxes of a Tenant nobody has used for
	// IdleAfter, as far as the present process of the session manager knows.
	Idle(ctx context.Context, tenant TenantID) (int, error)
}

// Lifecycle starts, pauses, resumes and ends Sandboxes. The rules of Sandboxes apply;
// of concurrent calls for one Sandbox one moves it at a time.
type Lifecycle interface {
	// Create records, starts and binds a Sandbox, and returns it running.
	// A name in use is a Conflict, no room Exhausted, a Template that is not
	// there NotFound, and a Volume that is not there Invalid.
	Create(ctx context.Context, tenant TenantID, req CreateRequest) (Sandbox, error)
	// Ensure returns the Tenant's running Sandbox of req.Name, whatever the rest
	// of req says, or creates it. A name is required. One that is just starting
	// is waited for, one that is paused resumes.
	Ensure(ctx context.Context, tenant TenantID, req CreateRequest) (sb Sandbox, created bool, err error)
	// Pause saves a running Sandbox and lets go of all it runs on. It returns the
	// paused record once the state is safe on disk; what happens with a client
	// that leaves earlier is the same. One that is paused is returned as it is. When
	// it cannot be saved it runs on. Unsupported when the Engine cannot pause,
	// Exhausted when there is no room.
	Pause(ctx context.Context, tenant TenantID, idOrName string, filesOnly bool) (Sandbox, error)
	// Resume returns a paused Sandbox once it runs again. One that runs is
	// returned as it is. Of concurrent calls one resumes and all others return
	// what it made. When it cannot resume it stays paused: Conflict says that its
	// saved state is damaged or gone, Exhausted and Unavailable may pass.
	Resume(ctx context.Context, tenant TenantID, idOrName string) (Sandbox, error)
	// Reboot is Resume from the files alone: what was running when the Sandbox was
	// paused is gone, and none of it runs for a moment. Files are as a machine
	// finds them whose power was cut.
	Reboot(ctx context.Context, tenant TenantID, idOrName string) (Sandbox, error)
	// End ends a Sandbox and returns its last record once nothing of it runs.
	// Ending one that has ended is NotFound.
	End(ctx context.Context, tenant TenantID, idOrName string, cause Cause) (Sandbox, error)
}

// Updates changes settings and deadlines of Sandboxes without starting, pausing or
// ending them. The rules of Sandboxes apply.
type Updates interface {
	// Update changes a running or paused Sandbox and returns it changed, or
	// returns an error and leaves it, or soon leaves it, as it was. Conflict says
	// what cannot change.
	Update(ctx context.Context, tenant TenantID, idOrName string, change Change) (Sandbox, error)
	// SetTimeout moves the deadline to timeout from now, nearer or farther.
	// timeout must be in (0, MaxTimeout]; an ended Sandbox is a Conflict. For a
	// paused one it begins when it resumes, and a pause or resume that is under way is
	// waited for. Exhausted when the Quota does not let it run for so long.
	SetTimeout(ctx context.Context, tenant TenantID, idOrName string, timeout time.Duration) (Sandbox, error)
	// RunFor is SetTimeout for the present run alone: the Sandbox keeps its Timeout,
	// with which the next run begins. A paused one stays as it is.
	RunFor(ctx context.Context, tenant TenantID, idOrName string, timeout time.Duration) (Sandbox, error)
	// Touch starts the time of a running Sandbox anew: its deadline becomes
	// Timeout from now, unless it is later or the Quota does not let it be, and it
	// was used just now. A paused one is kept for another PausedLife. A pause or
	// resume that is under way is waited for.
	Touch(ctx context.Context, tenant TenantID, idOrName string) (Sandbox, error)
	// SecretChanged tells that a Tenant's Secret has another value, or none any
	// more. It returns when all Sandboxes that use it and run have taken that, or
	// will take it soon.
	SecretChanged(ctx context.Context, tenant TenantID, name string) error
	// Used tells of Sandboxes that were used; unknown ones are ignored. Whoever
	// lets requests through to Sandboxes calls it every UseEvery for those that
	// had one since, or have one under way.
	Used(ctx context.Context, uses []Use) error
}

// IdleAfter is how long after its last use a running Sandbox counts as idle.
const IdleAfter = 30 * time.Second

// UseEvery is how often the use of Sandboxes is told; see Sandboxes.Used.
const UseEvery = 500 * time.Millisecond

var namePattern = lazily(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)

// Check returns Invalid, saying what to change, when the request breaks a rule
// that needs no other knowledge than the request.
func (r CreateRequest) Check() error {
	if r.ID != "" && !ValidSandboxID(r.ID) {
		return Errorf(Invalid, "the sandbox ID is not one")
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

// CheckTimeout returns Invalid for a time that no Sandbox may run for.
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

// checkPlace checks the form of a user and a folder; whether they are there
// only the Guest knows.
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

// Apply returns s as c makes it at the time now, or Invalid for a bad value, or
// Conflict for what cannot change while s runs. It does not ask for the State.
// The Revision grows when the Boot must be told.
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

// checkFixed returns Conflict for what is fixed when a Sandbox starts.
func (c Change) checkFixed(s Sandbox) error {
	if c.Template != nil && *c.Template != s.Template {
		return Errorf(Conflict, "the template cannot change: it is what the sandbox was started from; create another one from %q", *c.Template)
	}
	if c.DiskBytes != nil && *c.DiskBytes != s.Shape.DiskBytes {
		return Errorf(Conflict, "disk_mb cannot change while the sandbox runs: its disk has %d MiB since it started; create another one", s.Shape.DiskBytes>>20)
	}
	if c.Volumes != nil && !s.hasVolumes(*c.Volumes) {
		return Errorf(Conflict, "the volumes cannot change: they are mounted when the sandbox starts; create another one with them")
	}
	return nil
}

// hasVolumes reports whether s has these mounted and no others, told by name or
// ID.
func (s Sandbox) hasVolumes(asked []VolumeMount) bool {
	has := func(m VolumeMount) bool {
		return slices.ContainsFunc(asked, func(a VolumeMount) bool { return a.Path == m.Path && (a.Volume == m.Volume || a.Volume == m.Name) })
	}
	return len(asked) == len(s.Volumes) && !slices.ContainsFunc(s.Volumes, func(m VolumeMount) bool { return !has(m) })
}

// checkChanged checks what s has other than before.
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

// merged returns a copy of m with the pairs of change, or without those that
// are nil there.
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
	for _, k := range slices.Sorted(maps.Keys(env)) { // of several wrong ones always the same is told
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
