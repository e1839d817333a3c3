package oidc

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// provider is an identity provider: HTTPS, discovery, and keys that rotate.
type provider struct {
	*httptest.Server
	mu     sync.Mutex
	keys   []jose.JSONWebKey
	calls  int        // for keys
	broken int        // HTTP status of every answer; 0: it works
	name   string     // the issuer that it claims; empty: its URL
	body   func() any // returns the body of the key set; nil: built from keys
}

func newProvider(t *testing.T) *provider {
	p := &provider{}
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v func() any) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.broken != 0 {
			w.WriteHeader(p.broken)
			return
		}
		_ = json.NewEncoder(w).Encode(v())
	}
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, func() any {
			name := p.name
			if name == "" {
				name = p.URL
			}
			return map[string]any{"issuer": name, "jwks_uri": p.URL + "/keys"}
		})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, func() any {
			p.calls++
			if p.body != nil {
				return p.body()
			}
			return jose.JSONWebKeySet{Keys: p.keys}
		})
	})
	p.Server = httptest.NewTLSServer(mux)
	t.Cleanup(p.Close)
	return p
}

// set changes the provider while it serves.
func (p *provider) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// publishes replaces the provider's keys.
func (p *provider) publishes(keys map[string]any) {
	p.set(func() {
		p.keys = nil
		for kid, k := range keys {
			p.keys = append(p.keys, jose.JSONWebKey{Key: k, KeyID: kid, Use: "sig"})
		}
	})
}

func rsaKey(t *testing.T) *rsa.PrivateKey {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// sign makes a token; header may be changed.
func sign(t *testing.T, method jwt.SigningMethod, key any, header, claims map[string]any) string {
	t.Helper()
	token := jwt.NewWithClaims(method, jwt.MapClaims(claims))
	maps.Copy(token.Header, header)
	text, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// clock is a time that a test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// world is a provider with one key, and Issuers that trust it.
type world struct {
	t       *testing.T
	p       *provider
	key     *rsa.PrivateKey
	clock   *clock
	issuers *Issuers
}

func newWorld(t *testing.T, change ...func(*Issuer)) *world {
	w := &world{t: t, p: newProvider(t), key: rsaKey(t), clock: &clock{now: time.Now()}}
	w.p.publishes(map[string]any{"k1": w.key.Public()})
	is := Issuer{
		Name: "corp", URL: w.p.URL, Audience: "cloud-sandbox", TenantClaim: "org",
		RoleClaim: "groups", Roles: map[string]sandbox.Role{"eng": sandbox.RoleDeveloper, "ops": sandbox.RoleAdmin},
	}
	for _, ch := range change {
		ch(&is)
	}
	if err := is.check(); err != nil {
		t.Fatal(err)
	}
	w.issuers = New([]Issuer{is}, WithClient(w.p.Client()), WithClock(w.clock.Now))
	return w
}

func (w *world) claims(change map[string]any) map[string]any {
	c := map[string]any{
		"iss": w.p.URL, "aud": "cloud-sandbox", "sub": "alice", "org": "acme", "groups": []string{"eng", "hikers"},
		"iat": w.clock.Now().Unix(), "exp": w.clock.Now().Add(time.Hour).Unix(),
	}
	for k, v := range change {
		if c[k] = v; v == nil {
			delete(c, k)
		}
	}
	return c
}

func (w *world) token(change map[string]any) string {
	return sign(w.t, jwt.SigningMethodRS256, w.key, map[string]any{"kid": "k1"}, w.claims(change))
}

func TestTokens(t *testing.T) {
	w := newWorld(t)
	for name, tt := range map[string]struct {
		claims map[string]any
		want   sandbox.Identity
		code   sandbox.Code
	}{
		"a developer":        {nil, sandbox.Identity{Tenant: "corp:acme", User: "corp:alice", Role: sandbox.RoleDeveloper}, ""},
		"the highest role":   {map[string]any{"groups": []string{"ops", "eng"}}, sandbox.Identity{Tenant: "corp:acme", User: "corp:alice", Role: sandbox.RoleAdmin}, ""},
		"one group":          {map[string]any{"groups": "ops"}, sandbox.Identity{Tenant: "corp:acme", User: "corp:alice", Role: sandbox.RoleAdmin}, ""},
		"several audiences":  {map[string]any{"aud": []string{"other", "cloud-sandbox"}}, sandbox.Identity{Tenant: "corp:acme", User: "corp:alice", Role: sandbox.RoleDeveloper}, ""},
		"no role":            {map[string]any{"groups": []string{"hikers"}}, sandbox.Identity{Tenant: "corp:acme", User: "corp:alice"}, ""},
		"a role of ours":     {map[string]any{"groups": []string{"operator", "admin"}}, sandbox.Identity{Tenant: "corp:acme", User: "corp:alice"}, ""},
		"roles of numbers":   {map[string]any{"groups": []any{1, nil, map[string]any{}}}, sandbox.Identity{Tenant: "corp:acme", User: "corp:alice"}, ""},
		"no tenant":          {map[string]any{"org": nil}, sandbox.Identity{}, sandbox.Denied},
		"a tenant list":      {map[string]any{"org": []string{"acme"}}, sandbox.Identity{}, sandbox.Denied},
		"a tenant below":     {map[string]any{"org": "acme/bob"}, sandbox.Identity{}, sandbox.Denied},
		"an unprintable one": {map[string]any{"org": "acme\x00"}, sandbox.Identity{}, sandbox.Denied},
		"a long one":         {map[string]any{"org": strings.Repeat("a", 124)}, sandbox.Identity{}, sandbox.Denied},
	} {
		who, err := w.issuers.Check(t.Context(), w.token(tt.claims))
		if code := sandbox.CodeOf(err); who.Tenant != tt.want.Tenant || who.User != tt.want.User || who.Person != tt.want.User || who.Role != tt.want.Role || (tt.code != "" || err != nil) && code != tt.code {
			t.Errorf("%s: %+v, %v", name, who, err)
		}
	}
	if w.p.calls != 1 {
		t.Errorf("the keys were asked for %d times", w.p.calls)
	}
}

// The profile has the token's name and email, if they are valid and not marked as
// unverified.
func TestProfiles(t *testing.T) {
	w := newWorld(t)
	for name, tt := range map[string]struct {
		claims      map[string]any
		name, email string
	}{
		"nothing":        {nil, "", ""},
		"both":           {map[string]any{"name": "Alice", "email": "alice@example.com"}, "Alice", "alice@example.com"},
		"verified":       {map[string]any{"email": "alice@example.com", "email_verified": true}, "", "alice@example.com"},
		"not verified":   {map[string]any{"email": "alice@example.com", "email_verified": false}, "", ""},
		"no texts":       {map[string]any{"name": 1, "email": []string{"a@b"}}, "", ""},
		"invalid values": {map[string]any{"name": "\x1b[31m", "email": "not one"}, "", ""},
	} {
		who, err := w.issuers.Check(t.Context(), w.token(tt.claims))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if want := (sandbox.Profile{Source: sandbox.UserByIssuer, Issuer: "corp", Name: tt.name, Email: tt.email}); *who.Profile != want {
			t.Errorf("%s: %+v, want %+v", name, *who.Profile, want)
		}
	}
}

func TestOurs(t *testing.T) {
	w := newWorld(t)
	for name, tt := range map[string]struct {
		token string
		want  bool
	}{
		"for us":              {w.token(nil), true},
		"for us and another":  {w.token(map[string]any{"aud": []string{"other", "cloud-sandbox"}}), true},
		"expired":             {w.token(map[string]any{"exp": 1}), true},
		"for another":         {w.token(map[string]any{"aud": "other"}), false},
		"without an audience": {w.token(map[string]any{"aud": nil}), false},
		"for a number":        {w.token(map[string]any{"aud": 1}), false},
		"of another issuer":   {w.token(map[string]any{"iss": "https://other.example"}), false},
		"no token":            {"a.b.c", false},
		"nothing":             {"", false},
	} {
		if got := w.issuers.MayBeValid(tt.token); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if (*Issuers)(nil).MayBeValid(w.token(nil)) {
		t.Error("nil Issuers accept a token")
	}
}

func TestMappings(t *testing.T) {
	fixed := newWorld(t, func(is *Issuer) {
		is.Tenant, is.TenantClaim, is.Role, is.RoleClaim, is.Roles = "acme", "", sandbox.RoleViewer, "", nil
	})
	if who, err := fixed.issuers.Check(t.Context(), fixed.token(map[string]any{"org": "other"})); err != nil || who.Tenant != "acme" || who.Role != sandbox.RoleViewer {
		t.Errorf("fixed: %+v, %v", who, err)
	}
	listed := newWorld(t, func(is *Issuer) { is.Tenants = map[string]sandbox.TenantID{"acme": "customer-1"} })
	if who, err := listed.issuers.Check(t.Context(), listed.token(nil)); err != nil || who.Tenant != "customer-1" {
		t.Errorf("listed: %+v, %v", who, err)
	}
	for _, org := range []any{"other", nil, ""} {
		if who, err := listed.issuers.Check(t.Context(), listed.token(map[string]any{"org": org})); !errors.Is(err, sandbox.Denied) {
			t.Errorf("%v is not listed: %+v, %v", org, who, err)
		}
	}
}

// Every forged token is rejected.
func TestForgedTokens(t *testing.T) {
	w := newWorld(t)
	if _, err := w.issuers.Check(t.Context(), w.token(nil)); err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(w.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	inPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	theirs := rsaKey(t)
	kid := func(v any) map[string]any { return map[string]any{"kid": v} }
	ok := w.token(nil)
	parts := strings.Split(ok, ".")
	admin, err := json.Marshal(w.claims(map[string]any{"groups": "ops"}))
	if err != nil {
		t.Fatal(err)
	}
	own, err := json.Marshal(jose.JSONWebKey{Key: theirs.Public(), KeyID: "k1"})
	if err != nil {
		t.Fatal(err)
	}
	embedded := map[string]any{"kid": "k1", "jwk": json.RawMessage(own)}
	for name, token := range map[string]string{
		"no signature":                    sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, kid("k1"), w.claims(nil)),
		"an empty signature":              parts[0] + "." + parts[1] + ".",
		"HS256 with the public key":       sign(t, jwt.SigningMethodHS256, inPEM, kid("k1"), w.claims(nil)),
		"HS256 with its bytes":            sign(t, jwt.SigningMethodHS256, public, kid("k1"), w.claims(nil)),
		"HS256 with its modulus":          sign(t, jwt.SigningMethodHS256, w.key.N.Bytes(), kid("k1"), w.claims(nil)),
		"another's key":                   sign(t, jwt.SigningMethodRS256, theirs, kid("k1"), w.claims(nil)),
		"another's key without kid":       sign(t, jwt.SigningMethodRS256, theirs, nil, w.claims(nil)),
		"another's key in the header":     sign(t, jwt.SigningMethodRS256, theirs, embedded, w.claims(nil)),
		"a URL of keys in the header":     sign(t, jwt.SigningMethodRS256, theirs, map[string]any{"kid": "k1", "jku": "https://evil.example/keys"}, w.claims(nil)),
		"a kid that is a path":            sign(t, jwt.SigningMethodRS256, theirs, kid("../../../../dev/null"), w.claims(nil)),
		"a kid that is a URL":             sign(t, jwt.SigningMethodRS256, theirs, kid("https://evil.example/keys"), w.claims(nil)),
		"a kid that is SQL":               sign(t, jwt.SigningMethodRS256, theirs, kid("x' UNION SELECT 'key"), w.claims(nil)),
		"a kid that is a number":          sign(t, jwt.SigningMethodRS256, theirs, kid(1), w.claims(nil)),
		"other claims":                    parts[0] + "." + base64.RawURLEncoding.EncodeToString(admin) + "." + parts[2],
		"another audience":                w.token(map[string]any{"aud": "other"}),
		"no audience":                     w.token(map[string]any{"aud": nil}),
		"an audience with ours as prefix": w.token(map[string]any{"aud": "cloud-sandbox-2"}),
		"another issuer":                  w.token(map[string]any{"iss": "https://evil.example"}),
		"an issuer with ours as prefix":   w.token(map[string]any{"iss": w.p.URL + "/"}),
		"no issuer":                       w.token(map[string]any{"iss": nil}),
		"an expired one":                  w.token(map[string]any{"exp": w.clock.Now().Add(-time.Second).Unix()}),
		"one that does not expire":        w.token(map[string]any{"exp": nil}),
		"one that expires at 0":           w.token(map[string]any{"exp": 0}),
		"an end that is text":             w.token(map[string]any{"exp": "never"}),
		"an end that is digits in text":   w.token(map[string]any{"exp": fmt.Sprint(w.clock.Now().Add(time.Hour).Unix())}),
		"an nbf that is digits in text":   w.token(map[string]any{"nbf": fmt.Sprint(w.clock.Now().Unix())}),
		"one that is not valid yet":       w.token(map[string]any{"nbf": w.clock.Now().Add(time.Hour).Unix()}),
		"no subject":                      w.token(map[string]any{"sub": nil}),
		"a subject of control characters": w.token(map[string]any{"sub": "alice\nroot"}),
		"a long subject":                  w.token(map[string]any{"sub": strings.Repeat("a", 129)}),
		"a huge one":                      w.token(map[string]any{"x": strings.Repeat("a", maxToken)}),
		"a critical header":               sign(t, jwt.SigningMethodRS256, w.key, map[string]any{"kid": "k1", "crit": []string{"x"}, "x": 1}, w.claims(nil)),
		"JSON":                            fmt.Sprintf(`{"payload":%q,"signatures":[{"protected":%q,"signature":%q}]}`, parts[1], parts[0], parts[2]),
		"four parts":                      ok + ".x",
		"padding":                         parts[0] + "=." + parts[1] + "." + parts[2],
		"nothing":                         "",
		"dots":                            "..",
	} {
		if who, err := w.issuers.Check(t.Context(), token); err == nil {
			t.Errorf("%s gets in as %+v", name, who)
		} else if errors.Is(err, sandbox.Denied) {
			t.Errorf("%s is recognized: %v", name, err)
		}
	}
	if _, err := w.issuers.Check(t.Context(), w.token(map[string]any{"exp": 1})); !errors.Is(err, sandbox.Anonymous) || !strings.Contains(err.Error(), "the token expired at 1970-01-01T00:00:01Z: log in again") {
		t.Errorf("an expired one: %v", err)
	}
	if w.p.calls > 2 {
		t.Errorf("the keys were asked for %d times", w.p.calls)
	}
	if _, err := w.issuers.Check(t.Context(), ok); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// A key of one issuer does not verify tokens of another.
func TestIssuersAreApart(t *testing.T) {
	a, b := newWorld(t), newWorld(t)
	trusts := func(p *provider, name string) Issuer {
		return Issuer{Name: name, URL: p.URL, Audience: "cloud-sandbox", TenantClaim: "org", Role: sandbox.RoleViewer}
	}
	both := New([]Issuer{trusts(a.p, "a"), trusts(b.p, "b")}, WithClient(a.p.Client()), WithClock(a.clock.Now))
	for _, w := range []*world{a, b} {
		if who, err := both.Check(t.Context(), w.token(nil)); err != nil || who.Tenant != sandbox.TenantID(map[*world]string{a: "a", b: "b"}[w]+":acme") {
			t.Errorf("%+v, %v", who, err)
		}
	}
	if who, err := both.Check(t.Context(), b.token(map[string]any{"iss": a.p.URL})); err == nil {
		t.Errorf("b signs for a: %+v", who)
	}
}

func TestRotation(t *testing.T) {
	w := newWorld(t)
	check := func(token string) error {
		_, err := w.issuers.Check(t.Context(), token)
		return err
	}
	old := w.token(nil)
	if err := check(old); err != nil {
		t.Fatal(err)
	}
	next, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	w.p.publishes(map[string]any{"k1": w.key.Public(), "k2": next.Public()})
	newer := sign(t, jwt.SigningMethodES256, next, map[string]any{"kid": "k2"}, w.claims(nil))
	if err := check(newer); err == nil {
		t.Error("the issuer is asked again at once")
	}
	w.clock.add(askEvery)
	if err := errors.Join(check(newer), check(old)); err != nil {
		t.Errorf("with overlap: %v", err)
	}
	w.p.publishes(map[string]any{"k2": next.Public()})
	w.clock.add(keysFresh + time.Second)
	if err := check(old); err == nil {
		t.Error("a withdrawn key is still trusted")
	}
	if err := check(newer); err != nil {
		t.Error(err)
	}
	// Cached keys stay valid for keysLife while the issuer is unreachable.
	w.p.set(func() { w.p.broken = 503 })
	w.clock.add(30 * time.Minute)
	if err := check(newer); err != nil {
		t.Errorf("the issuer is away: %v", err)
	}
	w.clock.add(keysLife)
	late := sign(t, jwt.SigningMethodES256, next, map[string]any{"kid": "k2"}, w.claims(nil))
	if err := check(late); err == nil {
		t.Error("keys are trusted for ever")
	}
	w.p.set(func() { w.p.broken = 0 })
	w.clock.add(askEvery)
	if err := check(late); err != nil {
		t.Errorf("the issuer is back: %v", err)
	}
}

// Concurrent tokens with unknown keys cause one request to the issuer.
func TestFlood(t *testing.T) {
	w := newWorld(t)
	theirs := rsaKey(t)
	var all sync.WaitGroup
	for i := range 50 {
		token := sign(t, jwt.SigningMethodRS256, theirs, map[string]any{"kid": fmt.Sprint(i)}, w.claims(nil))
		all.Go(func() {
			if _, err := w.issuers.Check(t.Context(), token); err == nil {
				t.Error("an unknown key gets in")
			}
		})
	}
	all.Wait()
	if w.p.calls != 1 {
		t.Errorf("the issuer was asked %d times", w.p.calls)
	}
}

func TestBadProviders(t *testing.T) {
	secret := jose.JSONWebKey{Key: []byte("0123456789abcdef0123456789abcdef"), KeyID: "k1", Algorithm: "HS256"}
	for name, spoil := range map[string]func(*world){
		"it is away":                func(w *world) { w.p.broken = 500 },
		"it claims another issuer":  func(w *world) { w.p.name = "https://evil.example" },
		"it has no keys":            func(w *world) { w.p.keys = nil },
		"its key is a secret":       func(w *world) { w.p.keys = []jose.JSONWebKey{secret} },
		"its key is private":        func(w *world) { w.p.keys = []jose.JSONWebKey{{Key: w.key, KeyID: "k1"}} },
		"its key is for encryption": func(w *world) { w.p.keys[0].Use = "enc" },
		"its keys are endless":      func(w *world) { w.p.body = func() any { return strings.Repeat("x", maxAnswer) } },
		"its keys are no keys":      func(w *world) { w.p.body = func() any { return []int{1} } },
	} {
		w := newWorld(t)
		w.p.set(func() { spoil(w) })
		if who, err := w.issuers.Check(t.Context(), w.token(nil)); err == nil {
			t.Errorf("%s: %+v", name, who)
		}
		forged := sign(t, jwt.SigningMethodHS256, secret.Key, map[string]any{"kid": "k1"}, w.claims(nil))
		if who, err := w.issuers.Check(t.Context(), forged); err == nil {
			t.Errorf("%s, with a secret: %+v", name, who)
		}
	}
}

func TestParse(t *testing.T) {
	const good = `{"name":"corp","issuer":"https://login.example.com","audience":"a","tenant":"acme","role":"viewer"}`
	all, err := Parse("[" + good + "]")
	if err != nil || len(all) != 1 || all[0].Role != sandbox.RoleViewer {
		t.Errorf("%+v, %v", all, err)
	}
	change := func(old, with string) string { return "[" + strings.Replace(good, old, with, 1) + "]" }
	for name, text := range map[string]string{
		"no JSON":             "corp",
		"no array":            good,
		"two":                 "[" + good + "] x",
		"an unknown field":    change(`"role"`, `"x":1,"role"`),
		"the same twice":      "[" + good + "," + good + "]",
		"plain HTTP":          change("https:", "http:"),
		"no URL":              change("https://login.example.com", "login"),
		"a query":             change("example.com", "example.com?x=1"),
		"a name of ours":      change(`"corp"`, `"dev"`),
		"a name with a colon": change(`"corp"`, `"a:b"`),
		"no audience":         change(`"audience":"a"`, `"audience":""`),
		"scopes alone":        change(`"role"`, `"scopes":["openid"],"role"`),
		"scopes of no login":  change(`"role"`, `"client_id":"c","scopes":["email"],"role"`),
		"no tenant":           change(`"tenant":"acme",`, ``),
		"two tenants":         change(`"role"`, `"tenant_claim":"org","role"`),
		"tenants alone":       change(`"role"`, `"tenants":{"a":"b"},"role"`),
		"a long tenant":       change(`"acme"`, `"`+strings.Repeat("a", 129)+`"`),
		"no role":             change(`,"role":"viewer"`, ``),
		"an unknown role":     change(`"viewer"`, `"root"`),
		"a claim alone":       change(`"role":`, `"role_claim":"groups","role":`),
		"roles to nowhere":    change(`"role":`, `"role_claim":"groups","roles":{"a":"root"},"role":`),
	} {
		if all, err := Parse(text); err == nil {
			t.Errorf("%s: %+v", name, all)
		}
	}
	if _, err := Parse("[" + strings.TrimSuffix(strings.Repeat(good+",", MaxIssuers+1), ",") + "]"); err == nil {
		t.Error("too many")
	}
}

// Logins lists only the issuers with a client ID, and only the data that a login needs.
func TestLogins(t *testing.T) {
	all, err := Parse(`[
		{"name":"z","issuer":"https://z.example","audience":"a","client_id":"c","tenant":"t","role":"viewer"},
		{"name":"m","issuer":"https://m.example","audience":"a","tenant":"t","role":"viewer"},
		{"name":"b","issuer":"https://b.example","audience":"a","client_id":"c","scopes":["openid","groups"],"tenant":"t","role":"viewer"}]`)
	if err != nil {
		t.Fatal(err)
	}
	logins := New(all).Logins()
	if len(logins) != 2 || logins[0].Name != "b" || len(logins[0].Scopes) != 2 || logins[1].Name != "z" || strings.Join(logins[1].Scopes, " ") != "openid offline_access" {
		t.Errorf("%+v", logins)
	}
	if none := (*Issuers)(nil).Logins(); none != nil {
		t.Errorf("%+v", none)
	}
}
