package client

import (
	"context"
	"net/http"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// SignFile makes a URL that gives its holder access to one file, until it expires.
func (c *Client) SignFile(ctx context.Context, r v1.SignRequest) (signed v1.SignedURL, err error) {
	err = c.call(ctx, http.MethodPost, "/api/v1/files/sign", nil, r, &signed)
	return signed, err
}
