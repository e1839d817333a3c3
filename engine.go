package sandbox

import (
	"context"
	"errors"
	"io"
	"net"
	"time"
)

// Engine runs Boots on one Node with one isolation technology. It knows nothing of
// Tenants or Sandboxes, and it runs no Processes: the Guest does that, in the same way
// for every Engine. An Engine only carries the bytes (Dial).
//
// Methods are safe for concurrent use and return soon after ctx ends. id is a Boot ID;
// any other form is Invalid. For an unknown ID, Stop succeeds and Dial, Usage,
// SetNetwork, SetSecrets, NetworkLog and SetLimits return NotFound.
type Engine interface {
	BootNetwork
	// Probe reports the current Features of this host; it starts nothing. The error names
	// the missing prerequisite in one sentence.
	Probe(ctx context.Context) (Features, error)
	// Start boots spec and returns once the Guest answers on GuestPort. A running Boot of
	// that ID is a Conflict, a missing Image NotFound, and lack of host capacity
	// Exhausted. On error nothing is left behind. The network starts as NetworkNone, the
	// limits as the whole Shape.
	Start(ctx context.Context, id string, spec BootSpec) error
	// Stop asks the Guest to end, waits up to grace (zero: not at all), then destroys the
	// Boot and frees its resources before it returns.
	Stop(ctx context.Context, id string, grace time.Duration) error
	// List returns the running Boots. It includes Boots that an earlier process of this
	// Node started, so that a restarted Node can recover. Each listed Boot can be
	// dialled. While Watch runs, a Boot that ended by itself stays listed until handle
	// has returned from its event: so a Boot that is missing has no event to come.
	List(ctx context.Context) ([]BootStatus, error)
	// SetLimits changes the limits of a Boot at once. It returns the errors of
	// Shape.CheckLimits, and Conflict for memory below the current use; on error nothing
	// has changed.
	SetLimits(ctx context.Context, id string, limits Limits) error
	// Usage reports the current resource use of a Boot, as the host counts it.
	Usage(ctx context.Context, id string) (Usage, error)
	// Watch calls handle for each BootEvent, one at a time, until ctx ends, then returns
	// ctx's error. It may be called once per Engine value. Boots that ended while Watch
	// was not running are not reported: compare List.
	Watch(ctx context.Context, handle func(BootEvent)) error
}

// BootNetwork is the part of an Engine that carries bytes to and from Boots, enforces
// their network policies, and counts traffic. The rules of Engine apply.
type BootNetwork interface {
	// Dial connects to a TCP port of the Boot. Unavailable when nothing listens there.
	Dial(ctx context.Context, id string, port uint16) (net.Conn, error)
	// SetNetwork changes the network policy of a Boot at once, also for open connections.
	SetNetwork(ctx context.Context, id string, policy NetworkPolicy) error
	// SetSecrets changes the headers that are added to a Boot's requests, at once, also
	// on open connections. The Engine keeps them in memory only.
	SetSecrets(ctx context.Context, id string, secrets SecretBinding) error
	// NetworkLog returns the decisions of the Boot's policies that are still kept.
	NetworkLog(ctx context.Context, id string) (NetworkLog, error)
	// Traffic returns the traffic of connections that Boots opened, since each Boot
	// started, by Boot ID. It includes Boots that ended within TrafficMemory. Counts held
	// by a part of the Engine that has died are missing.
	Traffic(ctx context.Context) (map[string]Traffic, error)
}

// Pauser is implemented by Engines that support pause (Features.Pause): it freezes Boots,
// saves them, and starts others from the saved state (BootSpec.From). A saved state is
// named by a Snapshot ID; any other form is Invalid. Freeze, Thaw and Save return
// NotFound for an unknown Boot.
//
// A state with memory holds everything of a Boot but its connections to the outside:
// Processes with their threads, open files and terminals, memory, all files. A state
// without memory holds the files of the writable layer. Any number of Boots can start
// from one state; they are independent afterwards.
//
// A Boot that starts from a state has the state's Shape. That may be larger than the
// requested one, because the saved Boot may have been larger.
//
// A Boot that starts from memory is held: its Guest answers, and nothing else in it runs
// before Thaw. Start returns a Conflict that says why when the state is damaged (Cause
// ErrDamaged), when another build of the Engine made it, when it needs CPU features that the
// host lacks (with the Cause ErrCPU), when it has another Image than
// requested, or when its Shape does not cover the requested one. A missing state is
// NotFound. Nothing is left of a failed start.
type Pauser interface {
	// Freeze stops a Boot and its Guest until Thaw, so that it can be saved. Exhausted
	// when the host lacks the memory to save it; the Boot then keeps running. It is
	// idempotent.
	Freeze(ctx context.Context, id string) error
	// Thaw lets a frozen or held Boot continue. It is idempotent.
	Thaw(ctx context.Context, id string) error
	// Save saves a Boot as name and returns once the state is safe on disk and verified.
	// The Boot stands still meanwhile, and is then frozen or running as before. If this
	// Boot was already saved as name, Save returns that state. A name of another Boot's
	// state is a Conflict; lack of disk space or host memory is Exhausted. On error no
	// state is left, and the Boot is as before.
	Save(ctx context.Context, id, name string, memory bool) (Saved, error)
	// DeleteSaved removes a saved state; an unknown one is a success. Boots that started
	// from it keep running.
	DeleteSaved(ctx context.Context, name string) error
	// ListSaved returns the names of all saved states.
	ListSaved(ctx context.Context) ([]string, error)
}

// ErrDamaged is the Cause of a Conflict about a saved state that changed after it was
// saved.
var ErrDamaged = errors.New("damaged")

// Porter is implemented by Pausers that export saved states to other installations and
// import theirs.
type Porter interface {
	// ExportSaved writes a saved state to w, in a form of the Engine's own; with image it
	// includes the Template's image. NotFound when the state does not exist, Conflict
	// with the Cause ErrDamaged when it is damaged.
	ExportSaved(ctx context.Context, name string, image bool, w io.Writer) error
	// ImportSaved reads an export of ExportSaved as the saved state name, whole and safe
	// on disk. On error it leaves nothing but an image that came with the export. It
	// reads r to its end and returns r's error unchanged. Invalid when r differs from the
	// export; Denied when its writer is not trusted by this installation; Conflict when
	// the name is taken, or when a Boot could not start from the state here because the
	// Image is missing, the Engine build differs, or CPU features are missing (with the
	// Cause ErrCPU, and before the content is read); Exhausted when the disk is full.
	ImportSaved(ctx context.Context, name string, r io.Reader) (Saved, error)
}

// Fencer is implemented by Engines whose Boots are cut off at a given time even if the
// processes of this program have stopped, or the machine was suspended.
type Fencer interface {
	// FenceClock returns the present time of the clock of FenceAt. It starts with the
	// machine, and also counts while the machine is suspended.
	FenceClock() time.Duration
	// FenceAt cuts off all Boots from the time at on: they send nothing to the outside,
	// receive nothing, and cannot be dialled. Open connections end then. It applies to Boots
	// that start later, too. A call with a later time lifts it; zero: never.
	// Unsupported if some Boots of an earlier build cannot be cut off.
	FenceAt(ctx context.Context, at time.Duration) error
}

// Deduplicator is implemented by Pausers that deduplicate saved states.
type Deduplicator interface {
	// ShareSaved allows a saved state to be deduplicated on disk with others of its
	// group, all of one owner. The Engine decides when and whether to do so; starting
	// from the state gives the same result. It is idempotent. A different group is a
	// Conflict, an unknown state NotFound.
	ShareSaved(ctx context.Context, name, group string) error
}

// Fetcher is implemented by Pausers that replicate saved states elsewhere and may drop
// them from the host.
type Fetcher interface {
	// HoldSaved brings a saved state to the host and keeps it on the host until Hold.Release is
	// called. It does nothing for an unknown state. A state that the last Start found
	// damaged or missing is fetched again. With whole, all of the state is on the host when
	// it returns; otherwise Boots can start from it, and the rest may still arrive. Unavailable
	// when the fetch may succeed later, Conflict when it never can.
	HoldSaved(ctx context.Context, name string, whole bool) (Hold, error)
	// AwaitArrival waits until all of the state that a Boot started from is on the host.
	// Unavailable if it does not arrive, which ends the Boot.
	AwaitArrival(ctx context.Context, id string) error
}

// Hold keeps a saved state on a host.
type Hold struct {
	Release func()
	// Arrives says that a part of the state is still on its way. A start may wait for it.
	Arrives bool
}

// Replicator is implemented by Pausers whose saved states are replicated to where Engines
// on other hosts find them.
type Replicator interface {
	// FetchSaved makes the saved state name from the replica of the state from, which an
	// Engine on any host saved for group. On error it leaves nothing. NotFound when no
	// complete replica exists, otherwise the errors of Fetcher.HoldSaved and
	// Porter.ImportSaved.
	FetchSaved(ctx context.Context, name, from, group string) (Saved, error)
}

// Arriver is implemented by Porters whose Boots can start from a saved state before all of it
// is on the host.
type Arriver interface {
	// ArriveSaved is Porter.ImportSaved, but returns when Boots can start from the state.
	// From then on the state is as any other, except that ListSaved lacks it, until arrived
	// is called: with nil when the state is on the disk, or with the reason why it is not. Boots
	// that need the rest end then. DeleteSaved ends an arrival that no Boot needs. If ctx
	// ends, or the process before arrived is called, another call for the same state continues
	// within two minutes, and Boots keep running. Unsupported if the state must be whole before
	// Boots start from it: nothing was done then, and arrived is not called, as after any
	// error.
	ArriveSaved(ctx context.Context, name string, content Arrival, arrived func(error)) (Saved, error)
	// AwaitArrival waits until all of the state that a Boot started from is on the host and
	// verified. Until then Freeze and Save are Unavailable. Unavailable if it does not arrive.
	AwaitArrival(ctx context.Context, id string) error
}

// Arrival is the content of an exported state that is on its way. Its methods are called
// concurrently.
type Arrival interface {
	// ReadAt is io.ReaderAt's, but waits until the bytes have arrived.
	io.ReaderAt
	// Prefer has n bytes from off arrive before others. It does not wait.
	Prefer(off, n int64)
	// Bytes is the size of the content.
	Bytes() int64
	// Cancel ends all reads.
	Cancel()
}

// Saved describes a saved state.
type Saved struct {
	Bytes  int64  // on disk
	Memory bool   // false: only files
	Build  string // of the Engine that saved it and can start from it
	Image  string
	Shape  Shape
	Digest string // of its manifest: equal digests mean equal states
	// CPU are the features that a host needs to start from it; empty: any host can, or
	// the build that saved it did not record them.
	CPU CPUFeatures
}

// GuestPort is the TCP port of the Guest's control service. It answers only to the host's
// end of the link.
const GuestPort uint16 = 49982

// VolumePort is the TCP port on which a Boot that has Volumes waits for its Node,
// which serves their files to it. It answers only to the host's end of the link.
const VolumePort uint16 = 49981

// EventsPort is the TCP port on which the Guest serves E2B's events address. For
// connections from inside, the link redirects that address to this port. The port answers
// only to the host's end of the link.
const EventsPort uint16 = 49980

// HostPort reports whether a port answers only to the host.
func HostPort(port uint16) bool {
	return port == GuestPort || port == VolumePort || port == EventsPort
}

// EnvdPort is the TCP port of the Guest's E2B-compatible services.
const EnvdPort uint16 = 49983

// InterpreterPort is the TCP port of the Guest's E2B-compatible code interpreter.
const InterpreterPort uint16 = 49999

// AgentPort reports whether a port belongs to the Guest's own services.
func AgentPort(port uint16) bool {
	return HostPort(port) || port == EnvdPort || port == InterpreterPort
}

// Features describes the capabilities of an Engine on this host.
type Features struct {
	Name    string // "gvisor"
	Version string // of the isolation technology
	Build   string // the exact build that a Snapshot is tied to
	Pause   bool   // memory can be saved and restored
	// CPU are the features of the host. GuestCPU are the features that a new Boot sees,
	// and that a state of it needs. Empty: not known.
	CPU, GuestCPU CPUFeatures
}

// BootSpec describes the Boot to start. Nothing in it belongs to an owner: the owner
// comes with Bind.
type BootSpec struct {
	Image string // Template image digest, as the template store names it
	Shape Shape
	// From names the saved state to start from; empty: the Image alone. With a state,
	// Image must be the state's, and the state's Shape must cover Shape.
	From string
}

// BootStatus is one Boot as the Engine knows it.
type BootStatus struct {
	ID      string
	Image   string
	Shape   Shape
	Network NetworkPolicy
	Limits  Limits
	From    string // the saved state that it started from; empty: the Image alone
}

// BootEvent is an event of a Boot.
type BootEvent struct {
	ID    string
	Kind  BootEventKind
	Cause Cause // for BootEnded: CauseOOM, CauseGuestExit or CauseEngineLost
}

// BootEventKind is the kind of a BootEvent.
type BootEventKind string

const (
	// BootEnded: the Boot ended without a Stop; its resources are freed.
	BootEnded BootEventKind = "ended"
	// BootMemoryFull: memory is used up, and the Boot runs on its reserve. The handler
	// should free memory (see Guest's KillBiggest). If that is too slow, the Engine kills
	// Processes itself, and after OOMGrace it ends the Boot with CauseOOM.
	BootMemoryFull BootEventKind = "memory_full"
)

// OOMGrace is how long a Boot may use its reserve after BootMemoryFull.
const OOMGrace = 10 * time.Second

// Traffic counts bytes sent to and received from the outside, and the connections and
// names that a network policy refused. Usage does not count the refused ones.
type Traffic struct{ Sent, Received, Refused int64 }

// TrafficMemory is how long the Traffic of a Boot is kept after its end.
const TrafficMemory = 10 * time.Minute

// Usage is the resource use of a Boot, as the host counts it; never as the guest reports
// it.
type Usage struct {
	MemoryBytes int64         // anonymous and shared memory, without page cache
	CPU         time.Duration // time on all cores since the Boot started
	DiskBytes   int64         // of the writable layer, allocated
	Pids        int64         // host tasks
}
