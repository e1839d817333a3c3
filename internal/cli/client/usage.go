package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// Usage returns all matching rows. query holds the API's parameters.
func (c *Client) Usage(ctx context.Context, query url.Values) ([]v1.Usage, error) {
	var all []v1.Usage
	for {
		var page v1.UsageRows
		if err := c.call(ctx, http.MethodGet, "/api/v1/usage", query, nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Rows...)
		if page.Next == "" || len(page.Rows) == 0 {
			return all, nil
		}
		query.Set("cursor", page.Next)
	}
}
