package sandbox

import (
	"context"
	"io"
	"net"
	"time"
)

// Binding is the argument of Bind, the call that gives a Boot to an owner. No user
// Process starts before Bind.
type Binding struct {
	SandboxID   string
	BootNumber  int64
	Tenant      TenantID
	Template    string
	AccessToken string // for the E2B services inside; derived, never stored; empty: none required
	Env         map[string]string
	User        string // default user of Processes; empty: "user"
	Cwd         string // default working directory; empty: /workspace
	Network     NetworkPolicy
	Secrets     SecretBinding
	// Volumes are mounted before any Process of the owner starts or continues. Update
	// never changes them.
	Volumes  []VolumeBinding
	Limits   Limits
	Timeline int64
	Revision int64 // grows with every change that the Boot must learn
	// Restored is set by the Node when the Boot started from saved memory. Its Guest may
	// have had another owner, and its clock stood still.
	Restored bool
}

// StartRequest asks a Node for a Boot.
type StartRequest struct {
	BootID  string // ID for a cold start; a pooled Boot keeps its own
	Image   string
	Shape   Shape
	Binding Binding
	// From is the Snapshot to start from; empty: the Image alone. With a Snapshot, no
	// pooled Boot is used, and none of the Snapshot's Processes runs before the Boot is
	// bound. Pauser lists the errors for a state that does not fit.
	From string
}

// SaveRequest asks a Node to save a Boot.
type SaveRequest struct {
	Boot     BootRef
	Snapshot string // Snapshot ID; names the saved state
	Memory   bool   // Processes and memory too; false: only files
	Freeze   bool   // leave the Boot frozen afterwards, as a pause does
	// Leaves says that the state is carried to another Node now and then deleted: to deduplicate
	// or replicate it here would be in vain, and slow the move down.
	Leaves bool
}

// FilesRequest asks a Node to copy only the files of a saved state.
type FilesRequest struct {
	Tenant   TenantID
	From     string // Snapshot ID of a state with memory
	Image    string // of that state
	Shape    Shape  // covered by the state's own Shape
	Snapshot string // Snapshot ID; names the new state
}

// FetchRequest asks a Node to make a saved state from the replica of another one.
type FetchRequest struct {
	Tenant   TenantID // the owner of both
	From     string   // Snapshot ID of the replicated state
	Image    string   // of that state
	Snapshot string   // Snapshot ID; names the new state
	// CPU are the features that the state needs; Conflict, with the Cause ErrCPU, if the
	// Node lacks some. Empty: not known, or none.
	CPU CPUFeatures
}

// Started is a Node's answer to a StartRequest.
type Started struct {
	BootID string
	Pooled bool // it came from the Pool
}

// Nodes reaches the Nodes of this installation. It joins the ports below for the code
// that connects roles. Other code depends only on the ports whose methods it calls.
//
// In each port, node is a Node's name; an unknown or silent one is Unavailable. Methods
// are safe for concurrent use.
type Nodes interface {
	NodeBoots
	NodeSaves
	NodeChanges
	BootDialer
	NodeReports
	NodeVolumes
	VolumeFiles
}

// NodeBoots starts, changes, counts and stops the Boots of Sandboxes on Nodes. The rules of
// Nodes apply.
type NodeBoots interface {
	// Start claims a Boot from the Node's Pool, or starts one cold, and binds it. It is
	// idempotent: for a Sandbox and Boot number that are already bound here it returns
	// the same Boot. A Boot number older than one seen for the Sandbox is a Conflict. On
	// error the Node keeps nothing of the request.
	Start(ctx context.Context, node string, req StartRequest) (Started, error)
	// Update sends changes of its Binding to a bound Boot: environment, default user and
	// folder, network policy, secrets, limits. It is idempotent. A Revision older than
	// the Boot's is a Conflict, and so are a different Boot number and a Conflict of
	// Engine.SetLimits. After an error part of the change may be in force: repeat it, or
	// send a newer Revision.
	Update(ctx context.Context, node, bootID string, b Binding) error
	// Stop ends a Boot, frozen or not; an unknown one is a success.
	Stop(ctx context.Context, node, bootID string, grace time.Duration) error
	// Boots returns the bound Boots of the Node, which may have been bound
	// before its present process began.
	Boots(ctx context.Context, node string) ([]BoundBoot, error)
	// Traffic returns the traffic of the Node's bound Boots since they started, including
	// Boots that ended within TrafficMemory.
	Traffic(ctx context.Context, node string) ([]BootTraffic, error)
	// Usage returns the current resource use of a Boot. It matches the BootRef as Dial
	// does.
	Usage(ctx context.Context, node string, of BootRef) (Usage, error)
}

// NodeSaves saves Boots, and keeps, exports and imports the saved states. The rules of
// Nodes apply.
type NodeSaves interface {
	// Save saves a Boot. The Boot must match the BootRef, as for Dial. Save is
	// idempotent: repeating it for the same Snapshot and Boot returns the first result.
	// On error no state is left and the Boot keeps running. Before a frozen Boot
	// continues after all, its Snapshot must be deleted, because the Boot's state will
	// differ from it. Unsupported where the Engine cannot save.
	Save(ctx context.Context, node string, r SaveRequest) (Saved, error)
	// SaveFiles copies a state with memory to a new state without memory. The original
	// stays, and none of its Processes runs meanwhile. On error nothing is left of the
	// new state. Pauser lists the errors for a state that does not fit. Unsupported where
	// the Engine cannot.
	SaveFiles(ctx context.Context, node string, r FilesRequest) (Saved, error)
	// Thaw lets a Boot that Save left frozen continue. It is idempotent.
	Thaw(ctx context.Context, node string, boot BootRef) error
	// DeleteSaved removes the state of a Snapshot; an unknown one is a success.
	DeleteSaved(ctx context.Context, node, snapshot string) error
	// ListSaved returns the Snapshot IDs of all states that the Node keeps.
	ListSaved(ctx context.Context, node string) ([]string, error)
	// ExportSaved writes the state of a Snapshot to w, as Porter does. ImportSaved reads
	// such an export as the state of another Snapshot; image is the Image that the state
	// needs if it is not in the export, and empty otherwise. Exhausted when the Node runs
	// too many of these at once, Unsupported where the Engine cannot.
	ExportSaved(ctx context.Context, node, snapshot string, image bool, w io.Writer) error
	ImportSaved(ctx context.Context, node string, tenant TenantID, snapshot, image string, r io.Reader) (Saved, error)
	// FetchSaved makes a state from the replica of a state of any Node. NotFound when
	// no replica exists, Unsupported where states are not replicated, Exhausted as
	// above.
	FetchSaved(ctx context.Context, node string, r FetchRequest) (Saved, error)
}

// NodeChanges carry a state from Node to Node as its difference from a base: an earlier state
// that was carried before. Then a Boot stands still for as long as its changes take, instead
// of all of its memory. A base is forgotten once it was used, after ten minutes, or when the
// process ends. Errors are as in NodeSaves; NotFound also if the base is forgotten. The rules
// of Nodes apply.
type NodeChanges interface {
	// ExportBase is NodeSaves.ExportSaved without the image. The Node remembers the
	// content of the state.
	ExportBase(ctx context.Context, node, snapshot string, w io.Writer) error
	// KeepBase keeps the output of ExportBase for snapshot.
	KeepBase(ctx context.Context, node, snapshot string, r io.Reader) error
	// ExportChanges is ExportBase for the difference from the base.
	ExportChanges(ctx context.Context, node, snapshot, base string, w io.Writer) error
	// ImportChanges is NodeSaves.ImportSaved for the output of ExportChanges.
	ImportChanges(ctx context.Context, node string, tenant TenantID, r ChangesRequest, from io.Reader) (Saved, error)
}

// ChangesRequest asks a Node for a state made from a base and its difference from that.
type ChangesRequest struct {
	Snapshot string // that the state belongs to
	Image    string // that it needs
	Base     string // the Snapshot of the base
}

// BootDialer connects to programs inside Boots. The rules of Nodes apply.
type BootDialer interface {
	// Dial connects to a TCP port inside the Boot, which must have the Sandbox and number
	// in the BootRef. A different number is a Conflict, a different Tenant NotFound.
	Dial(ctx context.Context, node string, to BootRef, port uint16) (net.Conn, error)
}

// NodeReports returns network decisions and statistics of Nodes, for users and operators.
// The rules of Nodes apply.
type NodeReports interface {
	// NetworkLog returns the decisions of a Boot's network policies. It matches the
	// BootRef as Dial does.
	NetworkLog(ctx context.Context, node string, of BootRef) (NetworkLog, error)
	// Stats returns the Node's current statistics.
	Stats(ctx context.Context, node string) (NodeStats, error)
}

// BootRef names a Boot and its expected owner.
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

// BootTraffic is the traffic of a bound Boot.
type BootTraffic struct {
	BootRef
	Traffic
}

// BootEnd is a Node's report that a bound Boot ended by itself.
type BootEnd struct {
	BootRef
	Node  string // that reports it
	Cause Cause
	At    time.Time
}

// BootEnds receives the reports of Nodes about ended Boots.
type BootEnds interface {
	// BootEnded ends the Sandbox of a Boot that ended by itself, with the reported cause.
	// A report about a Boot that the Sandbox no longer has, or that another Node runs, is
	// ignored. The Node repeats a report until this returns nil.
	BootEnded(ctx context.Context, e BootEnd) error
	// NodeEnded ends the Sandboxes of a Node all of whose Boots the operator has ended,
	// except paused ones, with CauseOperator. It returns their number and does not call
	// the Node. Conflict if another Holder has had the Lease since.
	NodeEnded(ctx context.Context, node, holder string) (int, error)
}

// NodeStats is the state of one Node.
type NodeStats struct {
	Node   string
	Engine Features
	Bound  int       // Boots that belong to Sandboxes
	Host   HostState // zero: not known
	Full   bool      // a new Boot would be refused, because the host's memory or disk is nearly full
	// Wait is the expected wait of one more start of a Tenant without waiting starts.
	Wait time.Duration
	// Turn is the expected time between two turns of waiting starts; zero: not known.
	Turn time.Duration
	// Waiting are the starts that wait, of the Tenants with the most, at most
	// MaxWaitingTenants.
	Waiting  []WaitingStarts
	Images   []string // digests of images on the host, at most MaxNodeImages
	Pools    []PoolStats
	Ready    bool     // images are present and Pools at their minimum
	NotReady []string // why not, a sentence each
}

// MaxNodeImages is the largest number of images that a Node reports.
const MaxNodeImages = 1000

// WaitingStarts are the starts and restores of a Tenant that wait on a Node.
type WaitingStarts struct {
	Tenant TenantID
	Starts int
}

// MaxWaitingTenants is the largest number of Tenants whose waiting starts a Node reports.
const MaxWaitingTenants = 100

// HostState is a host's free and total disk and memory, in bytes.
type HostState struct {
	DiskFree, DiskTotal     int64 // of the disk that Boots write to
	MemoryFree, MemoryTotal int64 // free includes reclaimable caches
}

// PoolStats is the state of one Pool.
type PoolStats struct {
	Template string
	Image    string // digest of the Boots that are started now; empty: not known yet
	Shape    Shape
	Idle     int // ready to be claimed
	Starting int
	Wanted   int // current target for Idle, from demand and host memory
	Min, Max int
	Hits     int64 // claims served from the Pool
	Misses   int64 // claims that started cold
}

// BootNeeds are the requirements of a Boot on its Node.
type BootNeeds struct {
	Tenant TenantID // the owner, whose own waiting starts count
	Image  string   // digest; empty: any
	Shape  Shape
	// CPU are the features that the saved state needs from which the Boot starts; empty:
	// not known, or none. A Node that does not report its features counts as one with all.
	CPU CPUFeatures
}

// Placement chooses Nodes. Its choice is a hint: a Node may refuse with Exhausted, and
// then the next Node is tried.
type Placement interface {
	// Place returns the names of a few Nodes to try, best first. Exhausted when no Node
	// is available. Conflict with the Cause ErrCPU when all lack CPU features.
	Place(ctx context.Context, needs BootNeeds) ([]string, error)
	// PlaceElsewhere returns the name of another Node than node. That Node must have
	// reported that it has room. Exhausted when no other Node has reported room.
	// Conflict with the Cause ErrCPU when the Nodes with room lack CPU features.
	PlaceElsewhere(ctx context.Context, needs BootNeeds, node string) (string, error)
}

// Images knows the Template versions that Sandboxes can start from.
type Images interface {
	// Resolve returns the digest of template (NAME, NAME:TAG or NAME@DIGEST) for a
	// Tenant. The Tenant's own Templates take precedence over the operator's public ones;
	// the empty Tenant has only the public ones. NotFound when no Template matches,
	// Unavailable while its first build runs.
	Resolve(ctx context.Context, tenant TenantID, template string) (digest string, err error)
}
