package gateway_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
)

// Through every door each role may call what its row says, and nothing else.
func TestPermissionsOfEveryOperation(t *testing.T) {
	f := newFixture(t)
	keys := map[sandbox.Role]string{}
	for _, role := range sandbox.Roles() {
		keys[role] = f.key("t", role)
	}
	for _, rt := range f.server.RouteTable() {
		if rt.Op.Anyone {
			continue
		}
		for role, key := range keys {
			a := f.ask(rt, key)
			refused := a.status == 403 && strings.Contains(string(a.body), "does not have the scope")
			if refused == role.May(rt.Op.Scope) || a.status == 401 {
				t.Errorf("%s %s (%s) for %s: %d %s", rt.Method, rt.Path, rt.Op.Name, role, a.status, a.body)
			}
		}
	}
}

// Nobody makes or revokes a key of a role above their own.
func TestKeysOfRoles(t *testing.T) {
	f := newFixture(t)
	as := map[sandbox.Role]string{}
	for _, role := range sandbox.Roles() {
		as[role] = f.key("t", role)
	}
	for _, maker := range sandbox.Roles() {
		for _, role := range sandbox.Roles() {
			var made struct {
				ID   string `json:"key_id"`
				Role string
			}
			may := maker.May(sandbox.ScopeKeys) && maker.Gives(role)
			a := f.with("POST", "/api/v1/keys", `{"name":"k","role":"`+string(role)+`"}`, "X-API-Key", as[maker])
			if !may {
				if a.status != 403 {
					t.Errorf("%s makes a key of %s: %d %s", maker, role, a.status, a.body)
				}
				continue
			}
			a.into(t, 201, &made)
			for _, other := range sandbox.Roles() {
				if other.May(sandbox.ScopeKeys) && !other.Gives(role) && role != sandbox.RoleViewer && role != sandbox.RoleDeveloper {
					if a := f.with("DELETE", "/api/v1/keys/"+made.ID, "", "X-API-Key", as[other]); a.status != 403 {
						t.Errorf("%s revokes a key of %s: %d", other, role, a.status)
					}
				}
			}
			if a := f.with("DELETE", "/api/v1/keys/"+made.ID, "", "X-API-Key", as[maker]); a.status != 204 {
				t.Errorf("%s revokes a key of %s: %d", maker, role, a.status)
			}
		}
	}
	// Tokens neither.
	for maker, want := range map[sandbox.Role]int{sandbox.RoleAdmin: 403, sandbox.RoleOwner: 200, sandbox.RoleOperator: 200} {
		if a := f.with("POST", "/api/v1/auth/token", `{"user_id":"a","role":"owner"}`, "X-API-Key", as[maker]); a.status != want {
			t.Errorf("%s mints for an owner: %d %s", maker, a.status, a.body)
		}
	}
}

// An operator is told of every tenant's usage, and nobody else of another's.
func TestUsageForOperators(t *testing.T) {
	f := newFixture(t)
	at := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	f.ran("a", at)
	f.ran("b", at)
	operator := f.key("ops", sandbox.RoleOperator)
	ask := func(key, tenant string) answer {
		return f.with("GET", "/api/v1/usage?from=2026-03-01&to=2026-04-01&group_by=tenant&tenant="+tenant, "", "X-API-Key", key)
	}
	for tenant, want := range map[string]int{"": 0, "ops": 0, "a": 1, "b": 1, "none": 0, "*": 2} {
		var p usagePage
		if ask(operator, tenant).into(t, 200, &p); len(p.Rows) != want {
			t.Errorf("of %q: %+v", tenant, p.Rows)
		}
	}
	owner, narrow := f.key("a", sandbox.RoleOwner), f.key("ops", sandbox.RoleOperator, sandbox.ScopeRead)
	for _, key := range []string{owner, narrow} {
		for _, tenant := range []string{"b", "none", "*"} {
			if a := ask(key, tenant); a.status != 403 {
				t.Errorf("of %q: %d %s", tenant, a.status, a.body)
			}
		}
	}
	var p usagePage
	if ask(owner, "a").into(t, 200, &p); len(p.Rows) != 1 {
		t.Errorf("one's own: %+v", p.Rows)
	}
}

// An operator sets the quota of any tenant, and no other.
func TestTenantQuota(t *testing.T) {
	f := newFixture(t)
	operator := f.key("ops", sandbox.RoleOperator)
	type told struct {
		Tenant string
		Own    bool
		Limits map[string]float64
	}
	ask := func(method, tenant, body string) (q told) {
		t.Helper()
		f.with(method, "/api/v1/tenants/"+tenant+"/quota", body, "X-API-Key", operator).into(t, 200, &q)
		return q
	}
	const odd = "acme:joe"
	if q := ask("PUT", odd, `{"sandboxes":3,"cpus":1.5,"snapshot_mb":10}`); q.Tenant != odd || !q.Own || q.Limits["sandboxes"] != 3 || q.Limits["cpus"] != 1.5 || q.Limits["snapshot_mb"] != 10 {
		t.Errorf("set: %+v", q)
	}
	if q, own, _, err := f.store.QuotaOf(t.Context(), odd); err != nil || !own || q.Sandboxes != 3 {
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
	f.ask(gateway.RouteInfo{Method: "GET", Path: "/api/v1/tenants/acme%2Fjoe%25/quota"}, operator).into(t, 200, &below)
	if below.Tenant != "acme/joe%" {
		t.Errorf("below another: %+v", below)
	}
	for _, body := range []string{
		`{"sandboxes":0}`, `{"sandboxes":-1}`, `{"sandboxes":1.5}`, `{"sandboxes":1e10}`, `{"sandboxes":null}`, `{"sandboxes":"3"}`, `{"snapshots":3}`, `[]`, `{`,
	} {
		if a := f.with("PUT", "/api/v1/tenants/acme/quota", body, "X-API-Key", operator); a.status != 400 {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
	if a := f.with("GET", "/api/v1/tenants/"+strings.Repeat("a", 129)+"/quota", "", "X-API-Key", operator); a.status != 400 {
		t.Errorf("a long tenant: %d", a.status)
	}
	all := f.audit()
	if e := all[len(all)-1]; e.Operation != "setTenantQuota" || e.Target != "acme" || e.Tenant != "ops" || e.Code != "invalid" {
		t.Errorf("recorded as %+v", e)
	}
}
