package client

import (
	"context"
	"net/http"
)

// E2BSettings are the settings of a server that a client of E2B needs.
type E2BSettings struct {
	Domain    string `json:"domain"`    // ports of sandboxes are at PORT-ID.Domain
	TLS       bool   `json:"tls"`       // the server uses TLS
	Authority string `json:"authority"` // certificate in PEM, to be trusted for it; empty: none
}

// E2BSettings returns the server's settings for clients of E2B.
func (c *Client) E2BSettings(ctx context.Context) (s E2BSettings, err error) {
	err = c.call(ctx, http.MethodGet, "/e2b/settings", nil, nil, &s)
	return s, err
}
