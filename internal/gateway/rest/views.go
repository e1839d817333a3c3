package rest

import (
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
	Network        string            `json:"network"`
	Metadata       map[string]string `json:"metadata"`
	CreatedAt      string            `json:"created_at"`
	StartedAt      string            `json:"started_at,omitempty"`
	TimeoutSeconds float64           `json:"timeout_seconds"`
	Deadline       string            `json:"deadline"`
	OnTimeout      sandbox.OnTimeout `json:"on_timeout"`
	Ended          *endedView        `json:"ended,omitempty"`
}

type shapeView struct {
	CPUs     float64 `json:"cpus"`
	MemoryMB int64   `json:"memory_mb"`
	DiskMB   int64   `json:"disk_mb"`
	Pids     int64   `json:"pids"`
}

type endedView struct {
	Cause sandbox.Cause `json:"cause"`
	At    string        `json:"at"`
}

func viewOf(s sandbox.Sandbox) sandboxView {
	v := sandboxView{
		SandboxID: s.ID, SessionID: s.ID, Name: s.Name, State: s.State,
		Template: s.Template, Engine: s.Engine, Shape: shapeViewOf(s.Shape),
		Network: string(s.Network), Metadata: s.Metadata,
		CreatedAt: timestamp(s.CreatedAt), StartedAt: timestamp(s.StartedAt),
		TimeoutSeconds: s.Timeout.Seconds(), Deadline: timestamp(s.Deadline),
		OnTimeout: s.OnTimeout,
	}
	if v.Metadata == nil {
		v.Metadata = map[string]string{}
	}
	if v.OnTimeout == "" {
		v.OnTimeout = sandbox.OnTimeoutEnd
	}
	if s.Ended != nil {
		v.Ended = &endedView{Cause: s.Ended.Cause, At: timestamp(s.Ended.At)}
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
