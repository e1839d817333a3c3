package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

const nodesPath = "/api/v1/nodes"

func nodePath(name string) string { return nodesPath + "/" + url.PathEscape(name) }

// Nodes lists all nodes by name, for operators.
func (c *Client) Nodes(ctx context.Context) ([]v1.NodeDetails, error) {
	var all v1.Nodes
	err := c.call(ctx, http.MethodGet, nodesPath, nil, nil, &all)
	return all.Nodes, err
}

// Node returns a node, for operators.
func (c *Client) Node(ctx context.Context, name string) (n v1.NodeDetails, err error) {
	err = c.call(ctx, http.MethodGet, nodePath(name), nil, nil, &n)
	return n, err
}

// SetDraining makes the Sandboxes of a node leave it, with its Volumes if volumes is set, or
// lets it take Sandboxes again.
func (c *Client) SetDraining(ctx context.Context, name string, draining, volumes bool) (n v1.NodeDetails, err error) {
	err = c.call(ctx, http.MethodPatch, nodePath(name), nil, v1.NodeChange{Draining: &draining, MoveVolumes: volumes}, &n)
	return n, err
}

// SetLost declares that nothing runs on a node any more, or takes that back.
func (c *Client) SetLost(ctx context.Context, name string, lost bool) (n v1.NodeDetails, err error) {
	err = c.call(ctx, http.MethodPatch, nodePath(name), nil, v1.NodeChange{Lost: &lost}, &n)
	return n, err
}
