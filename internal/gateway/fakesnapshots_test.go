package gateway_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// move changes the State of a Sandbox that has one of the States from.
func (f *sandboxes) move(tenant sandbox.TenantID, idOrName string, to sandbox.State, from ...sandbox.State) (sandbox.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.find(tenant, idOrName)
	switch {
	case err != nil:
		return s, err
	case !slices.Contains(from, s.State):
		return s, sandbox.Errorf(sandbox.Conflict, "the sandbox is %s", s.State)
	}
	s.State = to
	f.byID[s.ID] = s
	return s, nil
}

func (f *sandboxes) Pause(_ context.Context, tenant sandbox.TenantID, idOrName string, filesOnly bool) (sandbox.Sandbox, error) {
	f.mu.Lock()
	f.filesOnly = filesOnly
	f.mu.Unlock()
	f.filesOnly = filesOnly
	return f.move(tenant, idOrName, sandbox.Paused, sandbox.Running, sandbox.Paused)
}

func (f *sandboxes) Resume(_ context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	return f.move(tenant, idOrName, sandbox.Running, sandbox.Running, sandbox.Paused)
}

func (f *sandboxes) Reboot(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	f.mu.Lock()
	f.reboots++
	f.mu.Unlock()
	return f.Resume(ctx, tenant, idOrName)
}

func (f *sandboxes) Rollback(ctx context.Context, tenant sandbox.TenantID, idOrName, snapshot string) (sandbox.Sandbox, error) {
	if _, err := f.SnapshotByID(ctx, tenant, snapshot); err != nil {
		return sandbox.Sandbox{}, err
	}
	return f.Resume(ctx, tenant, idOrName)
}

// Fork makes copies of which every third fails.
func (f *sandboxes) Fork(ctx context.Context, tenant sandbox.TenantID, idOrName string, req sandbox.ForkRequest) ([]sandbox.Forked, error) {
	s, err := f.Get(ctx, tenant, idOrName)
	if err != nil {
		return nil, err
	}
	if made := f.forksOf(req.ID); made != nil {
		return made, nil
	}
	metadata := map[string]string{}
	for k, v := range req.Metadata {
		if v != nil {
			metadata[k] = *v
		}
	}
	var all []sandbox.Forked
	for i := range req.Count {
		if i%3 == 2 || s.Metadata["barren"] != "" {
			all = append(all, sandbox.Forked{Err: fmt.Errorf("start: %w", sandbox.Errorf(sandbox.Exhausted, "no room").WithCause(errors.New("secret")))})
			continue
		}
		made, err := f.Create(ctx, tenant, sandbox.CreateRequest{Timeout: cmp.Or(req.Timeout, s.Timeout), Metadata: metadata})
		all = append(all, sandbox.Forked{Sandbox: made, Err: err})
	}
	if req.ID != "" {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.forks[req.ID] = all
	}
	return all, nil
}

// forksOf are the forks that an earlier request with the same ID made.
func (f *sandboxes) forksOf(id string) []sandbox.Forked {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.forks[id]
}

func (f *sandboxes) TakeSnapshot(ctx context.Context, tenant sandbox.TenantID, idOrName string, req sandbox.SnapshotRequest) (sandbox.Snapshot, error) {
	if err := req.Check(); err != nil {
		return sandbox.Snapshot{}, err
	}
	s, err := f.Get(ctx, tenant, idOrName)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	snap := sandbox.Snapshot{
		ID: cmp.Or(req.ID, sandbox.NewSnapshotID()), Tenant: tenant, SandboxID: s.ID, Parent: s.Snapshot, Name: req.Name, Kept: true,
		State: sandbox.SnapshotReady, CreatedAt: time.Now(), Bytes: 1000, Memory: !req.FilesOnly, Build: "1", Template: s.Template, Shape: s.Shape,
		Env: map[string]string{"A": "secret"}, Layer: req.Layer,
	}
	s.Snapshot = snap.ID
	f.byID[s.ID] = s
	f.snapshots = append(f.snapshots, snap)
	return snap, nil
}

func (f *sandboxes) SnapshotByID(_ context.Context, tenant sandbox.TenantID, id string) (sandbox.Snapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.snapshots {
		if s.ID == id && s.Tenant == tenant {
			return s, nil
		}
	}
	return sandbox.Snapshot{}, sandbox.Errorf(sandbox.NotFound, "no snapshot")
}

func (f *sandboxes) ListSnapshots(_ context.Context, tenant sandbox.TenantID, q sandbox.SnapshotQuery) (sandbox.SnapshotPage, error) {
	if q.Cursor != "" {
		return sandbox.SnapshotPage{}, sandbox.Errorf(sandbox.Invalid, "the cursor is not one that a list returned")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var page sandbox.SnapshotPage
	for _, s := range slices.Backward(f.snapshots) {
		if s.Tenant == tenant && (q.SandboxID == "" || s.SandboxID == q.SandboxID) && (q.Name == "" || s.Name == q.Name || q.Tags && strings.HasPrefix(s.Name, q.Name+":")) && (!q.Kept || s.Kept) && q.Layers == (s.Layer != "") {
			page.Snapshots = append(page.Snapshots, s)
		}
	}
	return page, nil
}

func (f *sandboxes) History(ctx context.Context, tenant sandbox.TenantID, idOrName string) ([]sandbox.Snapshot, error) {
	s, err := f.Get(ctx, tenant, idOrName)
	if err != nil {
		return nil, err
	}
	page, err := f.ListSnapshots(ctx, tenant, sandbox.SnapshotQuery{SandboxID: s.ID})
	slices.Reverse(page.Snapshots)
	return page.Snapshots, err
}

// ExportSnapshot writes the ID, and fails after that when the name says so.
func (f *sandboxes) ExportSnapshot(ctx context.Context, tenant sandbox.TenantID, id string, image bool, file io.Writer) error {
	snap, err := f.SnapshotByID(ctx, tenant, id)
	switch {
	case err != nil:
		return err
	case snap.Name == "busy":
		return sandbox.Errorf(sandbox.Exhausted, "busy")
	}
	content := "exported " + snap.ID
	if image {
		content += " with its image"
	}
	if _, err := io.WriteString(file, content); err != nil {
		return err
	}
	if snap.Name == "breaks" {
		return sandbox.Errorf(sandbox.Unavailable, "it broke")
	}
	return nil
}

// ImportSnapshot takes what begins as ExportSnapshot writes it.
func (f *sandboxes) ImportSnapshot(_ context.Context, tenant sandbox.TenantID, req sandbox.ImportRequest, file io.Reader) (sandbox.Snapshot, error) {
	raw, err := io.ReadAll(file)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	if !bytes.HasPrefix(raw, []byte("exported ")) {
		return sandbox.Snapshot{}, sandbox.Errorf(sandbox.Invalid, "this is not the file of a snapshot")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	snap := sandbox.Snapshot{
		ID: cmp.Or(req.ID, sandbox.NewSnapshotID()), Tenant: tenant, SandboxID: sandbox.NewSandboxID(), Name: req.Name, Kept: true,
		State: sandbox.SnapshotReady, CreatedAt: time.Now(), Bytes: int64(len(raw)), Build: "1", Template: "base", Shape: sandbox.DefaultShape(),
	}
	f.snapshots = append(f.snapshots, snap)
	return snap, nil
}

func (f *sandboxes) DeleteSnapshot(ctx context.Context, tenant sandbox.TenantID, id string) (sandbox.Snapshot, error) {
	snap, err := f.SnapshotByID(ctx, tenant, id)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.snapshots = slices.DeleteFunc(f.snapshots, func(s sandbox.Snapshot) bool { return err == nil && s.ID == id })
	return snap, err
}
