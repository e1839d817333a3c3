package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/keys"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/tenants"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/users"
	"github.com/cloud-sandbox/cloud-sandbox/internal/secrets"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlite"
	"github.com/cloud-sandbox/cloud-sandbox/tests/core"
)

var secret = []byte("0123456789abcdef0123456789abcdef")

// fixture is a gateway over fakes, and a client.
type fixture struct {
	t         testing.TB
	url       string
	sandboxes *sandboxes
	nodes     *nodes
	templates *templates
	guest     *guest
	tokens    *gateway.Tokens
	keys      *keys.Service
	store     *sqlite.Store
	tenants   *tenants.Service
	server    *gateway.Server
	logs      *logBuffer
	client    *http.Client
	token     string // of Tenant dev:test
	operator  string // a key, once one is asked for
}

func newFixture(t testing.TB, change ...func(*gateway.Config)) *fixture {
	t.Helper()
	f := &fixture{t: t, templates: &templates{}, guest: newGuest(), logs: &logBuffer{}}
	var err error
	if f.tokens, err = gateway.NewTokens(secret, nil); err != nil {
		t.Fatal(err)
	}
	f.sandboxes = &sandboxes{t: t}
	var vault *secrets.Service
	f.sandboxes.core = core.New(t, core.Config{Unattended: true, Session: session.Config{
		AccessToken: func(id string) string { return "token of " + id },
		OpenSecret: func(ctx context.Context, tenant sandbox.TenantID, name string) (sandbox.OpenSecret, error) {
			return vault.Open(ctx, tenant, name)
		},
		Authority: func(id string) (string, string, error) { return "authority of " + id, "key of " + id, nil },
	}})
	f.sandboxes.Sandboxes, f.nodes = f.sandboxes.core.Manager, &nodes{Node: f.sandboxes.core.Node}
	store := f.sandboxes.core.Store
	f.store = store
	vault = secrets.New(store, testKeyring(t))
	f.keys = keys.New(store, slog.New(slog.DiscardHandler))
	f.tenants = tenants.New(tenants.Config{Store: store, Templates: f.templates, Audit: store})
	c := gateway.Config{
		Keys: f.keys, Tenants: f.tenants, Users: users.New(users.Config{Store: store, Audit: store, Revoked: f.keys.Distrust}), Secrets: vault, Store: store, SigningKeys: store, Quotas: store, Usage: store, Audit: store,
		Records: store, Forward: func(context.Context, net.Conn, uint16) (net.Conn, error) { return nil, sandbox.Unavailable }, AccessToken: func(id string) string { return "token of " + id }, TrafficToken: func(id string) string { return "traffic token of " + id },
		Uploads: t.TempDir(), E2BTemplates: map[string]string{"code-interpreter-v1": "base"},
		Sandboxes: f.sandboxes, Lifecycle: f.sandboxes, Updates: f.sandboxes, Snapshots: f.sandboxes, SnapshotFiles: f.sandboxes, Volumes: f.sandboxes,
		Boots: f.nodes, Reports: f.nodes, NodeVolumes: f.nodes, VolumeFiles: f.nodes,
		Templates: f.templates, TemplateBuilds: f.templates, TemplateQuota: f.templates, Tokens: f.tokens, Dev: true,
		NodeNames: func(context.Context) ([]string, error) { return []string{"n1"}, nil },
		NewGuest: func(_ string, dial execution.Dial) execution.Guest {
			f.guest.mu.Lock()
			defer f.guest.mu.Unlock()
			f.guest.dial = dial
			return f.guest
		},
		Log: slog.New(slog.NewJSONHandler(f.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, ch := range change {
		ch(&c)
	}
	f.server = gateway.New(c)
	srv := httptest.NewServer(f.server)
	t.Cleanup(srv.Close)
	f.url, f.client = srv.URL, srv.Client()
	f.token = f.mint("test")
	return f
}

func (f *fixture) mint(user string) string {
	f.t.Helper()
	return f.mintAs(user, "user")
}

func (f *fixture) mintAs(user, role string) string {
	f.t.Helper()
	who, err := gateway.DevIdentity(user, role)
	if err != nil {
		f.t.Fatal(err)
	}
	token, _, err := f.tokens.Mint(who, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	return token
}

// answer is a whole reply.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// do sends a request as the fixture's user and checks the answer against the
// contract.
func (f *fixture) do(method, path, body string) answer {
	f.t.Helper()
	return f.doAs(f.token, method, path, body)
}

func (f *fixture) doAs(token, method, path, body string) answer {
	f.t.Helper()
	req, err := http.NewRequest(method, f.url+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return f.send(req)
}

func (f *fixture) send(req *http.Request) answer {
	f.t.Helper()
	resp, err := f.client.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, header: resp.Header}
	if a.body, err = io.ReadAll(resp.Body); err != nil {
		f.t.Fatalf("%s %s: %v", req.Method, req.URL, err)
	}
	checkContract(f.t, req, a)
	return a
}

// into decodes the answer, which must have the status.
func (a answer) into(t testing.TB, status int, v any) {
	t.Helper()
	if a.status != status {
		t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	if err := json.Unmarshal(a.body, v); err != nil {
		t.Fatalf("%v in %s", err, a.body)
	}
}

// code is the error code of the answer.
func (a answer) code(t testing.TB) string {
	t.Helper()
	var e struct {
		Error struct{ Code, Message string }
	}
	if err := json.Unmarshal(a.body, &e); err != nil || e.Error.Code == "" || e.Error.Message == "" {
		t.Fatalf("status %d is no error: %s", a.status, a.body)
	}
	return e.Error.Code
}

type view struct {
	SandboxID      string `json:"sandbox_id"`
	SessionID      string `json:"session_id"`
	State          string
	Name           string
	TimeoutSeconds float64 `json:"timeout_seconds"`
	Network        string
	Shape          struct {
		CPUs     float64
		MemoryMB int64 `json:"memory_mb"`
	}
	Metadata map[string]string
	Ended    *struct{ Cause, At string }
}

func (f *fixture) acquire() string {
	f.t.Helper()
	var v view
	f.do("POST", "/api/v1/sandbox/acquire", "").into(f.t, 200, &v)
	if v.SandboxID == "" || v.SandboxID != v.SessionID {
		f.t.Fatalf("acquired %+v", v)
	}
	return v.SandboxID
}

var contract = sync.OnceValue(func() routers.Router {
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	if err != nil {
		panic(err)
	}
	doc.Servers = nil // any host
	for _, kind := range []string{"text/html", "text/event-stream", "application/x-ndjson"} {
		openapi3filter.RegisterBodyDecoder(kind, openapi3filter.PlainBodyDecoder)
	}
	r, err := legacy.NewRouter(doc)
	if err != nil {
		panic(err)
	}
	return r
})

// checkContract fails the test when an answer is not what openapi.yaml says. A
// request that succeeded must be in the contract too.
func checkContract(t testing.TB, req *http.Request, a answer) {
	t.Helper()
	asked := req.Clone(context.Background())
	asked.URL.Host, asked.URL.Scheme, asked.Host = "", "", ""
	route, params, err := contract().FindRoute(asked)
	if err != nil {
		if a.status != 404 && a.status != 405 && req.Method != http.MethodHead {
			t.Errorf("%s %s answers %d and is not in the contract: %v", req.Method, req.URL.Path, a.status, err)
		}
		return
	}
	err = openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: asked, PathParams: params, Route: route},
		Status:                 a.status,
		Header:                 a.header,
		Body:                   io.NopCloser(bytes.NewReader(a.body)),
		Options:                &openapi3filter.Options{IncludeResponseStatus: true},
	})
	if err != nil {
		t.Errorf("%s %s: the answer breaks the contract: %v", req.Method, req.URL.Path, err)
	}
}

// logBuffer keeps log lines.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// reset forgets all lines.
func (b *logBuffer) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buf.Reset()
}

// waitFor fails the test when ok does not become true.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func TestHealthToTheByte(t *testing.T) {
	a := newFixture(t).doAs("", "GET", "/health", "")
	if a.status != 200 || string(a.body) != `{"service":"gateway","status":"ok"}` {
		t.Errorf("%d %q", a.status, a.body)
	}
}

func TestReady(t *testing.T) {
	f := newFixture(t)
	if a := f.doAs("", "GET", "/ready", ""); a.status != 200 || string(a.body) != `{"ready":true,"reasons":[]}`+"\n" {
		t.Errorf("%d %s", a.status, a.body)
	}
	f.nodes.mu.Lock()
	f.nodes.notReady = []string{"the pool is filling"}
	f.nodes.mu.Unlock()
	if a := f.doAs("", "GET", "/ready", ""); a.status != 503 || !strings.Contains(string(a.body), "n1: the pool is filling") {
		t.Errorf("%d %s", a.status, a.body)
	}
	f.nodes.mu.Lock()
	f.nodes.silent = true
	f.nodes.mu.Unlock()
	if a := f.doAs("", "GET", "/ready", ""); a.status != 503 || !strings.Contains(string(a.body), "n1: it does not answer") {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestMetrics(t *testing.T) {
	f := newFixture(t)
	f.do("POST", "/api/v1/execute", `{"code":"x","language":"py"}`)
	f.do("GET", "/made/up", "")
	a := f.doAs("", "GET", "/metrics", "")
	for _, want := range []string{
		`cloud_sandbox_http_request_duration_seconds_count{method="POST",route="/api/v1/execute",status="200"} 1`,
		`cloud_sandbox_http_request_duration_seconds_count{method="other",route="unmatched",status="404"} 1`,
		`cloud_sandbox_execution_duration_seconds_count{language="python",status="ok"} 1`,
	} {
		if !strings.Contains(string(a.body), want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(string(a.body), "made/up") {
		t.Error("what a client made up became a label")
	}
}

func TestDocs(t *testing.T) {
	f := newFixture(t)
	a := f.doAs("", "GET", "/docs", "")
	policy := a.header.Get("Content-Security-Policy")
	if a.status != 200 || !strings.Contains(policy, "default-src 'none'") || !strings.Contains(policy, "style-src 'sha256-") {
		t.Errorf("%d, policy %q", a.status, policy)
	}
	if !bytes.Contains(a.body, []byte("/api/v1/sandbox/acquire")) {
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
	if a := f.doAs("", "GET", "/api/v1/openapi.yaml", ""); !bytes.Equal(a.body, api.OpenAPI) {
		t.Error("not the contract")
	}
}

// page is what a client of a Host gets that accepts a type.
func (f *fixture) page(path, host, accept string) string {
	r := httptest.NewRequest("GET", path, nil)
	r.Host = host
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	f.server.ServeHTTP(w, r)
	if kind, _, _ := strings.Cut(w.Header().Get("Content-Type"), ";"); w.Code != 200 || accept != "*/*" && kind != accept {
		f.t.Errorf("%s of %q: %d %s", path, host, w.Code, kind)
	}
	return w.Body.String()
}

// GET / tells how to begin, with this server's address; other methods and what is
// below are not it.
func TestStartPage(t *testing.T) {
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
	if a := f.doAs("", "GET", "/", ""); a.status != 200 || a.header.Get("Cache-Control") != "no-store" {
		t.Errorf("%d %v", a.status, a.header)
	}
	if a := f.doAs("", "POST", "/", "{}"); a.status != 405 || a.header.Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: %d %v", a.status, a.header)
	}
	if a := f.doAs("", "GET", "/x", ""); a.status != 404 {
		t.Errorf("/x: %d", a.status)
	}
}

// The four requests that the README shows, in its order.
func TestFirstSteps(t *testing.T) {
	f := newFixture(t)
	var token struct {
		AccessToken string `json:"access_token"`
		TokenType   string `json:"token_type"`
		ExpiresIn   int    `json:"expires_in"`
	}
	f.doAs("", "POST", "/api/v1/auth/token", `{"user_id": "test", "role": "user"}`).into(t, 200, &token)
	if token.TokenType != "bearer" || token.ExpiresIn != 86400 {
		t.Errorf("token %+v", token)
	}
	var v view
	f.doAs(token.AccessToken, "POST", "/api/v1/sandbox/acquire", "").into(t, 200, &v)
	if v.State != "running" || v.TimeoutSeconds != 600 || v.Shape.MemoryMB != 512 || v.Network != "public" {
		t.Errorf("acquired %+v", v)
	}
	var res struct {
		Status, Stdout string
		ExitCode       int `json:"exit_code"`
	}
	f.doAs(token.AccessToken, "POST", "/api/v1/execute", `{"sandbox_id": "`+v.SandboxID+`", "code": "print('Hello!')", "language": "python"}`).into(t, 200, &res)
	if res.Status != "ok" || res.Stdout != "Hello!\n" || res.ExitCode != 0 {
		t.Errorf("result %+v", res)
	}
	f.doAs(token.AccessToken, "POST", "/api/v1/sandbox/release", `{"sandbox_id": "`+v.SandboxID+`"}`).into(t, 200, &v)
	if v.State != "ended" || v.Ended == nil || v.Ended.Cause != "released" {
		t.Errorf("released %+v", v)
	}
}

func TestSessions(t *testing.T) {
	f := newFixture(t)
	var v view
	f.do("POST", "/api/v1/sessions", `{"name":"one","timeout_seconds":60.5,"network":"none","metadata":{"team":"blue"},"env":{"A":"b"},"resources":{"cpus":0.5,"memory_mb":1024},"on_timeout":"end","if_exists":"fail"}`).into(t, 201, &v)
	if v.Name != "one" || v.TimeoutSeconds != 60.5 || v.Network != "none" || v.Shape.CPUs != 0.5 || v.Shape.MemoryMB != 1024 {
		t.Errorf("created %+v", v)
	}
	if a := f.do("POST", "/api/v1/sessions", `{"name":"one"}`); a.status != 409 {
		t.Errorf("the same name: %d %s", a.status, a.body)
	}
	var byName view
	f.do("GET", "/api/v1/sessions/one", "").into(t, 200, &byName)
	if byName.SandboxID != v.SandboxID {
		t.Errorf("by name: %+v", byName)
	}
	f.do("POST", "/api/v1/sessions/one/timeout", `{"timeout_seconds":900}`).into(t, 200, &byName)
	if byName.TimeoutSeconds != 900 {
		t.Errorf("timeout: %+v", byName)
	}
	for range 3 {
		f.do("POST", "/api/v1/sessions", "{}").into(t, 201, &view{})
	}
	var ended view
	f.do("DELETE", "/api/v1/sessions/"+v.SandboxID, "").into(t, 200, &ended)
	if ended.Ended == nil || ended.Ended.Cause != "released" {
		t.Errorf("deleted %+v", ended)
	}
	if a := f.do("DELETE", "/api/v1/sessions/"+v.SandboxID, ""); a.status != 404 {
		t.Errorf("deleted twice: %d", a.status)
	}
	f.do("GET", "/api/v1/sessions/"+v.SandboxID, "").into(t, 200, &ended)
	if ended.State != "ended" {
		t.Errorf("read after its end: %+v", ended)
	}
	for _, path := range []string{"/api/v1/execute"} {
		if a := f.do("POST", path, `{"sandbox_id":"`+v.SandboxID+`","code":"x","language":"bash"}`); a.status != 409 || !bytes.Contains(a.body, []byte("released")) {
			t.Errorf("%s after the end: %d %s", path, a.status, a.body)
		}
	}
}

// The answer to who takes a Sandbox leaves before the connection to its Guest is
// opened; other answers leave by themselves.
func TestAnswerLeavesFirst(t *testing.T) {
	f := newFixture(t)
	ask := func(method, path, body string) *httptest.ResponseRecorder {
		t.Helper()
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+f.token)
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		f.server.ServeHTTP(w, r)
		return w
	}
	taken := ask("POST", "/api/v1/sandbox/acquire", "{}")
	if length := taken.Header().Get("Content-Length"); taken.Code != 200 || !taken.Flushed || length != strconv.Itoa(taken.Body.Len()) {
		t.Errorf("acquire: %d, sent: %t, %q of %d bytes", taken.Code, taken.Flushed, length, taken.Body.Len())
	}
	waitFor(t, "the connection to the guest", func() bool { return f.guest.warmed.Load() })
	if listed := ask("GET", "/api/v1/sessions", ""); listed.Code != 200 || listed.Flushed {
		t.Errorf("list: %d, sent ahead: %t", listed.Code, listed.Flushed)
	}
}

func TestUpdateSession(t *testing.T) {
	f := newFixture(t)
	var v struct {
		view
		Metadata  map[string]string `json:"metadata"`
		Idle      float64           `json:"idle_timeout_seconds"`
		User      string            `json:"user"`
		Resources struct {
			CPUs     float64 `json:"cpus"`
			MemoryMB int64   `json:"memory_mb"`
			Pids     int64   `json:"pids"`
		} `json:"resources"`
	}
	f.do("POST", "/api/v1/sessions", `{"name":"one","metadata":{"a":"1","b":"2"},"idle_timeout_seconds":60,"user":"root"}`).into(t, 201, &v)
	if v.Idle != 60 || v.User != "root" || v.Resources.MemoryMB != 512 {
		t.Errorf("created %+v", v)
	}
	v.Metadata, v.Idle = nil, 0 // what is not in the answer
	f.do("PATCH", "/api/v1/sessions/one", `{"name":"two","metadata":{"a":null,"c":"3"},"network":"none","timeout_seconds":90,
		"idle_timeout_seconds":0,"resources":{"cpus":2,"memory_mb":128,"pids":64,"disk_mb":4096},"template":"base","env":{"K":"v"}}`).into(t, 200, &v)
	if v.Name != "two" || v.Idle != 0 || len(v.Metadata) != 2 || v.Metadata["c"] != "3" || v.Network != "none" || v.TimeoutSeconds != 90 ||
		v.Resources.CPUs != 2 || v.Resources.MemoryMB != 128 || v.Resources.Pids != 64 || v.Shape.MemoryMB != 512 {
		t.Errorf("updated %+v", v)
	}
	f.do("PATCH", "/api/v1/sessions/two", `{}`).into(t, 200, &v)
	v.Name, v.User, v.Idle = "", "", 0
	f.do("PATCH", "/api/v1/sessions/two", `{"name":null,"user":null,"idle_timeout_seconds":5.5}`).into(t, 200, &v)
	if v.Name != "" || v.User != "" || v.Idle != 5.5 {
		t.Errorf("with nulls %+v", v)
	}
	v.Idle = 0
	f.do("PATCH", "/api/v1/sessions/"+v.SandboxID, `{"idle_timeout_seconds":null}`).into(t, 200, &v)
	if v.Idle != 0 {
		t.Errorf("without an idle timeout %+v", v)
	}
	f.do("POST", "/api/v1/sessions/"+v.SandboxID+"/touch", "").into(t, 200, &v)

	var typed view
	f.do("POST", "/api/v1/sessions", `{"resources":{"type":"basic","disk_mb":100}}`).into(t, 201, &typed)
	if typed.Shape.CPUs != 0.25 || typed.Shape.MemoryMB != 1024 {
		t.Errorf("of the type basic: %+v", typed)
	}

	var ruled struct {
		Network struct {
			Mode        string
			Allow, Deny []string
		}
	}
	f.do("PATCH", "/api/v1/sessions/"+v.SandboxID, `{"network":{"mode":"none","allow":["A.Example.","a.example","1.2.3.4/32:80"]}}`).into(t, 200, &ruled)
	if n := ruled.Network; n.Mode != "none" || !slices.Equal(n.Allow, []string{"a.example", "1.2.3.4:80"}) || n.Deny != nil {
		t.Errorf("ruled %+v", n)
	}

	var first, again view
	f.do("POST", "/api/v1/sessions", `{"name":"shared","if_exists":"return"}`).into(t, 201, &first)
	f.do("POST", "/api/v1/sessions", `{"name":"shared","if_exists":"return"}`).into(t, 200, &again)
	f.do("POST", "/api/v1/sandbox/acquire", `{"name":"shared","if_exists":"return"}`).into(t, 200, &again)
	if first.SandboxID != again.SandboxID {
		t.Errorf("%s and %s have one name", first.SandboxID, again.SandboxID)
	}
}

func TestListSessions(t *testing.T) {
	f := newFixture(t)
	for _, body := range []string{`{"metadata":{"team":"blue","n":"1"}}`, `{"metadata":{"team":"blue"}}`, `{}`} {
		f.do("POST", "/api/v1/sessions", body).into(t, 201, &view{})
	}
	f.do("DELETE", "/api/v1/sessions/"+f.acquire(), "")
	type page struct {
		Sessions []view
		Next     string `json:"next_cursor"`
	}
	for query, want := range map[string]int{
		"":                                         3,
		"?metadata[team]=blue":                     2,
		"?metadata%5Bteam%5D=blue&metadata[n]=1":   1,
		"?metadata[team]=red":                      0,
		"?state=running":                           3,
		"?state=ended":                             1,
		"?state=running,ended":                     4,
		"?state=paused&metadata[team]=blue":        0,
		"?limit=2":                                 2,
		"?limit=100&state=running&metadata[n]=1":   1,
		"?metadata[te[am]=x":                       0,
		"?metadata[team]=blue&state=running,ended": 2,
	} {
		var p page
		f.do("GET", "/api/v1/sessions"+query, "").into(t, 200, &p)
		if len(p.Sessions) != want {
			t.Errorf("%s: %d sessions, want %d", query, len(p.Sessions), want)
		}
	}
	if a := f.do("GET", "/api/v1/sessions?cursor=zzzzzzzzzzzzzzzzzzzzz&limit=1", ""); a.status != 400 {
		t.Errorf("a cursor that is none: %d %s", a.status, a.body)
	}
	seen := map[string]bool{}
	for cursor := ""; ; {
		var p page
		f.do("GET", "/api/v1/sessions?limit=2&cursor="+cursor, "").into(t, 200, &p)
		for _, v := range p.Sessions {
			seen[v.SandboxID] = true
		}
		if cursor = p.Next; cursor == "" {
			break
		}
	}
	if len(seen) != 3 {
		t.Errorf("%d sessions on all pages", len(seen))
	}
}

func TestStats(t *testing.T) {
	f := newFixture(t)
	f.acquire()
	f.sandboxes.idle = map[sandbox.TenantID]int{"dev:test": 1}
	type depths struct{ Active, Idle, Paused int }
	var stats struct {
		Sandboxes map[string]int
		Total     int
		Depths    *depths
		Pools     []struct{ Idle, Min, Max, Hits, Misses int }
		Nodes     []struct {
			Name  string
			Ready bool
		}
	}
	f.do("GET", "/api/v1/sandbox/stats", "").into(t, 200, &stats)
	if stats.Total != 1 || stats.Sandboxes["running"] != 1 || len(stats.Pools) != 1 || stats.Pools[0].Hits != 7 || !stats.Nodes[0].Ready {
		t.Errorf("stats %+v", stats)
	}
	if stats.Depths == nil || *stats.Depths != (depths{Idle: 1}) {
		t.Errorf("how deep they sleep: %+v", stats.Depths)
	}
	f.doAs(f.mint("other"), "GET", "/api/v1/sandbox/stats", "").into(t, 200, &stats)
	if stats.Total != 0 || *stats.Depths != (depths{}) {
		t.Errorf("another tenant counts %+v", stats)
	}
}

// Operators see the Nodes, and nobody else does.
func TestNodes(t *testing.T) {
	f := newFixture(t)
	if a := f.do("GET", "/api/v1/nodes", ""); a.status != 403 {
		t.Errorf("a user is answered %d %s", a.status, a.body)
	}
	operator := f.key("ops", sandbox.RoleOperator)
	see := func(path string) answer { return f.with("GET", "/api/v1/nodes"+path, "", "X-API-Key", operator) }
	type node struct {
		Name      string
		Ready     bool
		Reasons   []string
		Sandboxes int
		Pools     []struct{ Idle int }
	}
	var list struct{ Nodes []node }
	see("").into(t, 200, &list)
	if len(list.Nodes) != 1 || list.Nodes[0].Name != "n1" || !list.Nodes[0].Ready || len(list.Nodes[0].Pools) != 1 {
		t.Errorf("nodes %+v", list)
	}
	f.nodes.mu.Lock()
	f.nodes.silent = true
	f.nodes.mu.Unlock()
	var one node
	see("/n1").into(t, 200, &one)
	if one.Ready || len(one.Reasons) != 1 {
		t.Errorf("one that does not answer: %+v", one)
	}
	if a := see("/n2"); a.status != 404 {
		t.Errorf("one that is not there: %d %s", a.status, a.body)
	}
}

func TestFiles(t *testing.T) {
	f := newFixture(t)
	id := f.acquire()
	at := func(p string) string { return "?sandbox_id=" + id + "&path=" + p }
	var entry struct {
		Name, Path, Type, Mode string
		Size                   int64 `json:"size_bytes"`
	}
	f.do("PUT", "/api/v1/files"+at("./test.py"), "x = 42").into(t, 200, &entry)
	if entry.Path != "/workspace/test.py" || entry.Size != 6 || entry.Mode != "0644" {
		t.Errorf("written %+v", entry)
	}
	if a := f.do("GET", "/api/v1/files"+at("/workspace/test.py"), ""); string(a.body) != "x = 42" || a.header.Get("Content-Length") != "6" || a.header.Get("Content-Security-Policy") != "sandbox" {
		t.Errorf("read %q %v", a.body, a.header)
	}
	if a := f.do("HEAD", "/api/v1/files"+at("test.py"), ""); a.status != 200 || a.header.Get("Content-Length") != "6" {
		t.Errorf("head %d %v", a.status, a.header)
	}
	req, _ := http.NewRequest("GET", f.url+"/api/v1/files"+at("test.py"), nil)
	req.Header.Set("Authorization", "Bearer "+f.token)
	req.Header.Set("Range", "bytes=0-2")
	if a := f.send(req); a.status != 206 || string(a.body) != "x =" || a.header.Get("Content-Range") != "bytes 0-2/6" {
		t.Errorf("range %d %q %v", a.status, a.body, a.header)
	}
	f.do("GET", "/api/v1/files/stat"+at("test.py"), "").into(t, 200, &entry)
	f.do("POST", "/api/v1/files/mkdir", `{"session_id":"`+id+`","path":"data"}`).into(t, 201, &entry)
	if entry.Path != "/workspace/data" || entry.Type != "directory" {
		t.Errorf("made %+v", entry)
	}
	f.do("POST", "/api/v1/files/move", `{"sandbox_id":"`+id+`","source":"test.py","destination":"data/a.py"}`).into(t, 200, &entry)
	if entry.Path != "/workspace/data/a.py" {
		t.Errorf("moved %+v", entry)
	}
	var list struct {
		Path    string
		Entries []struct{ Path string }
	}
	f.do("GET", "/api/v1/files/list"+at(".")+"&depth=2", "").into(t, 200, &list)
	if list.Path != "/workspace" || len(list.Entries) != 2 {
		t.Errorf("list %+v", list)
	}
	if a := f.do("DELETE", "/api/v1/files"+at("data"), ""); a.status != 409 || !bytes.Contains(a.body, []byte("recursive=true")) {
		t.Errorf("a full directory: %d %s", a.status, a.body)
	}
	if a := f.do("DELETE", "/api/v1/files"+at("data")+"&recursive=true", ""); a.status != 204 || len(a.body) != 0 {
		t.Errorf("recursive: %d %s", a.status, a.body)
	}
	if a := f.do("GET", "/api/v1/files"+at("data/a.py"), ""); a.status != 404 || !bytes.Contains(a.body, []byte("file")) {
		t.Errorf("after removal: %d %s", a.status, a.body)
	}
	if a := f.do("PUT", "/api/v1/files"+at("empty"), ""); a.status != 200 {
		t.Errorf("an empty file: %d %s", a.status, a.body)
	}
	if a := f.do("GET", "/api/v1/files"+at("empty"), ""); a.status != 200 || a.header.Get("Content-Length") != "0" {
		t.Errorf("an empty file: %d %v", a.status, a.header)
	}
}
