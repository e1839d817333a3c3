package session_test

import (
	"context"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// hold suspends or reactivates a Tenant.
func (w *world) hold(id sandbox.TenantID, suspended bool) {
	w.t.Helper()
	change := sandbox.TenantChange{State: ptr(sandbox.TenantActive)}
	if suspended {
		change = sandbox.TenantChange{State: ptr(sandbox.TenantSuspended), Reason: "a test"}
	}
	if err := w.store.NoteTenants(w.t.Context(), []sandbox.Tenant{{ID: id, CreatedAt: time.Now()}}); err != nil {
		w.t.Fatal(err)
	}
	if _, _, err := w.store.ChangeTenant(w.t.Context(), id, change, time.Now()); err != nil {
		w.t.Fatal(err)
	}
}

// almostOver moves the deadlines of Sandboxes to one minute from now.
func (w *world) almostOver(ids ...string) {
	w.t.Helper()
	for _, id := range ids {
		sb := w.record(id)
		sb.Deadline = time.Now().Add(time.Minute)
		if _, err := w.store.UpdateSandbox(w.t.Context(), sb); err != nil {
			w.t.Fatal(err)
		}
	}
}

func TestSuspendedTenantsArePaused(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		defer w.stop()
		first := w.create("t", sandbox.CreateRequest{Timeout: time.Hour, OnTimeout: sandbox.OnTimeoutEnd})
		below := w.create("t/joe", sandbox.CreateRequest{Timeout: time.Hour})
		other := w.create("other", sandbox.CreateRequest{Timeout: time.Hour})
		w.nodes.remember(first, "x")
		w.hold("t", true)
		w.pass(2 * suspensionsEvery)
		late := w.create("t", sandbox.CreateRequest{Timeout: time.Hour}) // like a create admitted just before the suspension
		w.pass(2 * suspensionsEvery)
		for _, sb := range []sandbox.Sandbox{first, below, late} {
			if got := w.record(sb.ID); got.State != sandbox.Paused || got.StayPaused {
				t.Errorf("one of a suspended tenant is %+v", got)
			}
		}
		if got := w.record(other.ID); got.State != sandbox.Running {
			t.Errorf("another tenant's is %s", got.State)
		}
		// Deadlines do not end Sandboxes of a suspended Tenant.
		w.almostOver(first.ID, late.ID)
		w.pass(time.Hour)
		w.hold("t", false)
		w.pass(2 * suspensionsEvery)
		back := w.resume(first.ID)
		if back.State != sandbox.Running || w.nodes.recall(back) != "x" {
			t.Errorf("afterwards it is %+v and remembers %q", back, w.nodes.recall(back))
		}
		w.pass(time.Minute)
		if got := w.record(first.ID); got.State != sandbox.Running {
			t.Errorf("a minute later it is %s", got.State)
		}
		if _, err := w.m.End(t.Context(), below.Tenant, below.ID, sandbox.CauseReleased); err != nil {
			t.Error(err)
		}
		w.almostOver(late.ID)
		w.pass(time.Hour)
		if c := w.cause(late.ID); c != sandbox.CauseDeadline {
			t.Errorf("one that nobody resumed ended with %q", c)
		}
	})
}

// A suspended Tenant's Sandbox that cannot be paused ends: at once if the Engine does not
// support pauses, otherwise after several attempts.
func TestSuspendedTenantsThatCannotPause(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		soon bool
	}{
		"never":    {sandbox.Errorf(sandbox.Unsupported, "no"), true},
		"not now":  {sandbox.Errorf(sandbox.Exhausted, "the disk is full"), false},
		"for once": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				saves := 0
				w.nodes.fail(func(f *faults) {
					f.onSave = func(context.Context, sandbox.SaveRequest) error {
						if saves++; name == "for once" && saves == 1 {
							return sandbox.Errorf(sandbox.Exhausted, "the disk is full")
						}
						return tt.err
					}
				})
				w.run()
				defer w.stop()
				sb := w.create("t", sandbox.CreateRequest{Timeout: time.Hour})
				w.hold("t", true)
				w.pass(suspensionsEvery + time.Second)
				if got := w.record(sb.ID); tt.soon != (got.State == sandbox.Ended) {
					t.Errorf("soon it is %s", got.State)
				}
				for range 8 {
					w.pass(time.Minute)
				}
				if got := w.record(sb.ID); tt.err == nil {
					if got.State != sandbox.Paused {
						t.Errorf("it is %s", got.State)
					}
				} else if w.cause(sb.ID) != sandbox.CauseSuspended {
					t.Errorf("it is %s with cause %q", got.State, w.cause(sb.ID))
				}
			})
		})
	}
}
