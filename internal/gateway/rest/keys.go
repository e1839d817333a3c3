package rest

import (
	"context"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/keys"
)

// ParseRole parses a client's name for a Role: "user" or the Role's own name. Other
// names are Invalid.
func ParseRole(name string) (sandbox.Role, error) {
	if name == v1.RoleUser {
		return sandbox.RoleDeveloper, nil
	}
	if r := sandbox.Role(name); r.Valid() {
		return r, nil
	}
	return "", sandbox.Errorf(sandbox.Invalid, `role must be "viewer", "user", "admin", "owner" or "operator"`)
}

// CreateKey creates a Key and returns it with its secret.
func (a *API) CreateKey(ctx context.Context, c Call, in *v1.KeyRequest) (v1.Key, error) {
	req := keys.Request{ID: ResourceLike(ctx, "k"), Name: in.Name, Scopes: in.Scopes}
	if in.ExpiresInSeconds != nil {
		if req.Life = in.ExpiresInSeconds.Duration(); req.Life < time.Second {
			return v1.Key{}, sandbox.Errorf(sandbox.Invalid, "expires_in_seconds must be at least 1, or absent for a key that does not expire")
		}
	}
	if in.Role != "" {
		var err error
		if req.Role, err = ParseRole(in.Role); err != nil {
			return v1.Key{}, err
		}
	}
	key, secret, err := a.Keys.Create(ctx, c.Who, req)
	if err != nil {
		return v1.Key{}, err
	}
	Made(ctx, key.ID)
	view := v1.KeyOf(key)
	view.Secret = secret
	return view, nil
}

// RotateKey gives a Key another secret and returns it with the Key.
func (a *API) RotateKey(ctx context.Context, c Call, in *v1.KeyRotation) (v1.Key, error) {
	overlap := sandbox.DefaultKeyOverlap
	if in.OverlapSeconds != nil {
		overlap = time.Duration(*in.OverlapSeconds)
	}
	key, secret, err := a.Keys.Rotate(ctx, c.Who, c.ID, overlap)
	if err != nil {
		return v1.Key{}, err
	}
	view := v1.KeyOf(key)
	view.Secret = secret
	return view, nil
}

// ListKeys returns all Keys of the Tenant.
func (a *API) ListKeys(ctx context.Context, c Call, _ *noQuery) (v1.Keys, error) {
	all, err := a.Keys.List(ctx, c.Who.Tenant)
	views := make([]v1.Key, len(all))
	for i, k := range all {
		views[i] = v1.KeyOf(k)
	}
	return v1.Keys{Keys: views}, err
}

// DeleteKey revokes a Key.
func (a *API) DeleteKey(ctx context.Context, c Call, _ *Nothing) (Nothing, error) {
	return Nothing{}, a.Keys.Revoke(ctx, c.Who, c.ID)
}
