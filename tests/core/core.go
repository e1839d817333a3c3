// Package core runs the session-manager, the scheduler and the Node over SQLite as the
// server does, with an Engine in memory or a real one. It is for tests of these roles
// together, and of code that calls them.
package core

import (
	"context"
	"path/filepath"
	"testing"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/fake"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
	"github.com/cloud-sandbox/cloud-sandbox/internal/scheduler"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve/run"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlitetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlstore"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume/disk"
)

// NodeName is the name of the only Node.
const NodeName = "n1"

// Config of a Core. The zero value works.
type Config struct {
	Pool    node.PoolConfig // of the Template "base"
	Session session.Config
	// Unattended limits the session manager to answering calls: no reconciling and no
	// deadlines, which would change records that a test writes.
	Unattended bool
	// Images resolves Templates; nil: the only Template is "base".
	Images sandbox.Images
	// Real replaces the Engine in memory. Session.Engine is its name.
	Real *Real
}

// Real is an Engine that is closed with the test, the image that its Boots start from,
// and a constructor of clients of their Guests.
type Real struct {
	Engine sandbox.Engine
	Image  string
	Guest  func(node.Dial) node.GuestControl
}

// Core is the running roles. Restart replaces the values of its fields.
type Core struct {
	Dir     string
	Engine  *fake.Engine // nil: Config.Real
	Store   *sqlstore.Store
	Node    *node.Node
	Manager *session.Manager

	cfg     Config
	stop    context.CancelFunc // nil: stopped
	stopped chan error
}

// New starts a Core that ends with the test.
func New(t testing.TB, cfg Config) *Core {
	t.Helper()
	c := prepare(t, cfg)
	c.Start(t)
	return c
}

// NewNode starts the Node alone, so that Boots without a Sandbox are not stopped.
func NewNode(t testing.TB, cfg Config) *Core {
	t.Helper()
	c := prepare(t, cfg)
	c.openStore(t)
	c.openNode(t)
	var parts run.Parts
	parts.Start("node", c.Node.Run)
	c.run(t, &parts)
	return c
}

// prepare makes a Core without starting any of it.
func prepare(t testing.TB, cfg Config) *Core {
	t.Helper()
	c := &Core{Dir: t.TempDir()}
	image := fake.Image
	if cfg.Real == nil {
		c.Engine, cfg.Session.Engine = fake.New(), "fake"
	} else {
		image = cfg.Real.Image
	}
	if cfg.Images == nil {
		cfg.Images = baseImage(image)
	}
	cfg.Pool.Template = "base"
	c.cfg = cfg
	sqlitetest.Make(t, c.database())
	t.Cleanup(func() {
		if c.stop != nil {
			c.Halt(t)
		}
		if c.Engine != nil {
			c.Engine.Close()
		}
	})
	return c
}

// baseImage is Images with only the Template "base", which is ready.
type baseImage string

func (b baseImage) Resolve(_ context.Context, _ sandbox.TenantID, template string) (string, error) {
	if template != "base" {
		return "", sandbox.Errorf(sandbox.NotFound, "there is no template %q", template)
	}
	return string(b), nil
}

func (c *Core) database() string { return filepath.Join(c.Dir, "x.db") }

// Start starts a server over the data of an earlier one.
func (c *Core) Start(t testing.TB) {
	t.Helper()
	c.openStore(t)
	c.openNode(t)
	placement := scheduler.New(c.Store, nil, nil)
	c.Manager = session.New(c.Store, c.Node, placement, c.cfg.Images, c.cfg.Session)
	var parts run.Parts
	parts.Start("node", c.Node.Run)
	parts.Start("scheduler", placement.Run)
	if !c.cfg.Unattended {
		parts.Start("session-manager", c.Manager.Run)
	}
	c.run(t, &parts)
}

// run runs parts until Halt.
func (c *Core) run(t testing.TB, parts *run.Parts) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	c.stop, c.stopped = cancel, make(chan error, 1)
	stopped := c.stopped
	go func() { stopped <- parts.Wait(ctx) }()
}

func (c *Core) openStore(t testing.TB) {
	t.Helper()
	var err error
	if c.Store, err = sqlstore.OpenSQLite(context.WithoutCancel(t.Context()), c.database()); err != nil {
		t.Fatal(err)
	}
}

func (c *Core) openNode(t testing.TB) {
	t.Helper()
	volumes, err := disk.Open(filepath.Join(c.Dir, "node", "volumes"))
	if err != nil {
		t.Fatal(err)
	}
	var engine sandbox.Engine = c.Engine
	control := func(dial node.Dial) node.GuestControl { return fake.NewControl(dial) }
	if r := c.cfg.Real; r != nil {
		engine, control = r.Engine, r.Guest
	}
	c.Node, err = node.Open(t.Context(), node.Config{
		Name: NodeName, Dir: filepath.Join(c.Dir, "node"), Volumes: volumes, Engine: engine, Leases: c.Store, Images: c.cfg.Images,
		Guest: control,
		Pools: []node.PoolConfig{c.cfg.Pool},
		OnEnd: func(ctx context.Context, e sandbox.BootEnd) error { return c.Manager.BootEnded(ctx, e) },
		Host: func() (sandbox.HostState, error) {
			return sandbox.HostState{DiskFree: 1, DiskTotal: 1, MemoryFree: 1 << 40, MemoryTotal: 1 << 40}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Halt stops the server; Sandboxes keep running.
func (c *Core) Halt(t testing.TB) {
	t.Helper()
	c.wait(t)
	if err := c.Store.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func (c *Core) wait(t testing.TB) {
	t.Helper()
	c.stop()
	c.stop = nil
	if err := <-c.stopped; err != nil {
		t.Errorf("stop: %v", err)
	}
}

// Restart replaces this server process with another.
func (c *Core) Restart(t testing.TB) {
	t.Helper()
	c.Halt(t)
	c.Engine = c.Engine.Reopen()
	c.Start(t)
}

// Down ends everything, as `cloud-sandbox down` does, and fails the test for
// leftovers.
func (c *Core) Down(t testing.TB) {
	t.Helper()
	c.Restart(t)
	ctx := context.WithoutCancel(t.Context())
	if _, err := c.Manager.EndAll(ctx, "", sandbox.CauseOperator); err != nil {
		t.Errorf("EndAll: %v", err)
	}
	c.wait(t)
	if _, err := c.Node.Down(ctx); err != nil {
		t.Errorf("Down: %v", err)
	}
	if err := c.Store.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if all, err := c.Engine.List(ctx); err != nil || len(all) != 0 {
		t.Errorf("%d boots are left, %v", len(all), err)
	}
	if files, err := filepath.Glob(filepath.Join(c.Dir, "node", "boots", "*")); err != nil || len(files) != 0 {
		t.Errorf("the journal keeps %v, %v", files, err)
	}
}

// Remember puts a value into the memory of a running Sandbox.
func (c *Core) Remember(sb sandbox.Sandbox, value string) {
	c.Engine.Guest(sb.Boot.ID).Remember("value", value)
}

// Recall returns the value that the memory of a Sandbox holds.
func (c *Core) Recall(sb sandbox.Sandbox) string {
	return c.Engine.Guest(sb.Boot.ID).Recall("value")
}
