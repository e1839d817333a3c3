package node_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/fake"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
)

func (w *world) save(ref sandbox.BootRef, freeze bool) string {
	w.t.Helper()
	r := sandbox.SaveRequest{Boot: ref, Snapshot: sandbox.NewSnapshotID(), Memory: true, Freeze: freeze}
	if _, err := w.node.Save(w.t.Context(), name, r); err != nil {
		w.t.Fatalf("Save: %v", err)
	}
	return r.Snapshot
}

// after asks for another Boot of the same Sandbox, from what it was saved as.
func after(req sandbox.StartRequest, snapshot string) sandbox.StartRequest {
	req.BootID, req.From = sandbox.NewBootID(), snapshot
	req.Binding.BootNumber++
	return req
}

// fetching is an Engine that has a copy of what was saved as a name.
type fetching struct {
	*fake.Engine
	name  string
	state []byte
	held  int
}

func (f *fetching) HoldSaved(ctx context.Context, name string, _ bool) (sandbox.Hold, error) {
	if f.held++; name == f.name && f.held == 2 {
		if err := f.DeleteSaved(ctx, name); err != nil {
			return sandbox.Hold{}, err
		}
		if _, err := f.ImportSaved(ctx, name, bytes.NewReader(f.state)); err != nil {
			return sandbox.Hold{}, err
		}
	}
	return sandbox.Hold{Release: func() {}}, nil
}

// What is found damaged or gone is brought back once.
func TestStartFromWhatIsBroken(t *testing.T) {
	w := newWorld(t, node.PoolConfig{})
	f := &fetching{Engine: w.engine}
	w.cfg.Engine = f
	n, err := node.Open(t.Context(), w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.node = n
	defer w.engine.Close()
	req := request("t")
	ref := refOf(req, w.start(req))
	w.engine.Guest(ref.BootID).Remember("x", "42")
	snapshot := w.save(ref, false)
	var state bytes.Buffer
	if err := w.engine.ExportSaved(t.Context(), snapshot, false, &state); err != nil {
		t.Fatal(err)
	}
	f.name, f.state = snapshot, state.Bytes()
	for _, spoil := range []func(){
		func() { w.engine.Damage(snapshot) },
		func() {
			if err := w.engine.DeleteSaved(t.Context(), snapshot); err != nil {
				t.Fatal(err)
			}
		},
	} {
		spoil()
		f.held = 0
		req = after(req, snapshot)
		if got := w.engine.Guest(w.start(req).BootID).Recall("x"); got != "42" || f.held != 2 {
			t.Errorf("it recalls %q, held %d times", got, f.held)
		}
	}
	w.engine.Damage(snapshot)
	f.name, f.held = "", 0
	if _, err := n.Start(t.Context(), name, after(req, snapshot)); !errors.Is(err, sandbox.Conflict) || f.held != 2 {
		t.Errorf("Start = %v, held %d times", err, f.held)
	}
}

// A state that leaves the Node is packed only if it is still there a minute later.
func TestStateThatLeaves(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		req := request("t")
		r := sandbox.SaveRequest{Boot: refOf(req, w.start(req)), Memory: true, Leaves: true}
		var saved [2]string
		for i := range saved {
			saved[i] = sandbox.NewSnapshotID()
			r.Snapshot = saved[i]
			if _, err := w.node.Save(t.Context(), name, r); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.node.DeleteSaved(t.Context(), name, saved[0]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Second)
		if group := w.engine.GroupOf(saved[1]); group != "" {
			t.Errorf("it is packed for %q at once", group)
		}
		time.Sleep(time.Minute)
		if group := w.engine.GroupOf(saved[1]); group != string(req.Binding.Tenant) {
			t.Errorf("in the end it is packed for %q", group)
		}

		r.Snapshot, r.Freeze = sandbox.NewSnapshotID(), true
		if _, err := w.node.Save(t.Context(), name, r); err != nil {
			t.Fatal(err)
		}
		if err := w.node.Stop(t.Context(), name, r.Boot.BootID, 0); err != nil {
			t.Fatal(err)
		}
		w.start(after(req, r.Snapshot)) // its move has failed
		if group := w.engine.GroupOf(r.Snapshot); group != string(req.Binding.Tenant) {
			t.Errorf("once it is used here it is packed for %q", group)
		}
	})
}

func TestPauseAndResume(t *testing.T) {
	in(t, node.PoolConfig{Min: 2, Max: 2}, func(t *testing.T, w *world) {
		req := request("t")
		ref := refOf(req, w.start(req))
		w.engine.Guest(ref.BootID).Remember("x", "42")
		r := sandbox.SaveRequest{Boot: ref, Snapshot: sandbox.NewSnapshotID(), Memory: true, Freeze: true}
		saved, err := w.node.Save(t.Context(), name, r)
		if err != nil || !saved.Memory || saved.Image != req.Image {
			t.Fatalf("Save = %+v, %v", saved, err)
		}
		if again, err := w.node.Save(t.Context(), name, r); err != nil || again != saved {
			t.Errorf("Save again = %+v, %v, want %+v", again, err, saved)
		}
		if !w.engine.Guest(ref.BootID).Frozen() {
			t.Error("a paused boot runs")
		}
		if err := w.node.Stop(t.Context(), name, ref.BootID, 0); err != nil {
			t.Fatal(err)
		}
		if all, err := w.node.ListSaved(t.Context(), name); err != nil || !slices.Equal(all, []string{r.Snapshot}) {
			t.Errorf("ListSaved = %v, %v", all, err)
		}

		next := after(req, r.Snapshot)
		w.engine.Hooks.Thaw = func(_ context.Context, id string) error {
			if b := w.engine.Guest(id).Bound(); b.BootNumber != 2 || !b.Restored || !w.engine.Held(id) {
				t.Errorf("let go as %+v", b)
			}
			return nil
		}
		started := w.start(next)
		if started.Pooled || started.BootID != next.BootID || w.engine.Held(started.BootID) {
			t.Errorf("Start = %+v, held: %t", started, w.engine.Held(started.BootID))
		}
		if got := w.engine.Guest(started.BootID).Recall("x"); got != "42" {
			t.Errorf("it recalls %q", got)
		}
		if again := w.start(next); again != started {
			t.Errorf("Start again = %+v, want %+v", again, started)
		}
		for range 2 {
			if err := w.node.DeleteSaved(t.Context(), name, r.Snapshot); err != nil {
				t.Errorf("DeleteSaved: %v", err)
			}
		}
	})
}

// The files of a saved state become one of their own, and nothing is left of the
// Boot that it took.
func TestSaveFiles(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		req := request("t")
		ref := refOf(req, w.start(req))
		w.engine.Guest(ref.BootID).Remember("x", "42")
		from := w.save(ref, false)
		r := sandbox.FilesRequest{Tenant: "t", From: from, Image: req.Image, Shape: req.Shape, Snapshot: sandbox.NewSnapshotID()}
		w.engine.Hooks.Save = func(_ context.Context, id, _ string) error {
			if !w.engine.Held(id) {
				t.Error("the boot was let go")
			}
			return nil
		}
		saved, err := w.node.SaveFiles(t.Context(), name, r)
		if err != nil || saved.Memory || saved.Image != req.Image {
			t.Fatalf("SaveFiles = %+v, %v", saved, err)
		}
		if all, err := w.engine.List(t.Context()); err != nil || len(all) != 1 {
			t.Errorf("boots: %+v, %v", all, err)
		}
		next := after(req, r.Snapshot)
		if got := w.engine.Guest(w.start(next).BootID).Recall("x"); got != "" {
			t.Errorf("it recalls %q", got)
		}
		for _, tt := range []struct {
			change func(*sandbox.FilesRequest)
			code   sandbox.Code
		}{
			{func(r *sandbox.FilesRequest) { r.From = "x" }, sandbox.Invalid},
			{func(r *sandbox.FilesRequest) { r.Snapshot = "../x" }, sandbox.Invalid},
			{func(r *sandbox.FilesRequest) { r.Shape.MemoryBytes = 0 }, sandbox.Invalid},
			{func(r *sandbox.FilesRequest) { r.From = sandbox.NewSnapshotID() }, sandbox.NotFound},
			{func(r *sandbox.FilesRequest) { r.Image = "sha256:another" }, sandbox.Conflict},
		} {
			bad := r
			bad.Snapshot = sandbox.NewSnapshotID()
			tt.change(&bad)
			_, err := w.node.SaveFiles(t.Context(), name, bad)
			codetest.Want(t, "SaveFiles", err, tt.code)
		}
		if all, err := w.node.ListSaved(t.Context(), name); err != nil || len(all) != 2 {
			t.Errorf("ListSaved = %v, %v", all, err)
		}
	})
}

func TestFailedPauseRunsOn(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		req := request("t")
		ref := refOf(req, w.start(req))
		w.engine.Hooks.Save = func(context.Context, string, string) error {
			return sandbox.Errorf(sandbox.Exhausted, "the disk is full")
		}
		r := sandbox.SaveRequest{Boot: ref, Snapshot: sandbox.NewSnapshotID(), Memory: true, Freeze: true}
		_, err := w.node.Save(t.Context(), name, r)
		codetest.Want(t, "Save", err, sandbox.Exhausted)
		if w.engine.Guest(ref.BootID).Frozen() {
			t.Error("it stays frozen")
		}
		w.engine.Hooks.Save = nil
		w.save(ref, true)
		for range 2 {
			if err := w.node.Thaw(t.Context(), name, ref); err != nil {
				t.Errorf("Thaw: %v", err)
			}
		}
		if w.engine.Guest(ref.BootID).Frozen() {
			t.Error("it stays frozen after Thaw")
		}
	})
}

func TestBadNames(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		req := request("t")
		ref := refOf(req, w.start(req))
		codetest.Want(t, "Stop of a bad ID", w.node.Stop(t.Context(), name, "../x", 0), sandbox.Invalid)
		bad := request("t")
		bad.From = "../" + sandbox.NewSnapshotID()
		_, err := w.node.Start(t.Context(), name, bad)
		codetest.Want(t, "Start from a bad name", err, sandbox.Invalid)
		damaged := w.save(ref, false)
		w.engine.Damage(damaged)
		_, err = w.node.Start(t.Context(), name, after(req, damaged))
		codetest.Want(t, "Start from a damaged state", err, sandbox.Conflict)
	})
}

func TestRestoreThatCannotBeLetGo(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		req := request("t")
		snapshot := w.save(refOf(req, w.start(req)), false)
		w.engine.Hooks.Thaw = func(context.Context, string) error { return errors.New("no") }
		fork := request("t")
		fork.From = snapshot
		if _, err := w.node.Start(t.Context(), name, fork); err == nil {
			t.Error("Start succeeded")
		}
		w.engine.Hooks.Thaw = nil
		if n := w.running(); n != 1 {
			t.Errorf("%d boots run, want 1", n)
		}
	})
}

// No more restores than cores run at a time.
func TestRestoresTakeTurns(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		req := request("t")
		snapshot := w.save(refOf(req, w.start(req)), false)
		var now, most atomic.Int64
		turns := make(chan struct{})
		w.engine.Hooks.Start = func(context.Context, string) error {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			<-turns
			return nil
		}
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				fork := request("t")
				fork.From = snapshot
				if _, err := w.node.Start(t.Context(), name, fork); err != nil {
					t.Errorf("Start: %v", err)
				}
			})
		}
		for range 6 {
			synctest.Wait()
			turns <- struct{}{}
		}
		wg.Wait()
		if most.Load() != 2 {
			t.Errorf("%d restores at a time, want 2", most.Load())
		}
	})
}

// A process that ends between the start of a restored Boot and its release
// leaves nothing that could be taken for a Sandbox, or for a blank Boot.
func TestCutRestoreIsEnded(t *testing.T) {
	in(t, node.PoolConfig{Max: 4}, func(t *testing.T, w *world) {
		req := request("t")
		snapshot := w.save(refOf(req, w.start(req)), false)

		held := request("t")
		held.From = snapshot
		reached, cut := make(chan struct{}), make(chan struct{})
		w.engine.Hooks.Thaw = func(context.Context, string) error { close(reached); <-cut; return errors.New("cut") }
		done := make(chan struct{})
		go func() { defer close(done); _, _ = w.node.Start(t.Context(), name, held) }()
		<-reached
		journal := readAll(t, []string{filepath.Join(w.dir, "boots", held.BootID+".json")})
		if !contains(journal, `"held":true`) {
			t.Errorf("the journal says %s", journal)
		}
		// One that the Engine started, and that was not journaled yet, whose
		// Guest was replaced by a liar.
		liar := sandbox.NewBootID()
		spec := sandbox.BootSpec{Image: fake.Image, Shape: req.Shape, From: snapshot}
		if err := w.engine.Start(t.Context(), liar, spec); err != nil {
			t.Fatal(err)
		}
		w.engine.Guest(liar).Pretend(sandbox.Binding{})

		w.stop()
		w.engine = w.engine.Reopen()
		w.engine.Hooks.Thaw = nil
		w.run()
		synctest.Wait()
		close(cut)
		<-done
		if n := w.running(); n != 1 {
			t.Errorf("%d boots run, want 1", n)
		}
	})
}

// A Boot runs on until the turn of its pause comes, which those of another Tenant
// do not keep from it. A pause whose time is over before that changes nothing.
func TestSavesTakeTurns(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		turns := make(chan struct{})
		var now, most atomic.Int64
		w.engine.Hooks.Save = func(_ context.Context, id, _ string) error {
			if w.engine.Guest(id).Bound().Env["SLOW"] == "" {
				return nil
			}
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			<-turns
			return nil
		}
		start := func(tenant sandbox.TenantID, env map[string]string) sandbox.BootRef {
			req := request(tenant)
			req.Binding.Env = env
			return refOf(req, w.start(req))
		}
		slow := map[string]string{"SLOW": "1"}
		var wg sync.WaitGroup
		save := func(ref sandbox.BootRef) {
			wg.Go(func() {
				if _, err := w.node.Save(t.Context(), name, sandbox.SaveRequest{Boot: ref, Snapshot: sandbox.NewSnapshotID(), Memory: true}); err != nil {
					t.Errorf("Save: %v", err)
				}
			})
			synctest.Wait()
		}
		for range 5 {
			save(start("attacker", slow))
		}
		if most.Load() != 2 {
			t.Errorf("%d are saved at a time, want 2", most.Load())
		}
		quick := start("t", nil)
		w.save(quick, true)

		save(start("other", slow)) // and now all turns are taken
		waits := start("t", nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := w.node.Save(ctx, name, sandbox.SaveRequest{Boot: waits, Snapshot: sandbox.NewSnapshotID(), Memory: true, Freeze: true})
		if !errors.Is(err, sandbox.Unavailable) {
			t.Errorf("Save: %v, want to be told that its turn comes too late", err)
		}
		if w.engine.Guest(waits.BootID).Frozen() {
			t.Error("it stands still although it was not saved")
		}
		paused := make(chan struct{})
		wg.Go(func() {
			defer close(paused)
			w.save(waits, true)
		})
		synctest.Wait()
		if w.engine.Guest(waits.BootID).Frozen() {
			t.Error("it stands still before its turn has come")
		}
		turns <- struct{}{}
		<-paused // after one turn, whoever's
		for range 5 {
			turns <- struct{}{}
		}
		wg.Wait()
		if most.Load() != 3 {
			t.Errorf("%d were saved at a time, want 3", most.Load())
		}
	})
}
