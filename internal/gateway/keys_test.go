package gateway_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/keys"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

func TestKeyAttacks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	good := f.Key("t", sandbox.RoleDeveloper)
	for name, headers := range map[string][]string{
		"unknown":            {"X-API-Key", sandbox.NewKeySecret()},
		"empty":              {"X-API-Key", ""},
		"cut":                {"X-API-Key", good[:43]},
		"longer":             {"X-API-Key", good + "0"},
		"a newline":          {"Authorization", "Bearer " + good + "%0a"},
		"upper case":         {"X-API-Key", strings.ToUpper(good)},
		"huge":               {"X-API-Key", strings.Repeat("e2b_", 10_000)},
		"a token":            {"X-API-Key", f.Token},
		"twice":              {"X-API-Key", good, "X-API-Key", good},
		"beside a token":     {"X-API-Key", good, "Authorization", "Bearer " + f.Token},
		"basic":              {"Authorization", "Basic " + good},
		"not as a parameter": {"Authorization", ""},
	} {
		a := f.With("POST", "/api/v1/sandbox/acquire", "{}", headers...)
		if a.Status != 401 || a.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: %d %s", name, a.Status, a.Body)
		}
	}
	if f.Sandboxes.Live() != 0 {
		t.Error("a sandbox was acquired")
	}
}

func TestKeyRefusals(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	reader := f.Key("t", sandbox.RoleDeveloper, sandbox.ScopeRead, sandbox.ScopeKeys)
	for _, tt := range []struct {
		body   string
		status int
		says   string
	}{
		{`{}`, 400, "name"},
		{`{"name":""}`, 400, "name"},
		{`{"name":"` + strings.Repeat("n", 101) + `"}`, 400, "100"},
		{`{"name":"a\u0000"}`, 400, "printable"},
		{`{"name":"a","scopes":["all"]}`, 400, "no scope"},
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
		a := f.With("POST", "/api/v1/keys", tt.body, "X-API-Key", reader)
		if a.Status != tt.status || !bytes.Contains(a.Body, []byte(tt.says)) {
			t.Errorf("%.60s = %d %s, want %d and %q", tt.body, a.Status, a.Body, tt.status, tt.says)
		}
	}
	if all, err := f.Keys.List(t.Context(), "t"); err != nil || len(all) != 1 {
		t.Errorf("there are %d keys, %v", len(all), err)
	}
}

// A client with an API key that may mint tokens vouches for its users. Each is a Tenant
// of its own below the key's.
func TestTokensOfKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *gateway.Config) { c.Dev = false })
	admin := f.Key("acme", sandbox.RoleAdmin)
	mint := func(key, body string) gatewaytest.Answer {
		return f.With("POST", "/api/v1/auth/token", body, "X-API-Key", key)
	}
	tenants := map[sandbox.TenantID]bool{}
	for _, user := range []string{"alice", "bob", "alice/bob", "alice%2Fbob"} {
		var token struct {
			AccessToken string `json:"access_token"`
		}
		mint(admin, `{"user_id":"`+user+`","role":"user"}`).Into(t, 200, &token)
		who, err := f.Tokens.Check(token.AccessToken)
		if err != nil || !strings.HasPrefix(string(who.Tenant), "acme/") || tenants[who.Tenant] || who.Role != sandbox.RoleDeveloper {
			t.Errorf("%s is %+v, %v", user, who, err)
		}
		tenants[who.Tenant] = true
	}
	for name, a := range map[string]gatewaytest.Answer{
		"no scope":      mint(f.Key("acme", sandbox.RoleAdmin, sandbox.ScopeRead), `{"user_id":"a","role":"user"}`),
		"not an admin":  mint(f.Key("acme", sandbox.RoleDeveloper), `{"user_id":"a","role":"user"}`),
		"only a token":  f.DoAs(f.Mint("a"), "POST", "/api/v1/auth/token", `{"user_id":"a","role":"user"}`),
		"no credential": f.With("POST", "/api/v1/auth/token", `{"user_id":"a","role":"user"}`),
	} {
		if a.Status != 403 {
			t.Errorf("%s: %d %s", name, a.Status, a.Body)
		}
	}
	if a := mint(sandbox.NewKeySecret(), `{"user_id":"a","role":"user"}`); a.Status != 401 {
		t.Errorf("an unknown key: %d %s", a.Status, a.Body)
	}
	_, brief, err := f.Keys.Create(t.Context(), sandbox.Identity{Tenant: "acme", Role: sandbox.RoleAdmin}, keys.Request{Name: "k", Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var token struct {
		ExpiresIn int `json:"expires_in"`
	}
	if mint(brief, `{"user_id":"a","role":"user"}`).Into(t, 200, &token); token.ExpiresIn > 3600 || token.ExpiresIn < 3000 {
		t.Errorf("a token lives for %d seconds, its key for an hour", token.ExpiresIn)
	}
}

func TestRateLimits(t *testing.T) {
	t.Parallel()
	rules := ratelimit.Rules{ratelimit.Read: {PerSecond: 0.001, Burst: 3}, ratelimit.Token: {PerSecond: 0.001, Burst: 5}}
	f := newFixture(t, func(c *gateway.Config) { c.Limits = rules })
	key := f.Key("t", sandbox.RoleDeveloper)
	list := func() gatewaytest.Answer { return f.With("GET", "/api/v1/sessions", "", "X-API-Key", key) }
	for left := 2; left >= 0; left-- {
		a := list()
		want := `"read";r=` + string(rune('0'+left)) + ";t="
		if a.Status != 200 || a.Header.Get("RateLimit-Policy") != `"read";q=3;w=3000` || !strings.HasPrefix(a.Header.Get("RateLimit"), want) {
			t.Errorf("%d left: %d, %v", left, a.Status, a.Header)
		}
	}
	a := list()
	var e struct {
		Error struct {
			Code  string
			After int `json:"retry_after_seconds"`
		}
	}
	a.Into(t, 429, &e)
	if e.Error.Code != "exhausted" || e.Error.After < 1 || a.Header.Get("Retry-After") == "" || !strings.HasPrefix(a.Header.Get("RateLimit"), `"read";r=0;t=`) {
		t.Errorf("%s %v", a.Body, a.Header)
	}
	if a := f.With("POST", "/api/v1/sandbox/acquire", "", "X-API-Key", key); a.Status != 200 || a.Header.Get("RateLimit") != "" {
		t.Errorf("a kind without a limit: %d %v", a.Status, a.Header)
	}
	if a := f.With("GET", "/api/v1/sessions", "", "X-API-Key", f.Key("t", sandbox.RoleDeveloper)); a.Status != 200 {
		t.Errorf("another key of the tenant: %d %s", a.Status, a.Body)
	}
	if a := f.Do("GET", "/health", ""); a.Status != 200 || a.Header.Get("RateLimit") != "" {
		t.Errorf("health: %d %v", a.Status, a.Header)
	}
	statuses := map[int]int{}
	for range 7 {
		statuses[f.With("GET", "/api/v1/sessions", "", "X-API-Key", sandbox.NewKeySecret()).Status]++
	}
	if statuses[401] != 5 || statuses[429] != 2 {
		t.Errorf("credentials that are not valid: %v", statuses)
	}
	if a := f.Do("GET", "/api/v1/sessions", ""); a.Status != 200 {
		t.Errorf("a valid one from the same address: %d %s", a.Status, a.Body)
	}
}

// Gateways with one Limiter admit together what it admits.
func TestSharedRateLimits(t *testing.T) {
	t.Parallel()
	shared := ratelimit.New(ratelimit.Rules{ratelimit.Read: {PerSecond: 0.001, Burst: 3}})
	share := func(c *gateway.Config) {
		c.Limiter = shared
		c.Limits = ratelimit.Rules{ratelimit.Read: {PerSecond: 1, Burst: 1}} // does not apply
	}
	f, g := newFixture(t, share), newFixture(t, share)
	statuses := map[int]int{}
	for range 3 {
		statuses[f.Do("GET", "/api/v1/sessions", "").Status]++
		statuses[g.Do("GET", "/api/v1/sessions", "").Status]++
	}
	if statuses[200] != 3 || statuses[429] != 3 {
		t.Errorf("the answers of two gateways: %v", statuses)
	}
}

// A token that was signed here is known as ours also where it is not accepted.
func TestSigned(t *testing.T) {
	t.Parallel()
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

func TestIdempotency(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ask := func(path, body, key string) gatewaytest.Answer {
		return f.With("POST", path, body, "Authorization", "Bearer "+f.Token, gatewaytest.Idempotent, key)
	}
	for path, status := range map[string]int{"/api/v1/sessions": 201, "/api/v1/sandbox/acquire": 200} {
		before := f.Sandboxes.Live()
		first, again := ask(path, `{"timeout_seconds":60}`, "a"+path), ask(path, `{"timeout_seconds":60}`, "a"+path)
		if first.Status != status || again.Status != status || !bytes.Equal(first.Body, again.Body) {
			t.Errorf("%s: %d %s, then %d %s", path, first.Status, first.Body, again.Status, again.Body)
		}
		if first.Header.Get("Idempotent-Replayed") != "" || again.Header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("%s: %v, then %v", path, first.Header, again.Header)
		}
		if got := f.Sandboxes.Live() - before; got != 1 {
			t.Errorf("%s: %d sandboxes", path, got)
		}
		if a := ask(path, `{"timeout_seconds":61}`, "a"+path); a.Status != 409 || !bytes.Contains(a.Body, []byte("another request")) {
			t.Errorf("another body: %d %s", a.Status, a.Body)
		}
	}
	for _, key := range []string{"", "a b", strings.Repeat("k", 256), "é"} {
		if a := ask("/api/v1/sessions", "", key); a.Status != 400 || !bytes.Contains(a.Body, []byte(gatewaytest.Idempotent)) {
			t.Errorf("%.10q: %d %s", key, a.Status, a.Body)
		}
	}
	if a := ask("/api/v1/sessions", `{"timeout_seconds":-1}`, "failed"); a.Status != 400 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if a := ask("/api/v1/sessions", `{}`, "failed"); a.Status != 201 {
		t.Errorf("after a failure: %d %s", a.Status, a.Body)
	}
	other := f.With("POST", "/api/v1/sessions", `{"timeout_seconds":60}`, "Authorization", "Bearer "+f.Mint("other"), gatewaytest.Idempotent, "a/api/v1/sessions")
	if other.Status != 201 || other.Header.Get("Idempotent-Replayed") != "" {
		t.Errorf("another tenant: %d %s", other.Status, other.Body)
	}
}

// A repeat shows everything of a key but its secret, which is kept nowhere.
func TestIdempotencyKeepsNoSecret(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ask := func() gatewaytest.Answer {
		return f.With("POST", "/api/v1/keys", `{"name":"a"}`, "Authorization", "Bearer "+f.Token, gatewaytest.Idempotent, "k")
	}
	var first, again gatewaytest.KeyView
	ask().Into(t, 201, &first)
	ask().Into(t, 201, &again)
	if first.Secret == "" || again.Secret != "" || again.ID != first.ID || again.Hint != first.Hint {
		t.Errorf("%+v, then %+v", first, again)
	}
	if all, err := f.Keys.List(t.Context(), "dev:test"); err != nil || len(all) != 1 {
		t.Errorf("%d keys, %v", len(all), err)
	}
	rotate := func(into *gatewaytest.KeyView) {
		f.With("POST", "/api/v1/keys/"+first.ID+"/rotate", "", "Authorization", "Bearer "+f.Token, gatewaytest.Idempotent, "r").Into(t, 200, into)
	}
	var second, repeated gatewaytest.KeyView
	rotate(&second)
	rotate(&repeated)
	if second.Secret == "" || repeated.Secret != "" || repeated.Hint != second.Hint {
		t.Errorf("%+v, then %+v", second, repeated)
	}
}

// A repeat takes over a request that another process began and did not finish. The
// Sandbox that the process made is the answer.
func TestIdempotencyTakeover(t *testing.T) {
	t.Parallel()
	for _, state := range []sandbox.State{"", sandbox.Starting, sandbox.Running, sandbox.Ended} {
		t.Run(string(state), func(t *testing.T) {
			spy := new(gatewaytest.OnceSpy)
			f := newFixture(t, func(c *gateway.Config) { spy.IdempotencyStore, c.Store = c.Store, spy })
			ask := func() gatewaytest.Answer {
				return f.With("POST", "/api/v1/sessions", `{}`, "Authorization", "Bearer "+f.Token, gatewaytest.Idempotent, "k")
			}
			ask() // for the hash of the request, which is the gateway's to know
			o := spy.Last()
			o.Holder, o.Resource, o.Tenant = "a process that died", sandbox.NewSandboxID(), "dev:other"
			if _, began, err := spy.IdempotencyStore.BeginIdempotent(t.Context(), o, time.Time{}); err != nil || !began {
				t.Fatal(began, err)
			}
			if state != "" {
				f.Sandboxes.Put(o.Resource, o.Tenant, state)
			}
			f.Token = f.Mint("other")
			var v gatewaytest.View
			switch a := ask(); state {
			case "", sandbox.Running:
				if a.Into(t, 201, &v); v.SandboxID != o.Resource {
					t.Errorf("made %s, want %s", v.SandboxID, o.Resource)
				}
			case sandbox.Ended: // its creation failed: there is another
				if a.Into(t, 201, &v); v.SandboxID == o.Resource {
					t.Error("the answer is the failed one")
				}
			case sandbox.Starting:
				if a.Status != 409 || a.Header.Get("Retry-After") != "1" {
					t.Fatalf("%d %s", a.Status, a.Body)
				}
				f.Sandboxes.Put(o.Resource, o.Tenant, sandbox.Running)
				if ask().Into(t, 201, &v); v.SandboxID != o.Resource {
					t.Errorf("made %s, want %s", v.SandboxID, o.Resource)
				}
			}
			if a := ask(); a.Status != 201 || a.Header.Get("Idempotent-Replayed") != "true" {
				t.Errorf("after it: %d %s", a.Status, a.Body)
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
	t.Parallel()
	for _, path := range []string{"/api/v1/sessions", createCall} {
		f := newFixture(t, func(c *gateway.Config) { c.Lifecycle = &panicking{Lifecycle: c.Lifecycle} })
		ask := func() gatewaytest.Answer {
			return f.Plain("POST", path, `{}`, "Authorization", "Bearer "+f.Token, "Content-Type", "application/json", gatewaytest.Idempotent, "k")
		}
		if a := ask(); a.Status != 500 {
			t.Errorf("%s: the panic answers %d %s", path, a.Status, a.Body)
		}
		if a := ask(); a.Status >= 300 || f.Sandboxes.Live() != 1 {
			t.Errorf("%s: the repeat answers %d %s, with %d sandboxes", path, a.Status, a.Body, f.Sandboxes.Live())
		}
	}
}
