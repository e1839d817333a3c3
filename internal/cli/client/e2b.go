package client

import (
	"context"
	"net/http"
)

// E2BSettings are what a client of E2B has to know of a server.
type E2BSettings struct {
	Domain    string `json:"domain"`    // ports of sandboxes are at PORT-ID.Domain
	TLS       bool   `json:"tls"`       // the server speaks it
	Authority string `json:"authority"` // in PEM, to be trusted for that; empty: none
}

// E2BSettings returns those of the server.
func (c *Client) E2BSettings(ctx context.Context) (s E2BSettings, err error) {
	err = c.call(ctx, http.MethodGet, "/e2b/settings", nil, nil, &s)
	return s, err
}
