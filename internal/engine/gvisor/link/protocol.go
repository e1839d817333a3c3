package link

import (
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// Version of the protocol, carried by internal/rpc/fdrpc. A shard answers hello for its own
// version and the previous one.
const Version = 1

// MaxLinks is how many links one shard carries.
const MaxLinks = 256

// Methods of the protocol. Each needs a hello on its connection first. A link that the
// shard lacks is NotFound, except for remove.
const (
	MethodHello      = "hello"       // Hello -> Hello
	MethodAdd        = "add"         // AddRequest and one file, the host's end: Conflict when the link exists, Exhausted beyond MaxLinks
	MethodRemove     = "remove"      // Ref -> Traffic, the total; returns when the link is gone
	MethodList       = "list"        // -> []Status
	MethodFetch      = "fetch"       // Ref -> a file: a copy of the host's end
	MethodSetPolicy  = "set_policy"  // PolicyRequest; connections no longer allowed are cut before it returns
	MethodDial       = "dial"        // DialRequest -> a file: a stream to the guest; Unavailable when refused
	MethodStats      = "stats"       // -> Stats
	MethodSetSecrets = "set_secrets" // SecretsRequest; applies to the next request of open connections too
	MethodLog        = "log"         // Ref -> sandbox.NetworkLog
	MethodTraffic    = "traffic"     // -> []Traffic
	MethodBandwidth  = "bandwidth"   // BandwidthRequest; applies at once, to open connections too
	MethodCloseAt    = "close_at"    // CloseAtRequest; for all links, also later ones
)

// Hello opens a connection, both ways. The caller's Settings replace the Settings of an
// earlier Hello for all links.
type Hello struct {
	Version int `json:"version"`
	Settings
}

// Settings are the operator's settings for all Sandboxes. The zero value opens nothing
// and asks the host's name servers.
type Settings struct {
	// Open lists rules, each with an address or CIDR, for non-public destinations that
	// may be reached.
	Open []string `json:"open,omitempty"`
	// NameServers replace the host's: "ADDRESS:PORT", at most three; the first that
	// answers is used.
	NameServers []string `json:"name_servers,omitempty"`
	// Roots are PEM certificates of further authorities, beside the host's trusted ones,
	// that may certify hosts which get secrets.
	Roots string `json:"roots,omitempty"`
	// Proxy is the URL of an upstream.Proxy for all connections except to Open
	// destinations; empty: none.
	Proxy string `json:"proxy,omitempty"`
	// Fenced says that the caller sets when all links close. Otherwise a time that an
	// earlier caller set does not count any more.
	Fenced bool `json:"fenced,omitempty"`
}

// Ref identifies a link.
type Ref struct {
	BootID string `json:"boot_id"`
}

// AddRequest plugs a link in.
type AddRequest struct {
	BootID string                `json:"boot_id"`
	Policy sandbox.NetworkPolicy `json:"policy"`
}

// PolicyRequest changes the policy of a link.
type PolicyRequest struct {
	BootID string                `json:"boot_id"`
	Policy sandbox.NetworkPolicy `json:"policy"`
}

// SecretsRequest changes the headers that requests of the guest get.
type SecretsRequest struct {
	BootID  string                `json:"boot_id"`
	Secrets sandbox.SecretBinding `json:"secrets"`
}

// BandwidthRequest bounds the traffic of a link's guest, per direction; connections that
// the host dials are not included.
type BandwidthRequest struct {
	BootID         string `json:"boot_id"`
	BytesPerSecond int64  `json:"bytes_per_second"` // zero: unlimited
}

// CloseAtRequest has all links of a shard carry nothing from a time on.
type CloseAtRequest struct {
	At   time.Duration `json:"at_ns"`          // since the machine started, with the time in which it was suspended; zero: never
	Keep bool          `json:"keep,omitempty"` // an earlier request's time stays, if there is one
}

// DialRequest connects to a TCP port of the guest.
type DialRequest struct {
	BootID  string        `json:"boot_id"`
	Port    uint16        `json:"port"`
	Timeout time.Duration `json:"timeout_ns,omitempty"` // zero: DialTimeout
}

// DialTimeout bounds a dial in either direction without a bound of its own.
const DialTimeout = 10 * time.Second

// Status describes one link.
type Status struct {
	BootID      string                `json:"boot_id"`
	Policy      sandbox.NetworkPolicy `json:"policy"`
	Connections int                   `json:"connections"` // open now, both ways, UDP flows too
	BytesIn     int64                 `json:"bytes_in"`    // frames written to the guest
	BytesOut    int64                 `json:"bytes_out"`   // frames read from the guest
	Lost        bool                  `json:"lost,omitempty"`
}

// Traffic is the traffic of a guest's own connections since its link was plugged in, in
// bytes, and the count of its policy's refusals.
type Traffic struct {
	BootID   string `json:"boot_id"`
	Sent     int64  `json:"sent"`
	Received int64  `json:"received"`
	Refused  int64  `json:"refused"`
}

// Stats describes a shard as a whole.
type Stats struct {
	Links       int   `json:"links"`
	Connections int   `json:"connections"`
	BytesIn     int64 `json:"bytes_in"`
	BytesOut    int64 `json:"bytes_out"`
	Allowed     int64 `json:"allowed"` // decisions of the policies, since the shard began
	Refused     int64 `json:"refused"`
	Limited     int64 `json:"limited"` // the refused DNS queries over a limit
	Goroutines  int   `json:"goroutines"`
	Threads     int   `json:"threads"`
	HeapBytes   int64 `json:"heap_bytes"`
}
