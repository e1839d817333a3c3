// Package sentryhost is the protocol of the sentry host, the only privileged
// part of a Node, and its client. The server, which links runsc, is in
// sentryhost/server.
//
// The sentry host knows Boots by ID and nothing of owners. It runs only
// binaries that lie beside itself and opens only images of its own image
// folder: a request names digests and numbers, never paths or commands.
package sentryhost

import (
	"crypto/sha256"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// Version of the protocol. A server answers hello for its own version and the
// one before.
const Version = 2

// PauseVersion is the first one in which Boots are frozen and saved.
const PauseVersion = 2

// Methods of the protocol. Each needs a hello on its connection first.
const (
	MethodHello   = "hello"   // Hello -> HelloReply
	MethodStart   = "start"   // StartRequest and two files, the guest's and the host's end of the link -> StartReply
	MethodStop    = "stop"    // BootRequest; returns when nothing is left
	MethodList    = "list"    // -> []Boot
	MethodLink    = "link"    // BootRequest -> a file: a copy of the link's host end
	MethodKeep    = "keep"    // BootRequest and a file: the link's host end, for a sentry host that has no copy
	MethodUsage   = "usage"   // BootRequest -> sandbox.Usage
	MethodLimit   = "limit"   // LimitRequest
	MethodFreeze  = "freeze"  // BootRequest
	MethodThaw    = "thaw"    // BootRequest
	MethodSave    = "save"    // SaveRequest -> sandbox.Saved; it goes on when its caller is gone
	MethodDelete  = "delete"  // SavedRequest
	MethodSaved   = "saved"   // -> []string: the names of saved states
	MethodExport  = "export"  // ExportRequest -> Proof and the files of the state, to be read
	MethodImport  = "import"  // ImportRequest and a pipe -> sandbox.Saved; it ends with the pipe
	MethodShare   = "share"   // ShareRequest
	MethodCache   = "cache"   // CacheRequest
	MethodHome    = "home"    // SavedRequest -> HomeReply: which build's sentry host starts from a state
	MethodLend    = "lend"    // LendRequest: puts a state where the sentry host of an earlier build finds it
	MethodUnlend  = "unlend"  // LendRequest: takes it back from there
	MethodCollect = "collect" // LendRequest -> sandbox.Saved: takes what that one saved
	MethodShard   = "shard"   // ShardRequest -> ShardReply: starts the link shard if it does not run
	MethodShards  = "shards"  // -> []ShardReply: the link shards that run
	MethodDown    = "down"    // ends every Boot and shard, then the sentry host itself
	MethodWatch   = "watch"   // from now on events come
	EventBoot     = "boot"    // sandbox.BootEvent
	EventShardEnd = "shard"   // ShardRequest: this shard ended
)

// Signals that the sentry host sends to a sentry. Saving and loading a state
// allocates several times the heap that the sentry has otherwise, and keeps nearly
// all of it to the end: until SignalRest the garbage collector would only find that
// out again and again. They are real-time signals (signal(7)), which gVisor does not
// forward to the guest.
const (
	SignalWork = syscall.Signal(46) // a state is about to be saved or loaded
	SignalRest = syscall.Signal(47) // it is over
)

// Hello opens a connection.
type Hello struct {
	Version int `json:"version"`
}

// HelloReply tells what the sentry host is.
type HelloReply struct {
	Version int    `json:"version"`
	Engine  string `json:"engine_version"` // gVisor's
	Build   string `json:"build"`          // hash of the sentry binary
	Cgroup  string `json:"cgroup"`         // "v1" or "v2"
	Pid     int    `json:"pid"`
}

// StartRequest starts a Boot.
type StartRequest struct {
	ID    string        `json:"id"`
	Image string        `json:"image"`
	Shape sandbox.Shape `json:"shape"`
	From  string        `json:"from,omitempty"` // saved state; empty: none
	// Spares is how many sentries may wait, with nothing in them, for starts like
	// this one and those just before it. Zero: none does, and none is used. Who asks
	// for any heeds StartReply.
	Spares int `json:"spares,omitempty"`
}

// StartReply tells what the Guest of a new Boot cannot know.
type StartReply struct {
	// SavedAt is when the state was saved that the Boot goes on from, which the Guest
	// is to be told; zero: it knows, or starts anew.
	SavedAt time.Time `json:"saved_at,omitzero"`
	// Shape is what it has where it started from a state; zero: what was asked for.
	Shape sandbox.Shape `json:"shape,omitzero"`
}

// SaveRequest saves a Boot.
type SaveRequest struct {
	ID     string `json:"id"`
	Name   string `json:"name"` // Snapshot ID
	Memory bool   `json:"memory"`
}

// SavedRequest names a saved state.
type SavedRequest struct {
	Name string `json:"name"`
}

// ExportRequest asks for a saved state.
type ExportRequest struct {
	Name  string `json:"name"`
	Image bool   `json:"image,omitempty"` // the image too; its file is the last
}

// Proof says what a saved state consists of and which installation says so.
type Proof struct {
	Manifest  []byte   `json:"manifest"` // as it lies on the disk there
	Sums      [][]byte `json:"sums"`     // SHA-256 of each of its files, in the Manifest's order
	Key       string   `json:"key"`      // of the installation
	Signature []byte   `json:"signature"`
	// ImageBytes is how long the image is that comes too; zero: none does. It needs
	// no signature: the Manifest, which has one, names the image by its hash.
	ImageBytes int64 `json:"image_bytes,omitempty"`
}

// Statement is what is signed.
func (p Proof) Statement() []byte {
	manifest := sha256.Sum256(p.Manifest)
	out := append([]byte("cloud-sandbox saved state 1\n"), manifest[:]...)
	for _, sum := range p.Sums {
		out = append(out, sum...)
	}
	return out
}

// ImportRequest makes a saved state of what another sentry host, or this one,
// exported. The pipe gives the bytes of the image, if that comes too, and of all its
// files, then ImportEnd.
type ImportRequest struct {
	Name  string `json:"name"`
	Proof Proof  `json:"proof"`
}

// ImportEnd is the byte that says that all went well at the pipe's other end.
const ImportEnd = '.'

// ShareRequest lets a saved state share what it has in common with others of its
// group on the disk.
type ShareRequest struct {
	Name  string `json:"name"`
	Group string `json:"group"`
}

// CacheRequest says how saved states that share are kept; until one came all
// stay as they were saved.
type CacheRequest struct {
	// Bytes is how many may lie there ready to be started from; beyond it those
	// that were not used for longest are packed.
	Bytes int64 `json:"bytes"`
	// PackAfterSeconds is how long a state is not used when it is packed.
	PackAfterSeconds int64 `json:"pack_after_seconds"`
}

// HomeReply says where a saved state can be started from.
type HomeReply struct {
	// Build names the build whose sentry host can; empty: the one that is asked.
	Build  string `json:"build,omitempty"`
	Engine string `json:"engine_version"` // gVisor's, of the state
}

// LendRequest names a saved state and an earlier build, whose sentry host has a
// folder of saved states of its own: see EarlierSaved.
type LendRequest struct {
	Name  string `json:"name"`
	Build string `json:"build"`
}

// EarlierSaved is the folder of saved states of the sentry host of an earlier
// build that runs beside that of this one, whose own folder is saved. Only one of
// them packs, removes and lists states.
func EarlierSaved(saved, build string) string { return filepath.Join(saved, "earlier", build) }

// ValidBuild reports whether name has the form of a build's name: 16 of [0-9a-f].
func ValidBuild(name string) bool {
	const length = 16
	return len(name) == length && strings.Trim(name, "0123456789abcdef") == ""
}

// Ready is the byte by which the launcher says that a sentry host answers that was
// needed.
const Ready = '.'

// BootRequest names a Boot.
type BootRequest struct {
	ID string `json:"id"`
}

// LimitRequest changes what a running Boot may use.
type LimitRequest struct {
	ID     string         `json:"id"`
	Limits sandbox.Limits `json:"limits"`
}

// Boot is one running Boot.
type Boot struct {
	ID    string        `json:"id"`
	Image string        `json:"image"`
	Shape sandbox.Shape `json:"shape"`
	// Limits are in force.
	Limits sandbox.Limits `json:"limits"`
	Pid    int            `json:"pid"` // of the sentry
	From   string         `json:"from,omitempty"`
	Frozen bool           `json:"frozen,omitempty"`
}

// ShardRequest names a link shard by its number, from 0.
type ShardRequest struct {
	Number int `json:"number"`
}

// ShardReply tells where a link shard listens.
type ShardReply struct {
	Number int    `json:"number"`
	Socket string `json:"socket"`
	Pid    int    `json:"pid"`
}

// ManifestName is the file in the folder of a saved state that holds its
// Manifest, as JSON.
const ManifestName = "manifest.json"

// RecordName is the file in the folder of a Boot that holds its record.
const RecordName = "boot.json"

// Manifest describes a saved state. Builds of all times read it.
type Manifest struct {
	Name   string        `json:"name"`
	Boot   string        `json:"boot"` // that was saved
	Memory bool          `json:"memory"`
	Build  string        `json:"build"`  // of the Guest that is in the memory
	Engine string        `json:"engine"` // gVisor's version
	Image  string        `json:"image"`
	Shape  sandbox.Shape `json:"shape"`
	// Held are the processes that stand still in the memory until they are let
	// go, children before their parents.
	Held    []int32     `json:"held,omitempty"`
	Files   []SavedFile `json:"files"`
	SavedAt time.Time   `json:"saved_at"` // when it stopped running
}

// SavedFile is one file of a saved state.
type SavedFile struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	CRC   uint32 `json:"crc32c"` // of what follows a layer in place
	// Layer is how many bytes at the beginning are the writable layer in place: a
	// copy, or the very file, of what the sentry had behind it.
	Layer int64 `json:"layer,omitempty"`
}
