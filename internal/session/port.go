package session

import (
	"cmp"
	"context"
	"errors"
	"io"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/snapshot/snapfile"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// ExportSnapshot implements sandbox.Sandboxes.
func (m *Manager) ExportSnapshot(ctx context.Context, tenant sandbox.TenantID, id string, image bool, file io.Writer) error {
	snap, err := m.SnapshotByID(ctx, tenant, id)
	if err != nil {
		return err
	}
	if snap.Memory && len(snap.Volumes) > 0 {
		return sandbox.Errorf(sandbox.Conflict, "the snapshot has volumes mounted, which stay here: take one without memory, whose files can leave")
	}
	head := snapfile.HeadOf(snap)
	head.WithImage = image
	w := snapfile.NewWriter(file, head)
	err = m.nodes.ExportSaved(ctx, snap.Node, snap.ID, image, w)
	if errors.Is(err, sandbox.NotFound) {
		// Nothing is written then. The state may have moved since the record was read.
		if now, lookErr := m.SnapshotByID(ctx, tenant, id); lookErr == nil && now.Node != snap.Node {
			err = m.nodes.ExportSaved(ctx, now.Node, snap.ID, image, w)
		}
	}
	if err != nil {
		w.Abandon()
		if errors.Is(err, sandbox.NotFound) { // deleted meanwhile, or lost
			return sandbox.Errorf(sandbox.Conflict, "the saved state does not exist any more").WithCause(err)
		}
		return err
	}
	return w.Close()
}

// ImportSnapshot implements sandbox.Sandboxes. As with every Snapshot, the record comes
// first, so that a sweep finds the leftovers of a crash.
func (m *Manager) ImportSnapshot(ctx context.Context, tenant sandbox.TenantID, req sandbox.ImportRequest, file io.Reader) (sandbox.Snapshot, error) {
	if err := req.Check(); err != nil {
		return sandbox.Snapshot{}, err
	}
	if made, err := m.madeSnapshot(ctx, req.ID, func(s sandbox.Snapshot) bool { return s.Tenant == tenant }); err != nil || made.ID != "" {
		return made, err
	}
	r, head, err := snapfile.NewReader(file)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	defer r.Close()
	snap, err := head.Origin()
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	if head.WithImage && m.cfg.Imported != nil {
		if err := m.cfg.Imported.Admit(ctx, tenant, versionOf(snap)); err != nil {
			return sandbox.Snapshot{}, err
		}
	}
	nodes, err := m.placement.Place(ctx, sandbox.BootNeeds{Tenant: tenant, Image: snap.Image, Shape: snap.Shape, CPU: snap.CPU})
	if err == nil && len(nodes) == 0 {
		err = sandbox.Errorf(sandbox.Exhausted, "no node has room")
	}
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	snap.ID, snap.Tenant, snap.Name = cmp.Or(req.ID, sandbox.NewSnapshotID()), tenant, cmp.Or(req.Name, snap.Name)
	// Its Sandbox is not in this installation, so it gets a new ID.
	snap.SandboxID = sandbox.NewSandboxID()
	snap.Kept, snap.State, snap.CreatedAt, snap.Node = true, sandbox.SnapshotSaving, now(), nodes[0]
	release := m.hold(snap.ID)
	defer release() // then a sweep removes a failed import
	if snap, err = m.store.InsertSnapshot(ctx, snap); err != nil {
		return sandbox.Snapshot{}, err
	}
	defer m.retainSoon(tenant)
	image := snap.Image // of a Template, unless the file has it
	if head.WithImage {
		image = ""
	}
	if snap, err = m.receive(ctx, snap, image, r); err != nil {
		return snap, err
	}
	if head.WithImage && m.cfg.Imported != nil {
		if err := m.keepImage(ctx, snap); err != nil {
			return sandbox.Snapshot{}, err
		}
	}
	return snap, nil
}

// versionOf returns the Template version that a Snapshot needs.
func versionOf(snap sandbox.Snapshot) string { return strings.TrimPrefix(snap.Image, "sha256:") }

// keepImage makes the image that came with a Snapshot a version of a Template. Without a
// name, the image would count for no Quota. Its size is known only now: if it exceeds the
// Tenant's Quota, both Snapshot and image are removed.
func (m *Manager) keepImage(ctx context.Context, snap sandbox.Snapshot) error {
	err := m.cfg.Imported.Keep(ctx, snap.Tenant, snap.Template, versionOf(snap))
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, sandbox.Exhausted):
		m.log.WarnContext(ctx, "listing the image of an imported snapshot failed", telemetry.KeySnapshot, snap.ID, telemetry.KeyError, err)
		return nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	undone := m.discard(undo, snap, false) // first, because the record keeps the image
	if undone == nil {
		undone = m.cfg.Imported.Drop(undo, versionOf(snap))
	}
	if undone != nil {
		m.log.WarnContext(ctx, "removing a snapshot that was refused with its image failed", telemetry.KeySnapshot, snap.ID, telemetry.KeyError, undone)
	}
	return err
}

// receive imports the state of a Snapshot to its Node and records it as ready. Its
// properties come from the Engine, not from the file. image is passed to
// NodeSaves.ImportSaved.
func (m *Manager) receive(ctx context.Context, snap sandbox.Snapshot, image string, content io.Reader) (sandbox.Snapshot, error) {
	saved, err := m.nodes.ImportSaved(ctx, snap.Node, snap.Tenant, snap.ID, image, content)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	return m.received(ctx, snap, saved)
}

// checkSaved returns Invalid if a state differs from the record of its Snapshot.
func checkSaved(snap sandbox.Snapshot, saved sandbox.Saved) error {
	if saved.Image != snap.Image || !saved.Shape.Covers(snap.Shape) || saved.Memory != snap.Memory {
		return sandbox.Errorf(sandbox.Invalid, "the head of the file does not match its snapshot")
	}
	return nil
}

// received records a Snapshot, whose state its Node has made from an export, as ready.
func (m *Manager) received(ctx context.Context, snap sandbox.Snapshot, saved sandbox.Saved) (_ sandbox.Snapshot, err error) {
	if err := checkSaved(snap, saved); err != nil {
		return sandbox.Snapshot{}, err
	}
	snap.State, snap.Bytes, snap.Build, snap.Digest, snap.CPU = sandbox.SnapshotReady, saved.Bytes, saved.Build, saved.Digest, saved.CPU
	if snap, err = m.store.UpdateSnapshot(ctx, snap); err != nil {
		return sandbox.Snapshot{}, err
	}
	m.log.InfoContext(ctx, "a snapshot was imported", telemetry.KeySnapshot, snap.ID, telemetry.KeyTenant, snap.Tenant, telemetry.KeyNode, snap.Node)
	return snap, nil
}
