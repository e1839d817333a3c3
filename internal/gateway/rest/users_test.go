package rest_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
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
	f.T.Helper()
	token, _, err := f.Tokens.Mint(sandbox.Identity{Tenant: tenant, User: user, Role: role}, 0)
	if err != nil {
		f.T.Fatal(err)
	}
	return token
}

func TestUsers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	owner, bob := f.tokenOf("acme", "owner", sandbox.RoleOwner), f.tokenOf("acme", "bob", sandbox.RoleAdmin)
	var told userTold
	if f.DoAs(owner, "POST", "/api/v1/users", `{"user_id":"corp:a/b é","name":"Ann","email":"ann@example.com","role":"admin"}`).Into(t, 201, &told); told.ID != "corp:a/b é" || told.Role != "admin" || !told.RoleGiven || told.Source != "invited" || told.State != "active" || told.SeenAt != "" {
		t.Errorf("made %+v", told)
	}
	var key struct {
		ID        string `json:"key_id"`
		Key       string
		CreatedBy string `json:"created_by"`
	}
	f.DoAs(bob, "POST", "/api/v1/keys", `{"name":"bob's"}`).Into(t, 201, &key)
	if key.CreatedBy != "bob" {
		t.Errorf("the key was made by %q", key.CreatedBy)
	}
	var second struct {
		Key       string
		CreatedBy string `json:"created_by"`
	}
	f.With("POST", "/api/v1/keys", `{"name":"by a key"}`, "X-API-Key", key.Key).Into(t, 201, &second)
	if second.CreatedBy != "bob" {
		t.Errorf("a key's key was made by %q", second.CreatedBy)
	}

	var ids []string
	for next := ""; ; {
		var page struct {
			Users []userTold
			Next  string `json:"next_cursor"`
		}
		f.DoAs(owner, "GET", "/api/v1/users?limit=1&cursor="+url.QueryEscape(next), "").Into(t, 200, &page)
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
	bearer := "Bearer " + owner // the path has a slash, unlike the paths in the contract
	f.Plain("PATCH", "/api/v1/users/"+url.PathEscape("corp:a/b é"), `{"name":"A","email":"","role":"viewer"}`, "Authorization", bearer).Into(t, 200, &told)
	told = userTold{}
	if f.Plain("GET", "/api/v1/users/"+url.PathEscape("corp:a/b é"), "", "Authorization", bearer).Into(t, 200, &told); told.Name != "A" || told.Email != "" || told.Role != "viewer" {
		t.Errorf("changed to %+v", told)
	}

	// At once for tokens and keys, and back.
	reads := func(want int) {
		t.Helper()
		for _, k := range []string{key.Key, second.Key} {
			if a := f.With("GET", "/api/v1/sessions", "", "X-API-Key", k); a.Status != want {
				t.Errorf("a key of bob: %d %s, want %d", a.Status, a.Body, want)
			}
		}
	}
	reads(200)
	f.DoAs(owner, "PATCH", "/api/v1/users/bob", `{"state":"suspended"}`).Into(t, 200, &told)
	if a := f.DoAs(bob, "GET", "/api/v1/sessions", ""); a.Status != 403 || !strings.Contains(string(a.Body), "suspended") {
		t.Errorf("suspended: %d %s", a.Status, a.Body)
	}
	if a := f.With("POST", "/api/v1/auth/token", `{"user_id":"x","role":"user"}`, "X-API-Key", key.Key); a.Status != 403 {
		t.Errorf("a suspended user's key mints: %d %s", a.Status, a.Body)
	}
	reads(403)
	f.DoAs(owner, "PATCH", "/api/v1/users/bob", `{"state":"active","role":"viewer"}`).Into(t, 200, &told)
	reads(200)
	for _, a := range []gatewaytest.Answer{
		f.DoAs(bob, "POST", "/api/v1/sessions", `{}`), f.DoAs(bob, "GET", "/api/v1/users", ""),
		f.With("POST", "/api/v1/sessions", `{}`, "X-API-Key", key.Key),
		f.With("POST", "/api/v1/auth/token", `{"user_id":"x","role":"user"}`, "X-API-Key", key.Key),
	} {
		if a.Status != 403 {
			t.Errorf("a viewer: %d %s", a.Status, a.Body)
		}
	}
	if f.DoAs(owner, "PATCH", "/api/v1/users/bob", `{"role":"credential"}`).Into(t, 200, &told); told.Role != "admin" || told.RoleGiven {
		t.Errorf("given nothing: %+v", told)
	}
	if a := f.DoAs(owner, "DELETE", "/api/v1/users/bob", ""); a.Status != 204 {
		t.Errorf("removed: %d %s", a.Status, a.Body)
	}
	if a := f.DoAs(bob, "GET", "/api/v1/sessions", ""); a.Status != 403 || !strings.Contains(string(a.Body), "removed") {
		t.Errorf("removed: %d %s", a.Status, a.Body)
	}
	reads(401)
	f.DoAs(owner, "POST", "/api/v1/users", `{"user_id":"bob","role":"viewer"}`).Into(t, 201, &told)
	reads(401)
	if a := f.DoAs(owner, "DELETE", "/api/v1/users/bob", ""); a.Status != 204 {
		t.Errorf("removed again: %d %s", a.Status, a.Body)
	}
	var page struct{ Users []userTold }
	if f.DoAs(owner, "GET", "/api/v1/users?state=removed", "").Into(t, 200, &page); len(page.Users) != 1 || page.Users[0].ID != "bob" {
		t.Errorf("removed are %+v", page.Users)
	}
	var done []string
	for _, e := range f.Audit() {
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
	t.Parallel()
	f := newFixture(t)
	owner, admin, viewer := f.tokenOf("acme", "owner", sandbox.RoleOwner), f.tokenOf("acme", "admin", sandbox.RoleAdmin), f.tokenOf("acme", "viewer", sandbox.RoleViewer)
	for _, token := range []string{owner, admin, viewer} {
		f.DoAs(token, "GET", "/api/v1/sessions", "")
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
		a := f.Plain(tt.method, tt.path, tt.body, "Authorization", "Bearer "+tt.token)
		if a.Status != tt.want {
			t.Errorf("%s %s %s: %d %s, want %d", tt.method, tt.path, tt.body, a.Status, a.Body, tt.want)
		}
	}
}

// Another tenant's user gets the same answers as a user that does not exist.
func TestUsersOfOthers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	owner, stranger := f.tokenOf("acme", "owner", sandbox.RoleOwner), f.tokenOf("other", "stranger", sandbox.RoleOwner)
	f.DoAs(owner, "POST", "/api/v1/users", `{"user_id":"bob","name":"treasure"}`).Into(t, 201, new(userTold))
	for method, body := range map[string]string{"GET": "", "PATCH": `{"state":"suspended"}`, "DELETE": ""} {
		theirs, none := f.DoAs(stranger, method, "/api/v1/users/bob", body), f.DoAs(stranger, method, "/api/v1/users/nobody", body)
		if theirs.Status != 404 || none.Status != 404 || string(theirs.Body) != string(none.Body) {
			t.Errorf("%s: %d %s, of none: %d %s", method, theirs.Status, theirs.Body, none.Status, none.Body)
		}
	}
	if a := f.DoAs(stranger, "GET", "/api/v1/users", ""); strings.Contains(string(a.Body), "treasure") {
		t.Errorf("a stranger reads %s", a.Body)
	}
	f.DoAs(stranger, "POST", "/api/v1/users", `{"user_id":"bob"}`).Into(t, 201, new(userTold)) // a namesake
	var told userTold
	if f.DoAs(owner, "GET", "/api/v1/users/bob", "").Into(t, 200, &told); told.Name != "treasure" || told.State != "active" {
		t.Errorf("afterwards bob is %+v", told)
	}
}

// Operators manage the users of every tenant that has a record, and may leave a tenant
// without an owner.
func TestUsersForOperators(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	owner := f.tokenOf("acme/x", "owner", sandbox.RoleOwner)
	f.DoAs(owner, "GET", "/api/v1/sessions", "")
	const users = "/api/v1/tenants/acme%2Fx/users"
	ask := func(method, path, body string) gatewaytest.Answer {
		t.Helper()
		if f.Operator == "" {
			f.Operator = f.Key("ops", sandbox.RoleOperator)
		}
		return f.Plain(method, path, body, "X-API-Key", f.Operator)
	}
	var page struct{ Users []userTold }
	if ask("GET", users, "").Into(t, 200, &page); len(page.Users) != 1 || page.Users[0].ID != "owner" {
		t.Errorf("there are %+v", page.Users)
	}
	ask("POST", users, `{"user_id":"bob","role":"viewer"}`).Into(t, 201, new(userTold))
	var told userTold
	if ask("GET", users+"/bob", "").Into(t, 200, &told); told.Role != "viewer" {
		t.Errorf("made %+v", told)
	}
	ask("PATCH", users+"/owner", `{"state":"suspended"}`).Into(t, 200, &told)
	if a := f.DoAs(owner, "GET", "/api/v1/sessions", ""); a.Status != 403 {
		t.Errorf("suspended by an operator: %d %s", a.Status, a.Body)
	}
	if a := ask("DELETE", users+"/bob", ""); a.Status != 204 {
		t.Errorf("removed: %d %s", a.Status, a.Body)
	}
	for _, a := range []gatewaytest.Answer{
		ask("GET", "/api/v1/tenants/none/users", ""), ask("POST", "/api/v1/tenants/none/users", `{"user_id":"x"}`),
		ask("GET", "/api/v1/tenants/none/users/owner", ""), ask("PATCH", "/api/v1/tenants/none/users/owner", `{}`), ask("DELETE", "/api/v1/tenants/none/users/owner", ""),
	} {
		if a.Status != 404 {
			t.Errorf("of a tenant without a record: %d %s", a.Status, a.Body)
		}
	}
	logs := map[sandbox.TenantID]string{}
	for _, e := range f.Audit() {
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

// A user who rotates a key becomes its owner, because the user knows its secret.
func TestRotatedKeyGoesWithWhoRotatedIt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	owner, alice, bob := f.tokenOf("acme", "owner", sandbox.RoleOwner), f.tokenOf("acme", "alice", sandbox.RoleAdmin), f.tokenOf("acme", "bob", sandbox.RoleAdmin)
	var key, rotated struct {
		ID        string `json:"key_id"`
		Key       string
		CreatedBy string `json:"created_by"`
	}
	f.DoAs(bob, "POST", "/api/v1/keys", `{"name":"bob's"}`).Into(t, 201, &key)
	f.DoAs(alice, "POST", "/api/v1/keys/"+key.ID+"/rotate", `{}`).Into(t, 200, &rotated)
	if a := f.DoAs(owner, "DELETE", "/api/v1/users/alice", ""); a.Status != 204 {
		t.Fatalf("removed: %d %s", a.Status, a.Body)
	}
	if got := f.With("GET", "/api/v1/keys", "", "X-API-Key", rotated.Key).Status; rotated.CreatedBy != "alice" || got != 401 {
		t.Errorf("a key that alice rotated is of %q and answers %d once she is removed", rotated.CreatedBy, got)
	}
}
