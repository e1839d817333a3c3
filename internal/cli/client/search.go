package client

import (
	"context"
	"net/http"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// Search looks for lines or files.
func (c *Client) Search(ctx context.Context, r v1.SearchRequest) (found v1.Matches, err error) {
	err = c.call(ctx, http.MethodPost, "/api/v1/files/search", nil, r, &found)
	return found, err
}

// Replace replaces text in files.
func (c *Client) Replace(ctx context.Context, r v1.ReplaceRequest) (done v1.ReplacedFiles, err error) {
	err = c.call(ctx, http.MethodPost, "/api/v1/files/replace", nil, r, &done)
	return done, err
}
