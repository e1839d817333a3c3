package signing

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Names of the query's parameters, besides sandbox_id and path.
const (
	paramExpires   = "expires" // seconds since 1970
	paramKey       = "key"
	paramSignature = "signature"
)

const urlPurpose = "cloud-sandbox file url 1\n"

// URLGrant is the permission of one URL: one method on one path of one Sandbox.
type URLGrant struct {
	Method    string // GET, which HEAD counts as, or PUT
	SandboxID string
	Path      string // absolute and clean
	Expires   time.Time
}

// URLs signs URLs with the keys of a Store and checks them. Its methods are safe
// for concurrent use.
type URLs struct {
	keys sandbox.SigningKeyStore
	now  func() time.Time
}

// NewURLs returns URLs. now is the clock; nil means time.Now.
func NewURLs(keys sandbox.SigningKeyStore, now func() time.Time) *URLs {
	return &URLs{keys: keys, now: clockOr(now)}
}

// Sign returns the query of a URL for g. It replaces g.Expires by life from now,
// rounded up to a second, and returns g with it. life must be in (0, MaxLife];
// another one is Invalid.
func (s *URLs) Sign(ctx context.Context, tenant sandbox.TenantID, g URLGrant, life time.Duration) (url.Values, URLGrant, error) {
	expires, err := expiry(s.now(), life)
	if err != nil {
		return nil, g, err
	}
	key, err := s.keys.EnsureSigningKey(ctx, sandbox.NewSigningKey(tenant, s.now()))
	if err != nil {
		return nil, g, err
	}
	g.Expires = expires
	query := url.Values{
		"sandbox_id": {g.SandboxID}, "path": {g.Path}, paramKey: {key.ID},
		paramExpires: {strconv.FormatInt(g.Expires.Unix(), 10)},
	}
	query.Set(paramSignature, signature(key.Secret, urlPurpose, urlContent(g.Method, query)))
	return query, g, nil
}

// urlContent returns the content that the signature in a query covers: the method and
// the query without its signature. Encode sorts, and escapes line breaks.
func urlContent(method string, query url.Values) string { return method + "\n" + query.Encode() }

// Rotate replaces a Tenant's key. URLs signed before are refused from then on.
func (s *URLs) Rotate(ctx context.Context, tenant sandbox.TenantID) error {
	return s.keys.ReplaceSigningKey(ctx, sandbox.NewSigningKey(tenant, s.now()))
}

// IsSigned reports whether a URL has a signature, valid or not.
func IsSigned(u *url.URL) bool { return u.Query().Has(paramSignature) }

// errURL is the error for every URL that differs from the signed one.
var errURL = sandbox.Errorf(sandbox.Denied, "this signed URL is not valid: it was changed, is for another method, or its key was replaced")

// Check returns the permission of a signed URL, and its Tenant. Every failure is
// Denied; expiry is reported only for a URL with a valid signature.
func (s *URLs) Check(ctx context.Context, method string, query url.Values) (sandbox.TenantID, URLGrant, error) {
	g := URLGrant{Method: method, SandboxID: query.Get("sandbox_id"), Path: query.Get("path")}
	if g.Method == "HEAD" {
		g.Method = "GET"
	}
	if !onlyOurs(query) {
		return "", g, errURL
	}
	key, err := keyOf(ctx, s.keys, query.Get(paramKey), errURL)
	if err != nil {
		return "", g, err
	}
	unsigned := url.Values{}
	for _, name := range []string{"sandbox_id", "path", paramKey, paramExpires} {
		unsigned[name] = query[name]
	}
	if !verify(query.Get(paramSignature), key.Secret, urlPurpose, urlContent(g.Method, unsigned)) {
		return "", g, errURL
	}
	seconds, err := strconv.ParseInt(query.Get(paramExpires), 10, 64)
	if err != nil {
		return "", g, errURL
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
