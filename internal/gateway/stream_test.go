package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
)

// event is one server-sent event.
type event struct{ name, data string }

func readEvents(t *testing.T, r io.Reader) []event {
	t.Helper()
	var events []event
	var e event
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		switch line := lines.Text(); {
		case line == "" && e.name != "":
			events = append(events, e)
			e = event{}
		case strings.HasPrefix(line, "event: "):
			e.name = line[len("event: "):]
		case strings.HasPrefix(line, "data: "):
			e.data = line[len("data: "):]
		case line != "" && !strings.HasPrefix(line, ":"):
			t.Errorf("no part of an event: %q", line)
		}
	}
	return events
}

func TestExecuteStreams(t *testing.T) {
	f := newFixture(t)
	f.guest.programs["talk"] = func(ctx context.Context, req execution.RunRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error) {
		for _, e := range []execution.RunEvent{
			{Stdout: []byte("one\n")}, {Stderr: []byte("two\xff")}, {Stdout: []byte("\xe6\x97")}, {Stdout: []byte("\xa5")},
		} {
			if err := handle(e); err != nil {
				return execution.RunEnd{}, err
			}
		}
		return execution.RunEnd{Status: execution.StatusOK, ExitCode: 3}, nil
	}
	id := f.acquire()
	for name, send := range map[string]func() *http.Request{
		"field": func() *http.Request {
			r, _ := http.NewRequest("POST", f.url+"/api/v1/execute", strings.NewReader(`{"sandbox_id":"`+id+`","code":"talk","language":"bash","stream":true}`))
			return r
		},
		"header": func() *http.Request {
			r, _ := http.NewRequest("POST", f.url+"/api/v1/execute", strings.NewReader(`{"sandbox_id":"`+id+`","code":"talk","language":"bash"}`))
			r.Header.Set("Accept", "application/json;q=0.1, Text/Event-Stream;q=0.9")
			return r
		},
	} {
		req := send()
		req.Header.Set("Authorization", "Bearer "+f.token)
		a := f.send(req)
		if !strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream") {
			t.Fatalf("%s: %d %v %s", name, a.status, a.header, a.body)
		}
		events := readEvents(t, bytes.NewReader(a.body))
		want := []event{
			{"start", `{"sandbox_id":"` + id + `","session_id":"` + id + `"}`},
			{"stdout", `{"text":"one\n"}`},
			{"stderr", `{"text":"two�","base64":"dHdv/w=="}`},
			{"stdout", `{"text":"日"}`},
		}
		if len(events) != 5 || fmt.Sprint(events[:4]) != fmt.Sprint(want) || events[4].name != "result" {
			t.Fatalf("%s: %v", name, events)
		}
		var res struct {
			Status, Stdout, Stderr string
			ExitCode               int `json:"exit_code"`
			Error                  struct{ Name string }
		}
		if err := json.Unmarshal([]byte(events[4].data), &res); err != nil {
			t.Fatal(err)
		}
		if res.Status != "error" || res.Stdout != "one\n日" || res.Stderr != "two\ufffd" || res.ExitCode != 3 || res.Error.Name != "exit_code" {
			t.Errorf("%s: %+v", name, res)
		}
	}
}

func TestExecuteStreamFailure(t *testing.T) {
	f := newFixture(t)
	id := f.acquire()
	a := f.do("POST", "/api/v1/execute", `{"sandbox_id":"`+id+`","code":"x","language":"cobol","stream":true}`)
	if a.status != 400 || a.code(t) != "invalid" {
		t.Errorf("before the first event: %d %s", a.status, a.body)
	}
	f.guest.programs["refused"] = func(context.Context, execution.RunRequest, func(execution.RunEvent) error) (execution.RunEnd, error) {
		return execution.RunEnd{}, sandbox.Errorf(sandbox.Invalid, "there is no directory /nope")
	}
	a = f.do("POST", "/api/v1/execute", `{"sandbox_id":"`+id+`","code":"refused","language":"bash","stream":true}`)
	events := readEvents(t, bytes.NewReader(a.body))
	if len(events) != 2 || events[1] != (event{"error", `{"error":{"code":"invalid","message":"there is no directory /nope"}}`}) {
		t.Errorf("after it: %v", events)
	}
	if a = f.do("POST", "/api/v1/execute", `{"sandbox_id":"`+id+`","code":"refused","language":"bash"}`); a.status != 400 {
		t.Errorf("in one piece: %d %s", a.status, a.body)
	}
}

func TestExecuteCutsOutput(t *testing.T) {
	f := newFixture(t)
	f.guest.programs["flood"] = func(_ context.Context, _ execution.RunRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error) {
		chunk := bytes.Repeat([]byte("y"), 100_000)
		for range 20 {
			if err := handle(execution.RunEvent{Stdout: chunk}); err != nil {
				return execution.RunEnd{}, err
			}
		}
		return execution.RunEnd{Status: execution.StatusOK}, nil
	}
	var res struct {
		Stdout    string
		Truncated map[string]int64
	}
	id := f.acquire()
	f.do("POST", "/api/v1/execute", `{"sandbox_id":"`+id+`","code":"flood","language":"bash"}`).into(t, 200, &res)
	if len(res.Stdout) != 1<<20 || res.Truncated["stdout_bytes_dropped"] != 2_000_000-1<<20 || res.Truncated["stderr_bytes_dropped"] != 0 {
		t.Errorf("%d kept, %v", len(res.Stdout), res.Truncated)
	}
	f.do("POST", "/api/v1/execute", `{"sandbox_id":"`+id+`","code":"flood","language":"bash","max_output_bytes":10}`).into(t, 200, &res)
	if res.Stdout != "yyyyyyyyyy" || res.Truncated["stdout_bytes_dropped"] != 1_999_990 {
		t.Errorf("%q kept, %v", res.Stdout, res.Truncated)
	}
}

func TestExecutePassesEverythingOn(t *testing.T) {
	f := newFixture(t)
	id := f.acquire()
	f.do("POST", "/api/v1/execute", `{"session_id":"`+id+`","code":"c","language":"sh","timeout_seconds":1.5,"env":{"A":"b"},"cwd":"/tmp","user":"root","stdin":"in"}`).into(t, 200, &struct{}{})
	run := f.guest.runs[0]
	if strings.Join(run.Args, " ") != "bash -c -- c" || run.Timeout != 1500*time.Millisecond || run.Env["A"] != "b" ||
		run.Cwd != "/tmp" || run.User != "root" || string(run.Stdin) != "in" {
		t.Errorf("run %+v", run)
	}
	f.do("POST", "/api/v1/execute", `{"session_id":"`+id+`","code":"c","language":"py","timeout_seconds":1.5,"env":{"A":"b"},"cwd":"/tmp","user":"root","stdin":"in"}`).into(t, 200, &struct{}{})
	f.do("POST", "/api/v1/execute", `{"session_id":"`+id+`","code":"c","context_id":"c1"}`).into(t, 200, &struct{}{})
	cell := f.guest.cells[0]
	if cell.Language != "python" || cell.Code != "c" || cell.Timeout != 1500*time.Millisecond || cell.Env["A"] != "b" ||
		cell.Cwd != "/tmp" || cell.User != "root" || string(cell.Stdin) != "in" || f.guest.cells[1].Context != "c1" {
		t.Errorf("cells %+v", f.guest.cells)
	}
}

// A borrowed Sandbox is gone afterwards, whatever happens.
func TestExecuteBorrows(t *testing.T) {
	f := newFixture(t)
	f.guest.programs["refused"] = func(context.Context, execution.RunRequest, func(execution.RunEvent) error) (execution.RunEnd, error) {
		return execution.RunEnd{}, sandbox.Errorf(sandbox.Invalid, "no")
	}
	f.guest.programs["panic"] = func(context.Context, execution.RunRequest, func(execution.RunEvent) error) (execution.RunEnd, error) {
		panic("boom")
	}
	for code, status := range map[string]int{"fine": 200, "refused": 400, "panic": 500} {
		if a := f.do("POST", "/api/v1/execute", `{"code":"`+code+`","language":"bash"}`); a.status != status {
			t.Errorf("%s: %d %s", code, a.status, a.body)
		}
		if n := f.sandboxes.live(); n != 0 {
			t.Errorf("%s: %d left", code, n)
		}
	}
	f.sandboxes.fail = &sandbox.Error{Code: sandbox.Exhausted, Detail: "full", RetryAfter: 1500 * time.Millisecond}
	a := f.do("POST", "/api/v1/execute", `{"code":"x","language":"bash"}`)
	if a.status != 429 || a.header.Get("Retry-After") != "2" || !bytes.Contains(a.body, []byte(`"retry_after_seconds":2`)) {
		t.Errorf("%d %v %s", a.status, a.header, a.body)
	}
}

func TestPanicIsLoggedAndHidden(t *testing.T) {
	f := newFixture(t)
	id := f.acquire()
	f.guest.programs["panic"] = func(context.Context, execution.RunRequest, func(execution.RunEvent) error) (execution.RunEnd, error) {
		panic("secret boom")
	}
	a := f.do("POST", "/api/v1/execute", `{"sandbox_id":"`+id+`","code":"panic","language":"bash"}`)
	if a.status != 500 || a.code(t) != "internal" || bytes.Contains(a.body, []byte("boom")) {
		t.Errorf("%d %s", a.status, a.body)
	}
	if log := f.logs.String(); !strings.Contains(log, "secret boom") || !strings.Contains(log, `"level":"ERROR"`) {
		t.Error("the log does not tell")
	}
}

// A client that leaves ends its execution and its borrowed Sandbox; the log says
// 499.
func TestClientLeaves(t *testing.T) {
	for _, body := range []string{
		`{"code":"wait","language":"bash"}`,
		`{"code":"wait","language":"bash","stream":true}`,
		`{"code":"chatter","language":"bash","stream":true}`,
	} {
		f := newFixture(t)
		started, ended := make(chan struct{}), make(chan struct{})
		f.guest.programs["wait"] = func(ctx context.Context, _ execution.RunRequest, _ func(execution.RunEvent) error) (execution.RunEnd, error) {
			close(started)
			<-ctx.Done()
			close(ended)
			return execution.RunEnd{}, ctx.Err()
		}
		f.guest.programs["chatter"] = func(ctx context.Context, _ execution.RunRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error) {
			defer close(ended)
			close(started)
			for {
				if err := handle(execution.RunEvent{Stdout: []byte("x")}); err != nil {
					return execution.RunEnd{}, err
				}
				if ctx.Err() != nil {
					return execution.RunEnd{}, ctx.Err()
				}
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		req, _ := http.NewRequestWithContext(ctx, "POST", f.url+"/api/v1/execute", strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer "+f.token)
		var wg sync.WaitGroup
		wg.Go(func() {
			if resp, err := f.client.Do(req); err == nil {
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
		<-started
		cancel()
		<-ended
		wg.Wait()
		waitFor(t, "the borrowed sandbox is gone", func() bool { return f.sandboxes.live() == 0 })
		waitFor(t, "the log line", func() bool { return strings.Contains(f.logs.String(), `"status":499`) })
	}
}

func TestFilesStreamAtConstantMemory(t *testing.T) {
	f := newFixture(t)
	id := f.acquire()
	// What other tests left lets the heap grow by as much again before it is collected.
	defer debug.SetGCPercent(debug.SetGCPercent(20))
	stop := make(chan struct{})
	var peak uint64
	var watcher sync.WaitGroup
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	watcher.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				var now runtime.MemStats
				runtime.ReadMemStats(&now)
				peak = max(peak, now.HeapInuse)
			}
		}
	})
	req, _ := http.NewRequest("GET", f.url+"/api/v1/files?path=/dev/huge&sandbox_id="+id, nil)
	req.Header.Set("Authorization", "Bearer "+f.token)
	resp, err := f.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	if n != hugeSize || err != nil {
		t.Errorf("down: %d bytes, %v", n, err)
	}
	req, _ = http.NewRequest("PUT", f.url+"/api/v1/files?path=/dev/null&sandbox_id="+id, io.LimitReader(zeros{}, hugeSize))
	req.Header.Set("Authorization", "Bearer "+f.token)
	a := f.send(req)
	if a.status != 200 || !bytes.Contains(a.body, []byte(fmt.Sprint(hugeSize))) {
		t.Errorf("up: %d %s", a.status, a.body)
	}
	close(stop)
	watcher.Wait()
	if grown := int64(peak) - int64(before.HeapInuse); grown > 32<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
}

// A file that the Guest cuts off does not look whole.
func TestBrokenDownload(t *testing.T) {
	f := newFixture(t)
	req, _ := http.NewRequest("GET", f.url+"/api/v1/files?path=/broken&sandbox_id="+f.acquire(), nil)
	req.Header.Set("Authorization", "Bearer "+f.token)
	resp, err := f.client.Do(req)
	if err != nil {
		return // nothing had been sent yet
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("read %q without an error", body)
	}
}

// Who is refused while they still send hears why: a Guest that answers an upload
// early and keeps reading, a form whose first part is refused, and who may not send
// at all, also when the client asked whether to. The connection stays a moment, so
// that the client has time to read that.
func TestEarlyAnswerToUpload(t *testing.T) {
	f := newFixture(t)
	id := f.acquire()
	const form = "--x\r\nContent-Disposition: form-data; name=\"template\"\r\n\r\n{\"nonsense\":1}\r\n--x\r\nContent-Disposition: form-data; name=\"archive\"; filename=\"a\"\r\n\r\n"
	for _, tt := range []struct {
		method, path, token, begin string
		want                       int
	}{
		{"PUT", "/api/v1/files?path=/early&sandbox_id=" + id, f.token, "", 413},
		{"POST", "/api/v1/templates", f.token, form, 400},
		{"POST", "/api/v1/templates", "of nobody", form, 401},
	} {
		for _, expect := range []string{"", "Expect: 100-continue\r\n"} {
			head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: 1000000000\r\n%s\r\n", tt.method, tt.path, tt.token, expect)
			// Once it stays, it always does: this process may have been kept from running.
			var code int
			stays := false
			for range 5 {
				if code, stays = f.sendsOn(head + tt.begin); stays {
					break
				}
			}
			if code != tt.want || !stays {
				t.Errorf("%s, %q: %d, and the connection stays: %v", tt.path, expect, code, stays)
			}
			if a := f.do("GET", "/api/v1/sessions/"+id, ""); a.status != 200 {
				t.Errorf("the next request: %d %s", a.status, a.body)
			}
		}
	}
}

// sendsOn begins a request and goes on sending until there is an answer, whose status
// it returns, and for a moment after. It reports whether the connection took that.
func (f *fixture) sendsOn(begin string) (code int, stays bool) {
	f.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close()
	answered, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := conn.Write([]byte(begin))
		for chunk := make([]byte, 1000); err == nil; _, err = conn.Write(chunk) {
		}
		ended <- err
	}()
	go func() {
		defer close(answered)
		in := bufio.NewReader(conn)
		for code < 200 { // 100: go on
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				return
			}
			code = resp.StatusCode
			_, _ = io.Copy(io.Discard, resp.Body)
		}
		_ = conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	}()
	err = <-ended
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	<-answered
	return code, errors.Is(err, os.ErrDeadlineExceeded)
}

// An upload that breaks off is the client's failure and writes nothing.
func TestUploadBreaksOff(t *testing.T) {
	f := newFixture(t)
	id := f.acquire()
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "PUT /api/v1/files?path=a&sandbox_id=%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 100\r\n\r\nhalf", id, f.token)
	conn.(*net.TCPConn).CloseWrite()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if resp.StatusCode != 400 {
		t.Errorf("status %d", resp.StatusCode)
	}
	if a := f.do("GET", "/api/v1/files?path=a&sandbox_id="+id, ""); a.status != 404 {
		t.Errorf("half a file is there: %s", a.body)
	}
}

func TestRequestID(t *testing.T) {
	f := newFixture(t)
	for id, same := range map[string]bool{"abc-1.2_3": true, "a b": false, strings.Repeat("x", 65): false, "": false, "a\tb": false} {
		req, _ := http.NewRequest("GET", f.url+"/health", nil)
		req.Header.Set("X-Request-Id", id)
		if a := f.send(req); (a.header.Get("X-Request-Id") == id) != same || a.header.Get("X-Request-Id") == "" {
			t.Errorf("%q became %q", id, a.header.Get("X-Request-Id"))
		}
	}
	f.do("GET", "/api/v1/sessions/hello", "")
	if log := f.logs.String(); !strings.Contains(log, `"route":"/api/v1/sessions/{id}"`) || !strings.Contains(log, `"tenant":"dev:test"`) || !strings.Contains(log, `"status":404`) {
		t.Errorf("log: %s", log)
	}
}

// serve runs the fixture's gateway by Run on two listeners. It returns the
// address of one and a stop that waits for the end.
func (f *fixture) serve() (net.Addr, func()) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var listeners []net.Listener
	for range 2 {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			f.t.Fatal(err)
		}
		listeners = append(listeners, ln)
	}
	done := make(chan error, 1)
	go func() { done <- f.server.Run(ctx, listeners...) }()
	return listeners[1].Addr(), sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Errorf("Run = %v", err)
		}
	})
}

func TestRunEndsWithAListener(t *testing.T) {
	f := newFixture(t)
	one, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	two, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	one.Close()
	if err := f.server.Run(t.Context(), one, two); err == nil {
		t.Error("half a server went on")
	}
	if _, err := two.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the other listener: %v", err)
	}
}

// Requests under way end in peace, and nothing is left running.
func TestDrain(t *testing.T) {
	f := newFixture(t)
	ignore := goleak.IgnoreCurrent()
	addr, stop := f.serve()
	started, finish := make(chan struct{}), make(chan struct{})
	f.guest.programs["slow"] = func(ctx context.Context, _ execution.RunRequest, _ func(execution.RunEvent) error) (execution.RunEnd, error) {
		close(started)
		<-finish
		return execution.RunEnd{Status: execution.StatusOK}, ctx.Err()
	}
	client := &http.Client{Transport: &http.Transport{}}
	status := make(chan int, 1)
	go func() {
		req, _ := http.NewRequest("POST", "http://"+addr.String()+"/api/v1/execute", strings.NewReader(`{"code":"slow","language":"bash"}`))
		req.Header.Set("Authorization", "Bearer "+f.token)
		resp, err := client.Do(req)
		if err != nil {
			t.Error(err)
			status <- 0
			return
		}
		resp.Body.Close()
		status <- resp.StatusCode
	}()
	<-started
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	waitFor(t, "no more connections are taken", func() bool {
		conn, err := net.Dial("tcp", addr.String())
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	close(finish)
	if s := <-status; s != 200 {
		t.Errorf("status %d", s)
	}
	<-stopped
	client.CloseIdleConnections()
	if f.sandboxes.live() != 0 || f.guest.closed == 0 {
		t.Errorf("%d sandboxes left, %d guests closed", f.sandboxes.live(), f.guest.closed)
	}
	leavesNothing(t, ignore)
}

// leavesNothing fails the test when goroutines run on. Those that are just about
// to end are waited for.
func leavesNothing(t *testing.T, ignore goleak.Option) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		err := goleak.Find(ignore) // which waits a little itself
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// What outlasts the drain is told why, and what it borrowed is given back.
func TestDrainEnds(t *testing.T) {
	f := newFixture(t, func(c *gateway.Config) { c.Drain = 100 * time.Millisecond })
	addr, stop := f.serve()
	started := make(chan struct{})
	f.guest.programs["stuck"] = func(ctx context.Context, _ execution.RunRequest, _ func(execution.RunEvent) error) (execution.RunEnd, error) {
		close(started)
		<-ctx.Done()
		return execution.RunEnd{}, ctx.Err()
	}
	body := make(chan string, 1)
	go func() {
		req, _ := http.NewRequest("POST", "http://"+addr.String()+"/api/v1/execute", strings.NewReader(`{"code":"stuck","language":"bash","stream":true}`))
		req.Header.Set("Authorization", "Bearer "+f.token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			body <- err.Error()
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		body <- string(b)
	}()
	<-started
	start := time.Now()
	stop()
	if took := time.Since(start); took < 100*time.Millisecond || took > time.Minute {
		t.Errorf("the drain took %s", took)
	}
	if b := <-body; !strings.Contains(b, "the server is shutting down") {
		t.Errorf("answer %q", b)
	}
	if f.sandboxes.live() != 0 {
		t.Error("a borrowed sandbox is left")
	}
}

func TestHugeHeaders(t *testing.T) {
	f := newFixture(t)
	addr, stop := f.serve()
	defer stop()
	req, _ := http.NewRequest("GET", "http://"+addr.String()+"/health", nil)
	req.Header.Set("X-Huge", strings.Repeat("x", 128<<10))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("status %d", resp.StatusCode)
	}
}
