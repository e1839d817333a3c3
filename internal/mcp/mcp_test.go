package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/mcp/mcptest"
)

// api is a server that knows one sandbox, and remembers what it was asked.
type api struct {
	*httptest.Server
	mu     sync.Mutex
	asked  []string
	state  string // of the sandbox
	bodies map[string]string
	held   chan struct{} // executions wait for it; nil: they end at once
}

func newAPI(t *testing.T) *api {
	a := &api{state: "running", bodies: map[string]string{}}
	a.Server = httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(a.Close)
	return a
}

func (a *api) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	name := r.Method + " " + r.URL.Path
	a.mu.Lock()
	a.asked, a.bodies[name] = append(a.asked, name), string(body)
	held := a.held
	a.mu.Unlock()
	switch name {
	case "POST /api/v1/sessions":
		fmt.Fprint(w, `{"sandbox_id":"i1","state":"running"}`)
	case "GET /api/v1/sessions/i1":
		a.mu.Lock()
		state := a.state
		a.mu.Unlock()
		if state == "ended" {
			fmt.Fprint(w, `{"sandbox_id":"i1","state":"ended","ended":{"cause":"deadline"}}`)
			return
		}
		fmt.Fprintf(w, `{"sandbox_id":"i1","state":%q}`, state)
	case "POST /api/v1/sessions/i1/pause":
		fmt.Fprint(w, `{"sandbox_id":"i1","state":"paused"}`)
	case "POST /api/v1/execute":
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "event: start\ndata: {\"process_id\":\"p1\"}\n\n")
		fmt.Fprint(w, "event: stdout\ndata: {\"text\":\"begun\\n\"}\n\n")
		_ = http.NewResponseController(w).Flush()
		if held != nil {
			select {
			case <-held:
			case <-r.Context().Done():
				a.mu.Lock()
				a.asked = append(a.asked, "execution left")
				a.mu.Unlock()
				return
			}
		}
		fmt.Fprint(w, "event: result\ndata: {\"status\":\"ok\",\"results\":[]}\n\n")
	case "DELETE /api/v1/processes/p1":
		fmt.Fprint(w, `{"process_id":"p1","state":"ended"}`)
	default:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"error":{"code":"not_found","message":"nothing here"}}`)
	}
}

func (a *api) count(name string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, s := range a.asked {
		if s == name {
			n++
		}
	}
	return n
}

// connected is a client of a server over pipes.
type connected struct {
	*sdk.ClientSession
	t     *testing.T
	stdin *io.PipeWriter
	ended chan error  // of the server
	told  chan string // about progress
}

func connect(t *testing.T, a *api, set Set, o Options) *connected {
	t.Helper()
	c := client.New(config.Client{URL: a.URL, Key: "k"})
	t.Cleanup(c.Close)
	fromClient, toServer := io.Pipe()
	fromServer, toClient := io.Pipe()
	s := &connected{t: t, stdin: toServer, ended: make(chan error, 1), told: make(chan string, 100)}
	go func() {
		s.ended <- ServeStdio(context.Background(), c, "test", set, o, fromClient, toClient)
		toClient.Close()
	}()
	options := &sdk.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
		s.told <- r.Params.Message
	}}
	session, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, options).Connect(t.Context(), &sdk.IOTransport{Reader: fromServer, Writer: toServer}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.ClientSession = session
	t.Cleanup(func() { toServer.Close() })
	return s
}

// tool calls a tool and returns its text.
func (c *connected) tool(name string, arguments any) (string, bool) {
	c.t.Helper()
	return mcptest.Call(c.t, c.ClientSession, name, arguments)
}

// A session creates one sandbox, however many calls need it at once, with its name, so
// that it is found again; at the end of the session it pauses.
func TestOneSandboxForASession(t *testing.T) {
	a := newAPI(t)
	c := connect(t, a, Full, Options{Create: v1.CreateRequest{Name: "mcp-x", Template: "mine"}})
	if _, err := c.ListTools(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if n := a.count("POST /api/v1/sessions"); n != 0 {
		t.Errorf("%d sandboxes before a tool needs one", n)
	}
	var calls sync.WaitGroup
	for range maxCalls {
		calls.Go(func() {
			if got, failed := c.tool("run_command", map[string]string{"command": "x"}); got != "begun\n" || failed {
				t.Errorf("%q, failed %v", got, failed)
			}
		})
	}
	calls.Wait()
	if n := a.count("POST /api/v1/sessions"); n != 1 {
		t.Errorf("%d sandboxes were created", n)
	}
	var created map[string]any
	_ = json.Unmarshal([]byte(a.bodies["POST /api/v1/sessions"]), &created)
	if created["name"] != "mcp-x" || created["if_exists"] != "return" || created["on_timeout"] != "pause" || created["template"] != "mine" || created["idle_timeout_seconds"] != 600.0 {
		t.Errorf("it was created with %v", created)
	}
	c.stdin.Close()
	if err := <-c.ended; err != nil {
		t.Errorf("the end of the client is an error: %v", err)
	}
	if n := a.count("POST /api/v1/sessions/i1/pause"); n != 1 {
		t.Errorf("it was paused %d times", n)
	}
}

// When a client goes away in the middle of a call, what the call runs is left too.
func TestClientLeavesDuringACall(t *testing.T) {
	for name, leave := range map[string]func(*connected, context.CancelFunc){
		"its input ends":      func(c *connected, _ context.CancelFunc) { c.stdin.Close() },
		"it cancels the call": func(_ *connected, cancel context.CancelFunc) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			a.held = make(chan struct{})
			c := connect(t, a, Full, Options{})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			params := &sdk.CallToolParams{Name: "run_command", Arguments: map[string]string{"command": "x"}}
			params.SetProgressToken("p")
			go c.CallTool(ctx, params)
			if told := <-c.told; !strings.HasSuffix(told, ": begun") {
				t.Errorf("the client was told %q", told)
			}
			leave(c, cancel)
			until(t, func() bool { return a.count("execution left") == 1 })
			until(t, func() bool { return a.count("DELETE /api/v1/processes/p1") == 1 })
			if name == "its input ends" {
				<-c.ended
				a.mu.Lock()
				defer a.mu.Unlock()
				end, pause := slices.Index(a.asked, "DELETE /api/v1/processes/p1"), slices.Index(a.asked, "POST /api/v1/sessions/i1/pause")
				if pause < end {
					t.Errorf("the sandbox was paused before the program had ended: %q", a.asked)
				}
			}
		})
	}
}

// A session has a bounded number of calls at once.
func TestTooManyCalls(t *testing.T) {
	a := newAPI(t)
	a.held = make(chan struct{})
	c := connect(t, a, Full, Options{})
	var calls sync.WaitGroup
	for range maxCalls {
		calls.Go(func() { c.tool("run_command", map[string]string{"command": "x"}) })
	}
	until(t, func() bool { return a.count("POST /api/v1/execute") == maxCalls })
	if got, failed := c.tool("run_command", map[string]string{"command": "x"}); !failed || !strings.Contains(got, "calls running already") {
		t.Errorf("%q, failed %v", got, failed)
	}
	close(a.held)
	calls.Wait()
}

// A sandbox that has ended is said to have, and the next call gets another.
func TestLostSandbox(t *testing.T) {
	a := newAPI(t)
	c := connect(t, a, Full, Options{})
	c.tool("run_command", map[string]string{"command": "x"})
	a.mu.Lock()
	a.state = "ended"
	a.mu.Unlock()
	got, failed := c.tool("list_files", map[string]string{}) // which this server does not have
	if !failed || !strings.Contains(got, "the sandbox i1 of this session has ended (deadline)") {
		t.Errorf("%q, failed %v", got, failed)
	}
	c.tool("run_command", map[string]string{"command": "x"})
	if n := a.count("POST /api/v1/sessions"); n != 2 {
		t.Errorf("%d sandboxes were created", n)
	}
}

// Wrong arguments are a result that says how to call the tool.
func TestWrongArguments(t *testing.T) {
	a := newAPI(t)
	c := connect(t, a, Full, Options{})
	for _, tt := range []struct {
		arguments any
		want      string
	}{
		{map[string]any{}, `missing properties: ["command"]`},
		{map[string]any{"command": 5}, `has type "integer", want "string"`},
		{map[string]any{"cmd": "x"}, `["cmd"]`},
		{map[string]any{"command": "x", "timeout_seconds": "long"}, `has type "string", want "number"`},
		{nil, `missing properties: ["command"]`},
	} {
		got, failed := c.tool("run_command", tt.arguments)
		if !failed || !strings.Contains(got, tt.want) || !strings.Contains(got, "- command (string, required): the command") || !strings.Contains(got, "- timeout_seconds (number): ") {
			t.Errorf("%v: %q, failed %v; want %q", tt.arguments, got, failed, tt.want)
		}
	}
	if len(a.asked) != 0 {
		t.Errorf("the server was asked %v", a.asked)
	}
}

// What a client is told of each tool follows from the operations that it is made of.
func TestTools(t *testing.T) {
	for _, set := range Sets() {
		c := connect(t, newAPI(t), set, Options{})
		listed, err := c.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		all := toolsOf(set)
		if len(listed.Tools) != len(all) {
			t.Errorf("%s: %d tools are listed, there are %d: two have one name", set, len(listed.Tools), len(all))
		}
		for _, tool := range all {
			i := slices.IndexFunc(listed.Tools, func(l *sdk.Tool) bool { return l.Name == tool.name })
			a := listed.Tools[i].Annotations
			reads := true
			for _, o := range tool.calls {
				reads = reads && o.Scope == sandbox.ScopeRead
			}
			if len(tool.calls) == 0 || a.ReadOnlyHint != reads || *a.DestructiveHint && reads || tool.destroys && reads {
				t.Errorf("%s has the hints %+v", tool.name, a)
			}
			if tool.title == "" || tool.description == "" {
				t.Errorf("%s does not say what it is for", tool.name)
			}
			for name, p := range tool.schema.Properties {
				if p.Description == "" {
					t.Errorf("%s does not say what %s is for", tool.name, name)
				}
			}
		}
	}
}

// Somebody who may only read is offered only what reads.
func TestToolsByScope(t *testing.T) {
	var got []string
	for _, tool := range toolsOf(Full) {
		if tool.mayBeCalled(func(s sandbox.Scope) bool { return s == sandbox.ScopeRead }) {
			got = append(got, tool.name)
		}
	}
	want := []string{"read_process", "read_file", "list_files", "glob", "grep", "list_sandboxes", "get_preview_url"}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestNameFor(t *testing.T) {
	seen := map[string]bool{}
	for _, at := range [][2]string{{"host", "/home/me/My Project"}, {"host", "/home/you/My Project"}, {"other", "/home/me/My Project"}, {"host", "/"}, {"host", "/x/" + strings.Repeat("long", 60)}, {"host", "/x/äöü"}} {
		name := NameFor(at[0], at[1])
		if seen[name] || name != NameFor(at[0], at[1]) {
			t.Errorf("%v: %q is not of this folder alone", at, name)
		}
		seen[name] = true
		if err := (sandbox.CreateRequest{Name: name}).Check(); err != nil && strings.Contains(err.Error(), "name") {
			t.Errorf("%v: %q: %v", at, name, err)
		}
	}
	if name := NameFor("host", "/home/me/My Project"); !strings.HasPrefix(name, "mcp-my-project-") {
		t.Errorf("%q does not say what it is of", name)
	}
}

func until(t *testing.T, true func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !true(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not happen within 10 s")
		}
	}
}
