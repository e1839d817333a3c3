package storetest

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

func quotaRoundTrip(t *testing.T, st sandbox.Store) {
	q, own, used, err := st.QuotaOf(t.Context(), "t")
	if err != nil || own || q != (sandbox.Quota{}) || used != (sandbox.QuotaUse{}) {
		t.Errorf("at first %+v, %v, %+v, %v", q, own, used, err)
	}
	set := sandbox.Quota{Sandboxes: 2, CPUs: 3, MemoryBytes: 1 << 30, DiskBytes: 8 << 30, CreatesPerMinute: 5, SessionLength: time.Minute, SnapshotBytes: 7, Retention: sandbox.Retention{Snapshots: 1, Bytes: 2, Age: time.Hour}}
	must(t, st.SetQuota(t.Context(), "t", &sandbox.Quota{Sandboxes: 1}))
	must(t, st.SetQuota(t.Context(), "t", &set))
	sb := sample("t")
	sb.CreatedAt = time.Now()
	insert(t, st, sb)
	q, own, used, err = st.QuotaOf(t.Context(), "t")
	want := sandbox.QuotaUse{Sandboxes: 1, CPUs: 1.5, MemoryBytes: 512 << 20, DiskBytes: 4 << 30, Creates: 1}
	if err != nil || !own || q != set || used != want {
		t.Errorf("set to %+v, %v, %+v, %v", q, own, used, err)
	}
	for tenant, want := range map[sandbox.TenantID]sandbox.Quota{"t": set, "other": {}} {
		if q, err := st.TenantQuota(t.Context(), tenant); err != nil || q != want {
			t.Errorf("the quota of %s is %+v, %v", tenant, q, err)
		}
	}
	must(t, st.SetQuota(t.Context(), "t", nil))
	if q, own, _, err := st.QuotaOf(t.Context(), "t"); err != nil || own || q != (sandbox.Quota{}) {
		t.Errorf("taken away: %+v, %v, %v", q, own, err)
	}
}

func quotaAdmits(t *testing.T, st sandbox.Store) {
	must(t, st.SetQuota(t.Context(), "t", &sandbox.Quota{Sandboxes: 2}))
	first := insert(t, st, sample("t"))
	insert(t, st, sample("t"))
	_, err := st.InsertSandbox(t.Context(), sample("t"))
	codetest.Want(t, "one too many", err, sandbox.Exhausted)
	_, err = st.InsertSandbox(t.Context(), first)
	codetest.Want(t, "one that is there", err, sandbox.Conflict)
	insert(t, st, sample("other"))
	end(t, st, first, epoch)
	last := insert(t, st, sample("t"))
	for name, q := range map[string]sandbox.Quota{
		"cpus":    {CPUs: 3},
		"memory":  {MemoryBytes: 1 << 30},
		"disk":    {DiskBytes: 9 << 30},
		"creates": {CreatesPerMinute: 3}, // counts the ended one too
	} {
		must(t, st.SetQuota(t.Context(), "t", &q))
		_, err := st.InsertSandbox(t.Context(), sample("t"))
		codetest.Want(t, "beyond "+name, err, sandbox.Exhausted)
		if _, err := st.SandboxByID(t.Context(), last.ID); err != nil {
			t.Error(err)
		}
	}
	must(t, st.SetQuota(t.Context(), "t", &sandbox.Quota{CreatesPerMinute: 4}))
	last.State, last.Ended = sandbox.Ended, &sandbox.TerminationRecord{Cause: sandbox.CauseRefused, At: epoch}
	update(t, st, last) // it no longer counts, unlike other ended ones
	insert(t, st, sample("t"))
	insert(t, st, sample("t"))
	_, err = st.InsertSandbox(t.Context(), sample("t"))
	codetest.Want(t, "beyond creates, but for a refused one", err, sandbox.Exhausted)
	later := sample("t")
	later.CreatedAt = epoch.Add(sandbox.CreateWindow)
	must(t, st.SetQuota(t.Context(), "t", &sandbox.Quota{CreatesPerMinute: 1}))
	insert(t, st, later)
}

func quotaSnapshots(t *testing.T, st sandbox.Store) {
	const each = 12345 // bytes of a sample
	must(t, st.SetQuota(t.Context(), "t", &sandbox.Quota{SnapshotBytes: 3 * each}))
	saving := snapshot("t", "i1")
	saving.State, saving.Bytes = sandbox.SnapshotSaving, 0
	insertSnapshot(t, st, saving)
	paused := snapshot("t", "i1")
	paused.Kept = false
	for _, s := range []sandbox.Snapshot{snapshot("t", "i1"), paused, snapshot("t", "i2")} {
		insertSnapshot(t, st, s)
	}
	_, _, used, err := st.QuotaOf(t.Context(), "t")
	if err != nil || used.Snapshots != 2 || used.SnapshotBytes != 3*each {
		t.Errorf("used %+v, %v", used, err)
	}
	_, err = st.InsertSnapshot(t.Context(), snapshot("t", "i2"))
	codetest.Want(t, "one beyond the quota", err, sandbox.Exhausted)
	must(t, st.SetQuota(t.Context(), "t", &sandbox.Quota{SnapshotBytes: 4*each - 1}))
	next := snapshot("t", "i2")
	next.State, next.Bytes = sandbox.SnapshotSaving, 0
	next = insertSnapshot(t, st, next) // admitted: its size is not known yet
	next.State, next.Bytes = sandbox.SnapshotReady, each
	_, err = st.UpdateSnapshot(t.Context(), next)
	codetest.Want(t, "one that is too big", err, sandbox.Exhausted)
	if r, err := st.SnapshotByID(t.Context(), next.ID); err != nil || r.State != sandbox.SnapshotSaving || r.Bytes != 0 {
		t.Errorf("it became %+v, %v", r, err)
	}
	next.Bytes--
	next, err = st.UpdateSnapshot(t.Context(), next)
	must(t, err)
	next.Name = "named" // it counts already
	if _, err = st.UpdateSnapshot(t.Context(), next); err != nil {
		t.Error(err)
	}
	paused = snapshot("t", "i2")
	paused.Kept = false
	paused = insertSnapshot(t, st, paused) // a session can always pause
	paused.Kept = true
	_, err = st.UpdateSnapshot(t.Context(), paused)
	codetest.Want(t, "keeping what a pause made beyond the quota", err, sandbox.Exhausted)
	insertSnapshot(t, st, snapshot("u", "i3"))
	must(t, st.SetQuota(t.Context(), "t", &sandbox.Quota{Retention: sandbox.Retention{Snapshots: 1}}))
	insertSnapshot(t, st, snapshot("t", "i2"))
	all, err := st.SnapshotTenants(t.Context())
	slices.Sort(all)
	if err != nil || !slices.Equal(all, []sandbox.TenantID{"t", "u"}) {
		t.Errorf("SnapshotTenants = %v, %v", all, err)
	}
}

// Of a hundred Snapshots saved concurrently, exactly as many become ready as the quota
// allows, and then exactly as many more as are deleted.
func quotaSnapshotRace(t *testing.T, st sandbox.Store) {
	const room, callers, each = 37, 100, 1000
	must(t, st.SetQuota(t.Context(), "t", &sandbox.Quota{SnapshotBytes: (room+1)*each - 1}))
	save := func(i int) (sandbox.Snapshot, error) {
		s := snapshot("t", fmt.Sprint("i", i))
		s.State, s.Bytes = sandbox.SnapshotSaving, 0
		s, err := st.InsertSnapshot(t.Context(), s)
		if err != nil {
			return s, err
		}
		s.State, s.Bytes = sandbox.SnapshotReady, each
		return st.UpdateSnapshot(t.Context(), s)
	}
	var mu sync.Mutex
	var in []sandbox.Snapshot
	for round, want := range []int{room, 2} {
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				snap, err := save(i)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					in = append(in, snap)
				} else if sandbox.CodeOf(err) != sandbox.Exhausted {
					t.Error(err)
				}
			})
		}
		all.Wait()
		_, _, used, err := st.QuotaOf(t.Context(), "t")
		if len(in) != want || used.SnapshotBytes != room*each || used.Snapshots != room || err != nil {
			t.Errorf("round %d: %d got in, want %d; used %+v, %v", round, len(in), want, used, err)
		}
		for _, s := range in[:2] {
			must(t, st.RetireSnapshot(t.Context(), s.ID, false))
			must(t, st.DropSnapshot(t.Context(), s.ID))
		}
		in = nil
	}
}

// Of a hundred concurrent inserts, exactly as many succeed as the quota allows.
func quotaRace(t *testing.T, st sandbox.Store) {
	const room, callers = 37, 100
	must(t, st.SetQuota(t.Context(), "t", &sandbox.Quota{Sandboxes: room}))
	var in atomic.Int64
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			_, err := st.InsertSandbox(t.Context(), sample("t"))
			switch sandbox.CodeOf(err) {
			case sandbox.Exhausted:
			default:
				if err != nil {
					t.Error(err)
				}
				in.Add(1)
			}
		})
	}
	all.Wait()
	_, _, used, err := st.QuotaOf(t.Context(), "t")
	if in.Load() != room || used.Sandboxes != room || err != nil {
		t.Errorf("%d got in, %d are there, want %d; %v", in.Load(), used.Sandboxes, room, err)
	}
}
