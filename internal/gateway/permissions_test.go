package gateway_test

import (
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
)

// Over every API, each role may call the operations that their rows allow, and no other.
func TestPermissionsOfEveryOperation(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	keys := map[sandbox.Role]string{}
	for _, role := range sandbox.Roles() {
		keys[role] = f.Key("t", role)
	}
	for _, rt := range f.Server.RouteTable() {
		if rt.Op.Anyone {
			continue
		}
		for role, key := range keys {
			a := f.ask(rt, key)
			refused := a.Status == 403 && strings.Contains(string(a.Body), "does not have the scope")
			if refused == role.May(rt.Op.Scope) || a.Status == 401 {
				t.Errorf("%s %s (%s) for %s: %d %s", rt.Method, rt.Path, rt.Op.Name, role, a.Status, a.Body)
			}
		}
	}
}

// No caller makes or revokes a key of a role above its own.
func TestKeysOfRoles(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	as := map[sandbox.Role]string{}
	for _, role := range sandbox.Roles() {
		as[role] = f.Key("t", role)
	}
	for _, maker := range sandbox.Roles() {
		for _, role := range sandbox.Roles() {
			var made struct {
				ID   string `json:"key_id"`
				Role string
			}
			may := maker.May(sandbox.ScopeKeys) && maker.Gives(role)
			a := f.With("POST", "/api/v1/keys", `{"name":"k","role":"`+string(role)+`"}`, "X-API-Key", as[maker])
			if !may {
				if a.Status != 403 {
					t.Errorf("%s makes a key of %s: %d %s", maker, role, a.Status, a.Body)
				}
				continue
			}
			a.Into(t, 201, &made)
			for _, other := range sandbox.Roles() {
				if other.May(sandbox.ScopeKeys) && !other.Gives(role) && role != sandbox.RoleViewer && role != sandbox.RoleDeveloper {
					if a := f.With("DELETE", "/api/v1/keys/"+made.ID, "", "X-API-Key", as[other]); a.Status != 403 {
						t.Errorf("%s revokes a key of %s: %d", other, role, a.Status)
					}
				}
			}
			if a := f.With("DELETE", "/api/v1/keys/"+made.ID, "", "X-API-Key", as[maker]); a.Status != 204 {
				t.Errorf("%s revokes a key of %s: %d", maker, role, a.Status)
			}
		}
	}
	// Tokens neither.
	for maker, want := range map[sandbox.Role]int{sandbox.RoleAdmin: 403, sandbox.RoleOwner: 200, sandbox.RoleOperator: 200} {
		if a := f.With("POST", "/api/v1/auth/token", `{"user_id":"a","role":"owner"}`, "X-API-Key", as[maker]); a.Status != want {
			t.Errorf("%s mints for an owner: %d %s", maker, a.Status, a.Body)
		}
	}
}

// An operator sets the quota of any tenant, and no other.
func TestTenantQuota(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	operator := f.Key("ops", sandbox.RoleOperator)
	type told struct {
		Tenant string
		Own    bool
		Limits map[string]float64
	}
	ask := func(method, tenant, body string) (q told) {
		t.Helper()
		f.With(method, "/api/v1/tenants/"+tenant+"/quota", body, "X-API-Key", operator).Into(t, 200, &q)
		return q
	}
	const odd = "acme:joe"
	if q := ask("PUT", odd, `{"sandboxes":3,"cpus":1.5,"snapshot_mb":10}`); q.Tenant != odd || !q.Own || q.Limits["sandboxes"] != 3 || q.Limits["cpus"] != 1.5 || q.Limits["snapshot_mb"] != 10 {
		t.Errorf("set: %+v", q)
	}
	if q, own, _, err := f.Store.QuotaOf(t.Context(), odd); err != nil || !own || q.Sandboxes != 3 {
		t.Errorf("stored: %+v, %v, %v", q, own, err)
	}
	if q := ask("GET", "acme", ""); q.Own || len(q.Limits) != 0 {
		t.Errorf("another: %+v", q)
	}
	if q := ask("PUT", odd, `{}`); !q.Own || len(q.Limits) != 0 {
		t.Errorf("of nothing: %+v", q)
	}
	if q := ask("DELETE", odd, ""); q.Own {
		t.Errorf("taken away: %+v", q)
	}
	// One below another has a slash, which the contract's paths do not know.
	var below told
	f.ask(gateway.RouteInfo{Method: "GET", Path: "/api/v1/tenants/acme%2Fjoe%25/quota"}, operator).Into(t, 200, &below)
	if below.Tenant != "acme/joe%" {
		t.Errorf("below another: %+v", below)
	}
	for _, body := range []string{
		`{"sandboxes":0}`, `{"sandboxes":-1}`, `{"sandboxes":1.5}`, `{"sandboxes":1e10}`, `{"sandboxes":null}`, `{"sandboxes":"3"}`, `{"snapshots":3}`, `[]`, `{`,
	} {
		if a := f.With("PUT", "/api/v1/tenants/acme/quota", body, "X-API-Key", operator); a.Status != 400 {
			t.Errorf("%s: %d %s", body, a.Status, a.Body)
		}
	}
	if a := f.With("GET", "/api/v1/tenants/"+strings.Repeat("a", 129)+"/quota", "", "X-API-Key", operator); a.Status != 400 {
		t.Errorf("a long tenant: %d", a.Status)
	}
	all := f.Audit()
	if e := all[len(all)-1]; e.Operation != "setTenantQuota" || e.Target != "acme" || e.Tenant != "ops" || e.Code != "invalid" {
		t.Errorf("recorded as %+v", e)
	}
}
