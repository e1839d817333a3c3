package rpc

import (
	"crypto/x509"
	"net/http"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/cluster"
)

const (
	// reuse is how long a caller uses a token again. The rest of its life is enough for a
	// call to begin in.
	reuse = 10 * time.Second
	// maxKept bounds the tokens that one end keeps.
	maxKept = 4096
)

// signedTokens keeps the tokens of a peer, since a signature takes as long as a good part
// of a call.
type signedTokens struct {
	mu   sync.Mutex
	pair *cluster.Pair // that signed them
	kept map[sandbox.TenantID]signedToken
}

type signedToken struct {
	text  string
	until time.Time // when another one is signed
}

// sign returns a token for tenant at the audience to, which is always the same.
func (s *signedTokens) sign(pair *cluster.Pair, tenant sandbox.TenantID, to string) (string, error) {
	now := time.Now()
	if text, is := s.find(pair, tenant, now); is {
		return text, nil
	}
	text, err := signFor(pair, tenant, to)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pair != pair || len(s.kept) >= maxKept {
		s.pair, s.kept = pair, map[sandbox.TenantID]signedToken{}
	}
	s.kept[tenant] = signedToken{text, now.Add(reuse)}
	return text, nil
}

func (s *signedTokens) find(pair *cluster.Pair, tenant sandbox.TenantID, now time.Time) (text string, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.kept[tenant]
	return t.text, s.pair == pair && now.Before(t.until)
}

// checkedTokens keeps tokens whose signature was valid, with the certificate whose key
// signed them, their audience and their issuer.
type checkedTokens struct {
	mu   sync.Mutex
	kept map[checkedToken]claims
}

type checkedToken struct {
	authorization string // the header
	signer        *x509.Certificate
	to, from      string // audience and issuer
}

// check is parseToken for a token that the key of signer, which signs with algorithm, has
// signed for the audience to, and that names the issuer from. A token that it knows is
// valid until it expires.
func (s *checkedTokens) check(h http.Header, algorithm string, signer *x509.Certificate, to, from string) (claims, error) {
	key := checkedToken{h.Get("Authorization"), signer, to, from}
	s.mu.Lock()
	c, known := s.kept[key]
	s.mu.Unlock()
	if known && time.Now().Before(c.ExpiresAt.Add(leeway)) {
		return c, nil
	}
	c, err := parseToken(h, algorithm, signer.PublicKey, jwt.WithAudience(to), jwt.WithIssuer(from))
	if err != nil {
		return claims{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept == nil || len(s.kept) >= maxKept {
		s.kept = map[checkedToken]claims{}
	}
	s.kept[key] = c
	return c, nil
}
