// Package oidc accepts tokens of identity providers: JWTs that an issuer signed with a
// key that it publishes, for us as audience. The operator's configuration maps a token's
// claims to a Tenant, a user and a Role.
package oidc

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const (
	maxToken = 16 << 10 // bytes
	maxUser  = 128      // characters
	maxRoles = 1000     // values of a role claim that are read
)

// Issuers checks tokens of several issuers. It is safe for concurrent use.
type Issuers struct {
	byURL map[string]*issuer
}

type issuer struct {
	Issuer
	verifier *oidc.IDTokenVerifier
}

// Option changes how Issuers work.
type Option func(*options)

type options struct {
	client *http.Client
	now    func() time.Time
}

// WithClient sets the HTTP client for requests to issuers.
func WithClient(c *http.Client) Option { return func(o *options) { o.client = c } }

// WithClock sets the clock.
func WithClock(now func() time.Time) Option { return func(o *options) { o.now = now } }

// New returns Issuers. No request is made before the first token comes.
func New(all []Issuer, opts ...Option) *Issuers {
	o := options{client: &http.Client{Timeout: askLimit}, now: time.Now}
	for _, opt := range opts {
		opt(&o)
	}
	client := *o.client
	client.CheckRedirect = onlyHTTPS
	var names []string
	for _, a := range algorithms {
		names = append(names, string(a))
	}
	s := &Issuers{byURL: map[string]*issuer{}}
	for _, is := range all {
		keys := &keySet{issuer: is.URL, client: &client, now: o.now}
		s.byURL[is.URL] = &issuer{is, oidc.NewVerifier(is.URL, keys, &oidc.Config{
			ClientID: is.Audience, SupportedSigningAlgs: names, Now: o.now,
		})}
	}
	return s
}

// Logins returns the issuers that support command-line login, by name.
func (s *Issuers) Logins() (all []Issuer) {
	if s == nil {
		return nil
	}
	for _, is := range s.byURL {
		if is.ClientID == "" {
			continue
		}
		one := is.Issuer
		if one.Scopes == nil {
			one.Scopes = []string{oidc.ScopeOpenID, oidc.ScopeOfflineAccess}
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Issuer) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Claims reports whether a token names one of the issuers. Nothing is verified.
func (s *Issuers) Claims(token string) bool { return s != nil && s.of(token) != nil }

// MayBeValid reports whether a token names one of the issuers and us as audience. Nothing is
// verified: it is for keeping tokens that may be valid from others.
func (s *Issuers) MayBeValid(token string) bool {
	if !s.Claims(token) {
		return false
	}
	var says struct {
		Audience audience `json:"aud"`
	}
	return json.Unmarshal(payloadOf(token), &says) == nil && slices.Contains(says.Audience, s.of(token).Audience)
}

// audience is one string or several.
type audience []string

// UnmarshalJSON reads either.
func (a *audience) UnmarshalJSON(raw []byte) error {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		*a = audience{one}
		return nil
	}
	return json.Unmarshal(raw, (*[]string)(a))
}

// payloadOf is the payload of a token; nil: not a JWT.
func payloadOf(token string) []byte {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil
	}
	return payload
}

// of is the issuer that a token names; nil: unknown.
func (s *Issuers) of(token string) *issuer {
	if len(token) > maxToken || len(s.byURL) == 0 {
		return nil
	}
	var says struct {
		Issuer string `json:"iss"`
	}
	if json.Unmarshal(payloadOf(token), &says) != nil {
		return nil
	}
	return s.byURL[says.Issuer]
}

// Check returns the Identity of a token. Its Role may be empty: then the token alone
// permits nothing. An error is for logs only, except one with the Code Denied: the token
// is valid, and its user may not come in.
func (s *Issuers) Check(ctx context.Context, token string) (sandbox.Identity, error) {
	is := s.of(token)
	if is == nil {
		return sandbox.Identity{}, errors.New("the issuer of the token is unknown")
	}
	verified, err := is.verifier.Verify(ctx, token)
	var late *oidc.TokenExpiredError
	if errors.As(err, &late) {
		return sandbox.Identity{}, sandbox.Errorf(sandbox.Anonymous, "the token expired at %s: log in again with `cloud-sandbox login`, or get a new one from your identity provider",
			late.Expiry.UTC().Format(time.RFC3339)).WithCause(err)
	}
	if err != nil {
		return sandbox.Identity{}, err
	}
	if verified.Expiry.Unix() <= 0 {
		return sandbox.Identity{}, errors.New("the token does not expire")
	}
	claims := map[string]any{}
	if err := verified.Claims(&claims); err != nil {
		return sandbox.Identity{}, err
	}
	for _, name := range []string{"exp", "iat", "nbf"} {
		if _, text := claims[name].(string); text { // the verifier accepts it as a number
			return sandbox.Identity{}, fmt.Errorf("%s is not a number", name)
		}
	}
	return is.identity(verified.Subject, claims)
}

// identity maps the claims of a verified token.
func (is *issuer) identity(subject string, claims map[string]any) (sandbox.Identity, error) {
	if !printable(subject) {
		return sandbox.Identity{}, fmt.Errorf("sub must be 1 to %d printable characters", maxUser)
	}
	tenant, err := is.tenant(claims)
	if err != nil {
		return sandbox.Identity{}, err
	}
	user := is.Name + ":" + subject
	name, _ := claims["name"].(string)
	email, _ := claims["email"].(string)
	if verified, says := claims["email_verified"].(bool); says && !verified {
		email = ""
	}
	return sandbox.Identity{
		Tenant: tenant, User: user, Person: user, Role: is.role(claims),
		Profile: sandbox.ProfileOf(sandbox.UserByIssuer, is.Name, name, email),
	}, nil
}

func (is *issuer) tenant(claims map[string]any) (sandbox.TenantID, error) {
	if is.Tenant != "" {
		return is.Tenant, nil
	}
	value, _ := claims[is.TenantClaim].(string)
	if is.Tenants != nil {
		if t, ok := is.Tenants[value]; ok {
			return t, nil
		}
		return "", sandbox.Errorf(sandbox.Denied, "your account belongs to no tenant here: ask the operator of this server")
	}
	if !printable(value) || strings.Contains(value, "/") || len(is.Name)+1+len(value) > 128 {
		return "", sandbox.Errorf(sandbox.Denied, "your account names no tenant: its claim %q must be a text of 1 to 95 bytes without a slash", is.TenantClaim)
	}
	return sandbox.TenantID(is.Name + ":" + value), nil
}

// role is the highest Role that the claims give; empty: none.
func (is *issuer) role(claims map[string]any) sandbox.Role {
	var values []any
	switch claim := claims[is.RoleClaim].(type) {
	case string:
		values = []any{claim}
	case []any:
		values = claim[:min(len(claim), maxRoles)]
	}
	var best sandbox.Role
	for _, v := range values {
		name, _ := v.(string)
		if r := is.Roles[name]; r.Above(best) {
			best = r
		}
	}
	return cmp.Or(best, is.Role)
}

func printable(s string) bool {
	n := utf8.RuneCountInString(s)
	if n < 1 || n > maxUser || !utf8.ValidString(s) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}
