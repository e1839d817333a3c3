package rpc

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/cluster"
)

// Role is a kind of process of an installation.
type Role string

const (
	Gateway        Role = cluster.Gateway
	SessionManager Role = cluster.SessionManager
	Scheduler      Role = cluster.Scheduler
	Node           Role = cluster.Node
)

const (
	// tokenLife is how long a token is valid: one call begins within it. leeway is the
	// allowed difference of clocks.
	tokenLife = 30 * time.Second
	leeway    = 10 * time.Second
	minSecret = 32 // bytes
	maxToken  = 4096
)

// Caller is the sender of a call.
type Caller struct {
	Role   Role
	Name   string           // of the instance, from its certificate; on a socket only a Node has one
	Tenant sandbox.TenantID // the Tenant that the call is for; empty: none
}

// Keys sign and check the tokens of calls without TLS. Methods are safe for concurrent use.
type Keys struct {
	secret []byte
}

// NewKeys returns Keys of a secret that all roles share, of at least 32 bytes.
func NewKeys(secret []byte) (*Keys, error) {
	if len(secret) < minSecret {
		return nil, fmt.Errorf("the secret of the services has %d bytes; it needs at least %d", len(secret), minSecret)
	}
	return &Keys{secret: slices.Clone(secret)}, nil
}

type claims struct {
	Name   string           `json:"name,omitempty"`
	Tenant sandbox.TenantID `json:"tenant,omitempty"`
	jwt.RegisteredClaims
}

// sign makes the token of a call to a process of the role to.
func (k *Keys) sign(c Caller, to Role) (string, error) {
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims{
		Name: c.Name, Tenant: c.Tenant,
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer: string(c.Role), Audience: jwt.ClaimStrings{string(to)},
			ExpiresAt: jwt.NewNumericDate(time.Now().Add(tokenLife)),
		},
	}).SignedString(k.secret)
	if err != nil {
		return "", fmt.Errorf("sign a call: %w", err)
	}
	return token, nil
}

// audience is the process that a token is for: a Node by its name, so that no other Node
// accepts the token, and any instance of another role.
func audience(role Role, name string) string {
	if role == Node {
		return string(role) + "/" + name
	}
	return string(role)
}

// signFor makes the token of a call over TLS, for tenant, which may be empty. It names its
// issuer, but the other end takes that from the certificate.
func signFor(pair *cluster.Pair, tenant sandbox.TenantID, to string) (string, error) {
	key, algorithm := pair.Key()
	token, err := jwt.NewWithClaims(jwt.GetSigningMethod(algorithm), claims{
		Tenant: tenant,
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer: pair.ID.String(), Audience: jwt.ClaimStrings{to}, ExpiresAt: jwt.NewNumericDate(time.Now().Add(tokenLife)),
		},
	}).SignedString(key)
	if err != nil {
		return "", fmt.Errorf("sign a call with the key of the certificate: %w", err)
	}
	return token, nil
}

// checkSigned returns the caller over TLS with certs, whose token must be signed with the
// key of the first one and be for the audience to. Every failure is the same Anonymous.
func (s *checkedTokens) checkSigned(pair *cluster.Pair, certs []*x509.Certificate, h http.Header, to string) (Caller, error) {
	id, err := pair.Peer(certs, x509.ExtKeyUsageClientAuth)
	if err != nil {
		return Caller{}, anonymous(err)
	}
	algorithm, err := cluster.Algorithm(certs[0])
	if err != nil {
		return Caller{}, anonymous(err)
	}
	c, err := s.check(h, algorithm, certs[0], to, id.String())
	if err != nil {
		return Caller{}, err
	}
	return Caller{Role: Role(id.Role), Name: id.Name, Tenant: c.Tenant}, nil
}

// check returns the caller of a process of the role to. Every failure is the same
// Anonymous.
func (k *Keys) check(h http.Header, to Role) (Caller, error) {
	c, err := parseToken(h, jwt.SigningMethodHS256.Alg(), k.secret, jwt.WithAudience(string(to)))
	if err != nil {
		return Caller{}, err
	}
	return Caller{Role: Role(c.Issuer), Name: c.Name, Tenant: c.Tenant}, nil
}

// parseToken checks the bearer token with a key. The server chooses the algorithm, never
// the token.
func parseToken(h http.Header, algorithm string, key any, options ...jwt.ParserOption) (claims, error) {
	scheme, token, _ := strings.Cut(h.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || len(token) > maxToken {
		return claims{}, anonymous(errors.New("the bearer token is missing"))
	}
	var c claims
	options = append(options, jwt.WithValidMethods([]string{algorithm}), jwt.WithExpirationRequired(), jwt.WithLeeway(leeway), jwt.WithStrictDecoding())
	if _, err := jwt.ParseWithClaims(token, &c, func(*jwt.Token) (any, error) { return key, nil }, options...); err != nil {
		return claims{}, anonymous(err)
	}
	return c, nil
}

func anonymous(cause error) error {
	return sandbox.Errorf(sandbox.Anonymous, "this service is for the other roles of the installation").WithCause(cause)
}

// may returns Denied unless the caller has one of the roles.
func (c Caller) may(roles ...Role) error {
	if slices.Contains(roles, c.Role) {
		return nil
	}
	return sandbox.Errorf(sandbox.Denied, "the role %.32s may not make this call", string(c.Role))
}

type callerKey struct{}

func withCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// callerOf returns the caller of ctx's call.
func callerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}
