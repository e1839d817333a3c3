package node_test

import (
	"context"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
)

func (w *world) status(bootID string) sandbox.BootStatus {
	w.t.Helper()
	all, err := w.engine.List(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, s := range all {
		if s.ID == bootID {
			return s
		}
	}
	w.t.Fatalf("no boot %s runs", bootID)
	return sandbox.BootStatus{}
}

func (w *world) revision(bootID string) int64 {
	w.t.Helper()
	all, err := w.node.Boots(w.t.Context(), name)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, b := range all {
		if b.BootID == bootID {
			return b.Revision
		}
	}
	w.t.Fatalf("boot %s is bound to nobody", bootID)
	return 0
}

// changed is what a Boot of req may be told later.
func changed(req sandbox.StartRequest) sandbox.Binding {
	b := req.Binding
	b.Revision++
	b.Network, b.Env = sandbox.NetworkNone, map[string]string{"KEY": "new"}
	b.Limits = sandbox.Limits{CPUs: 0.5, MemoryBytes: 256 << 20, Pids: 64}
	return b
}

// A restarted Node, whose journal has no values, says so by an old revision.
func TestSecretsAreToldAgain(t *testing.T) {
	in(t, node.PoolConfig{Min: 1, Max: 1}, func(t *testing.T, w *world) {
		req := request("t")
		req.Binding.Revision = 5
		req.Binding.Secrets = sandbox.SecretBinding{
			Authority: "a", Key: "k", Headers: []sandbox.SecretHeader{{Host: "a.example", Port: 443, Header: "X-A", Value: "hidden-value"}},
		}
		id := w.start(req).BootID
		if got := w.engine.Secrets(id); !reflect.DeepEqual(got, req.Binding.Secrets) || w.revision(id) != 5 {
			t.Errorf("the engine knows %#v, revision %d", got, w.revision(id))
		}
		w.restart()
		if w.revision(id) != 4 {
			t.Errorf("after a restart the revision is %d", w.revision(id))
		}
		if err := w.node.Update(t.Context(), name, id, req.Binding); err != nil || w.revision(id) != 5 {
			t.Errorf("told again: %v, revision %d", err, w.revision(id))
		}
		none := req.Binding
		none.Revision, none.Secrets = 6, sandbox.SecretBinding{}
		if err := w.node.Update(t.Context(), name, id, none); err != nil || len(w.engine.Secrets(id).Headers) > 0 {
			t.Errorf("taken away: %v, the engine knows %#v", err, w.engine.Secrets(id))
		}
		w.restart()
		if w.revision(id) != 6 {
			t.Errorf("without secrets, after a restart, the revision is %d", w.revision(id))
		}
	})
}

func TestUpdate(t *testing.T) {
	in(t, node.PoolConfig{Min: 1, Max: 1}, func(t *testing.T, w *world) {
		req := request("t")
		id := w.start(req).BootID
		b := changed(req)
		for range 2 { // it is repeatable
			if err := w.node.Update(t.Context(), name, id, b); err != nil {
				t.Fatalf("Update: %v", err)
			}
		}
		if got := w.engine.Guest(id).Bound(); !reflect.DeepEqual(got, b) {
			t.Errorf("the guest is bound to %+v", got)
		}
		if s := w.status(id); s.Network != b.Network || s.Limits != b.Limits {
			t.Errorf("the boot is %+v", s)
		}
		if r := w.revision(id); r != b.Revision {
			t.Errorf("revision %d", r)
		}
		w.restart()
		if s := w.status(id); s.Network != b.Network || s.Limits != b.Limits || w.revision(id) != b.Revision {
			t.Errorf("after a restart: %+v, revision %d", s, w.revision(id))
		}
		codetest.Want(t, "what is older", w.node.Update(t.Context(), name, id, req.Binding), sandbox.Conflict)
	})
}

func TestUpdateRefuses(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		req := request("t")
		id := w.start(req).BootID
		b := changed(req)
		large := b
		large.Limits.MemoryBytes = 1 << 40
		codetest.Want(t, "too much", w.node.Update(t.Context(), name, id, large), sandbox.Invalid)
		if s := w.status(id); s.Network != sandbox.NetworkPublic || s.Limits != req.Binding.Limits || w.revision(id) != 0 {
			t.Errorf("a refused change: %+v, revision %d", s, w.revision(id))
		}
		release := w.engine.Guest(id).Hang()
		began := time.Now()
		if err := w.node.Update(t.Context(), name, id, b); err == nil {
			t.Error("a hung guest took a change")
		}
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("a hung guest held up a change for %v", took)
		}
		release()
		if w.revision(id) != 0 {
			t.Error("a change that was not taken is said to be in force")
		}
		if err := w.node.Update(t.Context(), name, id, b); err != nil {
			t.Errorf("again: %v", err)
		}
	})
}

// A Boot that ends while it is told something leaves no journal.
func TestUpdateAtEnd(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		req := request("t")
		id := w.start(req).BootID
		w.engine.Hooks.SetNetwork = func(context.Context, string, sandbox.NetworkPolicy) error {
			return w.node.Stop(context.WithoutCancel(t.Context()), name, id, 0)
		}
		if err := w.node.Update(t.Context(), name, id, changed(req)); err == nil {
			t.Error("a boot that ended took a change")
		}
		synctest.Wait()
		if files := w.journal(); len(files) != 0 {
			t.Errorf("the journal keeps %v", files)
		}
	})
}

// A Pool serves what its Shape covers, with the limits that were asked for; the
// Pool with the least memory to spare goes first.
func TestPoolServesLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, node.PoolConfig{Min: 1, Max: 1})
		large := sandbox.DefaultShape()
		large.MemoryBytes *= 4
		w.cfg.Pools = append(w.cfg.Pools, node.PoolConfig{Template: "base", Shape: large, Min: 1, Max: 1})
		defer w.close()
		w.run()
		synctest.Wait()
		for _, tt := range []struct {
			memory, holds int64
			cpus          float64
			disk          int64
			pooled        bool
		}{
			{256 << 20, 512 << 20, 0.5, 4 << 30, true},
			{600 << 20, 2 << 30, 2, 4 << 30, true},
			{4 << 30, 4 << 30, 1, 4 << 30, false},
			{256 << 20, 256 << 20, 1, 5 << 30, false},
			{256 << 20, 256 << 20, 3, 4 << 30, false},
		} {
			req := request("t")
			req.Shape = sandbox.Shape{CPUs: tt.cpus, MemoryBytes: tt.memory, DiskBytes: tt.disk, Pids: 64}
			req.Binding.Limits = req.Shape.Limits()
			started := w.start(req)
			s := w.status(started.BootID)
			if started.Pooled != tt.pooled || s.Shape.MemoryBytes != tt.holds || s.Limits != req.Binding.Limits {
				t.Errorf("%d MiB, %g cpus: pooled %v, %+v", tt.memory>>20, tt.cpus, started.Pooled, s)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
		}
	})
}
