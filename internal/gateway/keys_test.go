package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/keys"
	"github.com/cloud-sandbox/cloud-sandbox/tests/core"
)

type keyView struct {
	ID        string   `json:"key_id"`
	Scopes    []string `json:"scopes"`
	Role      string   `json:"role"`
	Hint      string   `json:"hint"`
	ExpiresAt string   `json:"expires_at"`
	Secret    string   `json:"key"`
	Previous  *struct {
		Hint       string `json:"hint"`
		ValidUntil string `json:"valid_until"`
	} `json:"previous"`
}

// key makes a Key of a Tenant, as an operator does, and returns its secret.
func (f *fixture) key(tenant sandbox.TenantID, role sandbox.Role, scopes ...sandbox.Scope) string {
	f.t.Helper()
	_, secret, err := f.keys.Create(f.t.Context(), sandbox.Identity{Tenant: tenant, Role: role}, keys.Request{Name: "k", Scopes: scopes})
	if err != nil {
		f.t.Fatal(err)
	}
	return secret
}

// with sends a request with headers, in pairs of name and value, and without the
// fixture's token.
func (f *fixture) with(method, path, body string, headers ...string) answer {
	f.t.Helper()
	req, err := http.NewRequest(method, f.url+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	return f.send(req)
}

func TestKeyLife(t *testing.T) {
	f := newFixture(t)
	var made keyView
	f.do("POST", "/api/v1/keys", `{"name":"ci","scopes":["read","keys"],"expires_in_seconds":3600}`).into(t, 201, &made)
	if !sandbox.ValidKeySecret(made.Secret) || !strings.HasSuffix(made.Secret, made.Hint) || made.ExpiresAt == "" || made.Role != "user" {
		t.Errorf("made %+v", made)
	}
	for _, headers := range [][]string{{"X-API-Key", made.Secret}, {"Authorization", "Bearer " + made.Secret}, {"Authorization", "bearer " + made.Secret}} {
		if a := f.with("GET", "/api/v1/sessions", "", headers...); a.status != 200 {
			t.Errorf("%s: %d %s", headers[0], a.status, a.body)
		}
	}
	list := f.do("GET", "/api/v1/keys", "")
	var all struct{ Keys []keyView }
	list.into(t, 200, &all)
	if len(all.Keys) != 1 || all.Keys[0].ID != made.ID || bytes.Contains(list.body, []byte(made.Secret)) {
		t.Errorf("listed %s", list.body)
	}
	other := f.mint("other")
	if a := f.doAs(other, "GET", "/api/v1/keys", ""); string(a.body) != `{"keys":[]}`+"\n" {
		t.Errorf("another tenant lists %s", a.body)
	}
	theirs, absent := f.doAs(other, "DELETE", "/api/v1/keys/"+made.ID, ""), f.doAs(other, "DELETE", "/api/v1/keys/knone", "")
	if theirs.status != 404 || !bytes.Equal(theirs.body, absent.body) {
		t.Errorf("another tenant revokes: %d %s, of none: %s", theirs.status, theirs.body, absent.body)
	}
	if a := f.do("DELETE", "/api/v1/keys/"+made.ID, ""); a.status != 204 {
		t.Errorf("revoke: %d %s", a.status, a.body)
	}
	if a := f.with("GET", "/api/v1/sessions", "", "X-API-Key", made.Secret); a.status != 401 {
		t.Errorf("a revoked key: %d %s", a.status, a.body)
	}
	if strings.Contains(f.logs.String(), made.Secret) {
		t.Error("a secret is in the log")
	}
}

func TestKeyRotation(t *testing.T) {
	f := newFixture(t)
	var made, rotated, plain keyView
	f.do("POST", "/api/v1/keys", `{"name":"ci","scopes":["read"]}`).into(t, 201, &made)
	path := "/api/v1/keys/" + made.ID + "/rotate"
	works := func(secret string) bool {
		return f.with("GET", "/api/v1/sessions", "", "X-API-Key", secret).status == 200
	}
	for _, tt := range []struct{ body, says string }{
		{`{"overlap_seconds":-1}`, "seconds"},
		{`{"overlap_seconds":2592001}`, "overlap_seconds"},
		{`{"overlap_seconds":"1"}`, "seconds"},
		{`{"overlap":1}`, "overlap"},
		{`{`, "JSON"},
	} {
		if a := f.do("POST", path, tt.body); a.status != 400 || !bytes.Contains(a.body, []byte(tt.says)) {
			t.Errorf("%s = %d %s", tt.body, a.status, a.body)
		}
	}
	theirs, absent := f.doAs(f.mint("other"), "POST", path, ""), f.doAs(f.mint("other"), "POST", "/api/v1/keys/knone/rotate", "")
	if theirs.status != 404 || !bytes.Equal(theirs.body, absent.body) {
		t.Errorf("another tenant rotates: %d %s, none: %s", theirs.status, theirs.body, absent.body)
	}
	f.do("POST", path, `{"overlap_seconds":3600}`).into(t, 200, &rotated)
	if rotated.ID != made.ID || rotated.Previous == nil || rotated.Previous.Hint != made.Hint || rotated.Previous.ValidUntil == "" {
		t.Errorf("rotated %+v", rotated)
	}
	if !works(made.Secret) || !works(rotated.Secret) {
		t.Error("both secrets are to be valid for the overlap")
	}
	if a := f.do("POST", path, ""); a.status != 409 || !bytes.Contains(a.body, []byte("overlap_seconds")) {
		t.Errorf("a third secret: %d %s", a.status, a.body)
	}
	f.do("POST", path, `{"overlap_seconds":0}`).into(t, 200, &plain)
	if plain.Previous != nil || works(made.Secret) || works(rotated.Secret) || !works(plain.Secret) {
		t.Errorf("without overlap: %+v", plain)
	}
	if logs := f.logs.String(); strings.Contains(logs, rotated.Secret) || strings.Contains(logs, plain.Secret) {
		t.Error("a secret is in the log")
	}
}

func TestKeyAttacks(t *testing.T) {
	f := newFixture(t)
	good := f.key("t", sandbox.RoleDeveloper)
	for name, headers := range map[string][]string{
		"unknown":            {"X-API-Key", sandbox.NewKeySecret()},
		"empty":              {"X-API-Key", ""},
		"cut":                {"X-API-Key", good[:43]},
		"longer":             {"X-API-Key", good + "0"},
		"a newline":          {"Authorization", "Bearer " + good + "%0a"},
		"upper case":         {"X-API-Key", strings.ToUpper(good)},
		"huge":               {"X-API-Key", strings.Repeat("e2b_", 10_000)},
		"a token":            {"X-API-Key", f.token},
		"twice":              {"X-API-Key", good, "X-API-Key", good},
		"beside a token":     {"X-API-Key", good, "Authorization", "Bearer " + f.token},
		"basic":              {"Authorization", "Basic " + good},
		"not as a parameter": {"Authorization", ""},
	} {
		a := f.with("POST", "/api/v1/sandbox/acquire", "{}", headers...)
		if a.status != 401 || a.header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	if f.sandboxes.live() != 0 {
		t.Error("a sandbox was acquired")
	}
}

func TestKeyRefusals(t *testing.T) {
	f := newFixture(t)
	reader := f.key("t", sandbox.RoleDeveloper, sandbox.ScopeRead, sandbox.ScopeKeys)
	for _, tt := range []struct {
		body   string
		status int
		says   string
	}{
		{`{}`, 400, "name"},
		{`{"name":""}`, 400, "name"},
		{`{"name":"` + strings.Repeat("n", 101) + `"}`, 400, "100"},
		{`{"name":"a\u0000"}`, 400, "printable"},
		{`{"name":"a","scopes":["all"]}`, 400, "there is no scope"},
		{`{"name":"a","scopes":"read"}`, 400, "scopes"},
		{`{"name":"a","scopes":["write"]}`, 403, "write"},
		{`{"name":"a","scopes":["tokens"]}`, 403, "tokens"},
		{`{"name":"a","role":"root"}`, 400, "role"},
		{`{"name":"a","role":"admin"}`, 403, "admin"},
		{`{"name":"a","expires_in_seconds":0}`, 400, "seconds"},
		{`{"name":"a","expires_in_seconds":-1}`, 400, "seconds"},
		{`{"name":"a","expires_in_seconds":1e300}`, 400, "seconds"},
		{`{"name":"a","expires_in_seconds":0.5}`, 400, "expires_in_seconds"},
		{`{"name":"a","tenant":"other"}`, 400, "tenant"},
		{`{`, 400, "JSON"},
	} {
		a := f.with("POST", "/api/v1/keys", tt.body, "X-API-Key", reader)
		if a.status != tt.status || !bytes.Contains(a.body, []byte(tt.says)) {
			t.Errorf("%.60s = %d %s, want %d and %q", tt.body, a.status, a.body, tt.status, tt.says)
		}
	}
	if all, err := f.keys.List(t.Context(), "t"); err != nil || len(all) != 1 {
		t.Errorf("there are %d keys, %v", len(all), err)
	}
}

// Who has an API key that may mint vouches for its users, each a Tenant of its
// own below the key's.
func TestTokensOfKeys(t *testing.T) {
	f := newFixture(t, func(c *gateway.Config) { c.Dev = false })
	admin := f.key("acme", sandbox.RoleAdmin)
	mint := func(key, body string) answer { return f.with("POST", "/api/v1/auth/token", body, "X-API-Key", key) }
	tenants := map[sandbox.TenantID]bool{}
	for _, user := range []string{"alice", "bob", "alice/bob", "alice%2Fbob"} {
		var token struct {
			AccessToken string `json:"access_token"`
		}
		mint(admin, `{"user_id":"`+user+`","role":"user"}`).into(t, 200, &token)
		who, err := f.tokens.Check(token.AccessToken)
		if err != nil || !strings.HasPrefix(string(who.Tenant), "acme/") || tenants[who.Tenant] || who.Role != sandbox.RoleDeveloper {
			t.Errorf("%s is %+v, %v", user, who, err)
		}
		tenants[who.Tenant] = true
	}
	for name, a := range map[string]answer{
		"no scope":      mint(f.key("acme", sandbox.RoleAdmin, sandbox.ScopeRead), `{"user_id":"a","role":"user"}`),
		"not an admin":  mint(f.key("acme", sandbox.RoleDeveloper), `{"user_id":"a","role":"user"}`),
		"only a token":  f.doAs(f.mint("a"), "POST", "/api/v1/auth/token", `{"user_id":"a","role":"user"}`),
		"no credential": f.with("POST", "/api/v1/auth/token", `{"user_id":"a","role":"user"}`),
	} {
		if a.status != 403 {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	if a := mint(sandbox.NewKeySecret(), `{"user_id":"a","role":"user"}`); a.status != 401 {
		t.Errorf("an unknown key: %d %s", a.status, a.body)
	}
	_, brief, err := f.keys.Create(t.Context(), sandbox.Identity{Tenant: "acme", Role: sandbox.RoleAdmin}, keys.Request{Name: "k", Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var token struct {
		ExpiresIn int `json:"expires_in"`
	}
	if mint(brief, `{"user_id":"a","role":"user"}`).into(t, 200, &token); token.ExpiresIn > 3600 || token.ExpiresIn < 3000 {
		t.Errorf("a token lives for %d seconds, its key for an hour", token.ExpiresIn)
	}
}

func TestRateLimits(t *testing.T) {
	rules := ratelimit.Rules{ratelimit.Read: {PerSecond: 0.001, Burst: 3}, ratelimit.Token: {PerSecond: 0.001, Burst: 5}}
	f := newFixture(t, func(c *gateway.Config) { c.Limits = rules })
	key := f.key("t", sandbox.RoleDeveloper)
	list := func() answer { return f.with("GET", "/api/v1/sessions", "", "X-API-Key", key) }
	for left := 2; left >= 0; left-- {
		a := list()
		want := `"read";r=` + string(rune('0'+left)) + ";t="
		if a.status != 200 || a.header.Get("RateLimit-Policy") != `"read";q=3;w=3000` || !strings.HasPrefix(a.header.Get("RateLimit"), want) {
			t.Errorf("%d left: %d, %v", left, a.status, a.header)
		}
	}
	a := list()
	var e struct {
		Error struct {
			Code  string
			After int `json:"retry_after_seconds"`
		}
	}
	a.into(t, 429, &e)
	if e.Error.Code != "exhausted" || e.Error.After < 1 || a.header.Get("Retry-After") == "" || !strings.HasPrefix(a.header.Get("RateLimit"), `"read";r=0;t=`) {
		t.Errorf("%s %v", a.body, a.header)
	}
	if a := f.with("POST", "/api/v1/sandbox/acquire", "", "X-API-Key", key); a.status != 200 || a.header.Get("RateLimit") != "" {
		t.Errorf("a kind without a limit: %d %v", a.status, a.header)
	}
	if a := f.with("GET", "/api/v1/sessions", "", "X-API-Key", f.key("t", sandbox.RoleDeveloper)); a.status != 200 {
		t.Errorf("another key of the tenant: %d %s", a.status, a.body)
	}
	if a := f.do("GET", "/health", ""); a.status != 200 || a.header.Get("RateLimit") != "" {
		t.Errorf("health: %d %v", a.status, a.header)
	}
	statuses := map[int]int{}
	for range 7 {
		statuses[f.with("GET", "/api/v1/sessions", "", "X-API-Key", sandbox.NewKeySecret()).status]++
	}
	if statuses[401] != 5 || statuses[429] != 2 {
		t.Errorf("credentials that are not valid: %v", statuses)
	}
	if a := f.do("GET", "/api/v1/sessions", ""); a.status != 200 {
		t.Errorf("a valid one from the same address: %d %s", a.status, a.body)
	}
}

// A token that was signed here is known as ours also where it is not accepted.
func TestSigned(t *testing.T) {
	at := time.Now()
	tokens, err := gateway.NewTokens([]byte(strings.Repeat("s", 32)), func() time.Time { return at })
	if err != nil {
		t.Fatal(err)
	}
	others, err := gateway.NewTokens([]byte(strings.Repeat("o", 32)), nil)
	if err != nil {
		t.Fatal(err)
	}
	token, _, err := tokens.Mint(sandbox.Identity{Tenant: "t", Role: sandbox.RoleDeveloper}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(alphabet, token[len(token)-1])
	loose := token[:len(token)-1] + alphabet[last^1:last^1+1] // the same bytes
	for _, when := range []time.Duration{-48 * time.Hour, 0, 48 * time.Hour} {
		at = time.Now().Add(when)
		if !tokens.Signed(token) || !tokens.Signed(loose) || others.Signed(token) {
			t.Errorf("%v: %t, %t, another installation %t", when, tokens.Signed(token), tokens.Signed(loose), others.Signed(token))
		}
		if _, err := tokens.Check(token); (err == nil) != (when == 0) {
			t.Errorf("%v: checked %v", when, err)
		}
		if _, err := tokens.Check(loose); err == nil {
			t.Errorf("%v: a loose one is accepted", when)
		}
	}
	for _, text := range []string{"", ".", "a.b", "a.b.c", token + "A", token[:len(token)-4], "x" + token} {
		if tokens.Signed(text) {
			t.Errorf("%q is signed", text)
		}
	}
}

const idempotent = "Idempotency-Key"

func TestIdempotency(t *testing.T) {
	f := newFixture(t)
	ask := func(path, body, key string) answer {
		return f.with("POST", path, body, "Authorization", "Bearer "+f.token, idempotent, key)
	}
	for path, status := range map[string]int{"/api/v1/sessions": 201, "/api/v1/sandbox/acquire": 200} {
		before := f.sandboxes.live()
		first, again := ask(path, `{"timeout_seconds":60}`, "a"+path), ask(path, `{"timeout_seconds":60}`, "a"+path)
		if first.status != status || again.status != status || !bytes.Equal(first.body, again.body) {
			t.Errorf("%s: %d %s, then %d %s", path, first.status, first.body, again.status, again.body)
		}
		if first.header.Get("Idempotent-Replayed") != "" || again.header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("%s: %v, then %v", path, first.header, again.header)
		}
		if got := f.sandboxes.live() - before; got != 1 {
			t.Errorf("%s: %d sandboxes", path, got)
		}
		if a := ask(path, `{"timeout_seconds":61}`, "a"+path); a.status != 409 || !bytes.Contains(a.body, []byte("another request")) {
			t.Errorf("another body: %d %s", a.status, a.body)
		}
	}
	for _, key := range []string{"", "a b", strings.Repeat("k", 256), "é"} {
		if a := ask("/api/v1/sessions", "", key); a.status != 400 || !bytes.Contains(a.body, []byte(idempotent)) {
			t.Errorf("%.10q: %d %s", key, a.status, a.body)
		}
	}
	if a := ask("/api/v1/sessions", `{"timeout_seconds":-1}`, "failed"); a.status != 400 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := ask("/api/v1/sessions", `{}`, "failed"); a.status != 201 {
		t.Errorf("after a failure: %d %s", a.status, a.body)
	}
	other := f.with("POST", "/api/v1/sessions", `{"timeout_seconds":60}`, "Authorization", "Bearer "+f.mint("other"), idempotent, "a/api/v1/sessions")
	if other.status != 201 || other.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("another tenant: %d %s", other.status, other.body)
	}
}

// A repeat shows everything of a key but its secret, which is kept nowhere.
func TestIdempotencyKeepsNoSecret(t *testing.T) {
	f := newFixture(t)
	ask := func() answer {
		return f.with("POST", "/api/v1/keys", `{"name":"a"}`, "Authorization", "Bearer "+f.token, idempotent, "k")
	}
	var first, again keyView
	ask().into(t, 201, &first)
	ask().into(t, 201, &again)
	if first.Secret == "" || again.Secret != "" || again.ID != first.ID || again.Hint != first.Hint {
		t.Errorf("%+v, then %+v", first, again)
	}
	if all, err := f.keys.List(t.Context(), "dev:test"); err != nil || len(all) != 1 {
		t.Errorf("%d keys, %v", len(all), err)
	}
	rotate := func(into *keyView) {
		f.with("POST", "/api/v1/keys/"+first.ID+"/rotate", "", "Authorization", "Bearer "+f.token, idempotent, "r").into(t, 200, into)
	}
	var second, repeated keyView
	rotate(&second)
	rotate(&repeated)
	if second.Secret == "" || repeated.Secret != "" || repeated.Hint != second.Hint {
		t.Errorf("%+v, then %+v", second, repeated)
	}
}

// What another process began and never told the end of is taken over: the
// Sandbox that it made is the answer.
func TestIdempotencyTakeover(t *testing.T) {
	for _, state := range []sandbox.State{"", sandbox.Starting, sandbox.Running, sandbox.Ended} {
		t.Run(string(state), func(t *testing.T) {
			spy := new(onceSpy)
			f := newFixture(t, func(c *gateway.Config) { spy.OnceStore, c.Store = c.Store, spy })
			ask := func() answer {
				return f.with("POST", "/api/v1/sessions", `{}`, "Authorization", "Bearer "+f.token, idempotent, "k")
			}
			ask() // for the hash of the request, which is the gateway's to know
			o := spy.last()
			o.Holder, o.Resource, o.Tenant = "a process that died", sandbox.NewSandboxID(), "dev:other"
			if _, began, err := spy.OnceStore.BeginOnce(t.Context(), o, time.Time{}); err != nil || !began {
				t.Fatal(began, err)
			}
			if state != "" {
				f.sandboxes.put(o.Resource, o.Tenant, state)
			}
			f.token = f.mint("other")
			var v view
			switch a := ask(); state {
			case "", sandbox.Running:
				if a.into(t, 201, &v); v.SandboxID != o.Resource {
					t.Errorf("made %s, want %s", v.SandboxID, o.Resource)
				}
			case sandbox.Ended: // its creation failed: there is another
				if a.into(t, 201, &v); v.SandboxID == o.Resource {
					t.Error("the answer is the failed one")
				}
			case sandbox.Starting:
				if a.status != 409 || a.header.Get("Retry-After") != "1" {
					t.Fatalf("%d %s", a.status, a.body)
				}
				f.sandboxes.put(o.Resource, o.Tenant, sandbox.Running)
				if ask().into(t, 201, &v); v.SandboxID != o.Resource {
					t.Errorf("made %s, want %s", v.SandboxID, o.Resource)
				}
			}
			if a := ask(); a.status != 201 || a.header.Get("Idempotent-Replayed") != "true" {
				t.Errorf("after it: %d %s", a.status, a.body)
			}
		})
	}
}

// panicking panics at the first Create.
type panicking struct {
	sandbox.Lifecycle
	once sync.Once
}

func (p *panicking) Create(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest) (sandbox.Sandbox, error) {
	p.once.Do(func() { panic("boom") })
	return p.Lifecycle.Create(ctx, tenant, req)
}

// A request whose handler panics leaves its key to the repeat.
func TestIdempotencyAfterAPanic(t *testing.T) {
	for _, path := range []string{"/api/v1/sessions", createCall} {
		f := newFixture(t, func(c *gateway.Config) { c.Lifecycle = &panicking{Lifecycle: c.Lifecycle} })
		ask := func() answer {
			return f.plain("POST", path, `{}`, "Authorization", "Bearer "+f.token, "Content-Type", "application/json", idempotent, "k")
		}
		if a := ask(); a.status != 500 {
			t.Errorf("%s: the panic answers %d %s", path, a.status, a.body)
		}
		if a := ask(); a.status >= 300 || f.sandboxes.live() != 1 {
			t.Errorf("%s: the repeat answers %d %s, with %d sandboxes", path, a.status, a.body, f.sandboxes.live())
		}
	}
}

// onceSpy remembers what was begun last, and the answers that were stored.
type onceSpy struct {
	sandbox.OnceStore
	mu       sync.Mutex
	begun    sandbox.Once
	finished [][]byte
}

func (s *onceSpy) FinishOnce(ctx context.Context, o sandbox.Once) error {
	s.mu.Lock()
	s.finished = append(s.finished, o.Answer)
	s.mu.Unlock()
	return s.OnceStore.FinishOnce(ctx, o)
}

func (s *onceSpy) answers() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.finished
}

func (s *onceSpy) BeginOnce(ctx context.Context, o sandbox.Once, expired time.Time) (sandbox.Once, bool, error) {
	s.mu.Lock()
	s.begun = o
	s.mu.Unlock()
	return s.OnceStore.BeginOnce(ctx, o, expired)
}

func (s *onceSpy) last() sandbox.Once {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun
}

// put has a record be there, as another process left it.
func (f *sandboxes) put(id string, tenant sandbox.TenantID, state sandbox.State) {
	f.t.Helper()
	ctx, now := f.t.Context(), time.Now().UTC()
	s, err := f.core.Store.SandboxByID(ctx, id)
	if errors.Is(err, sandbox.NotFound) {
		s, err = f.core.Store.InsertSandbox(ctx, sandbox.Sandbox{
			ID: id, Tenant: tenant, State: sandbox.Starting, Template: "base", Engine: "fake", Shape: sandbox.DefaultShape(),
			Network: sandbox.NetworkPublic, CreatedAt: now, Deadline: now.Add(time.Hour), Timeout: time.Hour, OnTimeout: sandbox.OnTimeoutEnd,
			Boot: sandbox.Boot{ID: sandbox.NewBootID(), Number: 1, Node: core.NodeName},
		})
	}
	if s.State = state; state != sandbox.Starting && err == nil {
		if state == sandbox.Ended {
			s.Ended = &sandbox.Certificate{Cause: sandbox.CauseEngineLost, At: now}
		} else {
			s.StartedAt = now
		}
		_, err = f.core.Store.UpdateSandbox(ctx, s)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}
