package rest

import (
	"context"
	"net/http"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/status"
)

// PauseSession pauses a Sandbox and returns once its state is safe on disk.
func (a *API) PauseSession(ctx context.Context, c Call, in *v1.SaveRequest) (v1.Sandbox, error) {
	filesOnly := in.Memory != nil && !*in.Memory
	sb, err := a.Lifecycle.Pause(ctx, c.Who.Tenant, c.ID, filesOnly)
	if err == nil {
		a.Guests.Forget(sb.ID)
	}
	return c.view(sb, err)
}

// ResumeSession resumes a Sandbox and returns once it runs.
func (a *API) ResumeSession(ctx context.Context, c Call, in *v1.SaveRequest) (v1.Sandbox, error) {
	resume := a.Lifecycle.Resume
	if in.Memory != nil && !*in.Memory {
		resume = a.Lifecycle.Reboot
	}
	sb, err := resume(ctx, c.Who.Tenant, c.ID)
	if err == nil {
		a.Guests.Warm(ctx, sb)
	}
	return c.view(sb, err)
}

// RollbackSession resets a Sandbox to a Snapshot and returns once it runs from there.
func (a *API) RollbackSession(ctx context.Context, c Call, in *v1.RollbackRequest) (v1.Sandbox, error) {
	if in.SnapshotID == "" {
		return v1.Sandbox{}, sandbox.Errorf(sandbox.Invalid, "snapshot_id is missing: send the ID or name of one of the session's snapshots")
	}
	// The error says which of the two does not exist.
	sb, err := a.Sandboxes.Get(ctx, c.Who.Tenant, c.ID)
	if err != nil {
		return c.view(sb, err)
	}
	if sb, err = a.Snapshots.Rollback(ctx, c.Who.Tenant, sb.ID, in.SnapshotID); err != nil {
		return v1.Sandbox{}, err
	}
	a.Guests.Warm(ctx, sb)
	return viewOf(c.Who, sb), nil
}

// forkRequest converts b, for a new Sandbox of this ID.
func forkRequest(b *v1.ForkRequest, id string) (sandbox.ForkRequest, error) {
	req := sandbox.ForkRequest{
		ID: id, Count: 1, Name: b.Name, Timeout: b.TimeoutSeconds.Duration(), IdleTimeout: (*time.Duration)(b.IdleTimeoutSeconds.Pointer()),
		OnTimeout: b.OnTimeout, StayPaused: inverse(b.AutoResume), Network: sandbox.NetworkPolicy(b.Network),
		Metadata: b.Metadata, Env: b.Env, Secrets: (*sandbox.SecretUses)(b.Secrets), KeepSecrets: b.KeepSecrets,
	}
	if b.Count != nil {
		req.Count = *b.Count
	}
	return req, req.Check()
}

// inverse is nil for nil.
func inverse(b *bool) *bool {
	if b == nil {
		return nil
	}
	v := !*b
	return &v
}

// ForkSession copies a Sandbox and returns the result of each copy. When no copy runs it
// returns the first copy's error.
func (a *API) ForkSession(ctx context.Context, c Call, in *v1.ForkRequest) (v1.Forks, error) {
	var result v1.Forks
	req, err := forkRequest(in, Resource(ctx))
	if err != nil {
		return result, err
	}
	forks, err := a.Snapshots.Fork(ctx, c.Who.Tenant, c.ID, req)
	if err != nil {
		return result, execution.Absent(c.ID, err)
	}
	for _, f := range forks {
		if f.Err != nil {
			failure := status.Of(f.Err)
			result.Forks = append(result.Forks, v1.Fork{Error: &failure})
			result.Failed++
			continue
		}
		view := viewOf(c.Who, f.Sandbox)
		result.Forks = append(result.Forks, v1.Fork{Sandbox: &view})
	}
	if result.Failed == len(forks) {
		return result, forks[0].Err
	}
	return result, nil
}

// TakeSnapshot saves a Sandbox.
func (a *API) TakeSnapshot(ctx context.Context, c Call, in *v1.SnapshotRequest) (v1.Snapshot, error) {
	req := sandbox.SnapshotRequest{ID: ResourceLike(ctx, "s"), Name: in.Name, FilesOnly: in.Memory != nil && !*in.Memory}
	snap, err := a.Snapshots.TakeSnapshot(ctx, c.Who.Tenant, c.ID, req)
	return v1.SnapshotOf(snap), execution.Absent(c.ID, err)
}

// SessionSnapshots returns the tree of a Sandbox's Snapshots, oldest first.
func (a *API) SessionSnapshots(ctx context.Context, c Call, _ *noQuery) (v1.Snapshots, error) {
	list := v1.Snapshots{Snapshots: []v1.Snapshot{}}
	sb, err := a.Sandboxes.Get(ctx, c.Who.Tenant, c.ID)
	if err != nil {
		return list, execution.Absent(c.ID, err)
	}
	all, err := a.Snapshots.History(ctx, c.Who.Tenant, sb.ID)
	if err != nil {
		return list, execution.Absent(c.ID, err)
	}
	for _, s := range all {
		view := v1.SnapshotOf(s)
		view.Current = s.ID == sb.Snapshot
		list.Snapshots = append(list.Snapshots, view)
	}
	return list, nil
}

// ListSnapshots answers GET /api/v1/snapshots with a page of the Tenant's, newest
// first.
func (a *API) ListSnapshots(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	values, err := query(r, "limit", "cursor", "session_id")
	if err != nil {
		return err
	}
	q := sandbox.SnapshotQuery{SandboxID: values.Get("session_id"), Cursor: values.Get("cursor")}
	if err := sandbox.CheckCursor(q.Cursor); err != nil {
		return err
	}
	if err := pageLimit(values, sandbox.MaxPage, &q.Limit); err != nil {
		return err
	}
	page, err := a.Snapshots.ListSnapshots(r.Context(), who.Tenant, q)
	if err != nil {
		return err
	}
	reply := v1.Snapshots{Snapshots: []v1.Snapshot{}, Next: page.Next}
	for _, s := range page.Snapshots {
		reply.Snapshots = append(reply.Snapshots, v1.SnapshotOf(s))
	}
	return Reply(w, http.StatusOK, reply)
}

// GetSnapshot answers GET /api/v1/snapshots/{id}.
func (a *API) GetSnapshot(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	snap, err := a.Snapshots.SnapshotByID(r.Context(), who.Tenant, r.PathValue("id"))
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, v1.SnapshotOf(snap))
}

// DeleteSnapshot answers DELETE /api/v1/snapshots/{id} with the last record.
func (a *API) DeleteSnapshot(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	snap, err := a.Snapshots.DeleteSnapshot(r.Context(), who.Tenant, r.PathValue("id"))
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, v1.SnapshotOf(snap))
}
