package link

import (
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// Version of the protocol, carried by internal/fdrpc. A shard answers hello for
// its own version and the one before.
const Version = 1

// MaxLinks is how many links one shard carries.
const MaxLinks = 256

// Methods of the protocol. Each needs a hello on its connection first. A link
// that the shard does not have is NotFound, except for remove.
const (
	MethodHello     = "hello"      // Hello -> Hello
	MethodAdd       = "add"        // AddRequest and one file, the host's end: Conflict when there, Exhausted beyond MaxLinks
	MethodRemove    = "remove"     // Ref; returns when nothing of the link is left
	MethodList      = "list"       // -> []Status
	MethodFetch     = "fetch"      // Ref -> a file: a copy of the host's end
	MethodSetPolicy = "set_policy" // PolicyRequest; connections no longer allowed are cut before it returns
	MethodDial      = "dial"       // DialRequest -> a file: a stream to the guest; Unavailable when refused
	MethodStats     = "stats"      // -> Stats
)

// Hello opens a connection, both ways.
type Hello struct {
	Version int `json:"version"`
}

// Ref names a link.
type Ref struct {
	BootID string `json:"boot_id"`
}

// AddRequest plugs a link in.
type AddRequest struct {
	BootID string                `json:"boot_id"`
	Policy sandbox.NetworkPolicy `json:"policy"`
}

// PolicyRequest changes where a link may connect to.
type PolicyRequest struct {
	BootID string                `json:"boot_id"`
	Policy sandbox.NetworkPolicy `json:"policy"`
}

// DialRequest connects to a TCP port of the guest.
type DialRequest struct {
	BootID  string        `json:"boot_id"`
	Port    uint16        `json:"port"`
	Timeout time.Duration `json:"timeout_ns,omitempty"` // zero: DialTimeout
}

// DialTimeout bounds a dial, either way, that names no bound of its own.
const DialTimeout = 10 * time.Second

// Status is one link as its shard counts it.
type Status struct {
	BootID      string                `json:"boot_id"`
	Policy      sandbox.NetworkPolicy `json:"policy"`
	Connections int                   `json:"connections"` // open now, both ways, UDP flows too
	BytesIn     int64                 `json:"bytes_in"`    // frames written to the guest
	BytesOut    int64                 `json:"bytes_out"`   // frames read from the guest
	Lost        bool                  `json:"lost,omitempty"`
}

// Stats is a shard as a whole.
type Stats struct {
	Links       int   `json:"links"`
	Connections int   `json:"connections"`
	BytesIn     int64 `json:"bytes_in"`
	BytesOut    int64 `json:"bytes_out"`
	Goroutines  int   `json:"goroutines"`
	Threads     int   `json:"threads"`
	HeapBytes   int64 `json:"heap_bytes"`
}
