package rest

import (
	"net/http"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/status"
)

func snapshotViewOf(s sandbox.Snapshot) v1.Snapshot {
	return v1.Snapshot{
		ID: s.ID, SandboxID: s.SandboxID, SessionID: s.SandboxID, ParentID: s.Parent, Name: s.Name, Kept: s.Kept,
		CreatedAt: v1.Time(s.CreatedAt), SizeBytes: s.Bytes, Memory: s.Memory, Template: s.Template, Shape: shapeViewOf(s.Shape),
		Volumes: mountViewsOf(s.Volumes), EngineBuild: s.Build, Uses: s.Uses,
	}
}

// PauseSession answers POST /api/v1/sessions/{id}/pause once its state is safe on
// disk.
func (a *API) PauseSession(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.SaveRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	filesOnly := body.Memory != nil && !*body.Memory
	sb, err := a.Lifecycle.Pause(r.Context(), who.Tenant, r.PathValue("id"), filesOnly)
	if err != nil {
		return execution.Absent(r.PathValue("id"), err)
	}
	a.Guests.Forget(sb.ID)
	return Reply(w, http.StatusOK, viewOf(who, sb))
}

// ResumeSession answers POST /api/v1/sessions/{id}/resume once the Sandbox runs.
func (a *API) ResumeSession(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.SaveRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	resume := a.Lifecycle.Resume
	if body.Memory != nil && !*body.Memory {
		resume = a.Lifecycle.Reboot
	}
	sb, err := resume(r.Context(), who.Tenant, r.PathValue("id"))
	if err != nil {
		return execution.Absent(r.PathValue("id"), err)
	}
	a.Guests.Warm(r.Context(), sb)
	return Reply(w, http.StatusOK, viewOf(who, sb))
}

// RollbackSession answers POST /api/v1/sessions/{id}/rollback once the Sandbox runs
// from the Snapshot.
func (a *API) RollbackSession(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.RollbackRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	if body.SnapshotID == "" {
		return sandbox.Errorf(sandbox.Invalid, "snapshot_id is missing: send the ID or name of one of the session's snapshots")
	}
	// The error says which of the two does not exist.
	sb, err := a.Sandboxes.Get(r.Context(), who.Tenant, r.PathValue("id"))
	if err != nil {
		return execution.Absent(r.PathValue("id"), err)
	}
	if sb, err = a.Snapshots.Rollback(r.Context(), who.Tenant, sb.ID, body.SnapshotID); err != nil {
		return err
	}
	a.Guests.Warm(r.Context(), sb)
	return Reply(w, http.StatusOK, viewOf(who, sb))
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

// ForkSession answers POST /api/v1/sessions/{id}/fork with 201 and the result of each
// copy. When no copy runs it answers with the first copy's error.
func (a *API) ForkSession(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.ForkRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	req, err := forkRequest(&body, Resource(r.Context()))
	if err != nil {
		return err
	}
	forks, err := a.Snapshots.Fork(r.Context(), who.Tenant, r.PathValue("id"), req)
	if err != nil {
		return execution.Absent(r.PathValue("id"), err)
	}
	var reply v1.Forks
	for _, f := range forks {
		if f.Err != nil {
			failure := status.Of(f.Err)
			reply.Forks = append(reply.Forks, v1.Fork{Error: &failure})
			reply.Failed++
			continue
		}
		view := viewOf(who, f.Sandbox)
		reply.Forks = append(reply.Forks, v1.Fork{Sandbox: &view})
	}
	if reply.Failed == len(forks) {
		return forks[0].Err
	}
	return Reply(w, http.StatusCreated, reply)
}

// TakeSnapshot answers POST /api/v1/sessions/{id}/snapshots with 201 and the new
// Snapshot.
func (a *API) TakeSnapshot(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.SnapshotRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	req := sandbox.SnapshotRequest{Name: body.Name, FilesOnly: body.Memory != nil && !*body.Memory}
	req.ID = ResourceLike(r.Context(), "s")
	snap, err := a.Snapshots.TakeSnapshot(r.Context(), who.Tenant, r.PathValue("id"), req)
	if err != nil {
		return execution.Absent(r.PathValue("id"), err)
	}
	return Reply(w, http.StatusCreated, snapshotViewOf(snap))
}

// SessionSnapshots answers GET /api/v1/sessions/{id}/snapshots with the tree of the
// session's Snapshots, oldest first.
func (a *API) SessionSnapshots(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	if _, err := query(r); err != nil {
		return err
	}
	sb, err := a.Sandboxes.Get(r.Context(), who.Tenant, r.PathValue("id"))
	if err != nil {
		return execution.Absent(r.PathValue("id"), err)
	}
	all, err := a.Snapshots.History(r.Context(), who.Tenant, sb.ID)
	if err != nil {
		return execution.Absent(r.PathValue("id"), err)
	}
	reply := v1.Snapshots{Snapshots: []v1.Snapshot{}}
	for _, s := range all {
		view := snapshotViewOf(s)
		view.Current = s.ID == sb.Snapshot
		reply.Snapshots = append(reply.Snapshots, view)
	}
	return Reply(w, http.StatusOK, reply)
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
		reply.Snapshots = append(reply.Snapshots, snapshotViewOf(s))
	}
	return Reply(w, http.StatusOK, reply)
}

// GetSnapshot answers GET /api/v1/snapshots/{id}.
func (a *API) GetSnapshot(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	snap, err := a.Snapshots.SnapshotByID(r.Context(), who.Tenant, r.PathValue("id"))
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, snapshotViewOf(snap))
}

// DeleteSnapshot answers DELETE /api/v1/snapshots/{id} with the last record.
func (a *API) DeleteSnapshot(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	snap, err := a.Snapshots.DeleteSnapshot(r.Context(), who.Tenant, r.PathValue("id"))
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, snapshotViewOf(snap))
}
