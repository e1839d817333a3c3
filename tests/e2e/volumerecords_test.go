package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

type volume struct {
	ID        string `json:"volume_id"`
	Name      string `json:"name"`
	SizeMB    int64  `json:"size_mb"`
	UsedBytes *int64 `json:"used_bytes"`
	Files     *int64 `json:"files"`
}

func refuse(t *testing.T, c *rig.Client, want int, words, method, path string, body any) {
	t.Helper()
	if status, raw, err := c.Do(method, path, body); err != nil || status != want || !strings.Contains(string(raw), words) {
		t.Errorf("%s %s: %d %s %v, want %d and %q", method, path, status, raw, err, want, words)
	}
}

// Files of a volume outlive the sandboxes that wrote them, are visible in every sandbox
// that mounts it, and are mounted again after a pause, in forks and from snapshots.
func TestVolumes(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "volumes")
	makeVolume(t, c, "shared", 64)
	var v volume
	c.Must(t, "GET", "/api/v1/volumes/shared", nil, &v)
	one, two := create(t, c, at("shared", "/data")), create(t, c, at(v.ID, "/data"))
	c.Sh(t, one.ID, "mkdir /data/d && echo from one > /data/d/f")
	if got := c.Sh(t, two.ID, "cat /data/d/f; echo from two >> /data/d/f"); got != "from one\n" {
		t.Errorf("two reads %q", got)
	}
	if got := output(t, c, one.ID, "python", "print(open('/data/d/f').read())"); got != "from one\nfrom two\n\n" {
		t.Errorf("one reads %q", got)
	}
	if c.Must(t, "GET", "/api/v1/volumes/shared", nil, &v); v.UsedBytes == nil || *v.UsedBytes < 18 || v.Files == nil || *v.Files != 2 {
		t.Errorf("it holds %+v", v)
	}
	stranger := shared.Server(t).Client(t, "stranger to volumes")
	refuse(t, stranger, 404, "no volume", "GET", "/api/v1/volumes/"+v.ID, nil)
	refuse(t, stranger, 400, "no volume", "POST", "/api/v1/sessions", rig.Body{"volumes": []rig.Body{{"volume": v.ID, "path": "/data"}}})
	refuse(t, c, 409, "2 sandboxes", "DELETE", "/api/v1/volumes/shared", nil)
	refuse(t, c, 409, "cannot change", "PATCH", "/api/v1/sessions/"+one.ID, rig.Body{"volumes": []rig.Body{}})

	// A program keeps its open file.
	c.Must(t, "POST", "/api/v1/processes", rig.Body{"sandbox_id": one.ID, "command": "while sleep 0.1; do date >> /data/ticks; done", "background": true}, nil)
	act(t, c, one.ID, "pause", rig.Body{})
	c.Sh(t, two.ID, "echo meanwhile > /data/d/f; rm -f /data/ticks")
	act(t, c, one.ID, "resume", rig.Body{})
	if got := c.Sh(t, one.ID, "cat /data/d/f"); got != "meanwhile\n" {
		t.Errorf("resumed it reads %q", got)
	}
	rig.Within(t, time.Minute, "its program goes on", func() bool {
		res, err := c.TryRun(two.ID, "bash", "test -s /data/ticks", nil)
		return err == nil && res.ExitCode == 0
	})
	c.Must(t, "POST", "/api/v1/sessions/"+one.ID+"/snapshots", rig.Body{"name": "good"}, nil)
	c.Sh(t, two.ID, "echo later > /data/d/f")
	act(t, c, one.ID, "rollback", rig.Body{"snapshot_id": "good"})
	if got := c.Sh(t, one.ID, "cat /data/d/f"); got != "later\n" {
		t.Errorf("rolled back it reads %q", got)
	}
	var snapshots struct {
		Snapshots []saved `json:"snapshots"`
	}
	c.Must(t, "GET", "/api/v1/sessions/"+one.ID+"/snapshots", nil, &snapshots)
	good := snapshots.Snapshots[slices.IndexFunc(snapshots.Snapshots, func(s saved) bool { return s.Name == "good" })]
	if len(good.Volumes) != 1 || good.Volumes[0].ID != v.ID || good.Volumes[0].Path != "/data" {
		t.Errorf("the snapshot says that it has %+v", good.Volumes)
	}
	var forks struct{ Forks []session }
	c.Must(t, "POST", "/api/v1/sessions/"+one.ID+"/fork", rig.Body{"count": 1}, &forks)
	from := create(t, c, rig.Body{"snapshot_id": good.ID})
	for what, id := range map[string]string{"a fork": forks.Forks[0].ID, "one from a snapshot": from.ID} {
		if got := c.Sh(t, id, "cat /data/d/f"); got != "later\n" {
			t.Errorf("%s reads %q", what, got)
		}
	}
	for _, id := range []string{one.ID, two.ID, forks.Forks[0].ID, from.ID} {
		c.Must(t, "DELETE", "/api/v1/sessions/"+id, nil, nil)
	}
	last := create(t, c, at("shared", "/data"))
	if got := c.Sh(t, last.ID, "cat /data/d/f"); got != "later\n" {
		t.Errorf("what came later reads %q", got)
	}
	c.Must(t, "DELETE", "/api/v1/sessions/"+last.ID, nil, nil)
	c.Must(t, "DELETE", "/api/v1/volumes/shared", nil, nil)
	refuse(t, c, 409, "the volume shared (", "POST", "/api/v1/sessions", rig.Body{"snapshot_id": good.ID})
	c.Must(t, "DELETE", "/api/v1/snapshots/"+good.ID, nil, nil)
}

// Quotas of volumes hold for concurrent requests, and an operator sees them.
func TestQuotaOfVolumes(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{Env: []string{"POOL_MIN_SIZE=0", "POOL_MAX_SIZE=0", "CLOUD_SANDBOX_QUOTA=volumes=3,volume_mb=100"}})
	c := s.Client(t, "volume quota")
	codes := make(chan int, 10)
	for i := range cap(codes) {
		go func() {
			status, _, _ := c.Do("POST", "/api/v1/volumes", rig.Body{"name": fmt.Sprint("n", i), "size_mb": 20})
			codes <- status
		}()
	}
	made := 0
	for range cap(codes) {
		switch code := <-codes; code {
		case 201:
			made++
		case 429:
		default:
			t.Errorf("a create answers %d", code)
		}
	}
	var quota struct{ Limits, Used map[string]float64 }
	c.Must(t, "GET", "/api/v1/quota", nil, &quota)
	if made != 3 || quota.Used["volumes"] != 3 || quota.Used["volume_mb"] != 60 || quota.Limits["volumes"] != 3 || quota.Limits["volume_mb"] != 100 {
		t.Errorf("%d were made, and the quota says %+v", made, quota)
	}
	var list struct{ Volumes []volume }
	c.Must(t, "GET", "/api/v1/volumes", nil, &list)
	for _, v := range list.Volumes[:2] {
		c.Must(t, "DELETE", "/api/v1/volumes/"+v.Name, nil, nil)
	}
	refuse(t, c, 429, "80 left, and this one wants 81", "POST", "/api/v1/volumes", rig.Body{"name": "big", "size_mb": 81})
	c.Must(t, "POST", "/api/v1/volumes", rig.Body{"name": "big", "size_mb": 80}, nil)
}

// volumesOnDisk returns the IDs of the volumes in the data folder.
func volumesOnDisk(t *testing.T, s *rig.Server) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(s.Data, "volumes", "kept", "v*"))
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, path := range found {
		ids = append(ids, filepath.Base(path))
	}
	return ids
}

// The server is killed before each step of creating and deleting a volume. Afterwards
// the disk, the records and the quota agree.
func TestVolumesKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	m := newMortal(t)
	names := func() (ids []string) {
		var list struct{ Volumes []volume }
		m.c.Must(t, "GET", "/api/v1/volumes", nil, &list)
		for _, v := range list.Volumes {
			ids = append(ids, v.ID)
		}
		return ids
	}
	agree := func(what string) {
		t.Helper()
		var last string
		for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			var quota struct{ Used map[string]float64 }
			m.c.Must(t, "GET", "/api/v1/quota", nil, &quota)
			recorded, there := names(), volumesOnDisk(t, m.Server)
			if slices.Sort(recorded); slices.Equal(recorded, there) && quota.Used["volumes"] == float64(len(there)) {
				return
			}
			last = fmt.Sprintf("the records have %v, the disk %v, the quota %v", recorded, there, quota.Used["volumes"])
		}
		t.Fatalf("%s: %s", what, last)
	}
	for step := 1; ; step++ {
		agree("before")
		m.dieAt(t, step)
		status, raw, err := m.c.Do("POST", "/api/v1/volumes", rig.Body{"name": "new", "size_mb": 16})
		if err == nil && status != http.StatusCreated {
			t.Fatalf("step %d: %d %s", step, status, raw)
		}
		died := m.died(t, err == nil)
		agree(fmt.Sprintf("create, step %d", step))
		for _, id := range names() {
			m.c.Must(t, "DELETE", "/api/v1/volumes/"+id, nil, nil)
		}
		if !died {
			if step < 3 {
				t.Errorf("a create had %d steps", step-1)
			}
			break
		}
	}
	for step := 1; ; step++ {
		m.c.Must(t, "POST", "/api/v1/volumes", rig.Body{"name": "new", "size_mb": 16}, nil)
		agree("before")
		m.dieAt(t, step)
		status, raw, err := m.c.Do("DELETE", "/api/v1/volumes/new", nil)
		if err == nil && status != http.StatusNoContent {
			t.Fatalf("step %d: %d %s", step, status, raw)
		}
		died := m.died(t, err == nil)
		agree(fmt.Sprintf("delete, step %d", step))
		if there := names(); len(there) > 0 && step > 1 {
			t.Errorf("step %d: what was to be deleted is there", step)
		} else if len(there) > 0 {
			m.c.Must(t, "DELETE", "/api/v1/volumes/new", nil, nil)
		}
		if !died {
			if step < 3 {
				t.Errorf("a delete had %d steps", step-1)
			}
			break
		}
	}
}

// Volumes and their mounts survive a restart of the server.
func TestVolumesOutliveTheServer(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{Pool: 1})
	c := s.Client(t, "volumes outlive")
	makeVolume(t, c, "kept", 64)
	box := create(t, c, at("kept", "/data"))
	c.Sh(t, box.ID, "echo before > /data/f")
	c.Must(t, "POST", "/api/v1/processes", rig.Body{"sandbox_id": box.ID, "command": "while sleep 0.05; do echo tick >> /data/ticks; done", "background": true}, nil)
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	if got := c.Sh(t, box.ID, "cat /data/f; echo after >> /data/f; cat /data/f"); got != "before\nbefore\nafter\n" {
		t.Errorf("after a restart it reads %q", got)
	}
	before := c.Sh(t, box.ID, "wc -l < /data/ticks")
	rig.Within(t, time.Minute, "its program goes on writing", func() bool { return c.Sh(t, box.ID, "wc -l < /data/ticks") != before })
	c.Must(t, "DELETE", "/api/v1/sessions/"+box.ID, nil, nil)
}

// Volumes work with the roles as separate processes, and after a kill of the
// session-manager.
func TestVolumesOverRoles(t *testing.T) {
	t.Parallel()
	r := rig.OwnRoles(t, rig.Options{})
	c := r.Client(t, "volumes over roles")
	makeVolume(t, c, "carried", 64)
	box := create(t, c, at("carried", "/data"))
	c.Sh(t, box.ID, "echo over > /data/f")
	r.Kill(t, "session-manager")
	r.Start(t, "session-manager")
	r.Serves(t)
	if got := c.Sh(t, box.ID, "cat /data/f"); got != "over\n" {
		t.Errorf("it reads %q", got)
	}
	var list struct{ Volumes []volume }
	if c.Must(t, "GET", "/api/v1/volumes", nil, &list); len(list.Volumes) != 1 || list.Volumes[0].Files == nil || *list.Volumes[0].Files != 1 {
		t.Errorf("listed %+v", list)
	}
	c.Must(t, "DELETE", "/api/v1/sessions/"+box.ID, nil, nil)
}

func TestCommandVolume(t *testing.T) {
	t.Parallel()
	sh := newShell(t, "cli-volume")
	if out := sh.must(t, "volume", "create", "cli", "--size-mb", "16"); out != "cli\n" {
		t.Errorf("create: %s", out)
	}
	if got := sh.try(t, "", "volume", "create", "cli"); got.code != 1 || !strings.Contains(got.err, "a volume named \"cli\" exists") {
		t.Errorf("create again: %+v", got)
	}
	sh.must(t, "run", "--volume", "cli:/data", "--", "sh", "-c", "echo kept > /data/f")
	if out := sh.must(t, "run", "--volume", "cli:/data", "--", "cat", "/data/f"); out != "kept\n" {
		t.Errorf("the second one reads %q", out)
	}
	for _, args := range [][]string{{"ls"}, {"info", "cli"}} {
		if out := sh.must(t, append([]string{"volume"}, args...)...); !strings.Contains(out, "16 MiB") || !strings.Contains(out, "cli") {
			t.Errorf("%v: %s", args, out)
		}
	}
	id := strings.TrimSpace(sh.must(t, "create", "--volume", "cli:/data"))
	if got := sh.try(t, "", "volume", "rm", "cli"); got.code != 1 || !strings.Contains(got.err, "is in use") {
		t.Errorf("rm of what is mounted: %+v", got)
	}
	sh.must(t, "rm", id)
	if out := sh.must(t, "volume", "rm", "cli"); out != "cli\n" {
		t.Errorf("rm: %s", out)
	}
}
