// Package gatewaytest supports tests of the gateway and its APIs. It serves a gateway
// over the real roles with an Engine in memory, and checks every answer against the
// contract.
package gatewaytest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/keys"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/tenants"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/users"
	"github.com/cloud-sandbox/cloud-sandbox/internal/secrets"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlstore"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/uploads"
	"github.com/cloud-sandbox/cloud-sandbox/tests/core"
)

// TokenSecret signs the tokens of a Fixture's gateway.
var TokenSecret = []byte("0123456789abcdef0123456789abcdef")

// Fixture is a gateway over a core, and a client of it.
type Fixture struct {
	T         testing.TB
	URL       string
	Sandboxes *sandboxes
	Nodes     *nodes
	Templates *templates
	Guest     *guest
	Tokens    *gateway.Tokens
	Keys      *keys.Service
	Store     *sqlstore.Store
	tenants   *tenants.Service
	Server    *gateway.Server
	Logs      *logBuffer
	Client    *http.Client
	Token     string // of Tenant dev:test
	Operator  string // an operator's key, once Operate was called
}

// New starts a gateway that ends with the test. Each has a core of its own, so that tests
// run in parallel.
func New(t testing.TB, change ...func(*gateway.Config)) *Fixture {
	t.Helper()
	f := &Fixture{T: t, Templates: &templates{}, Guest: newGuest(), Logs: &logBuffer{}}
	var err error
	if f.Tokens, err = gateway.NewTokens(TokenSecret, nil); err != nil {
		t.Fatal(err)
	}
	f.Sandboxes = &sandboxes{t: t}
	var vault *secrets.Service
	f.Sandboxes.Core = core.New(t, core.Config{Unattended: true, Session: session.Config{
		AccessToken: func(id string) string { return "token of " + id },
		OpenSecret: func(ctx context.Context, tenant sandbox.TenantID, name string) (sandbox.OpenSecret, error) {
			return vault.Open(ctx, tenant, name)
		},
		Authority: func(id string) (string, string, error) { return "authority of " + id, "key of " + id, nil },
	}})
	f.Sandboxes.Sandboxes, f.Nodes = f.Sandboxes.Core.Manager, &nodes{Node: f.Sandboxes.Core.Node}
	store := f.Sandboxes.Core.Store
	f.Store = store
	vault = secrets.New(store, testKeyring(t))
	f.Keys = keys.New(store, slog.New(slog.DiscardHandler))
	f.tenants = tenants.New(tenants.Config{Store: store, Templates: f.Templates, Audit: store})
	c := gateway.Config{
		Keys: f.Keys, Tenants: f.tenants, Users: users.New(users.Config{Store: store, Audit: store, Revoked: f.Keys.Distrust}), Secrets: vault, Store: store, SigningKeys: store, Quotas: store, Usage: store, Audit: store,
		Records: store, Forward: func(context.Context, net.Conn, uint16) (net.Conn, error) { return nil, sandbox.Unavailable }, AccessToken: func(id string) string { return "token of " + id }, TrafficToken: func(id string) string { return "traffic token of " + id },
		Uploads: uploads.New(uploads.Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Leave: 1}), E2BTemplates: map[string]string{"code-interpreter-v1": "base"},
		Sandboxes: f.Sandboxes, Lifecycle: f.Sandboxes, Updates: f.Sandboxes, Snapshots: f.Sandboxes, SnapshotFiles: f.Sandboxes, Volumes: f.Sandboxes,
		Boots: f.Nodes, Reports: f.Nodes, NodeVolumes: f.Nodes, VolumeFiles: f.Nodes,
		Templates: f.Templates, TemplateBuilds: f.Templates, TemplateQuota: f.Templates, Tokens: f.Tokens, Dev: true,
		NodeNames: func(context.Context) ([]string, error) { return []string{"n1"}, nil }, NodeRecords: store,
		NewGuest: func(_ string, dial execution.Dial) execution.Guest {
			f.Guest.Lock()
			defer f.Guest.Unlock()
			f.Guest.dial = dial
			return f.Guest
		},
		Log: slog.New(slog.NewJSONHandler(f.Logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, ch := range change {
		ch(&c)
	}
	f.Server = gateway.New(c)
	srv := httptest.NewServer(f.Server)
	t.Cleanup(srv.Close)
	f.URL, f.Client = srv.URL, srv.Client()
	f.Token = f.Mint("test")
	return f
}

// Mint returns a token of a user of the Tenant dev:USER.
func (f *Fixture) Mint(user string) string {
	f.T.Helper()
	return f.MintAs(user, "user")
}

// MintAs is Mint in a role.
func (f *Fixture) MintAs(user, role string) string {
	f.T.Helper()
	who, err := gateway.DevIdentity(user, role)
	if err != nil {
		f.T.Fatal(err)
	}
	token, _, err := f.Tokens.Mint(who, 0)
	if err != nil {
		f.T.Fatal(err)
	}
	return token
}

// Answer is a whole reply.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Do sends a request as the fixture's user and checks the answer against the
// contract.
func (f *Fixture) Do(method, path, body string) Answer {
	f.T.Helper()
	return f.DoAs(f.Token, method, path, body)
}

// DoAs is Do with another token; empty: without one.
func (f *Fixture) DoAs(token, method, path, body string) Answer {
	f.T.Helper()
	req, err := http.NewRequest(method, f.URL+path, strings.NewReader(body))
	if err != nil {
		f.T.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return f.Send(req)
}

// Send sends a request as it is and checks the answer against the contract.
func (f *Fixture) Send(req *http.Request) Answer {
	f.T.Helper()
	resp, err := f.Client.Do(req)
	if err != nil {
		f.T.Fatal(err)
	}
	defer resp.Body.Close()
	a := Answer{Status: resp.StatusCode, Header: resp.Header}
	if a.Body, err = io.ReadAll(resp.Body); err != nil {
		f.T.Fatalf("%s %s: %v", req.Method, req.URL, err)
	}
	checkContract(f.T, req, a)
	return a
}

// Into decodes the answer, which must have the status.
func (a Answer) Into(t testing.TB, status int, v any) {
	t.Helper()
	if a.Status != status {
		t.Fatalf("status %d, want %d: %s", a.Status, status, a.Body)
	}
	if err := json.Unmarshal(a.Body, v); err != nil {
		t.Fatalf("%v in %s", err, a.Body)
	}
}

// Code is the error code of the answer.
func (a Answer) Code(t testing.TB) string {
	t.Helper()
	var e struct {
		Error struct{ Code, Message string }
	}
	if err := json.Unmarshal(a.Body, &e); err != nil || e.Error.Code == "" || e.Error.Message == "" {
		t.Fatalf("status %d is no error: %s", a.Status, a.Body)
	}
	return e.Error.Code
}

// View is a Sandbox in an answer.
type View struct {
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

// Acquire returns the ID of a new Sandbox of the fixture's user.
func (f *Fixture) Acquire() string {
	f.T.Helper()
	var v View
	f.Do("POST", "/api/v1/sandbox/acquire", "").Into(f.T, 200, &v)
	if v.SandboxID == "" || v.SandboxID != v.SessionID {
		f.T.Fatalf("acquired %+v", v)
	}
	return v.SandboxID
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

// Reset forgets all lines.
func (b *logBuffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buf.Reset()
}

// WaitFor fails the test if ok does not return true within a minute.
func WaitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// KeyView is a Key in an answer.
type KeyView struct {
	ID        string   `json:"key_id"`
	Scopes    []string `json:"scopes"`
	Role      string   `json:"role"`
	Hint      string   `json:"hint"`
	ExpiresAt string   `json:"expires_at"`
	Secret    string   `json:"key"`
	Previous  *struct {
		Hint       string `json:"hint"`
		ValidUntil string `json:"valid_until"`
	} `json:"previous"`
}

// Key makes a Key of a Tenant, as an operator does, and returns its secret.
func (f *Fixture) Key(tenant sandbox.TenantID, role sandbox.Role, scopes ...sandbox.Scope) string {
	f.T.Helper()
	_, secret, err := f.Keys.Create(f.T.Context(), sandbox.Identity{Tenant: tenant, Role: role}, keys.Request{Name: "k", Scopes: scopes})
	if err != nil {
		f.T.Fatal(err)
	}
	return secret
}

// With sends a request with headers, in pairs of name and value, and without the
// fixture's token.
func (f *Fixture) With(method, path, body string, headers ...string) Answer {
	f.T.Helper()
	req, err := http.NewRequest(method, f.URL+path, strings.NewReader(body))
	if err != nil {
		f.T.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	return f.Send(req)
}

// Idempotent is the header with the key of an idempotent request.
const Idempotent = "Idempotency-Key"

func testKeyring(t testing.TB) *secrets.Keyring {
	t.Helper()
	ring, err := secrets.ParseKeyring(strings.Repeat("5e", 32))
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

// Serve runs the fixture's gateway with Run on two listeners. It returns the address of
// one, and a function that stops the gateway and waits for its end.
func (f *Fixture) Serve() (net.Addr, func()) {
	f.T.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var listeners []net.Listener
	for range 2 {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			f.T.Fatal(err)
		}
		listeners = append(listeners, ln)
	}
	done := make(chan error, 1)
	go func() { done <- f.Server.Run(ctx, listeners...) }()
	return listeners[1].Addr(), sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.T.Errorf("Run = %v", err)
		}
	})
}

// LeavesNothing fails the test if goroutines leak. It waits for those that are about to
// end.
func LeavesNothing(t *testing.T, ignore goleak.Option) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		err := goleak.Find(ignore) // it waits a little itself
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// SendForm sends a Template build as a form of parts, in pairs of name and value.
func (f *Fixture) SendForm(parts ...string) Answer {
	f.T.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	for i := 0; i < len(parts); i += 2 {
		w, err := form.CreateFormField(parts[i])
		if err != nil {
			f.T.Fatal(err)
		}
		_, _ = w.Write([]byte(parts[i+1]))
	}
	_ = form.Close()
	req, err := http.NewRequest("POST", f.URL+"/api/v1/templates", &body)
	if err != nil {
		f.T.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+f.Token)
	req.Header.Set("Content-Type", form.FormDataContentType())
	return f.Send(req)
}

// TenantView is a Tenant in an answer.
type TenantView struct {
	Tenant, Name, Parent, State string
	Suspended                   *struct{ At, Reason string }
	Quota                       *struct {
		Own          bool
		Limits, Used map[string]float64
	}
}

// Operate sends a request as an operator.
func (f *Fixture) Operate(method, path, body string) Answer {
	f.T.Helper()
	if f.Operator == "" {
		f.Operator = f.Key("ops", sandbox.RoleOperator)
	}
	return f.With(method, path, body, "X-API-Key", f.Operator)
}

// Plain sends a request with only these headers, without the check against the contract.
func (f *Fixture) Plain(method, path, body string, headers ...string) Answer {
	f.T.Helper()
	req, err := http.NewRequest(method, f.URL+path, strings.NewReader(body))
	if err != nil {
		f.T.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return f.Raw(req)
}

// VolumeView is a Volume in an answer.
type VolumeView struct {
	VolumeID  string `json:"volume_id"`
	Name      string
	SizeMB    int64  `json:"size_mb"`
	UsedBytes *int64 `json:"used_bytes"`
	Files     *int64
	CreatedAt string `json:"created_at"`
}
