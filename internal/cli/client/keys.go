package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

const keysPath = "/api/v1/keys"

func keyPath(id string) string { return keysPath + "/" + url.PathEscape(id) }

// CreateKey makes a Key of the caller's Tenant and shows its secret.
func (c *Client) CreateKey(ctx context.Context, k v1.KeyRequest) (made v1.Key, err error) {
	err = c.call(ctx, http.MethodPost, keysPath, nil, k, &made)
	return made, err
}

// Keys lists the Keys of the caller's Tenant, newest first.
func (c *Client) Keys(ctx context.Context) ([]v1.Key, error) {
	var reply v1.Keys
	err := c.call(ctx, http.MethodGet, keysPath, nil, nil, &reply)
	return reply.Keys, err
}

// RotateKey gives a Key a new secret and returns it. The old secret stays valid for
// overlap.
func (c *Client) RotateKey(ctx context.Context, id string, overlap time.Duration) (k v1.Key, err error) {
	err = c.call(ctx, http.MethodPost, keyPath(id)+"/rotate", nil, v1.KeyRotation{OverlapSeconds: new(v1.SecondsOrNone(overlap))}, &k)
	return k, err
}

// RevokeKey ends a Key.
func (c *Client) RevokeKey(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, keyPath(id), nil, nil, nil)
}
