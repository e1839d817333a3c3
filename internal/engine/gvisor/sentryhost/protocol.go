// Package sentryhost is the protocol of the sentry host, the only privileged
// part of a Node, and its client. The server, which links runsc, is in
// sentryhost/server.
//
// The sentry host knows Boots by ID and knows no owners. It runs only binaries that lie
// beside itself and opens only images of its own image folder: a request names digests
// and numbers, never paths or commands.
package sentryhost

import (
	"crypto/sha256"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
)

// Version of the protocol. A server answers hello for its own version and the previous
// one.
const Version = 2

// PauseVersion is the first protocol version with freeze and save.
const PauseVersion = 2

// Methods of the protocol. Each needs a hello on its connection first.
const (
	MethodHello             = "hello"   // Hello -> HelloReply
	MethodStart             = "start"   // StartRequest and two files, the guest's and the host's end of the link -> StartReply
	MethodStop              = "stop"    // BootRequest; returns when everything of the Boot is removed
	MethodList              = "list"    // -> []Boot
	MethodLink              = "link"    // BootRequest -> a file: a copy of the link's host end
	MethodReturnLink        = "keep"    // BootRequest and a file: the link's host end, for a sentry host that has no copy
	MethodUsage             = "usage"   // BootRequest -> sandbox.Usage
	MethodLimit             = "limit"   // LimitRequest
	MethodFreeze            = "freeze"  // BootRequest
	MethodThaw              = "thaw"    // BootRequest
	MethodSave              = "save"    // SaveRequest -> sandbox.Saved; continues when its caller is gone
	MethodDelete            = "delete"  // SavedRequest
	MethodSaved             = "saved"   // -> []string: the names of saved states
	MethodExport            = "export"  // ExportRequest -> Proof and the files of the state, open for reading
	MethodImport            = "import"  // ImportRequest and a pipe -> sandbox.Saved; ends with the pipe
	MethodArrive            = "arrive"  // ImportRequest and a connection -> ArriveReply; the pages follow: see ArriveReply
	MethodArrived           = "arrived" // BootRequest; returns when all of the state that the Boot started from has arrived
	MethodAdmit             = "admit"   // ImportRequest -> AdmitReply: whether the state would be imported
	MethodBuild             = "build"   // BuildRequest and a pipe with the build's programs; ends with the pipe
	MethodBuildKey          = "signer"  // installation.BuildKey: which key signs builds
	MethodShare             = "share"   // ShareRequest
	MethodCache             = "cache"   // CacheRequest
	MethodHome              = "home"    // SavedRequest -> HomeReply: which build's sentry host starts from a state
	MethodShareWithEarlier  = "lend"    // EarlierRequest: puts a state where the sentry host of an earlier build finds it
	MethodRevokeFromEarlier = "unlend"  // EarlierRequest: removes it from there
	MethodImportFromEarlier = "collect" // EarlierRequest -> sandbox.Saved: takes a state that the earlier build saved
	MethodShard             = "shard"   // ShardRequest -> ShardReply: starts the link shard unless it runs
	MethodShards            = "shards"  // -> []ShardReply: the running link shards
	MethodDown              = "down"    // ends every Boot and shard, then the sentry host itself
	MethodWatch             = "watch"   // subscribes to events from now on
	EventBoot               = "boot"    // sandbox.BootEvent
	EventShardEnd           = "shard"   // ShardRequest: this shard ended
)

// Signals that the sentry host sends to a sentry. Saving and loading a state allocates
// several times the sentry's usual heap, and keeps nearly all of it to the end: garbage
// collections before SignalRest would free nearly nothing. They are real-time signals
// (signal(7)), which gVisor does not forward to the guest.
const (
	SignalWork = syscall.Signal(46) // a state is about to be saved or loaded
	SignalRest = syscall.Signal(47) // the save or load is over
)

// Hello opens a connection.
type Hello struct {
	Version int `json:"version"`
}

// HelloReply describes the sentry host.
type HelloReply struct {
	Version int    `json:"version"`
	Engine  string `json:"engine_version"` // gVisor's
	Build   string `json:"build"`          // hash of the sentry binary
	Cgroup  string `json:"cgroup"`         // "v1" or "v2"
	Pid     int    `json:"pid"`
	// CPU are the features of this host that matter to saved states.
	CPU sandbox.CPUFeatures `json:"cpu,omitempty"`
	// HideableCPU are the features that a sentry can hide from its Boot; empty: none,
	// because this host does not trap the instruction CPUID.
	HideableCPU sandbox.CPUFeatures `json:"hideable_cpu,omitempty"`
}

// StartRequest starts a Boot.
type StartRequest struct {
	ID    string        `json:"id"`
	Image string        `json:"image"`
	Shape sandbox.Shape `json:"shape"`
	From  string        `json:"from,omitempty"` // saved state; empty: none
	// Spares is how many empty sentries may wait for starts like this one and the starts
	// just before it. Zero: no sentry waits, and no waiting one is used. A caller that
	// sets it must heed StartReply.
	Spares int `json:"spares,omitempty"`
	// CPU are the features that a Boot without saved memory sees; empty: all of the host.
	CPU sandbox.CPUFeatures `json:"cpu,omitempty"`
}

// StartReply holds facts that the Guest of a new Boot cannot know.
type StartReply struct {
	// SavedAt is when the state that the Boot continues from was saved. The caller passes
	// it to the Guest. Zero: the Guest knows it, or starts cold.
	SavedAt time.Time `json:"saved_at,omitzero"`
	// Shape is the Shape of a Boot that started from a state; zero: as requested.
	Shape sandbox.Shape `json:"shape,omitzero"`
	// Arrives says that a part of the state is still on its way.
	Arrives bool `json:"arrives,omitempty"`
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

// Proof lists the contents of a saved state, signed by an installation.
type Proof struct {
	Manifest  []byte   `json:"manifest"` // as stored on that installation's disk
	Sums      [][]byte `json:"sums"`     // SHA-256 of each of its files, in the Manifest's order
	Key       string   `json:"key"`      // public key of the installation
	Signature []byte   `json:"signature"`
	// Certificate is the cluster's for Key; nil: the installation is in no cluster.
	Certificate *installation.Certificate `json:"certificate,omitempty"`
	// ImageBytes is the length of the image that is sent too; zero: no image. The image
	// needs no signature: the signed Manifest names it by its hash.
	ImageBytes int64 `json:"image_bytes,omitempty"`
}

// Statement returns the bytes that are signed.
func (p Proof) Statement() []byte {
	manifest := sha256.Sum256(p.Manifest)
	out := append([]byte("cloud-sandbox saved state 1\n"), manifest[:]...)
	for _, sum := range p.Sums {
		out = append(out, sum...)
	}
	return out
}

// ImportRequest makes a saved state from the export of another sentry host, or of this
// one. The pipe carries the image, if it is sent too, then all files of the state, then
// ImportEnd.
type ImportRequest struct {
	Name  string `json:"name"`
	Proof Proof  `json:"proof"`
	// Revoked is the newest list of revoked sentry hosts that the server has, as their
	// cluster's authority signed it; empty: none.
	Revoked []byte `json:"revoked,omitempty"`
}

// ImportEnd is the last byte of the pipe; it means that the sender succeeded.
const ImportEnd = '.'

// ArriveReply answers an ImportRequest of a state that arrives on a connection of type
// stream. The files before the pages come on it first, without an image. The reply follows
// then: a Boot can start from the state, unless the state is deleted. After the reply the
// server sends the pieces of the pages in any order, each after its index as 4 bytes, little
// endian. The sentry host sends the indices of pieces that it wants first, in the same form,
// and ArriveEnd once all pieces have arrived, match their hash and are on the disk. The
// server sends ArriveEnd if the rest will not come. If the connection ends without that, it
// may send the same request again with another connection.
type ArriveReply struct {
	Saved sandbox.Saved `json:"saved"`
	// Have has a bit for each piece that need not be sent again, the lowest bits first;
	// empty: none.
	Have []byte `json:"have,omitempty"`
}

const (
	// PieceBytes is the size of a piece; the last one may be smaller.
	PieceBytes = 1 << 20
	// ArriveEnd is the index that ends an arrival.
	ArriveEnd = ^uint32(0)
)

// AdmitReply says what an import still needs.
type AdmitReply struct {
	// Lacks is the build whose programs the state needs and which is not here, or not with
	// a good signature; empty: none.
	Lacks string `json:"lacks,omitempty"`
}

// BuildRequest brings the programs of an earlier build. The pipe carries them, one after
// the other, then ImportEnd.
type BuildRequest struct {
	Build string `json:"build"`
	// Signed is a builds.Signed as JSON.
	Signed []byte `json:"signed"`
}

// ShareRequest lets a saved state share equal data on the disk with other states of its
// group.
type ShareRequest struct {
	Name  string `json:"name"`
	Group string `json:"group"`
}

// CacheRequest sets how states with a group are kept; before the first one all states
// stay as they were saved.
type CacheRequest struct {
	// Bytes bounds the unpacked states, in bytes; beyond it the least recently used are
	// packed.
	Bytes int64 `json:"bytes"`
	// PackAfterSeconds is the unused time after which a state is packed.
	PackAfterSeconds int64 `json:"pack_after_seconds"`
}

// HomeReply names the build that can start from a saved state.
type HomeReply struct {
	// Build is the build whose sentry host can; empty: the sentry host that answers.
	Build  string `json:"build,omitempty"`
	Engine string `json:"engine_version"` // gVisor's, of the state
	// CPU are the features that the state needs; empty: not known, or none.
	CPU sandbox.CPUFeatures `json:"cpu,omitempty"`
	// Lacks is as in AdmitReply. Nothing can start from the state before the build is here.
	Lacks string `json:"lacks,omitempty"`
}

// EarlierRequest names a saved state and an earlier build, whose sentry host has its own
// folder of saved states: see EarlierSaved.
type EarlierRequest struct {
	Name  string `json:"name"`
	Build string `json:"build"`
}

// EarlierSaved is the folder of saved states of an earlier build's sentry host that runs
// beside the current one. saved is the current one's own folder. Only the current sentry
// host packs, removes and lists states.
func EarlierSaved(saved, build string) string { return filepath.Join(saved, "earlier", build) }

// ValidBuild reports whether name has the form of a build's name: 16 of [0-9a-f].
func ValidBuild(name string) bool {
	const length = 16
	return len(name) == length && strings.Trim(name, "0123456789abcdef") == ""
}

// Ready is the byte by which the launcher reports that the sentry host it was to start
// answers.
const Ready = '.'

// BootRequest names a Boot.
type BootRequest struct {
	ID string `json:"id"`
}

// LimitRequest changes the limits of a running Boot.
type LimitRequest struct {
	ID     string         `json:"id"`
	Limits sandbox.Limits `json:"limits"`
}

// Boot describes a running Boot.
type Boot struct {
	ID    string        `json:"id"`
	Image string        `json:"image"`
	Shape sandbox.Shape `json:"shape"`
	// Limits are the limits in force.
	Limits sandbox.Limits `json:"limits"`
	Pid    int            `json:"pid"` // of the sentry
	From   string         `json:"from,omitempty"`
	Frozen bool           `json:"frozen,omitempty"`
}

// ShardRequest names a link shard by its number, from 0.
type ShardRequest struct {
	Number int `json:"number"`
}

// ShardReply describes a running link shard.
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

// Manifest describes a saved state. Builds of every age read it.
type Manifest struct {
	Name   string        `json:"name"`
	Boot   string        `json:"boot"` // the Boot that was saved
	Memory bool          `json:"memory"`
	Build  string        `json:"build"`  // of the Guest in the memory
	Engine string        `json:"engine"` // gVisor's version
	Image  string        `json:"image"`
	Shape  sandbox.Shape `json:"shape"`
	// Held are the processes that stay stopped after a restore until they get SIGCONT,
	// children before their parents.
	Held []int32 `json:"held,omitempty"`
	// CPU are the features that the saved processes may use. They continue only on a host
	// with all of them. Empty: not recorded, or the state has files alone.
	CPU     sandbox.CPUFeatures `json:"cpu,omitempty"`
	Files   []SavedFile         `json:"files"`
	SavedAt time.Time           `json:"saved_at"` // when the Boot stopped running
}

// SavedFile is one file of a saved state.
type SavedFile struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	CRC   uint32 `json:"crc32c"` // of the bytes after a layer in place
	// Layer is how many bytes at the beginning are the writable layer in place: a copy of
	// the sentry's layer file, or that very file.
	Layer int64 `json:"layer,omitempty"`
}
