package rest

import (
	"encoding/json"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// listedViewOf is viewOf without its long fields.
func listedViewOf(who sandbox.Identity, s sandbox.Sandbox) v1.Sandbox {
	v := viewOf(who, s)
	if v.Ended != nil {
		v.Ended.OutputTail = nil
	}
	return v
}

// viewOf is the part of s that the Identity who may see.
func viewOf(who sandbox.Identity, s sandbox.Sandbox) v1.Sandbox {
	s = who.Sees(s)
	v := v1.Sandbox{
		ID: s.ID, SessionID: s.ID, Name: s.Name, State: s.State,
		Template: s.Template, Engine: s.Engine, Shape: shapeViewOf(s.Shape),
		Resources: v1.Limits{CPUs: s.Limits.CPUs, MemoryMB: s.Limits.MemoryBytes >> 20, Pids: s.Limits.Pids, BandwidthMbps: s.Limits.Bandwidth / sandbox.Megabit},
		Network:   v1.ShownNetwork(s.Network.Enforced()), Ports: v1.PortsOf(s.Ingress), Secrets: json.RawMessage(s.Secrets), Volumes: mountViewsOf(s.Volumes), User: s.User, Cwd: s.Cwd, Metadata: s.Metadata,
		CreatedAt: v1.Time(s.CreatedAt), StartedAt: v1.Time(s.StartedAt),
		TimeoutSeconds: s.Timeout.Seconds(), IdleTimeoutSeconds: s.IdleTimeout.Seconds(), Deadline: v1.Time(s.Deadline),
		OnTimeout: s.OnTimeout, AutoResume: !s.StayPaused, Timeline: max(s.Timeline, 1), SnapshotID: s.Snapshot,
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
		v.Ended = &v1.Ended{Cause: s.Ended.Cause, At: v1.Time(s.Ended.At), OutputTail: &s.Ended.OutputTail}
	}
	return v
}

func shapeViewOf(s sandbox.Shape) v1.Shape {
	return v1.Shape{CPUs: s.CPUs, MemoryMB: s.MemoryBytes >> 20, DiskMB: s.DiskBytes >> 20, Pids: s.Pids}
}
