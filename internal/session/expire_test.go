package session_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// The deadlines of a Tenant are kept while many Sandboxes of another one are paused at
// theirs, slowly and some at a time.
func TestDeadlinesAreFair(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		defer w.stop()
		var many []sandbox.Sandbox
		for range 100 {
			many = append(many, w.create("t", sandbox.CreateRequest{Timeout: time.Minute, OnTimeout: sandbox.OnTimeoutPause}))
		}
		var saving, most atomic.Int64
		w.nodes.fail(func(f *faults) {
			f.onSave = func(context.Context, sandbox.SaveRequest) error {
				most.Store(max(most.Load(), saving.Add(1)))
				time.Sleep(20 * time.Second)
				saving.Add(-1)
				return nil
			}
		})
		w.pass(time.Second)
		one := w.create("u", sandbox.CreateRequest{Timeout: time.Minute})
		w.pass(time.Minute + time.Second)
		if got := w.record(one.ID); got.State != sandbox.Ended || got.Ended.Cause != sandbox.CauseDeadline {
			t.Errorf("the one of another tenant is %s", got.State)
		}
		w.pass(10 * time.Minute)
		for _, sb := range many {
			if got := w.record(sb.ID); got.State != sandbox.Paused {
				t.Errorf("one of many is %s", got.State)
			}
		}
		if n := most.Load(); n < 2 || n > 8 {
			t.Errorf("%d were saved at a time", n)
		}
	})
}

// A Sandbox whose end cannot be recorded is tried again, and holds up no other one.
func TestDeadlineIsTriedAgain(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		defer w.stop()
		sb := w.create("t", sandbox.CreateRequest{Timeout: time.Minute})
		w.pass(time.Minute - time.Second)
		w.store.lasts.Store(new(atomic.Int64))
		w.pass(10 * time.Second)
		if got, err := w.store.Store.SandboxByID(t.Context(), sb.ID); err != nil || got.State != sandbox.Running {
			t.Errorf("it is %s, %v", got.State, err)
		}
		w.store.lasts.Store(nil)
		w.pass(2 * time.Second)
		if got := w.record(sb.ID); got.State != sandbox.Ended {
			t.Errorf("it is %s", got.State)
		}
	})
}
