package session_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

func (w *world) used(uses ...sandbox.Use) {
	w.t.Helper()
	if err := w.m.Used(w.t.Context(), uses); err != nil {
		w.t.Errorf("Used: %v", err)
	}
}

func (w *world) cause(id string) sandbox.Cause {
	w.t.Helper()
	if end := w.record(id).Ended; end != nil {
		return end.Cause
	}
	return ""
}

func TestIdleEnds(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		defer w.stop()
		idle := w.create("t", sandbox.CreateRequest{IdleTimeout: time.Minute, Timeout: time.Hour})
		used := w.create("t", sandbox.CreateRequest{IdleTimeout: time.Minute, Timeout: time.Hour})
		never := w.create("t", sandbox.CreateRequest{Timeout: time.Hour})
		began := time.Now()
		for time.Since(began) < 55*time.Second {
			w.pass(time.Second)
		}
		w.used(sandbox.Use{SandboxID: used.ID}, sandbox.Use{SandboxID: sandbox.NewSandboxID()})
		w.pass(10 * time.Second)
		if w.cause(idle.ID) != sandbox.CauseIdle || w.cause(used.ID) != "" || w.cause(never.ID) != "" {
			t.Errorf("after a minute: %q, %q, %q", w.cause(idle.ID), w.cause(used.ID), w.cause(never.ID))
		}
		w.pass(time.Minute)
		if w.cause(used.ID) != sandbox.CauseIdle || w.cause(never.ID) != "" {
			t.Errorf("after two minutes: %q, %q", w.cause(used.ID), w.cause(never.ID))
		}
	})
}

// A Sandbox that is being saved when its idle time ends is due a little later. Others do not
// wait for it.
func TestIdleWhileSaved(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		defer w.stop()
		saved := w.create("t", sandbox.CreateRequest{IdleTimeout: time.Minute, Timeout: time.Hour})
		other := w.create("u", sandbox.CreateRequest{IdleTimeout: 2 * time.Minute, Timeout: time.Hour})
		w.nodes.fail(func(f *faults) {
			f.onSave = func(context.Context, sandbox.SaveRequest) error { time.Sleep(4 * time.Minute); return nil }
		})
		done := make(chan error, 1)
		go func() {
			done <- codetest.ErrOf(w.m.TakeSnapshot(t.Context(), "t", saved.ID, sandbox.SnapshotRequest{}))
		}()
		w.pass(3 * time.Minute)
		if w.cause(saved.ID) != "" || w.cause(other.ID) != sandbox.CauseIdle {
			t.Errorf("during the save: %q, %q", w.cause(saved.ID), w.cause(other.ID))
		}
		w.pass(time.Minute + 10*time.Second)
		if err := <-done; err != nil || w.cause(saved.ID) != sandbox.CauseIdle {
			t.Errorf("after the save: %q, %v", w.cause(saved.ID), err)
		}
	})
}

// Touch restarts the idle timeout, and a change of the timeout applies to a running
// Sandbox.
func TestIdleTimeoutChanges(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		defer w.stop()
		touched := w.create("t", sandbox.CreateRequest{IdleTimeout: 10 * time.Second})
		freed := w.create("t", sandbox.CreateRequest{IdleTimeout: 10 * time.Second})
		bound := w.create("t", sandbox.CreateRequest{Name: "bound"})
		w.pass(9 * time.Second)
		if _, err := w.m.Touch(t.Context(), "t", touched.ID); err != nil {
			t.Fatal(err)
		}
		w.update(freed.ID, sandbox.Change{IdleTimeout: ptr(time.Duration(0))})
		w.update(bound.ID, sandbox.Change{IdleTimeout: ptr(10 * time.Second)})
		w.pass(9 * time.Second)
		for _, sb := range []sandbox.Sandbox{touched, freed, bound} {
			if c := w.cause(sb.ID); c != "" {
				t.Errorf("after 18 seconds one has ended: %s", c)
			}
		}
		w.pass(10 * time.Second)
		if w.cause(touched.ID) != sandbox.CauseIdle || w.cause(bound.ID) != sandbox.CauseIdle || w.cause(freed.ID) != "" {
			t.Errorf("after 28 seconds: %q, %q, %q", w.cause(touched.ID), w.cause(bound.ID), w.cause(freed.ID))
		}
	})
}

// After a restart of the process, idle times count from zero.
func TestIdleAfterRestart(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		sb := w.create("t", sandbox.CreateRequest{IdleTimeout: time.Minute, Timeout: time.Hour})
		w.pass(50 * time.Second)
		w.stop()
		w.pass(time.Minute)
		w.m = w.manager(w.store, w.nodes)
		w.run()
		defer w.stop()
		w.pass(50 * time.Second)
		if c := w.cause(sb.ID); c != "" {
			t.Errorf("ended too soon: %s", c)
		}
		w.pass(20 * time.Second)
		if c := w.cause(sb.ID); c != sandbox.CauseIdle {
			t.Errorf("cause = %q", c)
		}
	})
}

func TestOutputTail(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		w.used(sandbox.Use{SandboxID: sb.ID, Output: []byte("hello ")}, sandbox.Use{SandboxID: sb.ID, Output: bytes.Repeat([]byte("x"), sandbox.MaxOutputTail)})
		w.used(sandbox.Use{SandboxID: sb.ID, Output: []byte("\xffend")})
		ended, err := w.m.End(t.Context(), "t", sb.ID, sandbox.CauseReleased)
		if err != nil || !strings.HasSuffix(ended.Ended.OutputTail, "x\uFFFDend") || strings.Contains(ended.Ended.OutputTail, "hello") {
			t.Errorf("the tail is %.20q, %v", ended.Ended.OutputTail, err)
		}
		w.used(sandbox.Use{SandboxID: sb.ID, Output: []byte(" late")})
		if tail := w.record(sb.ID).Ended.OutputTail; !strings.HasSuffix(tail, "end late") {
			t.Errorf("with late output: %.20q", tail)
		}
		quiet := w.create("t", sandbox.CreateRequest{})
		if ended, err = w.m.End(t.Context(), "t", quiet.ID, sandbox.CauseReleased); err != nil || ended.Ended.OutputTail != "" {
			t.Errorf("a silent one: %+v, %v", ended.Ended, err)
		}
	})
}

// A Sandbox that is starting or stopping ends within ten minutes, whatever its Node does.
func TestTransitionsEnd(t *testing.T) {
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for _, tt := range []struct {
		name  string
		spoil func(w *world)
		act   func(w *world) // leaves a Sandbox called web in a transition
		cause sandbox.Cause
	}{
		{
			"a start that never answers",
			func(w *world) {
				w.nodes.fail(func(f *faults) {
					f.onStart = func(ctx context.Context, _ string, _ sandbox.StartRequest) error { return hang(ctx) }
				})
			},
			func(w *world) { _, _ = w.m.Create(w.t.Context(), "t", sandbox.CreateRequest{Name: "web"}) },
			sandbox.CauseEngineLost,
		},
		{
			"a start that a crash cut",
			func(*world) {},
			func(w *world) {
				sb := w.create("t", sandbox.CreateRequest{Name: "x"})
				sb.ID, sb.Name, sb.State, sb.Version, sb.StartedAt = sandbox.NewSandboxID(), "web", sandbox.Starting, 0, time.Time{}
				sb.Boot.ID = sandbox.NewBootID()
				if _, err := w.store.Store.InsertSandbox(w.t.Context(), sb); err != nil {
					w.t.Fatal(err)
				}
			},
			sandbox.CauseEngineLost,
		},
		{
			"a stop that always fails",
			func(w *world) {
				w.nodes.fail(func(f *faults) {
					f.onStop = func(context.Context, string) error { return sandbox.Errorf(sandbox.Internal, "it resists") }
				})
			},
			func(w *world) {
				w.create("t", sandbox.CreateRequest{Name: "web"})
				_, _ = w.m.End(w.t.Context(), "t", "web", sandbox.CauseReleased)
			},
			sandbox.CauseReleased,
		},
		{
			"a stop that never answers",
			func(w *world) {
				w.nodes.fail(func(f *faults) { f.onStop = func(ctx context.Context, _ string) error { return hang(ctx) } })
			},
			func(w *world) {
				w.create("t", sandbox.CreateRequest{Name: "web"})
				_, _ = w.m.End(w.t.Context(), "t", "web", sandbox.CauseReleased)
			},
			sandbox.CauseReleased,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				defer w.close()
				w.run()
				tt.spoil(w)
				tt.act(w)
				w.pass(10 * time.Minute)
				page, err := w.m.List(t.Context(), "t", sandbox.ListQuery{States: []sandbox.State{sandbox.Ended}})
				if err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].Ended.Cause != tt.cause {
					t.Errorf("after ten minutes: %+v, %v", page.Sandboxes, err)
				}
				w.nodes.mend()
				w.pass(2 * time.Minute)
				w.consistent() // reconciling has stopped the Boot that resisted
				w.create("t", sandbox.CreateRequest{Name: "web"})
			})
		})
	}
}

// Idle counts the running Sandboxes that are idle, with or without an idle timeout.
func TestIdleCount(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		idle := func(when string, want int) {
			t.Helper()
			if n, err := w.m.Idle(t.Context(), "t"); err != nil || n != want {
				t.Errorf("%s: %d are idle, %v, want %d", when, n, err, want)
			}
		}
		idle("at first", 0)
		first := w.create("t", sandbox.CreateRequest{})
		second := w.create("t", sandbox.CreateRequest{IdleTimeout: time.Hour, Timeout: time.Hour})
		w.create("other", sandbox.CreateRequest{})
		idle("when they are new", 0)
		w.pass(sandbox.IdleAfter + time.Second)
		idle("when nobody uses them", 2)
		w.used(sandbox.Use{SandboxID: first.ID})
		idle("when one is used", 1)
		w.pass(sandbox.IdleAfter + time.Second)
		w.pause(first.ID)
		idle("when one is paused", 1)
		w.resume(first.ID)
		idle("when it has resumed", 1)
		if _, err := w.m.End(t.Context(), "t", second.ID, sandbox.CauseReleased); err != nil {
			t.Fatal(err)
		}
		idle("when one has ended", 0)
	})
}
