package rest_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
)

type secretView struct {
	Name, Description string
}

func TestSecretRoutes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const path, value = "/api/v1/secrets", "sk-hidden-123"
	var made secretView
	f.Do("POST", path, `{"name":"API_KEY","value":"`+value+`","description":"of the tests"}`).Into(t, 201, &made)
	if made != (secretView{"API_KEY", "of the tests"}) {
		t.Errorf("made %+v", made)
	}
	if a := f.Do("POST", path, `{"name":"API_KEY","value":"`+value+`"}`); a.Status != 409 {
		t.Errorf("the same name: %d %s", a.Status, a.Body)
	}
	f.Do("PUT", path+"/API_KEY", `{"value":"`+value+`-2"}`).Into(t, 200, &made)
	if made.Description != "of the tests" {
		t.Errorf("replaced %+v", made)
	}
	var list struct{ Secrets []secretView }
	a := f.Do("GET", path, "")
	a.Into(t, 200, &list)
	if len(list.Secrets) != 1 || list.Secrets[0] != made || strings.Contains(string(a.Body), "hidden") {
		t.Errorf("listed %s", a.Body)
	}
	stranger := f.Key("other", sandbox.RoleAdmin)
	for _, c := range [][3]string{{"PUT", path + "/API_KEY", `{"value":"x"}`}, {"DELETE", path + "/API_KEY", ""}} {
		if a := f.With(c[0], c[1], c[2], "X-API-Key", stranger); a.Status != 404 {
			t.Errorf("a stranger's %s: %d %s", c[0], a.Status, a.Body)
		}
	}
	if a := f.With("GET", path, "", "X-API-Key", stranger); a.Status != 200 || strings.Contains(string(a.Body), "API_KEY") {
		t.Errorf("a stranger lists %d %s", a.Status, a.Body)
	}
	reader := f.Key("dev:test", sandbox.RoleDeveloper, sandbox.ScopeRead)
	if a := f.With("DELETE", path+"/API_KEY", "", "X-API-Key", reader); a.Status != 403 {
		t.Errorf("a key that may only read deletes: %d %s", a.Status, a.Body)
	}
	if a := f.Do("DELETE", path+"/API_KEY", ""); a.Status != 204 {
		t.Errorf("delete: %d %s", a.Status, a.Body)
	}
	if a := f.Do("DELETE", path+"/API_KEY", ""); a.Status != 404 {
		t.Errorf("a second delete: %d %s", a.Status, a.Body)
	}
	f.Sandboxes.Lock()
	changed := f.Sandboxes.SecretsChanged
	f.Sandboxes.Unlock()
	// A replacement, and what was deleted, by another tenant in vain and twice.
	if want := []string{"dev:test API_KEY", "other API_KEY", "dev:test API_KEY", "dev:test API_KEY"}; !slices.Equal(changed, want) {
		t.Errorf("told of changes: %v", changed)
	}
	if strings.Contains(f.Logs.String(), "hidden") {
		t.Error("the log has the value")
	}
}

func TestBadSecretRequests(t *testing.T) {
	t.Parallel()
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
		if a := f.Do(c[0], c[1], c[2]); a.Status != 400 || strings.Contains(string(a.Body), "hidden") {
			t.Errorf("%s: %d %s", name, a.Status, a.Body)
		}
	}
	for name, uses := range map[string]string{
		"no list": `{}`, "texts": `["a"]`, "a number": `[{"name":1,"host":"a.b","header":"X"}]`, "no host": `[{"name":"a","header":"X"}]`,
		"more": `[{"name":"a","host":"a.b","header":"X","value":"v"}]`, "a wildcard": `[{"name":"a","host":"*","header":"X"}]`,
	} {
		for _, path := range []string{"/api/v1/sessions", "/api/v1/sandbox/acquire", "/api/v1/sessions/x/fork"} {
			if a := f.Do("POST", path, `{"secrets":`+uses+`}`); a.Status != 400 {
				t.Errorf("uses, %s, %s: %d %s", name, path, a.Status, a.Body)
			}
		}
	}
	if a := f.Do("POST", "/api/v1/sessions/x/fork", `{"keep_secrets":true,"secrets":[{"name":"a","host":"a.b","header":"X"}]}`); a.Status != 400 {
		t.Errorf("two kinds of secrets of forks: %d %s", a.Status, a.Body)
	}
	big := `{"name":"a","value":"` + strings.Repeat("x", 200<<10) + `"}`
	if a := f.Do("POST", "/api/v1/secrets", big); a.Status != 413 {
		t.Errorf("a large body: %d %s", a.Status, a.Body)
	}
}

func TestSecretMadeOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for i, replayed := range []string{"", "true"} {
		a := f.With("POST", "/api/v1/secrets", `{"name":"A","value":"v"}`, "Authorization", "Bearer "+f.Token, "Idempotency-Key", "one")
		if a.Status != 201 || a.Header.Get("Idempotent-Replayed") != replayed {
			t.Errorf("request %d: %d %s %v", i, a.Status, a.Body, a.Header)
		}
	}
}
