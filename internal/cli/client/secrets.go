package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Secret is what may be told of a value that code can use and never see.
type Secret struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Hosts       []string        `json:"hosts"`
	UpdatedAt   time.Time       `json:"updated_at"`
	Raw         json.RawMessage `json:"-"`
}

// UnmarshalJSON keeps the Secret as it came too.
func (s *Secret) UnmarshalJSON(raw []byte) error {
	type plain Secret
	s.Raw = append(json.RawMessage(nil), raw...)
	return json.Unmarshal(raw, (*plain)(s))
}

// MarshalJSON gives the text as the server said it.
func (s Secret) MarshalJSON() ([]byte, error) { return s.Raw, nil }

const secretsPath = "/api/v1/secrets"

func secretPath(name string) string { return secretsPath + "/" + url.PathEscape(name) }

// Secrets lists the caller's Secrets by name.
func (c *Client) Secrets(ctx context.Context) ([]Secret, error) {
	var reply struct {
		Secrets []Secret `json:"secrets"`
	}
	err := c.call(ctx, http.MethodGet, secretsPath, nil, nil, &reply)
	return reply.Secrets, err
}

// SetSecret makes a Secret, or gives the one of this name another value. A nil
// description leaves the one that it has, and nil hosts those.
func (c *Client) SetSecret(ctx context.Context, name, value string, description *string, hosts *[]string) (s Secret, err error) {
	body := map[string]any{"value": value}
	if description != nil {
		body["description"] = *description
	}
	if hosts != nil {
		body["hosts"] = *hosts
	}
	err = c.call(ctx, http.MethodPut, secretPath(name), nil, body, &s)
	if !errors.Is(err, sandbox.NotFound) {
		return s, err
	}
	body["name"] = name
	err = c.call(ctx, http.MethodPost, secretsPath, nil, body, &s)
	return s, err
}

// DeleteSecret removes a Secret.
func (c *Client) DeleteSecret(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, secretPath(name), nil, nil, nil)
}
