package rest

import (
	"encoding/json"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// sandboxView is a Sandbox as clients see it. Its environment stays hidden: it
// often holds secrets.
type sandboxView struct {
	SandboxID      string            `json:"sandbox_id"`
	SessionID      string            `json:"session_id"`
	Name           string            `json:"name,omitempty"`
	State          sandbox.State     `json:"state"`
	Template       string            `json:"template"`
	Engine         string            `json:"engine"`
	Shape          shapeView         `json:"shape"`
	Resources      limitsView        `json:"resources"`
	Network        json.RawMessage   `json:"network"`
	Ports          portsView         `json:"ports"`
	Secrets        json.RawMessage   `json:"secrets,omitempty"`
	Volumes        []mountView       `json:"volumes,omitempty"`
	User           string            `json:"user,omitempty"`
	Cwd            string            `json:"cwd,omitempty"`
	Metadata       map[string]string `json:"metadata"`
	CreatedAt      string            `json:"created_at"`
	StartedAt      string            `json:"started_at,omitempty"`
	TimeoutSeconds float64           `json:"timeout_seconds"`
	IdleSeconds    float64           `json:"idle_timeout_seconds,omitempty"`
	Deadline       string            `json:"deadline"`
	OnTimeout      sandbox.OnTimeout `json:"on_timeout"`
	AutoResume     bool              `json:"auto_resume"`
	Timeline       int64             `json:"timeline"`
	SnapshotID     string            `json:"snapshot_id,omitempty"`
	Checkpoint     float64           `json:"checkpoint_every_seconds,omitempty"`
	RestoredFrom   string            `json:"restored_from,omitempty"`
	LostSeconds    *float64          `json:"lost_seconds,omitempty"` // nil when it was not restored
	Ended          *endedView        `json:"ended,omitempty"`
}

type shapeView struct {
	CPUs     float64 `json:"cpus"`
	MemoryMB int64   `json:"memory_mb"`
	DiskMB   int64   `json:"disk_mb"`
	Pids     int64   `json:"pids"`
}

// limitsView is what a Sandbox may use now, within its Shape.
type limitsView struct {
	CPUs     float64 `json:"cpus"`
	MemoryMB int64   `json:"memory_mb"`
	Pids     int64   `json:"pids"`
	// Bandwidth is absent for none.
	Bandwidth int64 `json:"bandwidth_mbps,omitempty"`
}

type endedView struct {
	Cause      sandbox.Cause `json:"cause"`
	At         string        `json:"at"`
	OutputTail *string       `json:"output_tail,omitempty"` // nil in lists
}

// listedViewOf is viewOf without what is long.
func listedViewOf(who sandbox.Identity, s sandbox.Sandbox) sandboxView {
	v := viewOf(who, s)
	if v.Ended != nil {
		v.Ended.OutputTail = nil
	}
	return v
}

// viewOf is what who may know of s.
func viewOf(who sandbox.Identity, s sandbox.Sandbox) sandboxView {
	s = who.Sees(s)
	v := sandboxView{
		SandboxID: s.ID, SessionID: s.ID, Name: s.Name, State: s.State,
		Template: s.Template, Engine: s.Engine, Shape: shapeViewOf(s.Shape),
		Resources: limitsView{CPUs: s.Limits.CPUs, MemoryMB: s.Limits.MemoryBytes >> 20, Pids: s.Limits.Pids, Bandwidth: s.Limits.Bandwidth / sandbox.Megabit},
		Network:   networkView(s.Network.Enforced()), Ports: portsViewOf(s.Ingress), Secrets: json.RawMessage(s.Secrets), Volumes: mountViewsOf(s.Volumes), User: s.User, Cwd: s.Cwd, Metadata: s.Metadata,
		CreatedAt: timestamp(s.CreatedAt), StartedAt: timestamp(s.StartedAt),
		TimeoutSeconds: s.Timeout.Seconds(), IdleSeconds: s.IdleTimeout.Seconds(), Deadline: timestamp(s.Deadline),
		OnTimeout: s.OnTimeout, AutoResume: !s.StayPaused, Timeline: max(s.Timeline, 1), SnapshotID: s.Snapshot,
		Checkpoint: s.CheckpointEvery.Seconds(),
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
		v.Ended = &endedView{Cause: s.Ended.Cause, At: timestamp(s.Ended.At), OutputTail: &s.Ended.OutputTail}
	}
	return v
}

func shapeViewOf(s sandbox.Shape) shapeView {
	return shapeView{CPUs: s.CPUs, MemoryMB: s.MemoryBytes >> 20, DiskMB: s.DiskBytes >> 20, Pids: s.Pids}
}

// timestamp is a time in RFC 3339, UTC, to the microsecond; empty for the zero
// time.
func timestamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Truncate(time.Microsecond).Format(time.RFC3339Nano)
}
