package session_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

// A Tenant that has used up its egress quota loses the network until the quota has room
// again.
func TestEgressQuota(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		quota := func(mib int64) {
			t.Helper()
			if err := w.store.SetQuota(t.Context(), "t", &sandbox.Quota{EgressBytes: mib << 20}); err != nil {
				t.Fatal(err)
			}
		}
		quota(1)
		sb, other := w.create("t", sandbox.CreateRequest{}), w.create("other", sandbox.CreateRequest{})
		var carried []sandbox.BootTraffic
		for _, s := range []sandbox.Sandbox{sb, other} {
			ref := sandbox.BootRef{BootID: s.Boot.ID, SandboxID: s.ID, Number: s.Boot.Number, Tenant: s.Tenant}
			carried = append(carried, sandbox.BootTraffic{BootRef: ref, Traffic: sandbox.Traffic{Sent: 1 << 20}})
		}
		w.nodes.carry(carried...)
		w.pass(time.Minute)
		if r := w.record(sb.ID); r.Network != sandbox.NetworkNone || w.told(r).Network != sandbox.NetworkNone {
			t.Errorf("over the quota its network is %s", r.Network)
		}
		if r := w.record(other.ID); r.Network != sandbox.NetworkPublic {
			t.Errorf("the network of another tenant is %s", r.Network)
		}
		public := sandbox.Change{Network: ptr(sandbox.NetworkPublic)}
		_, err := w.m.Create(t.Context(), "t", sandbox.CreateRequest{})
		codetest.Want(t, "a create", err, sandbox.Exhausted)
		_, err = w.m.Update(t.Context(), "t", sb.ID, public)
		codetest.Want(t, "a change of the network", err, sandbox.Exhausted)
		w.create("t", sandbox.CreateRequest{Network: sandbox.NetworkNone})
		quota(2)
		if r := w.update(sb.ID, public); r.Network != sandbox.NetworkPublic {
			t.Errorf("with room again its network is %s", r.Network)
		}
	})
}

// Traffic of a Boot is counted once for the Sandbox's owner, including traffic reported
// after its end.
func TestTraffic(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		sb := w.create("t", sandbox.CreateRequest{})
		boot := sandbox.BootRef{BootID: sb.Boot.ID, SandboxID: sb.ID, Number: sb.Boot.Number, Tenant: sb.Tenant}
		carried := func(sent, received int64) {
			w.nodes.carry(sandbox.BootTraffic{BootRef: boot, Traffic: sandbox.Traffic{Sent: sent, Received: received}})
			w.pass(time.Minute)
		}
		counted := func() (all sandbox.Traffic) {
			day := sandbox.DayOf(time.Now())
			page, err := w.store.Usage(t.Context(), sandbox.UsageQuery{Tenant: "t", Sandbox: sb.ID, From: day - 1, To: day + 1})
			if err != nil || len(page.Rows) != 1 {
				t.Fatalf("%+v, %v", page, err)
			}
			return page.Rows[0].Traffic
		}
		carried(100, 10)
		carried(150, 20)
		if got := counted(); got != (sandbox.Traffic{Sent: 150, Received: 20}) {
			t.Errorf("while it runs %+v is counted", got)
		}
		if _, err := w.m.End(t.Context(), "t", sb.ID, sandbox.CauseReleased); err != nil {
			t.Fatal(err)
		}
		carried(170, 20)
		carried(170, 20)
		if got := counted(); got != (sandbox.Traffic{Sent: 170, Received: 20}) {
			t.Errorf("after its end %+v is counted", got)
		}
	})
}

// Each refusal by a network policy is reported once.
func TestRefusalsAreTold(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		sb := w.create("t", sandbox.CreateRequest{})
		boot := sandbox.BootRef{BootID: sb.Boot.ID, SandboxID: sb.ID, Number: sb.Boot.Number, Tenant: sb.Tenant}
		w.pass(time.Minute) // refusals before the first count are not reported
		for _, refused := range []int64{3, 3, 10} {
			w.nodes.carry(sandbox.BootTraffic{BootRef: boot, Traffic: sandbox.Traffic{Refused: refused}})
			w.pass(time.Minute)
		}
		w.stop()
		want := []sandbox.Event{
			{Kind: sandbox.EventEgressDenied, Tenant: "t", Sandbox: sb.ID, Count: 3},
			{Kind: sandbox.EventEgressDenied, Tenant: "t", Sandbox: sb.ID, Count: 7},
		}
		if !slices.Equal(w.events, want) {
			t.Errorf("told are %+v", w.events)
		}
	})
}

// Silent Nodes do not block the traffic counts and the reconciling of other Nodes. Three
// of them delay a reconcile by no more than one timeout.
func TestSilentNodesDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c", "d")
		defer w.close()
		sb := w.create("t", sandbox.CreateRequest{})
		boot := sandbox.BootRef{BootID: sb.Boot.ID, SandboxID: sb.ID, Number: sb.Boot.Number, Tenant: sb.Tenant}
		w.nodes.carry(sandbox.BootTraffic{BootRef: boot, Traffic: sandbox.Traffic{Sent: 100}})
		w.nodes.fail(func(f *faults) {
			f.onList = func(ctx context.Context, node string) error {
				if node == sb.Boot.Node {
					return nil
				}
				<-ctx.Done()
				return sandbox.Errorf(sandbox.Unavailable, "node %s is silent", node).WithCause(ctx.Err())
			}
		})
		w.run()
		w.pass(15 * time.Second)
		day := sandbox.DayOf(time.Now())
		page, err := w.store.Usage(t.Context(), sandbox.UsageQuery{Tenant: "t", Sandbox: sb.ID, From: day - 1, To: day + 1})
		if err != nil || len(page.Rows) != 1 || page.Rows[0].Traffic.Sent != 100 {
			t.Errorf("%+v, %v", page, err)
		}
		w.stop()
		began := time.Now()
		if err := w.m.Reconcile(t.Context()); err == nil {
			t.Error("silent nodes are no error")
		}
		if took := time.Since(began); took > 11*time.Second {
			t.Errorf("three silent nodes delayed reconciling by %v", took)
		}
		w.nodes.mend()
	})
}
