package storetest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

const role = "session-manager"

func claim(holder string) sandbox.LeaderClaim {
	return sandbox.LeaderClaim{Role: role, Holder: holder, Address: "unix:/" + holder}
}

// lead takes or renews the lead of a holder.
func lead(t *testing.T, st sandbox.Store, holder string, life time.Duration, wantEpoch int64) sandbox.Leader {
	t.Helper()
	got, err := st.Lead(t.Context(), claim(holder), life)
	if want := (sandbox.Leader{LeaderClaim: claim(holder), Epoch: wantEpoch, Left: life}); err != nil || got != want {
		t.Fatalf("Lead = %+v, %v, want %+v", got, err, want)
	}
	return got
}

func leading(t *testing.T, st sandbox.Store) {
	ctx := t.Context()
	_, err := st.LeaderOf(ctx, role)
	codetest.Want(t, "the leader of a role without one", err, sandbox.NotFound)
	must(t, st.Resign(ctx, role, "a"))
	first := lead(t, st, "a", time.Minute, 1)
	lead(t, st, "a", time.Hour, 1)
	_, err = st.Lead(ctx, claim("b"), time.Hour)
	codetest.Want(t, "the lead that another has", err, sandbox.Conflict)
	if got, err := st.Lead(ctx, sandbox.LeaderClaim{Role: "other", Holder: "b"}, time.Hour); err != nil || got.Epoch != 1 {
		t.Errorf("the lead of another role: %+v, %v", got, err)
	}
	got, err := st.LeaderOf(ctx, role)
	if err != nil || got.LeaderClaim != first.LeaderClaim || got.Epoch != 1 || got.Left > time.Hour || got.Left < time.Hour-time.Minute {
		t.Errorf("LeaderOf = %+v, %v", got, err)
	}
	must(t, st.Resign(ctx, role, "b")) // it does not lead
	lead(t, st, "a", time.Hour, 1)
	must(t, st.Resign(ctx, role, "a"))
	if got, err := st.LeaderOf(ctx, role); err != nil || got.LeaderClaim != first.LeaderClaim || got.Left > 0 {
		t.Errorf("LeaderOf once it has resigned = %+v, %v", got, err)
	}
	lead(t, st, "b", -time.Second, 2)
	must(t, st.Resign(ctx, role, "b"))
	lead(t, st, "b", -time.Second, 3) // its own term, which expired
	lead(t, st, "a", time.Hour, 4)
}

func formerLeader(t *testing.T, st sandbox.Store) {
	ctx := t.Context()
	lost := 0
	under := func(l sandbox.Leader) sandbox.Store { return st.Under(l, func() { lost++ }) }
	first := under(lead(t, st, "a", time.Hour, 1))
	sb, err := first.InsertSandbox(ctx, sample("t"))
	if err != nil {
		t.Fatal(err)
	}
	must(t, first.CheckWrite(ctx))
	free := st
	beginOnce(t, free, sampleOnce("t"), time.Time{}, true)
	refused := func(name string, st sandbox.Store) {
		t.Helper()
		before := lost
		for what, write := range map[string]func() error{
			"an insert": func() error { _, err := st.InsertSandbox(ctx, sample("t")); return err },
			"an update": func() error { _, err := st.UpdateSandbox(ctx, sb); return err },
			"a delivery": func() error {
				return st.EndDelivery(ctx, sandbox.Delivery{}, true)
			},
			"usage":  func() error { return st.CountUsage(ctx, []string{sb.ID}, epoch.Add(time.Hour)) },
			"a trim": func() error { _, err := st.DeleteEnded(ctx, epoch, epoch); return err },
			"a drop": func() error { return st.DropIdempotent(ctx, sampleOnce("t")) },
		} {
			err := write()
			codetest.Want(t, what+" of "+name, err, sandbox.Unavailable)
			if !errors.Is(err, sandbox.ErrNotLeading) {
				t.Errorf("%s of %s: %v", what, name, err)
			}
		}
		if lost != before+6 {
			t.Errorf("%s was told of %d refusals", name, lost-before)
		}
		beginOnce(t, free, sampleOnce("t"), time.Time{}, false)
		if got, err := st.SandboxByID(ctx, sb.ID); err != nil || got.Version != sb.Version {
			t.Errorf("a read of %s: %+v, %v", name, got, err)
		}
	}
	must(t, st.Resign(ctx, role, "a"))
	refused("one that has resigned", first)
	again := under(lead(t, st, "a", time.Hour, 2))
	refused("its term before", first)
	if sb, err = again.UpdateSandbox(ctx, sb); err != nil {
		t.Error(err)
	}
	must(t, st.Resign(ctx, role, "a"))
	expired := under(lead(t, st, "b", -time.Second, 3))
	refused("one whose lease expired", expired)
	third := under(lead(t, st, "c", time.Hour, 4))
	refused("one that another has replaced", again)
	if n := lost; third.CheckWrite(ctx) != nil || n != lost {
		t.Error("the leader's write was refused")
	}
	refused("one of a role without a leader", under(sandbox.Leader{LeaderClaim: sandbox.LeaderClaim{Role: "none", Holder: "a"}, Epoch: 1}))
	must(t, third.Close()) // of the leader, not of the database
	if _, err := st.InsertSandbox(ctx, sample("t")); err != nil {
		t.Errorf("a write that needs no leader: %v", err)
	}
	if _, err := third.InsertSandbox(ctx, sample("t")); err != nil {
		t.Errorf("a leader's write: %v", err)
	}
}

func pairLeaders(t *testing.T, both [2]sandbox.Store) {
	var last int64
	for range 5 {
		var leads atomic.Int64
		var won sandbox.Leader
		atOnce(both, 10, func(i int, st sandbox.Store) {
			switch l, err := st.Lead(t.Context(), claim(fmt.Sprint("h", i)), time.Hour); {
			case err == nil:
				leads.Add(1)
				won = l
			case sandbox.CodeOf(err) != sandbox.Conflict:
				t.Error(err)
			}
		})
		if leads.Load() != 1 || won.Epoch <= last {
			t.Fatalf("%d lead, the term %d after %d", leads.Load(), won.Epoch, last)
		}
		last = won.Epoch
		for _, st := range both {
			if got, err := st.LeaderOf(t.Context(), role); err != nil || got.Holder != won.Holder || got.Epoch != won.Epoch {
				t.Errorf("LeaderOf = %+v, %v, want %+v", got, err, won)
			}
		}
		must(t, both[1].Resign(t.Context(), role, won.Holder))
	}
}

func pairFormerLeader(t *testing.T, both [2]sandbox.Store) {
	ctx := t.Context()
	first := both[0].Under(lead(t, both[0], "a", time.Hour, 1), nil)
	sb, err := first.InsertSandbox(ctx, sample("t"))
	if err != nil {
		t.Fatal(err)
	}
	taken := make(chan sandbox.Leader, 1)
	var old, refused atomic.Int64
	atOnce(both, 20, func(i int, _ sandbox.Store) {
		if i == 10 {
			resigned := both[1].Resign(ctx, role, "a")
			l, err := both[1].Lead(ctx, claim("b"), time.Hour)
			if err := errors.Join(resigned, err); err != nil {
				t.Error(err)
			}
			taken <- l
			return
		}
		switch _, err := first.InsertSandbox(ctx, sample("t")); {
		case err == nil:
			old.Add(1)
		case errors.Is(err, sandbox.ErrNotLeading):
			refused.Add(1)
		default:
			t.Error(err)
		}
	})
	second := both[1].Under(<-taken, nil)
	if sb, err = second.UpdateSandbox(ctx, sb); err != nil {
		t.Fatal(err)
	}
	_, err = first.UpdateSandbox(ctx, sb)
	codetest.Want(t, "a write of the former leader", err, sandbox.Unavailable)
	all, err := both[1].SandboxesNotEnded(ctx)
	if err != nil || int64(len(all)) != 1+old.Load() || old.Load()+refused.Load() != 19 {
		t.Errorf("%d records, %v, after %d answered and %d refused inserts", len(all), err, old.Load(), refused.Load())
	}
}
