package rpc

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	keyv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/key/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/keys"
)

// apiKeys is the service of Keys.
type apiKeys struct{ keys *keys.Service }

func keyOf(k sandbox.Key) *keyv1.Key {
	v := &keyv1.Key{
		KeyId: k.ID, Name: text(k.Name), Role: rest.RoleName(k.Role), Hint: k.Hint, CreatedBy: k.CreatedBy,
		CreatedAt: timestamp(k.CreatedAt), ExpiresAt: timestamp(k.ExpiresAt), LastUsedAt: timestamp(k.LastUsed()),
	}
	for _, s := range k.Scopes {
		v.Scopes = append(v.Scopes, string(s))
	}
	if p := k.Previous; p.ValidAt(time.Now()) {
		v.Previous = &keyv1.Previous{Hint: p.Hint, ValidUntil: timestamp(p.Until), LastUsedAt: timestamp(p.UsedAt)}
	}
	return v
}

func keyRequestOf(m *keyv1.CreateRequest) (keys.Request, error) {
	req := keys.Request{Name: m.Name}
	for _, s := range m.Scopes {
		req.Scopes = append(req.Scopes, sandbox.Scope(s))
	}
	if m.ExpiresInSeconds != nil {
		life, err := seconds("expires_in_seconds", *m.ExpiresInSeconds)
		if err != nil || life < time.Second {
			return req, sandbox.Errorf(sandbox.Invalid, "expires_in_seconds must be at least 1, or absent for a key that does not expire")
		}
		req.Life = life
	}
	var err error
	if m.Role != "" {
		req.Role, err = rest.ParseRole(m.Role)
	}
	return req, err
}

// Create implements the service.
func (s apiKeys) Create(ctx context.Context, r *connect.Request[keyv1.CreateRequest]) (*connect.Response[keyv1.CreateResponse], error) {
	req, err := keyRequestOf(r.Msg)
	if err != nil {
		return nil, err
	}
	req.ID = rest.ResourceLike(ctx, "k")
	key, secret, err := s.keys.Create(ctx, callOf(ctx).who, req)
	if err != nil {
		return nil, err
	}
	rest.Made(ctx, key.ID)
	return connect.NewResponse(&keyv1.CreateResponse{Key: keyOf(key), Secret: secret}), nil
}

// List implements the service.
func (s apiKeys) List(ctx context.Context, _ *connect.Request[keyv1.ListRequest]) (*connect.Response[keyv1.ListResponse], error) {
	all, err := s.keys.List(ctx, tenantOf(ctx))
	if err != nil {
		return nil, err
	}
	res := &keyv1.ListResponse{}
	for _, k := range all {
		res.Keys = append(res.Keys, keyOf(k))
	}
	return connect.NewResponse(res), nil
}

// Rotate implements the service.
func (s apiKeys) Rotate(ctx context.Context, r *connect.Request[keyv1.RotateRequest]) (*connect.Response[keyv1.RotateResponse], error) {
	rest.Names(ctx, r.Msg.KeyId)
	overlap := sandbox.DefaultKeyOverlap
	if r.Msg.OverlapSeconds != nil {
		var err error
		if overlap, err = secondsOrNone("overlap_seconds", *r.Msg.OverlapSeconds); err != nil {
			return nil, err
		}
	}
	key, secret, err := s.keys.Rotate(ctx, callOf(ctx).who, r.Msg.KeyId, overlap)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&keyv1.RotateResponse{Key: keyOf(key), Secret: secret}), nil
}

// Revoke implements the service.
func (s apiKeys) Revoke(ctx context.Context, r *connect.Request[keyv1.RevokeRequest]) (*connect.Response[keyv1.RevokeResponse], error) {
	rest.Names(ctx, r.Msg.KeyId)
	if err := s.keys.Revoke(ctx, callOf(ctx).who, r.Msg.KeyId); err != nil {
		return nil, err
	}
	return connect.NewResponse(&keyv1.RevokeResponse{}), nil
}
