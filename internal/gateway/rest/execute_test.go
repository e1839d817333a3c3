package rest_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
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
	t.Parallel()
	f := newFixture(t)
	f.Guest.Scripts["talk"] = func(ctx context.Context, req execution.RunRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error) {
		for _, e := range []execution.RunEvent{
			{Stdout: []byte("one\n")}, {Stderr: []byte("two\xff")}, {Stdout: []byte("\xe6\x97")}, {Stdout: []byte("\xa5")},
		} {
			if err := handle(e); err != nil {
				return execution.RunEnd{}, err
			}
		}
		return execution.RunEnd{Status: execution.StatusOK, ExitCode: 3}, nil
	}
	id := f.Acquire()
	for name, send := range map[string]func() *http.Request{
		"field": func() *http.Request {
			r, _ := http.NewRequest("POST", f.URL+"/api/v1/execute", strings.NewReader(`{"sandbox_id":"`+id+`","code":"talk","language":"bash","stream":true}`))
			return r
		},
		"header": func() *http.Request {
			r, _ := http.NewRequest("POST", f.URL+"/api/v1/execute", strings.NewReader(`{"sandbox_id":"`+id+`","code":"talk","language":"bash"}`))
			r.Header.Set("Accept", "application/json;q=0.1, Text/Event-Stream;q=0.9")
			return r
		},
	} {
		req := send()
		req.Header.Set("Authorization", "Bearer "+f.Token)
		a := f.Send(req)
		if !strings.HasPrefix(a.Header.Get("Content-Type"), "text/event-stream") {
			t.Fatalf("%s: %d %v %s", name, a.Status, a.Header, a.Body)
		}
		events := readEvents(t, bytes.NewReader(a.Body))
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
	t.Parallel()
	f := newFixture(t)
	id := f.Acquire()
	a := f.Do("POST", "/api/v1/execute", `{"sandbox_id":"`+id+`","code":"x","language":"cobol","stream":true}`)
	if a.Status != 400 || a.Code(t) != "invalid" {
		t.Errorf("before the first event: %d %s", a.Status, a.Body)
	}
	f.Guest.Scripts["refused"] = func(context.Context, execution.RunRequest, func(execution.RunEvent) error) (execution.RunEnd, error) {
		return execution.RunEnd{}, sandbox.Errorf(sandbox.Invalid, "there is no directory /nope")
	}
	a = f.Do("POST", "/api/v1/execute", `{"sandbox_id":"`+id+`","code":"refused","language":"bash","stream":true}`)
	events := readEvents(t, bytes.NewReader(a.Body))
	if len(events) != 2 || events[1] != (event{"error", `{"error":{"code":"invalid","message":"there is no directory /nope"}}`}) {
		t.Errorf("after it: %v", events)
	}
	if a = f.Do("POST", "/api/v1/execute", `{"sandbox_id":"`+id+`","code":"refused","language":"bash"}`); a.Status != 400 {
		t.Errorf("in one piece: %d %s", a.Status, a.Body)
	}
}

func TestExecuteCutsOutput(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Guest.Scripts["flood"] = func(_ context.Context, _ execution.RunRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error) {
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
	id := f.Acquire()
	f.Do("POST", "/api/v1/execute", `{"sandbox_id":"`+id+`","code":"flood","language":"bash"}`).Into(t, 200, &res)
	if len(res.Stdout) != 1<<20 || res.Truncated["stdout_bytes_dropped"] != 2_000_000-1<<20 || res.Truncated["stderr_bytes_dropped"] != 0 {
		t.Errorf("%d kept, %v", len(res.Stdout), res.Truncated)
	}
	f.Do("POST", "/api/v1/execute", `{"sandbox_id":"`+id+`","code":"flood","language":"bash","max_output_bytes":10}`).Into(t, 200, &res)
	if res.Stdout != "yyyyyyyyyy" || res.Truncated["stdout_bytes_dropped"] != 1_999_990 {
		t.Errorf("%q kept, %v", res.Stdout, res.Truncated)
	}
}

func TestExecutePassesEverythingOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.Acquire()
	f.Do("POST", "/api/v1/execute", `{"session_id":"`+id+`","code":"c","language":"sh","timeout_seconds":1.5,"env":{"A":"b"},"cwd":"/tmp","user":"root","stdin":"in"}`).Into(t, 200, &struct{}{})
	run := f.Guest.Runs[0]
	if strings.Join(run.Args, " ") != "bash -c -- c" || run.Timeout != 1500*time.Millisecond || run.Env["A"] != "b" ||
		run.Cwd != "/tmp" || run.User != "root" || string(run.Stdin) != "in" {
		t.Errorf("run %+v", run)
	}
	f.Do("POST", "/api/v1/execute", `{"session_id":"`+id+`","code":"c","language":"py","timeout_seconds":1.5,"env":{"A":"b"},"cwd":"/tmp","user":"root","stdin":"in"}`).Into(t, 200, &struct{}{})
	f.Do("POST", "/api/v1/contexts", `{"session_id":"`+id+`","language":"python"}`).Into(t, 201, &struct{}{})
	f.Do("POST", "/api/v1/execute", `{"session_id":"`+id+`","code":"c","context_id":"c1"}`).Into(t, 200, &struct{}{})
	cell := f.Guest.Cells[0]
	if cell.Language != "python" || cell.Code != "c" || cell.Timeout != 1500*time.Millisecond || cell.Env["A"] != "b" ||
		cell.Cwd != "/tmp" || cell.User != "root" || string(cell.Stdin) != "in" || f.Guest.Cells[1].Context != "c1" {
		t.Errorf("cells %+v", f.Guest.Cells)
	}
}

// A borrowed Sandbox is gone afterwards, whatever happens.
func TestExecuteBorrows(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Guest.Scripts["refused"] = func(context.Context, execution.RunRequest, func(execution.RunEvent) error) (execution.RunEnd, error) {
		return execution.RunEnd{}, sandbox.Errorf(sandbox.Invalid, "no")
	}
	f.Guest.Scripts["panic"] = func(context.Context, execution.RunRequest, func(execution.RunEvent) error) (execution.RunEnd, error) {
		panic("boom")
	}
	for code, status := range map[string]int{"fine": 200, "refused": 400, "panic": 500} {
		if a := f.Do("POST", "/api/v1/execute", `{"code":"`+code+`","language":"bash"}`); a.Status != status {
			t.Errorf("%s: %d %s", code, a.Status, a.Body)
		}
		if n := f.Sandboxes.Live(); n != 0 {
			t.Errorf("%s: %d left", code, n)
		}
	}
	f.Sandboxes.Fail = &sandbox.Error{Code: sandbox.Exhausted, Detail: "full", RetryAfter: 1500 * time.Millisecond}
	a := f.Do("POST", "/api/v1/execute", `{"code":"x","language":"bash"}`)
	if a.Status != 429 || a.Header.Get("Retry-After") != "2" || !bytes.Contains(a.Body, []byte(`"retry_after_seconds":2`)) {
		t.Errorf("%d %v %s", a.Status, a.Header, a.Body)
	}
}

// A client that leaves ends its execution and its borrowed Sandbox; the log says
// 499.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		`{"code":"wait","language":"bash"}`,
		`{"code":"wait","language":"bash","stream":true}`,
		`{"code":"chatter","language":"bash","stream":true}`,
	} {
		f := newFixture(t)
		started, ended := make(chan struct{}), make(chan struct{})
		f.Guest.Scripts["wait"] = func(ctx context.Context, _ execution.RunRequest, _ func(execution.RunEvent) error) (execution.RunEnd, error) {
			close(started)
			<-ctx.Done()
			close(ended)
			return execution.RunEnd{}, ctx.Err()
		}
		f.Guest.Scripts["chatter"] = func(ctx context.Context, _ execution.RunRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error) {
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
		req, _ := http.NewRequestWithContext(ctx, "POST", f.URL+"/api/v1/execute", strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer "+f.Token)
		var wg sync.WaitGroup
		wg.Go(func() {
			if resp, err := f.Client.Do(req); err == nil {
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
		<-started
		cancel()
		<-ended
		wg.Wait()
		gatewaytest.WaitFor(t, "the borrowed sandbox is gone", func() bool { return f.Sandboxes.Live() == 0 })
		gatewaytest.WaitFor(t, "the log line", func() bool { return strings.Contains(f.Logs.String(), `"status":499`) })
	}
}
