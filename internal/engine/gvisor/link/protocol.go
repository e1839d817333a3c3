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
	MethodHello      = "hello"       // Hello -> Hello
	MethodAdd        = "add"         // AddRequest and one file, the host's end: Conflict when there, Exhausted beyond MaxLinks
	MethodRemove     = "remove"      // Ref -> Traffic, the last; returns when nothing of the link is left
	MethodList       = "list"        // -> []Status
	MethodFetch      = "fetch"       // Ref -> a file: a copy of the host's end
	MethodSetPolicy  = "set_policy"  // PolicyRequest; connections no longer allowed are cut before it returns
	MethodDial       = "dial"        // DialRequest -> a file: a stream to the guest; Unavailable when refused
	MethodStats      = "stats"       // -> Stats
	MethodSetSecrets = "set_secrets" // SecretsRequest; holds for the next request of open connections too
	MethodLog        = "log"         // Ref -> sandbox.NetworkLog
	MethodTraffic    = "traffic"     // -> []Traffic
	MethodBandwidth  = "bandwidth"   // BandwidthRequest; holds at once, for open connections too
)

// Hello opens a connection, both ways. Settings are the caller's and hold for all
// links, in place of those of an earlier Hello.
type Hello struct {
	Version int `json:"version"`
	Settings
}

// Settings are what the operator decided for all Sandboxes. The zero value opens
// nothing and asks the host's name servers.
type Settings struct {
	// Open lists rules, each with an address or CIDR, of what may be reached
	// although it is not public.
	Open []string `json:"open,omitempty"`
	// NameServers are asked in place of the host's: "ADDRESS:PORT", the first
	// that answers, at most three.
	NameServers []string `json:"name_servers,omitempty"`
	// Roots are certificates in PEM of authorities that hosts which get secrets may
	// be certified by, beside those that the host trusts.
	Roots string `json:"roots,omitempty"`
	// Proxy is the URL of an upstream.Proxy that connections go through, but for those
	// to what Open lists; empty: none.
	Proxy string `json:"proxy,omitempty"`
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

// SecretsRequest says which headers requests of the guest get.
type SecretsRequest struct {
	BootID  string                `json:"boot_id"`
	Secrets sandbox.SecretBinding `json:"secrets"`
}

// BandwidthRequest bounds what the connections of a link's guest carry together,
// each way; not those that the host dials.
type BandwidthRequest struct {
	BootID         string `json:"boot_id"`
	BytesPerSecond int64  `json:"bytes_per_second"` // zero: no bound
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

// Traffic is what the connections that a link's guest opened carried since it was
// plugged in, in bytes, and how much its policy refused.
type Traffic struct {
	BootID   string `json:"boot_id"`
	Sent     int64  `json:"sent"`
	Received int64  `json:"received"`
	Refused  int64  `json:"refused"`
}

// Stats is a shard as a whole.
type Stats struct {
	Links       int   `json:"links"`
	Connections int   `json:"connections"`
	BytesIn     int64 `json:"bytes_in"`
	BytesOut    int64 `json:"bytes_out"`
	Allowed     int64 `json:"allowed"` // decisions of the policies, since the shard began
	Refused     int64 `json:"refused"`
	Limited     int64 `json:"limited"` // of those, questions for names held back by a limit
	Goroutines  int   `json:"goroutines"`
	Threads     int   `json:"threads"`
	HeapBytes   int64 `json:"heap_bytes"`
}
