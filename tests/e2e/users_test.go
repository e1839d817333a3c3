package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// Users of an identity provider appear with their first token. An admin's decisions
// about a user apply at once to the user's tokens and keys, by command line and API, and
// after a restart.
func TestUsersOfTenants(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	s := rig.Own(t, rig.Options{Pool: 1, Strict: true, Env: []string{
		"JWT_SECRET=0123456789abcdef0123456789abcdef", "SSL_CERT_FILE=" + p.certificate,
		`CLOUD_SANDBOX_OIDC=[{"name":"corp","issuer":"` + p.url + `","audience":"cloud-sandbox","tenant_claim":"org","role_claim":"groups","roles":{"eng":"developer","lead":"admin","boss":"owner"}}]`,
	}})
	signed := func(change jwt.MapClaims) *rig.Client {
		c := s.Anyone(t)
		c.Token = p.token(t, jwt.SigningMethodRS256, p.key, change)
		return c
	}
	alice := signed(jwt.MapClaims{"name": "Alice", "email": "alice@example.com", "email_verified": true})
	lead, boss := signed(jwt.MapClaims{"sub": "lead", "groups": "lead"}), signed(jwt.MapClaims{"sub": "boss", "groups": "boss"})
	guest := signed(jwt.MapClaims{"sub": "guest", "groups": "none"})
	elsewhere := signed(jwt.MapClaims{"sub": "lead", "groups": "boss", "org": "other"})
	answers := func(what string, c *rig.Client, method, path string, want int) {
		t.Helper()
		if status, raw, err := c.Do(method, path, nil); err != nil || status != want {
			t.Errorf("%s: %d %s, %v, want %d", what, status, raw, err, want)
		}
	}
	sb := alice.Create(t, nil)
	boss.Must(t, "GET", "/api/v1/sessions", nil, nil)
	answers("who has no role", guest, "GET", "/api/v1/sessions", 403)
	var key struct {
		ID        string `json:"key_id"`
		Key       string
		CreatedBy string `json:"created_by"`
	}
	alice.Must(t, "POST", "/api/v1/keys", rig.Body{"name": "ci"}, &key)
	if key.CreatedBy != "corp:alice" {
		t.Errorf("the key was made by %q", key.CreatedBy)
	}
	byKey := s.Anyone(t)
	byKey.Token = key.Key

	// user runs `cloud-sandbox user` as the lead.
	user := func(args ...string) (string, error) {
		cmd := rig.Command(s.Bin, append(append([]string{"user"}, args...), "--url", s.URL)...)
		cmd.Env = append(cmd.Environ(), "CLOUD_SANDBOX_API_KEY="+lead.Token)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	do := func(args ...string) string {
		t.Helper()
		out, err := user(args...)
		if err != nil {
			t.Fatalf("user %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return out
	}
	var all []struct {
		ID     string `json:"user_id"`
		Name   string
		Email  string
		Role   string
		Source string
		Issuer string
		Seen   string `json:"last_seen_at"`
	}
	if err := json.Unmarshal([]byte(do("ls", "--json")), &all); err != nil || len(all) != 3 {
		t.Fatalf("there are %+v, %v", all, err)
	}
	if a := all[0]; a.ID != "corp:alice" || a.Name != "Alice" || a.Email != "alice@example.com" || a.Role != "user" || a.Source != "oidc" || a.Issuer != "corp" || a.Seen == "" {
		t.Errorf("the first is %+v", a)
	}
	answers("a developer lists users", alice, "GET", "/api/v1/users", 403)
	answers("of another tenant", elsewhere, "GET", "/api/v1/users/corp:alice", 404)
	answers("of another tenant", elsewhere, "DELETE", "/api/v1/users/corp:alice", 404)

	// A lower role also applies to her key. A suspension blocks her tokens and her key.
	do("set", "corp:alice", "--role", "viewer")
	answers("a viewer", alice, "POST", "/api/v1/sandbox/acquire", 403)
	answers("a viewer's key", byKey, "POST", "/api/v1/sandbox/acquire", 403)
	answers("a viewer looks", alice, "GET", "/api/v1/sessions/"+sb.ID, 200)
	do("set", "corp:alice", "--role", "admin")
	answers("raised", alice, "GET", "/api/v1/users", 200)
	answers("the key of who was raised", byKey, "GET", "/api/v1/users", 403)
	do("set", "corp:alice", "--state", "suspended", "--role", "credential")
	for range 2 {
		answers("suspended", alice, "GET", "/api/v1/sessions", 403)
		answers("a key of who is suspended", byKey, "GET", "/api/v1/sessions", 403)
		answers("a new token of who is suspended", signed(jwt.MapClaims{"groups": "lead", "jti": "new"}), "GET", "/api/v1/sessions", 403)
		if err := errors.Join(s.Stop(), s.Launch()); err != nil {
			t.Fatal(err)
		}
	}
	do("set", "corp:alice", "--state", "active")
	answers("active again", alice, "GET", "/api/v1/sessions/"+sb.ID, 200)
	answers("a key of who is active again", byKey, "GET", "/api/v1/sessions/"+sb.ID, 200)

	// An admin cannot keep out an owner of the provider before the owner's first token.
	for i, does := range [][]string{{"set", "corp:founder", "--role", "viewer"}, {"set", "corp:founder", "--state", "suspended"}, {"rm", "corp:founder"}} {
		who := fmt.Sprint("corp:founder", i)
		do("add", who)
		does[1] = who
		do(does...)
		answers("an owner of the provider's whom an admin decided about", signed(jwt.MapClaims{"sub": "founder" + fmt.Sprint(i), "groups": "boss"}), "GET", "/api/v1/users/"+who, 200)
		if out, err := user(does...); err == nil || !strings.Contains(out, "above yours") {
			t.Errorf("user %s: %v: %s", strings.Join(does, " "), err, out)
		}
	}

	// The lead cannot change the boss, whose role is higher.
	for _, args := range [][]string{{"set", "corp:boss", "--role", "viewer"}, {"rm", "corp:boss"}, {"set", "corp:alice", "--role", "owner"}} {
		if out, err := user(args...); err == nil || !strings.Contains(out, "above yours") {
			t.Errorf("user %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	for i := range 3 {
		boss.Must(t, "DELETE", fmt.Sprint("/api/v1/users/corp:founder", i), nil, nil)
	}
	answers("an owner whom another removed", signed(jwt.MapClaims{"sub": "founder0", "groups": "boss"}), "GET", "/api/v1/sessions", 403)
	if status, raw, err := boss.Do("PATCH", "/api/v1/users/corp:boss", rig.Body{"role": "admin"}); err != nil || status != http.StatusConflict || !strings.Contains(string(raw), "last owner") {
		t.Errorf("the last owner steps down: %d %s, %v", status, raw, err)
	}
	boss.Must(t, "PATCH", "/api/v1/users/corp:lead", rig.Body{"role": "owner"}, nil)
	lead.Must(t, "PATCH", "/api/v1/users/corp:boss", rig.Body{"state": "suspended"}, nil)
	answers("an owner whom another suspended", boss, "GET", "/api/v1/sessions", 403)

	// A removed user is refused, also with new tokens. An invited user is admitted.
	if out := do("rm", "corp:alice"); out != "corp:alice\n" {
		t.Errorf("removing prints %q", out)
	}
	answers("removed", alice, "GET", "/api/v1/sessions", 403)
	answers("a new token of who was removed", signed(jwt.MapClaims{"groups": "boss", "jti": "newer"}), "GET", "/api/v1/sessions", 403)
	do("add", "corp:guest", "--name", "A Guest", "--role", "viewer")
	answers("invited", guest, "GET", "/api/v1/sessions/"+sb.ID, 200)
	answers("an invited viewer", guest, "DELETE", "/api/v1/sessions/"+sb.ID, 403)
	do("add", "corp:alice")
	answers("invited again", alice, "DELETE", "/api/v1/sessions/"+sb.ID, 200)
	answers("her key of before", byKey, "GET", "/api/v1/sessions", 401)
}
