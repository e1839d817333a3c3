package gateway_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
)

type userTold struct {
	ID        string `json:"user_id"`
	Name      string
	Email     string
	Role      string
	RoleGiven bool `json:"role_given"`
	State     string
	Source    string
	SeenAt    string `json:"last_seen_at"`
}

// tokenOf is a token of a user of a tenant.
func (f *fixture) tokenOf(tenant sandbox.TenantID, user string, role sandbox.Role) string {
	f.t.Helper()
	token, _, err := f.tokens.Mint(sandbox.Identity{Tenant: tenant, User: user, Role: role}, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	return token
}

func TestUsers(t *testing.T) {
	f := newFixture(t)
	owner, bob := f.tokenOf("acme", "owner", sandbox.RoleOwner), f.tokenOf("acme", "bob", sandbox.RoleAdmin)
	var told userTold
	if f.doAs(owner, "POST", "/api/v1/users", `{"user_id":"corp:a/b é","name":"Ann","email":"ann@example.com","role":"admin"}`).into(t, 201, &told); told.ID != "corp:a/b é" || told.Role != "admin" || !told.RoleGiven || told.Source != "invited" || told.State != "active" || told.SeenAt != "" {
		t.Errorf("made %+v", told)
	}
	var key struct {
		ID        string `json:"key_id"`
		Key       string
		CreatedBy string `json:"created_by"`
	}
	f.doAs(bob, "POST", "/api/v1/keys", `{"name":"bob's"}`).into(t, 201, &key)
	if key.CreatedBy != "bob" {
		t.Errorf("the key was made by %q", key.CreatedBy)
	}
	var second struct {
		Key       string
		CreatedBy string `json:"created_by"`
	}
	f.with("POST", "/api/v1/keys", `{"name":"by a key"}`, "X-API-Key", key.Key).into(t, 201, &second)
	if second.CreatedBy != "bob" {
		t.Errorf("a key's key was made by %q", second.CreatedBy)
	}

	var ids []string
	for next := ""; ; {
		var page struct {
			Users []userTold
			Next  string `json:"next_cursor"`
		}
		f.doAs(owner, "GET", "/api/v1/users?limit=1&cursor="+url.QueryEscape(next), "").into(t, 200, &page)
		for _, u := range page.Users {
			ids = append(ids, u.ID+" "+u.Role+" "+u.Source)
		}
		if next = page.Next; next == "" {
			break
		}
	}
	if got := strings.Join(ids, ", "); got != "bob admin token, corp:a/b é admin invited, owner owner token" {
		t.Errorf("there are %s", got)
	}
	bearer := "Bearer " + owner // and a path that the contract's do not know: it has a slash
	f.plain("PATCH", "/api/v1/users/"+url.PathEscape("corp:a/b é"), `{"name":"A","email":"","role":"viewer"}`, "Authorization", bearer).into(t, 200, &told)
	told = userTold{}
	if f.plain("GET", "/api/v1/users/"+url.PathEscape("corp:a/b é"), "", "Authorization", bearer).into(t, 200, &told); told.Name != "A" || told.Email != "" || told.Role != "viewer" {
		t.Errorf("changed to %+v", told)
	}

	// At once for tokens and keys, and back.
	reads := func(want int) {
		t.Helper()
		for _, k := range []string{key.Key, second.Key} {
			if a := f.with("GET", "/api/v1/sessions", "", "X-API-Key", k); a.status != want {
				t.Errorf("a key of bob: %d %s, want %d", a.status, a.body, want)
			}
		}
	}
	reads(200)
	f.doAs(owner, "PATCH", "/api/v1/users/bob", `{"state":"suspended"}`).into(t, 200, &told)
	if a := f.doAs(bob, "GET", "/api/v1/sessions", ""); a.status != 403 || !strings.Contains(string(a.body), "suspended") {
		t.Errorf("suspended: %d %s", a.status, a.body)
	}
	if a := f.with("POST", "/api/v1/auth/token", `{"user_id":"x","role":"user"}`, "X-API-Key", key.Key); a.status != 403 {
		t.Errorf("a suspended user's key mints: %d %s", a.status, a.body)
	}
	reads(403)
	f.doAs(owner, "PATCH", "/api/v1/users/bob", `{"state":"active","role":"viewer"}`).into(t, 200, &told)
	reads(200)
	for _, a := range []answer{
		f.doAs(bob, "POST", "/api/v1/sessions", `{}`), f.doAs(bob, "GET", "/api/v1/users", ""),
		f.with("POST", "/api/v1/sessions", `{}`, "X-API-Key", key.Key),
		f.with("POST", "/api/v1/auth/token", `{"user_id":"x","role":"user"}`, "X-API-Key", key.Key),
	} {
		if a.status != 403 {
			t.Errorf("a viewer: %d %s", a.status, a.body)
		}
	}
	if f.doAs(owner, "PATCH", "/api/v1/users/bob", `{"role":"credential"}`).into(t, 200, &told); told.Role != "admin" || told.RoleGiven {
		t.Errorf("given nothing: %+v", told)
	}
	if a := f.doAs(owner, "DELETE", "/api/v1/users/bob", ""); a.status != 204 {
		t.Errorf("removed: %d %s", a.status, a.body)
	}
	if a := f.doAs(bob, "GET", "/api/v1/sessions", ""); a.status != 403 || !strings.Contains(string(a.body), "removed") {
		t.Errorf("removed: %d %s", a.status, a.body)
	}
	reads(401)
	f.doAs(owner, "POST", "/api/v1/users", `{"user_id":"bob","role":"viewer"}`).into(t, 201, &told)
	reads(401)
	if a := f.doAs(owner, "DELETE", "/api/v1/users/bob", ""); a.status != 204 {
		t.Errorf("removed again: %d %s", a.status, a.body)
	}
	var page struct{ Users []userTold }
	if f.doAs(owner, "GET", "/api/v1/users?state=removed", "").into(t, 200, &page); len(page.Users) != 1 || page.Users[0].ID != "bob" {
		t.Errorf("removed are %+v", page.Users)
	}
	var done []string
	for _, e := range f.audit() {
		if e.Tenant == "acme" && strings.HasSuffix(e.Operation, "User") {
			done = append(done, e.Operation+" "+e.Target+" "+e.User)
		}
	}
	const log = "createUser corp:a/b é owner, changeUser corp:a/b é owner, changeUser bob owner, changeUser bob owner, changeUser bob owner, deleteUser bob owner, createUser bob owner, deleteUser bob owner"
	if got := strings.Join(done, ", "); got != log {
		t.Errorf("the log has %s", got)
	}
}

func TestUsersRefused(t *testing.T) {
	f := newFixture(t)
	owner, admin, viewer := f.tokenOf("acme", "owner", sandbox.RoleOwner), f.tokenOf("acme", "admin", sandbox.RoleAdmin), f.tokenOf("acme", "viewer", sandbox.RoleViewer)
	for _, token := range []string{owner, admin, viewer} {
		f.doAs(token, "GET", "/api/v1/sessions", "")
	}
	long := strings.Repeat("a", 201)
	for _, tt := range []struct {
		token, method, path, body string
		want                      int
	}{
		{viewer, "GET", "/api/v1/users", "", 403},
		{admin, "GET", "/api/v1/users?state=odd", "", 400},
		{admin, "GET", "/api/v1/users?limit=0", "", 400},
		{admin, "GET", "/api/v1/users?cursor=%25", "", 400},
		{admin, "GET", "/api/v1/users?order=x", "", 400},
		{admin, "POST", "/api/v1/users", `{}`, 400},
		{admin, "POST", "/api/v1/users", `{"user_id":7}`, 400},
		{admin, "POST", "/api/v1/users", `{"user_id":"` + long + `"}`, 400},
		{admin, "POST", "/api/v1/users", `{"user_id":"a\u0000b"}`, 400},
		{admin, "POST", "/api/v1/users", `{"user_id":"x","email":"x"}`, 400},
		{admin, "POST", "/api/v1/users", `{"user_id":"x","state":"suspended"}`, 400},
		{admin, "POST", "/api/v1/users", `{"user_id":"x","role":"root"}`, 400},
		{admin, "POST", "/api/v1/users", `{"user_id":"x","role":"owner"}`, 403},
		{admin, "POST", "/api/v1/users", `{"user_id":"viewer"}`, 409},
		{admin, "GET", "/api/v1/users/none", "", 404},
		{admin, "PATCH", "/api/v1/users/none", `{"state":"suspended"}`, 404},
		{admin, "DELETE", "/api/v1/users/none", "", 404},
		{admin, "PATCH", "/api/v1/users/viewer", `{"state":"removed"}`, 400},
		{admin, "PATCH", "/api/v1/users/viewer", `{"role":""}`, 400},
		{admin, "PATCH", "/api/v1/users/viewer", `{"role":"owner"}`, 403},
		{admin, "PATCH", "/api/v1/users/owner", `{"role":"viewer"}`, 403},
		{admin, "PATCH", "/api/v1/users/admin", `{"state":"suspended"}`, 409},
		{admin, "DELETE", "/api/v1/users/owner", "", 403},
		{owner, "DELETE", "/api/v1/users/owner", "", 409},
		{owner, "PATCH", "/api/v1/users/owner", `{"role":"admin"}`, 409},
		{owner, "GET", "/api/v1/tenants/acme/users", "", 403},
	} {
		a := f.plain(tt.method, tt.path, tt.body, "Authorization", "Bearer "+tt.token)
		if a.status != tt.want {
			t.Errorf("%s %s %s: %d %s, want %d", tt.method, tt.path, tt.body, a.status, a.body, tt.want)
		}
	}
}

// Of another tenant's user one hears what there is to hear of none.
func TestUsersOfOthers(t *testing.T) {
	f := newFixture(t)
	owner, stranger := f.tokenOf("acme", "owner", sandbox.RoleOwner), f.tokenOf("other", "stranger", sandbox.RoleOwner)
	f.doAs(owner, "POST", "/api/v1/users", `{"user_id":"bob","name":"treasure"}`).into(t, 201, new(userTold))
	for method, body := range map[string]string{"GET": "", "PATCH": `{"state":"suspended"}`, "DELETE": ""} {
		theirs, none := f.doAs(stranger, method, "/api/v1/users/bob", body), f.doAs(stranger, method, "/api/v1/users/nobody", body)
		if theirs.status != 404 || none.status != 404 || string(theirs.body) != string(none.body) {
			t.Errorf("%s: %d %s, of none: %d %s", method, theirs.status, theirs.body, none.status, none.body)
		}
	}
	if a := f.doAs(stranger, "GET", "/api/v1/users", ""); strings.Contains(string(a.body), "treasure") {
		t.Errorf("a stranger reads %s", a.body)
	}
	f.doAs(stranger, "POST", "/api/v1/users", `{"user_id":"bob"}`).into(t, 201, new(userTold)) // a namesake
	var told userTold
	if f.doAs(owner, "GET", "/api/v1/users/bob", "").into(t, 200, &told); told.Name != "treasure" || told.State != "active" {
		t.Errorf("afterwards bob is %+v", told)
	}
}

// Operators look after the users of every tenant that has a record, and may
// leave it without an owner.
func TestUsersForOperators(t *testing.T) {
	f := newFixture(t)
	owner := f.tokenOf("acme/x", "owner", sandbox.RoleOwner)
	f.doAs(owner, "GET", "/api/v1/sessions", "")
	const users = "/api/v1/tenants/acme%2Fx/users"
	ask := func(method, path, body string) answer {
		t.Helper()
		if f.operator == "" {
			f.operator = f.key("ops", sandbox.RoleOperator)
		}
		return f.plain(method, path, body, "X-API-Key", f.operator)
	}
	var page struct{ Users []userTold }
	if ask("GET", users, "").into(t, 200, &page); len(page.Users) != 1 || page.Users[0].ID != "owner" {
		t.Errorf("there are %+v", page.Users)
	}
	ask("POST", users, `{"user_id":"bob","role":"viewer"}`).into(t, 201, new(userTold))
	var told userTold
	if ask("GET", users+"/bob", "").into(t, 200, &told); told.Role != "viewer" {
		t.Errorf("made %+v", told)
	}
	ask("PATCH", users+"/owner", `{"state":"suspended"}`).into(t, 200, &told)
	if a := f.doAs(owner, "GET", "/api/v1/sessions", ""); a.status != 403 {
		t.Errorf("suspended by an operator: %d %s", a.status, a.body)
	}
	if a := ask("DELETE", users+"/bob", ""); a.status != 204 {
		t.Errorf("removed: %d %s", a.status, a.body)
	}
	for _, a := range []answer{
		ask("GET", "/api/v1/tenants/none/users", ""), ask("POST", "/api/v1/tenants/none/users", `{"user_id":"x"}`),
		ask("GET", "/api/v1/tenants/none/users/owner", ""), ask("PATCH", "/api/v1/tenants/none/users/owner", `{}`), ask("DELETE", "/api/v1/tenants/none/users/owner", ""),
	} {
		if a.status != 404 {
			t.Errorf("of a tenant without a record: %d %s", a.status, a.body)
		}
	}
	logs := map[sandbox.TenantID]string{}
	for _, e := range f.audit() {
		if strings.Contains(e.Operation, "User") && e.Status < 400 {
			logs[e.Tenant] += e.Operation + " " + e.Target + "\n"
		}
	}
	if want := "createTenantUser acme/x/users/bob\nchangeTenantUser acme/x/users/owner\ndeleteTenantUser acme/x/users/bob\n"; logs["ops"] != want {
		t.Errorf("the operator's log: %s", logs["ops"])
	}
	if want := "createUser bob\nchangeUser owner\ndeleteUser bob\n"; logs["acme/x"] != want {
		t.Errorf("the tenant's log: %s", logs["acme/x"])
	}
}

// Who rotates a key knows its secret, and answers for it.
func TestRotatedKeyGoesWithWhoRotatedIt(t *testing.T) {
	f := newFixture(t)
	owner, alice, bob := f.tokenOf("acme", "owner", sandbox.RoleOwner), f.tokenOf("acme", "alice", sandbox.RoleAdmin), f.tokenOf("acme", "bob", sandbox.RoleAdmin)
	var key, rotated struct {
		ID        string `json:"key_id"`
		Key       string
		CreatedBy string `json:"created_by"`
	}
	f.doAs(bob, "POST", "/api/v1/keys", `{"name":"bob's"}`).into(t, 201, &key)
	f.doAs(alice, "POST", "/api/v1/keys/"+key.ID+"/rotate", `{}`).into(t, 200, &rotated)
	if a := f.doAs(owner, "DELETE", "/api/v1/users/alice", ""); a.status != 204 {
		t.Fatalf("removed: %d %s", a.status, a.body)
	}
	if got := f.with("GET", "/api/v1/keys", "", "X-API-Key", rotated.Key).status; rotated.CreatedBy != "alice" || got != 401 {
		t.Errorf("a key that alice rotated is of %q and answers %d once she is removed", rotated.CreatedBy, got)
	}
}

// Who may only look sees no token that runs programs.
func TestViewerSeesNoTokenOfE2B(t *testing.T) {
	f := newFixture(t)
	var made, seen e2bSandbox
	f.e2b(f.key("t", sandbox.RoleDeveloper), "POST", "/v2/sandboxes", `{"templateID":"base"}`).into(t, 201, &made)
	f.e2b(f.key("t", sandbox.RoleViewer), "GET", "/sandboxes/"+made.SandboxID, "").into(t, 200, &seen)
	if made.EnvdAccessToken == "" || seen.SandboxID != made.SandboxID || seen.EnvdAccessToken != "" {
		t.Errorf("made %+v, seen as %+v", made, seen)
	}
}
