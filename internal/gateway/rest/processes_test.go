package rest_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

func TestProcessCalls(t *testing.T) {
	f := newFixture(t)
	id := f.WithProcesses()
	q := "?sandbox_id=" + id

	p := f.StartProcess(id, `"command":"echo out; echo err >&2; exit 3"`)
	if p.State != "ended" || p.Status != "error" || *p.ExitCode != 3 || p.Stdout != "out\n" || p.Stderr != "err\n" || p.Offset != 8 || p.Error.Name != "exit_code" {
		t.Errorf("in the foreground: %+v", p)
	}
	if p = f.StartProcess(id, `"command":"printf 1234567890","max_output_bytes":4`); p.Stdout != "1234" || p.Offset != 4 || p.OutputEnd != 10 {
		t.Errorf("with little output: %+v", p)
	}
	if p = f.StartProcess(id, `"command":"printf 'é'; read x; printf 'è'","yield_ms":1,"keep_stdin":true,"name":"half"`); p.State != "running" {
		t.Errorf("it yields: %+v", p)
	}
	a := f.Do("POST", "/api/v1/processes/half/stdin"+q+"&eof=true", "x\n")
	if a.Status != 200 || string(a.Body) != "{\"written_bytes\":2}\n" {
		t.Errorf("stdin: %d %s", a.Status, a.Body)
	}
	var waited struct {
		Met     bool
		Line    string
		Offset  int64
		Process gatewaytest.ProcessView
	}
	f.Do("GET", "/api/v1/processes/half/wait"+q, "").Into(t, 200, &waited)
	if !waited.Met || waited.Process.State != "ended" {
		t.Errorf("wait: %+v", waited)
	}
	a = f.Do("GET", "/api/v1/processes/half/output"+q, "")
	if a.Status != 200 || string(a.Body) != "éè" || a.Header.Get("X-Next-Offset") != "4" || a.Header.Get("X-Process-State") != "ended" {
		t.Errorf("output: %d %q %v", a.Status, a.Body, a.Header)
	}
	if a = f.Do("GET", "/api/v1/processes/half/output"+q+"&from=2", ""); string(a.Body) != "è" {
		t.Errorf("from an offset: %q", a.Body)
	}
	if a = f.Do("GET", "/api/v1/processes/half/output"+q+"&from=100", ""); a.Status != 200 || len(a.Body) != 0 || a.Header.Get("X-Next-Offset") != "4" {
		t.Errorf("from beyond the end: %d %q %v", a.Status, a.Body, a.Header)
	}
	if a = f.Do("HEAD", "/api/v1/processes/half/output"+q, ""); a.Status != 200 || a.Header.Get("X-Next-Offset") != "4" {
		t.Errorf("HEAD: %d %v", a.Status, a.Header)
	}

	tty := f.StartProcess(id, `"pty":{"cols":80,"rows":24},"argv":["sh","-c","trap 'stty size' WINCH; echo ready; while :; do sleep 0.1; done"],"background":true`)
	f.Do("GET", "/api/v1/processes/"+tty.ID+"/wait"+q+"&for=log:ready", "").Into(t, 200, &waited)
	f.Do("POST", "/api/v1/processes/"+tty.ID+"/resize"+q, `{"cols":100,"rows":50}`).Into(t, 200, &p)
	if p.PTY == nil || p.PTY.Cols != 100 || p.PTY.Rows != 50 {
		t.Errorf("resized: %+v", p)
	}
	f.Do("GET", "/api/v1/processes/"+tty.ID+"/wait"+q+"&for=log:50+100&timeout_seconds=60", "").Into(t, 200, &waited)
	if waited.Line != "50 100" || waited.Offset != 15 {
		t.Errorf("the program sees: %+v", waited)
	}
	f.Do("POST", "/api/v1/processes/"+tty.ID+"/signal"+q, `{"signal":"sigterm"}`).Into(t, 200, &p)
	f.Do("GET", "/api/v1/processes/"+tty.ID+"/wait"+q, "").Into(t, 200, &waited)
	if waited.Process.Status != "killed" || *waited.Process.ExitCode != 143 {
		t.Errorf("after a signal: %+v", waited)
	}
	f.Do("GET", "/api/v1/processes/"+tty.ID+"/wait"+q+"&for=log:never", "").Into(t, 200, &waited)
	if waited.Met {
		t.Errorf("a line that never came: %+v", waited)
	}
	f.StartProcess(id, `"command":"sleep 1000","name":"long","background":true`)
	f.Do("GET", "/api/v1/processes/long/wait"+q+"&timeout_seconds=0.05", "").Into(t, 200, &waited)
	if waited.Met || waited.Process.State != "running" {
		t.Errorf("too late: %+v", waited)
	}
	f.Do("DELETE", "/api/v1/processes/long"+q, "").Into(t, 200, &p)
	if p.State != "ended" || p.Status != "killed" {
		t.Errorf("ended: %+v", p)
	}
	f.Do("DELETE", "/api/v1/processes/long"+q, "").Into(t, 200, &p)
	var list struct{ Processes []gatewaytest.ProcessView }
	f.Do("GET", "/api/v1/processes"+q+"&state=ended", "").Into(t, 200, &list)
	if len(list.Processes) != 5 {
		t.Errorf("%d are listed", len(list.Processes))
	}
}

func TestProcessEvents(t *testing.T) {
	f := newFixture(t)
	id := f.WithProcesses()
	p := f.StartProcess(id, `"command":"echo one; read x; echo two >&2","keep_stdin":true,"background":true`)
	f.Do("GET", "/api/v1/processes/"+p.ID+"/wait?for=log:one&sandbox_id="+id, "")
	f.Do("POST", "/api/v1/processes/"+p.ID+"/stdin?sandbox_id="+id, "now\n")
	f.Do("GET", "/api/v1/processes/"+p.ID+"/wait?sandbox_id="+id, "")
	path := "/api/v1/processes/" + p.ID + "/output?follow=true&sandbox_id=" + id
	get := func(path, last string) string {
		req, _ := http.NewRequest("GET", f.URL+path, nil)
		req.Header.Set("Authorization", "Bearer "+f.Token)
		req.Header.Set("Accept", "text/event-stream")
		if last != "" {
			req.Header.Set("Last-Event-ID", last)
		}
		a := f.Send(req)
		var kept []string
		for line := range strings.Lines(string(a.Body)) {
			if !strings.Contains(line, `"process_id"`) {
				kept = append(kept, line)
			}
		}
		return strings.Join(kept, "")
	}
	one := "id: 4\nevent: stdout\ndata: {\"offset\":0,\"next_offset\":4,\"text\":\"one\\n\"}\n\n"
	two := "id: 8\nevent: stderr\ndata: {\"offset\":4,\"next_offset\":8,\"text\":\"two\\n\"}\n\n"
	for _, tt := range []struct{ path, last, want string }{
		{path, "", one + two},
		{path, "4", two},
		{path + "&from=-4", "", two},
		{path + "&stream=stdout", "", one},
		{path, "8", ""},
	} {
		if got := get(tt.path, tt.last); got != "event: start\n\n"+tt.want+"event: end\n\n" {
			t.Errorf("%s after %q:\n%s", tt.path, tt.last, got)
		}
	}
	conn := f.socket(t, f.URL, "/output?follow=true&sandbox_id="+id, p.ID)
	var got []string
	for {
		_, data, err := conn.Read(t.Context())
		if err != nil {
			if websocket.CloseStatus(err) != websocket.StatusNormalClosure {
				t.Error(err)
			}
			break
		}
		got = append(got, string(data))
	}
	if len(got) != 4 || got[1] != `{"event":"stdout","offset":0,"next_offset":4,"text":"one\n"}` || !strings.HasPrefix(got[3], `{"event":"end","process_id":"`+p.ID) {
		t.Errorf("over a WebSocket: %q", got)
	}
}

// socket opens a WebSocket about a Process.
func (f *fixture) socket(t *testing.T, url, call, process string) *websocket.Conn {
	t.Helper()
	conn, resp, err := websocket.Dial(t.Context(), url+"/api/v1/processes/"+process+call, &websocket.DialOptions{
		HTTPClient: f.Client, HTTPHeader: http.Header{"Authorization": {"Bearer " + f.Token}},
	})
	if err != nil {
		t.Fatalf("%v %v", resp, err)
	}
	t.Cleanup(func() { conn.CloseNow() })
	return conn
}

// until reads messages until one holds text, and returns all of them.
func until(t *testing.T, conn *websocket.Conn, text string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all strings.Builder
	for !strings.Contains(all.String(), text) {
		_, data, err := conn.Read(ctx)
		if err != nil {
			t.Fatalf("no %q but %q: %v", text, all.String(), err)
		}
		all.Write(data)
	}
	return all.String()
}

func TestAttach(t *testing.T) {
	f := newFixture(t)
	id := f.WithProcesses()
	f.StartProcess(id, `"pty":{"cols":80,"rows":24},"argv":["cat"],"name":"cat","background":true`)
	call := "/attach?sandbox_id=" + id
	one, two := f.socket(t, f.URL, call, "cat"), f.socket(t, f.URL, call, "cat")
	for _, conn := range []*websocket.Conn{one, two} {
		until(t, conn, `"type":"start"`)
	}
	if err := one.Write(t.Context(), websocket.MessageBinary, []byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	for _, conn := range []*websocket.Conn{one, two} {
		until(t, conn, "hello\r\nhello\r\n") // the echo and cat's own
	}
	for message, want := range map[string]string{
		`{"type":"resize","cols":0,"rows":9}`: `between 1 and 4096`, `{"type":"shout"}`: "must be resize", `{"typ":"eof"}`: "unknown field",
		`{}{}`: "more text after", `no`: "JSON object", `{`: "ends early", `{"type":"signal","signal":"X"}`: "is not a signal", "{\"type\":\"\xff\"}": "UTF-8",
	} {
		if err := two.Write(t.Context(), websocket.MessageText, []byte(message)); err != nil {
			t.Fatal(err)
		}
		if got := until(t, two, `"code":"invalid"`); !strings.Contains(got, want) {
			t.Errorf("%q answers %s", message, got)
		}
	}
	if err := two.Write(t.Context(), websocket.MessageText, []byte(`{"type":"eof"}`)); err != nil {
		t.Fatal(err)
	}
	for _, conn := range []*websocket.Conn{one, two} {
		until(t, conn, `"type":"end"`)
	}
	if a := f.Do("GET", "/api/v1/processes/cat"+call, ""); a.Status != 400 || a.Header.Get("Upgrade") != "websocket" {
		t.Errorf("without an upgrade: %d %s", a.Status, a.Body)
	}
	for _, path := range []string{"absent", "p9-aaaaaaaaaaaaaaaa"} {
		_, resp, err := websocket.Dial(t.Context(), f.URL+"/api/v1/processes/"+path+call, &websocket.DialOptions{
			HTTPClient: f.Client, HTTPHeader: http.Header{"Authorization": {"Bearer " + f.Token}},
		})
		if err == nil || resp == nil || resp.StatusCode != 404 {
			t.Errorf("%s: %v %v", path, resp, err)
		}
	}
}

// The three pipes of a program over one WebSocket.
func TestAttachPipes(t *testing.T) {
	f := newFixture(t)
	id := f.WithProcesses()
	f.StartProcess(id, `"command":"read a; echo got $a; read b; echo err $b >&2; cat >/dev/null; exit 7","name":"p","keep_stdin":true,"background":true`)
	call := "/attach?pipes=true&from=0&sandbox_id=" + id
	conn := f.socket(t, f.URL, call, "p")
	write := func(kind websocket.MessageType, text string) {
		t.Helper()
		if err := conn.Write(t.Context(), kind, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	write(websocket.MessageBinary, "x\n")
	got := until(t, conn, "\x01got x\n")
	write(websocket.MessageBinary, "y\n")
	got += until(t, conn, "\x02err y\n")
	for strings.Count(got, `"type":"taken"`) < 2 { // what is on its way counts against the bound
		got += until(t, conn, `"type":"taken"`)
	}
	write(websocket.MessageBinary, strings.Repeat("z", 1<<20))
	until(t, conn, `"type":"taken","offset":0,"bytes":1048576`)
	write(websocket.MessageText, `{"type":"eof"}`)
	if got := until(t, conn, `"type":"end"`); !strings.Contains(got, `"exit_code":7`) {
		t.Errorf("it ends with %s", got)
	}

	// A signal does not wait behind input that no program reads.
	f.StartProcess(id, `"command":"trap 'exit 9' INT; echo ready; while :; do sleep 0.01; done","name":"deaf","keep_stdin":true,"background":true`)
	conn = f.socket(t, f.URL, call, "deaf")
	until(t, conn, "\x01ready\n") // and not the record, whose command says it too
	write(websocket.MessageBinary, strings.Repeat("z", 1<<20))
	write(websocket.MessageText, `{"type":"signal","signal":"INT"}`)
	if got := until(t, conn, `"type":"end"`); !strings.Contains(got, `"exit_code":9`) {
		t.Errorf("it ends with %s", got)
	}

	f.StartProcess(id, `"argv":["cat"],"name":"terminal","pty":{"cols":80,"rows":24},"background":true`)
	for query, process := range map[string]string{
		"&pipes=true": "terminal", "&pipes=maybe": "deaf", "&end=1": "p",
		"&input=0": "p", "&pipes=true&input=-1": "p", "&pipes=true&input=x": "p",
	} {
		_, resp, err := websocket.Dial(t.Context(), f.URL+"/api/v1/processes/"+process+"/attach?sandbox_id="+id+query, &websocket.DialOptions{
			HTTPClient: f.Client, HTTPHeader: http.Header{"Authorization": {"Bearer " + f.Token}},
		})
		if err == nil || resp == nil || resp.StatusCode != 400 {
			t.Errorf("%s of %s: %v %v", query, process, resp, err)
		}
	}

	// A client that comes back sends again what it does not know to have arrived.
	f.StartProcess(id, `"argv":["cat"],"name":"again","keep_stdin":true,"background":true`)
	for _, tt := range []struct{ query, send, want string }{
		{"&from=0&input=0", "ab\n", "\x01ab\n"},
		{"&from=3&input=1", "b\ncd\n", "\x01cd\n"},
		{"&from=6&input=100", "x", "has not arrived"},
	} {
		conn := f.socket(t, f.URL, "/attach?pipes=true&end=true&sandbox_id="+id+tt.query, "again")
		if err := conn.Write(t.Context(), websocket.MessageBinary, []byte(tt.send)); err != nil {
			t.Fatal(err)
		}
		until(t, conn, tt.want)
		conn.CloseNow()
	}

	// A process may end with the connection of the attached client.
	for name, query := range map[string]string{"stays": "&end=false", "ends": "&end=true", "leaves": "&end=true&input=0"} {
		f.StartProcess(id, `"argv":["cat"],"name":"`+name+`","keep_stdin":true,"background":true`)
		conn := f.socket(t, f.URL, "/attach?pipes=true&sandbox_id="+id+query, name)
		until(t, conn, `"type":"start"`)
		if name == "leaves" { // and says so
			_ = conn.Close(websocket.StatusNormalClosure, "")
		} else {
			conn.CloseNow()
		}
	}
	var waited struct {
		Met     bool
		Process gatewaytest.ProcessView
	}
	for _, name := range []string{"ends", "leaves", "again"} {
		f.Do("GET", "/api/v1/processes/"+name+"/wait?timeout_seconds=60&sandbox_id="+id, "").Into(t, 200, &waited)
		if !waited.Met || waited.Process.Status != "killed" {
			t.Errorf("after its client left: %+v", waited)
		}
	}
	var p gatewaytest.ProcessView
	if f.Do("GET", "/api/v1/processes/stays?sandbox_id="+id, "").Into(t, 200, &p); p.State != "running" {
		t.Errorf("the other: %+v", p)
	}
}

// A browser sends the credential of a WebSocket among its protocols.
func TestSocketCredential(t *testing.T) {
	f := newFixture(t)
	id := f.WithProcesses()
	f.StartProcess(id, `"command":"echo hello; sleep 1000","name":"p","background":true`)
	url := f.URL + "/api/v1/processes/p/attach?sandbox_id=" + id
	for _, tt := range []struct {
		name      string
		protocols []string
		headers   http.Header
		status    int
	}{
		{"token", []string{"cloud-sandbox", "bearer." + f.Token}, nil, 101},
		{"no credential", []string{"cloud-sandbox"}, nil, 401},
		{"empty", []string{"cloud-sandbox", "bearer."}, nil, 401},
		{"wrong", []string{"cloud-sandbox", "bearer." + f.Token + "x"}, nil, 401},
		{"two", []string{"bearer." + f.Token, "bearer." + f.Token}, nil, 401},
		{"another's", []string{"cloud-sandbox", "bearer." + f.Mint("other")}, nil, 404},
		{"beside a header that is wrong", []string{"bearer." + f.Token}, http.Header{"Authorization": {"Bearer x"}}, 401},
		{"from another site", []string{"cloud-sandbox", "bearer." + f.Token}, http.Header{"Origin": {"https://evil.example"}}, 403},
	} {
		conn, resp, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{HTTPClient: f.Client, Subprotocols: tt.protocols, HTTPHeader: tt.headers})
		if resp == nil || resp.StatusCode != tt.status {
			t.Errorf("%s: %v %v", tt.name, resp, err)
		}
		if err != nil {
			continue
		}
		if conn.Subprotocol() != "cloud-sandbox" {
			t.Errorf("%s: the protocol is %q", tt.name, conn.Subprotocol())
		}
		until(t, conn, "hello")
		conn.CloseNow()
	}
	for name, tt := range map[string]struct {
		headers map[string]string
		status  int
		says    string
	}{
		"no key":       {map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}, 400, "handshake"},
		"version 8":    {map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "8", "Sec-WebSocket-Key": "MDEyMzQ1Njc4OTAxMjM0NQ=="}, 400, "handshake"},
		"another site": {map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "MDEyMzQ1Njc4OTAxMjM0NQ==", "Origin": "https://evil.example"}, 403, "another host"},
	} {
		req, _ := http.NewRequest("GET", url, nil)
		req.Header.Set("Authorization", "Bearer "+f.Token)
		for k, v := range tt.headers {
			req.Header.Set(k, v)
		}
		if a := f.Send(req); a.Status != tt.status || !strings.Contains(string(a.Body), tt.says) {
			t.Errorf("%s: %d %s", name, a.Status, a.Body)
		}
	}
	req, _ := http.NewRequest("GET", f.URL+"/api/v1/processes/p?sandbox_id="+id, nil)
	req.Header.Set("Sec-WebSocket-Protocol", "bearer."+f.Token)
	if a := f.Send(req); a.Status != 401 {
		t.Errorf("without an upgrade: %d %s", a.Status, a.Body)
	}
}

// A start with a key that is under way already waits for it, whoever sent it.
func TestProcessStartsOncePerKey(t *testing.T) {
	f := newFixture(t)
	id := f.WithProcesses()
	start := func(key, fields string) gatewaytest.Answer {
		req, _ := http.NewRequest("POST", f.URL+"/api/v1/processes", strings.NewReader(`{"sandbox_id":"`+id+`",`+fields+`}`))
		req.Header.Set("Authorization", "Bearer "+f.Token)
		req.Header.Set("Idempotency-Key", key)
		return f.Send(req)
	}
	var all sync.WaitGroup
	ids := make(chan string, 10)
	for i := range cap(ids) {
		all.Go(func() {
			var p gatewaytest.ProcessView
			a := start("same", fmt.Sprintf(`"command":"sleep 0.1; echo $$","yield_ms":%d`, 20000+i))
			want := a.Status
			if want == 200 {
				want = 201
			}
			if want != 201 {
				t.Errorf("%d %s", a.Status, a.Body)
			}
			a.Into(t, a.Status, &p)
			ids <- p.ID + p.Stdout
		})
	}
	all.Wait()
	first := <-ids
	for range cap(ids) - 1 {
		if other := <-ids; other != first {
			t.Errorf("%s was started beside %s", other, first)
		}
	}
	if a := start("same", `"command":"true"`); a.Status != 409 {
		t.Errorf("another request: %d %s", a.Status, a.Body)
	}
	if a := start("failed", `"argv":["no-such-program"]`); a.Status != 400 {
		t.Errorf("a start that fails: %d %s", a.Status, a.Body)
	}
	if a := start("failed", `"argv":["true"]`); a.Status != 201 {
		t.Errorf("its key again: %d %s", a.Status, a.Body)
	}
	for _, key := range []string{"", strings.Repeat("k", 256), "é"} {
		if a := start(key, `"command":"true"`); a.Status != 400 || !strings.Contains(string(a.Body), "Idempotency-Key") {
			t.Errorf("key %q: %d %s", key, a.Status, a.Body)
		}
	}
}

func TestProcessBadInputs(t *testing.T) {
	f := newFixture(t)
	id := f.WithProcesses()
	f.StartProcess(id, `"command":"sleep 1000","name":"plain","background":true`)
	f.StartProcess(id, `"command":"true","name":"over"`)
	f.StartProcess(id, `"command":"sleep 1000","shell":"sh","background":true`)
	other := f.Mint("other")
	for _, tt := range []struct {
		call, body string // body of a start when call is empty
		status     int
		says       string
	}{
		{"", ``, 400, "command and argv are missing"},
		{"", `"command":"  "`, 400, "command and argv are missing"},
		{"", `"command":"true","argv":["true"]`, 400, "not both"},
		{"", `"argv":[]`, 400, "missing"},
		{"", `"argv":[""]`, 400, "no program"},
		{"", `"argv":["a\u0000b"]`, 400, "zero byte"},
		{"", `"argv":["no-such-program"]`, 400, "no-such-program"},
		{"", `"argv":["/etc/passwd"]`, 400, "/etc/passwd"},
		{"", `"argv":"true"`, 400, "argv"},
		{"", `"argv":[` + strings.Repeat(`"a",`, 1024) + `"a"]`, 413, "1024"},
		{"", `"command":"` + strings.Repeat("a", 96<<10+1) + `"`, 413, "98304"},
		{"", `"command":"true","stdin":"` + strings.Repeat("a", 1<<20+1) + `"`, 413, "stdin"},
		{"", `"command":"true","cwd":"/no/such"`, 400, "/no/such"},
		{"", `"command":"true","cwd":"` + strings.Repeat("a", 5000) + `"`, 413, "cwd"},
		{"", `"command":"true","user":"nobody-here"`, 400, "nobody-here"},
		{"", `"command":"true","env":{"A=B":"c"}`, 400, "environment variable"},
		{"", `"command":"true","name":"Not A Name"`, 400, "name must"},
		{"", `"command":"true","name":"p1-aaaaaaaaaaaaaaaa"`, 400, "process ID"},
		{"", `"command":"true","name":"plain"`, 409, "name"},
		{"", `"command":"true","shell":"../x"`, 400, "shell must"},
		{"", `"argv":["true"],"shell":"sh"`, 400, "shell needs a command"},
		{"", `"command":"true","shell":"sh"`, 409, "busy"},
		{"", `"command":"true","pty":{"cols":0,"rows":1}`, 400, "between 1 and 4096"},
		{"", `"command":"true","pty":{"cols":5000,"rows":1}`, 400, "between 1 and 4096"},
		{"", `"command":"true","pty":{"rows":1}`, 400, "between 1 and 4096"},
		{"", `"command":"true","pty":true`, 400, "pty"},
		{"", `"command":"true","yield_ms":0`, 400, "background"},
		{"", `"command":"true","yield_ms":600001`, 400, "600000"},
		{"", `"command":"true","yield_ms":0.5`, 400, "yield_ms"},
		{"", `"command":"true","max_output_bytes":0`, 400, "8388608"},
		{"", `"command":"true","max_output_bytes":8388609`, 400, "8388608"},
		{"", `"command":"true","timeout_seconds":0`, 400, "seconds"},
		{"", `"command":"true","timeout_seconds":86401`, 400, "86400"},
		{"", `"command":"true","extra":1`, 400, "extra"},

		{"GET plain", "", 404, "no sandbox"},
		{"GET absent", "", 404, "no such process"},
		{"GET p1-aaaaaaaaaaaaaaaa", "", 404, "no such process"},
		{"GET p1-aaaaaaaaaaaaaaaa", "", 404, "no such process"},
		{"GET UPPER", "", 400, "neither the ID nor the name"},
		{"GET a%20b", "", 400, "neither the ID nor the name"},
		{"GET %2e%2e%2fx", "", 404, "no operation has this path"},
		{"GET plain?x=1", "", 400, "x"},
		{"GET plain", "{}", 400, "no body"},

		{"GET plain/output?from=x", "", 400, "from must be"},
		{"GET plain/output?from=9223372036854775808", "", 400, "from must be"},
		{"GET plain/output?follow=maybe", "", 400, "follow"},
		{"GET plain/output?stream=stdin", "", 400, "stdout or stderr"},
		{"GET absent/output", "", 404, "no such process"},

		{"POST plain/stdin", "x", 400, "keep_stdin"},
		{"POST over/stdin", "x", 409, "ended"},
		{"POST plain/stdin?eof=x", "x", 400, "eof"},
		{"POST plain/stdin", strings.Repeat("x", 1<<20+1), 413, "1048576"},

		{"POST plain/signal", `{}`, 400, "not a signal"},
		{"POST plain/signal", `{"signal":"NOPE"}`, 400, "not a signal"},
		{"POST plain/signal", `{"signal":0}`, 400, "not a signal"},
		{"POST plain/signal", `{"signal":64}`, 400, "not a signal"},
		{"POST plain/signal", `{"signal":1.5}`, 400, "signal"},
		{"POST over/signal", `{"signal":"TERM"}`, 409, "ended"},

		{"POST plain/resize", `{"cols":80,"rows":24}`, 400, "no terminal"},
		{"POST plain/resize", `{"cols":-1,"rows":24}`, 400, "between 1 and 4096"},
		{"POST plain/resize", `{}`, 400, "between 1 and 4096"},

		{"GET plain/wait?for=port", "", 400, "port"},
		{"GET plain/wait?for=port:0", "", 400, "port"},
		{"GET plain/wait?for=port:65536", "", 400, "port"},
		{"GET plain/wait?for=http:80%20/", "", 400, "port"},
		{"GET plain/wait?for=http:80/a%20b", "", 400, "malformed"},
		{"GET plain/wait?for=log:", "", 400, "RE2"},
		{"GET plain/wait?for=log:(", "", 400, "RE2"},
		{"GET plain/wait?for=sunrise", "", 400, "for must be"},
		{"GET plain/wait?for=log:" + strings.Repeat("a", 2100), "", 413, "2048"},
		{"GET plain/wait?timeout_seconds=-1", "", 400, "seconds"},
		{"GET plain/wait?timeout_seconds=3601", "", 400, "3600"},
		{"GET plain/wait?timeout_seconds=x", "", 400, "seconds"},
	} {
		method, path, body := "POST", "/api/v1/processes", `{"sandbox_id":"`+id+`"`
		token := f.Token
		if tt.call == "" {
			if tt.body != "" {
				body += "," + tt.body
			}
			body += "}"
		} else {
			var call string
			method, call, _ = strings.Cut(tt.call, " ")
			sep := "?"
			if strings.Contains(call, "?") {
				sep = "&"
			}
			path, body = path+"/"+call+sep+"sandbox_id="+id, tt.body
			if tt.says == "no sandbox" {
				token = other
			}
		}
		a := f.DoAs(token, method, path, body)
		if a.Status != tt.status || !strings.Contains(string(a.Body), tt.says) {
			t.Errorf("%s %.60s: %d %.300s, want %d and %q", tt.call, tt.body, a.Status, a.Body, tt.status, tt.says)
		}
	}
	for _, path := range []string{"/api/v1/processes", "/api/v1/processes?sandbox_id=" + id + "&state=asleep", "/api/v1/processes/plain"} {
		if a := f.Do("GET", path, ""); a.Status != 400 {
			t.Errorf("%s: %d %s", path, a.Status, a.Body)
		}
	}
}

// Output of megabytes is read whole, also while it is written.
func TestProcessOutputFollows(t *testing.T) {
	f := newFixture(t)
	id := f.WithProcesses()
	const size = 30 << 20 // more than is kept
	p := f.StartProcess(id, fmt.Sprintf(`"command":"read x; yes 0123456 | head -c %d","keep_stdin":true,"background":true`, size))
	path := "/api/v1/processes/" + p.ID + "/output?follow=true&sandbox_id=" + id
	req, _ := http.NewRequest("GET", f.URL+path, nil)
	req.Header.Set("Authorization", "Bearer "+f.Token)
	resp, err := f.Client.Do(req) // the head comes before the output
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	f.Do("POST", "/api/v1/processes/"+p.ID+"/stdin?sandbox_id="+id, "go\n")
	var n int64
	buf := make([]byte, 64<<10)
	for {
		k, err := resp.Body.Read(buf)
		for i, b := range buf[:k] {
			if want := "0123456\n"[(n+int64(i))%8]; b != want {
				t.Fatalf("byte %d is %q", n+int64(i), b)
			}
		}
		if n += int64(k); err != nil {
			break
		}
	}
	if n != size || resp.Trailer.Get("X-Next-Offset") != strconv.Itoa(size) || resp.Trailer.Get("X-Dropped") != "0" || resp.Trailer.Get("X-Process-State") != "ended" {
		t.Errorf("%d bytes, %v", n, resp.Trailer)
	}
}
