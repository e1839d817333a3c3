package sandbox

import (
	"context"
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
	AccessToken string // for the E2B services inside; derived, never stored
	Env         map[string]string
	User        string // default user of Processes; empty: "user"
	Cwd         string // default working directory; empty: /workspace
	Network     NetworkPolicy
	Pids        int64 // limit of the user's Processes and threads; zero: none
	Timeline    int64
}

// StartRequest asks a Node for a Boot.
type StartRequest struct {
	BootID  string // the name it will have when it starts cold; a pooled Boot keeps its own
	Image   string
	Shape   Shape
	Binding Binding
}

// Started is a Node's answer to a StartRequest.
type Started struct {
	BootID string
	Pooled bool // it came from the Pool
}

// Nodes reaches the Nodes of this installation. node is a Node's name; an
// unknown or silent one is Unavailable.
//
// Methods are safe for concurrent use.
type Nodes interface {
	// Start claims a Boot from the Node's Pool, or starts one cold, and binds
	// it. It is repeatable: for a Sandbox and Boot number that are bound here
	// already it returns the same Boot. A Boot number older than one seen for
	// the Sandbox is a Conflict. On error the Node keeps nothing of the
	// request.
	Start(ctx context.Context, node string, req StartRequest) (Started, error)
	// Stop ends a Boot; an unknown one is a success.
	Stop(ctx context.Context, node, bootID string, grace time.Duration) error
	// Boots returns the bound Boots of the Node, which may have been bound
	// before its present process began.
	Boots(ctx context.Context, node string) ([]BoundBoot, error)
	// Dial connects to a TCP port inside the Boot, which must be the Boot of
	// that number of that Sandbox; another number is a Conflict.
	Dial(ctx context.Context, node string, to BootRef, port uint16) (net.Conn, error)
	// Stats returns the Node's present numbers.
	Stats(ctx context.Context, node string) (NodeStats, error)
}

// BootRef names a Boot with the owner it must have.
type BootRef struct {
	BootID    string
	SandboxID string
	Number    int64
}

// BoundBoot is a Boot that belongs to a Sandbox, as its Node reports it.
type BoundBoot struct {
	BootRef
	Tenant TenantID
}

// BootEnd is a Node's report that a bound Boot ended by itself.
type BootEnd struct {
	BootRef
	Cause Cause
	At    time.Time
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
	// Resolve returns the digest of a Template's present version; NotFound when
	// there is none, Unavailable while its first build runs.
	Resolve(ctx context.Context, template string) (digest string, err error)
}
