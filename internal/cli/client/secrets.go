package client

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

const secretsPath = "/api/v1/secrets"

func secretPath(name string) string { return secretsPath + "/" + url.PathEscape(name) }

// Secrets lists the caller's Secrets by name.
func (c *Client) Secrets(ctx context.Context) ([]v1.Secret, error) {
	var reply v1.Secrets
	err := c.call(ctx, http.MethodGet, secretsPath, nil, nil, &reply)
	return reply.Secrets, err
}

// SetSecret creates a Secret or replaces its value. A nil description or nil hosts
// keeps the current one.
func (c *Client) SetSecret(ctx context.Context, name, value string, description *string, hosts *[]string) (s v1.Secret, err error) {
	body := v1.SecretReplacement{Value: value, Description: description, Hosts: (*v1.SecretHosts)(hosts)}
	err = c.call(ctx, http.MethodPut, secretPath(name), nil, body, &s)
	if !errors.Is(err, sandbox.NotFound) {
		return s, err
	}
	err = c.call(ctx, http.MethodPost, secretsPath, nil, v1.SecretRequest{Name: name, SecretReplacement: body}, &s)
	return s, err
}

// DeleteSecret removes a Secret.
func (c *Client) DeleteSecret(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, secretPath(name), nil, nil, nil)
}
