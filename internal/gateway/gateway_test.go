package gateway_test

import (
	"bytes"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/api"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

// fixture is a gateway over the core, with what these tests do with it.
type fixture struct{ *gatewaytest.Fixture }

func newFixture(t testing.TB, change ...func(*gateway.Config)) *fixture {
	return &fixture{gatewaytest.New(t, change...)}
}

func TestHealthToTheByte(t *testing.T) {
	t.Parallel()
	a := newFixture(t).DoAs("", "GET", "/health", "")
	if a.Status != 200 || string(a.Body) != `{"service":"gateway","status":"ok"}` {
		t.Errorf("%d %q", a.Status, a.Body)
	}
}

func TestReady(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if a := f.DoAs("", "GET", "/ready", ""); a.Status != 200 || string(a.Body) != `{"ready":true,"reasons":[]}`+"\n" {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	f.Nodes.Lock()
	f.Nodes.NotReady = []string{"the pool is filling"}
	f.Nodes.Unlock()
	if a := f.DoAs("", "GET", "/ready", ""); a.Status != 503 || !strings.Contains(string(a.Body), "n1: the pool is filling") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	f.Nodes.Lock()
	f.Nodes.Silent = true
	f.Nodes.Unlock()
	if a := f.DoAs("", "GET", "/ready", ""); a.Status != 503 || !strings.Contains(string(a.Body), "n1: it does not answer") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Do("POST", "/api/v1/execute", `{"code":"x","language":"py"}`)
	f.Do("GET", "/made/up", "")
	a := f.DoAs("", "GET", "/metrics", "")
	for _, want := range []string{
		`cloud_sandbox_http_request_duration_seconds_count{method="POST",route="/api/v1/execute",status="200"} 1`,
		`cloud_sandbox_http_request_duration_seconds_count{method="other",route="unmatched",status="404"} 1`,
		`cloud_sandbox_execution_duration_seconds_count{language="python",status="ok"} 1`,
	} {
		if !strings.Contains(string(a.Body), want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(string(a.Body), "made/up") {
		t.Error("what a client made up became a label")
	}
}

func TestDocs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.DoAs("", "GET", "/docs", "")
	policy := a.Header.Get("Content-Security-Policy")
	if a.Status != 200 || !strings.Contains(policy, "default-src 'none'") || !strings.Contains(policy, "style-src 'sha256-") {
		t.Errorf("%d, policy %q", a.Status, policy)
	}
	if !bytes.Contains(a.Body, []byte("/api/v1/sandbox/acquire")) {
		t.Error("the page does not tell of acquire")
	}
	for host, want := range map[string]string{
		"box.example.com:8443": "http://box.example.com:8443", "[::1]:80": "http://[::1]:80", `x"><script>`: api.ExampleOrigin, "$(id)": api.ExampleOrigin, "": api.ExampleOrigin,
	} {
		page := f.page("/docs", host, "text/html")
		if !strings.Contains(page, "&#34;"+want+"/api/v1/execute&#34;") || want != api.ExampleOrigin && strings.Contains(page, api.ExampleOrigin) || strings.Contains(page, "<script") {
			t.Errorf("host %q: the examples do not name %s", host, want)
		}
	}
	if a := f.DoAs("", "GET", "/api/v1/openapi.yaml", ""); !bytes.Equal(a.Body, api.OpenAPI) {
		t.Error("not the contract")
	}
}

// page returns the answer to a client that accepts a type and sends a Host.
func (f *fixture) page(path, host, accept string) string {
	r := httptest.NewRequest("GET", path, nil)
	r.Host = host
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	f.Server.ServeHTTP(w, r)
	if kind, _, _ := strings.Cut(w.Header().Get("Content-Type"), ";"); w.Code != 200 || accept != "*/*" && kind != accept {
		f.T.Errorf("%s of %q: %d %s", path, host, w.Code, kind)
	}
	return w.Body.String()
}

// GET / tells how to begin, with this server's address; other methods and what is
// below are not it.
func TestStartPage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for accept, want := range map[string]string{
		"text/html": `curl -s "http://box.example.com:8443/api/v1/execute"`, "*/*": "curl -s http://box.example.com:8443/api/v1/execute",
	} {
		if page := f.page("/", "box.example.com:8443", accept); !strings.Contains(page, want) || !strings.Contains(page, "/docs") {
			t.Errorf("%s: %s", accept, page)
		}
	}
	if page := f.page("/", `x"><script>`, "text/html"); strings.Contains(page, "<script") {
		t.Error("the page repeats a Host that is markup")
	}
	if a := f.DoAs("", "GET", "/", ""); a.Status != 200 || a.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%d %v", a.Status, a.Header)
	}
	if a := f.DoAs("", "POST", "/", "{}"); a.Status != 405 || a.Header.Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: %d %v", a.Status, a.Header)
	}
	if a := f.DoAs("", "GET", "/x", ""); a.Status != 404 {
		t.Errorf("/x: %d", a.Status)
	}
}

// The four requests that the README shows, in its order.
func TestFirstSteps(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var token struct {
		AccessToken string `json:"access_token"`
		TokenType   string `json:"token_type"`
		ExpiresIn   int    `json:"expires_in"`
	}
	f.DoAs("", "POST", "/api/v1/auth/token", `{"user_id": "test", "role": "user"}`).Into(t, 200, &token)
	if token.TokenType != "bearer" || token.ExpiresIn != 86400 {
		t.Errorf("token %+v", token)
	}
	var v gatewaytest.View
	f.DoAs(token.AccessToken, "POST", "/api/v1/sandbox/acquire", "").Into(t, 200, &v)
	if v.State != "running" || v.TimeoutSeconds != 600 || v.Shape.MemoryMB != 512 || v.Network != "public" {
		t.Errorf("acquired %+v", v)
	}
	var res struct {
		Status, Stdout string
		ExitCode       int `json:"exit_code"`
	}
	f.DoAs(token.AccessToken, "POST", "/api/v1/execute", `{"sandbox_id": "`+v.SandboxID+`", "code": "print('Hello!')", "language": "python"}`).Into(t, 200, &res)
	if res.Status != "ok" || res.Stdout != "Hello!\n" || res.ExitCode != 0 {
		t.Errorf("result %+v", res)
	}
	f.DoAs(token.AccessToken, "POST", "/api/v1/sandbox/release", `{"sandbox_id": "`+v.SandboxID+`"}`).Into(t, 200, &v)
	if v.State != "ended" || v.Ended == nil || v.Ended.Cause != "released" {
		t.Errorf("released %+v", v)
	}
}
