package simulation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/fake"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
	"github.com/cloud-sandbox/cloud-sandbox/internal/scheduler"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve/run"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlitetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlstore"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume/disk"
)

// machine describes the hosts of a cluster.
type machine struct {
	memory int64         // bytes
	slots  int           // cold starts at the same time
	starts time.Duration // duration of a cold start
	pool   node.PoolConfig
	// fenceAfter is Config.FenceAfter of the Nodes.
	fenceAfter time.Duration
}

// cluster is a session manager, a scheduler and Nodes, joined by method calls. Only the
// Engines are fakes. It runs in a synctest bubble.
type cluster struct {
	t         testing.TB
	store     *sqlstore.Store
	scheduler *scheduler.Scheduler
	manager   *session.Manager
	machine   machine
	hosts     map[string]*host // fixed
	names     []string         // of the hosts
	halt      func()

	mu       sync.Mutex
	replicas map[string]replica // of saved states, by Snapshot ID
}

// replica is the export of a saved state, which outlives its host.
type replica struct {
	group string
	state []byte
}

// host is one machine and its Node.
type host struct {
	cluster *cluster
	name    string
	dir     string
	cut     atomic.Bool  // nothing reaches it, and it reaches nothing
	starts  atomic.Int64 // nanoseconds of a cold start

	// Replaced when the machine restarts.
	node   atomic.Pointer[node.Node]
	engine *engine
	stop   func()
}

// engine is an Engine in memory that counts the memory of its Boots.
type engine struct {
	*fake.Engine
	cluster   *cluster
	mu        sync.Mutex
	boots     map[string]int64 // bytes, by Boot ID
	committed int64
}

// Start implements sandbox.Engine. The memory of a Boot counts from the beginning of its
// start.
func (e *engine) Start(ctx context.Context, id string, spec sandbox.BootSpec) error {
	e.commit(id, spec.Shape.MemoryBytes)
	err := e.Engine.Start(ctx, id, spec)
	if err != nil {
		e.commit(id, 0)
	}
	return err
}

// Stop implements sandbox.Engine.
func (e *engine) Stop(ctx context.Context, id string, grace time.Duration) error {
	err := e.Engine.Stop(ctx, id, grace)
	if err == nil {
		e.commit(id, 0)
	}
	return err
}

// ShareSaved implements sandbox.Deduplicator. It makes the replica at once.
func (e *engine) ShareSaved(ctx context.Context, name, group string) error {
	if err := e.Engine.ShareSaved(ctx, name, group); err != nil {
		return err
	}
	var state bytes.Buffer
	if err := e.ExportSaved(ctx, name, false, &state); err != nil {
		return err
	}
	e.cluster.mu.Lock()
	defer e.cluster.mu.Unlock()
	e.cluster.replicas[name] = replica{group, state.Bytes()}
	return nil
}

// FetchSaved implements sandbox.Replicator.
func (e *engine) FetchSaved(ctx context.Context, name, from, group string) (sandbox.Saved, error) {
	e.cluster.mu.Lock()
	r, ok := e.cluster.replicas[from]
	e.cluster.mu.Unlock()
	if !ok || r.group != group {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.NotFound, "the saved state %s has no copy", from)
	}
	return e.ImportSaved(ctx, name, bytes.NewReader(r.state))
}

func (e *engine) commit(id string, bytes int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.committed += bytes - e.boots[id]
	if e.boots[id] = bytes; bytes == 0 {
		delete(e.boots, id)
	}
}

func (e *engine) memory() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.committed
}

// control is a client of a Guest that keeps no connection: a hundred thousand of them
// would need gigabytes.
type control struct{ *fake.Control }

func (c control) Bind(ctx context.Context, b sandbox.Binding) (bool, error) {
	defer c.Close()
	return c.Control.Bind(ctx, b)
}

func (c control) Park(ctx context.Context, pids int64) error {
	defer c.Close()
	return c.Control.Park(ctx, pids)
}

func (c control) Health(ctx context.Context) (string, int64, error) {
	defer c.Close()
	return c.Control.Health(ctx)
}

// image is Images with one Template, "base".
type image struct{}

func (image) Resolve(_ context.Context, _ sandbox.TenantID, template string) (string, error) {
	if template != "base" {
		return "", sandbox.Errorf(sandbox.NotFound, "there is no template %q", template)
	}
	return fake.Image, nil
}

// newCluster starts a cluster of n machines. Call close.
func newCluster(t testing.TB, n int, m machine, cfg session.Config) *cluster {
	t.Helper()
	dir := t.TempDir()
	c := &cluster{t: t, store: sqlitetest.OpenAt(t, filepath.Join(dir, "db")), machine: m, hosts: map[string]*host{}, replicas: map[string]replica{}}
	for i := range n {
		h := &host{cluster: c, name: fmt.Sprintf("node-%d", i), dir: filepath.Join(dir, fmt.Sprint(i))}
		h.starts.Store(int64(m.starts))
		c.hosts[h.name] = h
		c.names = append(c.names, h.name)
	}
	cfg.Engine = "fake"
	c.scheduler = scheduler.New(c.store, c, nil)
	c.manager = session.New(c.store, c, c.scheduler, image{}, cfg)
	for _, name := range c.names {
		c.hosts[name].boot()
	}
	var parts run.Parts
	parts.Start("scheduler", c.scheduler.Run)
	parts.Start("session-manager", c.manager.Run)
	c.halt = running(t, "the cluster", parts.Wait)
	time.Sleep(3 * time.Second) // until the Nodes have reported
	return c
}

// running runs a part until stop is called.
func running(t testing.TB, name string, part func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- part(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func (c *cluster) close() {
	c.halt()
	for _, h := range c.hosts {
		h.crash()
	}
	if err := c.store.Close(); err != nil {
		c.t.Errorf("close: %v", err)
	}
}

// boot starts the Node of a host without Boots.
func (h *host) boot() {
	h.cut.Store(false)
	t, m := h.cluster.t, h.cluster.machine
	h.engine = &engine{Engine: fake.New(), cluster: h.cluster, boots: map[string]int64{}}
	h.engine.Hooks.Start = func(ctx context.Context, _ string) error {
		select {
		case <-time.After(time.Duration(h.starts.Load())):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	volumes, err := disk.Open(filepath.Join(h.dir, "volumes"))
	if err != nil {
		t.Fatal(err)
	}
	m.pool.Template = "base"
	engine := h.engine
	n, err := node.Open(context.WithoutCancel(t.Context()), node.Config{
		Name: h.name, Dir: h.dir, Volumes: volumes, Engine: engine, Leases: h, Images: image{}, Pools: []node.PoolConfig{m.pool},
		Guest:      func(dial node.Dial) node.GuestControl { return control{fake.NewControl(dial)} },
		ColdStarts: m.slots, FenceAfter: m.fenceAfter, Fencer: engine,
		OnEnd: func(ctx context.Context, e sandbox.BootEnd) error {
			if err := h.reach(); err != nil {
				return err
			}
			e.Node = h.name
			return h.cluster.manager.BootEnded(ctx, e)
		},
		Host: func() (sandbox.HostState, error) {
			return sandbox.HostState{DiskFree: 1 << 40, DiskTotal: 1 << 40, MemoryFree: m.memory - engine.memory(), MemoryTotal: m.memory}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	h.node.Store(n)
	h.stop = running(t, h.name, n.Run)
}

// crash ends the host with all its Boots.
func (h *host) crash() {
	h.cut.Store(true)
	h.stop()
	h.stop = func() {}
	h.engine.Close()
}

func (h *host) reach() error {
	if h.cut.Load() {
		return sandbox.Errorf(sandbox.Unavailable, "%s does not answer", h.name)
	}
	return nil
}

// RenewLease implements node.Leases.
func (h *host) RenewLease(ctx context.Context, n sandbox.NodeRecord, life time.Duration) (sandbox.NodeRecord, error) {
	if err := h.reach(); err != nil {
		return sandbox.NodeRecord{}, err
	}
	return h.cluster.store.RenewLease(ctx, n, life)
}

// at returns a Node by its name; Unavailable if its host is cut off.
func (c *cluster) at(name string) (*node.Node, error) {
	h := c.hosts[name]
	if h == nil {
		return nil, sandbox.Errorf(sandbox.Unavailable, "no node %q", name)
	}
	return h.node.Load(), h.reach()
}

// answer calls a Node by its name.
func answer[T any](c *cluster, name string, call func(*node.Node) (T, error)) (T, error) {
	n, err := c.at(name)
	if err != nil {
		var none T
		return none, err
	}
	return call(n)
}

// do is answer for calls that return nothing.
func do(c *cluster, name string, call func(*node.Node) error) error {
	n, err := c.at(name)
	if err != nil {
		return err
	}
	return call(n)
}

// The methods below are those of sandbox.Nodes that a session manager calls.

func (c *cluster) Start(ctx context.Context, name string, req sandbox.StartRequest) (sandbox.Started, error) {
	return answer(c, name, func(n *node.Node) (sandbox.Started, error) { return n.Start(ctx, name, req) })
}

func (c *cluster) Update(ctx context.Context, name, bootID string, b sandbox.Binding) error {
	return do(c, name, func(n *node.Node) error { return n.Update(ctx, name, bootID, b) })
}

func (c *cluster) Stop(ctx context.Context, name, bootID string, grace time.Duration) error {
	return do(c, name, func(n *node.Node) error { return n.Stop(ctx, name, bootID, grace) })
}

func (c *cluster) Boots(ctx context.Context, name string) ([]sandbox.BoundBoot, error) {
	return answer(c, name, func(n *node.Node) ([]sandbox.BoundBoot, error) { return n.Boots(ctx, name) })
}

func (c *cluster) Traffic(ctx context.Context, name string) ([]sandbox.BootTraffic, error) {
	return answer(c, name, func(n *node.Node) ([]sandbox.BootTraffic, error) { return n.Traffic(ctx, name) })
}

func (c *cluster) Save(ctx context.Context, name string, r sandbox.SaveRequest) (sandbox.Saved, error) {
	return answer(c, name, func(n *node.Node) (sandbox.Saved, error) { return n.Save(ctx, name, r) })
}

func (c *cluster) SaveFiles(ctx context.Context, name string, r sandbox.FilesRequest) (sandbox.Saved, error) {
	return answer(c, name, func(n *node.Node) (sandbox.Saved, error) { return n.SaveFiles(ctx, name, r) })
}

func (c *cluster) Thaw(ctx context.Context, name string, boot sandbox.BootRef) error {
	return do(c, name, func(n *node.Node) error { return n.Thaw(ctx, name, boot) })
}

func (c *cluster) DeleteSaved(ctx context.Context, name, snapshot string) error {
	return do(c, name, func(n *node.Node) error { return n.DeleteSaved(ctx, name, snapshot) })
}

func (c *cluster) ListSaved(ctx context.Context, name string) ([]string, error) {
	return answer(c, name, func(n *node.Node) ([]string, error) { return n.ListSaved(ctx, name) })
}

func (c *cluster) ExportSaved(ctx context.Context, name, snapshot string, image bool, w io.Writer) error {
	return do(c, name, func(n *node.Node) error { return n.ExportSaved(ctx, name, snapshot, image, w) })
}

func (c *cluster) ImportSaved(ctx context.Context, name string, tenant sandbox.TenantID, snapshot, image string, r io.Reader) (sandbox.Saved, error) {
	return answer(c, name, func(n *node.Node) (sandbox.Saved, error) {
		return n.ImportSaved(ctx, name, tenant, snapshot, image, r)
	})
}

func (c *cluster) ExportBase(ctx context.Context, name, snapshot string, w io.Writer) error {
	return do(c, name, func(n *node.Node) error { return n.ExportBase(ctx, name, snapshot, w) })
}

func (c *cluster) KeepBase(ctx context.Context, name, snapshot string, r io.Reader) error {
	return do(c, name, func(n *node.Node) error { return n.KeepBase(ctx, name, snapshot, r) })
}

func (c *cluster) ExportChanges(ctx context.Context, name, snapshot, base string, w io.Writer) error {
	return do(c, name, func(n *node.Node) error { return n.ExportChanges(ctx, name, snapshot, base, w) })
}

func (c *cluster) ImportChanges(ctx context.Context, name string, tenant sandbox.TenantID, r sandbox.ChangesRequest, from io.Reader) (sandbox.Saved, error) {
	return answer(c, name, func(n *node.Node) (sandbox.Saved, error) { return n.ImportChanges(ctx, name, tenant, r, from) })
}

func (c *cluster) Usage(ctx context.Context, name string, of sandbox.BootRef) (sandbox.Usage, error) {
	return answer(c, name, func(n *node.Node) (sandbox.Usage, error) { return n.Usage(ctx, name, of) })
}

func (c *cluster) FetchSaved(ctx context.Context, name string, r sandbox.FetchRequest) (sandbox.Saved, error) {
	return answer(c, name, func(n *node.Node) (sandbox.Saved, error) { return n.FetchSaved(ctx, name, r) })
}

func (c *cluster) CreateVolume(ctx context.Context, name string, v sandbox.VolumeSpec) error {
	return do(c, name, func(n *node.Node) error { return n.CreateVolume(ctx, name, v) })
}

func (c *cluster) DeleteVolume(ctx context.Context, name, id string) error {
	return do(c, name, func(n *node.Node) error { return n.DeleteVolume(ctx, name, id) })
}

func (c *cluster) ListVolumes(ctx context.Context, name string) ([]sandbox.VolumeUse, error) {
	return answer(c, name, func(n *node.Node) ([]sandbox.VolumeUse, error) { return n.ListVolumes(ctx, name) })
}

func (c *cluster) ExportVolume(ctx context.Context, name string, of sandbox.VolumeRef, w io.Writer) error {
	return do(c, name, func(n *node.Node) error { return n.ExportVolume(ctx, name, of, w) })
}

func (c *cluster) ImportVolume(ctx context.Context, name string, v sandbox.VolumeSpec, r io.Reader) error {
	return do(c, name, func(n *node.Node) error { return n.ImportVolume(ctx, name, v, r) })
}

func (c *cluster) Stats(ctx context.Context, name string) (sandbox.NodeStats, error) {
	return answer(c, name, func(n *node.Node) (sandbox.NodeStats, error) { return n.Stats(ctx, name) })
}
