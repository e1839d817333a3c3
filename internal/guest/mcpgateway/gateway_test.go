package mcpgateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestMain is a server too, when the environment says so.
func TestMain(m *testing.M) {
	if name := os.Getenv("MCP_TEST_SERVER"); name != "" {
		play(name)
		return
	}
	log.SetOutput(io.Discard)
	os.Exit(m.Run())
}

// play is a server of tools: "NAME_only" and "both", and one that ends it. It lists
// in pages, asks the client for what no gateway does, and changes once it is told to.
func play(name string) {
	if name == "mute" {
		return
	}
	lines := bufio.NewScanner(os.Stdin)
	say := func(m message) {
		m.JSONRPC = "2.0"
		text, _ := json.Marshal(m)
		fmt.Println(string(text))
	}
	grown, waiting := false, 0
	for lines.Scan() {
		var m message
		if json.Unmarshal(lines.Bytes(), &m) == nil && m.Method == "notifications/cancelled" {
			waiting--
		}
		if m.ID == nil || m.Method == "" {
			continue
		}
		answer := message{ID: m.ID}
		var p struct {
			Name, Cursor, URI string
			Arguments         json.RawMessage
		}
		_ = json.Unmarshal(m.Params, &p)
		switch m.Method {
		case "initialize":
			answer.Result = json.RawMessage(`{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true},"resources":{}},"serverInfo":{"name":"x","version":"1"}}`)
		case "tools/list":
			switch {
			case p.Cursor == "":
				answer.Result = json.RawMessage(`{"tools":[{"name":"` + name + `_only","description":"d","inputSchema":{"type":"object"}}],"nextCursor":"2"}`)
			case grown:
				answer.Result = json.RawMessage(`{"tools":[{"name":"both","inputSchema":{}},{"name":"new","inputSchema":{}}]}`)
			default:
				answer.Result = json.RawMessage(`{"tools":[{"name":"both","inputSchema":{}}]}`)
			}
		case "tools/call":
			say(message{ID: json.RawMessage(`"` + name + `"`), Method: "sampling/createMessage"})
			switch {
			case string(p.Arguments) == `{"end":true}`:
				os.Exit(3)
			case string(p.Arguments) == `{"grow":true}`:
				grown = true
				say(message{Method: "notifications/tools/list_changed"})
			case string(p.Arguments) == `{"wait":true}`:
				waiting++
				continue
			case string(p.Arguments) == `{"fail":true}`:
				answer.Error = &rpcError{Code: -32050, Message: "as you like"}
				say(answer)
				continue
			}
			text, _ := json.Marshal(name + " did " + p.Name + " with " + string(p.Arguments) + " and " + os.Getenv("GREETING") + ", waits for " + strconv.Itoa(waiting))
			answer.Result = json.RawMessage(`{"content":[{"type":"text","text":` + string(text) + `}]}`)
		case "resources/list":
			answer.Result = json.RawMessage(`{"resources":[{"uri":"x://` + name + `","name":"r"}]}`)
		case "resources/read":
			answer.Result = json.RawMessage(`{"contents":[{"uri":"x://` + name + `","text":"of ` + name + `"}]}`)
			if p.URI != "x://"+name {
				answer.Result, answer.Error = nil, &rpcError{Code: -32002, Message: "no such resource"}
			}
		default:
			answer.Error = &rpcError{Code: noMethod, Message: "no"}
		}
		say(answer)
	}
}

// templated is a catalogue with test servers.
func templated(t *testing.T, names ...string) catalogue {
	t.Helper()
	c := catalogue{dir: t.TempDir(), repos: t.TempDir()}
	for _, name := range names {
		text, err := json.Marshal(definition{
			Command: []string{os.Args[0]}, Env: map[string]string{"MCP_TEST_SERVER": name, "GREETING": "${greeting}"}, Fields: map[string]string{"greeting": "hello"},
		})
		if err == nil {
			err = os.WriteFile(filepath.Join(c.dir, name+".json"), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return c
}

type client struct {
	t   *testing.T
	url string
}

func serving(t *testing.T, config string, names ...string) client {
	t.Helper()
	servers, err := templated(t, names...).servers(config)
	if err != nil {
		t.Fatal(err)
	}
	g, err := open(t.Context(), servers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	s := httptest.NewServer(handler(g, "secret"))
	t.Cleanup(s.Close)
	return client{t, s.URL}
}

func (c client) send(method, body string, header map[string]string) (status int, answer string, h http.Header) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.url+"/mcp", strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer secret")
	r.Header.Set("Content-Type", "application/json")
	for k, v := range header {
		r.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(text)), resp.Header
}

func (c client) ask(method, params string) string {
	c.t.Helper()
	status, answer, h := c.send("POST", `{"jsonrpc":"2.0","id":"a","method":"`+method+`","params":`+params+`}`, nil)
	if status != 200 || h.Get("Content-Type") != "application/json" {
		c.t.Errorf("%s: %d %s", method, status, answer)
	}
	return answer
}

// What servers have is offered together, and each call reaches its own.
func TestGateway(t *testing.T) {
	c := serving(t, `{"one":{},"two":{"greeting":"salut"}}`, "one", "two")
	for _, tt := range []struct{ method, params, want string }{
		{"initialize", `{"protocolVersion":"2025-06-18"}`, `"protocolVersion":"2025-06-18"`},
		{"initialize", `{"protocolVersion":"2199-01-01"}`, `"protocolVersion":"2025-11-25"`},
		{"initialize", `{}`, `"capabilities":{"resources":{},"tools":{}}`},
		{"initialize", `[]`, `"code":-32602`},
		{"ping", `{}`, `"result":{}`},
		{"tools/call", `{"name":"both","arguments":{"a":1}}`, `one did both with {\"a\":1} and hello`},
		{"tools/call", `{"name":"two__both","arguments":{}}`, `two did both with {} and salut`},
		{"tools/call", `{"name":"two_only"}`, `two did two_only with`},
		{"tools/call", `{"name":"none"}`, `"code":-32602`},
		{"tools/call", `{}`, `"code":-32602`},
		{"tools/call", `{"name":"both","arguments":{"fail":true}}`, `"code":-32050,"message":"as you like"`},
		{"resources/list", `{}`, `x://one","name":"r"},{"uri":"x://two"`},
		{"resources/templates/list", `{}`, `"resourceTemplates":[]`},
		{"resources/read", `{"uri":"x://two"}`, `of two`},
		{"resources/read", `{"uri":"x://three"}`, `no such resource`},
		{"prompts/list", `{}`, `"prompts":[]`},
		{"logging/setLevel", `{}`, `"code":-32601`},
	} {
		if got := c.ask(tt.method, tt.params); !strings.Contains(got, tt.want) || !strings.Contains(got, `"id":"a"`) {
			t.Errorf("%s %s: %s, want %s", tt.method, tt.params, got, tt.want)
		}
	}
	var list struct {
		Result struct {
			Tools []struct{ Name, Description string }
		}
	}
	if err := json.Unmarshal([]byte(c.ask("tools/list", `{}`)), &list); err != nil || fmt.Sprint(list.Result.Tools) != "[{one_only d} {both } {two_only d} {two__both }]" {
		t.Errorf("%+v, %v", list, err)
	}
}

// A list that a server says has changed is asked for again, and one that has ended
// is started anew.
func TestGatewayFollows(t *testing.T) {
	c := serving(t, `{"one":{}}`, "one")
	c.ask("tools/call", `{"name":"both","arguments":{"grow":true}}`)
	if got := c.ask("tools/list", `{}`); !strings.Contains(got, `"new"`) {
		t.Errorf("%s", got)
	}
	if got := c.ask("tools/call", `{"name":"both","arguments":{"end":true}}`); !strings.Contains(got, "it has ended") {
		t.Errorf("%s", got)
	}
	if got := c.ask("tools/list", `{}`); strings.Contains(got, `"new"`) || !strings.Contains(got, `"both"`) {
		t.Errorf("%s", got)
	}
}

func TestHTTP(t *testing.T) {
	c := serving(t, `{"one":{}}`, "one")
	ping := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	for _, tt := range []struct {
		method, body string
		header       map[string]string
		want         int
	}{
		{"POST", ping, nil, 200},
		{"POST", ping, map[string]string{"Content-Type": "application/json; charset=utf-8", "MCP-Protocol-Version": "2025-03-26"}, 200},
		{"POST", ping, map[string]string{"Authorization": ""}, 401},
		{"POST", ping, map[string]string{"Authorization": "Bearer wrong"}, 401},
		{"GET", "", map[string]string{"Authorization": "Bearer wrong"}, 401},
		{"GET", "", map[string]string{"Accept": "text/event-stream"}, 405},
		{"DELETE", "", nil, 405},
		{"POST", ping, map[string]string{"Content-Type": "text/plain"}, 415},
		{"POST", ping, map[string]string{"MCP-Protocol-Version": "1999-01-01"}, 400},
		{"POST", `{`, nil, 400},
		{"POST", `[` + ping + `]`, nil, 400},
		{"POST", `{"id":1,"method":"ping"}`, nil, 400},
		{"POST", `{"jsonrpc":"2.0","id":{},"method":"ping"}`, nil, 400},
		{"POST", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, nil, 202},
		{"POST", `{"jsonrpc":"2.0","id":9,"result":{}}`, nil, 202},
		{"POST", `{"jsonrpc":"2.0","id":1,"method":"` + strings.Repeat("x", maxRequest) + `"}`, nil, 413},
	} {
		status, answer, h := c.send(tt.method, tt.body, tt.header)
		if status != tt.want || status == 401 && h.Get("WWW-Authenticate") == "" || status == 405 && h.Get("Allow") != "POST" {
			t.Errorf("%s %.80s %v: %d %s, want %d", tt.method, tt.body, tt.header, status, answer, tt.want)
		}
	}
}

// What cannot be started is told in one sentence that says what to do.
func TestServers(t *testing.T) {
	c := templated(t, "one", "mute")
	for name, text := range map[string]string{
		"broken": `{`, "odd": `{"command":["x"],"more":1}`, "empty": `{"command":[]}`, "needy": `{"command":["x","--key=${apiKey}"],"env":{"N":"${n}"}}`,
	} {
		if err := os.WriteFile(filepath.Join(c.dir, name+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for config, want := range map[string]string{
		``: "not an object", `[]`: "not an object", `{}`: "names 0 servers",
		`{"slack":{}}`:                    "does not have it; it has broken, empty, mute, needy, odd, one",
		`{"../one":{}}`:                   "does not have it",
		`{"one":{"other":1}}`:             `no field "other"`,
		`{"one":[]}`:                      "not an object",
		`{"needy":{"n":1}}`:               `lacks the field "apiKey"`,
		`{"broken":{}}`:                   "broken.json is wrong",
		`{"odd":{}}`:                      "odd.json is wrong",
		`{"empty":{}}`:                    "has no command",
		`{"one":{"greeting":"a\u0000b"}}`: "zero byte",
		`{"github/a/b":{}}`:               "needs one runCmd",
		`{"github/a/b":{"runCmd":"x","run_cmd":1}}`:        "is wrong",
		`{"github/a/../b":{"runCmd":"x"}}`:                 "does not have it",
		`{"github/a/b":{"runCmd":"x","envs":{"A=B":"c"}}}`: "has an invalid name",
	} {
		if _, err := c.servers(config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", config, err, want)
		}
	}
	servers, err := c.servers(`{"needy":{"n":1.50,"apiKey":"k $"},"github/a/b":{"run_cmd":"python x.py","install_cmd":"make","envs":{"A":"b"}}}`)
	if err != nil || len(servers) != 2 {
		t.Fatalf("%+v, %v", servers, err)
	}
	if s := servers[1]; fmt.Sprint(s.command, s.env) != "[x --key=k $] [N=1.50]" {
		t.Errorf("%+v", s)
	}
	if s := servers[0]; fmt.Sprint(s.command[3], s.env) != "python x.py[A=b]" || s.fetch == nil || s.dir != filepath.Join(c.repos, "a/b") {
		t.Errorf("%+v", s)
	}
	for config, want := range map[string]string{`{"mute":{}}`: `server "mute": it does not answer as an MCP server`} {
		servers, err := c.servers(config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := open(t.Context(), servers); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", config, err, want)
		}
	}
}

// A folder that is fetched is there whole or not at all.
func TestFetch(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	fails := server{dir: dir, fetch: func(at string) error {
		return output(at, "/bin/sh", "-c", "touch half; echo why >&2; exit 1")
	}}
	if err := fetch(fails); err == nil || !strings.Contains(err.Error(), "why") {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
	if err := fetch(server{dir: dir, fetch: func(at string) error { return output(at, "/bin/sh", "-c", "touch whole") }}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir + "/whole"); err != nil {
		t.Error(err)
	}
}

// pull carries out what the template says installs a server.
func TestPull(t *testing.T) {
	c := templated(t, "one")
	mark := filepath.Join(t.TempDir(), "mark")
	for name, install := range map[string]string{"new": "echo done > " + mark, "bad": "echo why; exit 2"} {
		text, _ := json.Marshal(definition{Command: []string{"x"}, Install: install})
		if err := os.WriteFile(filepath.Join(c.dir, name+".json"), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := pull(c, []string{"one", "new"}); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(mark); err != nil || string(text) != "done\n" {
		t.Errorf("%q, %v", text, err)
	}
	for name, want := range map[string]string{"bad": "why", "slack": "does not have it"} {
		if err := pull(c, []string{name}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A call whose client leaves is cancelled, and the next one is answered.
func TestClientLeaves(t *testing.T) {
	servers, err := templated(t, "one").servers(`{"one":{}}`)
	if err != nil {
		t.Fatal(err)
	}
	g, err := open(t.Context(), servers)
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	call := func(ctx context.Context, arguments string) (json.RawMessage, error) {
		return g.handle(ctx, "tools/call", json.RawMessage(`{"name":"both","arguments":`+arguments+`}`))
	}
	ctx, leave := context.WithCancel(t.Context())
	waited := make(chan error)
	go func() {
		_, err := call(ctx, `{"wait":true}`)
		waited <- err
	}()
	for { // until the server has it
		got, err := call(t.Context(), `{"waiting":true}`)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(got), "waits for 1") {
			break
		}
	}
	leave()
	if err := <-waited; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for {
		got, err := call(t.Context(), `{"waiting":true}`)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(got), "waits for 0") {
			break
		}
	}
}
