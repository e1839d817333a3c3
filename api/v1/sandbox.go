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
	SnapshotID string `json:"snapshot_id,omitempty"`
	// OriginSnapshotID is the snapshot that the sandbox was created from, which may be
	// deleted. A copy of a sandbox has the origin of its original. Empty: a template.
	OriginSnapshotID       string  `json:"origin_snapshot_id,omitempty"`
	CheckpointEverySeconds float64 `json:"checkpoint_every_seconds,omitempty"` // 0: none
	// RestoredFrom is the snapshot from which the sandbox continued after a loss of its
	// state. LostSeconds is the time lost; nil: there was no loss.
	RestoredFrom string   `json:"restored_from,omitempty"`
	LostSeconds  *float64 `json:"lost_seconds,omitempty"`
	Ended        *Ended   `json:"ended,omitempty"` // nil: it has not
}

// SandboxOf returns the JSON of a record. Its caller may see all of it.
func SandboxOf(s sandbox.Sandbox) Sandbox {
	v := Sandbox{
		ID: s.ID, SessionID: s.ID, Name: s.Name, State: s.State,
		Template: s.Template, Engine: s.Engine, Shape: ShapeOf(s.Shape),
		Resources: Limits{CPUs: s.Limits.CPUs, MemoryMB: s.Limits.MemoryBytes >> 20, Pids: s.Limits.Pids, BandwidthMbps: s.Limits.Bandwidth / sandbox.Megabit},
		Network:   ShownNetwork(s.Network.Enforced()), Ports: PortsOf(s.Ingress), Secrets: json.RawMessage(s.Secrets), Volumes: mountsOf(s.Volumes), User: s.User, Cwd: s.Cwd, Metadata: s.Metadata,
		CreatedAt: Time(s.CreatedAt), StartedAt: Time(s.StartedAt),
		TimeoutSeconds: s.Timeout.Seconds(), IdleTimeoutSeconds: s.IdleTimeout.Seconds(), Deadline: Time(s.Deadline),
		OnTimeout: s.OnTimeout, AutoResume: !s.StayPaused, Timeline: max(s.VisibleTimeline(), 1), SnapshotID: s.Snapshot, OriginSnapshotID: s.Origin,
		CheckpointEverySeconds: s.CheckpointEvery.Seconds(),
	}
	if s.Restored.From != "" {
		lost := s.Restored.Lost.Seconds()
		v.RestoredFrom, v.LostSeconds = s.Restored.From, &lost
	}
	if v.Metadata == nil {
		v.Metadata = map[string]string{}
	}
	if v.OnTimeout == "" {
		v.OnTimeout = sandbox.OnTimeoutEnd
	}
	if s.Ended != nil {
		v.Ended = &Ended{Cause: s.Ended.Cause, At: Time(s.Ended.At), OutputTail: &s.Ended.OutputTail}
	}
	return v
}

// Shape is the size that a sandbox started with.
type Shape struct {
	CPUs     float64 `json:"cpus"`
	MemoryMB int64   `json:"memory_mb"`
	DiskMB   int64   `json:"disk_mb"`
	Pids     int64   `json:"pids"`
}

// ShapeOf returns the JSON of a Shape.
func ShapeOf(s sandbox.Shape) Shape {
	return Shape{CPUs: s.CPUs, MemoryMB: s.MemoryBytes >> 20, DiskMB: s.DiskBytes >> 20, Pids: s.Pids}
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

// SnapshotOf returns the JSON of a record.
func SnapshotOf(s sandbox.Snapshot) Snapshot {
	return Snapshot{
		ID: s.ID, SandboxID: s.SandboxID, SessionID: s.SandboxID, ParentID: s.Parent, Name: s.Name, Kept: s.Kept,
		CreatedAt: Time(s.CreatedAt), SizeBytes: s.Bytes, Memory: s.Memory, Template: s.Template, Shape: ShapeOf(s.Shape),
		Volumes: mountsOf(s.Volumes), EngineBuild: s.Build, Uses: s.Uses,
	}
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

func mountsOf(mounts []sandbox.VolumeMount) []Mount {
	var views []Mount
	for _, m := range mounts {
		views = append(views, Mount{Volume: m.Name, VolumeID: m.Volume, Path: m.Path})
	}
	return views
}
