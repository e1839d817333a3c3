package sandbox

import (
	"context"
	"errors"
	"io"
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
// Stop succeeds and Dial, Usage, SetNetwork, SetSecrets, NetworkLog and SetLimits return
// NotFound.
type Engine interface {
	BootNetwork
	// Probe reports what this host can do now; it starts nothing. The error
	// says in one sentence what is missing.
	Probe(ctx context.Context) (Features, error)
	// Start boots spec and returns once the Guest answers on GuestPort. An ID
	// that runs already is a Conflict; an Image that is not there is NotFound;
	// no room on the host is Exhausted. On error nothing is left behind. The
	// network starts as NetworkNone, the limits as all of the Shape.
	Start(ctx context.Context, id string, spec BootSpec) error
	// Stop asks the Guest to end, waits up to grace (zero: not at all), then
	// destroys the Boot and frees all it held before it returns.
	Stop(ctx context.Context, id string, grace time.Duration) error
	// List returns what runs here, also what an earlier process of this Node
	// started: this is how a restarted Node recovers. A Boot in the list can be
	// dialled.
	List(ctx context.Context) ([]BootStatus, error)
	// SetLimits changes what a Boot may use, at once. It returns what
	// Shape.CheckLimits does, and Conflict for memory below what is in use;
	// then nothing has changed.
	SetLimits(ctx context.Context, id string, limits Limits) error
	// Usage reports what a Boot uses now, as the host counts it.
	Usage(ctx context.Context, id string) (Usage, error)
	// Watch calls handle, one event at a time, for what happens to Boots until
	// ctx ends, then returns ctx's error. It may be called once per Engine
	// value. What ended while nobody watched is not told again: compare List.
	Watch(ctx context.Context, handle func(BootEvent)) error
}

// BootNetwork is the part of an Engine that carries bytes to and from Boots, decides where
// they may connect to, and counts. The rules of Engine apply.
type BootNetwork interface {
	// Dial connects to a TCP port of the Boot. Nothing listening is
	// Unavailable.
	Dial(ctx context.Context, id string, port uint16) (net.Conn, error)
	// SetNetwork changes where a Boot may connect to, at once, also for
	// connections that are open.
	SetNetwork(ctx context.Context, id string, policy NetworkPolicy) error
	// SetSecrets changes the headers that requests of a Boot get, at once, also
	// on connections that are open. The Engine keeps them in memory only.
	SetSecrets(ctx context.Context, id string, secrets SecretBinding) error
	// NetworkLog returns what the Boot's policies decided, as far as it is kept.
	NetworkLog(ctx context.Context, id string) (NetworkLog, error)
	// Traffic returns what the connections that Boots opened carried since they
	// started, by Boot ID, also of Boots that ended within TrafficMemory. What was
	// counted by a part of the Engine that died since is missing in it.
	Traffic(ctx context.Context) (map[string]Traffic, error)
}

// Pauser is implemented by Engines that support pause (Features.Pause): it freezes
// Boots, saves them, and starts others from the saved state (BootSpec.From). A saved state is named by a Snapshot ID; another form of
// name is Invalid. Freeze, Thaw and Save return NotFound for a Boot that the
// Engine does not know.
//
// A state with memory is everything of a Boot but its connections to the
// outside: Processes with their threads, open files and terminals, memory, all
// files. One without is the files of the writable layer. Any number of Boots
// can start from one state; each goes its own way from there.
//
// A Boot that starts from a state has the state's Shape, which may be more than was
// asked for: what was saved may have begun as a Boot for more.
//
// A Boot that starts from memory is held: its Guest answers, and nothing else
// in it runs before Thaw. A state that is damaged, that another build of the
// Engine made, or that is of another Image than asked for, or of a Shape that does
// not cover the one asked for, is a Conflict that says so, of a damaged one with the Cause ErrDamaged; one that is
// not there is NotFound. Nothing is left of such a start.
type Pauser interface {
	// Freeze stops a Boot, its Guest too, until Thaw, so that it can be saved. One that
	// the host has no memory to save is Exhausted, and goes on. It is repeatable.
	Freeze(ctx context.Context, id string) error
	// Thaw lets a Boot that is frozen or held go on. It is repeatable.
	Thaw(ctx context.Context, id string) error
	// Save saves a Boot as name and returns once that is safe on disk and
	// verified. The Boot stands still meanwhile, and is then as it was before:
	// frozen, or running. A name that this same Boot was saved as already is
	// what it was then. A name of another is a Conflict, and no room on the disk
	// or in the host's memory is Exhausted. On error nothing is left of it, and the Boot is as before.
	Save(ctx context.Context, id, name string, memory bool) (Saved, error)
	// DeleteSaved removes a saved state; an unknown one is a success. Boots
	// that started from it go on.
	DeleteSaved(ctx context.Context, name string) error
	// ListSaved returns the names of all saved states.
	ListSaved(ctx context.Context) ([]string, error)
}

// ErrDamaged is the Cause of a Conflict about a saved state that is not what it
// was when it was saved.
var ErrDamaged = errors.New("damaged")

// Porter is what a Pauser does beside that carries saved states to Engines of
// other installations and takes theirs.
type Porter interface {
	// ExportSaved writes a saved state to w, in a form of the Engine's own; with image
	// also the Template's image that it needs. NotFound when there is none, Conflict
	// with the Cause ErrDamaged when it is damaged.
	ExportSaved(ctx context.Context, name string, image bool, w io.Writer) error
	// ImportSaved makes what ExportSaved wrote a saved state called name, whole and
	// safe on disk, or leaves nothing of it; but an image that came with it stays. It
	// reads r to its end and returns r's error as it is. Invalid when r is not what was written; Denied when nobody
	// whom this installation trusts wrote it; Conflict when the name is taken, and
	// when a Boot could not start from it here, for want of the Image or because of
	// another build; Exhausted when the disk has no room.
	ImportSaved(ctx context.Context, name string, r io.Reader) (Saved, error)
}

// Sharer is what a Pauser does beside that keeps saved states small.
type Sharer interface {
	// ShareSaved lets a saved state share room on the disk with others of its
	// group, which are all of one owner: what several hold is there once. When and
	// whether is the Engine's affair; what starts from the state is the same.
	// It is repeatable; another group is a Conflict, an unknown state NotFound.
	ShareSaved(ctx context.Context, name, group string) error
}

// Fetcher is what a Pauser does beside that keeps saved states elsewhere too, and
// not always on the host.
type Fetcher interface {
	// HoldSaved has a saved state on the host, and keeps it there until release is
	// called; for one that is not known it does nothing. One that the last Start
	// found damaged or gone is brought back in its place. What cannot be brought
	// back at the moment is Unavailable, what never can a Conflict that says so.
	HoldSaved(ctx context.Context, name string) (release func(), err error)
}

// Saved describes a saved state.
type Saved struct {
	Bytes  int64  // on disk
	Memory bool   // false: only files
	Build  string // of the Engine that saved it and can start from it
	Image  string
	Shape  Shape
	Digest string // of its manifest: states with the same one are the same
}

// GuestPort is the TCP port on which the Guest serves its control service. It
// answers only to the host's end of the link.
const GuestPort uint16 = 49982

// VolumePort is the TCP port on which a Boot that has Volumes waits for its Node,
// which serves their files to it. It answers only to the host's end of the link.
const VolumePort uint16 = 49981

// EventsPort is the TCP port on which the Guest serves E2B's events address, which
// the link leads there from inside. It answers only to the host's end of the link.
const EventsPort uint16 = 49980

// HostPort reports whether a port answers to the host alone.
func HostPort(port uint16) bool {
	return port == GuestPort || port == VolumePort || port == EventsPort
}

// EnvdPort is the TCP port of the Guest's E2B-compatible services.
const EnvdPort uint16 = 49983

// InterpreterPort is the TCP port of the Guest's E2B-compatible code interpreter.
const InterpreterPort uint16 = 49999

// AgentPort reports whether a port is one of the Guest's own.
func AgentPort(port uint16) bool {
	return HostPort(port) || port == EnvdPort || port == InterpreterPort
}

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
	// From names the saved state to start from; empty: the Image alone. Image is
	// then that of the state, and Shape one that its own covers.
	From string
}

// BootStatus is one Boot as the Engine knows it.
type BootStatus struct {
	ID      string
	Image   string
	Shape   Shape
	Network NetworkPolicy
	Limits  Limits
	From    string // the saved state that it started from; it was never blank
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
	// BootMemoryFull: memory is used up, and the Boot lives on its reserve. Who
	// can should make room (see Guest's KillBiggest); if that is too slow the
	// Engine kills Processes itself, and after OOMGrace it ends the Boot with
	// CauseOOM.
	BootMemoryFull BootEventKind = "memory_full"
)

// OOMGrace is how long a Boot may use its reserve after BootMemoryFull.
const OOMGrace = 10 * time.Second

// Traffic is what was carried to the outside and back, in bytes, and how many
// connections and names a network policy refused, which usage does not count.
type Traffic struct{ Sent, Received, Refused int64 }

// TrafficMemory is for how long what a Boot carried is known after its end.
const TrafficMemory = 10 * time.Minute

// Usage is what a Boot uses, as the host counts it; never the guest's word.
type Usage struct {
	MemoryBytes int64         // anonymous and shared memory, without page cache
	CPU         time.Duration // time on all cores since the Boot started
	DiskBytes   int64         // of the writable layer, allocated
	Pids        int64         // host tasks
}
