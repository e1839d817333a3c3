package session_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
)

// dies loses the Boot of a Sandbox and reports the loss as its Node does.
func (w *world) dies(sb sandbox.Sandbox, cause sandbox.Cause) sandbox.Sandbox {
	w.t.Helper()
	end := w.nodes.lose(sb.Boot.Node, sb.Boot.ID, cause)
	for range 2 { // a report may come twice
		if err := w.m.BootEnded(w.t.Context(), end); err != nil {
			w.t.Fatalf("BootEnded: %v", err)
		}
	}
	return w.record(sb.ID)
}

// A running Sandbox is saved at its checkpoint interval, and only its newest checkpoint is
// kept.
func TestCheckpoints(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		defer w.stop()
		sb := w.create("t", sandbox.CreateRequest{Timeout: time.Hour, CheckpointEvery: time.Minute})
		never := w.create("t", sandbox.CreateRequest{Timeout: time.Hour})
		w.pass(59 * time.Second)
		if r := w.record(sb.ID); r.Snapshot != "" {
			t.Errorf("it was saved before its time: %+v", r)
		}
		last := ""
		for i := range 3 {
			w.nodes.remember(sb, fmt.Sprint("value ", i))
			w.pass(2 * time.Second)
			r := w.record(sb.ID)
			if r.Snapshot == "" || r.Snapshot == last || r.State != sandbox.Running || r.Boot != sb.Boot {
				t.Fatalf("after minute %d it is %+v", i+1, r)
			}
			if kept := w.nodes.kept(); len(kept) != 1 || !kept[r.Snapshot] {
				t.Errorf("saved: %v, want %s", kept, r.Snapshot)
			}
			snap, err := w.m.SnapshotByID(t.Context(), "t", r.Snapshot)
			if err != nil || snap.Kept || !snap.Memory || !snap.CreatedAt.Equal(r.SnapshotAt) {
				t.Errorf("saved as %+v, %v", snap, err)
			}
			last = r.Snapshot
			w.pass(58 * time.Second)
		}
		if r := w.record(never.ID); r.Version != never.Version {
			t.Errorf("one that did not ask became %+v", r)
		}
		// Disabled means no checkpoints. Once enabled again, the interval counts from the
		// last one.
		w.update(sb.ID, sandbox.Change{CheckpointEvery: ptr(time.Duration(0))})
		off := w.record(sb.ID).Snapshot
		w.pass(5 * time.Minute)
		if r := w.record(sb.ID); r.Snapshot != off {
			t.Errorf("it is saved although it does not ask any more: %+v", r)
		}
		w.update(sb.ID, sandbox.Change{CheckpointEvery: ptr(time.Minute)})
		w.pass(6 * time.Second) // a Sandbox that is just being changed is retried after 5 s
		if r := w.record(sb.ID); r.Snapshot == off {
			t.Error("asked for again it is not saved")
		}
	})
}

// blindStore cannot read records while blind.
type blindStore struct {
	sandbox.Store
	blind atomic.Bool
}

func (b *blindStore) SandboxByID(ctx context.Context, id string) (sandbox.Sandbox, error) {
	if b.blind.Load() {
		return sandbox.Sandbox{}, sandbox.Errorf(sandbox.Unavailable, "the database is busy")
	}
	return b.Store.SandboxByID(ctx, id)
}

// A checkpoint that cannot begin is logged and retried.
func TestCheckpointThatCannotBegin(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		var told bytes.Buffer
		store := &blindStore{Store: w.store}
		w.m = session.New(store, w.nodes, placed{[]string{local}, w.nodes}, images{}, session.Config{Engine: "fake", Log: slog.New(slog.NewTextHandler(&told, nil))})
		w.run()
		defer w.stop()
		sb := w.create("t", sandbox.CreateRequest{Timeout: time.Hour, CheckpointEvery: time.Minute})
		store.blind.Store(true)
		w.pass(61 * time.Second)
		store.blind.Store(false)
		if !strings.Contains(told.String(), "a checkpoint was postponed") || !strings.Contains(told.String(), sb.ID) {
			t.Errorf("told %q", told.String())
		}
		w.pass(10 * time.Second)
		if r := w.record(sb.ID); r.Snapshot == "" {
			t.Errorf("it was not saved: %+v", r)
		}
	})
}

// A Sandbox with a checkpoint is paused when its Boot is lost, except after a guest exit
// or a full disk. Any other Sandbox ends.
func TestLostBoots(t *testing.T) {
	for _, tt := range []struct {
		name    string
		cause   sandbox.Cause
		every   time.Duration
		saved   bool
		deleted bool
		paused  bool
	}{
		{"its sentry", sandbox.CauseEngineLost, time.Minute, true, false, true},
		{"its node", sandbox.CauseNodeLost, time.Minute, true, false, true},
		{"its memory", sandbox.CauseOOM, time.Minute, true, false, true},
		{"its guest", sandbox.CauseGuestExit, time.Minute, true, false, false},
		{"its disk", sandbox.CauseDiskFull, time.Minute, true, false, false},
		{"nobody asked", sandbox.CauseEngineLost, 0, true, false, false},
		{"before the first", sandbox.CauseEngineLost, time.Minute, false, false, false},
		{"somebody deleted it", sandbox.CauseEngineLost, time.Minute, true, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				sb := w.create("t", sandbox.CreateRequest{Timeout: time.Hour, OnTimeout: sandbox.OnTimeoutPause, CheckpointEvery: tt.every})
				w.nodes.remember(sb, "saved")
				var snap sandbox.Snapshot
				if tt.saved {
					snap = w.snapshot(sb.ID, "")
				}
				if tt.deleted {
					if _, err := w.m.DeleteSnapshot(t.Context(), "t", snap.ID); err != nil {
						t.Fatal(err)
					}
				}
				w.nodes.remember(sb, "lost")
				w.pass(90 * time.Second)
				r := w.dies(sb, tt.cause)
				if !tt.paused {
					if r.State != sandbox.Ended || r.Ended.Cause != tt.cause || r.Restored.From != "" {
						t.Errorf("it is %+v", r)
					}
					return
				}
				if r.State != sandbox.Paused || r.Boot.ID != "" || r.Timeline != 2 || r.Snapshot != snap.ID ||
					r.Restored != (sandbox.Restored{From: snap.ID, Lost: 90 * time.Second, Times: 1}) ||
					!r.Deadline.Equal(time.Now().Add(sandbox.PausedLife)) || r.StayPaused {
					t.Fatalf("it is %+v", r)
				}
				w.reconcile()
				w.consistent()
				w.pass(time.Hour)
				resumed := w.resume(sb.ID)
				if got := w.nodes.recall(resumed); got != "saved" || resumed.Boot.Number != 2 || w.told(resumed).Timeline != 2 || resumed.Restored != r.Restored {
					t.Errorf("it goes on with %q as %+v", got, resumed)
				}
				w.reconcile()
			})
		})
	}
}

// Reconcile finds unreported losses: a missing Boot, a Boot that died during a pause, and
// a lost Node.
func TestReconcileGoesBack(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{CheckpointEvery: time.Minute})
		snap := w.snapshot(sb.ID, "")
		w.nodes.lose(local, sb.Boot.ID, "")
		w.reconcile()
		if r := w.record(sb.ID); r.State != sandbox.Paused || r.Restored.From != snap.ID {
			t.Fatalf("it is %+v", r)
		}
		sb = w.resume(sb.ID)
		w.nodes.fail(func(f *faults) {
			f.onSave = func(context.Context, sandbox.SaveRequest) error {
				w.nodes.lose(local, sb.Boot.ID, sandbox.CauseOOM)
				return nil
			}
		})
		_, err := w.m.Pause(t.Context(), "t", sb.ID, false)
		codetest.Want(t, "Pause of one that dies", err, sandbox.Unavailable)
		w.nodes.mend()
		w.reconcile()
		if r := w.record(sb.ID); r.State != sandbox.Paused || r.Snapshot != snap.ID || r.Timeline != 3 {
			t.Errorf("it is %+v", r)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		defer w.close()
		sb := w.create("t", sandbox.CreateRequest{Timeout: 24 * time.Hour, CheckpointEvery: time.Hour})
		w.nodes.remember(sb, "x")
		w.snapshot(sb.ID, "")
		w.nodes.setAway("a", true)
		w.lease("a", 15*time.Second)
		w.run()
		w.pass(5 * time.Minute)
		if r := w.record(sb.ID); r.State != sandbox.Paused || r.Restored.From == "" {
			t.Errorf("after the lease: %+v", r)
		}
		_, err := w.m.Resume(t.Context(), "t", sb.ID)
		codetest.Want(t, "Resume while its node is away", err, sandbox.Unavailable)
		// The Node comes back with the Boot, which no record owns any more.
		w.nodes.setAway("a", false)
		w.pass(5 * time.Minute)
		w.consistent()
		if got := w.nodes.recall(w.resume(sb.ID)); got != "x" {
			t.Errorf("it goes on with %q", got)
		}
		w.stop()
		w.consistent()
	})
}

// Lost time counts from the last resume, so time spent paused is not lost.
func TestLostTimeCountsRunning(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{CheckpointEvery: time.Hour})
		paused := w.pause(sb.ID)
		w.pass(48 * time.Hour)
		sb = w.resume(sb.ID)
		w.pass(7 * time.Second)
		if r := w.dies(sb, sandbox.CauseEngineLost); r.Restored.From != paused.Snapshot || r.Restored.Lost != 7*time.Second {
			t.Errorf("it is %+v", r)
		}
	})
}

// After MaxRestores restores from one Snapshot, use no longer wakes a Sandbox. A new
// Snapshot resets the count. The deadline still ends the Sandbox.
func TestCrashLoopsEnd(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		defer w.stop()
		sb := w.create("t", sandbox.CreateRequest{Timeout: time.Hour, CheckpointEvery: time.Hour})
		w.snapshot(sb.ID, "")
		for _, times := range []int64{1, 2, 1, 2, 3} {
			r := w.dies(w.record(sb.ID), sandbox.CauseEngineLost)
			if r.Restored.Times != times || r.StayPaused != (times == sandbox.MaxRestores) {
				t.Errorf("lost time %d: %+v", times, r)
			}
			w.pass(10 * time.Second)
			if now := w.record(sb.ID); now.Version != r.Version {
				t.Errorf("by itself it became %+v", now)
			}
			w.resume(sb.ID)
			if times == 2 && r.Timeline == 3 {
				w.snapshot(sb.ID, "")
			}
		}
		w.dies(w.record(sb.ID), sandbox.CauseEngineLost)
		deadline := w.record(sb.ID).Deadline
		w.pass(time.Until(deadline) + time.Second)
		if r := w.record(sb.ID); r.State != sandbox.Ended || r.Ended.Cause != sandbox.CauseDeadline {
			t.Errorf("at its deadline it is %+v", r)
		}
	})
}

// A failed checkpoint leaves the previous one, is counted, and is retried when the next is
// due. At most two checkpoints of a Tenant run at a time.
func TestCheckpointsThatFail(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		var mu sync.Mutex
		var counted []string
		w.m = session.New(w.store, w.nodes, placed{[]string{local}, w.nodes}, images{}, session.Config{
			OnTransition: func(what string, err error, _ time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				counted = append(counted, fmt.Sprintf("%s %s", what, sandbox.CodeOf(err)))
			},
		})
		w.run()
		defer w.stop()
		sb := w.create("t", sandbox.CreateRequest{Timeout: 2 * time.Hour, CheckpointEvery: time.Minute})
		w.pass(61 * time.Second)
		first := w.record(sb.ID).Snapshot
		w.nodes.fail(func(f *faults) {
			f.onSave = func(context.Context, sandbox.SaveRequest) error { return sandbox.Errorf(sandbox.Exhausted, "full") }
		})
		w.pass(2 * time.Minute)
		if r := w.record(sb.ID); r.Snapshot != first || !w.nodes.kept()[first] {
			t.Errorf("after two that failed: %+v", r)
		}
		w.nodes.mend()
		w.pass(time.Minute)
		if r := w.record(sb.ID); r.Snapshot == first {
			t.Error("with room again it is not saved")
		}
		mu.Lock()
		if want := []string{"checkpoint ", "checkpoint exhausted", "checkpoint exhausted", "checkpoint "}; !slices.Equal(counted, want) {
			t.Errorf("counted %q, want %q", counted, want)
		}
		mu.Unlock()

		var at, most atomic.Int64
		w.nodes.fail(func(f *faults) {
			f.onSave = func(ctx context.Context, _ sandbox.SaveRequest) error {
				defer at.Add(-1)
				if n := at.Add(1); n > most.Load() {
					most.Store(n)
				}
				return errors.Join(sleepIn(ctx, 3*time.Second))
			}
		})
		for range 6 {
			w.create("t", sandbox.CreateRequest{Timeout: time.Hour, CheckpointEvery: time.Minute})
		}
		w.pass(75 * time.Second)
		if n := most.Load(); n != 2 {
			t.Errorf("%d were saved at a time", n)
		}
		records, err := w.store.SandboxesNotEnded(t.Context())
		for _, r := range records {
			if r.Snapshot == "" {
				t.Errorf("%s was not saved, %v", r.ID, err)
			}
		}
	})
}

func sleepIn(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A fork inherits the checkpoint interval. An interval out of range is refused.
func TestCheckpointsAskedFor(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{CheckpointEvery: sandbox.MinCheckpointEvery})
		forks, err := w.m.Fork(t.Context(), "t", sb.ID, sandbox.ForkRequest{Count: 1})
		if err != nil || forks[0].Err != nil || forks[0].Sandbox.CheckpointEvery != sandbox.MinCheckpointEvery {
			t.Fatalf("forked %+v, %v", forks, err)
		}
		// The Snapshot that a fork started from serves as its checkpoint.
		fork := forks[0].Sandbox
		w.pass(time.Second)
		if r := w.dies(fork, sandbox.CauseEngineLost); r.State != sandbox.Paused || r.Restored.Lost != time.Second {
			t.Errorf("a fork that is lost is %+v", r)
		}
		for _, every := range []time.Duration{-1, 1, sandbox.MinCheckpointEvery - 1, sandbox.MaxCheckpointEvery + 1} {
			_, err := w.m.Create(t.Context(), "t", sandbox.CreateRequest{CheckpointEvery: every})
			codetest.Want(t, "Create", err, sandbox.Invalid)
			_, err = w.m.Update(t.Context(), "t", sb.ID, sandbox.Change{CheckpointEvery: ptr(every)})
			codetest.Want(t, "Update", err, sandbox.Invalid)
		}
		w.reconcile()
	})
}

// Slow checkpoints of one Tenant do not delay those of another.
func TestCheckpointsOfOthers(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		defer w.stop()
		w.nodes.fail(func(f *faults) {
			f.onSave = func(ctx context.Context, r sandbox.SaveRequest) error {
				if r.Boot.Tenant == "t" {
					return sleepIn(ctx, 4*time.Minute)
				}
				return nil
			}
		})
		for range 5 {
			w.create("t", sandbox.CreateRequest{Timeout: 2 * time.Hour, CheckpointEvery: time.Minute})
		}
		sb := w.create("other", sandbox.CreateRequest{Timeout: 2 * time.Hour, CheckpointEvery: time.Minute})
		w.pass(62 * time.Second)
		if r := w.record(sb.ID); r.Snapshot == "" {
			t.Error("a minute after its creation it was not saved")
		}
		w.nodes.mend()
		w.pass(5 * time.Minute)
		if _, err := w.m.End(t.Context(), "other", sb.ID, sandbox.CauseReleased); err != nil {
			t.Error(err)
		}
		w.pass(time.Minute)
	})
}
