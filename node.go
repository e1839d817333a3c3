package sandbox

import (
	"context"
	"io"
	"net"
	"time"
)

// Binding is what Bind gives to a Boot: the call that opens its life under an
// owner. No user Process starts before it.
type Binding struct {
	SandboxID   string
	BootNumber  int64
	Tenant      TenantID
	Template    string
	AccessToken string // for the E2B services inside; derived, never stored; empty: they ask for none
	Env         map[string]string
	User        string // default user of Processes; empty: "user"
	Cwd         string // default working directory; empty: /workspace
	Network     NetworkPolicy
	Secrets     SecretBinding
	// Volumes are mounted before any Process of the owner starts or goes on; never
	// changed by Update.
	Volumes  []VolumeBinding
	Limits   Limits
	Timeline int64
	Revision int64 // grows with every change of what the Boot is told
	// Restored says that the Boot started from saved memory: its Guest may
	// have had another owner, and the clock stood still. The Node sets it.
	Restored bool
}

// StartRequest asks a Node for a Boot.
type StartRequest struct {
	BootID  string // the name it will have when it starts cold; a pooled Boot keeps its own
	Image   string
	Shape   Shape
	Binding Binding
	// From is the Snapshot to start from; empty: the Image alone. Then no
	// pooled Boot serves, and nothing of the Snapshot's Processes runs before
	// the Boot is bound. See Pauser for what a state that does not fit is.
	From string
}

// SaveRequest asks a Node to save a Boot.
type SaveRequest struct {
	Boot     BootRef
	Snapshot string // Snapshot ID, the name of the saved state
	Memory   bool   // Processes and memory too; false: only files
	Freeze   bool   // leave the Boot frozen after: a pause
}

// FilesRequest asks a Node to save the files of a saved state alone.
type FilesRequest struct {
	Tenant   TenantID
	From     string // Snapshot ID of a state with memory
	Image    string // of that state
	Shape    Shape  // that the state's own covers
	Snapshot string // Snapshot ID, the name of the new state
}

// Started is a Node's answer to a StartRequest.
type Started struct {
	BootID string
	Pooled bool // it came from the Pool
}

// Nodes reaches the Nodes of this installation. It joins the ports below for the code
// that connects roles; everything else takes the ports whose methods it calls.
//
// In each port, node is a Node's name; an unknown or silent one is Unavailable. Methods
// are safe for concurrent use.
type Nodes interface {
	NodeBoots
	NodeSaves
	BootDialer
	NodeReports
	NodeVolumes
	VolumeFiles
}

// NodeBoots starts, changes, counts and stops the Boots of Sandboxes on Nodes. The rules of
// Nodes apply.
type NodeBoots interface {
	// Start claims a Boot from the Node's Pool, or starts one cold, and binds
	// it. It is repeatable: for a Sandbox and Boot number that are bound here
	// already it returns the same Boot. A Boot number older than one seen for
	// the Sandbox is a Conflict. On error the Node keeps nothing of the
	// request.
	Start(ctx context.Context, node string, req StartRequest) (Started, error)
	// Update tells a bound Boot what changed of its Binding: environment, default
	// user and folder, network policy, secrets, limits. It is repeatable; a Revision
	// older than one that the Boot has is a Conflict, and so are another Boot
	// number and what Engine.SetLimits calls one. After an error some of it may
	// be in force: repeat it, or tell something newer.
	Update(ctx context.Context, node, bootID string, b Binding) error
	// Stop ends a Boot, frozen or not; an unknown one is a success.
	Stop(ctx context.Context, node, bootID string, grace time.Duration) error
	// Boots returns the bound Boots of the Node, which may have been bound
	// before its present process began.
	Boots(ctx context.Context, node string) ([]BoundBoot, error)
	// Traffic returns what the bound Boots of the Node carried since they started,
	// also those that ended within TrafficMemory.
	Traffic(ctx context.Context, node string) ([]BootTraffic, error)
}

// NodeSaves saves Boots, and keeps and carries what was saved. The rules of Nodes
// apply.
type NodeSaves interface {
	// Save saves a Boot, which must be the one that is named, as Dial asks for.
	// It is repeatable: the same Snapshot of the same Boot is what it was the
	// first time. On error nothing is left of it and the Boot runs on. A Boot
	// that was frozen and goes on after all has its Snapshot deleted first: the
	// state is no longer what it is now. Unsupported where the Engine cannot.
	Save(ctx context.Context, node string, r SaveRequest) (Saved, error)
	// SaveFiles makes a state without memory of one with memory, which stays. No
	// Process of it runs meanwhile. On error nothing is left of the new one. See
	// Pauser for what a state that does not fit is. Unsupported where the Engine
	// cannot.
	SaveFiles(ctx context.Context, node string, r FilesRequest) (Saved, error)
	// Thaw has a Boot that Save left frozen run on. It is repeatable.
	Thaw(ctx context.Context, node string, boot BootRef) error
	// DeleteSaved removes the state of a Snapshot; an unknown one is a success.
	DeleteSaved(ctx context.Context, node, snapshot string) error
	// ListSaved returns the Snapshot IDs of all states that the Node keeps.
	ListSaved(ctx context.Context, node string) ([]string, error)
	// ExportSaved writes the state of a Snapshot to w, as Porter does. ImportSaved
	// makes what it wrote that of another Snapshot. Exhausted when the Node does
	// as much of that as it can, Unsupported where the Engine cannot.
	ExportSaved(ctx context.Context, node, snapshot string, image bool, w io.Writer) error
	ImportSaved(ctx context.Context, node string, tenant TenantID, snapshot string, r io.Reader) (Saved, error)
}

// BootDialer connects to programs inside Boots. The rules of Nodes apply.
type BootDialer interface {
	// Dial connects to a TCP port inside the Boot, which must be the Boot of
	// that number of that Sandbox; another number is a Conflict, and one of
	// another Tenant is not there: NotFound.
	Dial(ctx context.Context, node string, to BootRef, port uint16) (net.Conn, error)
}

// NodeReports shows users and operators what Nodes decided and how they are. The rules of
// Nodes apply.
type NodeReports interface {
	// NetworkLog returns what the network policies of a Boot decided. It is told
	// as Dial is of which Boot.
	NetworkLog(ctx context.Context, node string, of BootRef) (NetworkLog, error)
	// Stats returns the Node's present numbers.
	Stats(ctx context.Context, node string) (NodeStats, error)
}

// BootRef names a Boot with the owner it must have.
type BootRef struct {
	BootID    string
	SandboxID string
	Number    int64
	Tenant    TenantID
}

// BoundBoot is a Boot that belongs to a Sandbox, as its Node reports it.
type BoundBoot struct {
	BootRef
	Revision int64 // of the Binding that is in force
}

// BootTraffic is what a bound Boot carried.
type BootTraffic struct {
	BootRef
	Traffic
}

// BootEnd is a Node's report that a bound Boot ended by itself.
type BootEnd struct {
	BootRef
	Node  string // that tells it
	Cause Cause
	At    time.Time
}

// BootEnds takes the reports of Nodes.
type BootEnds interface {
	// BootEnded ends the Sandbox of a Boot that ended by itself, with the cause
	// told. A report of a Boot that is no longer the Sandbox's, or that another
	// Node runs, is ignored. The Node repeats a report until this returns nil.
	BootEnded(ctx context.Context, e BootEnd) error
}

// NodeStats is the state of one Node.
type NodeStats struct {
	Node     string
	Engine   Features
	Bound    int // Boots that belong to Sandboxes
	Pools    []PoolStats
	Ready    bool     // images there and Pools at their minimum
	NotReady []string // why not, a sentence each
}

// PoolStats is the state of one Pool.
type PoolStats struct {
	Template string
	Shape    Shape
	Idle     int // ready to be claimed
	Starting int
	Wanted   int // idle ones wanted now, as demand and the memory of the host allow
	Min, Max int
	Hits     int64 // claims served from the Pool
	Misses   int64 // claims that had to start cold
}

// Placement chooses Nodes. It holds no state that decides: a Node may refuse
// with Exhausted, and then the next one is tried.
type Placement interface {
	// Place returns the names of Nodes to try, best first. None is Exhausted.
	Place(ctx context.Context, image string, shape Shape) ([]string, error)
}

// Images knows the Template versions that Sandboxes can start from.
type Images interface {
	// Resolve returns the digest that template, NAME, NAME:TAG or NAME@DIGEST,
	// means to a Tenant: of its own Templates, or else of the operator's public
	// ones, which alone the empty Tenant has. NotFound when there is none,
	// Unavailable while its first build runs.
	Resolve(ctx context.Context, tenant TenantID, template string) (digest string, err error)
}
