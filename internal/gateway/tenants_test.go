package gateway_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

func (f *fixture) suspend(tenant string) {
	f.T.Helper()
	f.Operate("PATCH", "/api/v1/tenants/"+url.PathEscape(tenant), `{"state":"suspended","reason":"a test"}`).Into(f.T, 200, new(gatewaytest.TenantView))
}

func (f *fixture) resumeTenant(tenant string) {
	f.T.Helper()
	f.Operate("PATCH", "/api/v1/tenants/"+url.PathEscape(tenant), `{"state":"active"}`).Into(f.T, 200, new(gatewaytest.TenantView))
}

// Every credential of a suspended tenant, or of a tenant below it, is refused with the
// same sentence. Credentials of other tenants are not.
func TestSuspendedCredentials(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var events []sandbox.Event
	f := newFixture(t, func(c *gateway.Config) {
		c.Event = func(e sandbox.Event) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, e)
		}
	})
	key, other := f.Key("acme", sandbox.RoleOwner), f.Key("acmes", sandbox.RoleOwner)
	mint := func(key, user string) string {
		var minted struct {
			Token string `json:"access_token"`
		}
		f.With("POST", "/api/v1/auth/token", fmt.Sprintf(`{"user_id":%q,"role":"user"}`, user), "X-API-Key", key).Into(t, 200, &minted)
		return minted.Token
	}
	long := strings.Repeat("x", 128) // whose tenant's ID is a hash
	joe, hidden, others := mint(key, "joe"), mint(key, long), mint(other, "joe")
	sb, err := f.Sandboxes.Create(t.Context(), "acme", sandbox.CreateRequest{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var signed struct{ URL string }
	f.With("POST", "/api/v1/files/sign", fmt.Sprintf(`{"sandbox_id":%q,"path":"/a","method":"PUT"}`, sb.ID), "X-API-Key", key).Into(t, 200, &signed)
	signedPath := signed.URL[strings.Index(signed.URL, "/api"):]

	type request struct {
		name, method, path, body string
		headers                  []string
	}
	its := []request{
		{"a key", "GET", "/api/v1/sessions", "", []string{"X-API-Key", key}},
		{"a key as bearer", "GET", "/api/v1/sessions", "", []string{"Authorization", "Bearer " + key}},
		{"a key at E2B's routes", "GET", "/v2/sandboxes", "", []string{"X-API-Key", key}},
		{"a key that mints", "POST", "/api/v1/auth/token", `{"user_id":"ann","role":"user"}`, []string{"X-API-Key", key}},
		{"a token", "GET", "/api/v1/sessions", "", []string{"Authorization", "Bearer " + joe}},
		{"a token of a hidden tenant", "GET", "/api/v1/sessions", "", []string{"Authorization", "Bearer " + hidden}},
		{"a signed URL", "PUT", signedPath, "x", nil},
		{"a port", "GET", "/", "", []string{"E2b-Sandbox-Id", sb.ID, "E2b-Sandbox-Port", "3000"}},
		{"a port with its token", "GET", "/", "", []string{"E2b-Sandbox-Id", sb.ID, "E2b-Sandbox-Port", "3000", "E2B-Traffic-Access-Token", "traffic token of " + sb.ID}},
		{"envd", "GET", "/files", "", []string{"E2b-Sandbox-Id", sb.ID, "E2b-Sandbox-Port", "49983", "X-Access-Token", "token of " + sb.ID}},
	}
	refused := func(want bool) {
		t.Helper()
		for _, r := range its {
			a := f.Plain(r.method, r.path, r.body, r.headers...)
			if held := a.Status == 403 && bytes.Contains(a.Body, []byte("suspended: ask the operator of this server")); held != want {
				t.Errorf("%s: %d %s", r.name, a.Status, a.Body)
			}
			if bytes.Contains(a.Body, []byte("a test")) {
				t.Errorf("%s shows the operator's reason: %s", r.name, a.Body)
			}
		}
		call := f.ask(gateway.RouteInfo{Method: "POST", Path: "/cloudsandbox.sandbox.v1.SandboxService/List", Call: true}, key)
		if held := call.Status == 403; held != want {
			t.Errorf("a call: %d %s", call.Status, call.Body)
		}
		for name, token := range map[string]string{"another tenant's token": others, "a token of dev mode": f.Token} {
			if a := f.DoAs(token, "GET", "/api/v1/sessions", ""); a.Status != 200 {
				t.Errorf("%s: %d %s", name, a.Status, a.Body)
			}
		}
	}
	refused(false)
	before := len(f.Audit())
	f.suspend("acme")
	refused(true)
	f.resumeTenant("acme")
	refused(false)
	var kinds []string
	for _, e := range f.Audit()[before:] {
		if e.Tenant == "acme" && e.Code != "" && e.Code != "not_found" {
			kinds = append(kinds, e.Operation+" "+e.Code)
		}
	}
	for _, e := range kinds {
		if strings.Contains(e, "denied") {
			t.Errorf("each refusal is recorded: %v", kinds)
		}
	}
	mu.Lock()
	told := slices.Clone(events)
	mu.Unlock()
	if !slices.ContainsFunc(told, func(e sandbox.Event) bool {
		return e.Kind == sandbox.EventAuthFailed && e.Tenant == "acme" && e.Reason == "suspended"
	}) {
		t.Errorf("events are %+v", told)
	}

	// Dev mode mints no token for a suspended tenant.
	f.suspend("dev:test")
	if a := f.Plain("POST", "/api/v1/auth/token", `{"user_id":"test","role":"user"}`); a.Status != 403 {
		t.Errorf("a token for a suspended tenant: %d %s", a.Status, a.Body)
	}
}

// A stream that a tenant holds ends when it is suspended, and says why where it
// can.
func TestSuspensionCutsStreams(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Do("GET", "/api/v1/sessions", "")
	sb := f.Acquire()
	begun := make(chan struct{})
	f.Guest.Scripts["wait"] = func(ctx context.Context, _ execution.RunRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error) {
		if err := handle(execution.RunEvent{Stdout: []byte("begun\n")}); err != nil {
			return execution.RunEnd{}, err
		}
		close(begun)
		<-ctx.Done()
		return execution.RunEnd{}, ctx.Err()
	}
	answered := make(chan gatewaytest.Answer, 1)
	var all sync.WaitGroup
	all.Go(func() {
		answered <- f.Do("POST", "/api/v1/execute", fmt.Sprintf(`{"sandbox_id":%q,"language":"bash","code":"wait"}`, sb))
	})
	<-begun
	f.suspend("dev:test")
	all.Wait()
	if a := <-answered; a.Status != http.StatusForbidden || !bytes.Contains(a.Body, []byte("suspended")) {
		t.Errorf("it ended with %d %s", a.Status, a.Body)
	}
}
