package gateway_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

// No caller learns anything of another Tenant's Sandbox, or changes it.
func TestE2BOtherTenants(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.E2BSandbox(f.Key("t", sandbox.RoleDeveloper), `{"templateID":"base"}`).SandboxID
	const absent = "i00000000000000000000"
	key := f.Key("other", sandbox.RoleDeveloper)
	about := 0
	for _, rt := range f.Server.RouteTable() {
		if !rt.E2B || !strings.Contains(rt.Path, "{id}") {
			continue
		}
		about++
		body := ""
		if rt.Method == "POST" && !strings.HasPrefix(rt.Path, "/v2/") {
			body = `{"timeout":5}`
		}
		for _, takesNone := range []string{"/refreshes", "/pause", "/snapshots"} {
			if strings.HasSuffix(rt.Path, takesNone) {
				body = ""
			}
		}
		ask := func(id string) gatewaytest.Answer {
			return f.E2B(key, rt.Method, strings.ReplaceAll(rt.Path, "{id}", id), body)
		}
		theirs, nobodys := ask(id), ask(absent)
		if theirs.Status != 404 || strings.ReplaceAll(string(theirs.Body), id, absent) != string(nobodys.Body) {
			t.Errorf("%s %s: %d %s, of an absent one %d %s", rt.Method, rt.Path, theirs.Status, theirs.Body, nobodys.Status, nobodys.Body)
		}
	}
	if about < 10 {
		t.Errorf("only %d routes are about a sandbox", about)
	}
	if f.Sandboxes.Live() != 1 {
		t.Error("it was ended")
	}
}

// ask sends a request to a route, with an API key unless it is empty. Answers of
// calls are not in the contract of REST, so nothing is checked here.
func (f *fixture) ask(rt gateway.RouteInfo, key string) gatewaytest.Answer {
	f.T.Helper()
	req, err := http.NewRequest(rt.Method, f.URL+strings.ReplaceAll(rt.Path, "{id}", "none"), nil)
	if err != nil {
		f.T.Fatal(err)
	}
	if rt.Call {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("X-API-Key", key)
	}
	resp, err := f.Client.Do(req)
	if err != nil {
		f.T.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		f.T.Fatal(err)
	}
	return gatewaytest.Answer{Status: resp.StatusCode, Header: resp.Header, Body: body}
}

// Every route but those for anyone wants a credential, and of a key the scope.
func TestEveryRouteHasItsDoor(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	with, without := map[sandbox.Scope]string{}, map[sandbox.Scope]string{}
	for _, s := range sandbox.Scopes() {
		others := slices.DeleteFunc(sandbox.Scopes(), func(o sandbox.Scope) bool { return o == s })
		with[s], without[s] = f.Key("t", sandbox.RoleOperator, s), f.Key("t", sandbox.RoleOperator, others...)
	}
	for _, rt := range f.Server.RouteTable() {
		if rt.Op.Anyone {
			continue
		}
		if a := f.ask(rt, ""); a.Status != 401 || a.Header.Get("WWW-Authenticate") == "" ||
			!bytes.Contains(a.Body, []byte("unauthenticated")) && !bytes.Contains(a.Body, []byte(`"code":401`)) {
			t.Errorf("%s %s without a credential: %d %s", rt.Method, rt.Path, a.Status, a.Body)
		}
		if a := f.ask(rt, without[rt.Op.Scope]); a.Status != 403 || !bytes.Contains(a.Body, []byte(rt.Op.Scope)) {
			t.Errorf("%s %s without the scope %s: %d %s", rt.Method, rt.Path, rt.Op.Scope, a.Status, a.Body)
		}
		if a := f.ask(rt, with[rt.Op.Scope]); a.Status == 401 || a.Status == 403 {
			t.Errorf("%s %s with the scope %s: %d %s", rt.Method, rt.Path, rt.Op.Scope, a.Status, a.Body)
		}
	}
}

// On every route, the answer about a Sandbox of another Tenant is to the byte the answer
// about one that does not exist.
func TestOtherTenantsOnEveryRoute(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var v gatewaytest.View
	f.Do("POST", "/api/v1/sessions", `{"name":"mine"}`).Into(t, 201, &v)
	f.Token = f.Mint("other")
	// The fields that a route needs, beside the sandbox, to look for it.
	needs := map[string]string{
		"POST /api/v1/sessions/{id}/timeout":     `"timeout_seconds":5`,
		"POST /api/v1/sessions/{id}/rollback":    `"snapshot_id":"a"`,
		"PUT /api/v1/sessions/{id}/ports/{port}": `"private":true`,
		"POST /api/v1/execute":                   `"code":"x","language":"bash"`,
		"POST /api/v1/contexts":                  `"language":"python"`,
		"POST /api/v1/processes":                 `"command":"x"`,
		"POST /api/v1/processes/{id}/signal":     `"signal":"TERM"`,
		"POST /api/v1/processes/{id}/resize":     `"rows":2,"cols":2`,
		"POST /api/v1/files/mkdir":               `"path":"a"`,
		"POST /api/v1/files/move":                `"source":"a","destination":"b"`,
		"POST /api/v1/files/copy":                `"source":"a","destination":"b"`,
		"POST /api/v1/files/chmod":               `"path":"a","mode":"0644"`,
		"POST /api/v1/files/search":              `"pattern":"a"`,
		"POST /api/v1/files/replace":             `"path":"a","pattern":"a","replacement":"b"`,
		"POST /api/v1/files/batch":               `"operations":[{"op":"read","path":"a"}]`,
		"POST /api/v1/files/sign":                `"path":"a","method":"GET"`,
		"POST /api/v1/git/clone":                 `"url":"https://git.example/a"`,
		"POST /api/v1/git/checkout":              `"ref":"a"`,
		"POST /api/v1/git/add":                   `"all":true`,
		"POST /api/v1/git/commit":                `"message":"a","author":{"name":"a","email":"a@b.c"}`,
	}
	about := 0
	for _, rt := range f.Server.RouteTable() {
		if rt.Op.Anyone || rt.Call || rt.E2B || !aboutSandbox(rt) {
			continue
		}
		about++
		ask := func(id string) gatewaytest.Answer {
			return f.With(rt.Method, urlOf(rt, id), bodyOf(rt, id, needs[rt.Method+" "+rt.Path]), headersOf(rt, f.Token)...)
		}
		for id, none := range map[string]string{v.SandboxID: "i00000000000000000000", "mine": "none"} {
			absent, a := ask(none), ask(id)
			if absent.Status != 404 || !strings.Contains(string(absent.Body), "no sandbox") {
				t.Errorf("%s %s: absent is %d %s", rt.Method, rt.Path, absent.Status, absent.Body)
			}
			a.Body = bytes.ReplaceAll(a.Body, []byte(id), []byte(none)) // each repeats what was asked for
			for _, h := range []string{"X-Request-Id", "Date"} {
				a.Header.Del(h)
				absent.Header.Del(h)
			}
			if a.Status != absent.Status || !bytes.Equal(a.Body, absent.Body) || fmt.Sprint(a.Header) != fmt.Sprint(absent.Header) {
				t.Errorf("%s %s: %d %s %v, absent: %d %s %v", rt.Method, rt.Path, a.Status, a.Body, a.Header, absent.Status, absent.Body, absent.Header)
			}
		}
	}
	if about < 30 {
		t.Errorf("only %d routes are about a sandbox", about)
	}
}

// aboutSandbox reports whether a route is about one Sandbox.
func aboutSandbox(rt gateway.RouteInfo) bool {
	for _, prefix := range []string{"/api/v1/templates", "/api/v1/builds", "/api/v1/quota", "/api/v1/usage", "/api/v1/tenants", "/api/v1/users", "/api/v1/nodes", "/api/v1/snapshots", "/api/v1/volumes"} {
		if strings.HasPrefix(rt.Path, prefix) {
			return false
		}
	}
	return !slices.Contains([]string{
		"/api/v1/sandbox/acquire", "/api/v1/sandbox/stats", "/api/v1/sessions", "/api/v1/keys", "/api/v1/keys/{id}", "/api/v1/keys/{id}/rotate", "/api/v1/secrets", "/api/v1/secrets/{id}", "/api/v1/audit",
		"/api/v1/files/sign/rotate", "/mcp",
	}, rt.Path)
}

// urlOf names the Sandbox in the path, in the query or not at all.
func urlOf(rt gateway.RouteInfo, id string) string {
	path := strings.ReplaceAll(strings.ReplaceAll(rt.Path, "{id}", id), "{port}", "80")
	if strings.HasPrefix(path, "/api/v1/sessions/") {
		return strings.ReplaceAll(path, "{port}", "1")
	}
	path = strings.ReplaceAll(rt.Path, "{id}", "x")
	switch {
	case strings.HasPrefix(path, "/api/v1/files") && (rt.Method != "POST" || path == "/api/v1/files"):
		return path + "?sandbox_id=" + id + "&path=a"
	case path == "/api/v1/processes/x/wait":
		return path + "?for=exit&sandbox_id=" + id
	case rt.Method != "POST", strings.HasPrefix(path, "/api/v1/processes/"):
		return path + "?sandbox_id=" + id
	}
	return path
}

// bodyOf names the Sandbox in the body, when the URL does not.
func bodyOf(rt gateway.RouteInfo, id, needs string) string {
	switch {
	case rt.Method == "PATCH":
		return `{"metadata":{}}`
	case rt.Path == "/api/v1/files" && rt.Method == "POST":
		return "--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\nx\r\n--b--\r\n"
	case rt.Method != "POST" && needs == "", rt.Path == "/api/v1/processes/{id}/stdin":
		return ""
	case strings.HasPrefix(rt.Path, "/api/v1/sessions/"), strings.HasPrefix(rt.Path, "/api/v1/processes/"):
		return "{" + needs + "}"
	case needs == "":
		return `{"sandbox_id":"` + id + `"}`
	}
	return `{"sandbox_id":"` + id + `",` + needs + `}`
}

// headersOf are those that a route needs, in pairs of name and value.
func headersOf(rt gateway.RouteInfo, token string) []string {
	all := []string{"Authorization", "Bearer " + token}
	switch {
	case rt.Path == "/api/v1/files" && rt.Method == "POST":
		all = append(all, "Content-Type", "multipart/form-data; boundary=b")
	case strings.HasSuffix(rt.Path, "/attach"), strings.HasSuffix(rt.Path, "/connect"):
		all = append(all, "Connection", "Upgrade", "Upgrade", "websocket",
			"Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
	}
	return all
}
