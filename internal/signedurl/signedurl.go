// Package signedurl makes and checks URLs that read or write one file without a
// token, until they expire or their Tenant's key is replaced.
package signedurl

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/url"
	"strconv"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// MaxLife bounds how long a URL is good.
const MaxLife = 7 * 24 * time.Hour

// Names of the query's parameters, beside sandbox_id and path.
const (
	paramExpires   = "expires" // seconds since 1970
	paramKey       = "key"
	paramSignature = "signature"
)

// purpose keeps a signature from meaning anything elsewhere.
const purpose = "cloud-sandbox file url 1\n"

// Grant is what one URL allows: one method on one path of one Sandbox.
type Grant struct {
	Method    string // GET, which HEAD counts as, or PUT
	SandboxID string
	Path      string // absolute and clean
	Expires   time.Time
}

// Signer signs with the keys of a Store and checks. Its methods are safe for
// concurrent use.
type Signer struct {
	keys sandbox.SigningKeyStore
	now  func() time.Time
}

// New returns a Signer. now is the clock; nil means time.Now.
func New(keys sandbox.SigningKeyStore, now func() time.Time) *Signer {
	if now == nil {
		now = time.Now
	}
	return &Signer{keys: keys, now: now}
}

// Sign returns the query of a URL for what g allows but for its Expires, which
// is life from now, rounded up to a second, and is returned in the Grant. life
// must be in (0, MaxLife]; it returns Invalid for another one.
func (s *Signer) Sign(ctx context.Context, tenant sandbox.TenantID, g Grant, life time.Duration) (url.Values, Grant, error) {
	if life <= 0 || life > MaxLife {
		return nil, g, sandbox.Errorf(sandbox.Invalid, "expires_in_seconds must be more than 0 and at most %d", int(MaxLife.Seconds()))
	}
	key, err := s.keys.EnsureSigningKey(ctx, sandbox.NewSigningKey(tenant, s.now()))
	if err != nil {
		return nil, g, err
	}
	g.Expires = s.now().Add(life + time.Second - 1).Truncate(time.Second)
	query := url.Values{
		"sandbox_id": {g.SandboxID}, "path": {g.Path}, paramKey: {key.ID},
		paramExpires: {strconv.FormatInt(g.Expires.Unix(), 10)},
	}
	query.Set(paramSignature, base64.RawURLEncoding.EncodeToString(sum(key, g.Method, query)))
	return query, g, nil
}

// sum is the signature of a query without its own.
func sum(key sandbox.SigningKey, method string, query url.Values) []byte {
	h := hmac.New(sha256.New, key.Secret)
	h.Write([]byte(purpose + method + "\n" + query.Encode())) // Encode sorts, and escapes line breaks
	return h.Sum(nil)
}

// Rotate gives a Tenant another key. All URLs that were signed before are refused
// from then on.
func (s *Signer) Rotate(ctx context.Context, tenant sandbox.TenantID) error {
	return s.keys.ReplaceSigningKey(ctx, sandbox.NewSigningKey(tenant, s.now()))
}

// Signed reports whether a URL says that it is signed.
func Signed(u *url.URL) bool { return u.Query().Has(paramSignature) }

// errWrong is the one answer to every URL that is not as it was signed.
var errWrong = sandbox.Errorf(sandbox.Denied, "this signed URL is not valid: it was changed, is for another method, or its key was replaced")

// Check returns what a signed URL allows, and whose Tenant's it is. Every failure
// is Denied; that it has expired is told only of a URL that was good.
func (s *Signer) Check(ctx context.Context, method string, query url.Values) (sandbox.TenantID, Grant, error) {
	g := Grant{Method: method, SandboxID: query.Get("sandbox_id"), Path: query.Get("path")}
	if g.Method == "HEAD" {
		g.Method = "GET"
	}
	signature, err := base64.RawURLEncoding.Strict().DecodeString(query.Get(paramSignature))
	if err != nil || !onlyOurs(query) || !sandbox.ValidSigningKeyID(query.Get(paramKey)) {
		return "", g, errWrong
	}
	key, err := s.keys.SigningKeyByID(ctx, query.Get(paramKey))
	switch {
	case errors.Is(err, sandbox.NotFound):
		return "", g, errWrong
	case err != nil:
		return "", g, err
	}
	unsigned := url.Values{}
	for _, name := range []string{"sandbox_id", "path", paramKey, paramExpires} {
		unsigned[name] = query[name]
	}
	if !hmac.Equal(signature, sum(key, g.Method, unsigned)) {
		return "", g, errWrong
	}
	seconds, err := strconv.ParseInt(query.Get(paramExpires), 10, 64)
	if err != nil {
		return "", g, errWrong
	}
	if g.Expires = time.Unix(seconds, 0).UTC(); !s.now().Before(g.Expires) {
		return "", g, sandbox.Errorf(sandbox.Denied, "this signed URL expired at %s", g.Expires.Format(time.RFC3339))
	}
	return key.Tenant, g, nil
}

// onlyOurs reports whether a query has each of our parameters once and no other.
func onlyOurs(query url.Values) bool {
	for _, name := range []string{"sandbox_id", "path", paramKey, paramExpires, paramSignature} {
		if len(query[name]) != 1 {
			return false
		}
	}
	return len(query) == 5
}
