package sandbox

import (
	"context"
	"net"
	"time"
)

// Engine runs Boots on one Node with one isolation technology. It knows
// nothing of Tenants or Sandboxes, and it runs no Processes: that is the
// Guest's work, the same for every Engine; an Engine only carries the bytes
// (Dial).
//
// Methods are safe for concurrent use and return soon after ctx ends. id is a
// Boot ID; one of another form is Invalid. For an ID the Engine does not know,
// Stop succeeds and Dial, Usage and SetNetwork return NotFound.
type Engine interface {
	// Probe reports what this host can do now; it starts nothing. The error
	// says in one sentence what is missing.
	Probe(ctx context.Context) (Features, error)
	// Start boots spec and returns once the Guest answers on GuestPort. An ID
	// that runs already is a Conflict; an Image that is not there is NotFound;
	// no room on the host is Exhausted. On error nothing is left behind. The
	// network starts as NetworkNone.
	Start(ctx context.Context, id string, spec BootSpec) error
	// Stop asks the Guest to end, waits up to grace (zero: not at all), then
	// destroys the Boot and frees all it held before it returns.
	Stop(ctx context.Context, id string, grace time.Duration) error
	// List returns what runs here, also what an earlier process of this Node
	// started: this is how a restarted Node recovers. A Boot in the list can be
	// dialled.
	List(ctx context.Context) ([]BootStatus, error)
	// Dial connects to a TCP port of the Boot. Nothing listening is
	// Unavailable.
	Dial(ctx context.Context, id string, port uint16) (net.Conn, error)
	// SetNetwork changes where a Boot may connect to, at once, also for
	// connections that are open.
	SetNetwork(ctx context.Context, id string, policy NetworkPolicy) error
	// Usage reports what a Boot uses now, as the host counts it.
	Usage(ctx context.Context, id string) (Usage, error)
	// Watch calls handle, one event at a time, for what happens to Boots until
	// ctx ends, then returns ctx's error. It may be called once per Engine
	// value. What ended while nobody watched is not told again: compare List.
	Watch(ctx context.Context, handle func(BootEvent)) error
}

// GuestPort is the TCP port on which the Guest serves its control service. It
// answers only to the host's end of the link.
const GuestPort uint16 = 49982

// EnvdPort is the TCP port of the Guest's E2B-compatible services.
const EnvdPort uint16 = 49983

// Features is what an Engine can do on this host.
type Features struct {
	Name    string // "gvisor"
	Version string // of the isolation technology
	Build   string // names the exact build that a Snapshot would be tied to
	Pause   bool   // memory can be saved and restored
}

// BootSpec is what a Boot is started from. Nothing in it belongs to an owner:
// that comes with Bind.
type BootSpec struct {
	Image string // Template image digest, as the template store names it
	Shape Shape
}

// BootStatus is one Boot as the Engine knows it.
type BootStatus struct {
	ID      string
	Image   string
	Shape   Shape
	Network NetworkPolicy
}

// BootEvent tells what happened to a Boot.
type BootEvent struct {
	ID    string
	Kind  BootEventKind
	Cause Cause // for BootEnded: CauseOOM, CauseGuestExit or CauseEngineLost
}

// BootEventKind is the kind of a BootEvent.
type BootEventKind string

const (
	// BootEnded: the Boot ended without a Stop; what it held is freed.
	BootEnded BootEventKind = "ended"
	// BootMemoryFull: memory ran out. The Engine has lent the Boot its reserve;
	// somebody must make room (see Guest's KillBiggest) within OOMGrace or the
	// Boot ends with CauseOOM.
	BootMemoryFull BootEventKind = "memory_full"
)

// OOMGrace is how long a Boot may use its reserve after BootMemoryFull. A Guest
// among hundreds of busy processes needs seconds to end them; one whose reserve
// is used up gets no more time.
const OOMGrace = 15 * time.Second

// Usage is what a Boot uses, as the host counts it; never the guest's word.
type Usage struct {
	MemoryBytes int64         // anonymous and shared memory, without page cache
	CPU         time.Duration // time on all cores since the Boot started
	DiskBytes   int64         // of the writable layer, allocated
	Pids        int64         // host tasks
}
