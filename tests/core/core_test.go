package core_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
	"github.com/cloud-sandbox/cloud-sandbox/tests/core"
)

// joined is a Core with helpers for these tests.
type joined struct{ *core.Core }

func start(t testing.TB, pool node.PoolConfig) joined {
	return joined{core.New(t, core.Config{Pool: pool})}
}

func (c joined) create(t testing.TB, req sandbox.CreateRequest) sandbox.Sandbox {
	t.Helper()
	sb, err := c.Manager.Create(t.Context(), "t", req)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	return sb
}

// reach checks that a port inside a Sandbox echoes.
func (c joined) reach(t testing.TB, sb sandbox.Sandbox) {
	t.Helper()
	ref := sandbox.BootRef{BootID: sb.Boot.ID, SandboxID: sb.ID, Number: sb.Boot.Number, Tenant: sb.Tenant}
	conn, err := c.Node.Dial(t.Context(), sb.Boot.Node, ref, 8000)
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

// ended waits until a Sandbox has ended and returns its termination record.
func (c joined) ended(t testing.TB, id string) sandbox.TerminationRecord {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		sb, err := c.Manager.Get(t.Context(), "t", id)
		if err != nil {
			t.Fatal(err)
		}
		if sb.State == sandbox.Ended {
			return *sb.Ended
		}
	}
	t.Fatalf("%s does not end", id)
	return sandbox.TerminationRecord{}
}

func TestSandboxesOutliveTheServer(t *testing.T) {
	c := start(t, node.PoolConfig{Min: 2, Max: 4})
	kept := c.create(t, sandbox.CreateRequest{Name: "kept"})
	due := c.create(t, sandbox.CreateRequest{Timeout: 50 * time.Millisecond})
	lost := c.create(t, sandbox.CreateRequest{})
	c.Halt(t)
	c.Engine.Kill(lost.Boot.ID, sandbox.CauseOOM) // while the server is stopped
	time.Sleep(50 * time.Millisecond)             // the deadline passes
	c.Engine = c.Engine.Reopen()
	c.Start(t)
	if end := c.ended(t, due.ID); end.Cause != sandbox.CauseDeadline {
		t.Errorf("the deadline that passed: %+v", end)
	}
	if end := c.ended(t, lost.ID); end.Cause != sandbox.CauseEngineLost {
		t.Errorf("the boot that died: %+v", end)
	}
	again, err := c.Manager.Get(t.Context(), "t", "kept")
	if err != nil || again.State != sandbox.Running || again.Boot != kept.Boot {
		t.Errorf("what lived on: %+v, %v", again, err)
	}
	c.reach(t, again)
	c.Engine.Kill(kept.Boot.ID, sandbox.CauseGuestExit)
	if end := c.ended(t, kept.ID); end.Cause != sandbox.CauseGuestExit {
		t.Errorf("a death after the restart: %+v", end)
	}
	c.Down(t)
}

// Many rounds by concurrent clients, with crashes of Boots and restarts of the server
// between, leak nothing.
func TestRoundsLeaveNothing(t *testing.T) {
	before := goleak.IgnoreCurrent()
	c := start(t, node.PoolConfig{Min: 3, Max: 8})
	for range 3 {
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				for i := range 10 {
					sb, err := c.Manager.Create(t.Context(), "t", sandbox.CreateRequest{})
					if err != nil {
						t.Errorf("Create: %v", err)
						return
					}
					if i == 5 {
						c.Engine.Kill(sb.Boot.ID, sandbox.CauseEngineLost)
						c.ended(t, sb.ID)
						continue
					}
					if _, err := c.Manager.End(t.Context(), "t", sb.ID, sandbox.CauseReleased); err != nil {
						t.Errorf("End: %v", err)
					}
				}
			})
		}
		wg.Wait()
		c.Restart(t)
	}
	if n, err := c.Manager.Counts(t.Context(), "t"); err != nil || len(n) != 0 {
		t.Errorf("records: %v, %v", n, err)
	}
	c.Down(t)
	c.Engine.Close()
	for end := time.Now().Add(time.Minute); ; {
		err := goleak.Find(before) // it waits a little for goroutines that are about to end
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// All creates of a burst that is larger than the Pool succeed.
func TestBurst(t *testing.T) {
	c := start(t, node.PoolConfig{Min: 5, Max: 20})
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			if _, err := c.Manager.Create(t.Context(), sandbox.TenantID(fmt.Sprint("t", i%3)), sandbox.CreateRequest{}); err != nil {
				t.Errorf("Create: %v", err)
			}
		})
	}
	wg.Wait()
	c.Down(t)
}

// A create that is canceled at any moment leaves no record and no Boot.
func TestClientsThatLeave(t *testing.T) {
	c := start(t, node.PoolConfig{})
	c.Engine.Hooks.Start = func(ctx context.Context, _ string) error {
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
			sb, err := c.Manager.Create(ctx, "t", sandbox.CreateRequest{})
			if err != nil {
				// The queue refuses a client whose deadline is before its turn.
				if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, sandbox.Unavailable) {
					t.Errorf("Create = %v", err)
				}
				return
			}
			if _, err := c.Manager.End(t.Context(), "t", sb.ID, sandbox.CauseReleased); err != nil {
				t.Errorf("End: %v", err)
			}
		})
	}
	wg.Wait()
	if boots, err := c.Node.Boots(t.Context(), core.NodeName); err != nil || len(boots) != 0 {
		t.Errorf("left: %v, %v", boots, err)
	}
	if n, err := c.Manager.Counts(t.Context(), "t"); err != nil || len(n) != 0 {
		t.Errorf("records: %v, %v", n, err)
	}
	c.Down(t)
}

func BenchmarkCreateAndEnd(b *testing.B) {
	c := start(b, node.PoolConfig{Min: 20, Max: 20})
	for b.Loop() {
		sb := c.create(b, sandbox.CreateRequest{})
		if _, err := c.Manager.End(b.Context(), "t", sb.ID, sandbox.CauseReleased); err != nil {
			b.Fatal(err)
		}
	}
	c.Down(b)
}
