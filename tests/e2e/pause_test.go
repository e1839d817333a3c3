package e2e

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// saved is a snapshot in an answer of the API.
type saved struct {
	ID      string `json:"snapshot_id"`
	Parent  string `json:"parent_id"`
	Name    string `json:"name"`
	Memory  bool   `json:"memory"`
	Size    int64  `json:"size_bytes"`
	Current bool   `json:"current"`
	Volumes []struct {
		ID   string `json:"volume_id"`
		Path string `json:"path"`
	} `json:"volumes"`
}

// act posts to a session and returns its record.
func act(t *testing.T, c *rig.Client, id, what string, body rig.Body) session {
	t.Helper()
	var s session
	c.Must(t, "POST", "/api/v1/sessions/"+id+"/"+what, body, &s)
	return s
}

// kept reads all that a process wrote, from the beginning.
func kept(t *testing.T, c *rig.Client, id, process string) string {
	t.Helper()
	status, raw, err := c.Do("GET", station{id: id}.path(process, "output", "from", "0"), nil)
	if err != nil || status != http.StatusOK {
		t.Fatalf("output: %d %s, %v", status, raw, err)
	}
	return string(raw)
}

// counts checks that lines are 1, 2, 3 and so on, and returns the last.
func counts(t *testing.T, text string) int {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i, line := range lines[:len(lines)-1] {
		if line != strconv.Itoa(i+1) {
			t.Fatalf("line %d says %q", i+1, line)
		}
	}
	return len(lines)
}

// Variables, processes with their output, and files of a paused Sandbox continue when it
// resumes.
func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "pause")
	s := create(t, c, rig.Body{"env": rig.Body{"KEPT": "1"}})
	output(t, c, s.ID, "python", "numbers = [1, 2, 3]\nimport os\nborn = os.getpid()")
	c.Sh(t, s.ID, "echo written > /workspace/file")
	var p process
	c.Must(t, "POST", "/api/v1/processes", rig.Body{
		"sandbox_id": s.ID, "background": true, "command": "i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done",
	}, &p)
	rig.Within(t, rig.Patience, "lines of the process", func() bool { return counts(t, kept(t, c, s.ID, p.ID)) > 20 })

	if got := act(t, c, s.ID, "pause", rig.Body{}); got.State != "paused" {
		t.Fatalf("paused as %+v", got)
	}
	if got := act(t, c, s.ID, "pause", rig.Body{}); got.State != "paused" {
		t.Errorf("paused again as %+v", got)
	}
	if got := patch(t, c, s.ID, rig.Body{"env": rig.Body{"NEW": "2"}}); got.State != "paused" {
		t.Errorf("a change made it %s", got.State)
	}
	if got := act(t, c, s.ID, "resume", rig.Body{}); got.State != "running" || got.ID != s.ID {
		t.Fatalf("resumed as %+v", got)
	}
	before := counts(t, kept(t, c, s.ID, p.ID))
	rig.Within(t, rig.Patience, "further lines of the process", func() bool { return counts(t, kept(t, c, s.ID, p.ID)) > before+20 })
	if got := output(t, c, s.ID, "python", "print(sum(numbers), born == os.getpid())"); got != "6 True\n" {
		t.Errorf("its variables: %q", got)
	}
	if got := c.Sh(t, s.ID, `cat /workspace/file; echo "$KEPT $NEW"`); got != "written\n1 2\n" {
		t.Errorf("its files and environment: %q", got)
	}
}

// A Sandbox that is paused without memory boots again with its files.
func TestPauseFiles(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "pause-files")
	s := create(t, c, rig.Body{})
	c.Sh(t, s.ID, "echo written > /workspace/file; sudo sh -c 'echo root > /etc/kept'; rm -r /usr/share/doc 2>/dev/null; true")
	output(t, c, s.ID, "python", "x = 1")
	act(t, c, s.ID, "pause", rig.Body{"memory": false})
	if got := c.Sh(t, s.ID, "cat /workspace/file /etc/kept"); got != "written\nroot\n" {
		t.Errorf("its files: %q", got)
	}
	if r := c.Run(t, s.ID, "python", "print(x)", nil); r.Status != "error" {
		t.Errorf("a variable lived on: %s", r)
	}
}

// A Sandbox whose files and descriptors exceed its memory can be paused, also by its
// deadline, and forked. No file and no process is lost.
func TestManyFilesAndDescriptorsAreSaved(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "many")
	s := create(t, c, rig.Body{"resources": rig.Body{"memory_mb": 128}})
	const files, processes, sockets = 30_000, 4, 600
	output(t, c, s.ID, "python", fmt.Sprintf(`
import os, socket
for i in range(%d):
    if i %% 1000 == 0:
        os.makedirs(f"/workspace/many/{i // 1000}")
    os.mknod(f"/workspace/many/{i // 1000}/{i}", 0o644)
for _ in range(%d):
    if os.fork() == 0:
        kept = [socket.socket() for _ in range(%d)]
        os.setsid()
        while True:
            __import__("time").sleep(1000)
`, files, processes, sockets))
	whole := func(id, after string) {
		t.Helper()
		got := c.Sh(t, id, "find /workspace/many -type f | wc -l; sudo sh -c 'for p in /proc/[0-9]*; do ls $p/fd 2>/dev/null | wc -l; done' | awk '$1 > 600' | wc -l")
		if want := fmt.Sprintf("%d\n%d\n", files, processes); got != want {
			t.Errorf("after %s it has %q, not %q", after, got, want)
		}
	}
	whole(s.ID, "it was made")
	act(t, c, s.ID, "pause", rig.Body{})
	whole(s.ID, "a pause")
	var forks struct {
		Forks []session `json:"forks"`
	}
	c.Must(t, "POST", "/api/v1/sessions/"+s.ID+"/fork", rig.Body{"count": 1}, &forks)
	whole(forks.Forks[0].ID, "a fork")
	whole(s.ID, "being forked")
	act(t, c, s.ID, "timeout", rig.Body{"timeout_seconds": 1})
	rig.Within(t, rig.Patience, "its deadline", func() bool { return c.Get(t, s.ID).State == "paused" })
	act(t, c, s.ID, "timeout", rig.Body{"timeout_seconds": 600}) // otherwise the timeout of 1 s applies again
	whole(s.ID, "its deadline")
	act(t, c, s.ID, "pause", rig.Body{"memory": false})
	if got := c.Sh(t, s.ID, "find /workspace/many -type f | wc -l"); got != fmt.Sprintf("%d\n", files) {
		t.Errorf("a pause of files alone left %q", got)
	}
}

// Forks start from the original's state and then diverge. Their random numbers differ.
func TestForks(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "fork")
	s := create(t, c, rig.Body{"metadata": rig.Body{"kind": "original", "gone": "1"}})
	output(t, c, s.ID, "python", "import random, uuid\nx = 7\nrandom.random()")
	var reply struct {
		Forks  []session `json:"forks"`
		Failed int       `json:"failed"`
	}
	c.Must(t, "POST", "/api/v1/sessions/"+s.ID+"/fork", rig.Body{"count": 3, "metadata": rig.Body{"kind": "copy", "gone": nil}}, &reply)
	for _, f := range reply.Forks {
		t.Cleanup(func() { _ = c.Try("DELETE", "/api/v1/sessions/"+f.ID, nil, nil) })
	}
	if len(reply.Forks) != 3 || reply.Failed != 0 {
		t.Fatalf("forked %+v", reply)
	}
	seen := map[string]bool{}
	for _, f := range append(reply.Forks, s) {
		if f.ID != s.ID && (f.Metadata["kind"] != "copy" || len(f.Metadata) != 1) {
			t.Errorf("the metadata of a fork: %v", f.Metadata)
		}
		drawn := output(t, c, f.ID, "python", "x += 1\nprint(x, random.random(), uuid.uuid4())")
		if !strings.HasPrefix(drawn, "8 ") || seen[drawn] {
			t.Errorf("%s holds and draws %q", f.ID, drawn)
		}
		seen[drawn] = true
	}
}

// A session rolls back to a snapshot, and other sessions start from it.
func TestSnapshots(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "snapshots")
	s := create(t, c, rig.Body{})
	output(t, c, s.ID, "python", "x = 'first'")
	c.Sh(t, s.ID, "echo first > /workspace/file")
	var first saved
	c.Must(t, "POST", "/api/v1/sessions/"+s.ID+"/snapshots", rig.Body{"name": "first"}, &first)
	t.Cleanup(func() { _ = c.Try("DELETE", "/api/v1/snapshots/"+first.ID, nil, nil) })
	if !first.Memory || first.Size <= 0 {
		t.Errorf("the snapshot is %+v", first)
	}
	var p process
	c.Must(t, "POST", "/api/v1/processes", rig.Body{"sandbox_id": s.ID, "background": true, "command": "sleep 600"}, &p)
	output(t, c, s.ID, "python", "x = 'second'")
	c.Sh(t, s.ID, "echo second > /workspace/file")

	act(t, c, s.ID, "rollback", rig.Body{"snapshot_id": "first"})
	if got := output(t, c, s.ID, "python", "print(x, open('/workspace/file').read())"); got != "first first\n\n" {
		t.Errorf("rolled back to %q", got)
	}
	if err := c.Try("GET", station{id: s.ID}.path(p.ID, ""), nil, nil); err == nil || !strings.Contains(err.Error(), "409") {
		t.Errorf("a process of before the rollback: %v", err)
	}
	var tree struct {
		Snapshots []saved `json:"snapshots"`
	}
	c.Must(t, "GET", "/api/v1/sessions/"+s.ID+"/snapshots", nil, &tree)
	if len(tree.Snapshots) == 0 || tree.Snapshots[0].ID != first.ID || !tree.Snapshots[0].Current {
		t.Errorf("the history: %+v", tree)
	}
	other := create(t, c, rig.Body{"snapshot_id": first.ID})
	if got := output(t, c, other.ID, "python", "print(x)"); got != "first\n" {
		t.Errorf("what starts from it holds %q", got)
	}
	act(t, c, other.ID, "pause", rig.Body{})
	c.Must(t, "DELETE", "/api/v1/snapshots/"+first.ID, nil, nil)
	if got := output(t, c, other.ID, "python", "print(x)"); got != "first\n" {
		t.Errorf("without the snapshot that it came from it holds %q", got)
	}
	// The earlier version does not show it.
	if from, others := c.Get(t, s.ID).OriginSnapshotID, c.Get(t, other.ID).OriginSnapshotID; !rig.HasEarlier() && (from != "" || others != first.ID) {
		t.Errorf("they show the origins %q and %q, not none and %s", from, others, first.ID)
	}
}

// A deadline pauses a session and use resumes it, once for concurrent requests. A paused
// session survives the server's death.
func TestPausedOutlivesTheServer(t *testing.T) {
	t.Parallel()
	srv := rig.Own(t, rig.Options{})
	c := srv.Client(t, "outlives")
	s := create(t, c, rig.Body{"name": "due", "timeout_seconds": 600})
	output(t, c, s.ID, "python", "n = 0")
	c.Must(t, "POST", "/api/v1/sessions/due/timeout", rig.Body{"timeout_seconds": 2}, nil)
	rig.Within(t, rig.Patience, "the pause at the deadline", func() bool { return c.Get(t, s.ID).State == "paused" })
	rig.Kill(t, srv.One(t, rig.ServerRole))
	waitDone(t, srv)
	if err := srv.Launch(); err != nil {
		t.Fatal(err)
	}
	if got := c.Get(t, "due").State; got != "paused" {
		t.Fatalf("after the server's death it is %s", got)
	}
	c.Must(t, "POST", "/api/v1/sessions/due/timeout", rig.Body{"timeout_seconds": 600}, nil)
	const callers = 8
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			if r, err := c.TryRun("due", "python", "n += 1", nil); err != nil || r.Status != "ok" {
				t.Errorf("use of what is paused: %v, %v", r, err)
			}
		})
	}
	for range 100 - callers {
		wg.Go(func() {
			status, raw, err := c.Do("GET", "/api/v1/files/list?path=/workspace&sandbox_id="+s.ID, nil)
			if err != nil || status != http.StatusOK {
				t.Errorf("use of what is paused: %d %s, %v", status, raw, err)
			}
		})
	}
	wg.Wait()
	if got := output(t, c, "due", "python", "print(n)"); got != fmt.Sprintln(callers) {
		t.Errorf("%d counted to %s", callers, got)
	}
	patch(t, c, s.ID, rig.Body{"auto_resume": false})
	act(t, c, s.ID, "pause", rig.Body{})
	if _, err := c.TryRun(s.ID, "bash", "true", nil); err == nil || !strings.Contains(err.Error(), "resume it") {
		t.Errorf("use of what is to stay paused: %v", err)
	}
	act(t, c, s.ID, "resume", rig.Body{})
	c.Sh(t, s.ID, "true")
}
