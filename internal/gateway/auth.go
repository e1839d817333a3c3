package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/signing"
)

// TokenLife is the default lifetime of a token.
const TokenLife = 24 * time.Hour

const (
	tokenIssuer   = "cloud-sandbox"
	tokenAudience = "cloud-sandbox-api"
	minSecret     = 32   // bytes; as long as the hash of HS256
	maxToken      = 4096 // bytes; ours have about 400
	maxUserID     = 128  // characters
)

// Tokens mints and checks the bearer tokens of this installation: JWTs signed
// with HS256. Its methods are safe for concurrent use.
type Tokens struct {
	secret []byte
	parser *jwt.Parser
	now    func() time.Time
}

// claims are the claims of a token.
type claims struct {
	Tenant sandbox.TenantID `json:"tenant"`
	User   string           `json:"user"`
	Role   sandbox.Role     `json:"role"`
	jwt.RegisteredClaims
}

// NewTokens returns Tokens that sign with secret, which must have at least 32
// bytes. now is the clock; nil means time.Now.
func NewTokens(secret []byte, now func() time.Time) (*Tokens, error) {
	if len(secret) < minSecret {
		return nil, fmt.Errorf("the signing secret has %d bytes; it needs at least %d", len(secret), minSecret)
	}
	if now == nil {
		now = time.Now
	}
	return &Tokens{
		secret: append([]byte(nil), secret...),
		now:    now,
		parser: jwt.NewParser(
			// The server chooses the algorithm, never the token.
			jwt.WithValidMethods([]string{jwt.SigningMethodHS256.Alg()}),
			jwt.WithIssuer(tokenIssuer),
			jwt.WithAudience(tokenAudience),
			jwt.WithExpirationRequired(),
			jwt.WithIssuedAt(),
			jwt.WithTimeFunc(now),
			jwt.WithStrictDecoding(),
		),
	}, nil
}

// Mint returns a token for an Identity and the time at which it expires, life from now.
// life must be in (0, 366 days], zero means TokenLife. Mint returns Invalid for an
// Identity without a Tenant, with a Tenant of more than 128 bytes or with an unknown
// Role.
func (t *Tokens) Mint(who sandbox.Identity, life time.Duration) (token string, expires time.Time, err error) {
	if life == 0 {
		life = TokenLife
	}
	if life < 0 || life > 366*24*time.Hour {
		return "", time.Time{}, sandbox.Errorf(sandbox.Invalid, "a token may live for at most 366 days")
	}
	if err := checkIdentity(who); err != nil {
		return "", time.Time{}, err
	}
	now := t.now()
	expires = now.Add(life)
	signed, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims{
		Tenant: who.Tenant, User: who.User, Role: who.Role,
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer:    tokenIssuer,
			Audience:  jwt.ClaimStrings{tokenAudience},
			IssuedAt:  jwt.NewNumericDate(now),
			ExpiresAt: jwt.NewNumericDate(expires),
		},
	}).SignedString(t.secret)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("sign a token: %w", err)
	}
	return signed, expires, nil
}

func checkIdentity(who sandbox.Identity) error {
	switch {
	case who.Tenant == "" || len(who.Tenant) > 128:
		return sandbox.Errorf(sandbox.Invalid, "a tenant has 1 to 128 bytes")
	case !who.Role.Valid():
		return sandbox.Errorf(sandbox.Invalid, "a role is one of %q", sandbox.Roles())
	}
	return nil
}

// keyHeader carries an API key, as E2B's clients send it.
const keyHeader = "X-API-Key"

// errAnonymous is the answer to every invalid token. It does not say which part of the
// token was wrong.
var errAnonymous = sandbox.Errorf(sandbox.Anonymous, "send a valid token or API key as Authorization: Bearer TOKEN, or an API key as X-API-Key")

// Check returns the Identity of a token. Every failure is the same Anonymous, except
// for an expired token that was signed here. The Cause, for logs, says what was wrong.
func (t *Tokens) Check(token string) (sandbox.Identity, error) {
	if len(token) > maxToken {
		return sandbox.Identity{}, errAnonymous.WithCause(errors.New("the token is too long"))
	}
	var c claims
	parsed, err := t.parser.ParseWithClaims(token, &c, func(*jwt.Token) (any, error) { return t.secret, nil })
	if err == nil {
		err = checkForm(parsed)
	}
	switch {
	case errors.Is(err, jwt.ErrTokenExpired) && c.ExpiresAt != nil: // its signature is checked first
		return sandbox.Identity{}, sandbox.Errorf(sandbox.Anonymous,
			"the token expired at %s: make a new one with `cloud-sandbox token create` on the server, or in dev mode with POST /api/v1/auth/token",
			c.ExpiresAt.UTC().Format(time.RFC3339)).WithCause(err)
	case err != nil:
		return sandbox.Identity{}, errAnonymous.WithCause(err)
	}
	who := sandbox.Identity{Tenant: c.Tenant, User: c.User, Role: c.Role}
	if err := checkIdentity(who); err != nil {
		return sandbox.Identity{}, errAnonymous.WithCause(err)
	}
	if (sandbox.User{ID: who.User}).Check() == nil { // some tokens are for no particular person
		who.Person, who.Profile = who.User, &sandbox.Profile{Source: sandbox.UserByToken}
	}
	return who, nil
}

// checkForm refuses tokens that the parser accepts wrongly: with critical extensions
// (RFC 7515, 4.1.11), of which we know none, or with times as text (RFC 7519, 2).
func checkForm(t *jwt.Token) error {
	if _, ok := t.Header["crit"]; ok {
		return errors.New(`the header has "crit"`)
	}
	_, rest, _ := strings.Cut(t.Raw, ".")
	payload, _, _ := strings.Cut(rest, ".")
	raw, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil {
		return err
	}
	var times struct {
		Expires json.RawMessage `json:"exp"`
		Issued  json.RawMessage `json:"iat"`
		Begins  json.RawMessage `json:"nbf"`
	}
	if err := json.Unmarshal(raw, &times); err != nil {
		return err
	}
	for _, at := range []json.RawMessage{times.Expires, times.Issued, times.Begins} {
		if bytes.HasPrefix(at, []byte(`"`)) {
			return errors.New("a time is not a number")
		}
	}
	return nil
}

// Signed reports whether a token was signed here, whether or not Check accepts it now.
// It ignores the unused bits of the last base64 character: anyone who gets the token
// could correct them.
func (t *Tokens) Signed(token string) bool {
	i := strings.LastIndexByte(token, '.')
	if i < 0 || len(token) > maxToken {
		return false
	}
	sum, err := base64.RawURLEncoding.DecodeString(token[i+1:])
	if err != nil {
		return false
	}
	return jwt.SigningMethodHS256.Verify(token[:i], sum, t.secret) == nil
}

// identify returns the Identity of a request by its one credential: a token or an API
// key as Authorization: Bearer, or an API key as X-API-Key. A browser's WebSocket
// cannot set headers and sends the credential as a subprotocol. Tokens of Volumes are
// accepted for files of that Volume only.
func (s *Server) identify(rt route, r *http.Request) (sandbox.Identity, error) {
	bearers, keys := r.Header.Values("Authorization"), r.Header.Values(keyHeader)
	if named := rest.SocketTokens(r); len(bearers)+len(keys) == 0 && len(named) == 1 {
		return s.credential(r.Context(), named[0])
	}
	if len(bearers)+len(keys) != 1 {
		return sandbox.Identity{}, errAnonymous.WithCause(fmt.Errorf("%d Authorization and %d %s headers", len(bearers), len(keys), keyHeader))
	}
	if len(keys) == 1 {
		return s.Keys.Check(r.Context(), keys[0])
	}
	scheme, token, ok := strings.Cut(bearers[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return sandbox.Identity{}, errAnonymous.WithCause(errors.New("not a bearer token"))
	}
	if rt.op.VolumeToken && signing.IsVolumeToken(token) {
		return s.openVolume(r, token)
	}
	return s.credential(r.Context(), token)
}

// openVolume returns the Identity of a Volume token. It may only read or write files of
// that Volume, as the token allows.
func (s *Server) openVolume(r *http.Request, token string) (sandbox.Identity, error) {
	g, err := s.e2b.VolumeTokens.Check(r.Context(), token)
	if err != nil {
		return sandbox.Identity{}, err
	}
	if r.PathValue("id") != g.Volume {
		return sandbox.Identity{}, sandbox.Errorf(sandbox.Anonymous, "this token is for another volume")
	}
	may := []sandbox.Scope{sandbox.ScopeRead}
	if g.Write {
		may = append(may, sandbox.ScopeWrite)
	}
	return sandbox.Identity{Tenant: g.Tenant, User: volumeTokenUser, Role: sandbox.RoleDeveloper, Scopes: may}, nil
}

// credential returns the Identity of an API key or a token, which an identity provider
// or this server issued. The credential's form decides only which check applies.
func (s *Server) credential(ctx context.Context, token string) (sandbox.Identity, error) {
	if sandbox.ValidKeySecret(token) {
		return s.Keys.Check(ctx, token)
	}
	if s.Issuers.Claims(token) {
		who, err := s.Issuers.Check(ctx, token)
		switch {
		case err == nil && who.Role == "": // valid only if the User was given a Role here
			_, err = s.Users.Admit(ctx, who)
		case err != nil && !errors.Is(err, sandbox.Denied) && !errors.Is(err, sandbox.Anonymous): // these two say what to do
			err = errAnonymous.WithCause(err)
		}
		return who, err
	}
	return s.Tokens.Check(token)
}

// DevIdentity is the Identity of a token of dev mode: each user has a Tenant of its
// own. role is as rest.ParseRole takes it. It returns Invalid for another role and for
// a user that is not 1 to 128 printable characters.
func DevIdentity(user, role string) (sandbox.Identity, error) {
	if err := checkUser(user); err != nil {
		return sandbox.Identity{}, err
	}
	r, err := rest.ParseRole(role)
	return sandbox.Identity{Tenant: userTenant("dev:", user), User: user, Person: user, Role: r}, err
}

func checkUser(user string) error {
	bad := sandbox.Errorf(sandbox.Invalid, "user_id must be 1 to %d printable characters", maxUserID)
	if n := utf8.RuneCountInString(user); n < 1 || n > maxUserID || !utf8.ValidString(user) {
		return bad
	}
	for _, c := range user {
		if !unicode.IsPrint(c) {
			return bad
		}
	}
	return nil
}

// userTenant is the Tenant of a user that the owner of prefix vouches for. Two users
// never share a Tenant: a slash only separates the two names, and an ID that is too
// long is replaced by its hash under a prefix that no other ID has.
func userTenant(prefix, user string) sandbox.TenantID {
	id := prefix + strings.NewReplacer("%", "%25", "/", "%2F").Replace(user)
	if len(id) <= 128 {
		return sandbox.TenantID(id)
	}
	sum := sha256.Sum256([]byte(id))
	return sandbox.TenantID("sha256:" + hex.EncodeToString(sum[:]))
}
