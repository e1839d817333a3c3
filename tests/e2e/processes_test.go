package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// process is a Process in an answer of the API.
type process struct {
	ID          string `json:"process_id"`
	Name        string `json:"name"`
	State       string `json:"state"`
	Status      string `json:"status"`
	ExitCode    *int   `json:"exit_code"`
	Stdout      string `json:"stdout"`
	Stderr      string `json:"stderr"`
	Offset      int64  `json:"offset"`
	OutputStart int64  `json:"output_start"`
	OutputEnd   int64  `json:"output_end"`
	PID         int64  `json:"pid"`
}

func (p process) String() string {
	code := "none"
	if p.ExitCode != nil {
		code = strconv.Itoa(*p.ExitCode)
	}
	return fmt.Sprintf("%s: %s, status %s, exit code %s, stdout %q, stderr %q, offset %d of %d to %d",
		p.ID, p.State, p.Status, code, p.Stdout, p.Stderr, p.Offset, p.OutputStart, p.OutputEnd)
}

// station is one Sandbox and the Processes in it.
type station struct {
	*rig.Client
	id string
}

// path returns the path of a call about a Process. query comes in pairs.
func (s station) path(process, call string, query ...string) string {
	q := url.Values{"sandbox_id": {s.id}}
	for i := 0; i+1 < len(query); i += 2 {
		q.Set(query[i], query[i+1])
	}
	if call != "" {
		call = "/" + call
	}
	return "/api/v1/processes/" + process + call + "?" + q.Encode()
}

func (s station) start(t *testing.T, body rig.Body) process {
	t.Helper()
	body["sandbox_id"] = s.id
	var p process
	s.Must(t, "POST", "/api/v1/processes", body, &p)
	return p
}

func (s station) wait(t *testing.T, id, what string) (met bool, p process) {
	t.Helper()
	var w struct {
		Met     bool
		Process process
	}
	s.Must(t, "GET", s.path(id, "wait", "for", what, "timeout_seconds", "60"), nil, &w)
	return w.Met, w.Process
}

// output returns the plain output from an offset on, and the headers and trailers.
func (s station) output(t *testing.T, id string, query ...string) (string, http.Header) {
	t.Helper()
	resp, body := conditional(t, s.Client, s.path(id, "output", query...))
	if resp.StatusCode != 200 {
		t.Fatalf("output answers %d %s", resp.StatusCode, body)
	}
	for k, v := range resp.Trailer {
		resp.Header[k] = v
	}
	return body, resp.Header
}

func TestProcesses(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "processes")
	s := station{c, c.Create(t, rig.Body{"env": rig.Body{"OF_SESSION": "s"}}).ID}
	for _, tt := range []struct {
		name                   string
		body                   rig.Body
		status, stdout, stderr string
		exit                   int
	}{
		{"command", rig.Body{"command": "echo $OF_SESSION $MINE; echo err >&2", "env": rig.Body{"MINE": "m"}}, "ok", "s m\n", "err\n", 0},
		{"argv", rig.Body{"argv": []string{"printf", "%s|", "a b", "$HOME"}}, "ok", "a b|$HOME|", "", 0},
		{"cwd and user", rig.Body{"command": "pwd; id -un", "cwd": "/tmp", "user": "root"}, "ok", "/tmp\nroot\n", "", 0},
		{"stdin", rig.Body{"command": "tr a-z A-Z", "stdin": "abc"}, "ok", "ABC", "", 0},
		{"exit code", rig.Body{"command": "exit 7"}, "error", "", "", 7},
		{"signal", rig.Body{"command": "kill -9 $$"}, "killed", "", "", 137},
		{"timeout", rig.Body{"command": "echo begun; sleep 60", "timeout_seconds": 5}, "timeout", "begun\n", "", 124},
		{"not UTF-8", rig.Body{"command": `printf 'a\xffb'`}, "ok", "a\ufffdb", "", 0},
	} {
		p := s.start(t, tt.body)
		if p.State != "ended" || p.Status != tt.status || p.ExitCode == nil || *p.ExitCode != tt.exit || p.Stdout != tt.stdout || p.Stderr != tt.stderr {
			t.Errorf("%s: %s", tt.name, p)
		}
	}

	// The answer after yield_ms has the output so far. The rest is read from its offset.
	p := s.start(t, rig.Body{"command": "echo one; until [ -e go ]; do sleep 0.05; done; echo two", "name": "slow", "yield_ms": 5000})
	if p.State != "running" || p.Stdout != "one\n" || p.Offset != 4 {
		t.Errorf("after its yield: %s", p)
	}
	if code, raw, err := c.Do("POST", "/api/v1/processes", rig.Body{"sandbox_id": s.id, "command": "true", "name": "slow"}); err != nil || code != 409 {
		t.Errorf("a second process of this name: %d %s %v", code, raw, err)
	}
	c.Sh(t, s.id, "touch go")
	if met, p := s.wait(t, "slow", "exit"); !met || p.Status != "ok" {
		t.Errorf("its end: %v %s", met, p)
	}
	if got, h := s.output(t, p.ID, "from", "4"); got != "two\n" || h.Get("X-Next-Offset") != "8" || h.Get("X-Dropped") != "0" || h.Get("X-Process-State") != "ended" {
		t.Errorf("the rest: %q %v", got, h)
	}
	if got, _ := s.output(t, "slow", "from", "-2", "follow", "true"); got != "o\n" {
		t.Errorf("the last two bytes: %q", got)
	}

	var list struct{ Processes []process }
	c.Must(t, "GET", "/api/v1/processes?state=ended&sandbox_id="+s.id, nil, &list)
	if n := len(list.Processes); n != 9 || list.Processes[n-1].ID != p.ID {
		t.Errorf("%d are listed: %v", n, list.Processes)
	}
}

func TestProcessInputSignalsAndWaiting(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "control")
	s := station{c, c.Acquire(t)}

	s.start(t, rig.Body{"command": "cat; echo end", "name": "cat", "keep_stdin": true, "background": true})
	c.Must(t, "POST", s.path("cat", "stdin"), []byte("first "), nil)
	c.Must(t, "POST", s.path("cat", "stdin", "eof", "true"), []byte("second "), nil)
	if met, p := s.wait(t, "cat", "exit"); !met || p.Status != "ok" {
		t.Errorf("cat: %v %s", met, p)
	}
	if got, _ := s.output(t, "cat"); got != "first second end\n" {
		t.Errorf("cat wrote %q", got)
	}

	// A signal reaches the process group. A delete ends all processes that it started.
	s.start(t, rig.Body{"command": "trap 'echo caught; exit 5' USR1; sleep 1000 & echo ready; wait", "name": "trap", "background": true})
	if met, _ := s.wait(t, "trap", "log:^ready$"); !met {
		t.Error("it was never ready")
	}
	c.Must(t, "POST", s.path("trap", "signal"), rig.Body{"signal": "USR1"}, nil)
	if _, p := s.wait(t, "trap", ""); p.ExitCode == nil || *p.ExitCode != 5 {
		t.Errorf("after the signal: %s", p)
	}
	if got, _ := s.output(t, "trap"); got != "ready\ncaught\n" {
		t.Errorf("it wrote %q", got)
	}
	s.start(t, rig.Body{"command": "setsid sleep 4321 & trap '' TERM; echo ready; wait", "name": "stubborn", "background": true})
	s.wait(t, "stubborn", "log:ready")
	var ended process
	c.Must(t, "DELETE", s.path("stubborn", ""), nil, &ended)
	if ended.State != "ended" || ended.Status != "killed" {
		t.Errorf("ended: %s", ended)
	}
	if got := c.Sh(t, s.id, "pgrep -f 'sleep 432[1]' || echo none"); got != "none\n" {
		t.Errorf("it left %q", got)
	}

	s.start(t, rig.Body{"argv": []string{"python3", "-u", "-m", "http.server", "8123", "--bind", "127.0.0.1"}, "name": "web", "background": true})
	for _, what := range []string{"port:8123", "http:8123/", "log:GET / HTTP"} {
		if met, p := s.wait(t, "web", what); !met {
			t.Errorf("%s did not come: %s", what, p)
		}
	}
	c.Must(t, "POST", s.path("web", "signal"), rig.Body{"signal": 9}, nil)
	if met, p := s.wait(t, "web", "port:8124"); met || p.State != "ended" {
		t.Errorf("waiting for the port of one that ended: %v %s", met, p)
	}
}

func TestProcessShells(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "shells")
	s := station{c, c.Acquire(t)}
	for _, tt := range []struct{ shell, command, want string }{
		{"main", "cd /tmp; export A='one two'; b=3; f() { echo f $1; }; alias l=echo", ""},
		{"main", `pwd; echo "$A" $b; f x; env | grep ^A=`, "/tmp\none two 3\nf x\nA=one two\n"},
		{"other", `pwd; echo "[$A]"`, "/workspace\n[]\n"},
		{"main", "cd /usr; exit 3", ""},
		{"main", "pwd; echo $?", "/usr\n0\n"},
		{"main", "cd /; kill -9 $$", ""},
		{"main", "pwd", "/usr\n"},
		{"main", "set -eu; false; echo never", ""},
		{"main", "unset A; false; echo here", "here\n"},
		{"main", `echo "[$A]"`, "[]\n"},
	} {
		if p := s.start(t, rig.Body{"shell": tt.shell, "command": tt.command}); p.State != "ended" || p.Stdout != tt.want {
			t.Errorf("%s in %s: %s", tt.command, tt.shell, p)
		}
	}
	s.start(t, rig.Body{"shell": "main", "command": "sleep 1000", "background": true, "name": "busy"})
	if code, raw, _ := c.Do("POST", "/api/v1/processes", rig.Body{"sandbox_id": s.id, "shell": "main", "command": "true"}); code != 409 || !strings.Contains(string(raw), "busy") {
		t.Errorf("a busy shell: %d %s", code, raw)
	}
	c.Must(t, "DELETE", s.path("busy", ""), nil, nil)
	if p := s.start(t, rig.Body{"shell": "main", "command": "pwd"}); p.Stdout != "/usr\n" {
		t.Errorf("after a killed command: %s", p)
	}
}

// keyed starts a Process with an Idempotency-Key.
func (s station) keyed(t *testing.T, key string, body rig.Body) (int, process) {
	t.Helper()
	body["sandbox_id"] = s.id
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, _ := http.NewRequest("POST", s.URL+"/api/v1/processes", bytes.NewReader(raw))
	req.Header.Set("Authorization", "Bearer "+s.Token)
	req.Header.Set("Idempotency-Key", key)
	resp, err := s.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var p process
	_ = json.NewDecoder(resp.Body).Decode(&p)
	return resp.StatusCode, p
}

// counted starts a Process that slowly prints numbered lines, once per key. whole is its
// complete output. After some lines it waits for the file "go", so that it still runs
// when the test kills a part of the server.
func (s station) counted(t *testing.T, key string, lines int) (status int, p process, whole string) {
	t.Helper()
	status, p = s.keyed(t, key, rig.Body{"argv": []string{"python3", "-uc", fmt.Sprintf(`import os, time
open("starts", "a").write("start\n")
for i in range(%d):
    print("line", i + 1)
    while i == 100 and not os.path.exists("go"):
        time.sleep(0.05)
    time.sleep(0.004)`, lines)}, "background": true})
	var want strings.Builder
	for i := range lines {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	return status, p, want.String()
}

// follow reads output from an offset on, and calls during after 20 lines. It returns the
// output, and whether the answer ended without an error.
func (s station) follow(t *testing.T, id string, from int, during func()) (read string, whole bool) {
	t.Helper()
	req, _ := http.NewRequest("GET", s.URL+s.path(id, "output", "follow", "true", "from", strconv.Itoa(from)), nil)
	req.Header.Set("Authorization", "Bearer "+s.Token)
	resp, err := s.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	in := bufio.NewReader(resp.Body)
	var begun strings.Builder
	for range 20 {
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		begun.WriteString(line)
	}
	during()
	rest, err := io.ReadAll(in)
	return begun.String() + string(rest), err == nil
}

// ends reads the rest of the output, and checks that read and the rest are whole.
func (s station) ends(t *testing.T, id, read, whole string) {
	t.Helper()
	more, h := s.output(t, id, "from", strconv.Itoa(len(read)), "follow", "true")
	if read+more != whole || h.Get("X-Next-Offset") != strconv.Itoa(len(whole)) || h.Get("X-Process-State") != "ended" {
		t.Errorf("%d and %d bytes of %d were read, %v", len(read), len(more), len(whole), h)
	}
}

// kill -9 of the server loses no output and starts nothing twice. A reader continues at
// its offset.
func TestProcessesOutliveServer(t *testing.T) {
	t.Parallel()
	server := rig.Own(t, rig.Options{})
	c := server.Client(t, "survivor")
	s := station{c, c.Create(t, nil).ID}
	const lines = 1000
	status, p, whole := s.counted(t, "once", lines)
	if status != 201 {
		t.Fatalf("the start answers %d", status)
	}
	read, ended := s.follow(t, p.ID, 0, func() { rig.Kill(t, server.One(t, rig.ServerRole)) })
	if ended {
		t.Error("an answer that breaks off looks whole")
	}
	waitDone(t, server)
	if err := server.Launch(); err != nil {
		t.Fatal(err)
	}
	c.Sh(t, s.id, "touch go")
	if status, again, _ := s.counted(t, "once", lines); status != 200 || again.ID != p.ID {
		t.Errorf("the same start again: %d %s", status, again)
	}
	s.ends(t, p.ID, read, whole)
	if got := c.Sh(t, s.id, "cat starts"); got != "start\n" {
		t.Errorf("it was started: %q", got)
	}
	if status, _, _ := s.counted(t, "once", lines+1); status != 409 {
		t.Errorf("another request with the same key: %d", status)
	}
}

// The same with the roles as separate processes. Only the death of the gateway
// interrupts a client that follows output.
func TestProcessesOutliveRoles(t *testing.T) {
	t.Parallel()
	r := rig.OwnRoles(t, rig.Options{})
	c := r.Client(t, "survivor")
	s := station{c, c.Create(t, nil).ID}
	_, p, whole := s.counted(t, "once", 1500)
	read, ended := s.follow(t, p.ID, 0, func() { r.Kill(t, "gateway") })
	if ended {
		t.Error("an answer that breaks off looks whole")
	}
	r.Start(t, "gateway")
	r.Serves(t)
	c.Sh(t, s.id, "touch go")
	rest, ended := s.follow(t, p.ID, len(read), func() {
		rig.Kill(t, r.NodeServer(t))
		r.Ended(t, "node")
		r.Kill(t, "session-manager")
		r.Kill(t, "scheduler")
	})
	if !ended {
		t.Error("what is followed passes through more than the gateway")
	}
	for _, role := range []string{"scheduler", "session-manager", "node"} {
		r.Start(t, role)
	}
	r.Serves(t)
	read += rest
	if _, again, _ := s.counted(t, "once", 1500); again.ID != p.ID {
		t.Errorf("the same start again: %s", again)
	}
	s.ends(t, p.ID, read, whole)
	if got := c.Sh(t, s.id, "cat starts"); got != "start\n" {
		t.Errorf("it was started: %q", got)
	}
}

// viewer is one WebSocket to a terminal.
type viewer struct {
	*websocket.Conn
	seen string
}

func (s station) attach(t *testing.T, id string, query ...string) *viewer {
	t.Helper()
	conn, resp, err := websocket.Dial(t.Context(), s.URL+s.path(id, "attach", query...), &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer " + s.Token}},
	})
	if err != nil {
		t.Fatalf("attach: %v, %+v", err, resp)
	}
	conn.SetReadLimit(1 << 20)
	t.Cleanup(func() { conn.CloseNow() })
	return &viewer{Conn: conn}
}

// sees reads until the terminal, or an event, has shown text.
func (v *viewer) sees(t *testing.T, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for !strings.Contains(v.seen, text) {
		_, data, err := v.Read(ctx)
		if err != nil {
			t.Fatalf("no %q: %v; seen: %q", text, err, v.seen)
		}
		v.seen += string(data)
	}
}

func (v *viewer) send(t *testing.T, kind websocket.MessageType, text string) {
	t.Helper()
	if err := v.Write(t.Context(), kind, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "terminal")
	s := station{c, c.Acquire(t)}
	p := s.start(t, rig.Body{"pty": rig.Body{"cols": 90, "rows": 30}, "name": "tty", "background": true})
	one, two := s.attach(t, p.ID), s.attach(t, "tty", "from", "0")
	for _, v := range []*viewer{one, two} {
		v.sees(t, `"type":"start"`)
	}
	one.send(t, websocket.MessageBinary, "stty size; echo $((6*7))=answer\n")
	for _, v := range []*viewer{one, two} {
		v.sees(t, "30 90")
		v.sees(t, "42=answer")
	}
	two.send(t, websocket.MessageText, `{"type":"resize","cols":120,"rows":40}`)
	two.send(t, websocket.MessageBinary, "stty size; sh -c 'echo on$((1+1)); exec sleep 1000'\n")
	one.sees(t, "40 120")
	one.sees(t, "on2")                           // before that, Ctrl-C would interrupt bash and not the program
	one.send(t, websocket.MessageBinary, "\x03") // what a keyboard sends for Ctrl-C
	one.send(t, websocket.MessageBinary, "echo $((40+4))=more\n")
	two.sees(t, "44=more")
	for _, bad := range []string{`{"type":"dance"}`, `{`, `{"type":"resize","cols":0,"rows":1}`, `{"type":"signal","signal":"NONE"}`, `{"type":"eof","x":1}`} {
		one.seen = ""
		one.send(t, websocket.MessageText, bad)
		one.sees(t, `"code":"invalid"`)
	}
	if err := one.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Errorf("leaving: %v", err)
	}
	late := s.attach(t, "tty")
	late.sees(t, "44=more") // output from before it attached
	late.send(t, websocket.MessageBinary, "exit 3\n")
	for _, v := range []*viewer{two, late} {
		v.sees(t, `"exit_code":3`)
		if _, _, err := v.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
			t.Errorf("at its end: %v", err)
		}
	}
}

// Clients that follow a Process are told when its Sandbox ends. A Process that runs out
// of memory ends with the status oom.
func TestProcessesAndTheirSandbox(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "limits")
	s := station{c, c.Create(t, nil).ID}
	if p := s.start(t, rig.Body{"command": `exec python3 -c 'x = bytearray(2 << 30); print(sum(x))'`, "yield_ms": 120000}); p.Status != "oom" {
		t.Errorf("more memory than there is: %s", p)
	}
	s.start(t, rig.Body{"command": "echo a; sleep 1000", "name": "last", "background": true})
	req, _ := http.NewRequest("GET", c.URL+s.path("last", "output", "follow", "true"), nil)
	req.Header.Set("Authorization", "Bearer "+c.Token)
	req.Header.Set("Accept", "text/event-stream")
	resp, err := c.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	terminal := s.attach(t, "last")
	terminal.sees(t, "a\n")
	c.Must(t, "DELETE", "/api/v1/sessions/"+s.id, nil, nil)
	if events, _ := io.ReadAll(resp.Body); !strings.Contains(string(events), "event: error") || !strings.Contains(string(events), "ended at") {
		t.Errorf("a follower is told %s", events)
	}
	terminal.sees(t, "the sandbox ended at")
	if code, raw, _ := c.Do("GET", s.path("last", ""), nil); code != 409 {
		t.Errorf("asked afterwards: %d %s", code, raw)
	}
}

// Excess output is dropped from the beginning, and the answers say how much.
func TestProcessOutputIsBounded(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "bounded")
	s := station{c, c.Acquire(t)}
	const size = 40_000_000
	p := s.start(t, rig.Body{"command": fmt.Sprintf("yes 0123456 | head -c %d", size), "yield_ms": 120000, "max_output_bytes": 16})
	if p.State != "ended" || p.OutputEnd != size || p.OutputStart <= 0 {
		t.Fatalf("%s", p)
	}
	got, h := s.output(t, p.ID)
	if int64(len(got)) != size-p.OutputStart || h.Get("X-Dropped") != strconv.FormatInt(p.OutputStart, 10) || h.Get("X-Next-Offset") != strconv.Itoa(size) {
		t.Errorf("%d bytes, %v", len(got), h)
	}
	if !strings.HasSuffix(got, "0123456\n") || strings.Count(got, "0123456\n") != len(got)/8 {
		t.Error("what is kept is not what was written last")
	}
	resp, events := conditional(t, c, s.path(p.ID, "output", "from", "5"), "Accept", "text/event-stream")
	want := fmt.Sprintf("event: dropped\ndata: {\"offset\":5,\"next_offset\":%d}\n", p.OutputStart)
	if resp.StatusCode != 200 || !strings.Contains(events, want) || !strings.Contains(events, "event: end") {
		t.Errorf("%d, events begin with %.500s", resp.StatusCode, events)
	}
}
