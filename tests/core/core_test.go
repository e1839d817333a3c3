package core_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/fake"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
	"github.com/cloud-sandbox/cloud-sandbox/internal/scheduler"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve/run"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlite"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume/disk"
)

// baseImage has the Template "base" ready.
type baseImage struct{}

func (baseImage) Resolve(context.Context, sandbox.TenantID, string) (string, error) {
	return fake.Image, nil
}

// core is session manager, scheduler and Node over SQLite, joined as the server
// joins them, with an Engine in memory.
type core struct {
	dir    string
	pool   node.PoolConfig
	engine *fake.Engine

	store   *sqlite.Store
	node    *node.Node
	manager *session.Manager
	stop    context.CancelFunc
	stopped chan error
}

// start is the start of a server over what an earlier one left.
func (c *core) start(t testing.TB) {
	t.Helper()
	var err error
	if c.store, err = sqlite.Open(t.Context(), filepath.Join(c.dir, "x.db")); err != nil {
		t.Fatal(err)
	}
	c.pool.Template = "base"
	volumes, err := disk.Open(filepath.Join(c.dir, "node", "volumes"))
	if err != nil {
		t.Fatal(err)
	}
	c.node, err = node.Open(t.Context(), node.Config{
		Name: "local", Dir: filepath.Join(c.dir, "node"), Volumes: volumes, Engine: c.engine, Store: c.store, Images: baseImage{},
		Guest: func(dial node.Dial) node.GuestControl { return fake.NewControl(dial) },
		Pools: []node.PoolConfig{c.pool},
		OnEnd: func(ctx context.Context, e sandbox.BootEnd) error { return c.manager.BootEnded(ctx, e) },
		Host: func() (node.HostState, error) {
			return node.HostState{DiskFree: 1, DiskTotal: 1, MemoryFree: 1 << 40, MemoryTotal: 1 << 40}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	placement := scheduler.New(c.store, nil)
	c.manager = session.New(c.store, c.node, placement, baseImage{}, session.Config{Engine: "fake"})
	var parts run.Parts
	parts.Start("node", c.node.Run)
	parts.Start("scheduler", placement.Run)
	parts.Start("session-manager", c.manager.Run)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	c.stop, c.stopped = cancel, make(chan error, 1)
	stopped := c.stopped
	go func() { stopped <- parts.Wait(ctx) }()
}

// halt stops the server; Sandboxes live on.
func (c *core) halt(t testing.TB) {
	t.Helper()
	c.stop()
	if err := <-c.stopped; err != nil {
		t.Errorf("stop: %v", err)
	}
	if err := c.store.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// restart is the start of another server process.
func (c *core) restart(t testing.TB) {
	t.Helper()
	c.halt(t)
	c.engine = c.engine.Reopen()
	c.start(t)
}

// down ends everything, as `cloud-sandbox down` does.
func (c *core) down(t testing.TB) {
	t.Helper()
	c.halt(t)
	c.engine = c.engine.Reopen()
	c.start(t)
	if _, err := c.manager.EndAll(t.Context(), sandbox.CauseOperator); err != nil {
		t.Errorf("EndAll: %v", err)
	}
	c.stop()
	if err := <-c.stopped; err != nil {
		t.Errorf("stop: %v", err)
	}
	if _, err := c.node.Down(t.Context()); err != nil {
		t.Errorf("Down: %v", err)
	}
	if err := c.store.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if all, err := c.engine.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%d boots are left, %v", len(all), err)
	}
	if files, err := filepath.Glob(filepath.Join(c.dir, "node", "boots", "*")); err != nil || len(files) != 0 {
		t.Errorf("the journal keeps %v, %v", files, err)
	}
}

func (c *core) create(t testing.TB, req sandbox.CreateRequest) sandbox.Sandbox {
	t.Helper()
	sb, err := c.manager.Create(t.Context(), "t", req)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	return sb
}

// reach talks to a port inside a Sandbox.
func (c *core) reach(t testing.TB, sb sandbox.Sandbox) {
	t.Helper()
	ref := sandbox.BootRef{BootID: sb.Boot.ID, SandboxID: sb.ID, Number: sb.Boot.Number, Tenant: sb.Tenant}
	conn, err := c.node.Dial(t.Context(), sb.Boot.Node, ref, 8000)
	if err != nil {
		t.Errorf("Dial: %v", err)
		return
	}
	defer conn.Close()
	buf := make([]byte, 2)
	if _, err := io.WriteString(conn, "hi"); err != nil {
		t.Error(err)
	} else if _, err := io.ReadFull(conn, buf); err != nil || string(buf) != "hi" {
		t.Errorf("echo = %q, %v", buf, err)
	}
}

// ended waits until a Sandbox has ended and returns its Certificate.
func (c *core) ended(t testing.TB, id string) sandbox.Certificate {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		sb, err := c.manager.Get(t.Context(), "t", id)
		if err != nil {
			t.Fatal(err)
		}
		if sb.State == sandbox.Ended {
			return *sb.Ended
		}
	}
	t.Fatalf("%s does not end", id)
	return sandbox.Certificate{}
}

func newCore(t testing.TB, pool node.PoolConfig) *core {
	c := &core{dir: t.TempDir(), pool: pool, engine: fake.New()}
	c.start(t)
	t.Cleanup(func() { c.engine.Close() })
	return c
}

func TestSandboxesOutliveTheServer(t *testing.T) {
	c := newCore(t, node.PoolConfig{Min: 2, Max: 4})
	kept := c.create(t, sandbox.CreateRequest{Name: "kept"})
	due := c.create(t, sandbox.CreateRequest{Timeout: 50 * time.Millisecond})
	lost := c.create(t, sandbox.CreateRequest{})
	c.halt(t)
	c.engine.Kill(lost.Boot.ID, sandbox.CauseOOM) // while nobody looks
	time.Sleep(50 * time.Millisecond)             // the deadline passes
	c.engine = c.engine.Reopen()
	c.start(t)
	if end := c.ended(t, due.ID); end.Cause != sandbox.CauseDeadline {
		t.Errorf("the deadline that passed: %+v", end)
	}
	if end := c.ended(t, lost.ID); end.Cause != sandbox.CauseEngineLost {
		t.Errorf("the boot that died: %+v", end)
	}
	again, err := c.manager.Get(t.Context(), "t", "kept")
	if err != nil || again.State != sandbox.Running || again.Boot != kept.Boot {
		t.Errorf("what lived on: %+v, %v", again, err)
	}
	c.reach(t, again)
	c.engine.Kill(kept.Boot.ID, sandbox.CauseGuestExit)
	if end := c.ended(t, kept.ID); end.Cause != sandbox.CauseGuestExit {
		t.Errorf("a death after the restart: %+v", end)
	}
	c.down(t)
}

// After many rounds by many clients, with crashes of Boots and restarts of the
// server between, nothing is left over.
func TestRoundsLeaveNothing(t *testing.T) {
	before := goleak.IgnoreCurrent()
	c := newCore(t, node.PoolConfig{Min: 3, Max: 8})
	for range 3 {
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				for i := range 10 {
					sb, err := c.manager.Create(t.Context(), "t", sandbox.CreateRequest{})
					if err != nil {
						t.Errorf("Create: %v", err)
						return
					}
					if i == 5 {
						c.engine.Kill(sb.Boot.ID, sandbox.CauseEngineLost)
						c.ended(t, sb.ID)
						continue
					}
					if _, err := c.manager.End(t.Context(), "t", sb.ID, sandbox.CauseReleased); err != nil {
						t.Errorf("End: %v", err)
					}
				}
			})
		}
		wg.Wait()
		c.restart(t)
	}
	if n, err := c.manager.Counts(t.Context(), "t"); err != nil || len(n) != 0 {
		t.Errorf("records: %v, %v", n, err)
	}
	c.down(t)
	c.engine.Close()
	for end := time.Now().Add(time.Minute); ; {
		err := goleak.Find(before) // which waits a little for those that are about to end
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// A burst larger than the Pool is served whole, from the Pool first.
func TestBurst(t *testing.T) {
	c := newCore(t, node.PoolConfig{Min: 5, Max: 20})
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			if _, err := c.manager.Create(t.Context(), sandbox.TenantID(fmt.Sprint("t", i%3)), sandbox.CreateRequest{}); err != nil {
				t.Errorf("Create: %v", err)
			}
		})
	}
	wg.Wait()
	c.down(t)
}

// A client that leaves at any moment of a create leaves nothing running.
func TestClientsThatLeave(t *testing.T) {
	c := newCore(t, node.PoolConfig{})
	c.engine.Hooks.Start = func(ctx context.Context, _ string) error {
		select {
		case <-time.After(5 * time.Millisecond):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
			defer cancel()
			sb, err := c.manager.Create(ctx, "t", sandbox.CreateRequest{})
			if err != nil {
				// The queue refuses who would leave before their turn.
				if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, sandbox.Unavailable) {
					t.Errorf("Create = %v", err)
				}
				return
			}
			if _, err := c.manager.End(t.Context(), "t", sb.ID, sandbox.CauseReleased); err != nil {
				t.Errorf("End: %v", err)
			}
		})
	}
	wg.Wait()
	if boots, err := c.node.Boots(t.Context(), "local"); err != nil || len(boots) != 0 {
		t.Errorf("left: %v, %v", boots, err)
	}
	if n, err := c.manager.Counts(t.Context(), "t"); err != nil || len(n) != 0 {
		t.Errorf("records: %v, %v", n, err)
	}
	c.down(t)
}

func BenchmarkCreateAndEnd(b *testing.B) {
	c := newCore(b, node.PoolConfig{Min: 20, Max: 20})
	for b.Loop() {
		sb := c.create(b, sandbox.CreateRequest{})
		if _, err := c.manager.End(b.Context(), "t", sb.ID, sandbox.CauseReleased); err != nil {
			b.Fatal(err)
		}
	}
	c.down(b)
}
