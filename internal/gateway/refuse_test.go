package gateway_test

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

// forge makes a token that differs from a valid one in one thing.
func forge(t testing.TB, method jwt.SigningMethod, key any, change func(jwt.MapClaims)) string {
	t.Helper()
	now := time.Now()
	c := jwt.MapClaims{
		"tenant": "dev:test", "user": "test", "role": "developer",
		"iss": "cloud-sandbox", "aud": []string{"cloud-sandbox-api"},
		"iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
	}
	if change != nil {
		change(c)
	}
	token, err := jwt.NewWithClaims(method, c).SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// critical is a valid token but for extensions that must be understood.
func critical(t *testing.T, names any) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"tenant": "dev:test", "user": "test", "role": "developer", "iss": "cloud-sandbox", "aud": "cloud-sandbox-api", "exp": time.Now().Add(time.Hour).Unix(),
	})
	token.Header["crit"], token.Header["urn:example:bound"] = names, true
	signed, err := token.SignedString(gatewaytest.TokenSecret)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func TestTokenAttacks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	hs := jwt.SigningMethodHS256
	good := forge(t, hs, gatewaytest.TokenSecret, nil)
	if a := f.DoAs(good, "GET", "/api/v1/sessions", ""); a.Status != 200 {
		t.Fatalf("the unchanged token: %d %s", a.Status, a.Body)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	parts := strings.Split(good, ".")
	with := func(key string, value any) string {
		return forge(t, hs, gatewaytest.TokenSecret, func(c jwt.MapClaims) {
			if c[key] = value; value == nil {
				delete(c, key)
			}
		})
	}
	headers := map[string][]string{
		"no header":        nil,
		"empty":            {""},
		"no token":         {"Bearer"},
		"an empty token":   {"Bearer "},
		"basic":            {"Basic dXNlcjpwYXNz"},
		"two spaces":       {"Bearer  " + good},
		"space after":      {"Bearer " + good + " x"},
		"two headers":      {"Bearer " + good, "Bearer " + good},
		"garbage":          {"Bearer garbage"},
		"dots":             {"Bearer .."},
		"bytes":            {"Bearer \xff\xfe"},
		"huge":             {"Bearer " + strings.Repeat("a", 50_000)},
		"huge but valid":   {"Bearer " + with("user", strings.Repeat("u", 10_000))},
		"alg none":         {"Bearer " + forge(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, nil)},
		"alg none, signed": {"Bearer " + b64([]byte(`{"alg":"none"}`)) + "." + parts[1] + "." + parts[2]},
		"alg NONE":         {"Bearer " + b64([]byte(`{"alg":"NONE"}`)) + "." + parts[1] + "."},
		"HS384":            {"Bearer " + forge(t, jwt.SigningMethodHS384, gatewaytest.TokenSecret, nil)},
		"HS512":            {"Bearer " + forge(t, jwt.SigningMethodHS512, gatewaytest.TokenSecret, nil)},
		"RS256":            {"Bearer " + forge(t, jwt.SigningMethodRS256, rsaKey, nil)},
		"RS256 header":     {"Bearer " + b64([]byte(`{"alg":"RS256","typ":"JWT"}`)) + "." + parts[1] + "." + parts[2]},
		"another secret":   {"Bearer " + forge(t, hs, []byte("another secret of thirty-two byte"), nil)},
		"empty secret":     {"Bearer " + forge(t, hs, []byte{}, nil)},
		"no signature":     {"Bearer " + parts[0] + "." + parts[1] + "."},
		"cut signature":    {"Bearer " + good[:len(good)-2]},
		"changed claims":   {"Bearer " + parts[0] + "." + b64([]byte(`{"tenant":"dev:other","role":"admin"}`)) + "." + parts[2]},
		"no exp":           {"Bearer " + with("exp", nil)},
		"text exp":         {"Bearer " + with("exp", "tomorrow")},
		"digits in exp":    {"Bearer " + with("exp", fmt.Sprint(time.Now().Add(time.Hour).Unix()))},
		"digits in iat":    {"Bearer " + with("iat", fmt.Sprint(time.Now().Unix()))},
		"digits in nbf":    {"Bearer " + with("nbf", fmt.Sprint(time.Now().Unix()))},
		"list in exp":      {"Bearer " + with("exp", []int64{time.Now().Add(time.Hour).Unix()})},
		"true in exp":      {"Bearer " + with("exp", true)},
		"crit":             {"Bearer " + critical(t, []string{"exp"})},
		"unknown crit":     {"Bearer " + critical(t, []string{"urn:example:bound"})},
		"empty crit":       {"Bearer " + critical(t, []string{})},
		"no list of crit":  {"Bearer " + critical(t, nil)},
		"not yet issued":   {"Bearer " + with("iat", time.Now().Add(time.Hour).Unix())},
		"not yet valid":    {"Bearer " + with("nbf", time.Now().Add(time.Hour).Unix())},
		"wrong aud":        {"Bearer " + with("aud", "another-api")},
		"no aud":           {"Bearer " + with("aud", nil)},
		"wrong iss":        {"Bearer " + with("iss", "somebody")},
		"no iss":           {"Bearer " + with("iss", nil)},
		"no tenant":        {"Bearer " + with("tenant", nil)},
		"empty tenant":     {"Bearer " + with("tenant", "")},
		"huge tenant":      {"Bearer " + with("tenant", strings.Repeat("t", 129))},
		"no role":          {"Bearer " + with("role", nil)},
		"unknown role":     {"Bearer " + with("role", "root")},
	}
	var first []byte
	for name, values := range headers {
		req, err := http.NewRequest("POST", f.URL+"/api/v1/sandbox/acquire", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if values != nil {
			req.Header["Authorization"] = values
		}
		resp, err := f.Client.Do(req)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode == 400 && name == "bytes" {
			continue // refused before it is ours
		}
		if first == nil {
			first = body
		}
		if resp.StatusCode != 401 || !bytes.Equal(body, first) || resp.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: %d %s", name, resp.StatusCode, body)
		}
	}
	// Every API answers an expired token with a sentence about its end.
	expired := with("exp", time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC).Unix())
	for _, path := range []string{"/api/v1/sandbox/acquire", "/sandboxes", "/cloudsandbox.sandbox.v1.SandboxService/Create"} {
		req, err := http.NewRequest("POST", f.URL+path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+expired)
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req) // of which not all is in the contract
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 401 || !bytes.Contains(body, []byte("the token expired at 2020-01-02T03:04:05Z: make a new one")) {
			t.Errorf("an expired token at %s: %d %s", path, resp.StatusCode, body)
		}
	}
	if a := f.DoAs(forge(t, hs, []byte("another secret of thirty-two byte"), func(c jwt.MapClaims) { c["exp"] = 1 }), "POST", "/api/v1/sandbox/acquire", "{}"); bytes.Contains(a.Body, []byte("expired")) {
		t.Errorf("an expired token of another tenant: %s", a.Body)
	}
	if f.Sandboxes.Live() != 0 {
		t.Error("a sandbox was acquired")
	}
	if strings.Contains(f.Logs.String(), good) || strings.Contains(f.Logs.String(), parts[2]) {
		t.Error("a token is in the log")
	}
}

func TestTokensOutsideDevMode(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *gateway.Config) { c.Dev = false })
	a := f.DoAs("", "POST", "/api/v1/auth/token", `{"user_id":"a","role":"user"}`)
	if a.Status != 403 || !bytes.Contains(a.Body, []byte("cloud-sandbox key create --admin")) {
		t.Errorf("%d %s", a.Status, a.Body)
	}
}

// A web page elsewhere cannot have a browser on this machine fetch a token.
func TestTokensAreForThisMachine(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, change := range []func(*http.Request){
		func(r *http.Request) { r.Host = "evil.example" },
		func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") },
	} {
		req, _ := http.NewRequest("POST", f.URL+"/api/v1/auth/token", strings.NewReader(`{"user_id":"a","role":"user"}`))
		change(req)
		if a := f.Send(req); a.Status != 403 {
			t.Errorf("%d %s", a.Status, a.Body)
		}
	}
}

func TestDevTenantsDiffer(t *testing.T) {
	t.Parallel()
	seen := map[sandbox.TenantID]string{}
	long := strings.Repeat("é", 127)
	for _, user := range []string{"a", "A", "b", "dev:a", long + "a", long + "b", strings.Repeat("x", 124), strings.Repeat("x", 125)} {
		who, err := gateway.DevIdentity(user, "user")
		if err != nil {
			t.Errorf("%q: %v", user, err)
		}
		if len(who.Tenant) > 128 || seen[who.Tenant] != "" {
			t.Errorf("%q is tenant %q, as is %q", user, who.Tenant, seen[who.Tenant])
		}
		seen[who.Tenant] = user
	}
}

func TestMintRefuses(t *testing.T) {
	t.Parallel()
	if _, err := gateway.NewTokens(gatewaytest.TokenSecret[:31], nil); err == nil {
		t.Error("a short secret was taken")
	}
	tokens, err := gateway.NewTokens(gatewaytest.TokenSecret, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, who := range []sandbox.Identity{
		{},
		{Tenant: "t"},
		{Tenant: "t", Role: "root"},
		{Role: sandbox.RoleAdmin},
		{Tenant: sandbox.TenantID(strings.Repeat("t", 129)), Role: sandbox.RoleAdmin},
	} {
		if _, _, err := tokens.Mint(who, 0); sandbox.CodeOf(err) != sandbox.Invalid {
			t.Errorf("%+v: %v", who, err)
		}
	}
	if _, _, err := tokens.Mint(sandbox.Identity{Tenant: "t", Role: sandbox.RoleAdmin}, -time.Second); err == nil {
		t.Error("a token for the past")
	}
}

// No credential but a good one lets anybody in, whatever its bytes.
func FuzzCredentials(f *testing.F) {
	fix := newFixture(f)
	good := forge(f, jwt.SigningMethodHS256, gatewaytest.TokenSecret, nil)
	key := fix.Key("t", sandbox.RoleDeveloper)
	for _, seed := range []string{"", "Bearer", "Bearer " + good, "Bearer " + key, "bearer  x.y.z", "Basic a", "Bearer " + good[:len(good)-1], "Bearer eyJhbGciOiJub25lIn0.e30."} {
		f.Add(seed, seed)
	}
	f.Fuzz(func(t *testing.T, authorization, apiKey string) {
		r := httptest.NewRequest("GET", "/api/v1/sessions", nil)
		r.Header["Authorization"], r.Header["X-Api-Key"] = []string{authorization}, []string{apiKey}
		if apiKey == "" {
			r.Header.Del("X-API-Key")
		}
		w := httptest.NewRecorder()
		fix.Server.ServeHTTP(w, r)
		_, sent, _ := strings.Cut(authorization, " ")
		if right := apiKey == "" && (sent == good || sent == key); w.Code != 401 && !(right && w.Code == 200) {
			t.Errorf("%q and %q: %d %s", authorization, apiKey, w.Code, w.Body)
		}
	})
}

// Of several things that are wrong always the same one is told.
func TestRefusalsAreTheSame(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := f.Key("t", sandbox.RoleOperator)
	for _, tt := range []struct{ method, path, body, want string }{
		{"GET", "/api/v1/sessions?zz=1&mm=2&aa=3&kk=4", "", `unknown query parameter \"aa\"`},
		{"GET", "/v2/sandboxes?zz=1&mm=2&aa=3&kk=4", "", `unknown query parameter \"aa\"`},
		{"POST", "/api/v1/sessions", `{"env":{"9z":"","9m":"","9a":"","9k":""}}`, `\"9a\" is not a name`},
		{"POST", "/api/v1/sessions", `{"zz":1,"mm":2,"aa":3}`, `unknown field \"zz\"`},
		{"PUT", "/api/v1/tenants/t/quota", `{"zz":1,"mm":2,"aa":3,"kk":4}`, "aa"},
		{"PUT", "/api/v1/tenants/t/quota", `{"zz":null,"mm":null,"aa":null,"kk":null}`, `\"aa\" must be`},
	} {
		for range 20 {
			ask := func() gatewaytest.Answer { return f.With(tt.method, tt.path, tt.body, "X-API-Key", key) }
			if strings.HasPrefix(tt.path, "/v2/") { // which the contract of REST does not have
				ask = func() gatewaytest.Answer { return f.ask(gateway.RouteInfo{Method: tt.method, Path: tt.path}, key) }
			}
			if a := ask(); a.Status != 400 || !bytes.Contains(a.Body, []byte(tt.want)) {
				t.Errorf("%s %s: %d %s, want %s", tt.method, tt.path, a.Status, a.Body, tt.want)
				break
			}
		}
	}
}
