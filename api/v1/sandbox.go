package v1

import (
	"encoding/json"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Sandbox is the record of a sandbox. It omits environment variables, because they
// often hold secrets.
type Sandbox struct {
	ID        string        `json:"sandbox_id"`
	SessionID string        `json:"session_id"` // the same ID
	Name      string        `json:"name,omitempty"`
	State     sandbox.State `json:"state"`
	Template  string        `json:"template"`
	Engine    string        `json:"engine"`
	Shape     Shape         `json:"shape"`
	Resources Limits        `json:"resources"`
	// Network is the network policy in the form that Network has in requests. Clients
	// keep any JSON, because a newer server may have other forms.
	Network json.RawMessage `json:"network"`
	Ports   Ports           `json:"ports"`
	// Secrets are the uses of secrets, without their values.
	Secrets   json.RawMessage   `json:"secrets,omitempty"`
	Volumes   []Mount           `json:"volumes,omitempty"`
	User      string            `json:"user,omitempty"`
	Cwd       string            `json:"cwd,omitempty"`
	Metadata  map[string]string `json:"metadata"`
	CreatedAt time.Time         `json:"created_at"`
	StartedAt time.Time         `json:"started_at,omitzero"` // zero: it did not start yet

	TimeoutSeconds     float64 `json:"timeout_seconds"`
	IdleTimeoutSeconds float64 `json:"idle_timeout_seconds,omitempty"` // 0: none
	// Deadline is when OnTimeout happens.
	Deadline   time.Time         `json:"deadline"`
	OnTimeout  sandbox.OnTimeout `json:"on_timeout"`
	AutoResume bool              `json:"auto_resume"`
	// Timeline starts at 1 and grows with each return to an earlier state.
	Timeline int64 `json:"timeline"`
	// SnapshotID is the state that the sandbox was saved in last, or started from.
	SnapshotID             string  `json:"snapshot_id,omitempty"`
	CheckpointEverySeconds float64 `json:"checkpoint_every_seconds,omitempty"` // 0: none
	// RestoredFrom is the snapshot from which the sandbox continued after a loss of its
	// state. LostSeconds is the time lost; nil: there was no loss.
	RestoredFrom string   `json:"restored_from,omitempty"`
	LostSeconds  *float64 `json:"lost_seconds,omitempty"`
	Ended        *Ended   `json:"ended,omitempty"` // nil: it has not
}

// Shape is the size that a sandbox started with.
type Shape struct {
	CPUs     float64 `json:"cpus"`
	MemoryMB int64   `json:"memory_mb"`
	DiskMB   int64   `json:"disk_mb"`
	Pids     int64   `json:"pids"`
}

// Limits are a sandbox's current limits, within its Shape.
type Limits struct {
	CPUs          float64 `json:"cpus"`
	MemoryMB      int64   `json:"memory_mb"`
	Pids          int64   `json:"pids"`
	BandwidthMbps int64   `json:"bandwidth_mbps,omitempty"` // 0: not limited
}

// Ended is the cause and time of a sandbox's end.
type Ended struct {
	Cause sandbox.Cause `json:"cause"`
	At    time.Time     `json:"at"`
	// OutputTail is the end of the output of the sandbox's own processes; nil in lists.
	OutputTail *string `json:"output_tail,omitempty"`
}

// Sandboxes is a page of a list.
type Sandboxes struct {
	Sandboxes []Sandbox `json:"sessions"`
	Next      string    `json:"next_cursor,omitempty"` // empty: this is the last page
}

// Fork is a running copy, or the error that prevented it: exactly one of both.
type Fork struct {
	*Sandbox
	Error *Failure `json:"error,omitempty"`
}

// Forks are the copies of a sandbox.
type Forks struct {
	Forks  []Fork `json:"forks"`
	Failed int    `json:"failed"`
}

// Snapshot is the record of a saved state.
type Snapshot struct {
	ID          string    `json:"snapshot_id"`
	SandboxID   string    `json:"sandbox_id"`
	SessionID   string    `json:"session_id"` // the same ID
	ParentID    string    `json:"parent_id,omitempty"`
	Name        string    `json:"name,omitempty"`
	Kept        bool      `json:"kept"` // until it is deleted
	CreatedAt   time.Time `json:"created_at"`
	SizeBytes   int64     `json:"size_bytes"`
	Memory      bool      `json:"memory"` // false: files alone
	Template    string    `json:"template"`
	Shape       Shape     `json:"shape"`
	Volumes     []Mount   `json:"volumes,omitempty"`
	EngineBuild string    `json:"engine_build"`
	// Uses is the number of sandboxes and snapshots that need it.
	Uses int `json:"uses"`
	// Current marks, in the history of a sandbox, the state that it continues from.
	Current bool `json:"current,omitempty"`
}

// Snapshots is a page of a list, or the whole history of a sandbox.
type Snapshots struct {
	Snapshots []Snapshot `json:"snapshots"`
	Next      string     `json:"next_cursor,omitempty"` // empty: this is the last page
}

// Volume is the record of a volume.
type Volume struct {
	ID     string `json:"volume_id"`
	Name   string `json:"name"`
	SizeMB int64  `json:"size_mb"`
	// UsedBytes and Files are nil while the volume's node does not answer.
	UsedBytes *int64    `json:"used_bytes,omitempty"`
	Files     *int64    `json:"files,omitempty"`
	CreatedAt time.Time `json:"created_at"`
}

// Volumes are all volumes of a tenant.
type Volumes struct {
	Volumes []Volume `json:"volumes"`
}

// Mount is where a sandbox has a volume.
type Mount struct {
	Volume   string `json:"volume"` // its name
	VolumeID string `json:"volume_id"`
	Path     string `json:"path"`
}
