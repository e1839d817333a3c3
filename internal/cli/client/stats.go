package client

import (
	"context"
	"net/http"
)

// Pool is what the API tells of a Node's Pool of Boots that wait for an owner.
type Pool struct {
	Node     string `json:"node"`
	Template string `json:"template"`
	Idle     int    `json:"idle"`
	Starting int    `json:"starting"`
	Min      int    `json:"min"`
	Max      int    `json:"max"`
}

// Pools returns the Pools of all Nodes.
func (c *Client) Pools(ctx context.Context) ([]Pool, error) {
	var stats struct {
		Pools []Pool `json:"pools"`
	}
	err := c.call(ctx, http.MethodGet, "/api/v1/sandbox/stats", nil, nil, &stats)
	return stats.Pools, err
}
