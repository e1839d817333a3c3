package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/internal/mcp/mcptest"
)

// bearerOf sends requests with a token.
type bearerOf struct{ token string }

func (b bearerOf) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return http.DefaultTransport.RoundTrip(r)
}

// mcpClient is a client of /mcp.
type mcpClient struct {
	*sdk.ClientSession
	t testing.TB
}

func (f *fixture) mcp(token, query string) *mcpClient {
	f.T.Helper()
	session, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(f.T.Context(), &sdk.StreamableClientTransport{
		Endpoint: f.URL + "/mcp" + query, HTTPClient: &http.Client{Transport: bearerOf{token}},
	}, nil)
	if err != nil {
		f.T.Fatal(err)
	}
	f.T.Cleanup(func() { _ = session.Close() })
	return &mcpClient{session, f.T}
}

// tool calls a tool and returns the text of its result.
func (c *mcpClient) tool(name string, arguments any) (string, bool) {
	c.t.Helper()
	return mcptest.Call(c.t, c.ClientSession, name, arguments)
}

// runs has the fake guest run code as a program that says hello, and one that waits.
func (f *fixture) runs() (waiting, left *atomic.Int32) {
	waiting, left = &atomic.Int32{}, &atomic.Int32{}
	f.Guest.Scripts["hello"] = func(_ context.Context, _ execution.RunRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error) {
		for _, e := range []execution.RunEvent{{Started: true}, {Stdout: []byte("hello\n")}} {
			if err := handle(e); err != nil {
				return execution.RunEnd{}, err
			}
		}
		return execution.RunEnd{Status: execution.StatusOK}, nil
	}
	f.Guest.Scripts["wait"] = func(ctx context.Context, _ execution.RunRequest, _ func(execution.RunEvent) error) (execution.RunEnd, error) {
		waiting.Add(1)
		<-ctx.Done()
		left.Add(1)
		return execution.RunEnd{}, ctx.Err()
	}
	return waiting, left
}

// A tool makes calls of the API. The audit log has them under their own names.
func TestMCPTools(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.runs()
	before := len(f.Audit())
	c := f.mcp(f.Token, "")
	if got, failed := c.tool("run_command", map[string]any{"command": "hello"}); got != "hello\n" || failed {
		t.Errorf("%q, failed %v", got, failed)
	}
	content := strings.Repeat("0123456789", 200_000)
	if got, failed := c.tool("write_file", map[string]any{"path": "big", "content": content}); failed {
		t.Errorf("%q", got)
	}
	if got, failed := c.tool("read_file", map[string]any{"path": "big"}); failed || !strings.Contains(got, "1998000 bytes of line 1 are left out") {
		t.Errorf("%.200q, failed %v", got, failed)
	}
	if got, failed := c.tool("read_file", map[string]any{"path": "none"}); !failed || !strings.HasPrefix(got, "not_found: ") {
		t.Errorf("%q, failed %v", got, failed)
	}
	if got, failed := c.tool("run_command", map[string]any{"command": "hello", "sandbox_id": "nobox"}); !failed || !strings.Contains(got, `no sandbox "nobox"`) {
		t.Errorf("%q, failed %v", got, failed)
	}
	want := []string{"dev:test createSession 201 ", "dev:test execute 200 ", "dev:test writeFile 200 ", "dev:test execute 404 not_found"}
	if got := f.since(before); !slices.Equal(got, want) {
		t.Errorf("the audit log has %q, want %q", got, want)
	}
	if e := f.Audit()[before+1]; !strings.HasPrefix(e.Remote, "127.0.0.1") {
		t.Errorf("the call came from %q", e.Remote)
	}
}

// A tool refuses what REST refuses, with the same sentence.
func TestMCPRefusesAsREST(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Do("POST", "/api/v1/sessions", `{"name":"a"}`)
	c := f.mcp(f.Token, "")
	claude := f.mcp(f.Token, "?tools=claude")
	auth := []string{"Authorization", "Bearer " + f.Token, "Content-Type", "application/json"}
	for _, tt := range []struct {
		client    *mcpClient
		tool      string
		arguments string
		path      string
		body      string // of the same request by REST; empty: the arguments
	}{
		{c, "create_sandbox", `{"timeout_seconds":0}`, "sessions", ""},
		{c, "create_sandbox", `{"timeout_seconds":-1}`, "sessions", ""},
		{c, "create_sandbox", `{"timeout_seconds":1e+300}`, "sessions", ""},
		{c, "create_sandbox", `{"idle_timeout_seconds":-0.5}`, "sessions", ""},
		{c, "create_sandbox", `{"name":"A b"}`, "sessions", ""},
		{c, "create_sandbox", `{"template":"none"}`, "sessions", ""},
		{c, "create_sandbox", `{"snapshot_id":"none"}`, "sessions", ""},
		{c, "create_sandbox", `{"memory_mb":1}`, "sessions", `{"resources":{"memory_mb":1}}`},
		{c, "create_sandbox", `{"cpus":-1}`, "sessions", `{"resources":{"cpus":-1}}`},
		{c, "create_sandbox", `{"env":{"A=B":"c"}}`, "sessions", ""},
		{c, "fork_sandbox", `{"sandbox_id":"a","count":0}`, "sessions/a/fork", `{"count":0}`},
		{c, "fork_sandbox", `{"sandbox_id":"a","count":-1}`, "sessions/a/fork", `{"count":-1}`},
		{c, "fork_sandbox", `{"sandbox_id":"a","count":101}`, "sessions/a/fork", `{"count":101}`},
		{c, "create_snapshot", `{"sandbox_id":"a","name":"A b"}`, "sessions/a/snapshots", `{"name":"A b"}`},
		{c, "rollback", `{"sandbox_id":"a","snapshot_id":"none"}`, "sessions/a/rollback", `{"snapshot_id":"none"}`},
		{c, "run_code", `{"sandbox_id":"a","code":"x","timeout_seconds":-1}`, "execute", `{"sandbox_id":"a","code":"x","language":"python","timeout_seconds":-1}`},
		{c, "run_code", `{"sandbox_id":"a","code":"x","timeout_seconds":3601}`, "execute", `{"sandbox_id":"a","code":"x","language":"python","timeout_seconds":3601}`},
		{c, "run_code", `{"sandbox_id":"a","code":"x","language":"latin"}`, "execute", ""},
		{c, "run_command", `{"sandbox_id":"a","command":"x","cwd":"../up"}`, "execute", `{"sandbox_id":"a","code":"x","language":"bash","cwd":"../up"}`},
		{c, "run_command", `{"sandbox_id":"none","command":"x"}`, "execute", `{"sandbox_id":"none","code":"x","language":"bash"}`},
		{c, "start_process", `{"sandbox_id":"a","command":"x","name":"A b"}`, "processes", ""},
		{c, "glob", `{"sandbox_id":"a","pattern":"*","max_results":0}`, "files/search", `{"sandbox_id":"a","globs":["*"],"max_results":0}`},
		{c, "glob", `{"sandbox_id":"a","pattern":""}`, "files/search", `{"sandbox_id":"a","globs":[""]}`},
		{c, "grep", `{"sandbox_id":"a","pattern":"x","max_results":-1}`, "files/search", ""},
		{c, "grep", `{"sandbox_id":"a","pattern":"x","max_results":10001}`, "files/search", ""},
		{c, "grep", `{"sandbox_id":"a","pattern":"x","context_lines":21}`, "files/search", ""},
		{c, "grep", `{"sandbox_id":"a","pattern":"x","context_lines":-1}`, "files/search", ""},
		{c, "upload_url", `{"sandbox_id":"a","path":"x","expires_in_seconds":0}`, "files/sign", `{"sandbox_id":"a","path":"x","method":"PUT","expires_in_seconds":0}`},
		{c, "download_url", `{"sandbox_id":"a","path":"x","expires_in_seconds":604801}`, "files/sign", `{"sandbox_id":"a","path":"x","method":"GET","expires_in_seconds":604801}`},
		{c, "download_url", `{"sandbox_id":"a","path":"../x"}`, "files/sign", `{"sandbox_id":"a","path":"../x","method":"GET"}`},
		{claude, "grep", `{"pattern":"x","-A":21}`, "files/search", `{"sandbox_id":"a","pattern":"x","context_lines":21}`},
	} {
		body := tt.body
		if body == "" {
			body = tt.arguments
		}
		a := f.Plain("POST", "/api/v1/"+tt.path, body, auth...)
		var refused struct {
			Error struct{ Code, Message string }
		}
		if err := json.Unmarshal(a.Body, &refused); err != nil || a.Status < 400 {
			t.Errorf("%s %s by REST: %d %s", tt.path, body, a.Status, a.Body)
		}
		got, failed := tt.client.tool(tt.tool, json.RawMessage(tt.arguments))
		if want := refused.Error.Code + ": " + refused.Error.Message; !failed || got != want {
			t.Errorf("%s %s: %q, failed %v; REST: %q", tt.tool, tt.arguments, got, failed, want)
		}
	}
}

// An argument that REST does not have is refused too when it is out of its range.
func TestMCPRefusesItsOwnArguments(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Do("POST", "/api/v1/sessions", `{"name":"a"}`)
	for set, calls := range map[string][][3]string{
		"": {
			{"read_file", `{"sandbox_id":"a","path":"x","offset":-1}`, "must not be negative"},
			{"read_file", `{"sandbox_id":"a","path":"x","limit":-1}`, "must not be negative"},
			{"read_process", `{"sandbox_id":"a","process_id":"p","wait_seconds":61}`, "wait_seconds must be from 0 to 60"},
			{"read_process", `{"sandbox_id":"a","process_id":"p","wait_seconds":-1}`, "wait_seconds must be from 0 to 60"},
		},
		"?tools=claude": {
			{"bash", `{"command":"x","timeout":600001}`, "at most 600000 milliseconds"},
			{"bash", `{"command":"x","timeout":0}`, "at least 1"},
			{"read", `{"file_path":"x","limit":-1}`, "must not be negative"},
			{"grep", `{"pattern":"x","-B":-1}`, "must not be negative"},
			{"grep", `{"pattern":"x","output_mode":"lines"}`, "files_with_matches or count"},
			{"grep", `{"pattern":"x","head_limit":-1}`, "must not be negative"},
			{"grep", `{"pattern":"x","head_limit":9000,"offset":1001}`, "together at most 10000"},
			{"grep", `{"pattern":"x","offset":10001}`, "together at most 10000"},
		},
	} {
		c := f.mcp(f.Token, set)
		for _, call := range calls {
			if got, failed := c.tool(call[0], json.RawMessage(call[1])); !failed || !strings.HasPrefix(got, "invalid: ") || !strings.Contains(got, call[2]) {
				t.Errorf("%s %s: %q, failed %v; want %q", call[0], call[1], got, failed, call[2])
			}
		}
	}
}

// The calls of a tool have the ID of the request that called it.
func TestMCPRequestID(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.runs()
	before := len(f.Audit())
	id := f.initialize(f.Token, "")
	a := f.With("POST", "/mcp", `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"run_command","arguments":{"command":"hello"}}}`, append(mcpHeaders(f.Token, id), "X-Request-Id", "my-call")...)
	if a.Status != 200 || !strings.Contains(string(a.Body), "hello") {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	entries := f.Audit()[before:]
	if len(entries) != 2 {
		t.Errorf("%d entries", len(entries))
	}
	for _, e := range entries {
		if e.Request != "my-call" {
			t.Errorf("%s has the request ID %q", e.Operation, e.Request)
		}
	}
}

// A key with the scope read sees and may use the tools that read. Other tools are refused
// as the API refuses their calls.
func TestMCPScopes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.mcp(f.Key("t", sandbox.RoleOperator, sandbox.ScopeRead), "")
	listed, err := c.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range listed.Tools {
		if !tool.Annotations.ReadOnlyHint {
			t.Errorf("it is shown %s", tool.Name)
		}
	}
	if len(listed.Tools) < 5 {
		t.Errorf("it is shown %d tools", len(listed.Tools))
	}
	before := len(f.Audit())
	if got, failed := c.tool("run_command", map[string]any{"command": "hello"}); !failed || got != `denied: this API key does not have the scope "write"` {
		t.Errorf("%q, failed %v", got, failed)
	}
	if got := f.since(before); !slices.Equal(got, []string{"t createSession 403 denied"}) {
		t.Errorf("the audit log has %q", got)
	}
	all, err := f.mcp(f.Key("t", sandbox.RoleOperator), "").ListTools(t.Context(), nil)
	if err != nil || len(all.Tools) < 20 {
		t.Errorf("every scope is shown %d tools, %v", len(all.Tools), err)
	}
}

// Limits of the API are told by the tool.
func TestMCPRateLimit(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *gateway.Config) {
		c.Limits = ratelimit.Rules{ratelimit.Execute: {PerSecond: 0.01, Burst: 1}}
	})
	f.runs()
	c := f.mcp(f.Token, "")
	c.tool("run_command", map[string]any{"command": "hello"})
	if got, failed := c.tool("run_command", map[string]any{"command": "hello"}); !failed || !strings.HasPrefix(got, "exhausted: ") || !strings.Contains(got, "try again in") {
		t.Errorf("%q, failed %v", got, failed)
	}
}

// initialize opens a session by a plain request and returns its ID.
func (f *fixture) initialize(token, query string) string {
	f.T.Helper()
	a := f.With("POST", "/mcp"+query, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`, mcpHeaders(token, "")...)
	id := a.Header.Get("Mcp-Session-Id")
	if a.Status != 200 || id == "" {
		f.T.Fatalf("%d %s", a.Status, a.Body)
	}
	return id
}

func mcpHeaders(token, session string) []string {
	all := []string{"Authorization", "Bearer " + token, "Content-Type", "application/json", "Accept", "application/json, text/event-stream"}
	if session != "" {
		all = append(all, "Mcp-Session-Id", session)
	}
	return all
}

// A session is there for who opened it. For another tenant, user or key it is not there,
// to the byte as one that never was.
func TestMCPSessionsAreTheirOwners(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	one, two := f.Key("t", sandbox.RoleOperator), f.Key("t", sandbox.RoleOperator)
	id := f.initialize(one, "")
	const list = `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`
	if a := f.With("POST", "/mcp", list, mcpHeaders(one, id)...); a.Status != 200 {
		t.Errorf("its owner: %d %s", a.Status, a.Body)
	}
	for name, token := range map[string]string{"another key": two, "another tenant": f.Token, "the owner's token": f.Mint("t")} {
		for _, method := range []string{"POST", "GET", "DELETE"} {
			body := ""
			if method == "POST" {
				body = list
			}
			theirs, none := f.With(method, "/mcp", body, mcpHeaders(token, id)...), f.With(method, "/mcp", body, mcpHeaders(token, "NONE")...)
			if theirs.Status != 404 || string(theirs.Body) != string(none.Body) || none.Status != 404 {
				t.Errorf("%s, %s: %d %s, and one that is not there: %d %s", name, method, theirs.Status, theirs.Body, none.Status, none.Body)
			}
		}
	}
	if a := f.With("DELETE", "/mcp", "", mcpHeaders(one, id)...); a.Status != 204 {
		t.Errorf("its end: %d %s", a.Status, a.Body)
	}
	if a := f.With("POST", "/mcp", list, mcpHeaders(one, id)...); a.Status != 404 {
		t.Errorf("after its end: %d %s", a.Status, a.Body)
	}
}

// However a client goes away in the middle of a call, what the call runs ends.
func TestMCPClientLeaves(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(f *fixture, id string, hangUp context.CancelFunc){
		"it hangs up": func(_ *fixture, _ string, hangUp context.CancelFunc) { hangUp() },
		"it ends the session": func(f *fixture, id string, _ context.CancelFunc) {
			if a := f.With("DELETE", "/mcp", "", mcpHeaders(f.Token, id)...); a.Status != 204 {
				t.Errorf("%d %s", a.Status, a.Body)
			}
		},
		"it cancels the call": func(f *fixture, id string, _ context.CancelFunc) {
			const cancelled = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`
			if a := f.With("POST", "/mcp", cancelled, mcpHeaders(f.Token, id)...); a.Status != 202 {
				t.Errorf("%d %s", a.Status, a.Body)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			waiting, left := f.runs()
			id := f.initialize(f.Token, "")
			ctx, hangUp := context.WithCancel(t.Context())
			defer hangUp()
			r, _ := http.NewRequestWithContext(ctx, "POST", f.URL+"/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"run_command","arguments":{"command":"wait"}}}`))
			for h := mcpHeaders(f.Token, id); len(h) > 0; h = h[2:] {
				r.Header.Set(h[0], h[1])
			}
			go func() {
				if resp, err := f.Client.Do(r); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
			soon(t, func() bool { return waiting.Load() == 1 })
			leave(f, id, hangUp)
			soon(t, func() bool { return left.Load() == 1 })
		})
	}
}

func soon(t *testing.T, true func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !true(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not happen within 10 s")
		}
	}
}

// A session with a name comes back to its sandbox, which paused when the session ended.
func TestMCPSessionComesBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.runs()
	own := func(c *mcpClient) string {
		var list struct {
			Own string `json:"own_sandbox_id"`
		}
		c.tool("run_command", map[string]any{"command": "hello"})
		got, _ := c.tool("list_sandboxes", map[string]any{})
		_ = json.Unmarshal([]byte(got), &list)
		return list.Own
	}
	c := f.mcp(f.Token, "?session=agent")
	first := own(c)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	soon(t, func() bool { return f.stateOf(first) == sandbox.Paused })
	if again := own(f.mcp(f.Token, "?session=agent")); again != first || first == "" {
		t.Errorf("it came back to %q, not %q", again, first)
	}
	if other := own(f.mcp(f.Token, "")); other == first {
		t.Error("a session without a name has the sandbox of another")
	}
	for query, want := range map[string]string{"?session=A+b": "name", "?tools=none": "no set of tools", "?sesion=a": "unknown query parameter"} {
		if a := f.With("POST", "/mcp"+query, "{}", mcpHeaders(f.Token, "")...); a.Status != 400 || !strings.Contains(string(a.Body), want) {
			t.Errorf("%s: %d %s", query, a.Status, a.Body)
		}
	}
}

func (f *fixture) stateOf(id string) sandbox.State {
	sb, err := f.Sandboxes.Get(f.T.Context(), "dev:test", id)
	if err != nil {
		f.T.Fatal(err)
	}
	return sb.State
}

// A tenant with too many sessions loses the one that it has not used for the longest.
func TestMCPSessionsAreBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const own = 256
	ids := make([]string, own)
	for i := range ids {
		ids[i] = f.initialize(f.Token, "")
	}
	const ping = `{"jsonrpc":"2.0","id":2,"method":"ping"}`
	if a := f.With("POST", "/mcp", ping, mcpHeaders(f.Token, ids[0])...); a.Status != 200 {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	last := f.initialize(f.Token, "")
	for id, want := range map[string]int{ids[0]: 200, ids[1]: 404, ids[2]: 200, last: 200} {
		if a := f.With("POST", "/mcp", ping, mcpHeaders(f.Token, id)...); a.Status != want {
			t.Errorf("session %d: %d, want %d", slices.Index(ids, id), a.Status, want)
		}
	}
}

// The answer to a client without a credential says where the identity providers are
// listed.
func TestMCPResourceMetadata(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.With("POST", "/mcp", "{}")
	want := `Bearer realm="cloud-sandbox", resource_metadata="` + f.URL + `/.well-known/oauth-protected-resource/mcp"`
	if got := a.Header.Get("WWW-Authenticate"); a.Status != 401 || got != want {
		t.Errorf("%d %q, want %q", a.Status, got, want)
	}
	var told struct {
		Resource string   `json:"resource"`
		Methods  []string `json:"bearer_methods_supported"`
		Servers  []string `json:"authorization_servers"`
	}
	f.With("GET", "/.well-known/oauth-protected-resource/mcp", "").Into(t, 200, &told)
	if told.Resource != f.URL+"/mcp" || !slices.Equal(told.Methods, []string{"header"}) || told.Servers != nil {
		t.Errorf("%+v", told)
	}
}

// A request without a valid MCP message is refused with the reason.
func TestMCPRefuses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	newer := `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2099-01-01"}}}`
	for _, tt := range []struct {
		name, body string
		headers    []string
		status     int
		want       string
	}{
		{"an old version", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, []string{"Mcp-Protocol-Version", "1999-01-01"}, 400, "Unsupported protocol version"},
		{"a newer version", newer, []string{"Mcp-Protocol-Version", "2099-01-01"}, 400, `"supported":["2025-11-25"`},
		{"no JSON", `{`, nil, 400, "malformed"},
		{"too long", `"` + strings.Repeat("x", 8<<20) + `"`, nil, 413, "8388608 bytes"},
		{"too long to begin with", `"` + strings.Repeat("x", 64<<10) + `"`, nil, 413, "65536 bytes"},
		{"before initialize", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, nil, 200, "invalid during session initialization"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := f.With("POST", "/mcp", tt.body, append(mcpHeaders(f.Token, ""), tt.headers...)...)
			if a.Status != tt.status || !strings.Contains(string(a.Body), tt.want) {
				t.Errorf("%d %s, want %d and %q", a.Status, a.Body, tt.status, tt.want)
			}
		})
	}
}

// A server that ends does not wait for clients that only listen.
func TestMCPEndsWithTheServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	addr, stop := f.Serve()
	f.URL = fmt.Sprintf("http://%s", addr)
	c := f.mcp(f.Token, "")
	c.tool("list_sandboxes", map[string]any{})
	start := time.Now()
	stop()
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}
