package sandbox

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// State is a Sandbox's position in its life cycle.
type State string

const (
	Starting State = "starting" // recorded; no Boot answers yet
	Running  State = "running"  // a Boot is bound and answers
	Pausing  State = "pausing"  // being saved; does not answer
	Paused   State = "paused"   // has no Boot, only its Snapshot
	Resuming State = "resuming" // a Boot starts from its Snapshot
	Stopping State = "stopping" // its end is recorded; its Boot may still exist
	Ended    State = "ended"    // final; only the TerminationRecord remains
)

// follows maps each State to the States that may follow it. Ended is final.
var follows = map[State][]State{
	Starting: {Running, Stopping, Ended},
	Running:  {Pausing, Paused, Stopping}, // paused at once when its Boot is lost, see Restore
	// After a failed pause it keeps running. It resumes at once when it moves to another
	// Node.
	Pausing:  {Paused, Running, Resuming, Stopping},
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

// OnTimeout selects the action at a Sandbox's deadline or idle timeout.
type OnTimeout string

const (
	OnTimeoutEnd        OnTimeout = "end"         // end the Sandbox
	OnTimeoutPause      OnTimeout = "pause"       // pause it
	OnTimeoutPauseFiles OnTimeout = "pause_files" // pause it without its memory
)

// Valid reports whether o is a known OnTimeout.
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

// Cause is the reason why a Sandbox ended.
type Cause string

const (
	CauseReleased   Cause = "released"    // its owner ended it
	CauseRefused    Cause = "refused"     // its create was refused with a retry delay; nothing of it ran
	CauseDeadline   Cause = "deadline"    // its timeout passed
	CauseIdle       Cause = "idle"        // nothing used it for its idle timeout
	CauseOOM        Cause = "oom"         // memory ran out and no Process could be killed to free some
	CauseGuestExit  Cause = "guest_exit"  // the Guest exited because its user made it
	CauseEngineLost Cause = "engine_lost" // its Boot died
	CauseNodeLost   Cause = "node_lost"   // its Node is gone
	CauseDiskFull   Cause = "disk_full"   // the host's disk was full; reserved, nothing ends a Boot for it yet
	CauseOperator   Cause = "operator"    // the operator ended it
	CauseQuota      Cause = "quota"       // reserved: Quotas refuse and bound, but end nothing
	CauseSuspended  Cause = "suspended"   // its Tenant was suspended and the Sandbox could not be paused
)

// TerminationRecord records how a Sandbox ended. It is kept for TerminationRecordLife,
// or for RefusedLife with CauseRefused.
type TerminationRecord struct {
	Cause Cause
	At    time.Time
	// OutputTail is the last output of its Processes that the host saw: valid UTF-8, at
	// most MaxOutputTail bytes. It comes from the guest and is not trusted.
	OutputTail string
}

// MaxOutputTail bounds TerminationRecord.OutputTail, in bytes.
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

// TailText converts kept to an OutputTail. It drops a partial character at the beginning
// and replaces invalid UTF-8, and zero bytes, which PostgreSQL's text cannot hold, with
// U+FFFD.
func TailText(kept []byte) string {
	for range utf8.UTFMax - 1 {
		if len(kept) > 0 && !utf8.RuneStart(kept[0]) {
			kept = kept[1:]
		}
	}
	text := strings.ReplaceAll(strings.ToValidUTF8(string(kept), "\uFFFD"), "\x00", "\uFFFD")
	if extra := len(text) - MaxOutputTail; extra > 0 { // a replacement is longer than the bytes that it replaces
		text = strings.ToValidUTF8(text[extra:], "")
	}
	return text
}

const (
	// TerminationRecordLife is how long an ended Sandbox can still be read.
	TerminationRecordLife = 7 * 24 * time.Hour
	// RefusedLife is the same for a Sandbox that ended with CauseRefused. It is short
	// because no quota bounds their number.
	RefusedLife = time.Hour
)

// Sandbox is one isolated machine as its user sees it. It is also the Session by which
// its Tenant holds it: one row, one ID.
type Sandbox struct {
	ID       string
	Tenant   TenantID
	Name     string // unique among the Tenant's Sandboxes that have not ended; may be empty
	State    State
	Template string // Template name as requested, for example "base"
	Image    string // digest of the Template version that it runs
	Engine   string // engine name, "gvisor"
	Shape    Shape
	Limits   Limits // within Shape
	Network  NetworkPolicy
	Ingress  Ingress
	Secrets  SecretUses
	Volumes  []VolumeMount // mounted for its whole life; nil: none
	Metadata map[string]string
	Env      map[string]string // environment of every Process
	User     string            // default user of Processes; empty: "user"
	Cwd      string            // default working directory; empty: /workspace
	// Revision grows with every change that a Boot must learn: Limits, Network, Secrets
	// (and their values), Env, User and Cwd.
	Revision int64

	// Boot is the current Boot; its ID is empty while none exists. Number only grows.
	Boot Boot

	CreatedAt time.Time
	StartedAt time.Time // zero until the first Boot is bound
	Timeout   time.Duration
	Deadline  time.Time // when OnTimeout acts, or when a paused Sandbox ends; always set
	OnTimeout OnTimeout
	// RunsUntil is the latest allowed Deadline while it runs, from the Quota at its last
	// start or resume; zero: no limit.
	RunsUntil time.Time
	// IdleTimeout is how long it may stay unused before OnTimeout acts; zero: no limit.
	IdleTimeout time.Duration
	StayPaused  bool  // only Resume wakes it; use does not
	Timeline    int64 // grows when it returns to an earlier state
	// Snapshot is the ID of the Snapshot that it is paused in or starts from. While it
	// runs, it is the Snapshot that its state came from or was last saved in. Empty:
	// none.
	Snapshot string
	// Back is the state that it returns to if it does not resume from Snapshot.
	Back Back
	// MayRun says of a paused Sandbox that an earlier Boot may still run on its Node, which
	// did not answer. It starts on no other Node until that Node answers or is Lost.
	MayRun bool
	// Origin is the ID of the Snapshot that it was created from, which may be deleted by
	// now; a fork has the Origin of its original. Empty: created from Template.
	Origin string
	// SnapshotAt is when its state last equalled Snapshot; it has run on since then.
	SnapshotAt time.Time
	// CheckpointEvery is the interval at which it is saved while it runs, so that it
	// survives the loss of its Boot; zero: never.
	CheckpointEvery time.Duration
	Restored        Restored // from the last lost Boot

	// MeteredAt is the time at which a write begins, changes or ends its Rate; not in the
	// future. Zero: now. It is not stored.
	MeteredAt time.Time

	Ended   *TerminationRecord // nil until its end is recorded
	Version int64              // of the record; a write passes the version that it read
}

// Back is the saved state in which a Sandbox was paused before it began to resume from another
// one, or in another Timeline. The zero value: it resumes as it was paused.
type Back struct {
	Snapshot string // its ID
	Timeline int64
	// Boot is the number of the Boot that resumes. For another one it does not hold: an earlier
	// version of this program changes the State without it.
	Boot int64
}

// WayBack returns the state that a resuming Sandbox returns to if it does not start. ok is false
// if it stays paused in its Snapshot.
func (s *Sandbox) WayBack() (_ Back, ok bool) {
	return s.Back, s.State == Resuming && s.Back.Snapshot != "" && s.Back.Boot == s.Boot.Number
}

// VisibleTimeline is the Timeline that clients see. One that is resumed in the next Timeline is
// still in the one before, to which it returns if its Boot does not start.
func (s *Sandbox) VisibleTimeline() int64 {
	if back, ok := s.WayBack(); ok {
		return back.Timeline
	}
	return s.Timeline
}

// To moves s to state, or returns Conflict and leaves s unchanged.
func (s *Sandbox) To(state State) error {
	if !slices.Contains(follows[s.State], state) {
		return Errorf(Conflict, "a %s sandbox cannot become %s", s.State, state)
	}
	s.State = state
	return nil
}

// Start sets the Deadline of a Sandbox whose Boot has just begun: after its Timeout, but
// within the Quota's SessionLength.
func (s *Sandbox) Start(q Quota, now time.Time) {
	s.Deadline, s.RunsUntil = now.Add(s.Timeout), time.Time{}
	if q.SessionLength > 0 {
		s.RunsUntil = now.Add(q.SessionLength)
	}
	s.Deadline = s.Bounded(s.Deadline)
}

// Bounded returns deadline, or RunsUntil when that is earlier.
func (s *Sandbox) Bounded(deadline time.Time) time.Time {
	if !s.RunsUntil.IsZero() && deadline.After(s.RunsUntil) {
		return s.RunsUntil
	}
	return deadline
}

// SetTimeout sets the Timeout and, if the Sandbox runs, moves its Deadline to timeout
// from now. It returns Exhausted and changes nothing when the Quota does not allow that
// long.
func (s *Sandbox) SetTimeout(timeout time.Duration, now time.Time) error {
	if s.State != Paused { // while paused, its Timeout does not count down
		if err := s.RunFor(timeout, now); err != nil {
			return err
		}
	}
	s.Timeout = timeout
	return nil
}

// RunFor is SetTimeout for this run only: the next run uses Timeout again. It does not
// change a paused Sandbox.
func (s *Sandbox) RunFor(timeout time.Duration, now time.Time) error {
	if s.State == Paused {
		return nil
	}
	deadline := now.Add(timeout)
	if s.Bounded(deadline) != deadline {
		return Errorf(Exhausted, "the quota lets this session run for %d seconds more, and timeout_seconds asks for %d: pause and resume it to start a new period",
			max(s.RunsUntil.Sub(now), 0)/time.Second, int64(timeout.Seconds())).WithCause(ErrOverQuota)
	}
	s.Deadline = deadline
	return nil
}

// Touch moves the Deadline to Timeout from now, within the Quota, or to PausedLife from
// now for a paused Sandbox. It never moves the Deadline earlier.
func (s *Sandbox) Touch(now time.Time) {
	deadline := now.Add(PausedLife)
	if s.State != Paused {
		deadline = s.Bounded(now.Add(s.Timeout))
	}
	if deadline.After(s.Deadline) {
		s.Deadline = deadline
	}
}

// Live reports whether the Sandbox is neither Stopping nor Ended.
func (s *Sandbox) Live() bool { return s.State != Stopping && s.State != Ended }

// Boot is one unbroken run of a Sandbox on one Node.
type Boot struct {
	ID     string
	Number int64 // 1 for a Sandbox's first Boot; only grows
	Node   string
}
