package hostile

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// as returns a client with a dev mode token of a role.
func as(t *testing.T, s *rig.Server, user, role string) *rig.Client {
	t.Helper()
	c := s.Anyone(t)
	var minted struct {
		Token string `json:"access_token"`
	}
	c.Must(t, "POST", "/api/v1/auth/token", rig.Body{"user_id": user, "role": role}, &minted)
	c.Token = minted.Token
	return c
}

// On every route that names a user, an owner gets the same answer about another tenant's
// user as about one that does not exist. Nothing changes.
func TestOtherTenantsUsersOnEveryRoute(t *testing.T) {
	s := shared.Server(t)
	owner, stranger := as(t, s, "landlord", "owner"), as(t, s, "burglar", "owner")
	if status, raw, err := owner.Do("POST", "/api/v1/users", rig.Body{"user_id": "jewel", "name": "secret", "role": "viewer"}); err != nil || status != http.StatusCreated && status != http.StatusConflict {
		t.Fatalf("%d %s %v", status, raw, err)
	}
	about := 0
	for _, c := range calls(t) {
		switch {
		case !strings.Contains(c.path, "/users"):
			continue
		case strings.HasPrefix(c.path, "/api/v1/tenants/"): // for operators
			theirs := c
			theirs.path = strings.NewReplacer("{id}", url.PathEscape("dev:landlord"), "{user}", "jewel").Replace(c.path)
			got, answer := theirs.send(t, s, "x", stranger.Token)
			absent, none := c.send(t, s, "x", stranger.Token)
			if got != http.StatusForbidden || absent != got || answer != none {
				t.Errorf("%s: %d %.200s, of none %d %.200s", c, got, answer, absent, none)
			}
		case strings.Contains(c.path, "{user}"):
			about++
			got, answer := c.send(t, s, "jewel", stranger.Token)
			absent, none := c.send(t, s, "nobody", stranger.Token)
			if got != http.StatusNotFound || absent != got || answer != none {
				t.Errorf("%s: %d %.200s, of none %d %.200s", c, got, answer, absent, none)
			}
		default: // lists the caller's own users
			if status, answer := c.send(t, s, "x", stranger.Token); strings.Contains(answer, "secret") {
				t.Errorf("%s: %d %.200s", c, status, answer)
			}
		}
	}
	if about < 3 {
		t.Errorf("only %d calls name a user", about)
	}
	var u struct{ Name, Role, State string }
	if owner.Must(t, "GET", "/api/v1/users/jewel", nil, &u); u.Name != "secret" || u.Role != "viewer" || u.State != "active" {
		t.Errorf("afterwards it is %+v", u)
	}
}

// A suspended user loses open connections and is refused with every old or new token and
// key. So is a removed user.
func TestSuspendedUserHoldsNothing(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{Pool: 1})
	mine, other, ops := as(t, s, "mallory", "admin"), s.Client(t, "neighbour"), as(t, s, "ops", "operator")
	id, theirs := mine.Acquire(t), other.Acquire(t)
	var first, second struct{ Key string }
	mine.Must(t, "POST", "/api/v1/keys", rig.Body{"name": "a"}, &first)
	byKey := s.Anyone(t)
	byKey.Token = first.Key
	byKey.Must(t, "POST", "/api/v1/keys", rig.Body{"name": "b"}, &second)
	held := map[string]<-chan error{
		"a terminal":               holdTerminal(t, mine, id),
		"output as events":         holdStream(t, mine, "/api/v1/execute", rig.Body{"sandbox_id": id, "language": "bash", "code": "while :; do echo x; sleep 0.1; done", "stream": true, "timeout_seconds": 600}, nil),
		"a watch, by a key":        holdWatch(t, byKey, id),
		"a socket of their key's":  holdSocket(t, byKey, "/api/v1/files/watch?path=/workspace&sandbox_id="+id),
		"a socket that looks only": holdSocket(t, mine, "/api/v1/files/watch?path=/workspace&sandbox_id="+id),
	}
	user := "/api/v1/tenants/dev:mallory/users/mallory"
	ops.Must(t, "PATCH", user, rig.Body{"state": "suspended"}, nil)
	limit := time.After(time.Minute)
	for what, ended := range held {
		select {
		case err := <-ended:
			t.Logf("%s ended: %v", what, err)
		case <-limit:
			t.Fatalf("%s goes on after its user was suspended", what)
		}
	}
	out := func(what string, c *rig.Client, want int) {
		t.Helper()
		for _, path := range []string{"/api/v1/sessions", "/api/v1/users", "/api/v1/sessions/" + id} {
			got, raw, err := c.Do("GET", path, nil)
			if err != nil || got != want {
				t.Errorf("%s: %s: %d %s %v", what, path, got, raw, err)
			}
		}
	}
	keyed := func(key string) *rig.Client {
		c := s.Anyone(t)
		c.Token = key
		return c
	}
	out("their token", mine, 403)
	out("their key", keyed(first.Key), 403)
	out("their key's key", keyed(second.Key), 403)
	if status, raw, err := s.Anyone(t).Do("POST", "/api/v1/auth/token", rig.Body{"user_id": "mallory", "role": "admin"}); err != nil || status != 403 {
		t.Errorf("a new token: %d %s %v", status, raw, err)
	}
	ops.Must(t, "DELETE", user, nil, nil)
	out("the token of who was removed", mine, 403)
	out("the key of who was removed", keyed(first.Key), 401)
	// Added again as a viewer, the user finds the sandbox still running.
	ops.Must(t, "POST", "/api/v1/tenants/dev:mallory/users", rig.Body{"user_id": "mallory", "role": "viewer"}, nil)
	var back struct{ State string }
	if mine.Must(t, "GET", "/api/v1/sessions/"+id, nil, &back); back.State != "running" {
		t.Errorf("the sandbox is %s", back.State)
	}
	out("a key from before", keyed(second.Key), 401)
	if status, raw, err := mine.Do("DELETE", "/api/v1/sessions/"+id, nil); err != nil || status != 403 {
		t.Errorf("a viewer ends it: %d %s %v", status, raw, err)
	}
	other.Run(t, theirs, "bash", "true", nil)
}
