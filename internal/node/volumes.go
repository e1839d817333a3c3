package node

import (
	"context"
	"io"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

// Bounds of the backoff before reconnecting to a Boot whose Volume connection broke.
const (
	firstRedial = 10 * time.Millisecond
	lastRedial  = time.Second
)

// volumes keeps the files of Volumes on this host. Its methods correspond to the
// methods of sandbox.NodeVolumes and sandbox.VolumeFiles. They are safe for concurrent
// use.
type volumes interface {
	volumeFiles
	Create(v sandbox.VolumeSpec) error
	Delete(id string) error
	List(ctx context.Context) ([]sandbox.VolumeUse, error)
	// Check returns NotFound if the Tenant has no such Volume here.
	Check(of sandbox.VolumeRef) error
	// ForBoot returns a server of these Volumes for a Boot. Close it when the Boot has
	// ended.
	ForBoot(tenant sandbox.TenantID, volumes []string) volume.Server
	// Clean removes the remains of interrupted deletions.
	Clean(ctx context.Context) error
}

// volumeFiles reaches single files of Volumes.
type volumeFiles interface {
	Stat(of sandbox.VolumeRef, path string) (sandbox.VolumeFile, error)
	ListFolder(ctx context.Context, of sandbox.VolumeRef, path string, depth int) ([]sandbox.VolumeFile, error)
	MakeFolder(of sandbox.VolumeRef, path string, c sandbox.VolumeFileChange, force bool) (sandbox.VolumeFile, error)
	ReadFile(ctx context.Context, of sandbox.VolumeRef, path string, w io.Writer) error
	WriteFile(ctx context.Context, of sandbox.VolumeRef, path string, c sandbox.VolumeFileChange, force bool, r io.Reader) (sandbox.VolumeFile, error)
	Change(of sandbox.VolumeRef, path string, c sandbox.VolumeFileChange) (sandbox.VolumeFile, error)
	Remove(ctx context.Context, of sandbox.VolumeRef, path string) error
}

// checkVolumes returns an error if a Boot cannot have its Binding's Volumes.
func (n *Node) checkVolumes(b sandbox.Binding) error {
	mounts := make([]sandbox.VolumeMount, len(b.Volumes))
	for i, v := range b.Volumes {
		mounts[i] = sandbox.VolumeMount{Volume: v.ID, Path: v.Path}
	}
	if err := sandbox.CheckVolumeMounts(mounts); err != nil {
		return err
	}
	for _, v := range b.Volumes {
		if err := n.volumes.Check(sandbox.VolumeRef{ID: v.ID, Tenant: b.Tenant}); err != nil {
			return err
		}
	}
	return nil
}

func volumeIDs(volumes []sandbox.VolumeBinding) []string {
	var ids []string
	for _, v := range volumes {
		ids = append(ids, v.ID)
	}
	return ids
}

// mount begins to serve a Boot its Binding's Volumes.
func (n *Node) mount(b *boot) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(b.owner.volumes) == 0 || b.unmount != nil || b.state == stopping || n.boots[b.id] != b {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.unmount = cancel
	id, tenant, volumes := b.id, b.owner.ref.Tenant, b.owner.volumes
	n.wg.Go(func() { n.serveVolumes(ctx, id, tenant, volumes) })
}

// mountRecovered mounts the Volumes of Boots that an earlier process bound.
func (n *Node) mountRecovered() {
	n.mu.Lock()
	var all []*boot
	for _, b := range n.owners {
		all = append(all, b)
	}
	n.mu.Unlock()
	for _, b := range all {
		n.mount(b)
	}
}

func (n *Node) unmountAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, b := range n.boots {
		if b.unmount != nil {
			b.unmount()
		}
	}
}

// serveVolumes connects to the volume server of a Boot and serves it, reconnecting until
// ctx ends.
func (n *Node) serveVolumes(ctx context.Context, bootID string, tenant sandbox.TenantID, ids []string) {
	server := n.volumes.ForBoot(tenant, ids)
	defer server.Close()
	for wait := firstRedial; ; wait = min(2*wait, lastRedial) {
		began := time.Now()
		conn, err := n.engine.Dial(ctx, bootID, sandbox.VolumePort)
		if err == nil {
			err = server.Serve(ctx, conn)
		}
		if time.Since(began) > lastRedial {
			wait = firstRedial
		}
		if sleep(ctx, wait) != nil {
			return
		}
		n.log.Debug("reconnecting to the volume server of a boot", telemetry.KeyBoot, bootID, telemetry.KeyError, err)
	}
}

// cleanVolumes removes the remains of interrupted deletions.
func (n *Node) cleanVolumes(ctx context.Context) error {
	if err := n.volumes.Clean(ctx); err != nil && ctx.Err() == nil {
		n.log.Warn("removing the files of deleted volumes failed", telemetry.KeyError, err)
	}
	return nil
}

// CreateVolume implements sandbox.NodeVolumes.
func (n *Node) CreateVolume(_ context.Context, node string, v sandbox.VolumeSpec) error {
	if err := n.check(node); err != nil {
		return err
	}
	return n.volumes.Create(v)
}

// DeleteVolume implements sandbox.NodeVolumes.
func (n *Node) DeleteVolume(_ context.Context, node, id string) error {
	if err := n.check(node); err != nil {
		return err
	}
	return n.volumes.Delete(id)
}

// ListVolumes implements sandbox.NodeVolumes.
func (n *Node) ListVolumes(ctx context.Context, node string) ([]sandbox.VolumeUse, error) {
	if err := n.check(node); err != nil {
		return nil, err
	}
	return n.volumes.List(ctx)
}

// StatVolumeFile implements sandbox.VolumeFiles.
func (n *Node) StatVolumeFile(_ context.Context, node string, of sandbox.VolumeRef, path string) (sandbox.VolumeFile, error) {
	if err := n.check(node); err != nil {
		return sandbox.VolumeFile{}, err
	}
	return n.volumes.Stat(of, path)
}

// ListVolumeFolder implements sandbox.VolumeFiles.
func (n *Node) ListVolumeFolder(ctx context.Context, node string, of sandbox.VolumeRef, path string, depth int) ([]sandbox.VolumeFile, error) {
	if err := n.check(node); err != nil {
		return nil, err
	}
	return n.volumes.ListFolder(ctx, of, path, depth)
}

// MakeVolumeFolder implements sandbox.VolumeFiles.
func (n *Node) MakeVolumeFolder(_ context.Context, node string, of sandbox.VolumeRef, path string, c sandbox.VolumeFileChange, force bool) (sandbox.VolumeFile, error) {
	if err := n.check(node); err != nil {
		return sandbox.VolumeFile{}, err
	}
	return n.volumes.MakeFolder(of, path, c, force)
}

// ReadVolumeFile implements sandbox.VolumeFiles.
func (n *Node) ReadVolumeFile(ctx context.Context, node string, of sandbox.VolumeRef, path string, w io.Writer) error {
	if err := n.check(node); err != nil {
		return err
	}
	return n.volumes.ReadFile(ctx, of, path, w)
}

// WriteVolumeFile implements sandbox.VolumeFiles.
func (n *Node) WriteVolumeFile(ctx context.Context, node string, of sandbox.VolumeRef, path string, c sandbox.VolumeFileChange, force bool, r io.Reader) (sandbox.VolumeFile, error) {
	if err := n.check(node); err != nil {
		return sandbox.VolumeFile{}, err
	}
	return n.volumes.WriteFile(ctx, of, path, c, force, r)
}

// ChangeVolumeFile implements sandbox.VolumeFiles.
func (n *Node) ChangeVolumeFile(_ context.Context, node string, of sandbox.VolumeRef, path string, c sandbox.VolumeFileChange) (sandbox.VolumeFile, error) {
	if err := n.check(node); err != nil {
		return sandbox.VolumeFile{}, err
	}
	return n.volumes.Change(of, path, c)
}

// RemoveVolumeFile implements sandbox.VolumeFiles.
func (n *Node) RemoveVolumeFile(ctx context.Context, node string, of sandbox.VolumeRef, path string) error {
	if err := n.check(node); err != nil {
		return err
	}
	return n.volumes.Remove(ctx, of, path)
}
