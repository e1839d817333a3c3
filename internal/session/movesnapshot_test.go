package session_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

// keptSnapshot returns a Kept Snapshot on the Node "a" of a Sandbox that has ended, and a
// check that it is on a Node alone, with its memory.
func (w *world) keptSnapshot() (snap sandbox.Snapshot, isOn func(node string)) {
	w.t.Helper()
	ctx := w.t.Context()
	sb := w.create("t", sandbox.CreateRequest{})
	w.nodes.remember(sb, "one")
	snap, err := w.m.TakeSnapshot(ctx, "t", sb.ID, sandbox.SnapshotRequest{Name: "named"})
	if err == nil {
		_, err = w.m.End(ctx, "t", sb.ID, sandbox.CauseReleased)
	}
	if err != nil || snap.Node != "a" {
		w.t.Fatalf("the snapshot is %+v, %v", snap, err)
	}
	return snap, func(node string) {
		w.t.Helper()
		now, err := w.store.SnapshotByID(ctx, snap.ID)
		if err != nil || now.Node != node || now.State != sandbox.SnapshotReady || now.Name != "named" {
			w.t.Errorf("it is %+v, %v, want it on %s", now, err, node)
		}
		for _, n := range []string{"a", "b"} {
			names, err := w.nodes.ListSaved(ctx, n)
			if there := slices.Contains(names, snap.ID); err != nil || there != (n == node) {
				w.t.Errorf("its state is on %s: %t, %v", n, there, err)
			}
		}
		sb := w.create("t", sandbox.CreateRequest{Snapshot: snap.ID})
		if w.nodes.recall(sb) != "one" {
			w.t.Errorf("a sandbox from it recalls %q", w.nodes.recall(sb))
		}
		if _, err := w.m.End(ctx, "t", sb.ID, sandbox.CauseReleased); err != nil {
			w.t.Error(err)
		}
	}
}

// drains makes a Node drain, and waits until its Snapshots may have moved.
func (w *world) drains(node string) {
	w.t.Helper()
	w.setDraining(node, true)
	w.pass(20 * time.Second)
}

// A Kept Snapshot leaves a Node that drains, and comes back when the other one drains.
func TestSnapshotsLeave(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		_, isOn := w.keptSnapshot()
		isOn("a")
		w.drains("a")
		isOn("b")
		if use, err := w.store.NodeUse(t.Context(), "a"); err != nil || use != (sandbox.NodeUse{}) {
			t.Errorf("left are %+v, %v", use, err)
		}
		w.setDraining("a", false)
		w.pass(time.Minute)
		isOn("b")
		w.drains("b")
		isOn("a")
	})
}

// recordCopy records that a Snapshot has a complete copy outside of its Node.
func (w *world) recordCopy(snap sandbox.Snapshot) {
	w.t.Helper()
	ref := sandbox.CopyRef{Snapshot: snap.ID, Prefix: "00112233445566778899aabbccddeeff"}
	attempt, err := w.store.BeginCopy(w.t.Context(), snap.Node, ref)
	if err == nil {
		err = w.store.CompleteCopy(w.t.Context(), snap.Node, attempt)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// A Snapshot that has a copy outside of its Node stays: Sandboxes start elsewhere from the
// copy.
func TestCopiedSnapshotsStay(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		snap, isOn := w.keptSnapshot()
		w.recordCopy(snap)
		w.drains("a")
		w.pass(time.Minute)
		if use, err := w.store.NodeUse(t.Context(), "a"); err != nil || use != (sandbox.NodeUse{Snapshots: 1}) {
			t.Errorf("left are %+v, %v", use, err)
		}
		w.setDraining("a", false)
		isOn("a")
	})
}

// A Snapshot that moves can be used. It can be deleted, and what has arrived of it goes too.
func TestSnapshotMovesInUse(t *testing.T) {
	for name, tt := range map[string]struct {
		meanwhile func(w *world, id string) error
		gone      bool
	}{
		"a create": {func(w *world, id string) error {
			return codetest.ErrOf(w.m.Create(w.t.Context(), "t", sandbox.CreateRequest{Snapshot: id, Name: "user"}))
		}, false},
		"a create that takes long": {func(w *world, id string) error {
			go func() { // its copy takes ten seconds
				_, err := w.m.Create(w.t.Context(), "t", sandbox.CreateRequest{Snapshot: id, Name: "user"})
				if err != nil {
					w.t.Error(err)
				}
			}()
			synctest.Wait()
			return nil
		}, false},
		"a deletion": {func(w *world, id string) error {
			return codetest.ErrOf(w.m.DeleteSnapshot(w.t.Context(), "t", id))
		}, true},
		"a sweep": {func(w *world, _ string) error { return w.m.Reconcile(w.t.Context()) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			onTwo(t, func(t *testing.T, w *world) {
				snap, isOn := w.keptSnapshot()
				var during atomic.Int64
				slow := time.Duration(0)
				if strings.HasSuffix(name, "takes long") {
					slow = 10 * time.Second
				}
				w.nodes.fail(func(f *faults) {
					f.onImport = func(id string) error {
						if id != snap.ID {
							time.Sleep(slow)
							return nil
						}
						if during.Add(1) > 1 {
							return nil
						}
						return tt.meanwhile(w, id)
					}
				})
				w.drains("a")
				w.pass(2 * time.Minute)
				if n := during.Load(); n != 1 {
					t.Errorf("it was carried %d times", n)
				}
				if tt.gone {
					if n := w.savedOn("a") + w.savedOn("b"); n != 0 {
						t.Errorf("%d states are left", n)
					}
					return
				}
				isOn("b")
				if strings.HasPrefix(name, "a create") {
					if sb, err := w.m.Get(t.Context(), "t", "user"); err != nil || w.nodes.recall(sb) != "one" {
						t.Errorf("its user is %+v, %v", sb, err)
					}
				}
			})
		})
	}
}

// A move that fails leaves a Snapshot where it is, and nothing elsewhere. It is tried less
// and less often.
func TestSnapshotDoesNotMove(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		_, isOn := w.keptSnapshot()
		var tried atomic.Int64
		w.nodes.fail(func(f *faults) {
			f.onImport = func(string) error { tried.Add(1); return errors.New("cut") }
		})
		w.drains("a")
		w.pass(time.Hour)
		if n := tried.Load(); n < 5 || n > 12 {
			t.Errorf("it was tried %d times in an hour", n)
		}
		w.nodes.mend()
		w.pass(11 * time.Minute)
		isOn("b")
	})
}

// A process that dies in the middle of a move leaves a record of it, and the next one
// removes the state that no Snapshot needs.
func TestSnapshotMoveIsCutOff(t *testing.T) {
	for name, complete := range map[string]bool{"before the commit": false, "after it": true} {
		t.Run(name, func(t *testing.T) {
			onTwo(t, func(t *testing.T, w *world) {
				ctx := t.Context()
				snap, isOn := w.keptSnapshot()
				w.pass(time.Second) // sweeps after the end of its sandbox
				if err := w.store.BeginSnapshotMove(ctx, snap, "b"); err != nil {
					t.Fatal(err)
				}
				var state bytes.Buffer
				err := w.nodes.ExportSaved(ctx, "a", snap.ID, false, &state)
				if err == nil {
					_, err = w.nodes.ImportSaved(ctx, "b", "t", snap.ID, snap.Image, &state)
				}
				if err != nil {
					t.Fatal(err)
				}
				want := "a"
				if complete {
					want = "b"
					moved := snap
					moved.Node = "b"
					if err := w.store.MoveSnapshot(ctx, moved, "a"); err != nil {
						t.Fatal(err)
					}
				}
				if err := w.m.Reconcile(ctx); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				isOn(want)
			})
		})
	}
}

// A sweep that read the list of left states before a move does not delete the state that
// has moved meanwhile.
func TestSweepMeetsASnapshotMove(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		snap, isOn := w.keptSnapshot()
		w.pass(time.Second) // sweeps after the end of its sandbox
		left := sandbox.LeftState{Node: "b", Snapshot: snap.ID}
		if err := w.store.BeginSnapshotMove(ctx, snap, "b"); err != nil {
			t.Fatal(err)
		}
		moves := func() {
			w.store.onStatesLeft.Store(nil)
			if err := w.store.ForgetState(ctx, left); err != nil { // by another sweep
				t.Error(err)
			}
			w.drains("a")
		}
		w.store.onStatesLeft.Store(&moves)
		if err := w.m.Reconcile(ctx); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Minute)
		isOn("b")
	})
}
