package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// session is a session in an answer, with the fields that these tests check.
type session struct {
	rig.Sandbox
	Network   string            `json:"network"`
	Metadata  map[string]string `json:"metadata"`
	Idle      float64           `json:"idle_timeout_seconds"`
	Resources struct {
		CPUs     float64 `json:"cpus"`
		MemoryMB int     `json:"memory_mb"`
		Pids     int     `json:"pids"`
	} `json:"resources"`
	Ended *struct {
		Cause      string `json:"cause"`
		OutputTail string `json:"output_tail"`
	} `json:"ended"`
}

func create(t *testing.T, c *rig.Client, body rig.Body) session {
	t.Helper()
	var s session
	c.Must(t, "POST", "/api/v1/sessions", body, &s)
	t.Cleanup(func() { _ = c.Try("DELETE", "/api/v1/sessions/"+s.ID, nil, nil) })
	return s
}

func patch(t *testing.T, c *rig.Client, id string, body rig.Body) session {
	t.Helper()
	var s session
	c.Must(t, "PATCH", "/api/v1/sessions/"+id, body, &s)
	return s
}

func output(t *testing.T, c *rig.Client, id, language, code string) string {
	t.Helper()
	r, err := c.TryRun(id, language, code, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r.Stdout
}

// A PATCH changes a running Sandbox, in its record and inside it.
func TestPatchSession(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "patch")
	s := create(t, c, rig.Body{"env": rig.Body{"KEPT": "1", "GONE": "2"}, "metadata": rig.Body{"a": "1"}})

	const show = `echo "$KEPT $GONE $NEW $(pwd) $(id -un) $(ulimit -u)"`
	if got := output(t, c, s.ID, "bash", show); got != "1 2  /workspace user 512\n" {
		t.Errorf("at first: %q", got)
	}
	name := fmt.Sprintf("patched-%d", time.Now().UnixNano())
	got := patch(t, c, s.ID, rig.Body{
		"name": name, "metadata": rig.Body{"a": nil, "b": "2"}, "env": rig.Body{"GONE": nil, "NEW": "3"},
		"network": "none", "timeout_seconds": 3600, "idle_timeout_seconds": 600, "cwd": "/tmp", "user": "root",
		"resources": rig.Body{"cpus": 0.5, "memory_mb": 256, "pids": 64},
	})
	if got.Name != name || len(got.Metadata) != 1 || got.Metadata["b"] != "2" || got.Network != "none" || got.Idle != 600 ||
		got.TimeoutSeconds != 3600 || got.Resources.CPUs != 0.5 || got.Resources.MemoryMB != 256 || got.Resources.Pids != 64 {
		t.Errorf("patched: %+v", got)
	}
	if got := output(t, c, name, "bash", show); got != "1  3 /tmp root 64\n" {
		t.Errorf("after the change: %q", got)
	}
	const reach = `import socket
try: socket.create_connection(("1.1.1.1", 53), 3); print("reached")
except OSError as e: print(e)`
	if got := output(t, c, name, "python", reach); strings.Contains(got, "reached") {
		t.Errorf("with network none: %q", got)
	}

	// 300 MiB exceed its current limit, but not the memory of its shape.
	const eat = "x = bytearray(300 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint('fits')"
	if r, err := c.TryRun(name, "python", eat, nil); err != nil || r.Status != "oom" {
		t.Errorf("300 MiB within 256: %v, %v", r, err)
	}
	patch(t, c, name, rig.Body{"resources": rig.Body{"memory_mb": 512}})
	if r, err := c.TryRun(name, "python", eat, nil); err != nil || r.Stdout != "fits\n" {
		t.Errorf("300 MiB within 512: %v, %v", r, err)
	}
	if got := patch(t, c, name, rig.Body{"user": nil, "cwd": nil, "idle_timeout_seconds": nil}); got.Idle != 0 {
		t.Errorf("without an idle timeout: %+v", got)
	}
	if got := output(t, c, name, "bash", show); got != "1  3 /workspace user 64\n" {
		t.Errorf("with the defaults again: %q", got)
	}
}

// A PATCH of an immutable or invalid field is refused with the reason, and no other
// change of the request is applied.
func TestPatchRefused(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "patch-refused")
	s := create(t, c, rig.Body{})
	for says, body := range map[string]rig.Body{
		"template":    {"template": "other"},
		"disk_mb":     {"resources": rig.Body{"disk_mb": 8192}},
		"memory_mb":   {"resources": rig.Body{"memory_mb": 1024}},
		"cpus":        {"resources": rig.Body{"cpus": 3}},
		"no user":     {"user": "nobody-knows"},
		"on_timeout":  {"on_timeout": "kill"},
		"environment": {"env": rig.Body{"A=B": "1"}},
	} {
		body["metadata"], body["network"] = rig.Body{"half": "done"}, "none"
		err := c.Try("PATCH", "/api/v1/sessions/"+s.ID, body, nil)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
		var after session
		c.Must(t, "GET", "/api/v1/sessions/"+s.ID, nil, &after)
		if len(after.Metadata) != 0 || after.Network != "public" {
			t.Errorf("%s changed something: %+v", says, after)
		}
	}
	const hold = `setsid python3 -c "
import time
x = b'x' * (250 << 20)
open('/tmp/held', 'w').close()
time.sleep(1000)" >/dev/null 2>&1 &
until [ -e /tmp/held ]; do sleep 0.1; done`
	output(t, c, s.ID, "bash", hold)
	err := c.Try("PATCH", "/api/v1/sessions/"+s.ID, rig.Body{"resources": rig.Body{"memory_mb": 128}}, nil)
	if err == nil || !strings.Contains(err.Error(), "memory_mb") {
		t.Errorf("memory in use taken away: %v", err)
	}
	if err := c.Try("PATCH", "/api/v1/sessions/"+s.ID, rig.Body{"resources": rig.Body{"memory_mb": 400}}, nil); err != nil {
		t.Errorf("less memory that is enough: %v", err)
	}
}

// A change is in force after a crash of the server.
func TestPatchOutlivesServer(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{})
	c := s.Client(t, "patch-crash")
	made := create(t, c, rig.Body{"env": rig.Body{"V": "1"}})
	patch(t, c, made.ID, rig.Body{"env": rig.Body{"V": "2"}, "network": "none", "resources": rig.Body{"memory_mb": 256}})
	rig.Kill(t, s.One(t, rig.Launcher))
	waitDone(t, s)
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	if got := output(t, c, made.ID, "bash", "echo $V"); got != "2\n" {
		t.Errorf("V = %q", got)
	}
	var after session
	c.Must(t, "GET", "/api/v1/sessions/"+made.ID, nil, &after)
	if after.Network != "none" || after.Resources.MemoryMB != 256 {
		t.Errorf("after the crash: %+v", after)
	}
	if got := patch(t, c, made.ID, rig.Body{"env": rig.Body{"V": "3"}}); got.Network != "none" {
		t.Errorf("changed again: %+v", got)
	}
	if got := output(t, c, made.ID, "bash", "echo $V"); got != "3\n" {
		t.Errorf("V = %q", got)
	}
}

// The Pool serves creates with less memory or another CPU share, which are applied at
// bind.
func TestPoolServesLess(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{})
	c := s.Client(t, "late")
	s.PoolIdle(t)
	before := s.Metric("cloud_sandbox_pool_misses_total")
	made := create(t, c, rig.Body{"resources": rig.Body{"cpus": 0.5, "memory_mb": 256, "pids": 100}})
	if made.Resources.MemoryMB != 256 || made.Resources.Pids != 100 {
		t.Errorf("created %+v", made)
	}
	if after := s.Metric("cloud_sandbox_pool_misses_total"); after != before {
		t.Errorf("it was not from the pool: %v misses before, %v after", before, after)
	}
	has := func(id, after string) {
		t.Helper()
		if got := output(t, c, id, "python", "import resource; print(kept, resource.getrlimit(resource.RLIMIT_NPROC)[0])"); got != "1 100\n" {
			t.Errorf("after %s it has %q", after, got)
		}
		var now session
		c.Must(t, "GET", "/api/v1/sessions/"+id, nil, &now)
		if got := now.Resources; got.MemoryMB != 256 || got.Pids != 100 || got.CPUs != 0.5 {
			t.Errorf("after %s it has %+v", after, got)
		}
		if r := c.Run(t, id, "python", "x = bytearray(400 << 20)", nil); r.Status != "oom" {
			t.Errorf("after %s it may use more memory than it has: %s", after, r)
		}
		output(t, c, id, "python", "kept = 1") // the interpreter is new after the oom
	}
	output(t, c, made.ID, "python", "kept = 1")
	has(made.ID, "it was made")
	// Its Boot started with a larger shape. Saved and restored, it keeps the smaller
	// limits.
	act(t, c, made.ID, "pause", rig.Body{})
	has(made.ID, "a pause")
	var kept saved
	c.Must(t, "POST", "/api/v1/sessions/"+made.ID+"/snapshots", rig.Body{"name": "less"}, &kept)
	has(create(t, c, rig.Body{"snapshot_id": kept.ID}).ID, "being saved and started anew")
	act(t, c, made.ID, "pause", rig.Body{"memory": false})
	output(t, c, made.ID, "python", "kept = 1")
	has(made.ID, "a pause of its files")
}

// An unused Sandbox ends with the cause idle. A running request or a touch keeps it
// alive.
func TestIdle(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "idle")
	idle := create(t, c, rig.Body{"idle_timeout_seconds": 2, "on_timeout": "end"})
	busy := create(t, c, rig.Body{"on_timeout": "end"})
	done := make(chan error, 1)
	go func() {
		r, err := c.TryRun(busy.ID, "bash", "echo >/workspace/busy; sleep 16; echo busy", nil)
		if err == nil && r.Stdout != "busy\n" {
			err = fmt.Errorf("%v", r)
		}
		done <- err
	}()
	rig.Within(t, rig.Patience, "an execution", func() bool {
		status, _, err := c.Do("GET", rig.Files("/stat", busy.ID, "busy"), nil)
		return err == nil && status == 200
	})
	patch(t, c, busy.ID, rig.Body{"idle_timeout_seconds": 2})
	touched := create(t, c, rig.Body{"idle_timeout_seconds": 8, "on_timeout": "end"})
	stop := time.After(10 * time.Second)
	for going := true; going; {
		select {
		case <-stop:
			going = false
		case <-time.After(time.Second):
			c.Must(t, "POST", "/api/v1/sessions/"+touched.ID+"/touch", nil, nil)
		}
	}
	if got := c.Get(t, touched.ID).State; got != "running" {
		t.Errorf("the touched one is %s", got)
	}
	if err := <-done; err != nil {
		t.Errorf("the busy one: %v", err)
	}
	rig.Within(t, rig.Patience, "the end of the idle one", func() bool { return c.Get(t, idle.ID).State == "ended" })
	if cause := c.Get(t, idle.ID).Cause(); cause != "idle" {
		t.Errorf("cause %q", cause)
	}
	for _, s := range []session{busy, touched} {
		rig.Within(t, rig.Patience, "the end of the others", func() bool { return c.Get(t, s.ID).Cause() == "idle" })
	}
}

// An ended session has a termination record with its last output, also in lists.
func TestCertificate(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "certificate")
	mine := fmt.Sprint(time.Now().UnixNano()) // earlier sessions of this name may have ended
	s := create(t, c, rig.Body{"name": "certified", "metadata": rig.Body{"k": mine}})
	output(t, c, s.ID, "bash", `printf 'x%.0s' {1..5000}; echo; echo the last words`)
	var ended session
	c.Must(t, "DELETE", "/api/v1/sessions/certified", nil, &ended)
	if rig.IsCluster() { // the gateway that saw the output may be another one
		rig.Within(t, rig.Patience, "the last output in the termination record", func() bool {
			c.Must(t, "GET", "/api/v1/sessions/"+s.ID, nil, &ended)
			return ended.Ended.OutputTail != ""
		})
	}
	tail := ended.Ended.OutputTail
	if ended.Ended.Cause != "released" || !strings.HasSuffix(tail, "x\nthe last words\n") || len(tail) != 4096 {
		t.Errorf("the termination record: %s, %d bytes, %.40q", ended.Ended.Cause, len(tail), tail)
	}
	var page struct {
		Sessions []session `json:"sessions"`
	}
	c.Must(t, "GET", "/api/v1/sessions?state=ended&metadata[k]="+mine, nil, &page)
	if len(page.Sessions) != 1 || page.Sessions[0].ID != s.ID || page.Sessions[0].Ended.Cause != "released" {
		t.Errorf("listed: %+v", page)
	}
	if err := c.Try("GET", "/api/v1/sessions/certified", nil, nil); err == nil {
		t.Error("the name of an ended one still means it")
	}

	// A Sandbox that was killed also has its last output.
	s = create(t, c, rig.Body{})
	goesDown(t, c, s.ID)
	rig.Within(t, rig.Patience, "the output of a dead sandbox", func() bool {
		c.Must(t, "GET", "/api/v1/sessions/"+s.ID, nil, &ended)
		return ended.Ended != nil && strings.Contains(ended.Ended.OutputTail, "going down")
	})
}

// goesDown makes a Sandbox kill itself after its output was received.
func goesDown(t *testing.T, c *rig.Client, id string) {
	t.Helper()
	body, _ := json.Marshal(rig.Body{
		"sandbox_id": id, "language": "bash", "stream": true, "code": "echo going down; until [ -e /tmp/go ]; do sleep 0.05; done; sudo kill -9 1; sleep 5",
	})
	req, _ := http.NewRequest("POST", c.URL+"/api/v1/execute", bytes.NewReader(body))
	req.Header.Set("Authorization", "Bearer "+c.Token)
	resp, err := c.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() && !strings.Contains(lines.Text(), "going down") {
	}
	c.Must(t, "PUT", rig.Files("", id, "/tmp/go"), []byte("x"), nil)
	_, _ = io.Copy(io.Discard, resp.Body) // until the stream ends or breaks off
}

// Concurrent creates with one name and if_exists "return" share one Sandbox.
func TestIfExists(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "shared")
	ids := make(chan string, 8)
	for range cap(ids) {
		go func() {
			var s session
			if err := c.Try("POST", "/api/v1/sessions", rig.Body{"name": "one", "if_exists": "return"}, &s); err != nil {
				t.Errorf("create or return: %v", err)
			}
			ids <- s.ID
		}()
	}
	first := <-ids
	for range cap(ids) - 1 {
		if id := <-ids; id != first {
			t.Errorf("%s and %s have one name", first, id)
		}
	}
	if err := c.Try("POST", "/api/v1/sessions", rig.Body{"name": "one"}, nil); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("without if_exists: %v", err)
	}
	c.Must(t, "DELETE", "/api/v1/sessions/one", nil, nil)
}
