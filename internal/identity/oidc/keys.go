package oidc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	// keysFresh is how long keys are cached: a key that an issuer withdraws is trusted
	// for at most that long, while the issuer answers.
	keysFresh = 5 * time.Minute
	// keysLife is how long they are used if the issuer does not answer.
	keysLife = time.Hour
	// askEvery is the least time between two requests to an issuer, however many tokens
	// with unknown keys come.
	askEvery    = 10 * time.Second
	askLimit    = 5 * time.Second
	maxAnswer   = 1 << 20 // bytes
	maxKeys     = 100
	maxRedirect = 3
)

// algorithms are the accepted signature algorithms: no symmetric ones.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512, jose.PS256, jose.PS384, jose.PS512, jose.EdDSA,
}

// keySet caches the public keys of an issuer. It is safe for concurrent use.
type keySet struct {
	issuer string
	client *http.Client
	now    func() time.Time

	asking sync.Mutex // held during a request to the issuer
	mu     sync.Mutex
	keys   []jose.JSONWebKey
	got    time.Time // when keys were received; zero: never
	asked  time.Time // when the last request was made
}

// VerifySignature returns the payload of a token that one of the issuer's keys signed. Of
// the token's header only kid is used, and only to compare it.
func (s *keySet) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	signed, err := jose.ParseSignedCompact(token, algorithms)
	if err != nil {
		return nil, err
	}
	kid := signed.Signatures[0].Header.KeyID
	keys, fresh := s.present()
	if !fresh || len(matching(keys, kid)) == 0 {
		if keys, err = s.renew(ctx); err != nil {
			return nil, err
		}
	}
	for _, key := range matching(keys, kid) {
		if payload, err := signed.Verify(key); err == nil {
			return payload, nil
		}
	}
	return nil, errors.New("no key of the issuer signed the token")
}

// matching are the keys with the ID kid; all keys if kid is empty.
func matching(keys []jose.JSONWebKey, kid string) (all []jose.JSONWebKey) {
	for _, k := range keys {
		if kid == "" || k.KeyID == kid {
			all = append(all, k)
		}
	}
	return all
}

// present returns the cached keys, and whether they are fresh.
func (s *keySet) present() (keys []jose.JSONWebKey, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	age := s.now().Sub(s.got)
	if s.got.IsZero() || age > keysLife {
		return nil, false
	}
	return s.keys, age <= keysFresh
}

// renew fetches the issuer's keys, unless that was just done.
func (s *keySet) renew(ctx context.Context) ([]jose.JSONWebKey, error) {
	s.asking.Lock()
	defer s.asking.Unlock()
	s.mu.Lock()
	soon := s.now().Sub(s.asked) < askEvery && !s.asked.IsZero()
	s.mu.Unlock()
	var err error
	if !soon {
		// The caller may leave; others wait for the answer.
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), askLimit)
		defer cancel()
		var keys []jose.JSONWebKey
		keys, err = s.ask(asking)
		s.mu.Lock()
		s.asked = s.now()
		if err == nil {
			s.keys, s.got = keys, s.asked
		}
		s.mu.Unlock()
	}
	keys, _ := s.present()
	if keys == nil {
		return nil, errors.Join(errors.New("the keys of the issuer are not known"), err)
	}
	return keys, nil
}

// ask fetches the issuer's key URL and its keys.
func (s *keySet) ask(ctx context.Context) ([]jose.JSONWebKey, error) {
	var about struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := s.get(ctx, strings.TrimSuffix(s.issuer, "/")+"/.well-known/openid-configuration", &about); err != nil {
		return nil, fmt.Errorf("discover %s: %w", s.issuer, err)
	}
	if about.Issuer != s.issuer {
		return nil, fmt.Errorf("discover %s: it calls itself %.200q", s.issuer, about.Issuer)
	}
	if u, err := url.Parse(about.Keys); err != nil || u.Scheme != "https" {
		return nil, fmt.Errorf("discover %s: its keys are not at an https URL", s.issuer)
	}
	var set jose.JSONWebKeySet
	if err := s.get(ctx, about.Keys, &set); err != nil {
		return nil, fmt.Errorf("keys of %s: %w", s.issuer, err)
	}
	var usable []jose.JSONWebKey
	for _, k := range set.Keys {
		// Skip symmetric and private keys.
		if k.Valid() && k.IsPublic() && (k.Use == "" || k.Use == "sig") && len(usable) < maxKeys {
			usable = append(usable, k)
		}
	}
	if len(usable) == 0 {
		return nil, fmt.Errorf("keys of %s: none can verify signatures", s.issuer)
	}
	return usable, nil
}

// get reads a JSON document of bounded size.
func (s *keySet) get(ctx context.Context, from string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s", resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return err
	}
	if len(body) > maxAnswer {
		return fmt.Errorf("its answer has more than %d bytes", maxAnswer)
	}
	return json.Unmarshal(body, into)
}

// onlyHTTPS keeps redirects few and encrypted.
func onlyHTTPS(r *http.Request, via []*http.Request) error {
	if r.URL.Scheme != "https" || len(via) > maxRedirect {
		return http.ErrUseLastResponse
	}
	return nil
}
