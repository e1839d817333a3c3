package storetest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

func tenantRoundTrip(t *testing.T, st sandbox.Store) {
	acme := sandbox.Tenant{
		ID: "acme", Name: "Acme é", Parent: "", CreatedAt: epoch,
		Suspended: &sandbox.Suspension{At: epoch.Add(time.Hour), Reason: `it "mines"`},
	}
	must(t, st.InsertTenant(t.Context(), acme))
	codetest.Want(t, "the same ID", st.InsertTenant(t.Context(), sandbox.Tenant{ID: "acme", CreatedAt: epoch}), sandbox.Conflict)
	got, err := st.TenantByID(t.Context(), "acme")
	if err != nil || !reflect.DeepEqual(got, acme) {
		t.Errorf("TenantByID = %+v, %v, want %+v", got, err, acme)
	}
	_, err = st.TenantByID(t.Context(), "ACME")
	codetest.Want(t, "another ID", err, sandbox.NotFound)
	must(t, st.NoteTenants(t.Context(), []sandbox.Tenant{
		{ID: "acme", Name: "no", CreatedAt: epoch.Add(time.Hour)}, {ID: "sha256:1", CreatedAt: epoch},
	}))
	must(t, st.NoteTenants(t.Context(), []sandbox.Tenant{{ID: "sha256:1", Parent: "acme", CreatedAt: epoch.Add(time.Hour)}}))
	must(t, st.NoteTenants(t.Context(), []sandbox.Tenant{{ID: "sha256:1", Parent: "other", CreatedAt: epoch.Add(time.Hour)}}))
	if got, err := st.TenantByID(t.Context(), "acme"); err != nil || !reflect.DeepEqual(got, acme) {
		t.Errorf("noted again: %+v, %v", got, err)
	}
	if got, err := st.TenantByID(t.Context(), "sha256:1"); err != nil || got.Parent != "acme" || !got.CreatedAt.Equal(epoch) {
		t.Errorf("the parent is added once: %+v, %v", got, err)
	}
}

func tenantChanges(t *testing.T, st sandbox.Store) {
	must(t, st.InsertTenant(t.Context(), sandbox.Tenant{ID: "t", CreatedAt: epoch}))
	suspended, active := sandbox.TenantSuspended, sandbox.TenantActive
	_, _, err := st.ChangeTenant(t.Context(), "none", sandbox.TenantChange{}, epoch)
	codetest.Want(t, "an absent one", err, sandbox.NotFound)
	before, after, err := st.ChangeTenant(t.Context(), "t", sandbox.TenantChange{State: &suspended, Reason: "why"}, epoch)
	if err != nil || before.Suspended != nil || after.Suspended == nil || *after.Suspended != (sandbox.Suspension{At: epoch, Reason: "why"}) {
		t.Errorf("suspended: %+v, %+v, %v", before, after, err)
	}
	name := "T"
	_, after, err = st.ChangeTenant(t.Context(), "t", sandbox.TenantChange{Name: &name}, epoch.Add(time.Hour))
	if got, _ := st.TenantByID(t.Context(), "t"); err != nil || !reflect.DeepEqual(got, after) || got.Name != "T" || got.State() != suspended {
		t.Errorf("renamed: %+v, %v", got, err)
	}
	if _, after, err = st.ChangeTenant(t.Context(), "t", sandbox.TenantChange{State: &active}, epoch); err != nil || after.State() != active {
		t.Errorf("resumed: %+v, %v", after, err)
	}
}

func tenantLists(t *testing.T, st sandbox.Store) {
	suspended := sandbox.TenantSuspended
	for i := range 7 {
		id := sandbox.TenantID(fmt.Sprintf("t%d", i))
		must(t, st.InsertTenant(t.Context(), sandbox.Tenant{ID: id, CreatedAt: epoch}))
		if i%3 == 0 {
			_, _, err := st.ChangeTenant(t.Context(), id, sandbox.TenantChange{State: &suspended, Reason: "x"}, epoch)
			must(t, err)
		}
	}
	for state, want := range map[sandbox.TenantState]string{
		"": "t0 t1 t2 t3 t4 t5 t6", sandbox.TenantActive: "t1 t2 t4 t5", suspended: "t0 t3 t6",
	} {
		var got []string
		q := sandbox.TenantQuery{State: state, Limit: 2}
		for {
			page, err := st.ListTenants(t.Context(), q)
			if err != nil || len(page.Tenants) > 2 {
				t.Fatalf("%d tenants, %v", len(page.Tenants), err)
			}
			for _, one := range page.Tenants {
				got = append(got, string(one.ID))
			}
			if q.Cursor = page.Next; q.Cursor == "" {
				break
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("of state %q there are %v, want %s", state, got, want)
		}
	}
	for _, q := range []sandbox.TenantQuery{{Limit: -1}, {Limit: sandbox.MaxTenantPage + 1}, {Cursor: "%"}} {
		_, err := st.ListTenants(t.Context(), q)
		codetest.Want(t, fmt.Sprintf("%+v", q), err, sandbox.Invalid)
	}
}

func tenantSuspensions(t *testing.T, st sandbox.Store) {
	must(t, st.NoteTenants(t.Context(), []sandbox.Tenant{
		{ID: "a", CreatedAt: epoch},
		{ID: "a/b", Parent: "a", CreatedAt: epoch},
		{ID: "sha256:1", Parent: "a/b", CreatedAt: epoch},
		{ID: "sha256:2", Parent: "sha256:1", CreatedAt: epoch},
		{ID: "c", CreatedAt: epoch},
		{ID: "sha256:3", Parent: "c", CreatedAt: epoch},
		{ID: "sha256:4", CreatedAt: epoch},
	}))
	check := func(want ...sandbox.TenantID) {
		t.Helper()
		s, err := st.Suspensions(t.Context())
		must(t, err)
		var held []sandbox.TenantID
		for _, id := range []sandbox.TenantID{"a", "a/b", "a/b/c", "aa", "c", "c/d", "sha256:1", "sha256:2", "sha256:2/x", "sha256:3", "sha256:4"} {
			if s.Hold(id) {
				held = append(held, id)
			}
		}
		if !slices.Equal(held, want) {
			t.Errorf("held are %v, want %v", held, want)
		}
	}
	set := func(id sandbox.TenantID, state sandbox.TenantState) {
		_, _, err := st.ChangeTenant(t.Context(), id, sandbox.TenantChange{State: &state, Reason: "x"}, epoch)
		must(t, err)
	}
	check()
	set("a", sandbox.TenantSuspended)
	check("a", "a/b", "a/b/c", "sha256:1", "sha256:2", "sha256:2/x")
	set("sha256:3", sandbox.TenantSuspended)
	set("a", sandbox.TenantActive)
	check("sha256:3")
	set("sha256:3", sandbox.TenantActive)
	set("a/b", sandbox.TenantSuspended)
	check("a/b", "a/b/c", "sha256:1", "sha256:2", "sha256:2/x")
}

func tenantDeletes(t *testing.T, st sandbox.Store) {
	codetest.Want(t, "an absent one", st.DeleteTenant(t.Context(), "t"), sandbox.NotFound)
	must(t, st.NoteTenants(t.Context(), []sandbox.Tenant{{ID: "t", CreatedAt: epoch}, {ID: "other", CreatedAt: epoch}, {ID: "t/b", Parent: "t", CreatedAt: epoch}}))
	key, others := sampleKey("t"), sampleKey("other")
	must(t, st.InsertKey(t.Context(), key))
	must(t, st.InsertKey(t.Context(), others))
	must(t, st.SetQuota(t.Context(), "t", &sandbox.Quota{Sandboxes: 9}))
	sb := insert(t, st, sample("t"))
	snap := insertSnapshot(t, st, snapshot("t", "i1"))
	refused := func(what string) {
		t.Helper()
		if err := st.DeleteTenant(t.Context(), "t"); sandbox.CodeOf(err) != sandbox.Conflict || !strings.Contains(err.Error(), what) {
			t.Errorf("with %s: %v", what, err)
		}
	}
	refused("1 sessions")
	end(t, st, sb, epoch)
	refused("1 snapshots")
	must(t, st.RetireSnapshot(t.Context(), snap.ID, false))
	must(t, st.DropSnapshot(t.Context(), snap.ID))
	volume := insertVolume(t, st, sampleVolume("t", "a"))
	refused("1 volumes")
	must(t, st.MoveVolume(t.Context(), volume.ID, volume.State, sandbox.VolumeDeleting))
	must(t, st.DropVolume(t.Context(), volume.ID))
	refused("1 tenants below")
	if _, err := st.KeyByHash(t.Context(), key.Hash); err != nil {
		t.Errorf("a tenant that was not deleted keeps its key: %v", err)
	}
	must(t, st.DeleteTenant(t.Context(), "t/b"))
	must(t, st.DeleteTenant(t.Context(), "t"))
	_, err := st.TenantByID(t.Context(), "t")
	codetest.Want(t, "a deleted one", err, sandbox.NotFound)
	_, err = st.KeyByHash(t.Context(), key.Hash)
	codetest.Want(t, "its key", err, sandbox.NotFound)
	if _, own, _, err := st.QuotaOf(t.Context(), "t"); err != nil || own {
		t.Errorf("its quota stays: %v, %v", own, err)
	}
	if _, err := st.KeyByHash(t.Context(), others.Hash); err != nil {
		t.Errorf("another's key: %v", err)
	}
	if _, err := st.SandboxByID(t.Context(), sb.ID); err != nil {
		t.Errorf("its termination record: %v", err)
	}
}
