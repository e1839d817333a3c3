package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// Sandboxes of two nodes mount one volume, which one of these nodes stores: files, open
// files and large files are the same on both, also after a pause, the death of that node's
// process, and a drain.
func TestClusterVolumesFromAnywhere(t *testing.T) {
	rig.LacksEarlier(t, "its sandboxes have volumes of their own node only")
	f := aCluster(t)
	c, ops := f.Gateways().Client(t, "homes"), f.Gateways().Operator(t)
	drain := func(node string, draining bool) {
		t.Helper()
		if err := ops.Try("PATCH", "/api/v1/nodes/"+node, rig.Body{"draining": draining}, nil); err != nil {
			t.Fatal(err)
		}
		rig.Within(t, rig.Patience, "the session-manager knows", func() bool {
			var n nodeUse
			return ops.Try("GET", "/api/v1/nodes/"+node, nil, &n) == nil && n.Draining == draining && (!draining || n.Records.Running == 0)
		})
	}
	t.Cleanup(func() { drain(rig.FleetHome, false); drain(rig.FleetNode, false) })
	here, there := volumeOn(t, f, c, rig.FleetNode), volumeOn(t, f, c, rig.FleetHome)
	both := rig.Body{"timeout_seconds": 900, "volumes": []rig.Body{{"volume": there, "path": "/there"}, {"volume": here, "path": "/here"}}}

	drain(rig.FleetHome, true)
	away := placedOn(t, f, c, rig.FleetNode, both)
	drain(rig.FleetHome, false)
	home := placedOn(t, f, c, rig.FleetHome, rig.Body{"timeout_seconds": 900, "volumes": []rig.Body{{"volume": there, "path": "/data"}}})
	says(t, c, away, "echo one >/there/file && mkdir -p /there/x/y && ln /there/file /there/x/hard && echo local >/here/file && cat /there/x/hard /here/file", "one\nlocal")
	says(t, c, home, "cat /data/file && echo two >>/data/x/hard && ls /data/x", "one\nhard\ny")
	wrote := c.Run(t, away, "bash", "cat /there/file && head -c 20000000 /dev/urandom >/there/big && md5sum </there/big >/there/sum", rig.Body{"timeout_seconds": 300})
	if wrote.Status != "ok" || wrote.Stdout != "one\ntwo\n" {
		t.Errorf("a large file: %s", wrote)
	}
	says(t, c, home, "md5sum </data/big | cmp - /data/sum && rm /data/big && echo same", "same")
	says(t, c, away, "cd /there && for i in $(seq 200); do echo $i >n$i; done && ls n* | wc -l", "200")
	says(t, c, home, "cat /data/n* | sort -n | tail -1 && rm /data/n*", "200")

	write := func(id, path, text string) {
		t.Helper()
		c.Run(t, id, "python", fmt.Sprintf("f = globals().get('f') or open('%s', 'a')\nn = f.write('%s\\n')\nf.flush()", path, text), nil)
	}
	write(away, "/there/log", "before")
	act(t, c, away, "pause", rig.Body{})
	says(t, c, home, "cat /data/log && echo between >>/data/log", "before")
	act(t, c, away, "resume", rig.Body{})
	write(away, "/there/log", "after the pause")

	// The process of the node that stores the volume dies: what it is asked meanwhile waits.
	c.Must(t, "POST", "/api/v1/processes", rig.Body{
		"sandbox_id": away, "background": true, "command": "for i in $(seq 300); do mkdir -p /there/many/$i && echo $i >/there/many/$i/f || exit 1; done; touch /tmp/done",
	}, nil)
	rig.Within(t, rig.Patience, "the first files", func() bool {
		r, err := c.TryRun(away, "bash", "ls /there/many | wc -l", nil)
		return err == nil && strings.TrimSpace(r.Stdout) != "0" && r.Stdout != ""
	})
	f.Kill(t, rig.FleetHome)
	f.Start(t, rig.FleetHome)
	f.Serves(t, rig.FleetHome)
	rig.Within(t, 2*rig.Patience, "all files", func() bool {
		r, err := c.TryRun(away, "bash", "test -e /tmp/done && echo done", nil)
		return err == nil && strings.Contains(r.Stdout, "done")
	})
	says(t, c, home, "ls /data/many | wc -l && cat /data/many/*/f | sort -nu | wc -l", "300\n300")
	write(away, "/there/log", "after the kill")

	// Each moves to the other node, with its open file.
	drain(rig.FleetNode, true)
	rig.Within(t, rig.Patience, "it leaves the node that drains", func() bool {
		_, moved := f.Machine(rig.FleetHome).Runs(away)
		return moved
	})
	write(away, "/there/log", "after the drain")
	says(t, c, away, "cat /there/log /here/file && echo moved >/here/file", "before\nbetween\nafter the pause\nafter the kill\nafter the drain\nlocal")
	for _, id := range []string{away, home} {
		c.Must(t, "DELETE", "/api/v1/sessions/"+id, nil, nil)
	}
	drain(rig.FleetNode, false)
	again := placedOn(t, f, c, rig.FleetNode, rig.Body{"volumes": []rig.Body{{"volume": here, "path": "/data"}}})
	says(t, c, again, "cat /data/file", "moved")

	// The volume leaves its node once only a paused sandbox mounts it, with a file that this
	// one has open.
	write(again, "/data/log", "before the move")
	act(t, c, again, "pause", rig.Body{})
	refuse(t, ops, 400, "draining", "PATCH", "/api/v1/nodes/"+rig.FleetNode, rig.Body{"move_volumes": true})
	if err := ops.Try("PATCH", "/api/v1/nodes/"+rig.FleetNode, rig.Body{"draining": true, "move_volumes": true}, nil); err != nil {
		t.Fatal(err)
	}
	rig.Within(t, 2*rig.Patience, "no volume is on the node", func() bool {
		var n nodeUse
		return ops.Try("GET", "/api/v1/nodes/"+rig.FleetNode, nil, &n) == nil && n.Records.Volumes == 0
	})
	rig.Within(t, rig.Patience, "no files of volumes are left on the node", func() bool {
		left, err := filepath.Glob(filepath.Join(f.Machine(rig.FleetNode).Data, "volumes", "kept", "*"))
		return err == nil && len(left) == 0
	})
	c.Must(t, "POST", "/api/v1/sessions/"+again+"/resume", rig.Body{}, nil) // the move ends meanwhile
	write(again, "/data/log", "after it")
	says(t, c, again, "cat /data/file /data/log", "moved\nbefore the move\nafter it")
	drain(rig.FleetNode, false)
	c.Must(t, "DELETE", "/api/v1/sessions/"+again, nil, nil)
	for _, name := range []string{here, there} {
		c.Must(t, "DELETE", "/api/v1/volumes/"+name, nil, nil)
	}
}
