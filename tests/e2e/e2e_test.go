// Package e2e uses the built binary as its users do.
package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

var shared = rig.Shared{Options: rig.Options{Pool: 3}, Cluster: startCluster}

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

// The first snippet of the documentation works, unchanged except for the address.
func TestCurlSnippet(t *testing.T) {
	t.Parallel()
	s := shared.Machine(t)
	const snippet = `
TOKEN=$(curl -s -X POST http://localhost:8080/api/v1/auth/token -H "Content-Type: application/json" -d '{"user_id": "test", "role": "user"}' | jq -r '.access_token')
SANDBOX=$(curl -s -X POST http://localhost:8080/api/v1/sandbox/acquire -H "Authorization: Bearer $TOKEN" | jq -r '.sandbox_id')
curl -s -X POST http://localhost:8080/api/v1/execute -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json" -d "{\"sandbox_id\": \"$SANDBOX\", \"code\": \"print('Hello!')\", \"language\": \"python\"}"
curl -s -X POST http://localhost:8080/api/v1/sandbox/release -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json" -d "{\"sandbox_id\": \"$SANDBOX\"}"
`
	out, err := rig.Command("bash", "-c", strings.ReplaceAll(snippet, "http://localhost:8080", s.URL)).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	replies := json.NewDecoder(bytes.NewReader(out))
	var ran rig.Result
	var released rig.Sandbox
	if err := replies.Decode(&ran); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := replies.Decode(&released); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if ran.Status != "ok" || ran.Stdout != "Hello!\n" || released.State != "ended" || released.Cause() != "released" || released.ID != ran.SandboxID {
		t.Errorf("%s", out)
	}
}

func TestProbes(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "probes")
	if code, raw, err := c.Do("GET", "/health", nil); err != nil || code != 200 || strings.TrimSpace(string(raw)) != `{"service":"gateway","status":"ok"}` {
		t.Errorf("health answers %d %s %v", code, raw, err)
	}
	for _, path := range []string{"/ready", "/metrics", "/api/v1/openapi.yaml", "/docs", "/api/v1/sandbox/stats"} {
		if code, raw, err := c.Do("GET", path, nil); err != nil || code != 200 || len(raw) == 0 {
			t.Errorf("%s answers %d %s %v", path, code, raw, err)
		}
	}
	c.Token = "nonsense"
	if code, raw, _ := c.Do("GET", "/api/v1/sessions", nil); code != 401 {
		t.Errorf("a wrong token gives %d %s", code, raw)
	}
}

func TestExecute(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "execute")
	id := c.Create(t, rig.Body{"env": rig.Body{"OF_SESSION": "s"}}).ID
	for _, tt := range []struct {
		name, language, code string
		more                 rig.Body
		status, stdout       string
		exit                 int
	}{
		{"python", "python", "import sys; print('out'); print('err', file=sys.stderr)", nil, "ok", "out\n", 0},
		{"javascript", "javascript", "console.log([1, 2].map(x => x * 2).join())", nil, "ok", "2,4\n", 0},
		{"bash", "bash", "echo $((6 * 7)); ls -d /workspace", nil, "ok", "42\n/workspace\n", 0},
		{"stdin, python", "python", "print(input()[::-1])", rig.Body{"stdin": "abc\n"}, "ok", "cba\n", 0},
		{"stdin, javascript", "javascript", "process.stdin.on('data', d => process.stdout.write(d.toString().toUpperCase()))", rig.Body{"stdin": "abc"}, "ok", "ABC", 0},
		{"stdin, bash", "bash", "read x; echo [$x]; cat", rig.Body{"stdin": "a\nb"}, "ok", "[a]\nb", 0},
		{"no stdin", "bash", "cat; echo end", nil, "ok", "end\n", 0},
		{"env", "bash", "echo $OF_SESSION $MINE", rig.Body{"env": rig.Body{"MINE": "m"}}, "ok", "s m\n", 0},
		{"cwd", "bash", "pwd", rig.Body{"cwd": "/usr/lib"}, "ok", "/usr/lib\n", 0},
		{"relative cwd", "bash", "pwd", rig.Body{"cwd": "../usr/lib"}, "ok", "/usr/lib\n", 0},
		{"exit code", "bash", "echo before; exit 7", nil, "error", "before\n", 7},
		{"exception", "python", "print(1/0)", nil, "error", "", 1},
		{"signal", "bash", "kill -9 $$", nil, "killed", "", 137},
		{"timeout", "bash", "echo begun; sleep 60", rig.Body{"timeout_seconds": 5}, "timeout", "begun\n", 124},
		{"cut output", "python", "print('x' * 5000, end='')", rig.Body{"max_output_bytes": 10}, "ok", "xxxxxxxxxx", 0},
		{"code that begins like an option", "bash", "-c() { echo fine; }; -c", nil, "ok", "fine\n", 0},
		{"code of 500 kB", "python", "x = '" + strings.Repeat("y", 500_000) + "'\nprint(len(x))", nil, "ok", "500000\n", 0},
		{"not UTF-8", "bash", `printf 'a\xffb'`, nil, "ok", "a\ufffdb", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := c.Run(t, id, tt.language, tt.code, tt.more)
			if r.Status != tt.status || r.Stdout != tt.stdout || r.ExitCode != tt.exit || r.SandboxID != id {
				t.Errorf("got %s, want status %s, exit code %d, stdout %q", r, tt.status, tt.exit, tt.stdout)
			}
			if (r.Error == nil) != (tt.status == "ok") {
				t.Errorf("error is %+v", r.Error)
			}
		})
	}
	if r := c.Run(t, "", "python", "print('borrowed')", nil); r.Stdout != "borrowed\n" || r.SandboxID == "" {
		t.Errorf("without a sandbox: %s", r)
	}
}

// Events arrive while the code runs, not after it.
func TestStream(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "stream")
	id := c.Acquire(t)
	body, _ := json.Marshal(rig.Body{
		"sandbox_id": id, "language": "bash", "stream": true,
		"code": "echo one; echo two >&2; until [ -e /workspace/go ]; do sleep 0.05; done; echo three", "timeout_seconds": 30,
	})
	req, _ := http.NewRequest("POST", c.URL+"/api/v1/execute", bytes.NewReader(body))
	req.Header.Set("Authorization", "Bearer "+c.Token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := resp.Header.Get("Content-Type"); !strings.HasPrefix(got, "text/event-stream") {
		t.Fatalf("the content type is %q", got)
	}
	texts, kinds, kind := map[string]string{}, []string{}, ""
	var result rig.Result
	lines := bufio.NewScanner(resp.Body)
	released := false
	for lines.Scan() {
		if k, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			kind = k
			kinds = append(kinds, k)
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var text struct{ Text string }
		_ = json.Unmarshal([]byte(data), &text)
		texts[kind] += text.Text
		if kind == "result" {
			_ = json.Unmarshal([]byte(data), &result)
		}
		if !released && texts["stdout"] == "one\n" && texts["stderr"] == "two\n" { // the code still runs; let it finish
			released = true
			c.Must(t, "PUT", rig.Files("", id, "/workspace/go"), []byte("x"), nil)
		}
	}
	if !released || texts["stdout"] != "one\nthree\n" || result.Status != "ok" || result.Stdout != "one\nthree\n" || kinds[0] != "start" || kinds[len(kinds)-1] != "result" {
		t.Errorf("the events were %q with %q and %s", kinds, texts, result)
	}
}

// A client that disconnects ends its execution. The Sandbox keeps running.
func TestClientThatLeaves(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "leaver")
	id := c.Acquire(t)
	runs := func() bool {
		r := c.Run(t, id, "bash", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '", nil)
		return strings.Contains(r.Stdout, "left-alone")
	}
	body, _ := json.Marshal(rig.Body{"sandbox_id": id, "language": "bash", "code": "exec -a left-alone sleep 1000", "timeout_seconds": 900})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	req, _ := http.NewRequestWithContext(ctx, "POST", c.URL+"/api/v1/execute", bytes.NewReader(body))
	req.Header.Set("Authorization", "Bearer "+c.Token)
	left := make(chan error, 1)
	go func() {
		resp, err := c.HTTP.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		left <- err
	}()
	rig.Within(t, rig.Patience, "an execution", runs)
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Fatalf("it did not wait: %v", err)
	}
	rig.Within(t, rig.Patience, "the end of an execution that nobody waits for", func() bool { return !runs() })
}

func TestFiles(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "files")
	id := c.Acquire(t)
	const size = 64 << 20
	big := make([]byte, size)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(big)
	var entry struct {
		Type string `json:"type"`
		Size int64  `json:"size_bytes"`
	}
	c.Must(t, "PUT", rig.Files("", id, "/workspace/deep/er/big.bin"), big, &entry)
	if entry.Size != size || entry.Type != "file" {
		t.Errorf("the file is %+v", entry)
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(big))
	if got := c.Sh(t, id, "sha256sum deep/er/big.bin; stat -c %U deep/er/big.bin deep"); got != sum+"  deep/er/big.bin\nuser\nuser\n" {
		t.Errorf("inside it is %q", got)
	}
	code, down, err := c.Do("GET", rig.Files("", id, "deep/er/big.bin"), nil)
	if err != nil || code != 200 || fmt.Sprintf("%x", sha256.Sum256(down)) != sum {
		t.Errorf("downloaded %d bytes: %d %v", len(down), code, err)
	}
	c.Must(t, "POST", "/api/v1/files/mkdir", rig.Body{"sandbox_id": id, "path": "/workspace/dir"}, nil)
	c.Must(t, "POST", "/api/v1/files/move", rig.Body{"sandbox_id": id, "source": "deep/er/big.bin", "destination": "dir/moved.bin"}, nil)
	c.Must(t, "GET", rig.Files("/stat", id, "/workspace/dir/moved.bin"), nil, &entry)
	if entry.Size != size {
		t.Errorf("moved, it is %+v", entry)
	}
	var list struct {
		Entries []struct{ Name, Type string }
	}
	c.Must(t, "GET", rig.Files("/list", id, "/workspace")+"&depth=2", nil, &list)
	if got := fmt.Sprint(list.Entries); !strings.Contains(got, "{moved.bin file}") || !strings.Contains(got, "{dir directory}") || !strings.Contains(got, "{er directory}") {
		t.Errorf("the list is %s", got)
	}
	for _, tt := range []struct {
		method, path string
		body         any
		want         int
	}{
		{"GET", rig.Files("", id, "deep/er/big.bin"), nil, 404},
		{"GET", rig.Files("", id, "dir"), nil, 400},
		{"POST", "/api/v1/files/mkdir", rig.Body{"sandbox_id": id, "path": "dir"}, 409},
		{"DELETE", rig.Files("", id, "dir"), nil, 409},
		{"DELETE", rig.Files("", id, "dir") + "&recursive=true", nil, 204},
		{"GET", rig.Files("/stat", id, "dir"), nil, 404},
		{"DELETE", rig.Files("", id, "dir"), nil, 404},
	} {
		if code, raw, err := c.Do(tt.method, tt.path, tt.body); err != nil || code != tt.want {
			t.Errorf("%s %s answers %d %.200s %v, want %d", tt.method, tt.path, code, raw, err, tt.want)
		}
	}
}

func TestSessions(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "sessions")
	one := c.Create(t, rig.Body{"name": "one", "metadata": rig.Body{"team": "blue"}, "timeout_seconds": 300})
	two := c.Create(t, rig.Body{"metadata": rig.Body{"team": "red"}})
	if one.State != "running" || one.Name != "one" || one.TimeoutSeconds != 300 || time.Until(one.Deadline) > 5*time.Minute {
		t.Errorf("created %+v", one)
	}
	if got := c.Get(t, "one"); got.ID != one.ID {
		t.Errorf("by name it is %+v", got)
	}
	if code, raw, _ := c.Do("POST", "/api/v1/sessions", rig.Body{"name": "one"}); code != 409 {
		t.Errorf("a name in use answers %d %s", code, raw)
	}
	if r := c.Run(t, "one", "bash", "hostname", nil); r.Status != "ok" || r.SandboxID != one.ID {
		t.Errorf("by name it ran %s", r)
	}
	type page struct {
		Sessions []rig.Sandbox
		Next     string `json:"next_cursor"`
	}
	var p page
	c.Must(t, "GET", "/api/v1/sessions?limit=1", nil, &p)
	if len(p.Sessions) != 1 || p.Sessions[0].ID != two.ID || p.Next == "" {
		t.Errorf("the first page is %+v", p)
	}
	next := p.Next
	p = page{}
	c.Must(t, "GET", "/api/v1/sessions?limit=1&cursor="+next, nil, &p)
	if len(p.Sessions) != 1 || p.Sessions[0].ID != one.ID {
		t.Errorf("the second page is %+v", p)
	}
	p = page{}
	c.Must(t, "GET", "/api/v1/sessions?metadata%5Bteam%5D=blue", nil, &p)
	if len(p.Sessions) != 1 || p.Sessions[0].ID != one.ID {
		t.Errorf("the blue ones are %+v", p)
	}
	var ended rig.Sandbox
	c.Must(t, "DELETE", "/api/v1/sessions/one", nil, &ended)
	if ended.State != "ended" || ended.Cause() != "released" || c.Get(t, one.ID).State != "ended" {
		t.Errorf("deleted, it is %+v", ended)
	}
	if code, _, _ := c.Do("DELETE", "/api/v1/sessions/"+one.ID, nil); code != 404 {
		t.Errorf("deleting it again answers %d", code)
	}
	c.Create(t, rig.Body{"name": "one"}) // the name is free again
}

// A Sandbox ends at its deadline, also at a shortened one. An extended deadline keeps it
// running.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	s := shared.Server(t)
	c := s.Client(t, "deadlines")
	farther := c.Create(t, rig.Body{"timeout_seconds": 10})
	c.Must(t, "POST", "/api/v1/sessions/"+farther.ID+"/timeout", rig.Body{"timeout_seconds": 300}, nil)
	short := c.Create(t, rig.Body{"timeout_seconds": 2, "on_timeout": "end"})
	nearer := c.Create(t, rig.Body{"on_timeout": "end"})
	sentry := s.SentryOf(t, nearer.ID) // before the deadline
	c.Must(t, "POST", "/api/v1/sessions/"+nearer.ID+"/timeout", rig.Body{"timeout_seconds": 2}, nil)
	for _, id := range []string{short.ID, nearer.ID} {
		rig.Within(t, rig.Patience, "the end at the deadline", func() bool { return c.Get(t, id).State == "ended" })
		if cause := c.Get(t, id).Cause(); cause != "deadline" {
			t.Errorf("the cause is %q", cause)
		}
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", sentry.Pid)); err == nil {
		t.Errorf("its sentry still runs")
	}
	if code, raw, _ := c.Do("POST", "/api/v1/execute", rig.Body{"sandbox_id": short.ID, "language": "bash", "code": "true"}); code != 409 && code != 404 {
		t.Errorf("running in an ended sandbox answers %d %s", code, raw)
	}
	time.Sleep(time.Until(farther.Deadline.Add(time.Second))) // past the original deadline
	if got := c.Get(t, farther.ID); got.State != "running" {
		t.Errorf("the extended one is %+v", got)
	}
}
