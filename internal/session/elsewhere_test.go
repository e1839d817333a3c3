package session_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// onTwo runs a test over the Nodes a and b, with a Manager that runs.
func onTwo(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
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
	w.nodes.fail(func(f *faults) {
		f.onStart = func(_ context.Context, node string, _ sandbox.StartRequest) error {
			for _, name := range names {
				if node == name {
					return sandbox.Errorf(sandbox.Exhausted, "node %s has no room", node)
				}
			}
			return nil
		}
	})
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

// Whatever fails on the way elsewhere, the Sandbox stays paused and resumes later.
func TestResumeElsewhereFails(t *testing.T) {
	for name, tt := range map[string]struct {
		fail func(*world)
		on   string // the Node on which it stays
	}{
		"all are full":        {func(w *world) { w.full("a", "b") }, "b"},
		"no other":            {func(w *world) { w.full("a"); w.nodes.setAway("b", true) }, "a"},
		"its node is silent":  {func(w *world) { w.nodes.setAway("a", true) }, "a"},
		"the import is cut":   {func(w *world) { w.full("a"); w.failImport(errors.New("cut")) }, "a"},
		"the export is wrong": {func(w *world) { w.full("a"); w.failImport(sandbox.Errorf(sandbox.Invalid, "wrong")) }, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			onTwo(t, func(t *testing.T, w *world) {
				sb := w.paused("one")
				tt.fail(w)
				_, err := w.m.Resume(t.Context(), "t", sb.ID)
				want := sandbox.Exhausted
				if name == "its node is silent" {
					want = sandbox.Unavailable
				}
				if !errors.Is(err, want) {
					t.Errorf("Resume = %v, want %v", err, want)
				}
				for _, node := range []string{"a", "b"} {
					w.nodes.setAway(node, false)
				}
				w.nodes.mend()
				w.pass(2 * time.Minute)
				there := w.record(sb.ID)
				if there.State != sandbox.Paused || there.Boot.Node != tt.on || w.savedOn("a")+w.savedOn("b") != 1 {
					t.Errorf("it is %s on %s, with %d and %d states", there.State, there.Boot.Node, w.savedOn("a"), w.savedOn("b"))
				}
				running, err := w.m.Resume(t.Context(), "t", sb.ID)
				if err != nil || w.nodes.recall(running) != "one" {
					t.Errorf("later it resumes with %q, %v", w.nodes.recall(running), err)
				}
			})
		})
	}
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
	if err := w.store.SetDraining(w.t.Context(), node, draining); err != nil {
		w.t.Fatal(err)
	}
	w.pass(2 * drainsEvery)
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
		tied := w.create("t", sandbox.CreateRequest{Volumes: []sandbox.VolumeMount{{Volume: w.volume("v").ID, Path: "/data"}}})
		w.setDraining("a", true)
		for i, sb := range running {
			now := w.record(sb.ID)
			if now.State != sandbox.Running || now.Boot.Node != "b" || w.nodes.recall(now) != fmt.Sprint(i) || !now.Deadline.Equal(sb.Deadline) {
				t.Errorf("%d is %+v with %q", i, now, w.nodes.recall(now))
			}
		}
		if now := w.record(paused.ID); now.State != sandbox.Paused || now.Boot.Node != "b" {
			t.Errorf("the paused one is %+v", now)
		}
		if now := w.record(tied.ID); now.State != sandbox.Running || now.Boot != tied.Boot {
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
		if err != nil || use != (sandbox.NodeUse{Running: 1, Volumes: 1}) {
			t.Errorf("left are %+v, %v", use, err)
		}
		w.setDraining("a", false)
		if _, err := w.m.Pause(t.Context(), "t", tied.ID, false); err != nil {
			t.Error(err)
		}
		if _, err := w.m.Resume(t.Context(), "t", tied.ID); err != nil {
			t.Error(err)
		}
	})
}

// While no other Node takes a Sandbox, it runs on, and is tried again.
func TestDrainWaits(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		sb, paused := w.create("t", sandbox.CreateRequest{Timeout: 5 * time.Hour}), w.paused("one")
		w.nodes.setAway("b", true)
		w.setDraining("a", true)
		for range 3 {
			w.pass(time.Minute)
			if now := w.record(sb.ID); now.State != sandbox.Running || now.Boot.Node != "a" {
				t.Fatalf("it is %+v", now)
			}
		}
		running, err := w.m.Resume(t.Context(), "t", paused.ID)
		if err != nil || running.Boot.Node != "a" {
			t.Errorf("it resumed as %+v, %v", running, err)
		}
		w.nodes.setAway("b", false)
		w.pass(3 * time.Minute)
		for _, id := range []string{sb.ID, paused.ID} {
			if now := w.record(id); now.State != sandbox.Running || now.Boot.Node != "b" {
				t.Errorf("it is %+v", now)
			}
		}
	})
}
