package sandbox

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// State is where a Sandbox is in its life.
type State string

const (
	Starting State = "starting" // recorded, no Boot answers yet
	Running  State = "running"  // a Boot is bound and answers
	Pausing  State = "pausing"  // it is being saved and does not answer
	Paused   State = "paused"   // it has no Boot, only its Snapshot
	Resuming State = "resuming" // a Boot starts from its Snapshot
	Stopping State = "stopping" // its end is decided and recorded, its Boot perhaps still there
	Ended    State = "ended"    // final; only the Certificate remains
)

// follows lists the States that may follow each State. Ended is final.
var follows = map[State][]State{
	Starting: {Running, Stopping, Ended},
	Running:  {Pausing, Paused, Stopping}, // paused at once when its Boot is lost, see Restore
	Pausing:  {Paused, Running, Stopping}, // a failed pause lets it run on
	Paused:   {Resuming, Stopping},
	Resuming: {Running, Paused, Stopping}, // a failed resume loses nothing
	Stopping: {Ended},
	Ended:    {},
}

// Valid reports whether s is a State.
func (s State) Valid() bool {
	_, ok := follows[s]
	return ok
}

// OnTimeout says what its deadline, or its idle timeout, does to a Sandbox.
type OnTimeout string

const (
	OnTimeoutEnd        OnTimeout = "end"         // it ends
	OnTimeoutPause      OnTimeout = "pause"       // it pauses
	OnTimeoutPauseFiles OnTimeout = "pause_files" // it pauses without its memory
)

// Valid reports whether o is one of those that there are.
func (o OnTimeout) Valid() bool {
	return o == OnTimeoutEnd || o == OnTimeoutPause || o == OnTimeoutPauseFiles
}

// Pauses reports whether the Sandbox pauses, and whether without its memory.
func (o OnTimeout) Pauses() (pauses, filesOnly bool) {
	return o == OnTimeoutPause || o == OnTimeoutPauseFiles, o == OnTimeoutPauseFiles
}

func (o OnTimeout) check() error {
	if !o.Valid() {
		return Errorf(Invalid, "on_timeout must be %q, %q or %q", OnTimeoutPause, OnTimeoutPauseFiles, OnTimeoutEnd)
	}
	return nil
}

// Cause says why a Sandbox ended.
type Cause string

const (
	CauseReleased   Cause = "released"    // its owner let it go
	CauseRefused    Cause = "refused"     // its create was told to come back later: nothing of it ran
	CauseDeadline   Cause = "deadline"    // its timeout passed
	CauseIdle       Cause = "idle"        // nothing used it for its idle timeout
	CauseOOM        Cause = "oom"         // memory ran out and no Process could be ended to help
	CauseGuestExit  Cause = "guest_exit"  // the Guest ended, which is its user's doing
	CauseEngineLost Cause = "engine_lost" // its Boot died under it
	CauseNodeLost   Cause = "node_lost"   // its Node is gone
	CauseDiskFull   Cause = "disk_full"   // the host had no space left for it; nothing ends a Boot for that yet
	CauseOperator   Cause = "operator"    // the operator ended it
	CauseQuota      Cause = "quota"       // reserved: a Quota refuses and bounds, and ends nothing
	CauseSuspended  Cause = "suspended"   // its Tenant is, and it could not be paused
)

// Certificate says how a Sandbox ended. It is kept for CertificateLife,
// with CauseRefused for RefusedLife.
type Certificate struct {
	Cause Cause
	At    time.Time
	// OutputTail is the last of what its Processes wrote, as far as the host
	// saw it: valid UTF-8, at most MaxOutputTail bytes. It is a guest's word.
	OutputTail string
}

// MaxOutputTail bounds Certificate.OutputTail, in bytes.
const MaxOutputTail = 4 << 10

// KeepTail appends output to kept and returns the last MaxOutputTail bytes of
// it. It may write to kept.
func KeepTail(kept, output []byte) []byte {
	if len(output) >= MaxOutputTail {
		return append(kept[:0], output[len(output)-MaxOutputTail:]...)
	}
	if drop := len(kept) + len(output) - MaxOutputTail; drop > 0 {
		kept = append(kept[:0], kept[drop:]...)
	}
	return append(kept, output...)
}

// TailText is kept as an OutputTail: without half a character at its beginning,
// and with U+FFFD for what is no text.
func TailText(kept []byte) string {
	for range utf8.UTFMax - 1 {
		if len(kept) > 0 && !utf8.RuneStart(kept[0]) {
			kept = kept[1:]
		}
	}
	text := strings.ToValidUTF8(string(kept), "\uFFFD")
	if extra := len(text) - MaxOutputTail; extra > 0 { // a replacement is longer than what it replaces
		text = strings.ToValidUTF8(text[extra:], "")
	}
	return text
}

const (
	// CertificateLife is how long an ended Sandbox can still be read.
	CertificateLife = 7 * 24 * time.Hour
	// RefusedLife is the same for one that ended with CauseRefused: no quota bounds
	// how many there are.
	RefusedLife = time.Hour
)

// Sandbox is one isolated machine as its user knows it, and its Tenant's hold
// on it (the Session): one row, one ID.
type Sandbox struct {
	ID       string
	Tenant   TenantID
	Name     string // unique among the Tenant's Sandboxes that have not ended; may be empty
	State    State
	Template string // Template name as asked for, for example "base"
	Image    string // digest of the Template version that it runs
	Engine   string // engine name, "gvisor"
	Shape    Shape
	Limits   Limits // within Shape
	Network  NetworkPolicy
	Ingress  Ingress
	Secrets  SecretUses
	Volumes  []VolumeMount // as long as it lives; nil: none
	Metadata map[string]string
	Env      map[string]string // environment of every Process
	User     string            // default user of Processes; empty: "user"
	Cwd      string            // default working directory; empty: /workspace
	// Revision grows with every change of what a Boot is told: Limits, Network,
	// Secrets, which includes their values, Env, User and Cwd.
	Revision int64

	// Boot is the present Boot; its ID is empty while there is none. Number
	// only grows.
	Boot Boot

	CreatedAt time.Time
	StartedAt time.Time // zero until the first Boot is bound
	Timeout   time.Duration
	Deadline  time.Time // when OnTimeout acts, or what is paused ends; always set
	OnTimeout OnTimeout
	// RunsUntil is the latest that Deadline may be while it runs, as the Quota said
	// when it started or resumed last; zero: whenever.
	RunsUntil time.Time
	// IdleTimeout is how long nobody may use it before OnTimeout acts; zero: for
	// ever.
	IdleTimeout time.Duration
	StayPaused  bool  // only Resume wakes it, not its use
	Timeline    int64 // grows when its state goes back
	// Snapshot is the ID of the one that it is paused in or starts from; while it
	// runs, of the one that its state came from or was last saved in. Empty: none.
	Snapshot string
	// Origin is the ID of the Snapshot that it was created from, or what it is a fork of;
	// that may be gone. Empty: none, it was created from Template.
	Origin string
	// SnapshotAt is since when it has run on from what is in Snapshot.
	SnapshotAt time.Time
	// CheckpointEvery is how often it is saved while it runs, so that it outlives
	// the loss of its Boot; zero: never.
	CheckpointEvery time.Duration
	Restored        Restored // of the last Boot that was lost

	// MeteredAt is for a write that begins, changes or ends what it is charged
	// for: when that was, at most the present. Zero: now. It is not kept.
	MeteredAt time.Time

	Ended   *Certificate // nil until its end is decided
	Version int64        // of the record; a write names the version it read
}

// To moves s to state, or returns Conflict and leaves s unchanged.
func (s *Sandbox) To(state State) error {
	if !slices.Contains(follows[s.State], state) {
		return Errorf(Conflict, "a %s sandbox cannot become %s", s.State, state)
	}
	s.State = state
	return nil
}

// Start has a Sandbox whose Boot has just begun to run for its Timeout, but not
// for longer than the Quota lets it.
func (s *Sandbox) Start(q Quota, now time.Time) {
	s.Deadline, s.RunsUntil = now.Add(s.Timeout), time.Time{}
	if q.SessionLength > 0 {
		s.RunsUntil = now.Add(q.SessionLength)
	}
	s.Deadline = s.Bounded(s.Deadline)
}

// Bounded is a deadline, or the latest that there may be.
func (s *Sandbox) Bounded(deadline time.Time) time.Time {
	if !s.RunsUntil.IsZero() && deadline.After(s.RunsUntil) {
		return s.RunsUntil
	}
	return deadline
}

// SetTimeout has the Sandbox time out after timeout, from now if it runs.
// Exhausted, which leaves it as it was, when the Quota does not let it run for so
// long.
func (s *Sandbox) SetTimeout(timeout time.Duration, now time.Time) error {
	if s.State != Paused { // else its time does not run
		if err := s.RunFor(timeout, now); err != nil {
			return err
		}
	}
	s.Timeout = timeout
	return nil
}

// RunFor is SetTimeout for this run alone: the next one lasts for Timeout again.
// A paused Sandbox stays as it is.
func (s *Sandbox) RunFor(timeout time.Duration, now time.Time) error {
	if s.State == Paused {
		return nil
	}
	deadline := now.Add(timeout)
	if s.Bounded(deadline) != deadline {
		return Errorf(Exhausted, "the quota lets this session run for %d seconds more, and timeout_seconds asks for %d: pause and resume it to begin anew",
			max(s.RunsUntil.Sub(now), 0)/time.Second, int64(timeout.Seconds())).WithCause(ErrOverQuota)
	}
	s.Deadline = deadline
	return nil
}

// Touch starts the time of the Sandbox anew, as far as the Quota lets it; what is
// paused is kept for another PausedLife. It never brings the deadline nearer.
func (s *Sandbox) Touch(now time.Time) {
	deadline := now.Add(PausedLife)
	if s.State != Paused {
		deadline = s.Bounded(now.Add(s.Timeout))
	}
	if deadline.After(s.Deadline) {
		s.Deadline = deadline
	}
}

// Live reports whether the Sandbox has not ended and its end is not decided.
func (s *Sandbox) Live() bool { return s.State != Stopping && s.State != Ended }

// Boot is one unbroken run of a Sandbox on one Node.
type Boot struct {
	ID     string
	Number int64 // 1 for a Sandbox's first Boot; only grows
	Node   string
}
