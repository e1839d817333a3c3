package gateway_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/secrets"
)

func testKeyring(t testing.TB) *secrets.Keyring {
	t.Helper()
	ring, err := secrets.ParseKeyring(strings.Repeat("5e", 32))
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

type secretView struct {
	Name, Description string
}

func TestSecretRoutes(t *testing.T) {
	f := newFixture(t)
	const path, value = "/api/v1/secrets", "sk-hidden-123"
	var made secretView
	f.do("POST", path, `{"name":"API_KEY","value":"`+value+`","description":"of the tests"}`).into(t, 201, &made)
	if made != (secretView{"API_KEY", "of the tests"}) {
		t.Errorf("made %+v", made)
	}
	if a := f.do("POST", path, `{"name":"API_KEY","value":"`+value+`"}`); a.status != 409 {
		t.Errorf("the same name: %d %s", a.status, a.body)
	}
	f.do("PUT", path+"/API_KEY", `{"value":"`+value+`-2"}`).into(t, 200, &made)
	if made.Description != "of the tests" {
		t.Errorf("replaced %+v", made)
	}
	var list struct{ Secrets []secretView }
	a := f.do("GET", path, "")
	a.into(t, 200, &list)
	if len(list.Secrets) != 1 || list.Secrets[0] != made || strings.Contains(string(a.body), "hidden") {
		t.Errorf("listed %s", a.body)
	}
	stranger := f.key("other", sandbox.RoleAdmin)
	for _, c := range [][3]string{{"PUT", path + "/API_KEY", `{"value":"x"}`}, {"DELETE", path + "/API_KEY", ""}} {
		if a := f.with(c[0], c[1], c[2], "X-API-Key", stranger); a.status != 404 {
			t.Errorf("a stranger's %s: %d %s", c[0], a.status, a.body)
		}
	}
	if a := f.with("GET", path, "", "X-API-Key", stranger); a.status != 200 || strings.Contains(string(a.body), "API_KEY") {
		t.Errorf("a stranger lists %d %s", a.status, a.body)
	}
	reader := f.key("dev:test", sandbox.RoleDeveloper, sandbox.ScopeRead)
	if a := f.with("DELETE", path+"/API_KEY", "", "X-API-Key", reader); a.status != 403 {
		t.Errorf("a key that may only read deletes: %d %s", a.status, a.body)
	}
	if a := f.do("DELETE", path+"/API_KEY", ""); a.status != 204 {
		t.Errorf("delete: %d %s", a.status, a.body)
	}
	if a := f.do("DELETE", path+"/API_KEY", ""); a.status != 404 {
		t.Errorf("a second delete: %d %s", a.status, a.body)
	}
	f.sandboxes.mu.Lock()
	changed := f.sandboxes.secretsChanged
	f.sandboxes.mu.Unlock()
	// A replacement, and what was deleted, by another tenant in vain and twice.
	if want := []string{"dev:test API_KEY", "other API_KEY", "dev:test API_KEY", "dev:test API_KEY"}; !slices.Equal(changed, want) {
		t.Errorf("told of changes: %v", changed)
	}
	if strings.Contains(f.logs.String(), "hidden") {
		t.Error("the log has the value")
	}
}

func TestBadSecretRequests(t *testing.T) {
	f := newFixture(t)
	for name, c := range map[string][3]string{
		"no value":         {"POST", "/api/v1/secrets", `{"name":"a"}`},
		"no name":          {"POST", "/api/v1/secrets", `{"value":"hidden"}`},
		"a bad name":       {"POST", "/api/v1/secrets", `{"name":"a b","value":"hidden"}`},
		"a number":         {"POST", "/api/v1/secrets", `{"name":"a","value":12}`},
		"a line break":     {"POST", "/api/v1/secrets", `{"name":"a","value":"hidden\n"}`},
		"an unknown field": {"POST", "/api/v1/secrets", `{"name":"a","value":"hidden","values":1}`},
		"a long text":      {"POST", "/api/v1/secrets", `{"name":"a","value":"hidden","description":"` + strings.Repeat("x", 501) + `"}`},
		"a query":          {"GET", "/api/v1/secrets?x=1", ""},
		"a name in a body": {"PUT", "/api/v1/secrets/a", `{"name":"b","value":"hidden"}`},
	} {
		if a := f.do(c[0], c[1], c[2]); a.status != 400 || strings.Contains(string(a.body), "hidden") {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	for name, uses := range map[string]string{
		"no list": `{}`, "texts": `["a"]`, "a number": `[{"name":1,"host":"a.b","header":"X"}]`, "no host": `[{"name":"a","header":"X"}]`,
		"more": `[{"name":"a","host":"a.b","header":"X","value":"v"}]`, "a wildcard": `[{"name":"a","host":"*","header":"X"}]`,
	} {
		for _, path := range []string{"/api/v1/sessions", "/api/v1/sandbox/acquire", "/api/v1/sessions/x/fork"} {
			if a := f.do("POST", path, `{"secrets":`+uses+`}`); a.status != 400 {
				t.Errorf("uses, %s, %s: %d %s", name, path, a.status, a.body)
			}
		}
	}
	if a := f.do("POST", "/api/v1/sessions/x/fork", `{"keep_secrets":true,"secrets":[{"name":"a","host":"a.b","header":"X"}]}`); a.status != 400 {
		t.Errorf("two kinds of secrets of forks: %d %s", a.status, a.body)
	}
	big := `{"name":"a","value":"` + strings.Repeat("x", 200<<10) + `"}`
	if a := f.do("POST", "/api/v1/secrets", big); a.status != 413 {
		t.Errorf("a large body: %d %s", a.status, a.body)
	}
}

func TestSecretMadeOnce(t *testing.T) {
	f := newFixture(t)
	for i, replayed := range []string{"", "true"} {
		a := f.with("POST", "/api/v1/secrets", `{"name":"A","value":"v"}`, "Authorization", "Bearer "+f.token, "Idempotency-Key", "one")
		if a.status != 201 || a.header.Get("Idempotent-Replayed") != replayed {
			t.Errorf("request %d: %d %s %v", i, a.status, a.body, a.header)
		}
	}
}
