package e2e

import (
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// A machine stops with all its processes for longer than the fence of its node. No operator
// says anything. What has a checkpoint goes on elsewhere, and the rest ends. When the
// machine wakes, its sandboxes reach nothing before they are stopped.
func TestClusterNodeSleeps(t *testing.T) {
	rig.LacksEarlier(t, "it does not fence its nodes")
	f := aCluster(t)
	gateways := f.Gateways()
	c, ops := gateways.Client(t, "sleepy"), gateways.Operator(t)
	machine := f.Machine(rig.FleetNode)

	var calls atomic.Int64
	l, err := net.Listen("tcp4", net.JoinHostPort(theCluster.network.Host.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	outside := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls.Add(1) })}
	go func() { _ = outside.Serve(l) }()
	t.Cleanup(func() { _ = outside.Close() })

	restart := func(env ...string) {
		t.Helper()
		f.Halt(t, machine.Name)
		f.Start(t, machine.Name, env...)
		f.Serves(t, machine.Name)
	}
	t.Cleanup(func() { restart() })
	restart("CLOUD_SANDBOX_FENCE_SECONDS=30", "CLOUD_SANDBOX_EGRESS_OPEN="+l.Addr().String())
	drainHome := func(draining bool) {
		t.Helper()
		if err := ops.Try("PATCH", "/api/v1/nodes/"+rig.FleetHome, rig.Body{"draining": draining}, nil); err != nil {
			t.Fatal(err)
		}
	}
	volume := []rig.Body{{"volume": volumeOn(t, f, c, rig.FleetHome), "path": "/data"}} // that the other node stores
	drainHome(true)
	t.Cleanup(func() { drainHome(false) })
	call := fmt.Sprintf("import threading, time, urllib.request\ndef call():\n  while True:\n    try:\n      open('/data/log', 'a').write(str(x))\n      urllib.request.urlopen('http://%s', timeout=1)\n    except Exception: pass\n    time.sleep(0.05)\nthreading.Thread(target=call, daemon=True).start()\n", l.Addr())
	saved := placedOn(t, f, c, machine.Name, rig.Body{"timeout_seconds": 900, "on_timeout": "pause", "checkpoint_every_seconds": 3600, "volumes": volume})
	c.Run(t, saved, "python", "x = 1", nil)
	c.Must(t, "POST", "/api/v1/sessions/"+saved+"/snapshots", rig.Body{}, nil)
	c.Run(t, saved, "python", call+"x = 2", nil)
	unsaved := placedOn(t, f, c, machine.Name, rig.Body{"timeout_seconds": 900, "volumes": volume})
	c.Run(t, unsaved, "python", "x = 3\n"+call, nil)
	rig.Within(t, rig.Patience, "the state is copied", func() bool { return machine.Metric("cloud_sandbox_snapshots_uncopied") == 0 })
	rig.Within(t, rig.Patience, "they reach the outside", func() bool { return calls.Load() > 10 })
	rig.Within(t, rig.Patience, "the node says that it fences itself", func() bool {
		var n nodeUse
		return ops.Try("GET", "/api/v1/nodes/"+machine.Name, nil, &n) == nil && n.FenceSeconds == 30
	})
	drainHome(false)

	wake := machine.Sleep(t)
	began := time.Now()
	var got rig.Result
	rig.Within(t, 3*rig.Patience, "it goes on elsewhere", func() bool {
		var err error
		got, err = c.TryRun(saved, "python", "print(x)", nil)
		return err == nil
	})
	t.Logf("it went on %v after its machine stopped", time.Since(began).Round(time.Millisecond))
	if got.Stdout != "1\n" {
		t.Errorf("it prints %q, %+v", got.Stdout, got)
	}
	var s rig.Sandbox
	rig.Within(t, rig.Patience, "what was not saved ends", func() bool {
		return c.Try("GET", "/api/v1/sessions/"+unsaved, nil, &s) == nil && s.State == "ended"
	})
	if s.Ended == nil || s.Ended.Cause != "node_lost" {
		t.Errorf("it ended with %+v", s.Ended)
	}

	written := c.Sh(t, saved, "grep -q 2 /data/log && grep -q 3 /data/log && md5sum </data/log")
	before := calls.Load()
	wake()
	rig.Within(t, 2*rig.Patience, "the machine ends its boots", func() bool {
		_, a := machine.Runs(saved)
		_, b := machine.Runs(unsaved)
		return !a && !b
	})
	if n := calls.Load() - before; n != 0 {
		t.Errorf("the sandboxes of a machine that woke reached the outside %d times", n)
	}
	if now := c.Sh(t, saved, "md5sum </data/log"); now != written {
		t.Errorf("the sandboxes of a machine that woke wrote to a volume: %q before, %q now", written, now)
	}
	rig.Within(t, rig.Patience, "the node is back", func() bool {
		var n nodeUse
		return ops.Try("GET", "/api/v1/nodes/"+machine.Name, nil, &n) == nil && !n.Lost
	})
	if got := c.Run(t, saved, "python", "print(x + 1)", nil); got.Stdout != "2\n" {
		t.Errorf("it prints %q, %+v", got.Stdout, got)
	}
	c.Must(t, "DELETE", "/api/v1/sessions/"+saved, nil, nil)
}
