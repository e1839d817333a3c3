package sandbox

import (
	"slices"
	"time"
)

// State is where a Sandbox is in its life.
type State string

const (
	Starting State = "starting" // recorded, no Boot answers yet
	Running  State = "running"  // a Boot is bound and answers
	Pausing  State = "pausing"
	Paused   State = "paused"
	Resuming State = "resuming"
	Stopping State = "stopping" // its end is decided and recorded, its Boot perhaps still there
	Ended    State = "ended"    // final; only the Certificate remains
)

// follows lists the States that may follow each State. Ended is final.
var follows = map[State][]State{
	Starting: {Running, Stopping, Ended},
	Running:  {Pausing, Stopping},
	Pausing:  {Paused, Running}, // a failed pause lets it run on
	Paused:   {Resuming, Stopping},
	Resuming: {Running, Paused}, // a failed resume loses nothing
	Stopping: {Ended},
	Ended:    {},
}

// OnTimeout says what the deadline of a Sandbox does to it.
type OnTimeout string

// OnTimeoutEnd ends the Sandbox at its deadline.
const OnTimeoutEnd OnTimeout = "end"

// Cause says why a Sandbox ended.
type Cause string

const (
	CauseReleased   Cause = "released"    // its owner let it go
	CauseDeadline   Cause = "deadline"    // its timeout passed
	CauseIdle       Cause = "idle"        // nothing used it for its idle timeout
	CauseOOM        Cause = "oom"         // memory ran out and no Process could be ended to help
	CauseGuestExit  Cause = "guest_exit"  // the Guest ended
	CauseEngineLost Cause = "engine_lost" // its Boot died under it
	CauseNodeLost   Cause = "node_lost"   // its Node is gone
	CauseDiskFull   Cause = "disk_full"   // the host had no space left for it
	CauseOperator   Cause = "operator"    // the operator ended it
	CauseQuota      Cause = "quota"
)

// Certificate says how a Sandbox ended. It is kept for CertificateLife.
type Certificate struct {
	Cause Cause
	At    time.Time
}

// CertificateLife is how long an ended Sandbox can still be read.
const CertificateLife = 7 * 24 * time.Hour

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
	Network  NetworkPolicy
	Metadata map[string]string
	Env      map[string]string // environment of every Process

	// Boot is the present Boot; its ID is empty while there is none. Number
	// only grows.
	Boot Boot

	CreatedAt time.Time
	StartedAt time.Time // zero until the first Boot is bound
	Timeout   time.Duration
	Deadline  time.Time // when OnTimeout acts; always set
	OnTimeout OnTimeout
	Timeline  int64 // grows when its state goes back

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

// Live reports whether the Sandbox has not ended and its end is not decided.
func (s *Sandbox) Live() bool { return s.State != Stopping && s.State != Ended }

// Boot is one unbroken run of a Sandbox on one Node.
type Boot struct {
	ID     string
	Number int64 // 1 for a Sandbox's first Boot; only grows
	Node   string
}

// NetworkPolicy says where a Sandbox may connect to. Private, link-local,
// metadata, loopback and host addresses are refused by either.
type NetworkPolicy string

const (
	NetworkPublic NetworkPolicy = "public" // public addresses
	NetworkNone   NetworkPolicy = "none"   // nowhere; names do not resolve
)

// Valid reports whether p is a policy that links know.
func (p NetworkPolicy) Valid() bool { return p == NetworkPublic || p == NetworkNone }
