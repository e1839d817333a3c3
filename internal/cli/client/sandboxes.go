package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// NetworkLog returns the latest decisions about a running Sandbox, oldest first. A
// verdict that is not empty, "allowed" or "refused", selects the decisions with it.
func (c *Client) NetworkLog(ctx context.Context, id, verdict string) (log v1.NetworkLog, err error) {
	query := url.Values{}
	if verdict != "" {
		query.Set("verdict", verdict)
	}
	err = c.call(ctx, http.MethodGet, session(id, "/network/log"), query, nil, &log)
	return log, err
}

// LinkPort makes a link to a port that is valid for life; zero: the server's default.
func (c *Client) LinkPort(ctx context.Context, id string, port uint16, life time.Duration) (v1.PortLink, error) {
	body := v1.PortLinkRequest{ExpiresInSeconds: v1.SecondsOf(life)}
	var link v1.PortLink
	err := c.call(ctx, http.MethodPost, "/api/v1/sessions/"+url.PathEscape(id)+"/ports/"+strconv.Itoa(int(port))+"/sign", nil, body, &link)
	return link, err
}

// GetPort returns the access to a port.
func (c *Client) GetPort(ctx context.Context, id string, port uint16) (p v1.Port, err error) {
	err = c.call(ctx, http.MethodGet, "/api/v1/sessions/"+url.PathEscape(id)+"/ports/"+strconv.Itoa(int(port)), nil, nil, &p)
	return p, err
}

// SetPort makes one port of a Sandbox private or public.
func (c *Client) SetPort(ctx context.Context, id string, port uint16, private bool) (p v1.Port, err error) {
	err = c.call(ctx, http.MethodPut, "/api/v1/sessions/"+url.PathEscape(id)+"/ports/"+strconv.Itoa(int(port)), nil, v1.PortRequest{Private: &private}, &p)
	return p, err
}

// Ports returns the listening ports of a Sandbox. If all is set, it includes the
// agent's ports. truncated means that the list is not complete.
func (c *Client) Ports(ctx context.Context, id string, all bool) (ports []v1.Listener, truncated bool, err error) {
	answer := v1.Listeners{Ports: []v1.Listener{}}
	query := url.Values{"all": {strconv.FormatBool(all)}}
	err = c.call(ctx, http.MethodGet, "/api/v1/sessions/"+url.PathEscape(id)+"/ports", query, nil, &answer)
	return answer.Ports, answer.Truncated, err
}

// Create returns when the Sandbox runs.
func (c *Client) Create(ctx context.Context, r v1.CreateRequest) (v1.Sandbox, error) {
	var s v1.Sandbox
	err := c.call(ctx, http.MethodPost, "/api/v1/sessions", nil, r, &s)
	return s, err
}

// Acquire takes a Sandbox from the Pool.
func (c *Client) Acquire(ctx context.Context) (v1.Sandbox, error) {
	var s v1.Sandbox
	err := c.call(ctx, http.MethodPost, "/api/v1/sandbox/acquire", nil, struct{}{}, &s)
	return s, err
}

// Get returns a Sandbox by ID or name.
func (c *Client) Get(ctx context.Context, id string) (v1.Sandbox, error) {
	var s v1.Sandbox
	err := c.call(ctx, http.MethodGet, "/api/v1/sessions/"+url.PathEscape(id), nil, nil, &s)
	return s, err
}

// End ends a Sandbox by ID or name and returns its last record.
func (c *Client) End(ctx context.Context, id string) (v1.Sandbox, error) {
	var s v1.Sandbox
	err := c.call(ctx, http.MethodDelete, "/api/v1/sessions/"+url.PathEscape(id), nil, nil, &s)
	return s, err
}

// pageSize is the server's largest page.
const pageSize = 100

// List returns Sandboxes, newest first. An empty states selects all states. A Sandbox
// must have all pairs of metadata. A limit of zero is no limit.
func (c *Client) List(ctx context.Context, states []string, metadata map[string]string, limit int) ([]v1.Sandbox, error) {
	query := url.Values{}
	if len(states) > 0 {
		query.Set("state", strings.Join(states, ","))
	}
	for k, v := range metadata {
		query.Set("metadata["+k+"]", v)
	}
	var all []v1.Sandbox
	for {
		var page v1.Sandboxes
		size := pageSize
		if limit > 0 {
			size = min(pageSize, limit-len(all))
		}
		query.Set("limit", strconv.Itoa(size))
		if err := c.call(ctx, http.MethodGet, "/api/v1/sessions", query, nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Sandboxes...)
		if page.Next == "" || len(page.Sandboxes) == 0 || limit > 0 && len(all) >= limit {
			return all, nil
		}
		query.Set("cursor", page.Next)
	}
}
