package storetest

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

// pairCases cover two Stores on one database, as two processes have them.
var pairCases = []struct {
	name  string
	check func(t *testing.T, both [2]sandbox.Store)
}{
	{"what one writes the other reads", pairReads},
	{"a quota holds over both", pairQuota},
	{"a snapshot is retired or needed", pairSnapshots},
	{"a pack is deleted or used", pairPacks},
	{"a former leader collects nothing", pairCollectors},
	{"a volume is deleted or used", pairVolumes},
	{"a request takes effect once", pairIdempotency},
	{"of updates of one version one wins", pairVersions},
	{"the audit log is one chain", pairAudit},
	{"usage is counted once", pairUsage},
	{"events are counted together", pairEvents},
	{"a node's name has one holder", pairLeases},
	{"a role has one leader", pairLeaders},
	{"of the writes of two leaders those of the present one count", pairFormerLeader},
}

// RunPair checks what holds between two Stores on one database. open returns them, empty,
// and registers their cleanup; RunPair calls it once per case.
func RunPair(t *testing.T, open func(t *testing.T) [2]sandbox.Store) {
	for _, c := range pairCases {
		t.Run(c.name, func(t *testing.T) { c.check(t, open(t)) })
	}
}

// atOnce calls do n times at once, with each Store in turn.
func atOnce(both [2]sandbox.Store, n int, do func(i int, st sandbox.Store)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { do(i, both[i%2]) })
	}
	all.Wait()
}

func pairReads(t *testing.T, both [2]sandbox.Store) {
	sb := insert(t, both[0], sample("t"))
	got, err := both[1].SandboxByID(t.Context(), sb.ID)
	if err != nil || got.Version != sb.Version {
		t.Errorf("the other reads %+v, %v", got, err)
	}
	sb.Timeline++
	update(t, both[1], got)
	_, err = both[0].UpdateSandbox(t.Context(), sb)
	codetest.Want(t, "a write of what the other has changed", err, sandbox.Conflict)
}

func pairQuota(t *testing.T, both [2]sandbox.Store) {
	const room = 7
	must(t, both[0].SetQuota(t.Context(), "t", &sandbox.Quota{Sandboxes: room}))
	var in atomic.Int64
	atOnce(both, 24, func(_ int, st sandbox.Store) {
		switch _, err := st.InsertSandbox(t.Context(), sample("t")); {
		case err == nil:
			in.Add(1)
		case sandbox.CodeOf(err) != sandbox.Exhausted:
			t.Error(err)
		}
	})
	if in.Load() != room {
		t.Errorf("%d got in, want %d", in.Load(), room)
	}
}

func pairSnapshots(t *testing.T, both [2]sandbox.Store) {
	for range 10 {
		snap := insertSnapshot(t, both[0], snapshot("t", "i1"))
		var began, retired atomic.Bool
		atOnce(both, 2, func(i int, st sandbox.Store) {
			if i == 0 {
				sb := sample("t")
				sb.Snapshot = snap.ID
				_, err := st.InsertSandbox(t.Context(), sb)
				began.Store(err == nil)
				return
			}
			retired.Store(st.RetireSnapshot(t.Context(), snap.ID, false) == nil)
		})
		if began.Load() == retired.Load() {
			t.Fatalf("a sandbox began from it: %t, it was retired: %t", began.Load(), retired.Load())
		}
	}
}

func pairVolumes(t *testing.T, both [2]sandbox.Store) {
	for i := range 10 {
		v := sandbox.Volume{ID: sandbox.NewVolumeID(), Tenant: "t", Name: fmt.Sprint("v", i), State: sandbox.VolumeReady, Node: "local", MaxBytes: 1, CreatedAt: epoch}
		if _, err := both[0].InsertVolume(t.Context(), v); err != nil {
			t.Fatal(err)
		}
		var used, deleted atomic.Bool
		atOnce(both, 2, func(i int, st sandbox.Store) {
			if i == 0 {
				sb := sample("t")
				sb.Volumes = []sandbox.VolumeMount{{Volume: v.ID, Name: v.Name, Path: "/v"}}
				_, err := st.InsertSandbox(t.Context(), sb)
				used.Store(err == nil)
				return
			}
			deleted.Store(st.MoveVolume(t.Context(), v.ID, sandbox.VolumeReady, sandbox.VolumeDeleting) == nil)
		})
		if used.Load() == deleted.Load() {
			t.Fatalf("a sandbox has it: %t, it was deleted: %t", used.Load(), deleted.Load())
		}
	}
}

func pairIdempotency(t *testing.T, both [2]sandbox.Store) {
	var began atomic.Int64
	atOnce(both, 20, func(_ int, st sandbox.Store) {
		switch _, first, err := st.BeginIdempotent(t.Context(), sampleOnce("t"), time.Time{}); {
		case err != nil:
			t.Error(err)
		case first:
			began.Add(1)
		}
	})
	if began.Load() != 1 {
		t.Errorf("%d began", began.Load())
	}
}

func pairVersions(t *testing.T, both [2]sandbox.Store) {
	sb := insert(t, both[0], sample("t"))
	var wins atomic.Int64
	atOnce(both, 20, func(i int, st sandbox.Store) {
		mine := sb
		mine.Timeline = int64(100 + i)
		switch _, err := st.UpdateSandbox(t.Context(), mine); {
		case err == nil:
			wins.Add(1)
		case sandbox.CodeOf(err) != sandbox.Conflict:
			t.Error(err)
		}
	})
	if wins.Load() != 1 {
		t.Errorf("%d won", wins.Load())
	}
}

func pairAudit(t *testing.T, both [2]sandbox.Store) {
	const writers, each = 8, 10
	atOnce(both, writers, func(w int, st sandbox.Store) {
		for n := range each {
			if _, err := st.AppendAudit(t.Context(), sampleAudit("t", w*each+n)); err != nil {
				t.Error(err)
			}
		}
	})
	if _, got := chain(t, both[0]); len(got) != writers*each {
		t.Errorf("the log has %d entries, want %d", len(got), writers*each)
	}
}

func pairUsage(t *testing.T, both [2]sandbox.Store) {
	sb := sample("t")
	sb.State, sb.MeteredAt = sandbox.Running, epoch
	sb = insert(t, both[0], sb)
	atOnce(both, 10, func(_ int, st sandbox.Store) {
		if err := st.CountUsage(t.Context(), []string{sb.ID}, epoch.Add(time.Minute)); err != nil {
			t.Error(err)
		}
	})
	page, err := both[1].Usage(t.Context(), sandbox.UsageQuery{Tenant: "t", From: sandbox.DayOf(epoch), To: sandbox.DayOf(epoch) + 1})
	if err != nil || len(page.Rows) != 1 || page.Rows[0].Seconds != 60 {
		t.Errorf("counted are %+v, %v, want 60 s", page.Rows, err)
	}
}

func pairEvents(t *testing.T, both [2]sandbox.Store) {
	const callers = 20
	hooked(t, both[0], "w")
	event := sandbox.Event{Kind: sandbox.EventLimitKill, Sandbox: "i1", Name: strings.Repeat("é", 100)}
	atOnce(both, callers, func(_ int, st sandbox.Store) {
		if err := st.QueueEvents(t.Context(), []sandbox.Event{event}, time.Second); err != nil {
			t.Error(err)
		}
	})
	var told int64
	for _, d := range waits(t, both[1], "w") {
		told += d.Event.Count
		must(t, both[0].EndDelivery(t.Context(), d, true))
	}
	if told != callers {
		t.Errorf("%d were told, want %d", told, callers)
	}
}

func pairLeases(t *testing.T, both [2]sandbox.Store) {
	var have atomic.Int64
	atOnce(both, 10, func(i int, st sandbox.Store) {
		_, err := st.RenewLease(t.Context(), sandbox.NodeRecord{Name: "a", Engine: "fake", Holder: fmt.Sprint("h", i)}, time.Minute)
		switch {
		case err == nil:
			have.Add(1)
		case sandbox.CodeOf(err) != sandbox.Conflict:
			t.Error(err)
		}
	})
	if have.Load() != 1 {
		t.Errorf("%d have the lease of one name", have.Load())
	}
}
