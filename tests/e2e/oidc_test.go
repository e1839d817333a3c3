package e2e

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// provider is an identity provider with one key.
type provider struct {
	url, certificate string // certificate is a world-readable file
	key              *rsa.PrivateKey

	mu      sync.Mutex
	pending map[string]url.Values // logins in progress, by code
	refresh string                // the valid refresh token; single use
	life    time.Duration         // of the issued tokens
	given   int
	refuse  bool // refresh requests
}

// authorize is the login page. It always grants the login.
func (p *provider) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if q.Get("response_type") != "code" || q.Get("client_id") != "cli" || q.Get("code_challenge_method") != "S256" || !strings.Contains(q.Get("scope"), "openid") {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	code := jwtID()
	p.mu.Lock()
	p.pending[code] = q
	p.mu.Unlock()
	back := url.Values{"code": {code}, "state": {q.Get("state")}, "iss": {p.url}}
	http.Redirect(w, r, q.Get("redirect_uri")+"?"+back.Encode(), http.StatusFound)
}

func jwtID() string { return strings.ToLower(rand.Text()) }

// exchange issues tokens for a code with its PKCE verifier, and for the latest refresh
// token.
func (p *provider) exchange(t *testing.T, w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	change := jwt.MapClaims{"exp": time.Now().Add(p.life).Unix(), "jti": jwtID()}
	switch r.FormValue("grant_type") {
	case "authorization_code":
		began, is := p.pending[r.FormValue("code")]
		delete(p.pending, r.FormValue("code"))
		sum := sha256.Sum256([]byte(r.FormValue("code_verifier")))
		if !is || began.Get("code_challenge") != base64.RawURLEncoding.EncodeToString(sum[:]) || began.Get("redirect_uri") != r.FormValue("redirect_uri") {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"error":"invalid_grant"}`))
			return
		}
		change["nonce"] = began.Get("nonce")
	case "refresh_token":
		if p.refuse || r.FormValue("refresh_token") != p.refresh {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"error":"invalid_grant","error_description":"it was taken back"}`))
			return
		}
	}
	p.refresh = jwtID()
	p.given++
	_ = json.NewEncoder(w).Encode(map[string]any{
		"access_token": p.token(t, jwt.SigningMethodRS256, p.key, change), "token_type": "Bearer", "expires_in": int(p.life.Seconds()), "refresh_token": p.refresh,
		"id_token": p.token(t, jwt.SigningMethodRS256, p.key, withAudience(change, "cli")),
	})
}

func withAudience(claims jwt.MapClaims, audience string) jwt.MapClaims {
	out := maps.Clone(claims)
	out["aud"] = audience
	return out
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p := &provider{key: key, pending: map[string]url.Values{}, life: time.Hour}
	mux := http.NewServeMux()
	srv := httptest.NewTLSServer(mux)
	t.Cleanup(srv.Close)
	p.url = srv.URL
	for path, v := range map[string]any{
		"/.well-known/openid-configuration": map[string]any{
			"issuer": srv.URL, "jwks_uri": srv.URL + "/keys", "authorization_endpoint": srv.URL + "/authorize", "token_endpoint": srv.URL + "/token",
			"id_token_signing_alg_values_supported": []string{"RS256"},
		},
		"/keys": jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k1", Use: "sig"}}},
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(v) })
	}
	mux.HandleFunc("GET /authorize", p.authorize)
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) { p.exchange(t, w, r) })
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

// token signs the claims of a user, with the changes in change.
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

// A server without dev mode accepts tokens of a configured identity provider, with the
// configured tenants and roles, and rejects forged ones.
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

// A user logs in with a browser. Later commands use the login, it is refreshed
// automatically, and logout removes it.
func TestLogin(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	s := rig.Own(t, rig.Options{Pool: 1, Strict: true, Env: []string{
		"JWT_SECRET=0123456789abcdef0123456789abcdef", "SSL_CERT_FILE=" + p.certificate,
		`CLOUD_SANDBOX_OIDC=[{"name":"corp","issuer":"` + p.url + `","audience":"cloud-sandbox","client_id":"cli","tenant_claim":"org","role":"developer"},
			{"name":"robots","issuer":"https://robots.example","audience":"cloud-sandbox","tenant":"robots","role":"viewer"}]`,
	}})
	// MCP clients with OAuth discover the provider that supports logins.
	var resource struct {
		Servers []string `json:"authorization_servers"`
	}
	s.Anyone(t).Must(t, "GET", "/.well-known/oauth-protected-resource/mcp", nil, &resource)
	if !slices.Equal(resource.Servers, []string{p.url}) {
		t.Errorf("the providers of MCP are %q", resource.Servers)
	}
	home := t.TempDir()
	command := func(args ...string) *exec.Cmd {
		cmd := rig.CommandContext(t.Context(), s.Bin, args...)
		cmd.Env = []string{"HOME=" + home, "SSL_CERT_FILE=" + p.certificate, "CLOUD_SANDBOX_URL=" + s.URL, "PATH=" + os.Getenv("PATH"), "CLOUD_SANDBOX_DATA=" + home}
		return cmd
	}
	fails := func(want string, args ...string) {
		t.Helper()
		if out, err := command(args...).CombinedOutput(); err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%v: %v, %s; want %q", args, err, out, want)
		}
	}
	fails("CLOUD_SANDBOX_API_KEY", "ls") // no dev mode and no login
	fails("has no identity provider", "login", "--issuer", "other")
	fails("not logged in", "logout")
	// Plain HTTP to a non-loopback address, as to another machine.
	far := "http://0.0.0.0" + s.Addr[strings.LastIndexByte(s.Addr, ':'):]
	fails("not https", "login", "--issuer", "other", "--url", far)
	fails("has no identity provider", "login", "--issuer", "other", "--url", far, "--insecure")

	// browse logs in as a browser would. change modifies the URLs of the provider's
	// redirects.
	browse := func(change func(*url.URL)) (string, error) {
		t.Helper()
		cmd := command("login", "--no-browser")
		said, err := cmd.StderrPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		var text []byte
		address := regexp.MustCompile(`https://\S+`)
		for buf := make([]byte, 4096); !address.Match(text) || text[len(text)-1] != '\n'; {
			n, err := said.Read(buf)
			if text = append(text, buf[:n]...); err != nil {
				t.Fatalf("it says %s: %v", text, err)
			}
		}
		roots := x509.NewCertPool()
		ca, err := os.ReadFile(p.certificate)
		if err != nil || !roots.AppendCertsFromPEM(ca) {
			t.Fatal(err)
		}
		all := address.FindAllString(string(text), -1)
		browser := &http.Client{
			Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}},
			CheckRedirect: func(r *http.Request, _ []*http.Request) error {
				change(r.URL)
				return nil
			},
		}
		resp, err := browser.Get(all[len(all)-1])
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		rest, _ := io.ReadAll(said)
		return string(text) + string(rest), cmd.Wait()
	}
	with := func(key, value string) func(*url.URL) {
		return func(u *url.URL) {
			q := u.Query()
			q.Set(key, value)
			u.RawQuery = q.Encode()
		}
	}
	if said, err := browse(with("code", "stolen")); err == nil || !strings.Contains(said, "invalid_grant") {
		t.Errorf("with a code of nobody: %v, %s", err, said)
	}
	if said, err := browse(with("iss", "https://other.example")); err == nil || !strings.Contains(said, "another identity provider") {
		t.Errorf("from another provider: %v, %s", err, said)
	}
	if said, err := browse(func(*url.URL) {}); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	file := filepath.Join(home, ".config", "cloud-sandbox", "logins.json")
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	works := func() {
		t.Helper()
		if out, err := command("run", "--language", "bash", "-c", "echo hello").CombinedOutput(); err != nil || string(out) != "hello\n" {
			t.Errorf("%v: %s", err, out)
		}
	}
	works()
	given := func() int { p.mu.Lock(); defer p.mu.Unlock(); return p.given }
	if n := given(); n != 1 {
		t.Errorf("%d times it gave tokens, want 1", n)
	}
	set := func(change func()) { p.mu.Lock(); defer p.mu.Unlock(); change() }
	// A login that is about to expire is refreshed once, even by concurrent commands.
	set(func() { p.life = 20 * time.Second })
	if said, err := browse(func(*url.URL) {}); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	set(func() { p.life = time.Hour })
	var together sync.WaitGroup
	for range 3 {
		together.Go(works)
	}
	together.Wait()
	if n := given(); n != 3 {
		t.Errorf("%d times it gave tokens, want 3", n)
	}
	set(func() { p.life = 20 * time.Second })
	if said, err := browse(func(*url.URL) {}); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	set(func() { p.refuse = true })
	fails("log in again", "ls")
	if out, err := command("logout").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if text, err := os.ReadFile(file); err != nil || strings.Contains(string(text), "refresh") {
		t.Errorf("after logout there is %s, %v", text, err)
	}
}
