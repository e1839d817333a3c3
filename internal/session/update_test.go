package session_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

func ptr[T any](v T) *T { return &v }

func (w *world) update(key string, c sandbox.Change) sandbox.Sandbox {
	w.t.Helper()
	sb, err := w.m.Update(w.t.Context(), "t", key, c)
	if err != nil {
		w.t.Fatalf("Update: %v", err)
	}
	return sb
}

// told returns the last Binding that the Boot of sb received.
func (w *world) told(sb sandbox.Sandbox) sandbox.Binding {
	w.nodes.mu.Lock()
	defer w.nodes.mu.Unlock()
	return w.nodes.told[sb.Boot.ID]
}

func TestUpdate(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{Name: "web", Env: map[string]string{"A": "1"}, User: "root"})
		first := w.told(sb)
		got := w.update("web", sandbox.Change{
			Name: ptr("site"), Metadata: map[string]*string{"k": ptr("v")}, Timeout: ptr(time.Hour), IdleTimeout: ptr(time.Minute),
		})
		if got.Name != "site" || got.Metadata["k"] != "v" || !got.Deadline.Equal(time.Now().Add(time.Hour)) || got.IdleTimeout != time.Minute {
			t.Errorf("updated %+v", got)
		}
		if !reflect.DeepEqual(w.told(sb), first) {
			t.Error("the boot was told what is only the record's")
		}
		got = w.update("site", sandbox.Change{Network: ptr(sandbox.NetworkNone), Env: map[string]*string{"B": ptr("2")}, MemoryBytes: ptr(int64(256 << 20))})
		want := first
		want.Network, want.Env, want.Revision = sandbox.NetworkNone, map[string]string{"A": "1", "B": "2"}, 2
		want.Limits.MemoryBytes = 256 << 20
		if told := w.told(sb); !reflect.DeepEqual(told, want) {
			t.Errorf("told %+v, want %+v", told, want)
		}
		if r := w.record(sb.ID); !reflect.DeepEqual(r, got) || r.Limits != want.Limits || r.Name != "site" {
			t.Errorf("record %+v, returned %+v", r, got)
		}
		// The record keeps the requested policy. Boots and Snapshots get the enforced one.
		const asked, enforced = `{"mode":"public","deny":["1.1.1.1"],"internet":true}`, `{"mode":"public","deny":["1.1.1.1"]}`
		if got := w.update("site", sandbox.Change{Network: ptr(sandbox.NetworkPolicy(asked))}); got.Network != asked || w.told(sb).Network != enforced {
			t.Errorf("recorded %s, told %s", got.Network, w.told(sb).Network)
		}
		snap, err := w.m.TakeSnapshot(t.Context(), "t", "site", sandbox.SnapshotRequest{})
		if err != nil || snap.Network != enforced {
			t.Errorf("the snapshot has %s, %v", snap.Network, err)
		}
	})
}

// A change that the Boot refuses leaves the record unchanged. The Boot gets the recorded
// settings again, in case it applied a part.
func TestUpdateTakenBack(t *testing.T) {
	for name, fails := range map[string]error{
		"in use":    sandbox.Errorf(sandbox.Conflict, "memory is in use"),
		"bad user":  sandbox.Errorf(sandbox.Invalid, "no such user"),
		"no answer": sandbox.Errorf(sandbox.Unavailable, "the guest is silent"),
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.run()
				defer w.stop()
				sb := w.create("t", sandbox.CreateRequest{Name: "web", Metadata: map[string]string{"k": "1"}})
				synctest.Wait()
				w.nodes.fail(func(f *faults) {
					f.onUpdate = func(context.Context, sandbox.Binding) error {
						w.nodes.mend()
						return fails
					}
				})
				_, err := w.m.Update(t.Context(), "t", "web", sandbox.Change{
					Name: ptr("new"), Metadata: map[string]*string{"k": ptr("2")}, Timeout: ptr(time.Hour),
					Network: ptr(sandbox.NetworkNone), Pids: ptr(int64(64)),
				})
				if !errors.Is(err, fails) {
					t.Errorf("Update = %v, want %v", err, fails)
				}
				r := w.record(sb.ID)
				if r.Name != "web" || r.Metadata["k"] != "1" || !r.Deadline.Equal(sb.Deadline) || r.Network != sb.Network || r.Limits != sb.Limits {
					t.Errorf("the record keeps %+v", r)
				}
				w.pass(time.Minute)
				if told := w.told(sb); told.Revision != r.Revision || told.Network != sb.Network || told.Limits != sb.Limits {
					t.Errorf("the boot was told %+v, its record is %+v", told, r)
				}
			})
		})
	}
}

// Reconcile completes a change that a crash interrupted between record and Boot.
func TestUpdateAfterCrash(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		recorded, err := (sandbox.Change{Network: ptr(sandbox.NetworkNone)}).Apply(sb, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.store.UpdateSandbox(t.Context(), recorded); err != nil {
			t.Fatal(err)
		}
		w.m = w.manager(w.store, w.nodes)
		if err := w.m.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		if told := w.told(sb); told.Network != sandbox.NetworkNone || told.Revision != recorded.Revision {
			t.Errorf("told %+v", told)
		}
	})
}

// A Boot that does not answer a change delays neither its own end nor other Sandboxes.
func TestSilentBootHoldsUpNobody(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.nodes.fail(func(f *faults) {
			f.onUpdate = func(ctx context.Context, _ sandbox.Binding) error { <-ctx.Done(); return ctx.Err() }
		})
		sb := w.create("t", sandbox.CreateRequest{})
		other := w.create("t", sandbox.CreateRequest{})
		if _, err := w.m.Update(t.Context(), "t", sb.ID, sandbox.Change{Network: ptr(sandbox.NetworkNone)}); err == nil {
			t.Error("a silent boot took a change")
		}
		began := time.Now()
		if err := w.m.Reconcile(t.Context()); err != nil {
			t.Errorf("Reconcile = %v", err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("reconciling took %v", took)
		}
		for _, id := range []string{sb.ID, other.ID} {
			if _, err := w.m.End(t.Context(), "t", id, sandbox.CauseReleased); err != nil {
				t.Errorf("End = %v", err)
			}
		}
	})
}

func TestUpdatesAtOnce(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		var wg sync.WaitGroup
		const each = 16
		for i := range each {
			name := fmt.Sprintf("N%d", i)
			wg.Go(func() {
				if _, err := w.m.Update(t.Context(), "t", sb.ID, sandbox.Change{Env: map[string]*string{name: ptr("1")}}); err != nil {
					t.Errorf("Update: %v", err)
				}
			})
			wg.Go(func() {
				if _, err := w.m.SetTimeout(t.Context(), "t", sb.ID, time.Hour); err != nil {
					t.Errorf("SetTimeout: %v", err)
				}
			})
		}
		wg.Wait()
		if r, told := w.record(sb.ID), w.told(sb); len(r.Env) != each || !reflect.DeepEqual(told.Env, r.Env) || told.Revision != r.Revision {
			t.Errorf("record %+v, told %+v", r, told)
		}
	})
}

func TestTouch(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{Timeout: time.Minute})
		w.pass(30 * time.Second)
		got, err := w.m.Touch(t.Context(), "t", sb.ID)
		if err != nil || !got.Deadline.Equal(time.Now().Add(time.Minute)) {
			t.Errorf("Touch = %+v, %v", got, err)
		}
		if _, err := w.m.SetTimeout(t.Context(), "t", sb.ID, time.Hour); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Second)
		w.update(sb.ID, sandbox.Change{Timeout: ptr(2 * time.Hour)})
		before := w.record(sb.ID)
		sb = before
		sb.Timeout = time.Minute // a deadline that was moved farther than the timeout
		if _, err := w.store.UpdateSandbox(t.Context(), sb); err != nil {
			t.Fatal(err)
		}
		if got, err = w.m.Touch(t.Context(), "t", sb.ID); err != nil || !got.Deadline.Equal(before.Deadline) {
			t.Errorf("Touch brought the deadline nearer: %+v, %v", got, err)
		}
	})
}

// Of concurrent Ensures one creates the Sandbox, and all return it.
func TestEnsureAtOnce(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.nodes.fail(func(f *faults) {
			f.onStart = func(context.Context, string, sandbox.StartRequest) error { time.Sleep(time.Second); return nil }
		})
		var mu sync.Mutex
		ids, creators := map[string]bool{}, 0
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				sb, created, err := w.m.Ensure(t.Context(), "t", sandbox.CreateRequest{Name: "web"})
				if err != nil || sb.State != sandbox.Running {
					t.Errorf("Ensure = %+v, %v", sb, err)
				}
				mu.Lock()
				defer mu.Unlock()
				ids[sb.ID] = true
				if created {
					creators++
				}
			})
		}
		wg.Wait()
		if len(ids) != 1 || creators != 1 {
			t.Errorf("%d sandboxes, %d creators", len(ids), creators)
		}
	})
}
