package e2e

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// provider is an identity provider with one key.
type provider struct {
	url, certificate string // its certificate is a file that all may read
	key              *rsa.PrivateKey
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p := &provider{key: key}
	mux := http.NewServeMux()
	srv := httptest.NewTLSServer(mux)
	t.Cleanup(srv.Close)
	p.url = srv.URL
	for path, v := range map[string]any{
		"/.well-known/openid-configuration": map[string]string{"issuer": srv.URL, "jwks_uri": srv.URL + "/keys"},
		"/keys":                             jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k1", Use: "sig"}}},
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(v) })
	}
	dir, err := os.MkdirTemp("", "cs-provider-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p.certificate = filepath.Join(dir, "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	for _, err := range []error{os.Chmod(dir, 0o755), os.WriteFile(p.certificate, text, 0o644)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// token signs what the provider says of a user, changed by change.
func (p *provider) token(t *testing.T, method jwt.SigningMethod, key any, change jwt.MapClaims) string {
	t.Helper()
	claims := jwt.MapClaims{
		"iss": p.url, "aud": "cloud-sandbox", "sub": "alice", "org": "acme", "groups": []string{"eng"}, "exp": time.Now().Add(time.Hour).Unix(),
	}
	maps.Copy(claims, change)
	token := jwt.NewWithClaims(method, claims)
	token.Header["kid"] = "k1"
	text, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// A server without dev mode takes the tokens of an identity provider that it
// trusts, for tenants and roles as configured, and no forged ones.
func TestIdentityProvider(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	s := rig.Own(t, rig.Options{Pool: 1, Strict: true, Env: []string{
		"JWT_SECRET=0123456789abcdef0123456789abcdef", "SSL_CERT_FILE=" + p.certificate,
		`CLOUD_SANDBOX_OIDC=[{"name":"corp","issuer":"` + p.url + `","audience":"cloud-sandbox","tenant_claim":"org","role_claim":"groups","roles":{"eng":"developer","look":"viewer"}}]`,
	}})
	as := func(token string) *rig.Client {
		c := s.Anyone(t)
		c.Token = token
		return c
	}
	signed := func(change jwt.MapClaims) *rig.Client { return as(p.token(t, jwt.SigningMethodRS256, p.key, change)) }

	alice := signed(nil)
	sb := alice.Create(t, nil)
	if out := alice.Sh(t, sb.ID, "echo hello"); out != "hello\n" {
		t.Errorf("it says %q", out)
	}
	if got := signed(jwt.MapClaims{"sub": "bob", "groups": "look"}).Get(t, sb.ID); got.State != "running" {
		t.Errorf("a colleague sees %+v", got)
	}
	public, err := x509.MarshalPKIXPublicKey(p.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	asPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	for name, tt := range map[string]struct {
		c      *rig.Client
		method string
		want   int
	}{
		"another tenant":            {signed(jwt.MapClaims{"org": "other"}), "GET", 404},
		"a viewer who ends it":      {signed(jwt.MapClaims{"groups": "look"}), "DELETE", 403},
		"no role":                   {signed(jwt.MapClaims{"groups": []string{"admin", "operator"}}), "GET", 403},
		"another audience":          {signed(jwt.MapClaims{"aud": "other"}), "GET", 401},
		"expired":                   {signed(jwt.MapClaims{"exp": time.Now().Add(-time.Minute).Unix()}), "GET", 401},
		"HS256 with the public key": {as(p.token(t, jwt.SigningMethodHS256, asPEM, nil)), "GET", 401},
		"none":                      {as(p.token(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, nil)), "GET", 401},
	} {
		status, raw, err := tt.c.Do(tt.method, "/api/v1/sessions/"+sb.ID, nil)
		if err != nil || status != tt.want {
			t.Errorf("%s: %d %s, %v", name, status, raw, err)
		}
		if strings.Contains(string(raw), p.url) {
			t.Errorf("%s: the answer tells too much: %s", name, raw)
		}
	}
	if log := s.Log(); strings.Contains(log, alice.Token) {
		t.Error("the token is in the log")
	}
}
