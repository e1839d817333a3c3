package rpc

import (
	"crypto"
	"crypto/x509"
	"net/http"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// A caller uses a token again for the same Tenant and certificate.
func TestTokensAreUsedAgain(t *testing.T) {
	p := newPKI(t)
	one, other := p.identity(t, SessionManager, "m").Current(), p.identity(t, SessionManager, "m").Current()
	var s signedTokens
	sign := func() string {
		t.Helper()
		text, err := s.sign(one, "t", "node/a")
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	first := sign()
	if again := sign(); again != first {
		t.Error("another token for the same call")
	}
	for name, text := range map[string]func() (string, error){
		"tenant":      func() (string, error) { return s.sign(one, "u", "node/a") },
		"certificate": func() (string, error) { return s.sign(other, "t", "node/a") },
	} {
		if another, err := text(); err != nil || another == first {
			t.Errorf("the same token for another %s, %v", name, err)
		}
	}
	old := s.kept["t"]
	old.until = time.Now()
	s.kept["t"] = old
	if again := sign(); again == first {
		t.Error("a token is used for longer than its time")
	}
}

// A token that was checked is refused once it has expired, of another certificate, and for
// another audience.
func TestCheckedTokensExpire(t *testing.T) {
	p := newPKI(t)
	manager := p.identity(t, SessionManager, "m").Current()
	key, algorithm := manager.Key()
	certificate := func(key any) *x509.Certificate { return &x509.Certificate{PublicKey: key.(crypto.Signer).Public()} }
	var s checkedTokens
	c := claims{Tenant: "t", RegisteredClaims: jwt.RegisteredClaims{
		Issuer: "m", Audience: jwt.ClaimStrings{"node/a"}, ExpiresAt: jwt.NewNumericDate(time.Now().Add(5*time.Second - leeway)),
	}}
	text, err := jwt.NewWithClaims(jwt.GetSigningMethod(algorithm), c).SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	h, cert := http.Header{"Authorization": {"Bearer " + text}}, certificate(key)
	check := func(to, from string) sandbox.Code {
		_, err := s.check(h, algorithm, cert, to, from)
		return sandbox.CodeOf(err)
	}
	for range 2 {
		if code := check("node/a", "m"); code != "" {
			t.Fatalf("refused as %s", code)
		}
	}
	if len(s.kept) != 1 {
		t.Errorf("%d tokens are kept", len(s.kept))
	}
	for _, tt := range [][2]string{{"node/b", "m"}, {"node/a", "n"}} {
		if code := check(tt[0], tt[1]); code != sandbox.Anonymous {
			t.Errorf("for %s from %s: %q", tt[0], tt[1], code)
		}
	}
	other := p.identity(t, SessionManager, "o").Current()
	foreign, _ := other.Key()
	if _, err := s.check(h, algorithm, certificate(foreign), "node/a", "m"); sandbox.CodeOf(err) != sandbox.Anonymous {
		t.Errorf("with another certificate: %v", err)
	}
	for deadline := time.Now().Add(time.Minute); check("node/a", "m") == ""; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it never expires")
		}
	}
}
