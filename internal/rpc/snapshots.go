package rpc

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	sessionv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/session/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/session/v1/sessionv1connect"
)

// Pause implements sandbox.Sandboxes.
func (s *Sandboxes) Pause(ctx context.Context, tenant sandbox.TenantID, idOrName string, filesOnly bool) (sandbox.Sandbox, error) {
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.Pause, &sessionv1.PauseRequest{Sandbox: idOrName, FilesOnly: filesOnly})
	return toSandbox(r.GetSandbox()), err
}

// Resume implements sandbox.Sandboxes.
func (s *Sandboxes) Resume(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.Resume, &sessionv1.ResumeRequest{Sandbox: idOrName})
	return toSandbox(r.GetSandbox()), err
}

// Reboot implements sandbox.Sandboxes.
func (s *Sandboxes) Reboot(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.Resume, &sessionv1.ResumeRequest{Sandbox: idOrName, Reboot: true})
	return toSandbox(r.GetSandbox()), err
}

// Rollback implements sandbox.Sandboxes.
func (s *Sandboxes) Rollback(ctx context.Context, tenant sandbox.TenantID, idOrName, snapshot string) (sandbox.Sandbox, error) {
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.Rollback, &sessionv1.RollbackRequest{Sandbox: idOrName, Snapshot: snapshot})
	return toSandbox(r.GetSandbox()), err
}

// Fork implements sandbox.Sandboxes.
func (s *Sandboxes) Fork(ctx context.Context, tenant sandbox.TenantID, idOrName string, req sandbox.ForkRequest) ([]sandbox.Forked, error) {
	msg := fromFork(req)
	msg.Sandbox = idOrName
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.Fork, msg)
	if err != nil {
		return nil, err
	}
	var all []sandbox.Forked
	for _, f := range r.Forks {
		all = append(all, toForked(f))
	}
	return all, nil
}

// TakeSnapshot implements sandbox.Sandboxes.
func (s *Sandboxes) TakeSnapshot(ctx context.Context, tenant sandbox.TenantID, idOrName string, req sandbox.SnapshotRequest) (sandbox.Snapshot, error) {
	msg := &sessionv1.TakeSnapshotRequest{Sandbox: idOrName, Id: req.ID, Name: req.Name, FilesOnly: req.FilesOnly, TakeName: req.TakeName, Layer: req.Layer}
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.TakeSnapshot, msg)
	return toSnapshot(r.GetSnapshot()), err
}

// SnapshotByID implements sandbox.Sandboxes.
func (s *Sandboxes) SnapshotByID(ctx context.Context, tenant sandbox.TenantID, id string) (sandbox.Snapshot, error) {
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.GetSnapshot, &sessionv1.GetSnapshotRequest{Id: id})
	return toSnapshot(r.GetSnapshot()), err
}

// ListSnapshots implements sandbox.Sandboxes.
func (s *Sandboxes) ListSnapshots(ctx context.Context, tenant sandbox.TenantID, query sandbox.SnapshotQuery) (sandbox.SnapshotPage, error) {
	msg := &sessionv1.ListSnapshotsRequest{SandboxId: query.SandboxID, Limit: int32(min(max(query.Limit, -1), 1<<20)), Cursor: query.Cursor, Name: query.Name, Kept: query.Kept, Layers: query.Layers, Tags: query.Tags}
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.ListSnapshots, msg)
	if err != nil {
		return sandbox.SnapshotPage{}, err
	}
	return sandbox.SnapshotPage{Snapshots: toSnapshots(r.Snapshots), Next: r.Next}, nil
}

// History implements sandbox.Sandboxes.
func (s *Sandboxes) History(ctx context.Context, tenant sandbox.TenantID, idOrName string) ([]sandbox.Snapshot, error) {
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.History, &sessionv1.HistoryRequest{Sandbox: idOrName})
	return toSnapshots(r.GetSnapshots()), err
}

// DeleteSnapshot implements sandbox.Sandboxes.
func (s *Sandboxes) DeleteSnapshot(ctx context.Context, tenant sandbox.TenantID, id string) (sandbox.Snapshot, error) {
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.DeleteSnapshot, &sessionv1.DeleteSnapshotRequest{Id: id})
	return toSnapshot(r.GetSnapshot()), err
}

// forTenant makes a gateway's call for its Tenant.
func forTenant[Res any](ctx context.Context, do func(sandbox.TenantID) (*Res, error)) (*connect.Response[Res], error) {
	t, err := tenant(ctx)
	if err != nil {
		return nil, internal(err)
	}
	return answer(do(t))
}

func (s sessionServer) Pause(ctx context.Context, r *connect.Request[sessionv1.PauseRequest]) (*connect.Response[sessionv1.PauseResponse], error) {
	return forTenant(ctx, func(t sandbox.TenantID) (*sessionv1.PauseResponse, error) {
		sb, err := s.m.Pause(ctx, t, r.Msg.Sandbox, r.Msg.FilesOnly)
		return &sessionv1.PauseResponse{Sandbox: fromSandbox(sb)}, err
	})
}

func (s sessionServer) Resume(ctx context.Context, r *connect.Request[sessionv1.ResumeRequest]) (*connect.Response[sessionv1.ResumeResponse], error) {
	return forTenant(ctx, func(t sandbox.TenantID) (*sessionv1.ResumeResponse, error) {
		resume := s.m.Resume
		if r.Msg.Reboot {
			resume = s.m.Reboot
		}
		sb, err := resume(ctx, t, r.Msg.Sandbox)
		return &sessionv1.ResumeResponse{Sandbox: fromSandbox(sb)}, err
	})
}

func (s sessionServer) Rollback(ctx context.Context, r *connect.Request[sessionv1.RollbackRequest]) (*connect.Response[sessionv1.RollbackResponse], error) {
	return forTenant(ctx, func(t sandbox.TenantID) (*sessionv1.RollbackResponse, error) {
		sb, err := s.m.Rollback(ctx, t, r.Msg.Sandbox, r.Msg.Snapshot)
		return &sessionv1.RollbackResponse{Sandbox: fromSandbox(sb)}, err
	})
}

func (s sessionServer) Fork(ctx context.Context, r *connect.Request[sessionv1.ForkRequest]) (*connect.Response[sessionv1.ForkResponse], error) {
	return forTenant(ctx, func(t sandbox.TenantID) (*sessionv1.ForkResponse, error) {
		forks, err := s.m.Fork(ctx, t, r.Msg.Sandbox, toFork(r.Msg))
		res := &sessionv1.ForkResponse{}
		for _, f := range forks {
			res.Forks = append(res.Forks, fromForked(f))
		}
		return res, err
	})
}

func (s sessionServer) TakeSnapshot(ctx context.Context, r *connect.Request[sessionv1.TakeSnapshotRequest]) (*connect.Response[sessionv1.TakeSnapshotResponse], error) {
	return forTenant(ctx, func(t sandbox.TenantID) (*sessionv1.TakeSnapshotResponse, error) {
		req := sandbox.SnapshotRequest{ID: r.Msg.Id, Name: r.Msg.Name, FilesOnly: r.Msg.FilesOnly, TakeName: r.Msg.TakeName, Layer: r.Msg.Layer}
		snap, err := s.m.TakeSnapshot(ctx, t, r.Msg.Sandbox, req)
		return &sessionv1.TakeSnapshotResponse{Snapshot: fromSnapshot(snap)}, err
	})
}

func (s sessionServer) GetSnapshot(ctx context.Context, r *connect.Request[sessionv1.GetSnapshotRequest]) (*connect.Response[sessionv1.GetSnapshotResponse], error) {
	return forTenant(ctx, func(t sandbox.TenantID) (*sessionv1.GetSnapshotResponse, error) {
		snap, err := s.m.SnapshotByID(ctx, t, r.Msg.Id)
		return &sessionv1.GetSnapshotResponse{Snapshot: fromSnapshot(snap)}, err
	})
}

func (s sessionServer) ListSnapshots(ctx context.Context, r *connect.Request[sessionv1.ListSnapshotsRequest]) (*connect.Response[sessionv1.ListSnapshotsResponse], error) {
	return forTenant(ctx, func(t sandbox.TenantID) (*sessionv1.ListSnapshotsResponse, error) {
		query := sandbox.SnapshotQuery{SandboxID: r.Msg.SandboxId, Limit: int(r.Msg.Limit), Cursor: r.Msg.Cursor, Name: r.Msg.Name, Kept: r.Msg.Kept, Layers: r.Msg.Layers, Tags: r.Msg.Tags}
		page, err := s.m.ListSnapshots(ctx, t, query)
		return &sessionv1.ListSnapshotsResponse{Snapshots: fromSnapshots(page.Snapshots), Next: page.Next}, err
	})
}

func (s sessionServer) History(ctx context.Context, r *connect.Request[sessionv1.HistoryRequest]) (*connect.Response[sessionv1.HistoryResponse], error) {
	return forTenant(ctx, func(t sandbox.TenantID) (*sessionv1.HistoryResponse, error) {
		all, err := s.m.History(ctx, t, r.Msg.Sandbox)
		return &sessionv1.HistoryResponse{Snapshots: fromSnapshots(all)}, err
	})
}

func (s sessionServer) DeleteSnapshot(ctx context.Context, r *connect.Request[sessionv1.DeleteSnapshotRequest]) (*connect.Response[sessionv1.DeleteSnapshotResponse], error) {
	return forTenant(ctx, func(t sandbox.TenantID) (*sessionv1.DeleteSnapshotResponse, error) {
		snap, err := s.m.DeleteSnapshot(ctx, t, r.Msg.Id)
		return &sessionv1.DeleteSnapshotResponse{Snapshot: fromSnapshot(snap)}, err
	})
}

func fromSnapshot(s sandbox.Snapshot) *sessionv1.Snapshot {
	return &sessionv1.Snapshot{
		Id: s.ID, Tenant: string(s.Tenant), SandboxId: s.SandboxID, Parent: s.Parent, Name: s.Name, Kept: s.Kept, State: string(s.State),
		CreatedAt: fromTime(s.CreatedAt), Node: s.Node, Bytes: s.Bytes, Memory: s.Memory, Build: s.Build, Digest: s.Digest,
		Template: s.Template, Image: s.Image, Shape: fromShape(s.Shape), Limits: fromLimits(s.Limits), Network: string(s.Network),
		Env: s.Env, User: s.User, Cwd: s.Cwd, Timeline: s.Timeline, Uses: int64(s.Uses), Version: s.Version, Volumes: fromMounts(s.Volumes),
		Layer: s.Layer, UsedAt: fromTime(s.UsedAt), Cpu: string(s.CPU),
	}
}

func toSnapshot(s *sessionv1.Snapshot) sandbox.Snapshot {
	return sandbox.Snapshot{
		ID: s.GetId(), Tenant: sandbox.TenantID(s.GetTenant()), SandboxID: s.GetSandboxId(), Parent: s.GetParent(), Name: s.GetName(),
		Kept: s.GetKept(), State: sandbox.SnapshotState(s.GetState()), CreatedAt: toTime(s.GetCreatedAt()), Node: s.GetNode(),
		Bytes: s.GetBytes(), Memory: s.GetMemory(), Build: s.GetBuild(), Digest: s.GetDigest(),
		Template: s.GetTemplate(), Image: s.GetImage(), Shape: toShape(s.GetShape()), Limits: toLimits(s.GetLimits()),
		Network: sandbox.NetworkPolicy(s.GetNetwork()), Env: s.GetEnv(), User: s.GetUser(), Cwd: s.GetCwd(),
		Timeline: s.GetTimeline(), Uses: int(s.GetUses()), Version: s.GetVersion(), Volumes: toMounts(s.GetVolumes()),
		Layer: s.GetLayer(), UsedAt: toTime(s.GetUsedAt()), CPU: sandbox.CPUFeatures(s.GetCpu()),
	}
}

func fromSnapshots(all []sandbox.Snapshot) []*sessionv1.Snapshot {
	var out []*sessionv1.Snapshot
	for _, s := range all {
		out = append(out, fromSnapshot(s))
	}
	return out
}

func toSnapshots(all []*sessionv1.Snapshot) []sandbox.Snapshot {
	var out []sandbox.Snapshot
	for _, s := range all {
		out = append(out, toSnapshot(s))
	}
	return out
}

func fromFork(r sandbox.ForkRequest) *sessionv1.ForkRequest {
	return &sessionv1.ForkRequest{
		Id: r.ID, Count: int32(min(max(r.Count, -1), 1<<20)), Name: r.Name, Timeout: fromDuration(r.Timeout), IdleTimeout: fromDurationPointer(r.IdleTimeout),
		OnTimeout: string(r.OnTimeout), StayPaused: r.StayPaused, Network: string(r.Network),
		Metadata: fromPairs(r.Metadata), Env: fromPairs(r.Env), Secrets: (*string)(r.Secrets), KeepSecrets: r.KeepSecrets,
	}
}

func toFork(r *sessionv1.ForkRequest) sandbox.ForkRequest {
	return sandbox.ForkRequest{
		ID: r.Id, Count: int(r.Count), Name: r.Name, Timeout: r.Timeout.AsDuration(), IdleTimeout: toDurationPointer(r.IdleTimeout),
		OnTimeout: sandbox.OnTimeout(r.OnTimeout), StayPaused: r.StayPaused, Network: sandbox.NetworkPolicy(r.Network),
		Metadata: toPairs(r.Metadata), Env: toPairs(r.Env), Secrets: (*sandbox.SecretUses)(r.Secrets), KeepSecrets: r.KeepSecrets,
	}
}

// fromForked leaves out the cause of a failure, which was logged.
func fromForked(f sandbox.Forked) *sessionv1.Forked {
	out := &sessionv1.Forked{Sandbox: fromSandbox(f.Sandbox)}
	if f.Err == nil {
		return out
	}
	out.Code, out.Detail = string(sandbox.CodeOf(f.Err)), internalDetail
	var e *sandbox.Error
	if errors.As(f.Err, &e) {
		out.Code, out.Detail, out.RetryAfter = string(e.Code), e.Detail, fromDuration(e.RetryAfter)
	}
	return out
}

func toForked(f *sessionv1.Forked) sandbox.Forked {
	out := sandbox.Forked{Sandbox: toSandbox(f.Sandbox)}
	if f.Code != "" {
		out.Err = &sandbox.Error{Code: sandbox.Code(f.Code), Detail: f.Detail, RetryAfter: f.RetryAfter.AsDuration()}
	}
	return out
}
