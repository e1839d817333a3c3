package rpc

import (
	"math"
	"net/netip"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/cloud-sandbox/cloud-sandbox"
	nodev1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/node/v1"
	sessionv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/session/v1"
)

// Every value here is converted in both directions; a test sets each field of the
// domain's types and compares the result.

func fromTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func toTime(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func fromDuration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

func fromDurationPointer(d *time.Duration) *durationpb.Duration {
	if d == nil {
		return nil
	}
	return durationpb.New(*d)
}

func toDurationPointer(d *durationpb.Duration) *time.Duration {
	if d == nil {
		return nil
	}
	v := d.AsDuration()
	return &v
}

func fromShape(s sandbox.Shape) *sessionv1.Shape {
	if s == (sandbox.Shape{}) {
		return nil
	}
	return &sessionv1.Shape{Cpus: s.CPUs, MemoryBytes: s.MemoryBytes, DiskBytes: s.DiskBytes, Pids: s.Pids}
}

func toShape(s *sessionv1.Shape) sandbox.Shape {
	return sandbox.Shape{CPUs: s.GetCpus(), MemoryBytes: s.GetMemoryBytes(), DiskBytes: s.GetDiskBytes(), Pids: s.GetPids()}
}

func fromLimits(l sandbox.Limits) *sessionv1.Limits {
	return &sessionv1.Limits{Cpus: l.CPUs, MemoryBytes: l.MemoryBytes, Pids: l.Pids, Bandwidth: l.Bandwidth}
}

func toLimits(l *sessionv1.Limits) sandbox.Limits {
	return sandbox.Limits{CPUs: l.GetCpus(), MemoryBytes: l.GetMemoryBytes(), Pids: l.GetPids(), Bandwidth: l.GetBandwidth()}
}

func fromSandbox(s sandbox.Sandbox) *sessionv1.Sandbox {
	out := &sessionv1.Sandbox{
		Id: s.ID, Tenant: string(s.Tenant), Name: s.Name, State: string(s.State),
		Template: s.Template, Image: s.Image, Engine: s.Engine,
		Shape: fromShape(s.Shape), Limits: fromLimits(s.Limits), Network: string(s.Network),
		Metadata: s.Metadata, Env: s.Env, User: s.User, Cwd: s.Cwd, Revision: s.Revision,
		Boot:      &sessionv1.Boot{Id: s.Boot.ID, Number: s.Boot.Number, Node: s.Boot.Node},
		CreatedAt: fromTime(s.CreatedAt), StartedAt: fromTime(s.StartedAt),
		Timeout: fromDuration(s.Timeout), Deadline: fromTime(s.Deadline), OnTimeout: string(s.OnTimeout),
		IdleTimeout: fromDuration(s.IdleTimeout), Timeline: s.Timeline, Version: s.Version,
		StayPaused: s.StayPaused, Snapshot: s.Snapshot, SnapshotAt: fromTime(s.SnapshotAt), CheckpointEvery: fromDuration(s.CheckpointEvery),
		Secrets: string(s.Secrets), RunsUntil: fromTime(s.RunsUntil), Ingress: string(s.Ingress), Volumes: fromMounts(s.Volumes), Origin: s.Origin, MayRun: s.MayRun,
		Back:     &sessionv1.Back{Snapshot: s.Back.Snapshot, Timeline: s.Back.Timeline, Boot: s.Back.Boot},
		Restored: &sessionv1.Restored{From: s.Restored.From, Lost: fromDuration(s.Restored.Lost), Times: s.Restored.Times},
	}
	if s.Ended != nil {
		out.Ended = &sessionv1.TerminationRecord{Cause: string(s.Ended.Cause), At: fromTime(s.Ended.At), OutputTail: s.Ended.OutputTail}
	}
	return out
}

func toSandbox(s *sessionv1.Sandbox) sandbox.Sandbox {
	out := sandbox.Sandbox{
		ID: s.GetId(), Tenant: sandbox.TenantID(s.GetTenant()), Name: s.GetName(), State: sandbox.State(s.GetState()),
		Template: s.GetTemplate(), Image: s.GetImage(), Engine: s.GetEngine(),
		Shape: toShape(s.GetShape()), Limits: toLimits(s.GetLimits()), Network: sandbox.NetworkPolicy(s.GetNetwork()),
		Metadata: s.GetMetadata(), Env: s.GetEnv(), User: s.GetUser(), Cwd: s.GetCwd(), Revision: s.GetRevision(),
		Boot:      sandbox.Boot{ID: s.GetBoot().GetId(), Number: s.GetBoot().GetNumber(), Node: s.GetBoot().GetNode()},
		CreatedAt: toTime(s.GetCreatedAt()), StartedAt: toTime(s.GetStartedAt()),
		Timeout: s.GetTimeout().AsDuration(), Deadline: toTime(s.GetDeadline()), OnTimeout: sandbox.OnTimeout(s.GetOnTimeout()),
		IdleTimeout: s.GetIdleTimeout().AsDuration(), Timeline: s.GetTimeline(), Version: s.GetVersion(),
		StayPaused: s.GetStayPaused(), Snapshot: s.GetSnapshot(), SnapshotAt: toTime(s.GetSnapshotAt()), CheckpointEvery: s.GetCheckpointEvery().AsDuration(),
		Secrets: sandbox.SecretUses(s.GetSecrets()), RunsUntil: toTime(s.GetRunsUntil()), Ingress: sandbox.Ingress(s.GetIngress()), Volumes: toMounts(s.GetVolumes()), Origin: s.GetOrigin(), MayRun: s.GetMayRun(),
		Back:     sandbox.Back{Snapshot: s.GetBack().GetSnapshot(), Timeline: s.GetBack().GetTimeline(), Boot: s.GetBack().GetBoot()},
		Restored: sandbox.Restored{From: s.GetRestored().GetFrom(), Lost: s.GetRestored().GetLost().AsDuration(), Times: s.GetRestored().GetTimes()},
	}
	if e := s.GetEnded(); e != nil {
		out.Ended = &sandbox.TerminationRecord{Cause: sandbox.Cause(e.Cause), At: toTime(e.At), OutputTail: e.OutputTail}
	}
	return out
}

func fromCreate(r sandbox.CreateRequest) *sessionv1.Wanted {
	return &sessionv1.Wanted{
		Id: r.ID, Template: r.Template, Name: r.Name, Timeout: fromDuration(r.Timeout), IdleTimeout: fromDuration(r.IdleTimeout),
		Shape: fromShape(r.Shape), Network: string(r.Network), Metadata: r.Metadata, Env: r.Env, User: r.User, Cwd: r.Cwd,
		OnTimeout: string(r.OnTimeout), StayPaused: r.StayPaused, Snapshot: r.Snapshot,
		CheckpointEvery: fromDuration(r.CheckpointEvery), Secrets: string(r.Secrets), Ingress: string(r.Ingress), Bandwidth: r.Bandwidth, Volumes: fromMounts(r.Volumes),
	}
}

func toCreate(r *sessionv1.Wanted) sandbox.CreateRequest {
	return sandbox.CreateRequest{
		ID: r.GetId(), Template: r.GetTemplate(), Name: r.GetName(), Timeout: r.GetTimeout().AsDuration(), IdleTimeout: r.GetIdleTimeout().AsDuration(),
		Shape: toShape(r.GetShape()), Network: sandbox.NetworkPolicy(r.GetNetwork()),
		Metadata: r.GetMetadata(), Env: r.GetEnv(), User: r.GetUser(), Cwd: r.GetCwd(),
		OnTimeout: sandbox.OnTimeout(r.GetOnTimeout()), StayPaused: r.GetStayPaused(), Snapshot: r.GetSnapshot(),
		CheckpointEvery: r.GetCheckpointEvery().AsDuration(), Secrets: sandbox.SecretUses(r.GetSecrets()), Ingress: sandbox.Ingress(r.GetIngress()), Bandwidth: r.GetBandwidth(), Volumes: toMounts(r.GetVolumes()),
	}
}

func fromChange(c sandbox.Change) *sessionv1.UpdateRequest {
	req := &sessionv1.UpdateRequest{
		Name: c.Name, Timeout: fromDurationPointer(c.Timeout), IdleTimeout: fromDurationPointer(c.IdleTimeout),
		Network: (*string)(c.Network), Cpus: c.CPUs, MemoryBytes: c.MemoryBytes, Pids: c.Pids, Bandwidth: c.Bandwidth, User: c.User, Cwd: c.Cwd,
		Metadata: fromPairs(c.Metadata), Env: fromPairs(c.Env), Template: c.Template, DiskBytes: c.DiskBytes,
		OnTimeout: (*string)(c.OnTimeout), StayPaused: c.StayPaused, CheckpointEvery: fromDurationPointer(c.CheckpointEvery),
		Secrets: (*string)(c.Secrets), Ingress: (*string)(c.Ingress), Port: fromPortChange(c.Port),
	}
	if c.Volumes != nil {
		req.Volumes = &sessionv1.VolumeMounts{Mounts: fromMounts(*c.Volumes)}
	}
	return req
}

func fromPortChange(c *sandbox.PortChange) *sessionv1.PortChange {
	if c == nil {
		return nil
	}
	return &sessionv1.PortChange{Port: uint32(c.Port), Private: c.Private, Tls: c.TLS}
}

// toPortChange converts a number that is not a port to 0, which is not a port either.
func toPortChange(c *sessionv1.PortChange) *sandbox.PortChange {
	if c == nil {
		return nil
	}
	change := sandbox.PortChange{Private: c.Private, TLS: c.Tls}
	if c.Port <= math.MaxUint16 {
		change.Port = uint16(c.Port)
	}
	return &change
}

func toChange(c *sessionv1.UpdateRequest) sandbox.Change {
	change := sandbox.Change{
		Name: c.Name, Timeout: toDurationPointer(c.Timeout), IdleTimeout: toDurationPointer(c.IdleTimeout),
		Network: (*sandbox.NetworkPolicy)(c.Network), CPUs: c.Cpus, MemoryBytes: c.MemoryBytes, Pids: c.Pids, Bandwidth: c.Bandwidth, User: c.User, Cwd: c.Cwd,
		Metadata: toPairs(c.Metadata), Env: toPairs(c.Env), Template: c.Template, DiskBytes: c.DiskBytes,
		OnTimeout: (*sandbox.OnTimeout)(c.OnTimeout), StayPaused: c.StayPaused, CheckpointEvery: toDurationPointer(c.CheckpointEvery),
		Secrets: (*sandbox.SecretUses)(c.Secrets), Ingress: (*sandbox.Ingress)(c.Ingress), Port: toPortChange(c.Port),
	}
	if c.Volumes != nil {
		change.Volumes = new(toMounts(c.Volumes.Mounts))
	}
	return change
}

func fromPairs(m map[string]*string) map[string]*sessionv1.Value {
	if m == nil {
		return nil
	}
	out := make(map[string]*sessionv1.Value, len(m))
	for k, v := range m {
		out[k] = &sessionv1.Value{Text: v}
	}
	return out
}

func toPairs(m map[string]*sessionv1.Value) map[string]*string {
	if m == nil {
		return nil
	}
	out := make(map[string]*string, len(m))
	for k, v := range m {
		out[k] = v.Text
	}
	return out
}

func toQuery(r *sessionv1.ListRequest) sandbox.ListQuery {
	q := sandbox.ListQuery{
		Metadata: r.Metadata, Limit: int(r.Limit), Cursor: r.Cursor,
		Template: r.Template, From: toTime(r.From), OldestFirst: r.OldestFirst,
	}
	for _, s := range r.States {
		q.States = append(q.States, sandbox.State(s))
	}
	return q
}

func fromQuery(q sandbox.ListQuery) *sessionv1.ListRequest {
	r := &sessionv1.ListRequest{
		Metadata: q.Metadata, Limit: int32(min(max(q.Limit, -1), 1<<20)), Cursor: q.Cursor,
		Template: q.Template, From: fromTime(q.From), OldestFirst: q.OldestFirst,
	}
	for _, s := range q.States {
		r.States = append(r.States, string(s))
	}
	return r
}

func fromPage(p sandbox.Page) *sessionv1.ListResponse {
	r := &sessionv1.ListResponse{Next: p.Next}
	for _, s := range p.Sandboxes {
		r.Sandboxes = append(r.Sandboxes, fromSandbox(s))
	}
	return r
}

func toPage(r *sessionv1.ListResponse) sandbox.Page {
	p := sandbox.Page{Next: r.Next}
	for _, s := range r.Sandboxes {
		p.Sandboxes = append(p.Sandboxes, toSandbox(s))
	}
	return p
}

func fromEnd(e sandbox.BootEnd) *sessionv1.BootEndedRequest {
	return &sessionv1.BootEndedRequest{
		BootId: e.BootID, SandboxId: e.SandboxID, Number: e.Number, Tenant: string(e.Tenant),
		Cause: string(e.Cause), At: fromTime(e.At),
	}
}

// toEnd leaves out the Node, which the caller's token names.
func toEnd(r *sessionv1.BootEndedRequest) sandbox.BootEnd {
	return sandbox.BootEnd{
		BootRef: sandbox.BootRef{BootID: r.BootId, SandboxID: r.SandboxId, Number: r.Number, Tenant: sandbox.TenantID(r.Tenant)},
		Cause:   sandbox.Cause(r.Cause), At: toTime(r.At),
	}
}

func fromBinding(b sandbox.Binding) *nodev1.Binding {
	return &nodev1.Binding{
		SandboxId: b.SandboxID, BootNumber: b.BootNumber, Tenant: string(b.Tenant), Template: b.Template,
		AccessToken: b.AccessToken, Env: b.Env, User: b.User, Cwd: b.Cwd, Network: string(b.Network),
		Limits: fromLimits(b.Limits), Timeline: b.Timeline, Revision: b.Revision, Restored: b.Restored,
		Secrets: fromSecrets(b.Secrets), Volumes: fromVolumeBindings(b.Volumes),
	}
}

func toBinding(b *nodev1.Binding) sandbox.Binding {
	return sandbox.Binding{
		SandboxID: b.GetSandboxId(), BootNumber: b.GetBootNumber(), Tenant: sandbox.TenantID(b.GetTenant()), Template: b.GetTemplate(),
		AccessToken: b.GetAccessToken(), Env: b.GetEnv(), User: b.GetUser(), Cwd: b.GetCwd(), Network: sandbox.NetworkPolicy(b.GetNetwork()),
		Limits: toLimits(b.GetLimits()), Timeline: b.GetTimeline(), Revision: b.GetRevision(), Restored: b.GetRestored(),
		Secrets: toSecrets(b.GetSecrets()), Volumes: toVolumeBindings(b.GetVolumes()),
	}
}

func fromSecrets(b sandbox.SecretBinding) *nodev1.Secrets {
	if b.Authority == "" && len(b.Headers) == 0 {
		return nil
	}
	out := &nodev1.Secrets{Authority: b.Authority, Key: string(b.Key)}
	for _, h := range b.Headers {
		out.Headers = append(out.Headers, &nodev1.SecretHeader{Host: h.Host, Port: uint32(h.Port), Header: h.Header, Value: string(h.Value)})
	}
	return out
}

func toSecrets(b *nodev1.Secrets) sandbox.SecretBinding {
	out := sandbox.SecretBinding{Authority: b.GetAuthority(), Key: sandbox.SecretValue(b.GetKey())}
	for _, h := range b.GetHeaders() {
		out.Headers = append(out.Headers, sandbox.SecretHeader{Host: h.Host, Port: uint16(h.Port), Header: h.Header, Value: sandbox.SecretValue(h.Value)})
	}
	return out
}

func fromUsage(u sandbox.Usage) *nodev1.UsageResponse {
	return &nodev1.UsageResponse{MemoryBytes: u.MemoryBytes, Cpu: durationpb.New(u.CPU), DiskBytes: u.DiskBytes, Pids: u.Pids}
}

func toUsage(m *nodev1.UsageResponse) sandbox.Usage {
	return sandbox.Usage{MemoryBytes: m.GetMemoryBytes(), CPU: m.GetCpu().AsDuration(), DiskBytes: m.GetDiskBytes(), Pids: m.GetPids()}
}

func fromNetworkLog(l sandbox.NetworkLog) *nodev1.NetworkLogResponse {
	r := &nodev1.NetworkLogResponse{Allowed: l.Allowed, Refused: l.Refused}
	for _, d := range l.Decisions {
		to := &nodev1.NetworkDecision{
			Seq: d.Seq, First: fromTime(d.First), Last: fromTime(d.Last), Count: d.Count, Protocol: d.Protocol, Name: []byte(d.Name),
			Port: uint32(d.Port), Allowed: d.Allowed, Reason: d.Reason,
		}
		if d.Addr.IsValid() {
			to.Address = d.Addr.String()
		}
		r.Decisions = append(r.Decisions, to)
	}
	return r
}

func toNetworkLog(r *nodev1.NetworkLogResponse) sandbox.NetworkLog {
	l := sandbox.NetworkLog{Allowed: r.Allowed, Refused: r.Refused}
	for _, d := range r.Decisions {
		addr, _ := netip.ParseAddr(d.Address) // absent for a name
		l.Decisions = append(l.Decisions, sandbox.NetworkDecision{
			Seq: d.Seq, First: toTime(d.First), Last: toTime(d.Last), Count: d.Count, Protocol: d.Protocol, Name: string(d.Name),
			Addr: addr, Port: uint16(d.Port), Allowed: d.Allowed, Reason: d.Reason,
		})
	}
	return l
}

func fromStart(node string, r sandbox.StartRequest) *nodev1.StartRequest {
	return &nodev1.StartRequest{Node: node, BootId: r.BootID, Image: r.Image, Shape: fromShape(r.Shape), Binding: fromBinding(r.Binding), From: r.From}
}

func toStart(r *nodev1.StartRequest) sandbox.StartRequest {
	return sandbox.StartRequest{BootID: r.BootId, Image: r.Image, Shape: toShape(r.Shape), Binding: toBinding(r.Binding), From: r.From}
}

func fromRef(b sandbox.BootRef) *nodev1.BootRef {
	return &nodev1.BootRef{BootId: b.BootID, SandboxId: b.SandboxID, Number: b.Number, Tenant: string(b.Tenant)}
}

func toRef(b *nodev1.BootRef) sandbox.BootRef {
	return sandbox.BootRef{BootID: b.GetBootId(), SandboxID: b.GetSandboxId(), Number: b.GetNumber(), Tenant: sandbox.TenantID(b.GetTenant())}
}

func fromSave(node string, r sandbox.SaveRequest) *nodev1.SaveRequest {
	return &nodev1.SaveRequest{Node: node, Boot: fromRef(r.Boot), Snapshot: r.Snapshot, Memory: r.Memory, Freeze: r.Freeze, Leaves: r.Leaves}
}

func toSave(r *nodev1.SaveRequest) sandbox.SaveRequest {
	return sandbox.SaveRequest{Boot: toRef(r.Boot), Snapshot: r.Snapshot, Memory: r.Memory, Freeze: r.Freeze, Leaves: r.Leaves}
}

func fromSaved(s sandbox.Saved) *nodev1.SaveResponse {
	return &nodev1.SaveResponse{Bytes: s.Bytes, Memory: s.Memory, Build: s.Build, Image: s.Image, Shape: fromShape(s.Shape), Digest: s.Digest, Cpu: string(s.CPU)}
}

func toSaved(r *nodev1.SaveResponse) sandbox.Saved {
	return sandbox.Saved{
		Bytes: r.GetBytes(), Memory: r.GetMemory(), Build: r.GetBuild(), Image: r.GetImage(), Shape: toShape(r.GetShape()), Digest: r.GetDigest(),
		CPU: sandbox.CPUFeatures(r.GetCpu()),
	}
}

func fromBoot(b sandbox.BoundBoot) *nodev1.BoundBoot {
	return &nodev1.BoundBoot{BootId: b.BootID, SandboxId: b.SandboxID, Number: b.Number, Tenant: string(b.Tenant), Revision: b.Revision}
}

func toBoot(b *nodev1.BoundBoot) sandbox.BoundBoot {
	return sandbox.BoundBoot{
		BootRef:  sandbox.BootRef{BootID: b.BootId, SandboxID: b.SandboxId, Number: b.Number, Tenant: sandbox.TenantID(b.Tenant)},
		Revision: b.Revision,
	}
}

func fromStats(s sandbox.NodeStats) *nodev1.StatsResponse {
	r := &nodev1.StatsResponse{
		Node: s.Node,
		Engine: &nodev1.Features{
			Name: s.Engine.Name, Version: s.Engine.Version, Build: s.Engine.Build, Pause: s.Engine.Pause,
			Cpu: string(s.Engine.CPU), GuestCpu: string(s.Engine.GuestCPU),
		},
		Bound: int64(s.Bound), Ready: s.Ready, NotReady: s.NotReady,
		Host: &nodev1.HostState{DiskFree: s.Host.DiskFree, DiskTotal: s.Host.DiskTotal, MemoryFree: s.Host.MemoryFree, MemoryTotal: s.Host.MemoryTotal},
		Full: s.Full, Wait: fromDuration(s.Wait), Turn: fromDuration(s.Turn), Images: s.Images,
	}
	for _, w := range s.Waiting {
		r.Waiting = append(r.Waiting, &nodev1.WaitingStarts{Tenant: string(w.Tenant), Starts: int64(w.Starts)})
	}
	for _, p := range s.Pools {
		r.Pools = append(r.Pools, &nodev1.Pool{
			Template: p.Template, Image: p.Image, Shape: fromShape(p.Shape), Idle: int64(p.Idle), Starting: int64(p.Starting),
			Wanted: int64(p.Wanted), Min: int64(p.Min), Max: int64(p.Max), Hits: p.Hits, Misses: p.Misses,
		})
	}
	return r
}

func toStats(r *nodev1.StatsResponse) sandbox.NodeStats {
	e := r.GetEngine()
	s := sandbox.NodeStats{
		Node: r.Node,
		Engine: sandbox.Features{
			Name: e.GetName(), Version: e.GetVersion(), Build: e.GetBuild(), Pause: e.GetPause(),
			CPU: sandbox.CPUFeatures(e.GetCpu()), GuestCPU: sandbox.CPUFeatures(e.GetGuestCpu()),
		},
		Bound: int(r.Bound), Ready: r.Ready, NotReady: r.NotReady,
		Host: sandbox.HostState{
			DiskFree: r.GetHost().GetDiskFree(), DiskTotal: r.GetHost().GetDiskTotal(),
			MemoryFree: r.GetHost().GetMemoryFree(), MemoryTotal: r.GetHost().GetMemoryTotal(),
		},
		Full: r.Full, Wait: r.Wait.AsDuration(), Turn: r.Turn.AsDuration(), Images: r.Images,
	}
	for _, w := range r.Waiting {
		s.Waiting = append(s.Waiting, sandbox.WaitingStarts{Tenant: sandbox.TenantID(w.Tenant), Starts: int(w.Starts)})
	}
	for _, p := range r.Pools {
		s.Pools = append(s.Pools, sandbox.PoolStats{
			Template: p.Template, Image: p.Image, Shape: toShape(p.Shape), Idle: int(p.Idle), Starting: int(p.Starting),
			Wanted: int(p.Wanted), Min: int(p.Min), Max: int(p.Max), Hits: p.Hits, Misses: p.Misses,
		})
	}
	return s
}
