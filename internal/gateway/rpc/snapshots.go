package rpc

import (
	"context"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	sandboxv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/status"
)

// Pause implements the service.
func (a *API) Pause(ctx context.Context, r *connect.Request[sandboxv1.PauseRequest]) (*connect.Response[sandboxv1.PauseResponse], error) {
	id, err := required(r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	sb, err := a.Lifecycle.Pause(ctx, tenantOf(ctx), id, r.Msg.FilesOnly)
	if err == nil {
		a.Guests.Forget(sb.ID)
	}
	return reply(id, &sandboxv1.PauseResponse{Sandbox: viewOf(ctx, sb)}, err)
}

// Resume implements the service.
func (a *API) Resume(ctx context.Context, r *connect.Request[sandboxv1.ResumeRequest]) (*connect.Response[sandboxv1.ResumeResponse], error) {
	id, err := required(r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	sb, err := a.Lifecycle.Resume(ctx, tenantOf(ctx), id)
	if err == nil {
		a.Guests.Warm(ctx, sb)
	}
	return reply(id, &sandboxv1.ResumeResponse{Sandbox: viewOf(ctx, sb)}, err)
}

// forkOf is the request in a message. A pair that is both removed and set is Invalid.
func forkOf(m *sandboxv1.ForkRequest) (sandbox.ForkRequest, error) {
	req := sandbox.ForkRequest{Count: 1, Name: m.Name}
	if m.Count != nil {
		req.Count = int(*m.Count)
	}
	var err error
	if m.TimeoutSeconds != nil {
		if req.Timeout, err = seconds("timeout_seconds", *m.TimeoutSeconds); err != nil {
			return req, err
		}
	}
	if req.Metadata, err = pairs("metadata", m.Metadata, m.RemoveMetadata); err != nil {
		return req, err
	}
	if req.Env, err = pairs("env", m.Env, m.RemoveEnv); err != nil {
		return req, err
	}
	return req, req.Check()
}

// Fork implements the service.
func (a *API) Fork(ctx context.Context, r *connect.Request[sandboxv1.ForkRequest]) (*connect.Response[sandboxv1.ForkResponse], error) {
	id, err := required(r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	req, err := forkOf(r.Msg)
	if err != nil {
		return nil, err
	}
	req.ID = rest.Resource(ctx)
	forks, err := a.Snapshots.Fork(ctx, tenantOf(ctx), id, req)
	if err != nil {
		return nil, execution.Absent(id, err)
	}
	res := &sandboxv1.ForkResponse{}
	failed := 0
	for _, f := range forks {
		if f.Err != nil {
			failed++
			res.Copies = append(res.Copies, &sandboxv1.Copy{Error: text(status.Of(f.Err).Message)})
			continue
		}
		res.Copies = append(res.Copies, &sandboxv1.Copy{Sandbox: viewOf(ctx, f.Sandbox)})
	}
	if failed == len(forks) {
		return nil, forks[0].Err
	}
	return connect.NewResponse(res), nil
}

// Snapshot implements the service.
func (a *API) Snapshot(ctx context.Context, r *connect.Request[sandboxv1.SnapshotRequest]) (*connect.Response[sandboxv1.SnapshotResponse], error) {
	id, err := required(r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	snap, err := a.Snapshots.TakeSnapshot(ctx, tenantOf(ctx), id, sandbox.SnapshotRequest{ID: rest.ResourceLike(ctx, "s"), Name: r.Msg.Name, FilesOnly: r.Msg.FilesOnly})
	return reply(id, &sandboxv1.SnapshotResponse{Snapshot: savedOf(snap)}, err)
}

// History implements the service.
func (a *API) History(ctx context.Context, r *connect.Request[sandboxv1.HistoryRequest]) (*connect.Response[sandboxv1.HistoryResponse], error) {
	id, err := required(r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	sb, err := a.Sandboxes.Get(ctx, tenantOf(ctx), id)
	if err != nil {
		return nil, execution.Absent(id, err)
	}
	all, err := a.Snapshots.History(ctx, tenantOf(ctx), sb.ID)
	res := &sandboxv1.HistoryResponse{}
	for _, s := range all {
		saved := savedOf(s)
		saved.Current = s.ID == sb.Snapshot
		res.Snapshots = append(res.Snapshots, saved)
	}
	return reply(id, res, err)
}

// Rollback implements the service.
func (a *API) Rollback(ctx context.Context, r *connect.Request[sandboxv1.RollbackRequest]) (*connect.Response[sandboxv1.RollbackResponse], error) {
	id, err := required(r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	if r.Msg.SnapshotId == "" {
		return nil, sandbox.Errorf(sandbox.Invalid, "snapshot_id is missing: send the ID or name of one of the sandbox's snapshots")
	}
	// The error says which of the two does not exist.
	sb, err := a.Sandboxes.Get(ctx, tenantOf(ctx), id)
	if err != nil {
		return nil, execution.Absent(id, err)
	}
	if sb, err = a.Snapshots.Rollback(ctx, tenantOf(ctx), sb.ID, r.Msg.SnapshotId); err != nil {
		return nil, err
	}
	a.Guests.Warm(ctx, sb)
	return connect.NewResponse(&sandboxv1.RollbackResponse{Sandbox: viewOf(ctx, sb)}), nil
}
