package session_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

// keeps checks which Snapshots a Tenant has, once background work is done.
func (w *world) keeps(tenant sandbox.TenantID, wanted ...sandbox.Snapshot) {
	w.t.Helper()
	synctest.Wait()
	page, err := w.m.ListSnapshots(w.t.Context(), tenant, sandbox.SnapshotQuery{})
	var got, ids []string
	for _, s := range page.Snapshots {
		got = append(got, s.ID)
	}
	for _, s := range wanted {
		ids = append(ids, s.ID)
	}
	slices.Sort(got)
	slices.Sort(ids)
	if err != nil || !slices.Equal(got, ids) {
		w.t.Errorf("%s has %v, %v, want %v", tenant, got, err, ids)
	}
}

// Retention deletes Snapshots when a new one is taken and when they age, but never one
// that a Sandbox refers to.
func TestRetention(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		set := func(tenant sandbox.TenantID, r sandbox.Retention) {
			if err := w.store.SetQuota(t.Context(), tenant, &sandbox.Quota{Retention: r}); err != nil {
				t.Fatal(err)
			}
		}
		set("t", sandbox.Retention{Snapshots: 2})
		sb := w.create("t", sandbox.CreateRequest{Timeout: sandbox.MaxTimeout})
		take := func(name string) sandbox.Snapshot {
			w.pass(time.Second)
			return w.snapshot(sb.ID, name)
		}
		first, second := take("first"), take("")
		w.keeps("t", first, second)
		third := take("")
		w.keeps("t", first, third) // the second had no name
		paused := w.create("t", sandbox.CreateRequest{Snapshot: first.ID, Timeout: sandbox.MaxTimeout})
		last := take("")
		w.keeps("t", first, last)
		final := take("")
		w.keeps("t", first, final)

		set("t", sandbox.Retention{Age: 2 * time.Hour})
		w.pass(time.Hour)
		w.keeps("t", first, final)
		w.pass(2 * time.Hour)
		w.keeps("t", first, final) // running Sandboxes refer to them
		for _, id := range []string{sb.ID, paused.ID} {
			if _, err := w.m.End(t.Context(), "t", id, sandbox.CauseReleased); err != nil {
				t.Fatal(err)
			}
		}
		w.pass(time.Hour)
		w.keeps("t")
	})
}

// A build layer is only in the list of layers, and is deleted once it was unused for
// LayerLife.
func TestLayers(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		if err := w.store.SetQuota(t.Context(), "t", &sandbox.Quota{SnapshotBytes: 1}); err != nil {
			t.Fatal(err)
		}
		builder := w.create("t", sandbox.CreateRequest{Timeout: sandbox.MaxTimeout})
		take := func(digit string) sandbox.Snapshot {
			t.Helper()
			snap, err := w.m.TakeSnapshot(t.Context(), "t", builder.ID, sandbox.SnapshotRequest{Layer: strings.Repeat(digit, 64), FilesOnly: true})
			if err != nil {
				t.Fatal(err)
			}
			w.pass(time.Second)
			return snap
		}
		has := func(wanted ...sandbox.Snapshot) {
			t.Helper()
			synctest.Wait()
			page, err := w.m.ListSnapshots(t.Context(), "t", sandbox.SnapshotQuery{Layers: true})
			var got, want []string
			for _, s := range page.Snapshots {
				got = append(got, s.ID)
			}
			for _, s := range wanted {
				want = append(want, s.ID)
			}
			slices.Sort(got)
			slices.Sort(want)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("layers are %v, %v, want %v", got, err, want)
			}
		}
		first, again, second := take("a"), take("a"), take("b")
		has(again, second) // the second layer "a" replaced the first
		w.keeps("t")
		if all, err := w.m.History(t.Context(), "t", builder.ID); err != nil || len(all) != 0 {
			t.Errorf("the history has %v, %v", all, err)
		}
		if _, err := w.m.SnapshotByID(t.Context(), "u", second.ID); !errors.Is(err, sandbox.NotFound) {
			t.Errorf("another tenant finds one: %v", err)
		}
		if _, err := w.m.SnapshotByID(t.Context(), "t", first.ID); !errors.Is(err, sandbox.NotFound) {
			t.Errorf("the first is there: %v", err)
		}
		if _, err := w.m.End(t.Context(), "t", builder.ID, sandbox.CauseReleased); err != nil {
			t.Fatal(err)
		}
		w.pass(sandbox.LayerLife / 2)
		user := w.create("t", sandbox.CreateRequest{Snapshot: again.ID, Timeout: sandbox.MaxTimeout})
		if _, err := w.m.End(t.Context(), "t", user.ID, sandbox.CauseReleased); err != nil {
			t.Fatal(err)
		}
		w.pass(sandbox.LayerLife/2 + time.Hour)
		has(again) // it was used since
		w.pass(sandbox.LayerLife)
		has()
	})
}

// Only the newest MaxLayers layers are kept.
func TestLayersAreBounded(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		builder := w.create("t", sandbox.CreateRequest{Timeout: sandbox.MaxTimeout})
		var last sandbox.Snapshot
		for i := range sandbox.MaxLayers + 3 {
			var err error
			last, err = w.m.TakeSnapshot(t.Context(), "t", builder.ID, sandbox.SnapshotRequest{Layer: fmt.Sprintf("%064x", i), FilesOnly: true})
			if err != nil {
				t.Fatal(err)
			}
			w.pass(time.Second)
		}
		n := 0
		for query := (sandbox.SnapshotQuery{Layers: true}); ; {
			page, err := w.m.ListSnapshots(t.Context(), "t", query)
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 && page.Snapshots[0].ID != last.ID {
				t.Errorf("the newest is %s, want %s", page.Snapshots[0].ID, last.ID)
			}
			n += len(page.Snapshots)
			if query.Cursor = page.Next; page.Next == "" {
				break
			}
		}
		if n != sandbox.MaxLayers {
			t.Errorf("%d layers, want %d", n, sandbox.MaxLayers)
		}
	})
}

func TestSnapshotQuota(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		snap := w.snapshot(sb.ID, "")
		if err := w.store.SetQuota(t.Context(), "t", &sandbox.Quota{SnapshotBytes: 2*snap.Bytes - 1}); err != nil {
			t.Fatal(err)
		}
		_, err := w.m.TakeSnapshot(t.Context(), "t", sb.ID, sandbox.SnapshotRequest{})
		codetest.Want(t, "one more", err, sandbox.Exhausted)
		w.pause(sb.ID) // which is always possible
		w.resume(sb.ID)
		if forks, err := w.m.Fork(t.Context(), "t", sb.ID, sandbox.ForkRequest{Count: 1}); err != nil || forks[0].Err != nil {
			t.Errorf("Fork = %+v, %v", forks, err)
		}
		if _, err := w.m.DeleteSnapshot(t.Context(), "t", snap.ID); err != nil {
			t.Fatal(err)
		}
		w.reconcile()
	})
}

// Of concurrent Snapshots exactly as many succeed as the quota allows, to the byte. The
// others leave nothing.
func TestSnapshotQuotaOfMany(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const room, callers = 7, 100
		sb := w.create("t", sandbox.CreateRequest{})
		first := w.snapshot(sb.ID, "")
		if err := w.store.SetQuota(t.Context(), "t", &sandbox.Quota{SnapshotBytes: room * first.Bytes}); err != nil {
			t.Fatal(err)
		}
		sandboxes := []string{sb.ID}
		for range 9 {
			sandboxes = append(sandboxes, w.create("t", sandbox.CreateRequest{}).ID)
		}
		var taken atomic.Int64
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				_, err := w.m.TakeSnapshot(t.Context(), "t", sandboxes[i%len(sandboxes)], sandbox.SnapshotRequest{})
				if err == nil {
					taken.Add(1)
				} else if !errors.Is(err, sandbox.Exhausted) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		_, _, used, err := w.store.QuotaOf(t.Context(), "t")
		if err != nil || taken.Load() != room-1 || used.Snapshots != room || used.SnapshotBytes != room*first.Bytes {
			t.Errorf("%d were taken, used %+v, %v", taken.Load(), used, err)
		}
		w.reconcile()
		w.consistent()
	})
}
