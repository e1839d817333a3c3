package rpc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Role is a kind of process of an installation.
type Role string

const (
	Gateway        Role = "gateway"
	SessionManager Role = "session-manager"
	Scheduler      Role = "scheduler"
	Node           Role = "node"
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
	Name   string           // of the Node, for the role node
	Tenant sandbox.TenantID // the Tenant that the call is for; empty: none
}

// Keys sign and check the tokens of calls. Methods are safe for concurrent use.
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

// check returns the caller of a process of the role to. Every failure is the same
// Anonymous.
func (k *Keys) check(h http.Header, to Role) (Caller, error) {
	scheme, token, _ := strings.Cut(h.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || len(token) > maxToken {
		return Caller{}, anonymous(errors.New("the bearer token is missing"))
	}
	var c claims
	_, err := jwt.ParseWithClaims(token, &c, func(*jwt.Token) (any, error) { return k.secret, nil },
		jwt.WithValidMethods([]string{jwt.SigningMethodHS256.Alg()}), // the server chooses, never the token
		jwt.WithAudience(string(to)), jwt.WithExpirationRequired(), jwt.WithLeeway(leeway), jwt.WithStrictDecoding())
	if err != nil {
		return Caller{}, anonymous(err)
	}
	return Caller{Role: Role(c.Issuer), Name: c.Name, Tenant: c.Tenant}, nil
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
