package rpc

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/cloud-sandbox/cloud-sandbox"
	sandboxv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1"
)

// viewOf shows a Sandbox to the caller of ctx. Its environment stays hidden: it often
// holds secrets.
func viewOf(ctx context.Context, s sandbox.Sandbox) *sandboxv1.Sandbox {
	s = callOf(ctx).who.Sees(s)
	rules := s.Ingress.RulesOrClosed()
	v := &sandboxv1.Sandbox{
		SandboxId: s.ID, Name: s.Name, State: string(s.State), Template: s.Template, Engine: s.Engine,
		Shape:     allowance(s.Shape.CPUs, s.Shape.MemoryBytes, s.Shape.Pids),
		Resources: limitsOf(s.Limits),
		Network:   string(s.Network.Enforced()), User: text(s.User), Cwd: text(s.Cwd), Metadata: map[string]string{},
		CreatedAt: timestamp(s.CreatedAt), StartedAt: timestamp(s.StartedAt), Deadline: timestamp(s.Deadline),
		TimeoutSeconds: s.Timeout.Seconds(), IdleTimeoutSeconds: s.IdleTimeout.Seconds(),
		OnTimeout: string(s.OnTimeout), AutoResume: !s.StayPaused, Timeline: max(s.Timeline, 1), SnapshotId: s.Snapshot,
		CheckpointEverySeconds: s.CheckpointEvery.Seconds(), RestoredFrom: s.Restored.From, Volumes: mountViews(s.Volumes), Secrets: secretUseViews(s.Secrets),
		Ports: &sandboxv1.Ports{Private: rules.Private, Exceptions: wideAll(rules.Exceptions), Host: rules.Host, Tls: wideAll(rules.TLSPorts)},
	}
	if s.Restored.From != "" {
		v.LostSeconds = new(s.Restored.Lost.Seconds())
	}
	v.Shape.DiskMb = new(int32(s.Shape.DiskBytes >> 20))
	if v.OnTimeout == "" {
		v.OnTimeout = string(sandbox.OnTimeoutEnd)
	}
	for key, value := range s.Metadata {
		v.Metadata[text(key)] = text(value)
	}
	if s.Ended != nil {
		v.Ended = &sandboxv1.Ended{Cause: string(s.Ended.Cause), At: timestamp(s.Ended.At), OutputTail: text(s.Ended.OutputTail)}
	}
	return v
}

func wideAll(ports []uint16) []uint32 {
	all := make([]uint32, len(ports))
	for i, p := range ports {
		all[i] = uint32(p)
	}
	return all
}

// secretUseViews is empty for uses that cannot be read.
func secretUseViews(s sandbox.SecretUses) []*sandboxv1.SecretUse {
	uses, err := s.List()
	if err != nil {
		return nil
	}
	all := make([]*sandboxv1.SecretUse, len(uses))
	for i, u := range uses {
		all[i] = &sandboxv1.SecretUse{Name: u.Secret, Host: u.Host, Header: text(u.Header), Format: text(u.Format)}
	}
	return all
}

func savedOf(s sandbox.Snapshot) *sandboxv1.Saved {
	return &sandboxv1.Saved{
		SnapshotId: s.ID, SandboxId: s.SandboxID, ParentId: s.Parent, Name: text(s.Name), CreatedAt: timestamp(s.CreatedAt),
		SizeBytes: s.Bytes, Memory: s.Memory, Kept: s.Kept, Volumes: mountViews(s.Volumes),
	}
}

func allowance(cpus float64, memoryBytes, pids int64) *sandboxv1.Resources {
	return &sandboxv1.Resources{Cpus: new(cpus), MemoryMb: new(int32(memoryBytes >> 20)), Pids: new(int32(pids))}
}

func limitsOf(l sandbox.Limits) *sandboxv1.Resources {
	r := allowance(l.CPUs, l.MemoryBytes, l.Pids)
	if l.Bandwidth > 0 {
		r.BandwidthMbps = new(int32(l.Bandwidth / sandbox.Megabit))
	}
	return r
}

// timestamp is absent for the zero time.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t.UTC().Truncate(time.Microsecond))
}

// text makes s valid UTF-8, which a message requires.
func text(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, string(utf8.RuneError))
}
