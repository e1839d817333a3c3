package session_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

// onTwo runs a test over the Nodes a and b, with a Manager that runs.
func onTwo(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	on(t, []string{"a", "b"}, test)
}

// on runs a test over Nodes, with a Manager that runs.
func on(t *testing.T, nodes []string, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nodes...)
		defer w.close()
		w.run()
		synctest.Wait()
		test(t, w)
		w.nodes.mend()
		w.pass(2 * time.Minute) // sweeps
		w.consistent()
	})
}

// full makes starts on Nodes fail for lack of room.
func (w *world) full(names ...string) {
	w.nodes.fail(func(f *faults) { f.onStart = nil })
	for _, name := range names {
		w.refuse(name, sandbox.Exhausted)
	}
}

// refuse makes starts on a Node fail with code, too.
func (w *world) refuse(name string, code sandbox.Code) {
	w.nodes.fail(func(f *faults) {
		others := f.onStart
		f.onStart = func(ctx context.Context, node string, req sandbox.StartRequest) error {
			switch {
			case node == name:
				return sandbox.Errorf(code, "node %s refuses", node)
			case others != nil:
				return others(ctx, node, req)
			}
			return nil
		}
	})
}

// reportFull makes a Node report that it has no room, or that it has.
func (w *world) reportFull(node string, full bool) {
	w.nodes.mu.Lock()
	defer w.nodes.mu.Unlock()
	w.nodes.reportsFull[node] = full
}

// paused returns a paused Sandbox on the Node a, which remembers its name.
func (w *world) paused(name string) sandbox.Sandbox {
	w.t.Helper()
	sb := w.create("t", sandbox.CreateRequest{Name: name, Timeout: 30 * time.Minute, OnTimeout: sandbox.OnTimeoutPause})
	w.nodes.remember(sb, name)
	sb, err := w.m.Pause(w.t.Context(), "t", sb.ID, false)
	if err != nil || sb.Boot.Node != "a" {
		w.t.Fatalf("paused as %+v, %v", sb, err)
	}
	synctest.Wait()
	return sb
}

// savedOn returns the number of states on a Node.
func (w *world) savedOn(node string) int {
	w.t.Helper()
	names, err := w.nodes.ListSaved(w.t.Context(), node)
	if err != nil {
		w.t.Fatal(err)
	}
	return len(names)
}

// A paused Sandbox resumes on another Node when its own has no room, with its memory.
func TestResumeElsewhere(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		sb := w.paused("one")
		w.full("a")
		running, err := w.m.Resume(t.Context(), "t", sb.ID)
		if err != nil || running.Boot.Node != "b" || running.Boot.Number <= sb.Boot.Number || w.nodes.recall(running) != "one" {
			t.Fatalf("resumed as %+v with %q, %v", running, w.nodes.recall(running), err)
		}
		w.pass(time.Second)
		if n := w.savedOn("a"); n != 0 {
			t.Errorf("%d states are left on the node that it has left", n)
		}
		history, err := w.m.History(t.Context(), "t", sb.ID)
		if err != nil || len(history) != 1 || history[0].Node != "b" || history[0].ID == sb.Snapshot {
			t.Errorf("its history is %+v, %v", history, err)
		}
		w.full()
		w.again(running.ID, "b")
	})
}

// A rollback whose process is gone is undone by the next one, also when the state to go back to
// has moved to another Node meanwhile.
func TestRollbackElsewhereIsCut(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		w.nodes.remember(sb, "one")
		w.snapshot(sb.ID, "first")
		w.nodes.remember(sb, "two")
		w.full("a")
		w.cut("b")
		for _, to := range []string{"first", ""} {
			if to == "" { // the state in which it is paused by now
				w.cut("a")
				to = w.record(sb.ID).Snapshot
			}
			if _, err := w.m.Rollback(t.Context(), "t", sb.ID, to); err == nil {
				t.Error("a rollback that was cut off succeeded")
			}
			if r := w.record(sb.ID); r.State != sandbox.Paused || r.Timeline != 1 || r.Back != (sandbox.Back{}) {
				t.Errorf("it became %+v", r)
			}
		}
		w.full()
		w.pass(time.Minute)
		if resumed := w.resume(sb.ID); w.nodes.recall(resumed) != "two" || resumed.Timeline != 1 {
			t.Errorf("then it is %+v and holds %q", resumed, w.nodes.recall(resumed))
		}
	})
}

// cut lets another Manager take over while a Sandbox starts on a Node, which then fails.
func (w *world) cut(name string) {
	w.nodes.fail(func(f *faults) {
		others := f.onStart
		f.onStart = func(ctx context.Context, node string, req sandbox.StartRequest) error {
			switch {
			case node == name:
				if err := w.manager(w.store, w.nodes).Reconcile(ctx); err != nil {
					w.t.Error(err)
				}
				return sandbox.Errorf(sandbox.Unavailable, "cut")
			case others != nil:
				return others(ctx, node, req)
			}
			return nil
		}
	})
}

// again pauses and resumes a Sandbox, which stays on its Node.
func (w *world) again(id, node string) {
	w.t.Helper()
	_, err := w.m.Pause(w.t.Context(), "t", id, false)
	if err == nil {
		var sb sandbox.Sandbox
		if sb, err = w.m.Resume(w.t.Context(), "t", id); sb.Boot.Node != node {
			w.t.Errorf("it resumed on %q", sb.Boot.Node)
		}
	}
	if err != nil {
		w.t.Error(err)
	}
}

// Whatever fails on the way elsewhere, the Sandbox stays paused where it is, and resumes
// later.
func TestResumeElsewhereFails(t *testing.T) {
	for name, tt := range map[string]struct {
		fail func(*world)
		want sandbox.Code
	}{
		"all refuse":              {func(w *world) { w.full("a", "b") }, sandbox.Exhausted},
		"all report no room":      {func(w *world) { w.full("a"); w.reportFull("b", true) }, sandbox.Exhausted},
		"the other is silent":     {func(w *world) { w.full("a"); w.nodes.setAway("b", true) }, sandbox.Exhausted},
		"its node is silent":      {func(w *world) { w.nodes.setAway("a", true) }, sandbox.Unavailable},
		"the import is cut":       {func(w *world) { w.full("a"); w.failImport(errors.New("cut")) }, sandbox.Exhausted},
		"the import is refused":   {func(w *world) { w.full("a"); w.failImport(sandbox.Errorf(sandbox.Denied, "a stranger")) }, sandbox.Exhausted},
		"the other one is broken": {func(w *world) { w.refuse("a", sandbox.Exhausted); w.refuse("b", sandbox.Internal) }, sandbox.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			onTwo(t, func(t *testing.T, w *world) {
				sb := w.paused("one")
				tt.fail(w)
				if _, err := w.m.Resume(t.Context(), "t", sb.ID); !errors.Is(err, tt.want) {
					t.Errorf("Resume = %v, want %v", err, tt.want)
				}
				w.asBefore(sb)
			})
		})
	}
}

// asBefore mends all, and checks that a Sandbox on the Node a is paused as before and
// resumes.
func (w *world) asBefore(sb sandbox.Sandbox) {
	w.t.Helper()
	for _, node := range []string{"a", "b"} {
		w.nodes.setAway(node, false)
	}
	w.nodes.mend()
	w.pass(2 * time.Minute)
	there := w.record(sb.ID)
	if there.State != sandbox.Paused || there.Boot.Node != "a" || there.Snapshot != sb.Snapshot || w.savedOn("b") != 0 {
		w.t.Errorf("it is %s on %s in %s, with %d states on b", there.State, there.Boot.Node, there.Snapshot, w.savedOn("b"))
	}
	running, err := w.m.Resume(w.t.Context(), "t", sb.ID)
	if err != nil || w.nodes.recall(running) != "one" {
		w.t.Errorf("later it resumes with %q, %v", w.nodes.recall(running), err)
	}
}

// A rollback that fails elsewhere keeps the state that the Sandbox was paused in, although
// nothing refers to that meanwhile.
func TestRollbackElsewhereFails(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{OnTimeout: sandbox.OnTimeoutPause})
		w.nodes.remember(sb, "before")
		snap, err := w.m.TakeSnapshot(t.Context(), "t", sb.ID, sandbox.SnapshotRequest{Name: "kept"})
		if err != nil {
			t.Fatal(err)
		}
		w.nodes.remember(sb, "one")
		if sb, err = w.m.Pause(t.Context(), "t", sb.ID, false); err != nil {
			t.Fatal(err)
		}
		w.nodes.fail(func(f *faults) {
			f.onStart = func(_ context.Context, node string, _ sandbox.StartRequest) error {
				if node == "a" {
					return sandbox.Errorf(sandbox.Exhausted, "no room")
				}
				time.Sleep(time.Minute) // sweeps run
				return sandbox.Errorf(sandbox.Internal, "broken")
			}
		})
		if _, err := w.m.Rollback(t.Context(), "t", sb.ID, snap.ID); err == nil {
			t.Error("the rollback did not fail")
		}
		w.asBefore(sb)
	})
}

func (w *world) failImport(err error) {
	w.nodes.fail(func(f *faults) { f.onImport = func(string) error { return err } })
}

// Copies of a Sandbox that start elsewhere share one copy of the state.
func TestForkElsewhere(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		sb := w.paused("one")
		w.full("a")
		var copied atomic.Int64
		w.nodes.fail(func(f *faults) {
			f.onImport = func(string) error { copied.Add(1); time.Sleep(time.Second); return nil }
		})
		forks, err := w.m.Fork(t.Context(), "t", sb.ID, sandbox.ForkRequest{Count: 6})
		if err != nil {
			t.Fatal(err)
		}
		for i, f := range forks {
			if f.Err != nil || f.Sandbox.Boot.Node != "b" || w.nodes.recall(f.Sandbox) != "one" {
				t.Errorf("fork %d is %+v, %v", i, f.Sandbox, f.Err)
			}
		}
		if n := copied.Load(); n != 1 {
			t.Errorf("the state was copied %d times", n)
		}
		w.pass(time.Minute)
		if w.savedOn("a") != 1 || w.savedOn("b") != 1 {
			t.Errorf("%d and %d states", w.savedOn("a"), w.savedOn("b"))
		}
		for _, f := range forks {
			if _, err := w.m.End(t.Context(), "t", f.Sandbox.ID, sandbox.CauseReleased); err != nil {
				t.Error(err)
			}
		}
		w.pass(time.Minute)
		if n := w.savedOn("b"); n != 0 {
			t.Errorf("%d states are left of the forks", n)
		}
	})
}

// The copy that several starts share continues when the first of them is cancelled.
func TestSharedCopySurvivesItsFirstUser(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		w.nodes.remember(sb, "one")
		if _, err := w.m.TakeSnapshot(t.Context(), "t", sb.ID, sandbox.SnapshotRequest{Name: "kept"}); err != nil {
			t.Fatal(err)
		}
		w.full("a")
		var copied atomic.Int64
		w.nodes.fail(func(f *faults) {
			f.onImport = func(string) error { copied.Add(1); time.Sleep(10 * time.Second); return nil }
		})
		first, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		go func() {
			_, err := w.m.Create(first, "t", sandbox.CreateRequest{Snapshot: "kept"})
			failed <- err
		}()
		made := make(chan sandbox.Sandbox)
		time.Sleep(time.Second)
		go func() { made <- w.create("t", sandbox.CreateRequest{Snapshot: "kept"}) }()
		time.Sleep(time.Second)
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("the first one: %v", err)
		}
		if other := <-made; other.Boot.Node != "b" || w.nodes.recall(other) != "one" || copied.Load() != 1 {
			t.Errorf("the second one runs as %+v, after %d copies", other, copied.Load())
		}
	})
}

// A kept Snapshot stays where it is when a Sandbox starts from it elsewhere.
func TestCreateFromASnapshotElsewhere(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		w.nodes.remember(sb, "one")
		snap, err := w.m.TakeSnapshot(t.Context(), "t", sb.ID, sandbox.SnapshotRequest{Name: "kept"})
		if err != nil {
			t.Fatal(err)
		}
		w.full("a")
		other := w.create("t", sandbox.CreateRequest{Snapshot: "kept"})
		if other.Boot.Node != "b" || w.nodes.recall(other) != "one" || other.Origin != snap.ID {
			t.Errorf("it runs as %+v", other)
		}
		again, err := w.m.SnapshotByID(t.Context(), "t", snap.ID)
		if err != nil || again.Node != "a" || again.Name != "kept" {
			t.Errorf("the snapshot is %+v, %v", again, err)
		}
		if _, err := w.m.DeleteSnapshot(t.Context(), "t", snap.ID); err != nil {
			t.Error(err)
		}
		w.full()
		w.again(other.ID, "b")
	})
}

// setDraining sets it, and waits until the Manager has looked.
func (w *world) setDraining(node string, draining bool) {
	w.t.Helper()
	if err := w.store.SetDraining(w.t.Context(), node, draining, false); err != nil {
		w.t.Fatal(err)
	}
	w.pass(2 * nodesEvery)
}

// A Sandbox that is to leave its Node runs until its state can be copied.
func TestDrainFreezesInTurn(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		var paused []sandbox.Sandbox
		for i := range 3 { // as many copies as are made at a time
			paused = append(paused, w.paused(fmt.Sprint(i)))
		}
		sb := w.create("t", sandbox.CreateRequest{})
		w.nodes.fail(func(f *faults) {
			f.onImport = func(string) error { time.Sleep(nodesEvery + 30*time.Second); return nil }
		})
		w.refuse("a", sandbox.Exhausted)
		resumed := make(chan error, len(paused))
		for _, p := range paused {
			go func() { resumed <- codetest.ErrOf(w.m.Resume(t.Context(), "t", p.ID)) }()
		}
		synctest.Wait()
		if err := w.store.SetDraining(t.Context(), "a", true, false); err != nil {
			t.Fatal(err)
		}
		w.pass(nodesEvery + 20*time.Second)
		if w.nodes.still(sb.Boot.ID) || w.record(sb.ID).Boot != sb.Boot {
			t.Errorf("it is frozen while others are copied: %+v", w.record(sb.ID))
		}
		for range paused {
			if err := <-resumed; err != nil {
				t.Error(err)
			}
		}
		w.pass(10 * time.Minute)
		if now := w.record(sb.ID); now.State != sandbox.Running || now.Boot.Node != "b" {
			t.Errorf("it is %s on %s", now.State, now.Boot.Node)
		}
		w.setDraining("a", false)
	})
}

// Running and paused Sandboxes leave a Node that drains, and their deadlines stay.
func TestDrain(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		var running []sandbox.Sandbox
		for i := range 6 {
			sb := w.create("t", sandbox.CreateRequest{Timeout: time.Duration(i+1) * time.Hour})
			w.nodes.remember(sb, fmt.Sprint(i))
			running = append(running, sb)
		}
		paused := w.paused("one")
		mounts := w.create("t", sandbox.CreateRequest{Volumes: []sandbox.VolumeMount{{Volume: w.volume("v").ID, Path: "/data"}}})
		w.setDraining("a", true)
		for i, sb := range running {
			if were, _ := w.store.states.Load(sb.ID); strings.Contains(fmt.Sprint(were), "paused") {
				t.Errorf("%d was recorded as%v", i, were)
			}
			now := w.record(sb.ID)
			if now.State != sandbox.Running || now.Boot.Node != "b" || w.nodes.recall(now) != fmt.Sprint(i) || !now.Deadline.Equal(sb.Deadline) {
				t.Errorf("%d is %+v with %q", i, now, w.nodes.recall(now))
			}
		}
		if now := w.record(paused.ID); now.State != sandbox.Paused || now.Boot.Node != "b" {
			t.Errorf("the paused one is %+v", now)
		}
		if now := w.record(mounts.ID); now.State != sandbox.Running || now.Boot.Node != "b" {
			t.Errorf("the one with a volume is %+v", now)
		}
		if n := w.savedOn("a"); n != 0 {
			t.Errorf("%d states are left", n)
		}
		back, err := w.m.Resume(t.Context(), "t", paused.ID)
		if err != nil || back.Boot.Node != "b" || w.nodes.recall(back) != "one" {
			t.Errorf("it resumed as %+v, %v", back, err)
		}
		use, err := w.store.NodeUse(t.Context(), "a")
		if err != nil || use != (sandbox.NodeUse{Volumes: 1}) {
			t.Errorf("left are %+v, %v", use, err)
		}
	})
}

// While no other Node takes a Sandbox, it runs on undisturbed, and is tried again.
func TestDrainWaits(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		sb, paused := w.create("t", sandbox.CreateRequest{Timeout: 5 * time.Hour}), w.paused("one")
		w.nodes.setAway("b", true)
		w.setDraining("a", true)
		for range 3 {
			w.pass(time.Minute)
			if now := w.record(sb.ID); now.State != sandbox.Running || now.Boot != sb.Boot || now.Version != sb.Version {
				t.Fatalf("it is %+v", now)
			}
		}
		running, err := w.m.Resume(t.Context(), "t", paused.ID)
		if err != nil || running.Boot.Node != "a" {
			t.Errorf("it resumed as %+v, %v", running, err)
		}
		w.nodes.setAway("b", false)
		w.pass(20 * time.Minute)
		for _, id := range []string{sb.ID, paused.ID} {
			if now := w.record(id); now.State != sandbox.Running || now.Boot.Node != "b" {
				t.Errorf("it is %+v", now)
			}
		}
	})
}

// A running Sandbox whose state cannot be copied keeps its Boot, and is frozen less and
// less often.
func TestDrainThatCannotCopy(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{Timeout: 5 * time.Hour})
		w.nodes.remember(sb, "one")
		var tried atomic.Int64
		w.nodes.fail(func(f *faults) {
			f.onImport = func(string) error { tried.Add(1); return sandbox.Errorf(sandbox.Denied, "a stranger") }
		})
		w.setDraining("a", true)
		w.pass(time.Hour)
		if now := w.record(sb.ID); now.State != sandbox.Running || now.Boot != sb.Boot || !now.Deadline.Equal(sb.Deadline) || w.nodes.still(now.Boot.ID) {
			t.Errorf("it is %+v", now)
		}
		if n := tried.Load(); n < 5 || n > 12 {
			t.Errorf("it was frozen %d times in an hour", n)
		}
		w.nodes.mend()
		w.pass(11 * time.Minute)
		if now := w.record(sb.ID); now.Boot.Node != "b" || w.nodes.recall(now) != "one" {
			t.Errorf("then it is %+v", now)
		}
	})
}

// A Sandbox that starts on no other Node starts on its own again. If that fails too, it is
// paused there.
func TestDrainThatCannotStart(t *testing.T) {
	for name, refusing := range map[string][]string{"elsewhere": {"b"}, "anywhere": {"a", "b"}} {
		t.Run(name, func(t *testing.T) {
			onTwo(t, func(t *testing.T, w *world) {
				sb := w.create("t", sandbox.CreateRequest{Timeout: 5 * time.Hour})
				w.nodes.remember(sb, "one")
				w.full(refusing...)
				w.setDraining("a", true)
				now := w.record(sb.ID)
				if name == "elsewhere" && (now.State != sandbox.Running || w.nodes.recall(now) != "one" || !now.Deadline.Equal(sb.Deadline)) ||
					name == "anywhere" && now.State != sandbox.Paused {
					t.Errorf("it is %+v", now)
				}
				w.setDraining("a", false)
				w.full()
				if name == "anywhere" {
					// The drain has moved the paused state.
					w.again(sb.ID, w.record(sb.ID).Boot.Node)
				}
				w.pass(time.Minute)
				if now = w.record(sb.ID); now.State == sandbox.Paused {
					var err error
					if now, err = w.m.Resume(t.Context(), "t", sb.ID); err != nil {
						t.Error(err)
					}
				}
				if w.nodes.recall(now) != "one" {
					t.Errorf("it remembers %q", w.nodes.recall(now))
				}
			})
		})
	}
}

// The next Manager lets a Sandbox run that the one before was moving, or starts it when it
// is used.
func TestDrainThatEndsEarly(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{Timeout: 5 * time.Hour})
		w.nodes.remember(sb, "one")
		copying := make(chan struct{}, 1)
		w.nodes.fail(func(f *faults) {
			f.onImport = func(string) error { copying <- struct{}{}; time.Sleep(time.Second); return errors.New("cut") }
		})
		if err := w.store.SetDraining(t.Context(), "a", true, false); err != nil {
			t.Fatal(err)
		}
		<-copying
		w.stop()
		if now := w.record(sb.ID); now.State != sandbox.Running || now.Boot != sb.Boot || w.nodes.still(now.Boot.ID) {
			t.Errorf("it is %+v", now)
		}
		w.nodes.mend()
		w.m = w.manager(w.store, w.nodes)
		w.run()
		w.pass(2 * nodesEvery)
		if now := w.record(sb.ID); now.State != sandbox.Running || now.Boot.Node != "b" || w.nodes.recall(now) != "one" {
			t.Errorf("then it is %+v", now)
		}
	})
}

// A Node that is away can save nothing: its Sandboxes stay as they are while it drains.
func TestDrainOfANodeThatIsAway(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		w.stop()
		w.grace = 24 * time.Hour
		w.m = w.manager(w.store, w.nodes)
		w.run()
		sb := w.create("t", sandbox.CreateRequest{Timeout: 5 * time.Hour})
		w.nodes.setAway("a", true)
		w.lease("a", -time.Second)
		w.setDraining("a", true)
		w.pass(20 * time.Minute)
		if now := w.record(sb.ID); now.State != sandbox.Running || now.Boot != sb.Boot || !now.Deadline.Equal(sb.Deadline) {
			t.Errorf("it is %+v", now)
		}
		w.nodes.setAway("a", false)
		w.lease("a", 24*time.Hour)
		w.pass(2 * nodesEvery)
		if now := w.record(sb.ID); now.State != sandbox.Running || now.Boot.Node != "b" {
			t.Errorf("then it is %+v", now)
		}
	})
}

// A Sandbox whose start elsewhere has an unknown end starts nowhere else: it is paused on
// that Node.
func TestDrainWithAnUnclearStart(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{Timeout: 5 * time.Hour})
		w.nodes.remember(sb, "one")
		w.nodes.fail(func(f *faults) {
			f.onBound = func(req sandbox.StartRequest) error {
				w.nodes.away["b"] = true // the caller holds the lock
				return sandbox.Errorf(sandbox.Unavailable, "the answer is lost")
			}
		})
		w.setDraining("a", true)
		now := w.record(sb.ID)
		if now.State != sandbox.Paused || now.Boot.Node != "b" {
			t.Fatalf("it is %+v", now)
		}
		for _, b := range w.nodes.all() {
			if b.SandboxID == sb.ID && b.Number < now.Boot.Number {
				t.Errorf("the boot %+v runs too", b)
			}
		}
		w.nodes.mend()
		w.nodes.setAway("b", false)
		running, err := w.m.Resume(t.Context(), "t", sb.ID)
		if err != nil || running.Boot.Node != "b" || w.nodes.recall(running) != "one" {
			t.Errorf("it resumes as %+v with %q, %v", running, w.nodes.recall(running), err)
		}
	})
}

// A paused Sandbox whose state is lost is tried ever more seldom.
func TestDrainOfALostState(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		sb := w.paused("one")
		if err := w.nodes.DeleteSaved(t.Context(), "a", sb.Snapshot); err != nil {
			t.Fatal(err)
		}
		before := w.store.inserts.Load()
		w.setDraining("a", true)
		w.pass(time.Hour)
		if n := w.store.inserts.Load() - before; n < 3 || n > 12 {
			t.Errorf("it was tried %d times in an hour", n)
		}
		if _, err := w.m.End(t.Context(), "t", sb.ID, sandbox.CauseReleased); err != nil {
			t.Error(err)
		}
	})
}

// vanish makes a Node silent, and lets its Lease expire, as the Manager sees.
func (w *world) vanish(node string) {
	w.t.Helper()
	w.nodes.setAway(node, true)
	w.lease(node, -time.Second)
	w.pass(nodesEvery + time.Second)
}

// falseStart lets the next start bind a Boot, whose Node a is silent from then on.
func (w *world) falseStart() {
	w.nodes.fail(func(f *faults) {
		f.onBound = func(sandbox.StartRequest) error {
			w.nodes.away["a"] = true // the caller holds the lock
			return sandbox.Errorf(sandbox.Unavailable, "the answer is lost")
		}
	})
}

// comeBack ends vanish.
func (w *world) comeBack(node string) {
	w.t.Helper()
	w.nodes.setAway(node, false)
	w.lease(node, 24*time.Hour)
	w.pass(2 * time.Minute)
}

// A paused Sandbox whose Node is away starts on another one from its replica.
func TestResumeFromReplica(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		sb := w.paused("one")
		w.nodes.copyOut()
		w.vanish("a")
		running, err := w.m.Resume(t.Context(), "t", sb.ID)
		if err != nil || running.Boot.Node != "b" || running.Boot.Number <= sb.Boot.Number || w.nodes.recall(running) != "one" {
			t.Fatalf("resumed as %+v with %q, %v", running, w.nodes.recall(running), err)
		}
		w.comeBack("a")
		if n := w.savedOn("a"); n != 0 {
			t.Errorf("%d states are left on the node that came back", n)
		}
		w.again(running.ID, "b")
	})
}

// A reboot does too, and one on a Node that has lost its disk.
func TestRebootFromReplica(t *testing.T) {
	for name, away := range map[string]bool{"the node is away": true, "it has lost its disk": false} {
		t.Run(name, func(t *testing.T) {
			onTwo(t, func(t *testing.T, w *world) {
				sb := w.paused("one")
				w.nodes.copyOut()
				want := "a"
				if away {
					want = "b"
					w.vanish("a")
				} else {
					w.nodes.mu.Lock()
					clear(w.nodes.saved["a"])
					w.nodes.mu.Unlock()
				}
				running, err := w.m.Reboot(t.Context(), "t", sb.ID)
				if err != nil || running.Boot.Node != want || running.Boot.Number <= sb.Boot.Number || w.nodes.recall(running) != "" {
					t.Fatalf("rebooted as %+v with %q, %v", running, w.nodes.recall(running), err)
				}
				if away {
					w.comeBack("a")
				}
				w.pass(2 * time.Minute)
				if a, b := w.savedOn("a"), w.savedOn("b"); a+b != 1 {
					t.Errorf("%d and %d states are on the nodes", a, b)
				}
			})
		})
	}
}

// So do a fork and a create from a Snapshot.
func TestCreateFromReplica(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		sb := w.paused("one")
		snap, err := w.m.TakeSnapshot(t.Context(), "t", w.create("t", sandbox.CreateRequest{}).ID, sandbox.SnapshotRequest{Name: "kept"})
		if err != nil {
			t.Fatal(err)
		}
		w.nodes.copyOut()
		w.vanish("a")
		made := w.create("t", sandbox.CreateRequest{Snapshot: snap.ID})
		forks, err := w.m.Fork(t.Context(), "t", sb.ID, sandbox.ForkRequest{Count: 1})
		if err != nil || made.Boot.Node != "b" || forks[0].Sandbox.Boot.Node != "b" || w.nodes.recall(forks[0].Sandbox) != "one" {
			t.Errorf("made %+v and %+v, %v", made, forks, err)
		}
		w.comeBack("a")
	})
}

// Without a replica, or another Node, it stays paused, and resumes when its Node is back.
func TestResumeFromNoReplica(t *testing.T) {
	for name, copied := range map[string]bool{"no replica": false, "no other node": true} {
		t.Run(name, func(t *testing.T) {
			onTwo(t, func(t *testing.T, w *world) {
				sb := w.paused("one")
				if copied {
					w.nodes.copyOut()
					w.nodes.setAway("b", true)
				}
				w.vanish("a")
				if _, err := w.m.Reboot(t.Context(), "t", sb.ID); !errors.Is(err, sandbox.Unavailable) || !strings.Contains(err.Error(), "no other node") {
					t.Errorf("Reboot = %v", err)
				}
				if _, err := w.m.Resume(t.Context(), "t", sb.ID); !errors.Is(err, sandbox.Unavailable) {
					t.Errorf("Resume = %v", err)
				}
				w.comeBack("a")
				w.asBefore(sb)
			})
		})
	}
}

// A Node that has lost its disk fetches the state itself.
func TestResumeWithoutDisk(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		sb, other := w.paused("one"), w.paused("two")
		w.nodes.copyOut()
		w.nodes.mu.Lock()
		clear(w.nodes.saved["a"])
		delete(w.nodes.replicas, other.Snapshot)
		w.nodes.mu.Unlock()
		running, err := w.m.Resume(t.Context(), "t", sb.ID)
		if err != nil || running.Boot.Node != "a" || w.nodes.recall(running) != "one" {
			t.Errorf("resumed as %+v with %q, %v", running, w.nodes.recall(running), err)
		}
		if _, err := w.m.Resume(t.Context(), "t", other.ID); !errors.Is(err, sandbox.Conflict) {
			t.Errorf("Resume without a replica = %v", err)
		}
		if _, err := w.m.End(t.Context(), "t", other.ID, sandbox.CauseReleased); err != nil {
			t.Error(err)
		}
	})
}

// A Sandbox that may run on its Node, which is away, starts elsewhere only once an operator
// has declared the Node lost, or the Node is back.
func TestMayRun(t *testing.T) {
	for name, lost := range map[string]bool{"the node is back": false, "the node is lost": true} {
		t.Run(name, func(t *testing.T) {
			onTwo(t, func(t *testing.T, w *world) {
				sb := w.create("t", sandbox.CreateRequest{Timeout: 10 * time.Hour, OnTimeout: sandbox.OnTimeoutPause, CheckpointEvery: 5 * time.Hour})
				w.nodes.remember(sb, "saved")
				w.snapshot(sb.ID, "")
				w.nodes.copyOut()
				w.nodes.remember(sb, "lost")
				w.vanish("a")
				if lost { // long after the Node went away, and at once
					w.pass(20 * time.Second)
					if err := w.store.SetLost(t.Context(), "a", 0, true); err != nil {
						t.Fatal(err)
					}
					w.pass(nodesEvery + 2*time.Second)
				} else {
					w.pass(2 * time.Minute) // Config.NodeGrace, and reconciling
				}
				if r := w.record(sb.ID); r.State != sandbox.Paused || !r.MayRun {
					t.Fatalf("it is %+v", r)
				}
				want := "b"
				if !lost {
					want = "a"
					if _, err := w.m.Resume(t.Context(), "t", sb.ID); !errors.Is(err, sandbox.Unavailable) || !strings.Contains(err.Error(), "may still run") {
						t.Errorf("Resume = %v", err)
					}
					w.comeBack("a")
					w.pass(5 * time.Minute) // no start can be under way
					if r := w.record(sb.ID); r.State != sandbox.Paused || r.MayRun {
						t.Errorf("it is %+v", r)
					}
				}
				running, err := w.m.Resume(t.Context(), "t", sb.ID)
				if err != nil || running.Boot.Node != want || w.nodes.recall(running) != "saved" || running.MayRun || running.Timeline != 2 {
					t.Errorf("resumed as %+v with %q, %v", running, w.nodes.recall(running), err)
				}
				if lost {
					w.comeBack("a") // its Boot is stopped
				}
			})
		})
	}
}

// A Snapshot on a lost Node is deleted at once, so that it counts for its Tenant no more. The
// Node deletes the state when it returns. While the Node is only away, the Snapshot waits.
func TestDeleteOnLostNode(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{Timeout: 10 * time.Hour})
		waiting, gone := w.snapshot(sb.ID, "one"), w.snapshot(sb.ID, "two")
		w.nodes.setAway("a", true) // it has its Lease yet
		state := func(id string) sandbox.SnapshotState {
			snap, err := w.store.SnapshotByID(t.Context(), id)
			if err != nil && !errors.Is(err, sandbox.NotFound) {
				t.Fatal(err)
			}
			return snap.State
		}
		if _, err := w.m.DeleteSnapshot(t.Context(), "t", waiting.ID); err != nil {
			t.Fatal(err)
		}
		if got := state(waiting.ID); got != sandbox.SnapshotDeleting {
			t.Errorf("while its node is away it is %q", got)
		}
		w.vanish("a")
		if err := w.store.SetLost(t.Context(), "a", 0, true); err != nil {
			t.Fatal(err)
		}
		w.pass(nodesEvery + 2*time.Second)
		if _, err := w.m.DeleteSnapshot(t.Context(), "t", gone.ID); err != nil {
			t.Fatal(err)
		}
		if got := state(gone.ID); got != "" {
			t.Errorf("on a lost node it is %q", got)
		}
		w.pass(2 * time.Minute) // a sweep
		if got := state(waiting.ID); got != "" {
			t.Errorf("after a sweep the other one is %q", got)
		}
		w.comeBack("a")
		w.pass(2 * time.Minute)
		if left, err := w.nodes.ListSaved(t.Context(), "a"); err != nil || len(left) > 0 {
			t.Errorf("the node that is back has %v, %v", left, err)
		}
		if left, err := w.store.StatesLeft(t.Context(), 10); err != nil || len(left) > 0 {
			t.Errorf("to be deleted are %v, %v", left, err)
		}
	})
}

// A resume that the Node, which is off, never got leaves no Boot: the Sandbox starts
// elsewhere.
func TestResumeOfNodeThatIsOff(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		sb := w.paused("one")
		w.nodes.copyOut()
		w.nodes.setAway("a", true)
		w.nodes.fail(func(f *faults) {
			f.onStart = func(_ context.Context, node string, _ sandbox.StartRequest) error {
				if node == "a" {
					return sandbox.NotBegun(sandbox.Errorf(sandbox.Unavailable, "the connection was refused"))
				}
				return nil
			}
		})
		if _, err := w.m.Resume(t.Context(), "t", sb.ID); !errors.Is(err, sandbox.Unavailable) {
			t.Errorf("Resume = %v", err)
		}
		if r := w.record(sb.ID); r.State != sandbox.Paused || r.MayRun {
			t.Errorf("it is %+v", r)
		}
		w.vanish("a")
		if running, err := w.m.Resume(t.Context(), "t", sb.ID); err != nil || running.Boot.Node != "b" || w.nodes.recall(running) != "one" {
			t.Errorf("resumed as %+v, %v", running, err)
		}
		w.comeBack("a")
	})
}

// A failed resume that leaves a Boot behind is remembered, although nothing was lost.
func TestMayRunAfterResume(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		sb := w.paused("one")
		w.nodes.copyOut()
		w.falseStart()
		if _, err := w.m.Resume(t.Context(), "t", sb.ID); !errors.Is(err, sandbox.Unavailable) {
			t.Errorf("Resume = %v", err)
		}
		if r := w.record(sb.ID); r.State != sandbox.Paused || r.Boot.Node != "a" || !r.MayRun {
			t.Errorf("it is %+v", r)
		}
		w.nodes.mend()
		w.vanish("a")
		if _, err := w.m.Resume(t.Context(), "t", sb.ID); !errors.Is(err, sandbox.Unavailable) {
			t.Errorf("Resume = %v", err)
		}
		w.comeBack("a")
		w.asBefore(sb)
	})
}

// A Sandbox that may run on its Node stays there when the Node drains, which other calls do
// not reach.
func TestMayRunAndDrain(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		sb := w.paused("one")
		w.nodes.copyOut()
		w.falseStart()
		if _, err := w.m.Resume(t.Context(), "t", sb.ID); !errors.Is(err, sandbox.Unavailable) {
			t.Errorf("Resume = %v", err)
		}
		w.nodes.mend()
		w.setDraining("a", true)
		if r := w.record(sb.ID); r.Boot.Node != "a" || !r.MayRun {
			t.Errorf("it is %+v", r)
		}
		w.setDraining("a", false)
		w.nodes.setAway("a", false)
		w.pass(10 * time.Minute)
		w.asBefore(sb)
	})
}

// A rollback to a Snapshot on another Node, which goes silent, loses nothing: the Sandbox
// stays paused in its last state, and resumes once the Node is back.
func TestRollbackOnSilentNode(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{Timeout: 10 * time.Hour, OnTimeout: sandbox.OnTimeoutPause})
		w.nodes.remember(sb, "before")
		snap, err := w.m.TakeSnapshot(t.Context(), "t", sb.ID, sandbox.SnapshotRequest{Name: "kept"})
		if err != nil {
			t.Fatal(err)
		}
		w.recordCopy(snap) // so that it stays on its node
		w.setDraining("a", true)
		w.setDraining("a", false)
		moved := w.record(sb.ID)
		w.nodes.remember(moved, "latest")
		w.falseStart()
		if _, err := w.m.Rollback(t.Context(), "t", sb.ID, snap.ID); !errors.Is(err, sandbox.Unavailable) || moved.Boot.Node != "b" {
			t.Fatalf("Rollback = %v of a sandbox on %s", err, moved.Boot.Node)
		}
		w.nodes.mend()
		w.pass(time.Minute)
		if r := w.record(sb.ID); r.State != sandbox.Paused || r.Snapshot == snap.ID || r.Boot.Node != "a" || !r.MayRun {
			t.Errorf("it is %+v", r)
		}
		if _, err := w.m.Resume(t.Context(), "t", sb.ID); !errors.Is(err, sandbox.Unavailable) {
			t.Errorf("Resume = %v", err)
		}
		w.nodes.setAway("a", false)
		w.cut("a")
		if _, err := w.m.Rollback(t.Context(), "t", sb.ID, snap.ID); err == nil {
			t.Error("a rollback that was cut off succeeded")
		}
		w.nodes.mend()
		if r := w.record(sb.ID); r.State != sandbox.Paused || r.Snapshot == snap.ID || r.Boot.Node != "a" || !r.MayRun {
			t.Errorf("after another rollback, which was cut off, it is %+v", r)
		}
		w.pass(10 * time.Minute)
		running, err := w.m.Resume(t.Context(), "t", sb.ID)
		if err != nil || running.Boot.Node != "b" || w.nodes.recall(running) != "latest" {
			t.Errorf("resumed as %+v with %q, %v", running, w.nodes.recall(running), err)
		}
	})
}
