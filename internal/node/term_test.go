package node_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
)

const fenceAfter = 75 * time.Second

// fenced runs a test in a bubble with a Node that fences itself, and has one bound Boot.
func fenced(t *testing.T, test func(t *testing.T, w *world, ref sandbox.BootRef)) {
	t.Helper()
	fencedWith(t, func(*world, string) {}, test)
}

// fencedWith is fenced with a function that is called before the bound Boot stops. Boots of
// the Pool have run no user's code, so that they may stop at any time.
func fencedWith(t *testing.T, onStop func(w *world, id string), test func(t *testing.T, w *world, ref sandbox.BootRef)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, node.PoolConfig{Min: 1, Max: 1})
		w.cfg.FenceAfter, w.cfg.Fencer = fenceAfter, w.engine
		var bound atomic.Value // its ID
		w.engine.Hooks.Stop = func(_ context.Context, id string) error {
			if id == bound.Load() {
				onStop(w, id)
			}
			return nil
		}
		defer w.close()
		w.run()
		synctest.Wait()
		time.Sleep(time.Minute)
		req := request("t")
		ref := refOf(req, w.start(req))
		bound.Store(ref.BootID)
		test(t, w, ref)
	})
}

// isOff reports whether a Boot is cut off, and whether it is frozen.
func (w *world) isOff(ref sandbox.BootRef) (off, frozen bool) {
	w.t.Helper()
	conn, err := w.node.Dial(w.t.Context(), name, ref, 8080)
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, sandbox.Unavailable), w.engine.Guest(ref.BootID).Frozen()
}

func (w *world) wantOff(ref sandbox.BootRef, want bool) {
	w.t.Helper()
	if off, frozen := w.isOff(ref); off != want || frozen != want {
		w.t.Errorf("cut off %v, frozen %v, want %v", off, frozen, want)
	}
}

// halt ends the process. The next one finds its Boots, and has the same fence.
func (w *world) halt() {
	w.t.Helper()
	w.stop()
	w.engine = w.engine.Reopen()
	w.cfg.Fencer = w.engine
}

// pass passes a time, and lets the Node settle.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// A Node that cannot renew its Lease cuts its Boots off in time, and takes no more.
func TestFence(t *testing.T) {
	fenced(t, func(t *testing.T, w *world, ref sandbox.BootRef) {
		w.leases.set(true, 1, 0)
		pass(fenceAfter - 6*time.Second) // the last renewal was up to five seconds ago
		w.wantOff(ref, false)
		pass(7 * time.Second)
		w.wantOff(ref, true)
		if _, err := w.node.Start(t.Context(), name, request("t")); !errors.Is(err, sandbox.Unavailable) {
			t.Errorf("Start behind the fence = %v", err)
		}
		if s := w.stats(); s.Ready || len(s.NotReady) == 0 {
			t.Errorf("Stats = %+v", s)
		}
		w.leases.set(false, 2, 0) // the Node was not lost
		pass(10 * time.Second)
		w.wantOff(ref, false)
		echo(t, w, ref)
		if !w.stats().Ready {
			t.Errorf("Stats = %+v", w.stats())
		}
		if first, last := w.leases.fences[0], w.leases.fences[len(w.leases.fences)-1]; first != 0 || last != fenceAfter {
			t.Errorf("renewals promised a fence after %v at first and %v in the end", first, last)
		}
	})
}

// A Boot that cannot be frozen yet, because its memory still arrives, is cut off, and frozen
// later.
func TestFenceOfArrivingBoot(t *testing.T) {
	fenced(t, func(t *testing.T, w *world, ref sandbox.BootRef) {
		var whole atomic.Bool
		w.engine.Hooks.Freeze = func(context.Context, string) error {
			if !whole.Load() {
				return sandbox.Errorf(sandbox.Unavailable, "its memory has not arrived")
			}
			return nil
		}
		w.leases.set(true, 1, 0)
		pass(fenceAfter + 20*time.Second)
		if off, frozen := w.isOff(ref); !off || frozen {
			t.Errorf("cut off %v, frozen %v", off, frozen)
		}
		whole.Store(true)
		pass(10 * time.Second)
		w.wantOff(ref, true)
		w.leases.set(false, 2, 0)
		pass(10 * time.Second)
		w.wantOff(ref, false)
		echo(t, w, ref)
	})
}

// A Node whose Sandboxes were taken over stops its Boots before they reach anything again.
func TestFenceOfLostNode(t *testing.T) {
	for _, restart := range []bool{false, true} {
		var stops, leaks atomic.Int64
		var watch atomic.Bool
		onStop := func(w *world, id string) {
			if !watch.Load() {
				return
			}
			stops.Add(1)
			if conn, err := w.engine.Dial(t.Context(), id, 8080); err == nil {
				conn.Close()
				leaks.Add(1)
			}
		}
		fencedWith(t, onStop, func(t *testing.T, w *world, ref sandbox.BootRef) {
			w.leases.set(true, 1, 0)
			pass(fenceAfter + 7*time.Second)
			w.wantOff(ref, true)
			watch.Store(true)
			if restart {
				w.halt()
			}
			w.leases.set(false, 2, 1)
			if restart {
				w.run()
			}
			pass(10 * time.Second)
			if boots, err := w.node.Boots(t.Context(), name); err != nil || len(boots) != 0 {
				t.Errorf("restart %v: Boots = %+v, %v", restart, boots, err)
			}
			if e := len(w.ends); e != 0 {
				t.Errorf("restart %v: %d ends were reported, of boots that have no sandbox any more", restart, e)
			}
			if stops.Load() == 0 || leaks.Load() != 0 {
				t.Errorf("restart %v: %d boots were stopped, %d of them not cut off", restart, stops.Load(), leaks.Load())
			}
			again := request("t") // the new term is the Node's own
			ref = refOf(again, w.start(again))
			watch.Store(false)
			pass(time.Minute)
			w.wantOff(ref, false)
			echo(t, w, ref)
		})
	}
}

// A process that takes over from one that was fenced thaws what that froze.
func TestFenceAfterRestart(t *testing.T) {
	fenced(t, func(t *testing.T, w *world, ref sandbox.BootRef) {
		w.leases.set(true, 1, 0)
		pass(fenceAfter + 7*time.Second)
		w.wantOff(ref, true)
		w.halt()
		w.leases.set(false, 2, 0)
		w.run()
		pass(10 * time.Second)
		w.wantOff(ref, false)
		echo(t, w, ref)
	})
}

// A Boot that a pause has frozen stays frozen when the fence is lifted.
func TestFenceAndPause(t *testing.T) {
	fenced(t, func(t *testing.T, w *world, ref sandbox.BootRef) {
		w.leases.set(true, 1, 0)
		pass(fenceAfter + 7*time.Second)
		if _, err := w.node.Save(t.Context(), name, sandbox.SaveRequest{Boot: ref, Snapshot: sandbox.NewSnapshotID(), Memory: true, Freeze: true}); err != nil {
			t.Fatal(err)
		}
		w.leases.set(false, 2, 0)
		pass(10 * time.Second)
		if off, frozen := w.isOff(ref); off || !frozen {
			t.Errorf("cut off %v, frozen %v", off, frozen)
		}
		if err := w.node.Thaw(t.Context(), name, ref); err != nil {
			t.Fatal(err)
		}
		pass(10 * time.Second)
		w.wantOff(ref, false)
	})
}

// A restart without the setting opens the fence and thaws what it froze, unless the Node was
// lost.
func TestFenceIsTurnedOff(t *testing.T) {
	for _, lost := range []int64{0, 1} {
		fenced(t, func(t *testing.T, w *world, ref sandbox.BootRef) {
			w.leases.set(true, 1, 0)
			pass(fenceAfter + 7*time.Second)
			w.wantOff(ref, true)
			w.halt()
			w.cfg.FenceAfter = 0
			w.leases.set(false, 2, lost)
			w.run()
			pass(10 * time.Second)
			if lost == 0 {
				w.leases.set(true, 2, 0)
				pass(24 * time.Hour)
				w.wantOff(ref, false)
				return
			}
			if boots, err := w.node.Boots(t.Context(), name); err != nil || len(boots) != 0 {
				t.Errorf("Boots = %+v, %v", boots, err)
			}
		})
	}
}

// A Boot that a pause has frozen stays frozen when another process lifts the fence.
func TestFenceAndPauseAfterRestart(t *testing.T) {
	fenced(t, func(t *testing.T, w *world, ref sandbox.BootRef) {
		w.leases.set(true, 1, 0)
		pass(fenceAfter + 7*time.Second)
		if _, err := w.node.Save(t.Context(), name, sandbox.SaveRequest{Boot: ref, Snapshot: sandbox.NewSnapshotID(), Memory: true, Freeze: true}); err != nil {
			t.Fatal(err)
		}
		w.halt()
		w.leases.set(false, 2, 0)
		w.run()
		pass(10 * time.Second)
		if off, frozen := w.isOff(ref); off || !frozen {
			t.Errorf("cut off %v, frozen %v", off, frozen)
		}
	})
}

// An operator may declare a Node lost whose fence is still open. It closes the fence before
// it stops its Boots. Boots of the new term stay.
func TestLostBeforeTheFence(t *testing.T) {
	var stops, leaks atomic.Int64
	onStop := func(w *world, id string) {
		stops.Add(1)
		if conn, err := w.engine.Dial(t.Context(), id, 8080); err == nil {
			conn.Close()
			leaks.Add(1)
		}
	}
	fencedWith(t, onStop, func(t *testing.T, w *world, _ sandbox.BootRef) {
		w.leases.set(false, 2, 1)
		pass(20 * time.Second)
		if boots, err := w.node.Boots(t.Context(), name); err != nil || len(boots) != 0 || stops.Load() == 0 || leaks.Load() != 0 {
			t.Errorf("Boots = %+v, %v; %d stopped, %d of them not cut off", boots, err, stops.Load(), leaks.Load())
		}
		req := request("t")
		ref := refOf(req, w.start(req))
		pass(time.Hour)
		echo(t, w, ref)
	})
}

// A session manager of an earlier version does not say whether the Node was lost: a fence
// that is closed stays so, and an open one is moved on.
func TestFenceWithEarlierRecords(t *testing.T) {
	fenced(t, func(t *testing.T, w *world, ref sandbox.BootRef) {
		w.leases.set(false, 1, -1)
		pass(10 * fenceAfter)
		w.wantOff(ref, false)
		w.leases.set(true, 1, 0)
		pass(fenceAfter + 7*time.Second)
		w.leases.set(false, 2, -1)
		pass(10 * fenceAfter)
		w.wantOff(ref, true)
		w.leases.set(false, 2, 0)
		pass(10 * time.Second)
		w.wantOff(ref, false)
	})
}

// Without a fence nothing is cut off.
func TestNoFence(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		req := request("t")
		ref := refOf(req, w.start(req))
		w.leases.set(true, 1, 0)
		pass(24 * time.Hour)
		w.wantOff(ref, false)
		if slices.ContainsFunc(w.leases.fences, func(d time.Duration) bool { return d != 0 }) {
			t.Errorf("renewals promised %v", w.leases.fences)
		}
	})
}
