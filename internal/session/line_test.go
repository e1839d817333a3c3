package session_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// room limits the Sandboxes that the Nodes of a world start.
type room struct {
	mu   sync.Mutex
	free int
	took []sandbox.TenantID // of each started Sandbox
}

func (r *room) limit(w *world) {
	w.nodes.fail(func(f *faults) {
		f.onStart = func(_ context.Context, _ string, req sandbox.StartRequest) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.free == 0 {
				return &sandbox.Error{Code: sandbox.Exhausted, Detail: "full", RetryAfter: time.Second}
			}
			r.free--
			r.took = append(r.took, req.Binding.Tenant)
			return nil
		}
	})
}

func (r *room) add(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free += n
}

// Creates that find no room wait for it, and their Tenants take turns.
func TestCreatesWaitForRoom(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		var r room
		r.limit(w)
		var creates sync.WaitGroup
		create := func(tenant sandbox.TenantID) {
			creates.Go(func() {
				if _, err := w.m.Create(t.Context(), tenant, sandbox.CreateRequest{}); err != nil {
					t.Errorf("a create of %s: %v", tenant, err)
				}
			})
			synctest.Wait()
		}
		for range 5 {
			create("many")
		}
		create("one")
		for range 2 {
			r.add(1)
			w.pass(time.Second)
		}
		if len(r.took) != 2 || !slices.Contains(r.took, "one") || !slices.Contains(r.took, "many") {
			t.Errorf("the first two rooms went to %v, want one to each tenant", r.took)
		}
		// Once there is room for all, the line ends soon.
		r.add(100)
		began := time.Now()
		creates.Wait()
		if took := time.Since(began); took > time.Second {
			t.Errorf("with room for all, the line took %s more", took)
		}
		if _, err := w.m.Create(t.Context(), "late", sandbox.CreateRequest{}); err != nil {
			t.Error(err)
		}
	})
}

// A create that finds no room within ten seconds is refused. A client that leaves earlier
// leaves nothing in the line.
func TestCreatesWaitForRoomNotForEver(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		var r room
		r.limit(w)
		var creates sync.WaitGroup
		for range 3 {
			creates.Go(func() {
				began := time.Now()
				_, err := w.m.Create(t.Context(), "t", sandbox.CreateRequest{})
				var refused *sandbox.Error
				if !errors.As(err, &refused) || refused.Code != sandbox.Exhausted || refused.RetryAfter <= 0 {
					t.Errorf("a create without room: %v", err)
				}
				if took := time.Since(began); took != 10*time.Second {
					t.Errorf("it was refused after %s", took)
				}
			})
		}
		creates.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := w.m.Create(ctx, "t", sandbox.CreateRequest{}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a create whose client left: %v", err)
			}
		})
		creates.Wait()
		w.pass(time.Second)
		r.add(1)
		began := time.Now()
		if _, err := w.m.Create(t.Context(), "t", sandbox.CreateRequest{}); err != nil || time.Since(began) != 0 {
			t.Errorf("a create with room: %v, after %s", err, time.Since(began))
		}
	})
}

// A Tenant that never finds room delays the creates of others by no more than its tries.
func TestATenantWithoutRoomDelaysNoOther(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.nodes.fail(func(f *faults) {
			f.onStart = func(_ context.Context, _ string, req sandbox.StartRequest) error {
				if req.Binding.Tenant == "stuck" {
					return &sandbox.Error{Code: sandbox.Exhausted, Detail: "full", RetryAfter: time.Second}
				}
				return nil
			}
		})
		var creates sync.WaitGroup
		for range 100 {
			creates.Go(func() {
				if _, err := w.m.Create(t.Context(), "stuck", sandbox.CreateRequest{}); !errors.Is(err, sandbox.Exhausted) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		for range 50 {
			creates.Go(func() {
				if _, err := w.m.Create(t.Context(), "other", sandbox.CreateRequest{}); err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took > 100*time.Millisecond {
					t.Errorf("another tenant's create took %s", took)
				}
			})
		}
		creates.Wait()
	})
}

// The state of a Sandbox is on one Node, so that its create does not wait for another one.
func TestTiedCreatesDoNotWait(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		snap, err := w.m.TakeSnapshot(t.Context(), "t", w.create("t", sandbox.CreateRequest{}).ID, sandbox.SnapshotRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var r room
		r.limit(w)
		began := time.Now()
		_, err = w.m.Create(t.Context(), "t", sandbox.CreateRequest{Snapshot: snap.ID})
		if !errors.Is(err, sandbox.Exhausted) || time.Since(began) != 0 {
			t.Errorf("%v, after %s", err, time.Since(began))
		}
	})
}
