package storetest

import (
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

func sampleKey(tenant sandbox.TenantID) sandbox.Key {
	return sandbox.Key{
		ID: sandbox.NewKeyID(), Tenant: tenant, Name: "ci", Role: sandbox.RoleAdmin,
		Scopes: []sandbox.Scope{sandbox.ScopeRead, sandbox.ScopeWrite}, CreatedBy: "alice", Hash: sandbox.HashKeySecret(sandbox.NewKeySecret()),
		Hint: "abcd", CreatedAt: epoch, ExpiresAt: epoch.Add(time.Hour), UsedAt: epoch.Add(time.Minute),
	}
}

func keyRoundTrip(t *testing.T, st sandbox.Store) {
	k := sampleKey("t")
	must(t, st.InsertKey(t.Context(), k))
	got, err := st.KeyByHash(t.Context(), k.Hash)
	if err != nil || !reflect.DeepEqual(got, k) {
		t.Errorf("KeyByHash = %+v, %v, want %+v", got, err, k)
	}
	again := k
	again.Hash = sandbox.KeyHash{2}
	codetest.Want(t, "the same ID", st.InsertKey(t.Context(), again), sandbox.Conflict)
	_, err = st.KeyByHash(t.Context(), sandbox.KeyHash{})
	codetest.Want(t, "another hash", err, sandbox.NotFound)
	plain := sandbox.Key{ID: sandbox.NewKeyID(), Tenant: "t", Hash: sandbox.KeyHash{1}, CreatedAt: epoch.Add(time.Second)}
	must(t, st.InsertKey(t.Context(), plain))
	all, err := st.Keys(t.Context(), "t")
	if err != nil || len(all) != 2 || all[0].ID != plain.ID || !all[0].ExpiresAt.IsZero() {
		t.Errorf("Keys = %+v, %v, want the newest first", all, err)
	}
}

func keyTenants(t *testing.T, st sandbox.Store) {
	k := sampleKey("t")
	must(t, st.InsertKey(t.Context(), k))
	if all, err := st.Keys(t.Context(), "other"); err != nil || len(all) > 0 {
		t.Errorf("another tenant sees %+v, %v", all, err)
	}
	codetest.Want(t, "another tenant deletes it", st.DeleteKey(t.Context(), "other", k.ID), sandbox.NotFound)
	must(t, st.DeleteKey(t.Context(), "t", k.ID))
	codetest.Want(t, "a second time", st.DeleteKey(t.Context(), "t", k.ID), sandbox.NotFound)
	_, err := st.KeyByHash(t.Context(), k.Hash)
	codetest.Want(t, "a deleted key", err, sandbox.NotFound)
}

func keyLimit(t *testing.T, st sandbox.Store) {
	for range sandbox.MaxKeys {
		must(t, st.InsertKey(t.Context(), sampleKey("t")))
	}
	codetest.Want(t, "one key too many", st.InsertKey(t.Context(), sampleKey("t")), sandbox.Exhausted)
	must(t, st.InsertKey(t.Context(), sampleKey("other")))
	late := sampleKey("t")
	late.CreatedAt = late.ExpiresAt.Add(sandbox.KeyMemory + time.Second)
	late.ExpiresAt = time.Time{}
	must(t, st.InsertKey(t.Context(), late)) // by now the others are forgotten
	if all, err := st.Keys(t.Context(), "t"); err != nil || len(all) != 1 {
		t.Errorf("%d keys are left, %v", len(all), err)
	}
}

func keyUses(t *testing.T, st sandbox.Store) {
	k := sampleKey("t")
	must(t, st.InsertKey(t.Context(), k))
	later := k.UsedAt.Add(time.Hour)
	for _, at := range []time.Time{later, epoch} {
		must(t, st.UsedKeys(t.Context(), map[sandbox.KeyHash]time.Time{k.Hash: at, {}: at}))
	}
	if got, err := st.KeyByHash(t.Context(), k.Hash); err != nil || !got.UsedAt.Equal(later) {
		t.Errorf("used at %v, %v, want %v", got.UsedAt, err, later)
	}
}

func keyRotates(t *testing.T, st sandbox.Store) {
	k := sampleKey("t")
	must(t, st.InsertKey(t.Context(), k))
	next := k
	next.Hash, next.Hint, next.UsedAt = sandbox.KeyHash{9}, "wxyz", time.Time{}
	next.Previous = sandbox.PreviousSecret{Hash: k.Hash, Hint: k.Hint, Until: epoch.Add(time.Hour), UsedAt: k.UsedAt}
	foreign := next
	foreign.Tenant = "other"
	codetest.Want(t, "another tenant rotates it", st.RotateKey(t.Context(), foreign, k.Hash), sandbox.NotFound)
	must(t, st.RotateKey(t.Context(), next, k.Hash))
	codetest.Want(t, "from a hash that it no longer has", st.RotateKey(t.Context(), next, k.Hash), sandbox.Conflict)
	later := epoch.Add(2 * time.Hour)
	must(t, st.UsedKeys(t.Context(), map[sandbox.KeyHash]time.Time{k.Hash: later}))
	next.Previous.UsedAt = later
	for name, hash := range map[string]sandbox.KeyHash{"the new": next.Hash, "the previous": k.Hash} {
		if got, err := st.KeyByHash(t.Context(), hash); err != nil || !reflect.DeepEqual(got, next) {
			t.Errorf("by %s secret: %+v, %v, want %+v", name, got, err, next)
		}
	}
	must(t, st.InsertKey(t.Context(), sampleKey("t"))) // many Keys were never rotated
	must(t, st.DeleteKey(t.Context(), "t", k.ID))
	_, err := st.KeyByHash(t.Context(), k.Hash)
	codetest.Want(t, "the previous secret of a deleted key", err, sandbox.NotFound)
}

func keyIsRenamed(t *testing.T, st sandbox.Store) {
	k := sampleKey("t")
	must(t, st.InsertKey(t.Context(), k))
	codetest.Want(t, "another tenant renames it", st.RenameKey(t.Context(), "other", k.ID, "theirs"), sandbox.NotFound)
	must(t, st.RenameKey(t.Context(), "t", k.ID, "another"))
	k.Name = "another"
	if got, err := st.KeyByHash(t.Context(), k.Hash); err != nil || !reflect.DeepEqual(got, k) {
		t.Errorf("it became %+v, %v, want %+v", got, err, k)
	}
}

func sampleOnce(tenant sandbox.TenantID) sandbox.IdempotencyRecord {
	return sandbox.IdempotencyRecord{Tenant: tenant, Key: "a", Request: sandbox.KeyHash{7}, Resource: sandbox.NewSandboxID(), At: epoch, Holder: "me"}
}

func beginOnce(t *testing.T, st sandbox.Store, o sandbox.IdempotencyRecord, expired time.Time, wantBegan bool) sandbox.IdempotencyRecord {
	t.Helper()
	there, began, err := st.BeginIdempotent(t.Context(), o, expired)
	if err != nil || began != wantBegan {
		t.Fatalf("BeginIdempotent = %+v, %v, %v, want began = %v", there, began, err, wantBegan)
	}
	return there
}

func finishOnce(t *testing.T, st sandbox.Store, o sandbox.IdempotencyRecord) {
	t.Helper()
	_, err := st.FinishIdempotent(t.Context(), o, sampleAudit(o.Tenant, 0))
	must(t, err)
}

func onceBegins(t *testing.T, st sandbox.Store) {
	o := sampleOnce("t")
	beginOnce(t, st, o, time.Time{}, true)
	second := o
	second.Resource = sandbox.NewSandboxID()
	if there := beginOnce(t, st, second, time.Time{}, false); there.Resource != o.Resource || there.Status != 0 {
		t.Errorf("there is %+v", there)
	}
	o.Status, o.Answer = 201, []byte("{}")
	finishOnce(t, st, o)
	if there := beginOnce(t, st, second, time.Time{}, false); !reflect.DeepEqual(there, o) {
		t.Errorf("there is %+v, want %+v", there, o)
	}
	append1(t, st, sampleAudit("t", 1))
	if _, all := chain(t, st); len(all) != 2 || all[0].Target != "target0" || all[1].Target != "target1" {
		t.Errorf("the log has %+v", all)
	}
	must(t, st.DropIdempotent(t.Context(), o)) // removes only those without an answer
	beginOnce(t, st, second, time.Time{}, false)
	beginOnce(t, st, sampleOnce("other"), time.Time{}, true)
	must(t, st.DropIdempotent(t.Context(), sandbox.IdempotencyRecord{Tenant: "other", Key: "a", Holder: "somebody else"}))
	beginOnce(t, st, sampleOnce("other"), time.Time{}, false)
	must(t, st.DropIdempotent(t.Context(), sampleOnce("other")))
	beginOnce(t, st, sampleOnce("other"), time.Time{}, true)
}

func onceTakeover(t *testing.T, st sandbox.Store) {
	o := sampleOnce("t")
	beginOnce(t, st, o, time.Time{}, true)
	next := o
	next.Holder, next.Resource = "next process", sandbox.NewSandboxID()
	if there := beginOnce(t, st, next, time.Time{}, true); there.Resource != o.Resource || there.Holder != next.Holder {
		t.Errorf("there is %+v", there)
	}
	o.Status = 201
	finishOnce(t, st, o) // from a former Holder: no effect
	other := next
	other.Request = sandbox.KeyHash{8}
	other.Holder = "third"
	if there := beginOnce(t, st, other, time.Time{}, false); there.Status != 0 || there.Holder != next.Holder {
		t.Errorf("there is %+v", there)
	}
}

func onceLetGo(t *testing.T, st sandbox.Store) {
	o := sampleOnce("t")
	beginOnce(t, st, o, time.Time{}, true)
	other := o
	other.Holder = "another process"
	must(t, st.ReleaseIdempotent(t.Context(), other)) // not its own
	beginOnce(t, st, o, time.Time{}, false)
	must(t, st.ReleaseIdempotent(t.Context(), o))
	next := o
	next.Resource = sandbox.NewSandboxID()
	if there := beginOnce(t, st, next, time.Time{}, true); there.Resource != o.Resource || there.Holder != o.Holder {
		t.Errorf("there is %+v", there)
	}
	o.Status = 201
	finishOnce(t, st, o)
	must(t, st.ReleaseIdempotent(t.Context(), o)) // releases only those without an answer
	beginOnce(t, st, next, time.Time{}, false)
}

func onceExpires(t *testing.T, st sandbox.Store) {
	o := sampleOnce("t")
	beginOnce(t, st, o, time.Time{}, true)
	o.Status = 201
	finishOnce(t, st, o)
	beginOnce(t, st, o, epoch.Add(-time.Second), false)
	beginOnce(t, st, o, epoch, true)
	if n, err := st.DeleteIdempotent(t.Context(), epoch); err != nil || n != 0 {
		t.Errorf("DeleteIdempotent = %d, %v", n, err)
	}
	if n, err := st.DeleteIdempotent(t.Context(), epoch.Add(time.Second)); err != nil || n != 1 {
		t.Errorf("DeleteIdempotent = %d, %v", n, err)
	}
}

func onceRace(t *testing.T, st sandbox.Store) {
	var began atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, first, err := st.BeginIdempotent(t.Context(), sampleOnce("t"), time.Time{}); err != nil {
				t.Error(err)
			} else if first {
				began.Add(1)
			}
		})
	}
	wg.Wait()
	if began.Load() != 1 {
		t.Errorf("%d began", began.Load())
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
