package node

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume/bridge"
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
	Export(ctx context.Context, of sandbox.VolumeRef, w io.Writer) error
	Import(ctx context.Context, v sandbox.VolumeSpec, r io.Reader) error
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

// Homes reach the Volumes that other Nodes store. Methods are safe for concurrent use.
type Homes interface {
	// VolumeHomes is NodeRecords.VolumeHomes.
	VolumeHomes(ctx context.Context, node string, of sandbox.BootPlace) ([]sandbox.VolumeHome, error)
	// DialVolumes connects to the volume server for a Boot on the Node of a Volume. The
	// errors of sandbox.VolumeHomes apply; a silent Node is Unavailable.
	DialVolumes(ctx context.Context, at sandbox.VolumeHome, to sandbox.BootPlace) (net.Conn, error)
}

// noHomes are the Homes of a Node without others.
type noHomes struct{}

func (noHomes) VolumeHomes(context.Context, string, sandbox.BootPlace) ([]sandbox.VolumeHome, error) {
	return nil, sandbox.Errorf(sandbox.Unavailable, "this node reaches no other one")
}

func (noHomes) DialVolumes(_ context.Context, at sandbox.VolumeHome, _ sandbox.BootPlace) (net.Conn, error) {
	return nil, sandbox.Errorf(sandbox.Unavailable, "no node %q", at.Node)
}

// homeTime bounds asking for the homes of a Sandbox's Volumes and connecting to one.
const homeTime = 3 * time.Second

// mounted are the IDs of a Boot's Volumes: here are the Volumes that this Node stores, and
// homes are the others, by their Node.
type mounted struct {
	here  []string
	homes map[string][]string
}

func mountedBy(volumes []sandbox.VolumeBinding) (m mounted) {
	for _, v := range volumes {
		if v.Home == "" {
			m.here = append(m.here, v.ID)
			continue
		}
		if m.homes == nil {
			m.homes = map[string][]string{}
		}
		m.homes[v.Home] = append(m.homes[v.Home], v.ID)
	}
	return m
}

func (m mounted) none() bool { return len(m.here) == 0 && len(m.homes) == 0 }

// checkVolumes returns an error if a Boot cannot have its Binding's Volumes.
func (n *Node) checkVolumes(ctx context.Context, b sandbox.Binding) error {
	mounts := make([]sandbox.VolumeMount, len(b.Volumes))
	for i, v := range b.Volumes {
		mounts[i] = sandbox.VolumeMount{Volume: v.ID, Path: v.Path}
	}
	if err := sandbox.CheckVolumeMounts(mounts); err != nil {
		return err
	}
	for _, v := range b.Volumes {
		if v.Home != "" {
			continue
		}
		if err := n.volumes.Check(sandbox.VolumeRef{ID: v.ID, Tenant: b.Tenant}); err != nil {
			return err
		}
	}
	place := n.placeOf(b.SandboxID, b.BootNumber)
	for home := range mountedBy(b.Volumes).homes {
		conn, err := n.dialHome(ctx, home, place)
		if err != nil {
			return fmt.Errorf("reach the node that stores a volume: %w", err)
		}
		conn.Close()
	}
	return nil
}

func (n *Node) placeOf(sandboxID string, number int64) sandbox.BootPlace {
	return sandbox.BootPlace{SandboxID: sandboxID, Number: number, Node: n.cfg.Name}
}

// dialHome connects to the volume server for a Boot of this Node on another Node, whose
// address may have changed.
func (n *Node) dialHome(ctx context.Context, home string, to sandbox.BootPlace) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, homeTime)
	defer cancel()
	all, err := n.cfg.Homes.VolumeHomes(ctx, n.cfg.Name, to)
	if err != nil {
		return nil, err
	}
	for _, at := range all {
		if at.Node == home {
			return n.cfg.Homes.DialVolumes(ctx, at, to)
		}
	}
	return nil, sandbox.Errorf(sandbox.Conflict, "the node %.64s no longer stores a volume of the sandbox", home)
}

// serverOf returns a server of the Volumes of a Boot.
func (n *Node) serverOf(to sandbox.BootRef, m mounted) volume.Server {
	if len(m.homes) == 0 {
		return n.volumes.ForBoot(to.Tenant, m.here)
	}
	place := n.placeOf(to.SandboxID, to.Number)
	var routes []bridge.Route
	if len(m.here) > 0 {
		routes = append(routes, bridge.Local(n.volumes.ForBoot(to.Tenant, m.here), m.here))
	}
	for home, ids := range m.homes {
		routes = append(routes, bridge.Route{Volumes: ids, Connect: func(ctx context.Context) (net.Conn, error) {
			return n.dialHome(ctx, home, place)
		}})
	}
	return bridge.New(routes...)
}

// ServeVolumes implements sandbox.VolumeHomes.
func (n *Node) ServeVolumes(ctx context.Context, node string, to sandbox.BootPlace) (func(net.Conn), error) {
	if err := n.check(node); err != nil {
		return nil, err
	}
	if err := n.checkLease(); err != nil {
		return nil, err
	}
	return n.homes.Admit(ctx, to)
}

// mount begins to serve a Boot its Binding's Volumes.
func (n *Node) mount(b *boot) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if b.owner.volumes.none() || b.unmount != nil || b.state == stopping || n.boots[b.id] != b {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.unmount = cancel
	to, volumes := b.owner.ref, b.owner.volumes
	n.wg.Go(func() { n.serveVolumes(ctx, to, volumes) })
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
func (n *Node) serveVolumes(ctx context.Context, to sandbox.BootRef, m mounted) {
	n.homes.Replace(n.placeOf(to.SandboxID, to.Number))
	server := n.serverOf(to, m)
	defer server.Close()
	for wait := firstRedial; ; wait = min(2*wait, lastRedial) {
		began := time.Now()
		conn, err := n.engine.Dial(ctx, to.BootID, sandbox.VolumePort)
		if err == nil {
			err = server.Serve(ctx, conn)
		}
		if time.Since(began) > lastRedial {
			wait = firstRedial
		}
		if sleep(ctx, wait) != nil {
			return
		}
		n.log.Debug("reconnecting to the volume server of a boot", telemetry.KeyBoot, to.BootID, telemetry.KeyError, err)
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

// ExportVolume implements sandbox.NodeVolumes.
func (n *Node) ExportVolume(ctx context.Context, node string, of sandbox.VolumeRef, w io.Writer) error {
	if err := n.check(node); err != nil {
		return err
	}
	done, err := n.carrier("volumes are moved")
	if err != nil {
		return err
	}
	defer done()
	return n.volumes.Export(ctx, of, w)
}

// ImportVolume implements sandbox.NodeVolumes.
func (n *Node) ImportVolume(ctx context.Context, node string, v sandbox.VolumeSpec, r io.Reader) error {
	if err := n.check(node); err != nil {
		return err
	}
	done, err := n.carrier("volumes are moved")
	if err != nil {
		return err
	}
	defer done()
	return n.volumes.Import(ctx, v, r)
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
