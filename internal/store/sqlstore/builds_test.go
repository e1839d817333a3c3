package sqlstore_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/postgrestest"
)

// Processes that share a database see each other's builds, and take one only once.
func TestSharedBuilds(t *testing.T) {
	address := postgrestest.Start(t).Address(t)
	a, b := openPostgres(t, address).SharedBuilds(), openPostgres(t, address).SharedBuilds()
	ctx := t.Context()
	sent := sandbox.BuildRecord{ID: "b1", Tenant: "t", State: sandbox.RecordWaiting, Body: []byte("{\"a\":\"\x00\"}"), Log: []byte("[1]"), Changes: 1}
	codetest.OK(t, "PutBuildRecord", a.PutBuildRecord(ctx, sent))
	got, err := b.BuildRecord(ctx, "t", "b1", 0)
	if err != nil || got.State != sent.State || string(got.Body) != string(sent.Body) || string(got.Log) != "[1]" || got.Changes != 1 || got.Cancel || got.Silence < 0 || got.Silence > time.Minute {
		t.Errorf("BuildRecord = %+v, %v", got, err)
	}
	if got, err := b.BuildRecord(ctx, "t", "b1", 1); err != nil || got.Log != nil {
		t.Errorf("BuildRecord without changes = %+v, %v", got, err)
	}
	codetest.Want(t, "BuildRecord of another's", codetest.ErrOf(b.BuildRecord(ctx, "other", "b1", 0)), sandbox.NotFound)
	codetest.Want(t, "TakeBuildRecord of another's", codetest.ErrOf(b.TakeBuildRecord(ctx, "other", "b1")), sandbox.NotFound)
	codetest.Want(t, "CancelBuildRecord of a waiting one", b.CancelBuildRecord(ctx, "t", "b1"), sandbox.Conflict)
	codetest.Want(t, "TouchBuildRecord of none", codetest.ErrOf(b.TouchBuildRecord(ctx, "none")), sandbox.NotFound)
	var taken, refused atomic.Int64
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			from := a
			if i%2 == 0 {
				from = b
			}
			switch r, err := from.TakeBuildRecord(ctx, "t", "b1"); {
			case err == nil && r.State == sandbox.RecordTaken && string(r.Body) == string(sent.Body):
				taken.Add(1)
			case sandbox.CodeOf(err) == sandbox.Conflict:
				refused.Add(1)
			default:
				t.Errorf("TakeBuildRecord = %+v, %v", r, err)
			}
		})
	}
	all.Wait()
	if taken.Load() != 1 || refused.Load() != 7 {
		t.Errorf("%d took it, and %d were refused", taken.Load(), refused.Load())
	}
	codetest.OK(t, "CancelBuildRecord", a.CancelBuildRecord(ctx, "t", "b1"))
	if cancel, err := b.TouchBuildRecord(ctx, "b1"); err != nil || !cancel {
		t.Errorf("TouchBuildRecord = %v, %v", cancel, err)
	}
	sent.State = sandbox.RecordOver
	codetest.OK(t, "PutBuildRecord again", b.PutBuildRecord(ctx, sent))
	codetest.OK(t, "DeleteBuildRecord in another state", a.DeleteBuildRecord(ctx, "b1", sandbox.RecordWaiting))
	if list, err := a.ListBuildRecords(ctx, "t"); err != nil || len(list) != 1 || list[0].State != sandbox.RecordOver || list[0].Log != nil || !list[0].Cancel {
		t.Errorf("ListBuildRecords = %+v, %v", list, err)
	}
	codetest.OK(t, "DeleteBuildRecord", a.DeleteBuildRecord(ctx, "b1", sandbox.RecordOver))
	if list, err := a.ListBuildRecords(ctx, "t"); err != nil || len(list) != 0 {
		t.Errorf("ListBuildRecords afterwards = %+v, %v", list, err)
	}
}

// All processes see the first process's fingerprint until it is replaced.
func TestFingerprints(t *testing.T) {
	address := postgrestest.Start(t).Address(t)
	a, b := openPostgres(t, address), openPostgres(t, address)
	for _, s := range []struct{ own, want string }{{"x", "x"}, {"y", "x"}} {
		if got, err := a.Fingerprint(t.Context(), "seed", s.own); err != nil || got != s.want {
			t.Errorf("Fingerprint = %q, %v", got, err)
		}
	}
	codetest.OK(t, "SetFingerprint", b.SetFingerprint(t.Context(), "seed", "z"))
	if got, err := a.Fingerprint(t.Context(), "seed", "x"); err != nil || got != "z" {
		t.Errorf("Fingerprint = %q, %v", got, err)
	}
	if got, err := a.Fingerprint(t.Context(), "other", "x"); err != nil || got != "x" {
		t.Errorf("another Fingerprint = %q, %v", got, err)
	}
}
