package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// execution returns a request to run code.
func execution(t *testing.T, c *rig.Client, body rig.Body, headers ...string) *http.Request {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), "POST", c.URL+"/api/v1/execute", bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.Token)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return req
}

// execute runs code and returns the result, or the status of the refusal.
func execute(t *testing.T, c *rig.Client, body rig.Body, headers ...string) (rig.Result, int) {
	t.Helper()
	resp, err := http.DefaultClient.Do(execution(t, c, body, headers...))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var r rig.Result
	if resp.StatusCode == http.StatusOK {
		if err := json.NewDecoder(resp.Body).Decode(&r); err != nil {
			t.Fatal(err)
		}
	}
	return r, resp.StatusCode
}

// written is an event of an execution.
type written struct {
	id, name  string
	Text      string `json:"text"`
	Base64    []byte `json:"base64"`
	ProcessID string `json:"process_id"`
}

func (w written) bytes() string {
	if w.Base64 != nil {
		return string(w.Base64)
	}
	return w.Text
}

// beginExecution streams an execution until stop returns true, or to its end. It closes
// the connection and returns the events.
func beginExecution(t *testing.T, c *rig.Client, body rig.Body, stop func(written) bool, headers ...string) (all []written) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	resp, err := http.DefaultClient.Do(execution(t, c, body, append(headers, "Accept", "text/event-stream")...).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d", resp.StatusCode)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 64<<20)
	var e written
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "id":
			e.id = value
		case "event":
			e.name = value
		case "data":
			if err := json.Unmarshal([]byte(value), &e); err != nil {
				t.Fatalf("%s: %v", value, err)
			}
		case "":
			if e.name == "" {
				continue
			}
			all = append(all, e)
			if stop != nil && stop(e) {
				return all
			}
			e = written{}
		}
	}
	return all
}

// every is bash code that writes all 256 byte values.
const every = `for i in {0..255}; do printf "\\x$(printf %x $i)"; done`

func everyByte() string {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return string(all)
}

// The command line passes arbitrary bytes unchanged in both directions.
func TestExactBytes(t *testing.T) {
	t.Parallel()
	sh := newShell(t, "bytes")
	sh.must(t, "create", "bytes")
	want := everyByte()
	for _, args := range [][]string{
		{"exec", "bytes", "bash", "-c", every},
		{"exec", "-i", "bytes", "bash", "-c", every},
		{"run", "-s", "bytes", "-l", "bash", "-c", every},
		{"run", "-s", "bytes", "-c", "import sys; _ = sys.stdout.buffer.write(bytes(range(256)))"},
		{"exec", "bytes", "printf", "%s", "a\xff\xfe'\\z"},
	} {
		expect := want
		if args[2] == "printf" {
			expect = args[4]
		}
		if got := sh.must(t, args...); got != expect {
			t.Errorf("%q wrote %q", args, got)
		}
	}
	if got := sh.try(t, "", "exec", "bytes", "bash", "-c", every+" >&2"); got.err != want {
		t.Errorf("standard error had %q", got.err)
	}
	id := strings.TrimSpace(sh.must(t, "exec", "--detach", "bytes", "bash", "-c", every+"; "+every+" >&2"))
	if got := sh.try(t, "", "logs", "--follow", "bytes", id); got.out != want || got.err != want {
		t.Errorf("logs shows %q and %q", got.out, got.err)
	}

	// A large archive passes through a pipe unchanged.
	sum := strings.Fields(sh.must(t, "exec", "bytes", "bash", "-c", "mkdir -p t && head -c 6000000 /dev/urandom >t/x && sha256sum t/x"))[0]
	archive := filepath.Join(sh.folder, "t.tgz")
	out, err := os.Create(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := sh.command("exec", "bytes", "tar", "cz", "t")
	cmd.Stdout = out
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	content, err := rig.Command("tar", "xzOf", archive, "t/x").Output()
	if got := fmt.Sprintf("%x", sha256.Sum256(content)); err != nil || got != sum {
		t.Errorf("the archive holds %s, not %s: %v", got, sum, err)
	}
	var inner rig.Result
	if r := sh.try(t, want, "exec", "--json", "-i", "bytes", "cat"); json.Unmarshal([]byte(r.out), &inner) != nil || string(inner.StdoutBase64) != want {
		t.Errorf("input came back as %+v", r)
	}
	if r := sh.try(t, "", "run", "-s", "bytes", "-c", "print('\xff')"); r.code != 125 || !strings.Contains(r.err, "UTF-8") {
		t.Errorf("code of other bytes: %+v", r)
	}
}

// JSON results also carry output as base64 if it is not valid UTF-8.
func TestExactBytesInJSON(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "exact")
	id := c.Acquire(t)
	want := everyByte()
	got, _ := execute(t, c, rig.Body{"sandbox_id": id, "language": "bash", "code": every + "; " + every + " >&2"})
	if string(got.StdoutBase64) != want || string(got.StderrBase64) != want || *got.NextOffset != 512 {
		t.Errorf("the result is %+v", got)
	}
	_, raw, err := c.Do("GET", station{id: id}.path(got.ProcessID, "output", "stream", "stdout"), nil)
	if err != nil || string(raw) != want {
		t.Errorf("read again: %q, %v", raw, err)
	}
	if plain, _ := execute(t, c, rig.Body{"sandbox_id": id, "language": "bash", "code": "echo é"}); plain.StdoutBase64 != nil || plain.Stdout != "é\n" {
		t.Errorf("text is %+v", plain)
	}
	in := rig.Body{"sandbox_id": id, "language": "bash", "code": "cat", "stdin_base64": base64.StdEncoding.EncodeToString([]byte(want))}
	if back, _ := execute(t, c, in); string(back.StdoutBase64) != want {
		t.Errorf("input came back as %+v", back)
	}
	var stream string
	for _, e := range beginExecution(t, c, rig.Body{"sandbox_id": id, "language": "bash", "code": every}, nil) {
		if e.name == "stdout" {
			stream += e.bytes()
		}
	}
	if stream != want {
		t.Errorf("the events have %q", stream)
	}
	var p struct {
		Stdout []byte `json:"stdout_base64"`
	}
	if c.Must(t, "POST", "/api/v1/processes", rig.Body{"sandbox_id": id, "command": every}, &p); string(p.Stdout) != want {
		t.Errorf("the answer to a start has %q", p.Stdout)
	}
}

// lasting lists commands that write ten lines in some seconds, with their exit codes and
// last output.
var lasting = map[string]struct {
	args []string
	code int
	last string
}{
	"exec":   {[]string{"exec", "lasting", "bash", "-c", `for i in {1..10}; do echo $i; sleep 0.3; done; printf '\xff'; exit 7`}, 7, "\xff"},
	"python": {[]string{"run", "-s", "lasting", "-c", "import time\nfor i in range(1, 11): print(i, flush=True); time.sleep(0.3)\n6 * 7"}, 0, "42\n"},
	"bash":   {[]string{"run", "-l", "bash", "-c", "for i in {1..10}; do echo $i; sleep 0.3; done"}, 0, ""},
}

// wrote is a thread-safe buffer of a command's output.
type wrote struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (w *wrote) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.Write(p)
}

func (w *wrote) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.String()
}

// withSDK runs the same loop with the Python SDK.
const withSDK = `
import sys
from cloud_sandbox import Sandbox
box = Sandbox.connect("lasting", sys.argv[1], user_id="lasting")
done = box.run_command("for i in {1..10}; do echo $i; sleep 0.3; done; exit 7", on_stdout=lambda text: print(text, end="", flush=True))
sys.exit(done.exit_code)
`

const tenLines = "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n"

// kill -9 of the server does not end the commands of exec and run or lose their output.
// They reconnect to the next server.
func TestExecutionsOutliveTheServer(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{})
	sh := &shell{server: s, user: "lasting", folder: t.TempDir()}
	sh.must(t, "create", "lasting")
	sh.must(t, "run", "-s", "lasting", "-c", "0") // starts the interpreter
	type command struct {
		cmd      *exec.Cmd
		out, err wrote
	}
	all := map[string]*command{}
	for name, l := range lasting {
		o := &command{cmd: sh.command(l.args...)}
		o.cmd.Stdout, o.cmd.Stderr = &o.out, &o.err
		if err := o.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		all[name] = o
	}
	want := maps.Clone(lasting)
	if python, err := filepath.Abs("../../.tools/venv/bin/python"); err != nil || rig.Command(python, "-c", "import httpx").Run() != nil {
		t.Log("the environment of the Python SDK is not there: scripts/python-env.sh makes it")
	} else {
		o := &command{cmd: rig.Command(python, "-c", withSDK, s.URL)}
		o.cmd.Env = append(os.Environ(), "PYTHONPATH=../../sdk/python/src")
		o.cmd.Stdout, o.cmd.Stderr = &o.out, &o.err
		if err := o.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		l := want["exec"]
		l.last = ""
		want["SDK"], all["SDK"] = l, o
	}
	for name, o := range all {
		rig.Within(t, rig.Patience, "output of "+name, func() bool { return strings.Contains(o.out.String(), "1\n") })
	}
	rig.Kill(t, s.One(t, rig.ServerRole))
	waitDone(t, s)
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	for name, o := range all {
		_ = o.cmd.Wait()
		if got := o.out.String(); got != tenLines+want[name].last || o.cmd.ProcessState.ExitCode() != want[name].code || o.err.String() != "" {
			t.Errorf("%s wrote %q and %q and ended with %d", name, got, o.err.String(), o.cmd.ProcessState.ExitCode())
		}
	}
	if left := sh.live(t); len(left) != 1 {
		t.Errorf("sandboxes that are left: %q", left)
	}
}

// kill -9 of the server neither loses nor repeats a byte of a program's input or output.
func TestExecInputOutlivesTheServer(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{})
	sh := &shell{server: s, user: "piped", folder: t.TempDir()}
	sh.must(t, "create", "piped")
	const size, parts = 24 << 20, 3
	source := rand.NewChaCha8([32]byte{2})
	sent, came := sha256.New(), &tally{Hash: sha256.New()}
	cmd := sh.command("exec", "-i", "piped", "bash", "-c", "cat; echo read >&2; exit 3")
	var stderr wrote
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = came, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	give := func() {
		if _, err := io.CopyN(io.MultiWriter(in, sent), source, size/parts); err != nil {
			t.Error(err)
		}
	}
	give()
	for range parts - 1 { // kill the server while bytes pass in both directions
		var giving sync.WaitGroup
		giving.Go(give)
		rig.Kill(t, s.One(t, rig.ServerRole))
		waitDone(t, s)
		if err := s.Launch(); err != nil {
			t.Fatal(err)
		}
		giving.Wait()
	}
	in.Close()
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 3 || stderr.String() != "read\n" {
		t.Errorf("it ended with %d and wrote %q", code, stderr.String())
	}
	if came.bytes != size || !bytes.Equal(sent.Sum(nil), came.Sum(nil)) {
		t.Errorf("%d bytes were sent, and %d came back, or others", size, came.bytes)
	}
}

// tally counts what it hashes.
type tally struct {
	hash.Hash
	bytes int
}

func (c *tally) Write(p []byte) (int, error) {
	c.bytes += len(p)
	return c.Hash.Write(p)
}

// Executions survive a pause. They continue after the resume and in a fork, and their
// output can be read again.
func TestExecutionsOutliveAPause(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "executions-pause")
	s := create(t, c, rig.Body{})
	loop := "for i in {1..10000}; do echo $i; sleep 0.02; done"
	bodies := map[string]rig.Body{
		"program": {"sandbox_id": s.ID, "language": "bash", "code": loop, "timeout_seconds": 600},
		"cell":    {"sandbox_id": s.ID, "language": "python", "code": "import time\nfor i in range(1, 10000): print(i, flush=True); time.sleep(0.02)", "timeout_seconds": 600},
	}
	results := map[string]rig.Result{}
	var mu sync.Mutex
	var running sync.WaitGroup
	for name, body := range bodies {
		running.Go(func() {
			r, status := execute(t, c, body, "Idempotency-Key", "pause-"+name)
			mu.Lock()
			defer mu.Unlock()
			if results[name] = r; status != http.StatusOK {
				t.Errorf("%s: status %d", name, status)
			}
		})
	}
	listed := func(id string) []process {
		var list struct {
			Processes []process `json:"processes"`
		}
		c.Must(t, "GET", "/api/v1/processes?state=running&sandbox_id="+id, nil, &list)
		return list.Processes
	}
	rig.Within(t, rig.Patience, "output", func() bool {
		all := listed(s.ID)
		return len(all) == len(bodies) && counts(t, kept(t, c, s.ID, all[0].ID)) > 5 && counts(t, kept(t, c, s.ID, all[1].ID)) > 5
	})
	var reply struct {
		Forks []session `json:"forks"`
	}
	c.Must(t, "POST", "/api/v1/sessions/"+s.ID+"/fork", rig.Body{}, &reply)
	fork := reply.Forks[0]
	t.Cleanup(func() { _ = c.Try("DELETE", "/api/v1/sessions/"+fork.ID, nil, nil) })
	act(t, c, s.ID, "pause", rig.Body{})
	running.Wait()
	act(t, c, s.ID, "resume", rig.Body{})
	for name, r := range results {
		if r.Status != "paused" || r.ExitCode != 125 || r.ProcessID == "" || r.Error == nil || !strings.Contains(r.Error.Message, "continues when the sandbox resumes") {
			t.Errorf("%s ended as %+v", name, r)
			continue
		}
		before := counts(t, kept(t, c, s.ID, r.ProcessID))
		rig.Within(t, rig.Patience, "that "+name+" goes on", func() bool { return counts(t, kept(t, c, s.ID, r.ProcessID)) > before+5 })
	}
	if all := listed(fork.ID); len(all) != len(bodies) {
		t.Errorf("the fork has %+v", all)
	} else {
		for _, p := range all {
			before := counts(t, kept(t, c, fork.ID, p.ID))
			rig.Within(t, rig.Patience, "that it goes on in the fork", func() bool { return counts(t, kept(t, c, fork.ID, p.ID)) > before+5 })
		}
	}
}

// Requests with the same Idempotency-Key share one execution, which outlives a
// disconnected client for a while. Without a key an execution ends with its request.
func TestExecutionKeys(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "keys")
	id := c.Acquire(t)
	body := rig.Body{"sandbox_id": id, "language": "bash", "code": `echo begun >>/tmp/begun; for i in {1..200}; do echo $i; echo e$i >&2; sleep 0.01; done; printf '\xe2'`}
	const key = "one"
	first := beginExecution(t, c, body, func(e written) bool { return strings.Contains(e.Text, "20\n") }, "Idempotency-Key", key)
	last := first[len(first)-1]
	second := beginExecution(t, c, body, nil, "Idempotency-Key", key, "Last-Event-ID", last.id)
	streams := map[string]string{}
	for _, e := range append(first, second...) {
		streams[e.name] += e.bytes()
	}
	want, failed := "", ""
	for i := range 200 {
		want += fmt.Sprintln(i + 1)
		failed += fmt.Sprintf("e%d\n", i+1)
	}
	if streams["stdout"] != want+"\xe2" || streams["stderr"] != failed {
		t.Errorf("both have %q and %q", streams["stdout"], streams["stderr"])
	}
	if first[0].ProcessID == "" || first[0].ProcessID != second[0].ProcessID {
		t.Errorf("they began as %+v and %+v", first[0], second[0])
	}
	again, _ := execute(t, c, body, "Idempotency-Key", key)
	if again.Status != "ok" || string(again.StdoutBase64) != want+"\xe2" || again.ProcessID != first[0].ProcessID {
		t.Errorf("once more: %+v", again)
	}
	if got := c.Sh(t, id, "cat /tmp/begun"); got != "begun\n" {
		t.Errorf("it ran so often: %q", got)
	}
	if _, status := execute(t, c, rig.Body{"sandbox_id": id, "language": "bash", "code": "true"}, "Idempotency-Key", key); status != http.StatusConflict {
		t.Errorf("other code with the key answers %d", status)
	}
	if _, status := execute(t, c, rig.Body{"language": "bash", "code": "true"}, "Idempotency-Key", key); status != http.StatusBadRequest {
		t.Errorf("a key without a sandbox answers %d", status)
	}

	sleeps := func(seconds string) string { return c.Sh(t, id, "pgrep -xf 'sleep "+seconds+"' || true") }
	begun := func(e written) bool { return e.name == "stdout" }
	long := func(seconds string) rig.Body {
		return rig.Body{"sandbox_id": id, "language": "bash", "code": "echo x; sleep " + seconds, "timeout_seconds": 600}
	}
	beginExecution(t, c, long("1001"), begun)
	rig.Within(t, rig.Patience, "the end of what a client without a key left", func() bool { return sleeps("1001") == "" })
	beginExecution(t, c, long("1002"), begun, "Idempotency-Key", "two")
	if sleeps("1002") == "" {
		t.Error("what a client with a key left ended at once")
	}
	req, err := http.NewRequestWithContext(t.Context(), "DELETE", c.URL+"/api/v1/execute?sandbox_id="+id, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.Token)
	req.Header.Set("Idempotency-Key", "two")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK || sleeps("1002") != "" {
		t.Errorf("the end of it by its key answers %d, and leaves %q", resp.StatusCode, sleeps("1002"))
	}
	beginExecution(t, c, long("1003"), begun, "Idempotency-Key", "three")
	rig.Within(t, rig.Patience, "the end of what nobody came back for", func() bool { return sleeps("1003") == "" })
	r, _ := execute(t, c, rig.Body{"sandbox_id": id, "language": "bash", "code": "sleep 1004", "timeout_seconds": 0.5}, "Idempotency-Key", "four")
	if r.Status != "timeout" || r.ExitCode != 124 || sleeps("1004") != "" {
		t.Errorf("a timeout is %+v", r)
	}
}

// Ctrl-C at exec ends the program.
func TestInterruptedExec(t *testing.T) {
	t.Parallel()
	sh := newShell(t, "interrupted")
	sh.must(t, "create", "interrupted")
	cmd := sh.command("exec", "--timeout", "10m", "interrupted", "bash", "-c", "echo x; exec sleep 1005")
	var out wrote
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	rig.Within(t, rig.Patience, "output", func() bool { return out.String() != "" })
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("it ended with %d", code)
	}
	if r := sh.try(t, "", "exec", "interrupted", "pgrep", "-xf", "sleep 1005"); r.code != 1 {
		t.Errorf("the program runs on: %+v", r)
	}
}
