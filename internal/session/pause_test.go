package session_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

func (w *world) pause(key string) sandbox.Sandbox {
	w.t.Helper()
	sb, err := w.m.Pause(w.t.Context(), "t", key, false)
	if err != nil {
		w.t.Fatalf("Pause: %v", err)
	}
	synctest.Wait() // until its Boot is released
	return sb
}

func (w *world) resume(key string) sandbox.Sandbox {
	w.t.Helper()
	sb, err := w.m.Resume(w.t.Context(), "t", key)
	if err != nil {
		w.t.Fatalf("Resume: %v", err)
	}
	return sb
}

func (w *world) snapshot(key, name string) sandbox.Snapshot {
	w.t.Helper()
	snap, err := w.m.TakeSnapshot(w.t.Context(), "t", key, sandbox.SnapshotRequest{Name: name})
	if err != nil {
		w.t.Fatalf("TakeSnapshot: %v", err)
	}
	return snap
}

func (w *world) reconcile() {
	w.t.Helper()
	if err := w.m.Reconcile(w.t.Context()); err != nil {
		w.t.Errorf("Reconcile: %v", err)
	}
}

func TestPauseAndResume(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{Name: "web", Timeout: time.Hour, Env: map[string]string{"A": "1"}})
		w.nodes.remember(sb, "x")
		w.pass(time.Minute)
		paused := w.pause("web")
		if paused.State != sandbox.Paused || paused.Boot.ID != "" || paused.Boot.Number != 1 || paused.Snapshot == "" ||
			!paused.Deadline.Equal(time.Now().Add(sandbox.PausedLife)) {
			t.Errorf("paused as %+v", paused)
		}
		if n := len(w.nodes.all()); n != 0 {
			t.Errorf("%d boots run of what is paused", n)
		}
		if again := w.pause(sb.ID); !reflect.DeepEqual(again, paused) {
			t.Errorf("paused again it is %+v", again)
		}
		w.reconcile()
		w.consistent()
		w.pass(24 * time.Hour)
		resumed := w.resume("web")
		if resumed.State != sandbox.Running || resumed.Boot.Number != 2 || resumed.Timeline != 1 || resumed.ID != sb.ID ||
			!resumed.StartedAt.Equal(sb.StartedAt) || !resumed.Deadline.Equal(time.Now().Add(time.Hour)) {
			t.Errorf("resumed as %+v", resumed)
		}
		if got := w.nodes.recall(resumed); got != "x" {
			t.Errorf("its memory holds %q", got)
		}
		told := w.told(resumed)
		if told.SandboxID != sb.ID || told.BootNumber != 2 || told.Env["A"] != "1" || told.AccessToken != "token of "+sb.ID {
			t.Errorf("bound to %+v", told)
		}
		if again := w.resume(sb.ID); !reflect.DeepEqual(again, resumed) {
			t.Errorf("resumed again it is %+v", again)
		}
		// The next pause replaces the previous saved state.
		second := w.pause("web")
		w.reconcile()
		if kept := w.nodes.kept(); len(kept) != 1 || !kept[second.Snapshot] {
			t.Errorf("saved: %v, want %s", kept, second.Snapshot)
		}
	})
}

// A failed pause leaves the Sandbox running and no saved state.
func TestPauseThatFails(t *testing.T) {
	full := sandbox.Errorf(sandbox.Exhausted, "no room")
	for _, tt := range []struct {
		name  string
		spoil func(f *faults)
		want  sandbox.Code
	}{
		{"no room", func(f *faults) {
			f.onSave = func(context.Context, sandbox.SaveRequest) error { return full }
		}, sandbox.Exhausted},
		{"the answer is lost", func(f *faults) { f.onSaved = func(sandbox.SaveRequest) error { return errors.New("broken") } }, sandbox.Internal},
		{"an engine that cannot", func(f *faults) {
			no := sandbox.Errorf(sandbox.Unsupported, "it cannot")
			f.onSave = func(context.Context, sandbox.SaveRequest) error { return no }
			f.onThaw = func(context.Context, sandbox.BootRef) error { return no }
			f.onDelete = func(context.Context, string) error { return no }
		}, sandbox.Unsupported},
		{"it takes too long", func(f *faults) {
			f.onSave = func(ctx context.Context, _ sandbox.SaveRequest) error { <-ctx.Done(); return ctx.Err() }
		}, sandbox.Timeout},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				sb := w.create("t", sandbox.CreateRequest{Timeout: time.Hour})
				tt.spoil(&w.nodes.faults)
				_, err := w.m.Pause(t.Context(), "t", sb.ID, false)
				if sandbox.CodeOf(err) != tt.want {
					t.Errorf("Pause = %v, want %s", err, tt.want)
				}
				if r := w.record(sb.ID); r.State != sandbox.Running || r.Boot != sb.Boot || !r.Deadline.Equal(sb.Deadline) || r.Snapshot != "" {
					t.Errorf("it became %+v", r)
				}
				w.reconcile()
				w.consistent()
				w.nodes.mend()
				w.pause(sb.ID)
			})
		})
	}
}

// A reboot keeps the saved files and drops the saved memory. A failed reboot loses
// nothing.
func TestReboot(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		w.nodes.remember(sb, "x")
		paused := w.pause(sb.ID)
		w.nodes.fail(func(f *faults) {
			f.onStart = func(context.Context, string, sandbox.StartRequest) error {
				return sandbox.Errorf(sandbox.Exhausted, "full")
			}
		})
		_, err := w.m.Reboot(t.Context(), "t", sb.ID)
		codetest.Want(t, "Reboot", err, sandbox.Exhausted)
		if r := w.record(sb.ID); r.State != sandbox.Paused || r.Snapshot != paused.Snapshot {
			t.Errorf("it became %+v", r)
		}
		w.nodes.mend()
		rebooted, err := w.m.Reboot(t.Context(), "t", sb.ID)
		if err != nil || rebooted.State != sandbox.Running || rebooted.Timeline != sb.Timeline || rebooted.Boot.Number != 3 {
			t.Fatalf("Reboot = %+v, %v", rebooted, err)
		}
		if got := w.nodes.recall(rebooted); got != "" {
			t.Errorf("its memory holds %q", got)
		}
		snap, err := w.m.SnapshotByID(t.Context(), "t", rebooted.Snapshot)
		if err != nil || snap.Memory || snap.Parent != paused.Snapshot || snap.State != sandbox.SnapshotReady {
			t.Errorf("it started from %+v", snap)
		}
		if again, err := w.m.Reboot(t.Context(), "t", sb.ID); err != nil || again.Boot != rebooted.Boot {
			t.Errorf("Reboot of what runs = %+v, %v", again, err)
		}
		_, err = w.m.Reboot(t.Context(), "other", sb.ID)
		codetest.Want(t, "Reboot of another's", err, sandbox.NotFound)
		w.reconcile()
		w.consistent()
	})
}

// A failed resume leaves the Sandbox paused, and a retry can succeed.
func TestResumeThatFails(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want sandbox.Code
	}{
		{"no room", sandbox.Errorf(sandbox.Exhausted, "full"), sandbox.Exhausted},
		{"damaged", sandbox.Errorf(sandbox.Conflict, "the saved state is damaged"), sandbox.Conflict},
		{"gone", sandbox.Errorf(sandbox.NotFound, "no such image"), sandbox.Conflict},
		{"something of ours died", errors.New("EOF"), sandbox.Unavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				sb := w.create("t", sandbox.CreateRequest{})
				w.nodes.remember(sb, "x")
				paused := w.pause(sb.ID)
				w.nodes.fail(func(f *faults) {
					f.onStart = func(context.Context, string, sandbox.StartRequest) error { return tt.err }
				})
				w.pass(time.Hour)
				_, err := w.m.Resume(t.Context(), "t", sb.ID)
				if sandbox.CodeOf(err) != tt.want || tt.want != sandbox.CodeOf(tt.err) && !strings.Contains(err.Error(), paused.Snapshot) {
					t.Errorf("Resume = %v, want %s", err, tt.want)
				}
				r := w.record(sb.ID)
				if r.State != sandbox.Paused || r.Snapshot != paused.Snapshot || !r.Deadline.Equal(paused.Deadline) {
					t.Errorf("it became %+v", r)
				}
				w.nodes.mend()
				w.nodes.fail(func(f *faults) {
					f.onBound = func(sandbox.StartRequest) error { return errors.New("the answer is lost") }
				})
				_, err = w.m.Resume(t.Context(), "t", sb.ID)
				codetest.Want(t, "Resume without an answer", err, sandbox.Unavailable)
				if n := len(w.nodes.all()); n != 0 {
					t.Errorf("%d boots are left", n)
				}
				w.nodes.mend()
				if got := w.nodes.recall(w.resume(sb.ID)); got != "x" {
					t.Errorf("its memory holds %q", got)
				}
			})
		})
	}
}

// A hundred concurrent resumes start one Boot, also when the first client leaves.
func TestResumedOnce(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		w.pause(sb.ID)
		starts := w.slowStarts(time.Second)
		first, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = w.m.Resume(first, "t", sb.ID) })
		synctest.Wait()
		for range 100 {
			wg.Go(func() {
				if r, err := w.m.Resume(t.Context(), "t", sb.ID); err != nil || r.State != sandbox.Running || r.Boot.Number != 2 {
					t.Errorf("Resume = %+v, %v", r, err)
				}
			})
		}
		leave()
		wg.Wait()
		if n := starts.Load(); n != 1 {
			t.Errorf("it was started %d times", n)
		}
	})
}

func TestWhatAPausedOneCanDo(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{Name: "web", Timeout: time.Hour})
		paused := w.pause("web")
		w.pass(time.Hour)
		got := w.update("web", sandbox.Change{
			Name: ptr("site"), Env: map[string]*string{"B": ptr("2")}, Timeout: ptr(2 * time.Hour), Network: ptr(sandbox.NetworkNone),
			OnTimeout: ptr(sandbox.OnTimeoutPause), StayPaused: ptr(true),
		})
		if got.State != sandbox.Paused || !got.Deadline.Equal(paused.Deadline) || got.Timeout != 2*time.Hour || !got.StayPaused {
			t.Errorf("changed to %+v", got)
		}
		if got, err := w.m.Touch(t.Context(), "t", "site"); err != nil || !got.Deadline.Equal(time.Now().Add(sandbox.PausedLife)) {
			t.Errorf("Touch = %+v, %v", got, err)
		}
		if got, err := w.m.SetTimeout(t.Context(), "t", "site", 3*time.Hour); err != nil || got.Timeout != 3*time.Hour || got.Deadline.Before(paused.Deadline) {
			t.Errorf("SetTimeout = %+v, %v", got, err)
		}
		resumed := w.resume("site")
		if told := w.told(resumed); told.Env["B"] != "2" || told.Network != sandbox.NetworkNone || told.Revision != resumed.Revision {
			t.Errorf("bound to %+v", told)
		}
		if !resumed.Deadline.Equal(time.Now().Add(3 * time.Hour)) {
			t.Errorf("its deadline is %v", resumed.Deadline)
		}
		w.pause("site")
		if ended, err := w.m.End(t.Context(), "t", sb.ID, sandbox.CauseReleased); err != nil || ended.State != sandbox.Ended {
			t.Errorf("End = %+v, %v", ended, err)
		}
		w.reconcile()
		if kept := w.nodes.kept(); len(kept) != 0 {
			t.Errorf("saved: %v", kept)
		}
		for what, call := range map[string]func() error{
			"Pause":  func() error { _, err := w.m.Pause(t.Context(), "t", sb.ID, false); return err },
			"Resume": func() error { _, err := w.m.Resume(t.Context(), "t", sb.ID); return err },
			"Fork":   func() error { _, err := w.m.Fork(t.Context(), "t", sb.ID, sandbox.ForkRequest{Count: 1}); return err },
			"TakeSnapshot": func() error {
				_, err := w.m.TakeSnapshot(t.Context(), "t", sb.ID, sandbox.SnapshotRequest{})
				return err
			},
			"Rollback": func() error { _, err := w.m.Rollback(t.Context(), "t", sb.ID, "x"); return err },
		} {
			codetest.Want(t, what+" of an ended one", call(), sandbox.Conflict)
		}
	})
}

// OnTimeout selects whether a deadline or an idle timeout ends or pauses a Sandbox.
func TestOnTimeout(t *testing.T) {
	for _, tt := range []struct {
		name  string
		req   sandbox.CreateRequest
		state sandbox.State
		files bool
	}{
		{"end", sandbox.CreateRequest{Timeout: time.Minute, OnTimeout: sandbox.OnTimeoutEnd}, sandbox.Ended, false},
		{"pause", sandbox.CreateRequest{Timeout: time.Minute, OnTimeout: sandbox.OnTimeoutPause}, sandbox.Paused, false},
		{"pause files", sandbox.CreateRequest{Timeout: time.Minute, OnTimeout: sandbox.OnTimeoutPauseFiles}, sandbox.Paused, true},
		{"idle, pause", sandbox.CreateRequest{IdleTimeout: time.Minute, OnTimeout: sandbox.OnTimeoutPause}, sandbox.Paused, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.run()
				defer w.stop()
				sb := w.create("t", tt.req)
				for range 2 {
					w.pass(59 * time.Second)
					if r := w.record(sb.ID); r.State != sandbox.Running {
						t.Errorf("after 59 seconds it is %s", r.State)
					}
					w.pass(10 * time.Second)
					r := w.record(sb.ID)
					if r.State != tt.state {
						t.Fatalf("after 69 seconds it is %s", r.State)
					}
					if tt.state == sandbox.Ended {
						return
					}
					if snap, err := w.m.SnapshotByID(t.Context(), "t", r.Snapshot); err != nil || snap.Memory == tt.files {
						t.Errorf("saved as %+v, %v", snap, err)
					}
					w.resume(sb.ID)
				}
			})
		})
	}
}

// A Sandbox that stays paused for longer than PausedLife ends.
func TestPausedLife(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		w.pause(sb.ID)
		w.pass(sandbox.PausedLife - time.Minute)
		w.run()
		defer w.stop()
		synctest.Wait()
		if r := w.record(sb.ID); r.State != sandbox.Paused {
			t.Errorf("before its 30 days are over it is %s", r.State)
		}
		w.pass(2 * time.Minute)
		if r := w.record(sb.ID); r.State != sandbox.Ended || r.Ended.Cause != sandbox.CauseDeadline {
			t.Errorf("after 30 days: %+v", r)
		}
	})
}

// A pause that fails at the deadline is retried. If the engine does not support pauses,
// the Sandbox ends.
func TestPauseAtDeadlineThatFails(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.nodes.fail(func(f *faults) {
			f.onSave = func(context.Context, sandbox.SaveRequest) error { return sandbox.Errorf(sandbox.Exhausted, "full") }
		})
		w.run()
		defer w.stop()
		sb := w.create("t", sandbox.CreateRequest{Timeout: time.Minute, OnTimeout: sandbox.OnTimeoutPause})
		before := w.store.writes.Load()
		w.pass(30 * time.Minute)
		if r := w.record(sb.ID); r.State != sandbox.Running {
			t.Errorf("it is %s", r.State)
		}
		if n := w.store.writes.Load() - before; n > 120 {
			t.Errorf("%d writes in half an hour", n)
		}
		w.nodes.mend()
		w.pass(2 * time.Minute)
		if r := w.record(sb.ID); r.State != sandbox.Paused {
			t.Errorf("with room again it is %s", r.State)
		}
		never := w.create("t", sandbox.CreateRequest{Timeout: time.Minute, OnTimeout: sandbox.OnTimeoutPause})
		w.nodes.fail(func(f *faults) {
			f.onSave = func(context.Context, sandbox.SaveRequest) error {
				return sandbox.Errorf(sandbox.Unsupported, "it cannot")
			}
		})
		w.pass(2 * time.Minute)
		if r := w.record(never.ID); r.State != sandbox.Ended || r.Ended.Cause != sandbox.CauseDeadline {
			t.Errorf("where no engine can, it is %+v", r)
		}
	})
}

// A kept Snapshot of a paused Sandbox outlives the Sandbox.
func TestSnapshotOfAPausedOne(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		w.nodes.remember(sb, "x")
		w.pause(sb.ID)
		kept := w.snapshot(sb.ID, "monday")
		w.resume(sb.ID)
		w.pause(sb.ID)
		if _, err := w.m.End(t.Context(), "t", sb.ID, sandbox.CauseReleased); err != nil {
			t.Fatal(err)
		}
		w.reconcile()
		if saved := w.nodes.kept(); len(saved) != 1 || !saved[kept.ID] {
			t.Errorf("after its end %v are saved, want %s", saved, kept.ID)
		}
		if got := w.nodes.recall(w.create("t", sandbox.CreateRequest{Snapshot: kept.ID})); got != "x" {
			t.Errorf("what starts from it holds %q", got)
		}
	})
}

// A lost Boot cannot be paused. Until reconciling finds the loss, the pause at the
// deadline is retried at intervals.
func TestPauseAtDeadlineOfALostBoot(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		sb := w.create("t", sandbox.CreateRequest{Timeout: time.Minute, OnTimeout: sandbox.OnTimeoutPause})
		saves := 0
		w.nodes.fail(func(f *faults) {
			f.onSave = func(context.Context, sandbox.SaveRequest) error { saves++; return nil }
			f.onList = func(context.Context, string) error { return sandbox.Errorf(sandbox.Internal, "no list") }
		})
		w.nodes.lose(local, sb.Boot.ID, "")
		w.pass(3 * time.Minute)
		if r := w.record(sb.ID); r.State != sandbox.Running || saves == 0 || saves > 5 {
			t.Errorf("it is %s after %d attempts to save it", r.State, saves)
		}
		w.nodes.mend()
		w.pass(2 * time.Minute)
		if r := w.record(sb.ID); r.State != sandbox.Ended || r.Ended.Cause != sandbox.CauseEngineLost {
			t.Errorf("two minutes later it is %s", r.State)
		}
	})
}

// Some forks of a request can fail. A repeat of the request returns the same forks and
// creates none: those that failed stay failed.
func TestForkInPart(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		var n atomic.Int64
		w.nodes.fail(func(f *faults) {
			f.onStart = func(context.Context, string, sandbox.StartRequest) error {
				if n.Add(1)%2 == 0 {
					return sandbox.Errorf(sandbox.Exhausted, "full")
				}
				return nil
			}
		})
		req := sandbox.ForkRequest{ID: sandbox.NewSandboxID(), Count: 4}
		forks, err := w.m.Fork(t.Context(), "t", sb.ID, req)
		made := map[string]bool{}
		for _, f := range forks {
			if f.Err == nil {
				made[f.Sandbox.ID] = true
			} else if !errors.Is(f.Err, sandbox.Exhausted) {
				t.Errorf("a fork failed with %v", f.Err)
			}
		}
		if err != nil || len(forks) != 4 || len(made) != 2 {
			t.Fatalf("Fork = %+v, %v", forks, err)
		}
		w.nodes.mend()
		again, err := w.m.Fork(t.Context(), "t", sb.ID, req)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range again {
			if (f.Err == nil) != made[f.Sandbox.ID] {
				t.Errorf("repeated: %s, %v", f.Sandbox.ID, f.Err)
			}
		}
		// A retry of a fork that is complete needs no source any more.
		if _, err := w.m.End(t.Context(), "t", sb.ID, sandbox.CauseReleased); err != nil {
			t.Fatal(err)
		}
		if once, err := w.m.Fork(t.Context(), "t", sb.ID, req); err != nil || !reflect.DeepEqual(once, again) {
			t.Errorf("repeated after the end of the source: %+v, %v, want %+v", once, err, again)
		}
		w.reconcile()
	})
}

func TestRollback(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		w.nodes.remember(sb, "one")
		first := w.snapshot(sb.ID, "first")
		w.nodes.remember(sb, "two")
		back, err := w.m.Rollback(t.Context(), "t", sb.ID, "first")
		if err != nil || back.State != sandbox.Running || back.Timeline != 2 || back.Boot.Number != 2 || back.Snapshot != first.ID || w.told(back).Timeline != 2 {
			t.Fatalf("Rollback = %+v, %v", back, err)
		}
		if got := w.nodes.recall(back); got != "one" {
			t.Errorf("its memory holds %q", got)
		}
		w.reconcile()
		w.consistent()
		w.nodes.remember(back, "three")
		w.pause(sb.ID)
		if back, err = w.m.Rollback(t.Context(), "t", sb.ID, first.ID); err != nil || w.nodes.recall(back) != "one" || back.Timeline != 3 {
			t.Errorf("Rollback of a paused one = %+v, %v", back, err)
		}
		// A failed rollback loses nothing.
		w.nodes.remember(back, "four")
		w.nodes.fail(func(f *faults) {
			f.onStart = func(context.Context, string, sandbox.StartRequest) error {
				if seen := w.record(sb.ID); seen.State != sandbox.Resuming || seen.VisibleTimeline() != 3 {
					t.Errorf("meanwhile it is %s, in timeline %d for clients", seen.State, seen.VisibleTimeline())
				}
				return sandbox.Errorf(sandbox.Conflict, "damaged")
			}
		})
		_, err = w.m.Rollback(t.Context(), "t", sb.ID, first.ID)
		codetest.Want(t, "Rollback to what is damaged", err, sandbox.Conflict)
		w.nodes.mend()
		if resumed := w.resume(sb.ID); w.nodes.recall(resumed) != "four" || resumed.Timeline != 3 {
			t.Errorf("after a rollback that failed %+v holds %q", resumed, w.nodes.recall(resumed))
		}
		w.reconcile()
	})
}

// A resume or rollback whose last write took effect without an answer is not undone: others may
// have used the Sandbox since. Its timeouts hold, also if the database is away for a while.
func TestResumeThatIsUncertain(t *testing.T) {
	for _, away := range []bool{false, true} {
		t.Run(fmt.Sprint("then away: ", away), func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.run()
				defer w.stop()
				sb := w.create("t", sandbox.CreateRequest{Timeout: 5 * time.Hour, IdleTimeout: 5 * time.Minute, OnTimeout: sandbox.OnTimeoutPause})
				w.nodes.remember(sb, "one")
				w.snapshot(sb.ID, "first")
				w.nodes.remember(sb, "two")
				w.pause(sb.ID)
				lost := func() {
					if away {
						w.store.lasts.Store(new(atomic.Int64))
					}
				}
				w.store.uncertain.Store(&lost)
				expect := func(what string, err error, memory string, timeline int64) {
					t.Helper()
					w.store.lasts.Store(nil)
					if !errors.Is(err, sandbox.Unavailable) {
						t.Errorf("%s = %v", what, err)
					}
					if r := w.record(sb.ID); r.State != sandbox.Running || r.Timeline != timeline || w.nodes.recall(r) != memory {
						t.Errorf("after %s it is %+v and holds %q", what, r, w.nodes.recall(r))
					}
				}
				_, err := w.m.Resume(t.Context(), "t", sb.ID)
				expect("Resume", err, "two", 1)
				_, err = w.m.Rollback(t.Context(), "t", sb.ID, "first")
				expect("Rollback", err, "one", 2)
				w.store.uncertain.Store(nil)
				w.pass(7 * time.Minute)
				if r := w.record(sb.ID); r.State != sandbox.Paused || r.Timeline != 2 || w.nodes.recall(w.resume(sb.ID)) != "one" {
					t.Errorf("unused for some minutes it is %+v", r)
				}
			})
		})
	}
}

// A rollback refused with a retry time leaves the Sandbox paused in its present state. A
// repeat of the request completes the rollback; a resume restores that state.
func TestRollbackThatIsRefused(t *testing.T) {
	for _, again := range []bool{true, false} {
		t.Run(fmt.Sprint("sent again: ", again), func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				sb := w.create("t", sandbox.CreateRequest{})
				w.nodes.remember(sb, "one")
				first := w.snapshot(sb.ID, "first")
				w.nodes.remember(sb, "two")
				w.nodes.fail(func(f *faults) {
					f.onStart = func(context.Context, string, sandbox.StartRequest) error {
						return &sandbox.Error{Code: sandbox.Unavailable, Detail: "a long queue", RetryAfter: time.Second}
					}
				})
				var saved string
				for range 2 {
					_, err := w.m.Rollback(t.Context(), "t", sb.ID, first.ID)
					var e *sandbox.Error
					if !errors.As(err, &e) || e.Code != sandbox.Unavailable || e.RetryAfter != time.Second {
						t.Fatalf("Rollback = %v", err)
					}
					r := w.record(sb.ID)
					if r.State != sandbox.Paused || r.Timeline != 1 || saved != "" && r.Snapshot != saved {
						t.Errorf("it became %+v", r)
					}
					saved = r.Snapshot
				}
				w.nodes.fail(func(f *faults) { f.onStart = nil })
				want, timeline := "two", int64(1)
				if again {
					want, timeline = "one", 2
					if _, err := w.m.Rollback(t.Context(), "t", sb.ID, first.ID); err != nil {
						t.Fatal(err)
					}
				} else {
					w.resume(sb.ID)
				}
				if r := w.record(sb.ID); r.State != sandbox.Running || r.Timeline != timeline || w.nodes.recall(r) != want {
					t.Errorf("it is %+v and holds %q, want %q", r, w.nodes.recall(r), want)
				}
				w.reconcile()
				w.consistent()
			})
		})
	}
}

func TestPausesAreInvisibleToOthers(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("mine", sandbox.CreateRequest{Name: "web"})
		snap, err := w.m.TakeSnapshot(t.Context(), "mine", sb.ID, sandbox.SnapshotRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{sb.ID, "web", sandbox.NewSandboxID(), ""} {
			for what, call := range map[string]func() error{
				"Pause":  func() error { _, err := w.m.Pause(t.Context(), "other", key, false); return err },
				"Resume": func() error { _, err := w.m.Resume(t.Context(), "other", key); return err },
				"Fork":   func() error { _, err := w.m.Fork(t.Context(), "other", key, sandbox.ForkRequest{Count: 1}); return err },
				"TakeSnapshot": func() error {
					_, err := w.m.TakeSnapshot(t.Context(), "other", key, sandbox.SnapshotRequest{})
					return err
				},
				"Rollback": func() error { _, err := w.m.Rollback(t.Context(), "other", key, snap.ID); return err },
				"History":  func() error { _, err := w.m.History(t.Context(), "other", key); return err },
			} {
				if err := call(); err == nil || err.Error() != "not_found: no such sandbox" {
					t.Errorf("%s(%q) = %v", what, key, err)
				}
			}
		}
		for _, id := range []string{snap.ID, sandbox.NewSnapshotID(), "", "../x"} {
			_, byID := w.m.SnapshotByID(t.Context(), "other", id)
			_, deleted := w.m.DeleteSnapshot(t.Context(), "other", id)
			for _, err := range []error{byID, deleted} {
				if err == nil || err.Error() != fmt.Sprintf("not_found: no snapshot %q; `cloud-sandbox snapshot ls` and GET /api/v1/snapshots list yours", id) {
					t.Errorf("snapshot %q = %v", id, err)
				}
			}
		}
		if page, err := w.m.ListSnapshots(t.Context(), "other", sandbox.SnapshotQuery{SandboxID: sb.ID}); err != nil || len(page.Snapshots) != 0 {
			t.Errorf("another tenant lists %+v, %v", page, err)
		}
		if _, err := w.m.DeleteSnapshot(t.Context(), "mine", snap.ID); err != nil {
			t.Error(err)
		}
	})
}

// EndAll leaves paused Sandboxes paused.
func TestEndAllLeavesThePaused(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		w.create("t", sandbox.CreateRequest{})
		w.pause(sb.ID)
		if n, err := w.m.EndAll(t.Context(), "", sandbox.CauseOperator); n != 1 || err != nil {
			t.Errorf("EndAll = %d, %v", n, err)
		}
		w.resume(sb.ID)
	})
}

// A Boot that dies during a pause ends its Sandbox. A Boot that dies during a resume
// leaves its Sandbox paused.
func TestBootsThatDieMeanwhile(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		w.nodes.fail(func(f *faults) {
			f.onSave = func(context.Context, sandbox.SaveRequest) error {
				w.nodes.lose(local, sb.Boot.ID, sandbox.CauseOOM)
				return nil
			}
		})
		_, err := w.m.Pause(t.Context(), "t", sb.ID, false)
		codetest.Want(t, "Pause of one that dies", err, sandbox.Unavailable)
		w.reconcile()
		if r := w.record(sb.ID); r.State != sandbox.Ended || r.Ended.Cause != sandbox.CauseEngineLost {
			t.Errorf("it is %+v", r)
		}
		w.nodes.mend()
		sb = w.create("t", sandbox.CreateRequest{})
		w.pause(sb.ID)
		m := w.m
		var reports sync.WaitGroup
		w.nodes.fail(func(f *faults) {
			f.onStart = func(_ context.Context, _ string, req sandbox.StartRequest) error {
				end := sandbox.BootEnd{BootRef: sandbox.BootRef{BootID: req.BootID, SandboxID: sb.ID, Number: 2, Tenant: "t"}, Node: local, Cause: sandbox.CauseOOM}
				reports.Go(func() {
					if err := m.BootEnded(context.Background(), end); err != nil {
						t.Error(err)
					}
				})
				return sandbox.Errorf(sandbox.Unavailable, "it died")
			}
		})
		_, err = w.m.Resume(t.Context(), "t", sb.ID)
		codetest.Want(t, "Resume of one that dies", err, sandbox.Unavailable)
		reports.Wait()
		if r := w.record(sb.ID); r.State != sandbox.Paused {
			t.Errorf("it is %+v", r)
		}
	})
}

// A save fails with Conflict if the Sandbox is lost meanwhile, so that clients do not
// retry. The error names the cause of the loss, or the checkpoint.
func TestSavesOfWhatIsLostMeanwhile(t *testing.T) {
	for name, save := range map[string]func(w *world, id string) error{
		"snapshot": func(w *world, id string) error {
			_, err := w.m.TakeSnapshot(w.t.Context(), "t", id, sandbox.SnapshotRequest{})
			return err
		},
		"fork": func(w *world, id string) error {
			_, err := w.m.Fork(w.t.Context(), "t", id, sandbox.ForkRequest{Count: 1})
			return err
		},
		"pause": func(w *world, id string) error {
			_, err := w.m.Pause(w.t.Context(), "t", id, false)
			return err
		},
	} {
		for _, checkpoint := range []bool{false, true} {
			in(t, func(t *testing.T, w *world) {
				req, says := sandbox.CreateRequest{Timeout: time.Hour}, "oom"
				if checkpoint {
					req.CheckpointEvery, says = time.Minute, "checkpoint"
				}
				w.run()
				defer w.stop()
				sb := w.create("t", req)
				if w.pass(2 * time.Minute); checkpoint && w.record(sb.ID).Snapshot == "" {
					t.Fatal("it has no checkpoint")
				}
				var report sync.WaitGroup
				m, ctx := w.m, t.Context()
				w.nodes.fail(func(f *faults) {
					f.onSave = func(context.Context, sandbox.SaveRequest) error {
						end := w.nodes.lose(local, sb.Boot.ID, sandbox.CauseOOM)
						report.Go(func() {
							if err := m.BootEnded(ctx, end); err != nil {
								t.Error(err)
							}
						})
						return sandbox.Errorf(sandbox.Unavailable, "it does not answer")
					}
				})
				err := save(w, sb.ID)
				codetest.Want(t, name, err, sandbox.Conflict)
				if err == nil || !strings.Contains(err.Error(), says) {
					t.Errorf("%s says %v", name, err)
				}
				report.Wait()
				synctest.Wait() // for the cleanup of the failed save, which the end of Run would interrupt
			})
		}
	}
}

// End returns only after the Boot has stopped, also right after a pause.
func TestEndAfterPauseWaitsForTheStop(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		stop := make(chan struct{})
		w.nodes.fail(func(f *faults) { f.onStop = func(context.Context, string) error { <-stop; return nil } })
		w.pause(sb.ID)
		ended := make(chan error, 1)
		go func() {
			_, err := w.m.End(t.Context(), "t", sb.ID, sandbox.CauseReleased)
			ended <- err
		}()
		synctest.Wait()
		select {
		case err := <-ended:
			t.Errorf("it ended while its boot is there: %v", err)
		default:
		}
		close(stop)
		if err := <-ended; err != nil || len(w.nodes.all()) != 0 {
			t.Errorf("End = %v, and %d boots are left", err, len(w.nodes.all()))
		}
		w.reconcile() // which deletes the saved state
	})
}

// A pause returns once the saved state is recorded. The Boot stops afterwards, and the
// next transition of the Sandbox waits for that.
func TestPauseDoesNotWaitForTheStop(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		w.nodes.remember(sb, "x")
		stop := make(chan struct{})
		w.nodes.fail(func(f *faults) { f.onStop = func(context.Context, string) error { <-stop; return nil } })
		paused := w.pause(sb.ID)
		if n := len(w.nodes.all()); paused.State != sandbox.Paused || n != 1 {
			t.Errorf("it is %s, and %d boots are there", paused.State, n)
		}
		resumed := make(chan sandbox.Sandbox, 1)
		go func() { resumed <- w.resume(sb.ID) }()
		synctest.Wait()
		if r := w.record(sb.ID); r.State != sandbox.Paused {
			t.Errorf("it is %s while its earlier boot is being stopped", r.State)
		}
		close(stop)
		if got := w.nodes.recall(<-resumed); got != "x" {
			t.Errorf("its memory holds %q", got)
		}
	})
}

// A shutdown does not wait long for the Boot of a paused Sandbox to stop. The next process
// stops that Boot.
func TestShutdownDoesNotWaitForTheStop(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		w.nodes.remember(sb, "x")
		stop := make(chan struct{})
		w.nodes.fail(func(f *faults) {
			f.onStop = func(context.Context, string) error { <-stop; return errors.New("the process is gone") }
		})
		w.run()
		w.pause(sb.ID)
		began := time.Now()
		w.stop()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the end took %v", took)
		}
		if n := len(w.nodes.all()); n != 1 {
			t.Fatalf("%d boots are there", n)
		}
		close(stop)
		synctest.Wait()
		w.nodes.mend()
		w.m = w.manager(w.store, w.nodes)
		w.run()
		synctest.Wait()
		if n := len(w.nodes.all()); n != 0 {
			t.Errorf("%d boots are left", n)
		}
		if got := w.nodes.recall(w.resume(sb.ID)); got != "x" {
			t.Errorf("its memory holds %q", got)
		}
	})
}

// Settled, Touch and SetTimeout wait for a running start, pause or resume, and then
// succeed.
func TestAskedMeanwhile(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		// during blocks saves and starts on the Node until release is called.
		during := func(move func()) (release func()) {
			gate := make(chan struct{})
			w.nodes.fail(func(f *faults) { f.onSave = func(context.Context, sandbox.SaveRequest) error { <-gate; return nil } })
			w.nodes.fail(func(f *faults) {
				f.onStart = func(context.Context, string, sandbox.StartRequest) error { <-gate; return nil }
			})
			go move()
			synctest.Wait()
			return func() { close(gate) }
		}
		ask := func(id string, was, want sandbox.State, release func()) {
			t.Helper()
			if sb := w.record(id); sb.State != was {
				t.Errorf("it is %s, want %s", sb.State, was)
			}
			got := make(chan string, 3)
			for name, call := range map[string]func() (sandbox.Sandbox, error){
				"settled": func() (sandbox.Sandbox, error) { return w.m.Settled(w.t.Context(), "t", id) },
				"touch":   func() (sandbox.Sandbox, error) { return w.m.Touch(w.t.Context(), "t", id) },
				"timeout": func() (sandbox.Sandbox, error) { return w.m.SetTimeout(w.t.Context(), "t", id, time.Hour) },
			} {
				go func() {
					sb, err := call()
					got <- fmt.Sprint(name, " ", sb.State, " ", err)
				}()
			}
			synctest.Wait()
			if len(got) > 0 {
				t.Errorf("while it is %s: %s", was, <-got)
			}
			release()
			for range cap(got) {
				if g := <-got; !strings.HasSuffix(g, " "+string(want)+" <nil>") {
					t.Errorf("once it is %s: %s", want, g)
				}
			}
		}
		release := during(func() { w.create("t", sandbox.CreateRequest{Name: "web"}) })
		sb, err := w.m.Get(w.t.Context(), "t", "web")
		if err != nil {
			t.Fatal(err)
		}
		ask(sb.ID, sandbox.Starting, sandbox.Running, release)
		ask(sb.ID, sandbox.Pausing, sandbox.Paused, during(func() { _, _ = w.m.Pause(w.t.Context(), "t", sb.ID, false) }))
		ask(sb.ID, sandbox.Resuming, sandbox.Running, during(func() { w.resume(sb.ID) }))
	})
}

// A resume that times out says how long it took. A timeout of one of its steps keeps the
// error of that step.
func TestHowLongAResumeTook(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		w.pause(sb.ID)
		for _, tt := range []struct {
			err  error
			code sandbox.Code
			says string
		}{
			{context.DeadlineExceeded, sandbox.Timeout, "within 20 seconds"},
			{sandbox.Errorf(sandbox.Unavailable, "the sandbox did not come up").WithCause(context.DeadlineExceeded), sandbox.Unavailable, "did not come up"},
		} {
			w.nodes.fail(func(f *faults) {
				f.onStart = func(context.Context, string, sandbox.StartRequest) error {
					time.Sleep(20 * time.Second)
					return tt.err
				}
			})
			_, err := w.m.Resume(w.t.Context(), "t", sb.ID)
			if sandbox.CodeOf(err) != tt.code || !strings.Contains(fmt.Sprint(err), tt.says) {
				t.Errorf("after %v: %v", tt.err, err)
			}
		}
	})
}
