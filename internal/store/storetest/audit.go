package storetest

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

func sampleAudit(tenant sandbox.TenantID, n int) sandbox.AuditEntry {
	return sandbox.AuditEntry{
		At: epoch.Add(time.Duration(n) * time.Second), Tenant: tenant, User: "u", Role: sandbox.RoleAdmin, Key: "k1",
		Operation: fmt.Sprint("op", n%2), Target: fmt.Sprint("target", n), Sandbox: fmt.Sprint("box", n), Detail: "d'\n",
		Remote: "::1", Request: "r", Status: 200,
	}
}

// append1 appends an entry and returns it as stored.
func append1(t *testing.T, st sandbox.Store, e sandbox.AuditEntry) sandbox.AuditEntry {
	t.Helper()
	mark, err := st.AppendAudit(t.Context(), e)
	must(t, err)
	e.Seq, e.Hash = mark.Seq, mark.Hash
	return e
}

// chain reads and verifies the whole log.
func chain(t *testing.T, st sandbox.Store) (first sandbox.AuditMark, all []sandbox.AuditEntry) {
	t.Helper()
	var mark sandbox.AuditMark
	must(t, st.ReadAudit(t.Context(), func(m sandbox.AuditMark) error {
		first, mark = m, m
		return nil
	}, func(e sandbox.AuditEntry) (err error) {
		all = append(all, e)
		mark, err = mark.Follow(e)
		return err
	}))
	return first, all
}

func auditRoundTrip(t *testing.T, st sandbox.Store) {
	if first, all := chain(t, st); first != (sandbox.AuditMark{}) || len(all) != 0 {
		t.Errorf("an empty log has %v, %v", first, all)
	}
	var wrote []sandbox.AuditEntry
	for n, tenant := range []sandbox.TenantID{"a", "b", "a", ""} {
		wrote = append(wrote, append1(t, st, sampleAudit(tenant, n)))
	}
	_, all := chain(t, st)
	if !reflect.DeepEqual(all, wrote) || all[0].Seq != 1 || all[3].Seq != 4 {
		t.Errorf("the log is %+v, want %+v", all, wrote)
	}
	stop := errors.New("enough")
	for name, err := range map[string]error{
		"begin": st.ReadAudit(t.Context(), func(sandbox.AuditMark) error { return stop }, nil),
		"each":  st.ReadAudit(t.Context(), func(sandbox.AuditMark) error { return nil }, func(sandbox.AuditEntry) error { return stop }),
	} {
		if !errors.Is(err, stop) {
			t.Errorf("the error of %s becomes %v", name, err)
		}
	}
}

// The entry of a request that started Sandboxes is written only if all of them are recorded
// as started.
func auditOfStarted(t *testing.T, st sandbox.Store) {
	started, starting := insert(t, st, sample("t")), insert(t, st, sample("t"))
	must(t, started.To(sandbox.Running))
	started, err := st.UpdateSandbox(t.Context(), started)
	must(t, err)
	o := sampleOnce("t")
	beginOnce(t, st, o, time.Time{}, true)
	o.Status = 201
	for which, id := range map[string]string{"a sandbox without a record": sandbox.NewSandboxID(), "a sandbox that is starting": starting.ID} {
		_, err := st.AppendAudit(t.Context(), sampleAudit("t", 0), started.ID, id)
		_, finishErr := st.FinishIdempotent(t.Context(), o, sampleAudit("t", 0), id)
		if !errors.Is(err, sandbox.ErrLost) || !errors.Is(finishErr, sandbox.ErrLost) {
			t.Errorf("the entry about %s = %v, with its answer %v", which, err, finishErr)
		}
	}
	if _, all := chain(t, st); len(all) != 0 {
		t.Errorf("the log has %+v", all)
	}
	if there := beginOnce(t, st, o, time.Time{}, false); there.Status != 0 {
		t.Errorf("the answer is stored: %+v", there)
	}
	_, err = st.FinishIdempotent(t.Context(), o, sampleAudit("t", 0), started.ID)
	must(t, err)
	must(t, started.To(sandbox.Stopping))
	started, err = st.UpdateSandbox(t.Context(), started)
	must(t, err)
	_, err = st.AppendAudit(t.Context(), sampleAudit("t", 0), started.ID)
	must(t, err)
	if _, all := chain(t, st); len(all) != 2 {
		t.Errorf("the log has %+v", all)
	}
}

func auditAtOnce(t *testing.T, st sandbox.Store) {
	const writers, each = 16, 20
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for n := range each {
				if _, err := st.AppendAudit(t.Context(), sampleAudit(sandbox.TenantID(fmt.Sprint(w)), n)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if _, got := chain(t, st); len(got) != writers*each {
		t.Errorf("the log has %d entries, want %d", len(got), writers*each)
	}
}

// pages reads all pages of a query and returns the Targets.
func pages(t *testing.T, st sandbox.Store, tenant sandbox.TenantID, q sandbox.AuditQuery) (targets []string) {
	t.Helper()
	for {
		page, err := st.ListAudit(t.Context(), tenant, q)
		must(t, err)
		for _, e := range page.Entries {
			if e.Tenant != tenant {
				t.Fatalf("%q sees an entry of %q", tenant, e.Tenant)
			}
			targets = append(targets, e.Target)
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			return targets
		}
	}
}

func auditLists(t *testing.T, st sandbox.Store) {
	for n := range 6 {
		e := sampleAudit("a", n)
		if n == 4 || n == 5 { // at one time
			e.At = epoch.Add(4 * time.Second)
		}
		if n == 3 {
			e.User, e.Key, e.Status, e.Code = "v", "", 403, string(sandbox.Denied)
		}
		if n == 2 {
			e.Code = string(sandbox.NotFound)
		}
		append1(t, st, e)
		append1(t, st, sampleAudit("other", n))
	}
	for _, tt := range []struct {
		name  string
		query sandbox.AuditQuery
		want  string
	}{
		{"all", sandbox.AuditQuery{}, "[target5 target4 target3 target2 target1 target0]"},
		{"since", sandbox.AuditQuery{Since: epoch.Add(3 * time.Second)}, "[target5 target4 target3]"},
		{"until", sandbox.AuditQuery{Until: epoch.Add(2 * time.Second)}, "[target1 target0]"},
		{"a user", sandbox.AuditQuery{Actor: "v"}, "[target3]"},
		{"a key", sandbox.AuditQuery{Actor: "k1", Until: epoch.Add(2 * time.Second)}, "[target1 target0]"},
		{"an operation", sandbox.AuditQuery{Operation: "op1"}, "[target5 target3 target1]"},
		{"a target", sandbox.AuditQuery{Target: "target1"}, "[target1]"},
		{"a sandbox", sandbox.AuditQuery{Target: "box1"}, "[target1]"},
		{"denied", sandbox.AuditQuery{Outcome: sandbox.AuditDenied}, "[target3]"},
		{"failed", sandbox.AuditQuery{Outcome: sandbox.AuditFailed}, "[target2]"},
		{"none", sandbox.AuditQuery{Operation: "x"}, "[]"},
	} {
		for _, limit := range []int{0, 1, 2, 6} {
			tt.query.Limit = limit
			if got := fmt.Sprint(pages(t, st, "a", tt.query)); got != tt.want {
				t.Errorf("%s by %d: %s, want %s", tt.name, limit, got, tt.want)
			}
		}
	}
	for _, q := range []sandbox.AuditQuery{{Limit: -1}, {Limit: sandbox.MaxAuditPage + 1}, {Cursor: "x"}, {Cursor: "AAAA"}} {
		_, err := st.ListAudit(t.Context(), "a", q)
		codetest.Want(t, fmt.Sprintf("%+v", q), err, sandbox.Invalid)
	}
	// Another Tenant's cursor shows nothing of that Tenant.
	page, err := st.ListAudit(t.Context(), "other", sandbox.AuditQuery{Limit: 2})
	must(t, err)
	pages(t, st, "a", sandbox.AuditQuery{Cursor: page.Next})
}

func auditTrims(t *testing.T, st sandbox.Store) {
	for n := range 6 {
		append1(t, st, sampleAudit("a", n))
	}
	for _, tt := range []struct {
		before      time.Time
		limit, want int
		left        int64 // the first Seq
	}{
		{epoch, 100, 0, 1},
		{epoch.Add(2 * time.Second), 100, 2, 3},
		{epoch.Add(time.Hour), 1, 1, 4},
		{epoch.Add(2 * time.Second), 100, 0, 4},
	} {
		n, err := st.TrimAudit(t.Context(), tt.before, tt.limit)
		first, all := chain(t, st)
		if err != nil || n != tt.want || first.Seq != tt.left-1 || all[0].Seq != tt.left {
			t.Errorf("up to %v, %d: removed %d, %v, %d are left after %d", tt.before, tt.limit, n, err, len(all), first.Seq)
		}
	}
	if n, err := st.TrimAudit(t.Context(), epoch.Add(time.Hour), 100); err != nil || n != 3 {
		t.Errorf("removed %d, %v", n, err)
	}
	append1(t, st, sampleAudit("a", 7))
	if first, all := chain(t, st); first.Seq != 6 || len(all) != 1 || all[0].Seq != 7 {
		t.Errorf("after all were removed: %v, %v", first, all)
	}
}
