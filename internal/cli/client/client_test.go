package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
)

// serve answers every request with handle and returns a client with a key.
func serve(t testing.TB, handle http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewServer(handle)
	t.Cleanup(s.Close)
	c := New(config.Client{URL: s.URL, Key: "k"})
	t.Cleanup(c.Close)
	return c
}

func TestStream(t *testing.T) {
	const result = `event: result` + "\n" + `data: {"sandbox_id":"i1","status":"error","exit_code":7,"results":[]}` + "\n\n"
	for _, tt := range []struct {
		name, answer string
		events       []string
		exit         int
		code         sandbox.Code // of the error
	}{
		{
			name:   "all kinds",
			answer: ": alive\n\nevent: start\ndata: {}\n\nevent: stdout\ndata: {\"text\":\"a\\n\"}\n\nevent: stderr\r\ndata: {\"text\":\"b\"}\r\n\r\nevent: display\ndata: {\"text\":\"42\"}\n\n" + result,
			events: []string{"start ", "stdout a\n", "stderr b", "display 42"}, exit: 7,
		},
		{name: "any bytes", answer: "event: stdout\ndata: {\"text\":\"a\ufffd\",\"base64\":\"Yf8=\"}\n\n" + result, events: []string{"stdout a\xff"}, exit: 7},
		{name: "data in two lines", answer: "event: stdout\ndata: {\"text\":\ndata: \"a\"}\n\n" + result, events: []string{"stdout a"}, exit: 7},
		{name: "what is not known yet", answer: "event: novel\ndata: ?\n\nid: 3\n" + result, exit: 7},
		{name: "an error", answer: "event: error\ndata: {\"error\":{\"code\":\"exhausted\",\"message\":\"m\"}}\n\n", code: sandbox.Exhausted},
		{name: "an error without words", answer: "event: error\ndata: x\n\n", code: sandbox.Unavailable},
		{name: "no result", answer: "event: stdout\ndata: {\"text\":\"a\"}\n\n", events: []string{"stdout a"}, code: sandbox.Unavailable},
		{name: "cut", answer: "event: result\ndata: {\"exit_code\":0", code: sandbox.Unavailable},
		{name: "a long line", answer: "event: stdout\ndata: {\"text\":\"" + strings.Repeat("x", 200_000) + "\"}\n\n" + result, events: []string{"stdout " + strings.Repeat("x", 200_000)}, exit: 7},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Accept") != "text/event-stream" || r.Header.Get("Authorization") != "Bearer k" {
					t.Errorf("asked with %v", r.Header)
				}
				_, _ = io.WriteString(w, tt.answer)
			})
			var events []string
			r, err := c.Stream(t.Context(), ExecuteRequest{}, func(e Event) error {
				events = append(events, e.Kind+" "+string(e.Output)+e.Value.Text)
				return nil
			})
			if tt.code == "" && err != nil || tt.code != "" && !errors.Is(err, tt.code) {
				t.Errorf("the error is %v, want %q", err, tt.code)
			}
			if r.ExitCode != tt.exit {
				t.Errorf("the exit code is %d", r.ExitCode)
			}
			if diff := cmp.Diff(tt.events, events); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestStreamStops(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "event: stdout\ndata: {\"text\":\"a\"}\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	full := errors.New("the disk is full")
	if _, err := c.Stream(t.Context(), ExecuteRequest{}, func(Event) error { return full }); !errors.Is(err, full) {
		t.Errorf("the error is %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := c.Stream(ctx, ExecuteRequest{}, func(Event) error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
}

// A server that says when to come back is asked again then, within bounds, and what
// was sent is sent whole each time.
func TestPatience(t *testing.T) {
	for _, tt := range []struct {
		name     string
		patience time.Duration
		refusals int    // before it answers
		header   string // Retry-After
		status   int
		asked    int
		want     error
	}{
		{"none", 0, 1, "1", 503, 1, sandbox.Unavailable},
		{"enough", 5 * time.Second, 2, "1", 503, 3, nil},
		{"too little", 1500 * time.Millisecond, 2, "1", 503, 2, sandbox.Unavailable},
		{"no advice", 5 * time.Second, 1, "", 503, 1, sandbox.Unavailable},
		{"a quota", 5 * time.Second, 1, "1", 429, 1, sandbox.Exhausted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			c := serve(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if !strings.Contains(string(body), `"code":"print(1)"`) {
					t.Errorf("it was asked for %s", body)
				}
				if asked.Add(1) > int64(tt.refusals) {
					_, _ = io.WriteString(w, `{"status":"ok"}`)
					return
				}
				code := map[int]string{503: "unavailable", 429: "exhausted"}[tt.status]
				w.Header().Set("Retry-After", tt.header)
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, `{"error":{"code":"`+code+`","message":"busy"}}`)
			})
			c.Patience = tt.patience
			var waited time.Duration
			c.Waits = func(d time.Duration) { waited += d }
			began := time.Now()
			_, err := c.Execute(t.Context(), ExecuteRequest{ExecuteRequest: v1.ExecuteRequest{Code: "print(1)"}})
			if !errors.Is(err, tt.want) || int(asked.Load()) != tt.asked {
				t.Errorf("%v after %d requests, want %v after %d", err, asked.Load(), tt.want, tt.asked)
			}
			if least := time.Duration(tt.asked-1) * time.Second; waited < least || waited > tt.patience || time.Since(began) < least {
				t.Errorf("it waited %v, at least %v was asked for", waited, least)
			}
		})
	}
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(503)
		_, _ = io.WriteString(w, `{"error":{"code":"unavailable","message":"busy"}}`)
	})
	ctx, cancel := context.WithCancel(t.Context())
	c.Patience, c.Waits = time.Hour, func(time.Duration) { cancel() }
	if _, err := c.Execute(ctx, ExecuteRequest{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a client that leaves: %v", err)
	}
}

func TestFailures(t *testing.T) {
	for _, tt := range []struct {
		status int
		header string // Retry-After
		body   string
		want   string
	}{
		{404, "", `{"error":{"code":"not_found","message":"gone"}}`, "not_found: gone 0s"},
		{429, "3", `{"error":{"code":"exhausted","message":"full"}}`, "exhausted: full 3s"},
		{429, "3", `{"error":{"code":"exhausted","message":"full","retry_after_seconds":9}}`, "exhausted: full 9s"},
		{502, "", `<html>`, "unavailable: URL answered 502 Bad Gateway, which is not an answer of Cloud Sandbox: check the address 0s"},
		{302, "", ``, "unavailable: URL answered 302 Found, which is not an answer of Cloud Sandbox: check the address 0s"},
		{200, "", `{`, "internal: this version of the command cannot read the server's answer: unexpected end of JSON input 0s"},
	} {
		c := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if tt.header != "" {
				w.Header().Set("Retry-After", tt.header)
			}
			w.WriteHeader(tt.status)
			_, _ = io.WriteString(w, tt.body)
		})
		_, err := c.Get(t.Context(), "x")
		var coded *sandbox.Error
		if !errors.As(err, &coded) {
			t.Errorf("%d: %v", tt.status, err)
			continue
		}
		if got := strings.ReplaceAll(fmt.Sprintf("%v %v", coded, coded.RetryAfter), c.URL(), "URL"); got != tt.want {
			t.Errorf("%d %s: got %s, want %s", tt.status, tt.body, got, tt.want)
		}
	}
	c := New(config.Client{URL: "http://127.0.0.1:1", Key: "k"})
	if _, err := c.Get(t.Context(), "x"); !errors.Is(err, sandbox.Unavailable) || !strings.Contains(err.Error(), "no server answers") {
		t.Errorf("nobody there: %v", err)
	}
}

// An ID is one part of a path, whatever is in it.
// Servers are told the version of the program.
func TestVersion(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.UserAgent(); got != "cloud-sandbox/1.3.0" {
			t.Errorf("the client is %q", got)
		}
		_, _ = io.WriteString(w, "{}")
	}))
	defer s.Close()
	c := New(config.Client{URL: s.URL, Key: "k", Version: "1.3.0"})
	defer c.Close()
	if _, err := c.Get(t.Context(), "a"); err != nil {
		t.Error(err)
	}
}

func TestPathsAreEscaped(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.EscapedPath() != "/api/v1/sessions/..%2Fa%3Fb" {
			t.Errorf("asked for %s", r.URL.EscapedPath())
		}
		_, _ = io.WriteString(w, "{}")
	})
	if _, err := c.Get(t.Context(), "../a?b"); err != nil {
		t.Error(err)
	}
}

// In dev mode one token is asked for, once.
func TestMint(t *testing.T) {
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/auth/token" {
			asked++
			_, _ = io.WriteString(w, `{"access_token":"minted"}`)
			return
		}
		if r.Header.Get("Authorization") != "Bearer minted" {
			t.Errorf("asked with %v", r.Header)
		}
		_, _ = io.WriteString(w, `{}`)
	}))
	defer s.Close()
	c := New(config.Client{URL: s.URL, UserID: "u"})
	defer c.Close()
	for range 2 {
		if _, err := c.Get(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
	}
	if asked != 1 {
		t.Errorf("%d tokens were asked for", asked)
	}
}

func TestListPages(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Query().Get("cursor") {
		case "":
			_, _ = io.WriteString(w, `{"sessions":[{"sandbox_id":"i1"},{"sandbox_id":"i2"}],"next_cursor":"n"}`)
		default:
			_, _ = io.WriteString(w, `{"sessions":[{"sandbox_id":"i3"}]}`)
		}
	})
	for limit, want := range map[int]int{0: 3, 2: 2, 3: 3} {
		list, err := c.List(t.Context(), nil, nil, limit)
		if err != nil || len(list) != want {
			t.Errorf("limit %d: %v, %v", limit, list, err)
		}
	}
}

// Reading the events of any server ends and does not panic.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("event: stdout\ndata: {\"text\":\"a\"}\n\nevent: result\ndata: {}\n\n"))
	f.Add([]byte("event: error\ndata: {\"error\":{\"code\":\"x\",\"retry_after_seconds\":-1}}\n\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		req := httptest.NewRequest("POST", "/", nil)
		resp := &http.Response{Body: io.NopCloser(strings.NewReader(string(raw))), Request: req}
		_ = events(resp, func(_, kind string, data []byte) error {
			if kind == "" || kind == "error" {
				t.Errorf("told of an event %q", kind)
			}
			return nil
		})
	})
}

func TestOutput(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if want := "/api/v1/processes/a%2Fb/output?follow=true&from=-5&sandbox_id=box&stream=stderr"; r.URL.String() != want {
			t.Errorf("asked for %s", r.URL)
		}
		_, _ = io.WriteString(w, "event: start\ndata: {}\n\nid: 6\nevent: stderr\ndata: {\"offset\":0,\"next_offset\":6,\"text\":\"Hello\\n\"}\n\n"+
			"event: dropped\ndata: {\"offset\":6,\"next_offset\":9}\n\nevent: end\ndata: {\"process_id\":\"p1\",\"exit_code\":3}\n\n")
	})
	var got []v1.OutputEvent
	p, err := c.Output(t.Context(), "box", "a/b", -5, true, "stderr", func(e v1.OutputEvent) error { got = append(got, e); return nil })
	want := []v1.OutputEvent{{Event: "stderr", Next: 6, Text: "Hello\n"}, {Event: "dropped", Offset: 6, Next: 9}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil || p.Exit() != 3 {
		t.Errorf("%+v, %v: %s", p, err, diff)
	}
}

func TestOutputBreaksOff(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "event: start\ndata: {}\n\n") })
	if _, err := c.Output(t.Context(), "box", "p", 0, true, "", nil); !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("the error is %v", err)
	}
}

func TestAttach(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer k" || r.URL.String() != "/api/v1/processes/p/attach?from=7&sandbox_id=box" {
			t.Errorf("asked for %s with %v", r.URL, r.Header)
		}
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.CloseNow()
		for range 3 { // all that comes goes back
			kind, data, err := conn.Read(r.Context())
			if err != nil {
				t.Error(err)
				return
			}
			if err := conn.Write(r.Context(), kind, data); err != nil {
				t.Error(err)
			}
		}
		_ = conn.Close(websocket.StatusInternalError, "internal")
	})
	a, err := c.Attach(t.Context(), "box", "p", AttachOptions{From: 7})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := errors.Join(a.Input(t.Context(), []byte("keys")), a.Resize(t.Context(), v1.TerminalSize{Cols: 3, Rows: 2}), a.EndInput(t.Context())); err != nil {
		t.Fatal(err)
	}
	for _, want := range []AttachEvent{{Output: []byte("keys")}, {AttachEvent: v1.AttachEvent{Type: "resize"}}, {AttachEvent: v1.AttachEvent{Type: "eof"}}} {
		if got, err := a.Next(t.Context()); err != nil || !cmp.Equal(got, want) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	if _, err := a.Next(t.Context()); !errors.Is(err, sandbox.Internal) {
		t.Errorf("at the end: %v", err)
	}
	refused := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(404)
		_, _ = io.WriteString(w, `{"error":{"code":"not_found","message":"gone"}}`)
	})
	if _, err := refused.Attach(t.Context(), "box", "p", AttachOptions{}); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("refused with %v", err)
	}
}
