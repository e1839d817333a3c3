package login

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/oauth2"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

func testFile(t *testing.T) (File, string) {
	t.Helper()
	dir := t.TempDir()
	f, err := NewFile(func(k string) string { return map[string]string{"XDG_CONFIG_HOME": dir}[k] })
	if err != nil {
		t.Fatal(err)
	}
	return f, filepath.Join(dir, "cloud-sandbox", "logins.json")
}

func TestFile(t *testing.T) {
	f, path := testFile(t)
	if _, is, err := f.Get("https://a"); is || err != nil {
		t.Errorf("before any login: %v, %v", is, err)
	}
	var all sync.WaitGroup
	for _, server := range []string{"https://a", "https://b", "https://a", "https://b"} {
		all.Go(func() {
			err := f.Change(server, func(l Login, _ bool) (Login, bool, error) {
				l.Token += "x"
				return l, true, nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	stop := errors.New("stop")
	if err := f.Change("https://a", func(Login, bool) (Login, bool, error) { return Login{}, false, stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
	for _, server := range []string{"https://a", "https://b"} {
		if l, is, err := f.Get(server); err != nil || !is || l.Token != "xx" {
			t.Errorf("%s has %+v, %v, %v", server, l, is, err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if err := f.Change("https://a", func(Login, bool) (Login, bool, error) { return Login{}, false, nil }); err != nil {
		t.Error(err)
	}
	if _, is, err := f.Get("https://a"); is || err != nil {
		t.Errorf("after its end: %v, %v", is, err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Get("https://a"); err == nil || !strings.Contains(err.Error(), path+" is damaged") {
		t.Errorf("of a damaged one it says %v", err)
	}
	for name, env := range map[string]map[string]string{"nothing": {}, "relative": {"XDG_CONFIG_HOME": "x", "HOME": "y"}} {
		if _, err := NewFile(func(k string) string { return env[k] }); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// The stored token is the one that the server accepts.
func TestLoginOf(t *testing.T) {
	ends := time.Now().Add(time.Hour).Truncate(time.Second)
	token := func(audience ...string) string {
		text, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.RegisteredClaims{Audience: audience, ExpiresAt: jwt.NewNumericDate(ends)}).SignedString([]byte("k"))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	p := v1.Provider{Issuer: "https://i", ClientID: "cli", Audience: "us"}
	for name, tt := range map[string]struct{ id, access, want string }{
		"the ID token":        {token("us"), "opaque", token("us")},
		"one of several":      {token("cli", "us"), token("us"), token("cli", "us")},
		"the access token":    {token("cli"), token("us"), token("us")},
		"none":                {token("cli"), "opaque", ""},
		"none that is a text": {"", "a.b.c", ""},
	} {
		sent := (&oauth2.Token{AccessToken: tt.access}).WithExtra(map[string]any{"id_token": tt.id})
		l, err := loginOf(p, sent, "before")
		if (err != nil) != (tt.want == "") || l.Token != tt.want {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
		if err == nil && (l.Refresh != "before" || !l.Expires.Equal(ends) || !l.Fresh(time.Now()) || l.Fresh(ends.Add(-early))) {
			t.Errorf("%s: %+v", name, l)
		}
	}
	if _, err := (Login{}).Renew(t.Context()); !Over(err) {
		t.Errorf("without a token that renews: %v", err)
	}
}

// Only the browser that began the login ends it.
func TestWait(t *testing.T) {
	for name, tt := range map[string]struct{ query, code, err string }{
		"a code":           {"state=s&code=c", "c", ""},
		"our issuer":       {"state=s&code=c&iss=https%3A%2F%2Fi", "c", ""},
		"another issuer":   {"state=s&code=c&iss=https%3A%2F%2Fj", "", "another identity provider"},
		"a refusal":        {"state=s&error=access_denied&error_description=no%1b", "", `"access_denied" "no\x1b"`},
		"nothing of these": {"state=s", "", "refused"},
	} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		asked := make(chan error, 1)
		go func() {
			asked <- func() error {
				for _, q := range []string{"state=other&code=evil", "code=evil", tt.query} {
					resp, err := http.Get("http://" + ln.Addr().String() + callbackPath + "?" + q)
					if err != nil {
						return err
					}
					text, err := io.ReadAll(resp.Body)
					resp.Body.Close()
					if err != nil || strings.Contains(string(text), "evil") || (resp.StatusCode == 200) != (q == tt.query && tt.code != "") {
						t.Errorf("%s: %s is answered %s %s", name, q, resp.Status, text)
					}
				}
				return nil
			}()
		}()
		code, err := wait(t.Context(), ln, "s", "https://i")
		if code != tt.code && tt.err == "" || tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("%s: %q, %v", name, code, err)
		}
		if err := <-asked; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("nobody came"))
	if _, err := wait(ctx, ln, "s", ""); err == nil || err.Error() != "nobody came" {
		t.Errorf("without anybody: %v", err)
	}
}
