package client

import (
	"context"
	"net/http"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// Pools returns the Pools of all Nodes.
func (c *Client) Pools(ctx context.Context) ([]v1.Pool, error) {
	var stats v1.Stats
	err := c.call(ctx, http.MethodGet, "/api/v1/sandbox/stats", nil, nil, &stats)
	return stats.Pools, err
}
