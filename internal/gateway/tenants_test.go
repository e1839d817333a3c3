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
)

type tenantTold struct {
	Tenant, Name, Parent, State string
	Suspended                   *struct{ At, Reason string }
	Quota                       *struct {
		Own          bool
		Limits, Used map[string]float64
	}
}

// operate sends a request as an operator.
func (f *fixture) operate(method, path, body string) answer {
	f.t.Helper()
	if f.operator == "" {
		f.operator = f.key("ops", sandbox.RoleOperator)
	}
	return f.with(method, path, body, "X-API-Key", f.operator)
}

// plain sends a request of any contract, with nothing but these headers.
func (f *fixture) plain(method, path, body string, headers ...string) answer {
	f.t.Helper()
	req, err := http.NewRequest(method, f.url+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return f.raw(req)
}

func (f *fixture) suspend(tenant string) {
	f.t.Helper()
	f.operate("PATCH", "/api/v1/tenants/"+url.PathEscape(tenant), `{"state":"suspended","reason":"a test"}`).into(f.t, 200, new(tenantTold))
}

func (f *fixture) resumeTenant(tenant string) {
	f.t.Helper()
	f.operate("PATCH", "/api/v1/tenants/"+url.PathEscape(tenant), `{"state":"active"}`).into(f.t, 200, new(tenantTold))
}

func TestTenants(t *testing.T) {
	f := newFixture(t)
	var made, told tenantTold
	f.operate("POST", "/api/v1/tenants", `{"tenant":"acme","name":"Acme"}`).into(t, 201, &made)
	if made.Tenant != "acme" || made.Name != "Acme" || made.State != "active" || made.Suspended != nil || made.Quota != nil {
		t.Errorf("made %+v", made)
	}
	f.do("GET", "/api/v1/sessions", "") // the first use of dev:test
	f.operate("PUT", "/api/v1/tenants/acme/quota", `{"sandboxes":3}`)
	if f.operate("GET", "/api/v1/tenants/acme", "").into(t, 200, &told); told.Quota == nil || !told.Quota.Own || told.Quota.Limits["sandboxes"] != 3 || told.Quota.Used["sandboxes"] != 0 {
		t.Errorf("told %+v", told)
	}
	var all []string
	for next := ""; ; {
		var page struct {
			Tenants []tenantTold
			Next    string `json:"next_cursor"`
		}
		f.operate("GET", "/api/v1/tenants?limit=1&cursor="+next, "").into(t, 200, &page)
		for _, one := range page.Tenants {
			all = append(all, one.Tenant)
		}
		if next = page.Next; next == "" {
			break
		}
	}
	if !slices.Equal(all, []string{"acme", "dev:test", "ops"}) {
		t.Errorf("there are %q", all)
	}
	var changed tenantTold
	if f.operate("PATCH", "/api/v1/tenants/acme", `{"name":"A","state":"suspended","reason":"why"}`).into(t, 200, &changed); changed.Name != "A" || changed.State != "suspended" || changed.Suspended == nil || changed.Suspended.Reason != "why" {
		t.Errorf("changed to %+v", changed)
	}
	for state, want := range map[string]int{"suspended": 1, "active": 2} {
		var page struct{ Tenants []tenantTold }
		if f.operate("GET", "/api/v1/tenants?state="+state, "").into(t, 200, &page); len(page.Tenants) != want {
			t.Errorf("%d are %s, want %d", len(page.Tenants), state, want)
		}
	}
	for request, want := range map[string]int{
		"POST /api/v1/tenants {}":                                              400,
		`POST /api/v1/tenants {"tenant":"acme"}`:                               409,
		`POST /api/v1/tenants {"tenant":"a/b"}`:                                400,
		`POST /api/v1/tenants {"tenant":"x","quota":1}`:                        400,
		`POST /api/v1/tenants {"tenant":7}`:                                    400,
		"GET /api/v1/tenants?state=odd ":                                       400,
		"GET /api/v1/tenants?limit=0 ":                                         400,
		"GET /api/v1/tenants?cursor=%25 ":                                      400,
		"GET /api/v1/tenants?order=x ":                                         400,
		"GET /api/v1/tenants/none ":                                            404,
		"DELETE /api/v1/tenants/none ":                                         404,
		`PATCH /api/v1/tenants/none {"state":"active"}`:                        404,
		`PATCH /api/v1/tenants/acme {"state":"suspended"}`:                     400,
		`PATCH /api/v1/tenants/acme {"reason":"x"}`:                            400,
		`PATCH /api/v1/tenants/ops {"state":"suspended","reason":"myself"}`:    409,
		"DELETE /api/v1/tenants/ops ":                                          409,
		"GET /api/v1/tenants/" + strings.Repeat("a", 129) + " ":                400,
		`PATCH /api/v1/tenants/acme {"state":"suspended","reason":"a\u0000b"}`: 400,
	} {
		parts := strings.SplitN(request, " ", 3)
		if a := f.operate(parts[0], parts[1], parts[2]); a.status != want {
			t.Errorf("%s: %d %s, want %d", request, a.status, a.body, want)
		}
	}
	if a := f.operate("DELETE", "/api/v1/tenants/acme", ""); a.status != 204 {
		t.Errorf("deleted: %d %s", a.status, a.body)
	}
	for _, e := range f.audit() {
		if e.Operation == sandbox.AuditTenantSuspended && (e.Tenant != "acme" || e.User != "operator") {
			t.Errorf("recorded for its own log %+v", e)
		}
	}
}

// Whatever credential of a suspended tenant, or of one below it, is refused with
// the same sentence, and of no other.
func TestSuspendedCredentials(t *testing.T) {
	var mu sync.Mutex
	var events []sandbox.Event
	f := newFixture(t, func(c *gateway.Config) {
		c.Event = func(e sandbox.Event) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, e)
		}
	})
	key, other := f.key("acme", sandbox.RoleOwner), f.key("acmes", sandbox.RoleOwner)
	mint := func(key, user string) string {
		var minted struct {
			Token string `json:"access_token"`
		}
		f.with("POST", "/api/v1/auth/token", fmt.Sprintf(`{"user_id":%q,"role":"user"}`, user), "X-API-Key", key).into(t, 200, &minted)
		return minted.Token
	}
	long := strings.Repeat("x", 128) // whose tenant's ID is a hash
	joe, hidden, others := mint(key, "joe"), mint(key, long), mint(other, "joe")
	sb, err := f.sandboxes.Create(t.Context(), "acme", sandbox.CreateRequest{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var signed struct{ URL string }
	f.with("POST", "/api/v1/files/sign", fmt.Sprintf(`{"sandbox_id":%q,"path":"/a","method":"PUT"}`, sb.ID), "X-API-Key", key).into(t, 200, &signed)
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
			a := f.plain(r.method, r.path, r.body, r.headers...)
			if held := a.status == 403 && bytes.Contains(a.body, []byte("suspended: ask whoever runs this server")); held != want {
				t.Errorf("%s: %d %s", r.name, a.status, a.body)
			}
			if bytes.Contains(a.body, []byte("a test")) {
				t.Errorf("%s shows the operator's reason: %s", r.name, a.body)
			}
		}
		call := f.ask(gateway.RouteInfo{Method: "POST", Path: "/cloudsandbox.sandbox.v1.SandboxService/List", Call: true}, key)
		if held := call.status == 403; held != want {
			t.Errorf("a call: %d %s", call.status, call.body)
		}
		for name, token := range map[string]string{"another tenant's token": others, "a token of dev mode": f.token} {
			if a := f.doAs(token, "GET", "/api/v1/sessions", ""); a.status != 200 {
				t.Errorf("%s: %d %s", name, a.status, a.body)
			}
		}
	}
	refused(false)
	before := len(f.audit())
	f.suspend("acme")
	refused(true)
	f.resumeTenant("acme")
	refused(false)
	var kinds []string
	for _, e := range f.audit()[before:] {
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

	// Of dev mode: nobody mints for a suspended tenant.
	f.suspend("dev:test")
	if a := f.plain("POST", "/api/v1/auth/token", `{"user_id":"test","role":"user"}`); a.status != 403 {
		t.Errorf("a token for a suspended tenant: %d %s", a.status, a.body)
	}
}

// A stream that a tenant holds ends when it is suspended, and says why where it
// can.
func TestSuspensionCutsStreams(t *testing.T) {
	f := newFixture(t)
	f.do("GET", "/api/v1/sessions", "")
	sb := f.acquire()
	begun := make(chan struct{})
	f.guest.programs["wait"] = func(ctx context.Context, _ execution.RunRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error) {
		if err := handle(execution.RunEvent{Stdout: []byte("begun\n")}); err != nil {
			return execution.RunEnd{}, err
		}
		close(begun)
		<-ctx.Done()
		return execution.RunEnd{}, ctx.Err()
	}
	answered := make(chan answer, 1)
	var all sync.WaitGroup
	all.Go(func() {
		answered <- f.do("POST", "/api/v1/execute", fmt.Sprintf(`{"sandbox_id":%q,"language":"bash","code":"wait"}`, sb))
	})
	<-begun
	f.suspend("dev:test")
	all.Wait()
	if a := <-answered; a.status != http.StatusForbidden || !bytes.Contains(a.body, []byte("suspended")) {
		t.Errorf("it ended with %d %s", a.status, a.body)
	}
}
