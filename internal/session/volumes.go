package session

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// volumeAdvice is the RetryAfter of a Volume that is being moved, or whose Node is away.
const volumeAdvice = 5 * time.Second

func movingVolume(name string) error {
	e := sandbox.Errorf(sandbox.Unavailable, "the volume %s is being moved to another node: try again soon", name)
	e.RetryAfter = volumeAdvice
	return e
}

// noVolume is the error for an absent Volume and for another Tenant's.
func noVolume(idOrName string) error {
	return sandbox.Errorf(sandbox.NotFound, "no volume %.64q; `cloud-sandbox volume ls` and GET /api/v1/volumes list yours", idOrName)
}

// GetVolume implements sandbox.Sandboxes.
func (r Records) GetVolume(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Volume, error) {
	var v sandbox.Volume
	var err error
	switch {
	case sandbox.ValidVolumeID(idOrName):
		v, err = r.Store.VolumeByID(ctx, idOrName)
	case sandbox.CheckVolumeName(idOrName) != nil:
		return v, noVolume(idOrName)
	default:
		v, err = r.Store.VolumeByName(ctx, tenant, idOrName)
	}
	if errors.Is(err, sandbox.NotFound) || err == nil && (v.Tenant != tenant || v.State != sandbox.VolumeReady) {
		return sandbox.Volume{}, noVolume(idOrName)
	}
	return v, err
}

// ListVolumes implements sandbox.Sandboxes.
func (r Records) ListVolumes(ctx context.Context, tenant sandbox.TenantID) ([]sandbox.Volume, error) {
	return r.Store.Volumes(ctx, tenant)
}

// CreateVolume implements sandbox.Sandboxes. The record comes first, so that a sweep
// finds the leftovers of a crash.
func (m *Manager) CreateVolume(ctx context.Context, tenant sandbox.TenantID, req sandbox.VolumeRequest) (sandbox.Volume, error) {
	if err := req.Check(); err != nil {
		return sandbox.Volume{}, err
	}
	if made, err := m.madeVolume(ctx, tenant, req.ID); err != nil || made.ID != "" {
		return made, err
	}
	nodes, err := m.placement.Place(ctx, sandbox.BootNeeds{Tenant: tenant, Shape: sandbox.DefaultShape()})
	if err == nil && len(nodes) == 0 {
		err = sandbox.Errorf(sandbox.Exhausted, "no node has room")
	}
	if err != nil {
		return sandbox.Volume{}, err
	}
	v := sandbox.Volume{
		ID: cmp.Or(req.ID, sandbox.NewVolumeID()), Tenant: tenant, Name: req.Name, State: sandbox.VolumeCreating, Node: nodes[0],
		MaxBytes: cmp.Or(req.MaxBytes, sandbox.DefaultVolumeBytes), CreatedAt: now(),
	}
	release := m.hold(v.ID)
	defer release() // then a sweep removes a failed Volume
	began := time.Now()
	if v, err = m.store.InsertVolume(ctx, v); err != nil {
		if errors.Is(err, sandbox.ErrOverQuota) {
			m.observe("volume", err, began)
		}
		return sandbox.Volume{}, sandbox.NotBegun(err)
	}
	v, err = m.makeVolume(ctx, v)
	m.observe("volume", err, began)
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
		defer cancel()
		if undoErr := m.discardVolume(undo, v); undoErr != nil {
			m.log.WarnContext(ctx, "undoing a failed create of a volume failed; will retry", telemetry.KeyVolume, v.ID, telemetry.KeyError, undoErr)
		}
		return sandbox.Volume{}, err
	}
	m.log.InfoContext(ctx, "a volume was made", telemetry.KeyVolume, v.ID, telemetry.KeyTenant, v.Tenant, telemetry.KeyNode, v.Node)
	return v, nil
}

// makeVolume makes a recorded Volume on its Node and records it as ready. It returns the
// record also with an error.
func (m *Manager) makeVolume(ctx context.Context, v sandbox.Volume) (sandbox.Volume, error) {
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	if err := m.nodes.CreateVolume(ctx, v.Node, specOf(v)); err != nil {
		return v, err
	}
	if err := m.store.MoveVolume(ctx, v.ID, v.State, sandbox.VolumeReady); err != nil {
		return v, err
	}
	v.State = sandbox.VolumeReady
	return v, nil
}

func specOf(v sandbox.Volume) sandbox.VolumeSpec {
	return sandbox.VolumeSpec{ID: v.ID, Tenant: v.Tenant, MaxBytes: v.MaxBytes}
}

// madeVolume returns the Volume that an earlier attempt of the same idempotent request
// made, or one without an ID.
func (m *Manager) madeVolume(ctx context.Context, tenant sandbox.TenantID, id string) (sandbox.Volume, error) {
	if id == "" {
		return sandbox.Volume{}, nil
	}
	v, err := m.store.VolumeByID(ctx, id)
	switch {
	case errors.Is(err, sandbox.NotFound):
		return sandbox.Volume{}, nil
	case err != nil:
		return sandbox.Volume{}, err
	case v.Tenant != tenant || v.State == sandbox.VolumeDeleting:
		return sandbox.Volume{}, sandbox.Errorf(sandbox.Conflict, "the volume that the first of these requests made is gone")
	case v.State == sandbox.VolumeCreating: // its process died
		return sandbox.Volume{}, m.discardVolume(ctx, v)
	}
	return v, nil
}

// DeleteVolume implements sandbox.Sandboxes. Once the deletion is recorded, the files are
// deleted now or by a later sweep.
func (m *Manager) DeleteVolume(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Volume, error) {
	v, err := m.GetVolume(ctx, tenant, idOrName)
	if err != nil {
		return sandbox.Volume{}, err
	}
	release := m.hold(v.ID)
	defer release() // then a sweep retries a failed deletion
	if m.isCarried(v.ID) {
		return sandbox.Volume{}, movingVolume(v.Name)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	if err := m.discardVolume(ctx, v); err != nil {
		if !isConflict(err) {
			return sandbox.Volume{}, err
		}
		if uses, _, lookErr := m.store.VolumeUses(ctx, v.ID); lookErr == nil && uses > 0 {
			return sandbox.Volume{}, sandbox.Errorf(sandbox.Conflict, "the volume %s is in use: %d sandboxes that have not ended have it mounted, paused ones too", v.Name, uses)
		}
		return sandbox.Volume{}, noVolume(idOrName) // deleted concurrently
	}
	m.log.InfoContext(ctx, "a volume was deleted", telemetry.KeyVolume, v.ID, telemetry.KeyTenant, v.Tenant, telemetry.KeyNode, v.Node)
	return v, nil
}

// discardVolume deletes a Volume: it marks the record, deletes the files, and drops the
// record. If a Node fails, a sweep retries.
func (m *Manager) discardVolume(ctx context.Context, v sandbox.Volume) error {
	if v.State != sandbox.VolumeDeleting {
		if err := m.store.MoveVolume(ctx, v.ID, v.State, sandbox.VolumeDeleting); err != nil {
			return err
		}
	}
	v, err := m.store.VolumeByID(ctx, v.ID) // it may have moved since it was read, but not any more
	if errors.Is(err, sandbox.NotFound) {
		return nil // another call has finished the deletion
	}
	if err != nil {
		return err
	}
	for _, node := range []string{v.Node, v.LeftOn} {
		if node == "" {
			continue
		}
		if err := m.dropFiles(ctx, node, v.ID); err != nil {
			m.log.WarnContext(ctx, "deleting the files of a volume failed; will retry", telemetry.KeyVolume, v.ID, telemetry.KeyNode, node, telemetry.KeyError, err)
			return nil
		}
	}
	return m.store.DropVolume(ctx, v.ID)
}

// dropFiles deletes the files that a Volume has on a Node. A Node whose record was retired
// has none any more: it has been away for so long that it is not waited for.
func (m *Manager) dropFiles(ctx context.Context, node, id string) error {
	err := m.nodes.DeleteVolume(ctx, node, id)
	if err == nil {
		return nil
	}
	if _, known, readErr := m.nodeRecord(ctx, node); known || readErr != nil {
		return err
	}
	return nil
}

// sweepVolumes deletes Volumes whose creation or deletion is half done, and the
// files that Volumes have left on other Nodes.
func (m *Manager) sweepVolumes(ctx context.Context) error {
	left, err := m.store.VolumesLeft(ctx)
	if err != nil {
		return err
	}
	work := newGroup()
	for _, v := range left {
		work.do(func() error {
			done, free := m.keepFree(v.ID)
			if !free {
				return nil
			}
			defer done()
			limited, cancel := context.WithTimeout(ctx, stopLimit)
			defer cancel()
			var err error
			if v.State == sandbox.VolumeReady {
				err = m.settleVolume(limited, v)
			} else {
				err = m.discardVolume(limited, v)
			}
			if isConflict(err) || errors.Is(err, sandbox.NotFound) { // it changed meanwhile: created or already deleted
				return nil
			}
			return err
		})
	}
	return work.wait()
}

// mount resolves the requested Volumes by name or ID, and returns the mounts and the Node
// that stores the first of them; Invalid for an unknown Volume.
func (m *Manager) mount(ctx context.Context, tenant sandbox.TenantID, asked []sandbox.VolumeMount) (mounts []sandbox.VolumeMount, home string, err error) {
	for _, a := range asked {
		v, err := m.GetVolume(ctx, tenant, a.Volume)
		switch {
		case errors.Is(err, sandbox.NotFound):
			return nil, "", sandbox.Errorf(sandbox.Invalid, "no volume %.128q; `cloud-sandbox volume ls` and GET /api/v1/volumes list yours", a.Volume)
		case err != nil:
			return nil, "", err
		}
		home = cmp.Or(home, v.Node)
		mounts = append(mounts, sandbox.VolumeMount{Volume: v.ID, Name: v.Name, Path: a.Path})
	}
	return mounts, home, nil
}

// nearHome returns the Nodes to try for a Sandbox with Volumes: first the Node that
// stores the first one, if it takes Sandboxes. home is empty for a Sandbox without Volumes.
func (m *Manager) nearHome(home string, nodes []string) []string {
	if home == "" || m.isDraining(home) || m.isAway(home) {
		return nodes
	}
	near := []string{home}
	for _, n := range nodes {
		if n != home {
			near = append(near, n)
		}
	}
	return near
}

// mountAgain returns Conflict when a Volume of a Snapshot cannot be mounted again.
func (m *Manager) mountAgain(ctx context.Context, snap sandbox.Snapshot) error {
	for _, mount := range snap.Volumes {
		_, err := m.GetVolume(ctx, snap.Tenant, mount.Volume)
		if errors.Is(err, sandbox.NotFound) {
			return sandbox.Errorf(sandbox.Conflict, "the snapshot has the volume %s (%s) mounted at %s, which was deleted", mount.Name, mount.Volume, mount.Path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkHomes returns Unavailable if a Node that stores Volumes of a Binding is away.
func (m *Manager) checkHomes(volumes []sandbox.VolumeBinding) error {
	for _, v := range volumes {
		if v.Home == "" || !m.isAway(v.Home) {
			continue
		}
		e := sandbox.Errorf(sandbox.Unavailable, "the node that stores the volume %s is away", v.ID)
		e.RetryAfter = volumeAdvice
		return e
	}
	return nil
}

// bindVolumes returns the VolumeBindings for the Boot of sb.
func (m *Manager) bindVolumes(ctx context.Context, sb sandbox.Sandbox) ([]sandbox.VolumeBinding, error) {
	var all []sandbox.VolumeBinding
	for _, mount := range sb.Volumes {
		if m.isCarried(mount.Volume) { // before its home is read
			return nil, movingVolume(mount.Name)
		}
		v, err := m.GetVolume(ctx, sb.Tenant, mount.Volume)
		if errors.Is(err, sandbox.NotFound) {
			return nil, sandbox.Errorf(sandbox.Conflict, "the volume %s (%s) is gone", mount.Name, mount.Volume)
		}
		if err != nil {
			return nil, err
		}
		b := sandbox.VolumeBinding{VolumeSpec: specOf(v), Path: mount.Path}
		if v.Node != sb.Boot.Node {
			b.Home = v.Node
		}
		all = append(all, b)
	}
	return all, nil
}
