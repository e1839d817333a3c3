package chaos

import (
	"cmp"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// A node sleeps until others run its Sandbox, and wakes without a way to learn that. With its
// fence, nobody sees its Boot any more: the history is linearizable. With the fence switched
// off, and an operator who is wrong about the machine, the Boot from before reaches the
// outside: the check fails.
func TestSleepingNode(t *testing.T) {
	s := newSite(t, "")
	for _, tt := range []struct {
		name, fence string
		want        porcupine.CheckResult
	}{
		{"without a fence", "0", porcupine.Illegal},
		{"with a fence of 9 s", "9", porcupine.Ok},
		{"with the usual fence", "", porcupine.Ok},
	} {
		t.Run(tt.name, func(t *testing.T) { sleepingNode(t, s, tt.fence, tt.want) })
	}
}

func sleepingNode(t *testing.T, s *site, fence string, want porcupine.CheckResult) {
	m := s.node(1)
	s.Halt(t, m.Name)
	if fence != "" {
		s.Start(t, m.Name, "CLOUD_SANDBOX_FENCE_SECONDS="+fence)
	} else {
		s.Start(t, m.Name)
	}
	s.Serves(t, m.Name)
	h := NewHistory()
	s.beats.reset(h)
	c := &client{c: s.hasty(s.Gateways().Client(t, "sleeper")), h: h, number: 1}
	ctx, cancel := context.WithTimeout(t.Context(), 2*settleLimit)
	defer cancel()

	s.drain(t, rig.FleetHome, true) // so that it is on the other node
	defer s.drain(t, rig.FleetHome, false)
	var id string
	for there := false; !there; { // until all schedulers know of it
		var ok bool
		if id, ok = c.create(ctx); !ok {
			t.Fatal("there is no sandbox")
		}
		if _, there = m.Runs(id); !there {
			c.remove(ctx, id)
		}
	}
	defer c.remove(context.WithoutCancel(ctx), id)
	if !c.prepare(ctx, id, s.beats.setup(id, 50*time.Millisecond)) {
		t.Fatal("it runs no code")
	}
	step := func(kind Kind) {
		t.Helper()
		if out := c.step(ctx, id, kind, ""); out.Unknown {
			t.Fatalf("%s: %+v", kind, out)
		}
	}
	step(AddMemory)
	step(Take)
	step(AddMemory)
	rig.Within(t, rig.Patience, "the state is copied", func() bool { return m.Metric("cloud_sandbox_snapshots_uncopied") == 0 })
	rig.Within(t, 2*rig.Patience, "the node says when it fences itself", func() bool {
		var n struct {
			FenceSeconds float64 `json:"fence_seconds"`
		}
		set := s.ops.Try("GET", "/api/v1/nodes/"+m.Name, nil, &n) == nil
		return set && (fence == "" && n.FenceSeconds == 90 || fmt.Sprint(n.FenceSeconds) == fence)
	})
	s.drain(t, rig.FleetHome, false)

	began := h.Now()
	wake := s.asleep(t, m)
	if fence == "0" {
		rig.Within(t, 2*rig.Patience, "the operator declares it lost", func() bool {
			return s.ops.Try("PATCH", "/api/v1/nodes/"+m.Name, rig.Body{"lost": true}, nil) == nil
		})
	}
	rig.Within(t, settleLimit, "it goes on elsewhere", func() bool { return !c.step(ctx, id, AddMemory, "").Unknown })
	t.Logf("it went on %v after its machine stopped", (h.Now() - began).Round(time.Millisecond))
	h.Add(Operation{In: Input{Sandbox: id, Kind: Loss}, Call: began, Return: h.Now()})
	step(AddFile)
	woke := h.Now()
	wake()
	for range 10 {
		step(ReadMemory)
		time.Sleep(500 * time.Millisecond)
	}
	m.Net.Mend(t)
	rig.Within(t, settleLimit, "the boot from before ends", func() bool { _, runs := m.Runs(id); return !runs })
	step(Get)

	r := &Report{Seed: seed(t), All: h.Operations()}
	beats := 0
	for _, o := range r.All {
		if o.In.Kind == Beat && o.Call > woke {
			beats++
		}
	}
	t.Logf("%d operations, %d calls to the outside since the machine woke", len(r.All), beats)
	failures := judge(t, "sleeping-node-"+cmp.Or(fence, "usual"), r, time.Minute)
	for _, v := range r.Verdicts {
		if v.Sandbox == id && v.Result != want {
			t.Errorf("the history is %s, want %s: %s", v.Result, want, failures)
		}
	}
}
