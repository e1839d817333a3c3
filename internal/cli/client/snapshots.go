package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

func session(id, what string) string { return "/api/v1/sessions/" + url.PathEscape(id) + what }

// Pause returns when the state of a Sandbox is saved.
func (c *Client) Pause(ctx context.Context, id string, filesOnly bool) (v1.Sandbox, error) {
	var s v1.Sandbox
	err := c.call(ctx, http.MethodPost, session(id, "/pause"), nil, v1.SaveRequest{Memory: new(!filesOnly)}, &s)
	return s, err
}

// Resume returns when a paused Sandbox runs.
func (c *Client) Resume(ctx context.Context, id string, filesOnly bool) (v1.Sandbox, error) {
	var s v1.Sandbox
	err := c.call(ctx, http.MethodPost, session(id, "/resume"), nil, v1.SaveRequest{Memory: new(!filesOnly)}, &s)
	return s, err
}

// Rollback resets a Sandbox to a Snapshot, by ID or name.
func (c *Client) Rollback(ctx context.Context, id, snapshot string) (v1.Sandbox, error) {
	var s v1.Sandbox
	err := c.call(ctx, http.MethodPost, session(id, "/rollback"), nil, v1.RollbackRequest{SnapshotID: snapshot}, &s)
	return s, err
}

// Fork returns when all copies run or have failed.
func (c *Client) Fork(ctx context.Context, id string, r v1.ForkRequest) ([]v1.Fork, error) {
	var reply v1.Forks
	err := c.call(ctx, http.MethodPost, session(id, "/fork"), nil, r, &reply)
	return reply.Forks, err
}

// TakeSnapshot returns when a Sandbox is saved.
func (c *Client) TakeSnapshot(ctx context.Context, id, name string, filesOnly bool) (v1.Snapshot, error) {
	var s v1.Snapshot
	body := v1.SnapshotRequest{Name: name, Memory: new(!filesOnly)}
	err := c.call(ctx, http.MethodPost, session(id, "/snapshots"), nil, body, &s)
	return s, err
}

// History returns the Snapshots made of a Sandbox and those it came from, oldest
// first.
func (c *Client) History(ctx context.Context, id string) ([]v1.Snapshot, error) {
	var reply v1.Snapshots
	err := c.call(ctx, http.MethodGet, session(id, "/snapshots"), nil, nil, &reply)
	return reply.Snapshots, err
}

// Snapshots returns Snapshots, newest first; at most limit, unless it is zero.
func (c *Client) Snapshots(ctx context.Context, limit int) ([]v1.Snapshot, error) {
	query := url.Values{}
	var all []v1.Snapshot
	for {
		var page v1.Snapshots
		size := pageSize
		if limit > 0 {
			size = min(pageSize, limit-len(all))
		}
		query.Set("limit", strconv.Itoa(size))
		if err := c.call(ctx, http.MethodGet, "/api/v1/snapshots", query, nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Snapshots...)
		if page.Next == "" || len(page.Snapshots) == 0 || limit > 0 && len(all) >= limit {
			return all, nil
		}
		query.Set("cursor", page.Next)
	}
}

// DeleteSnapshot deletes one and returns its last record.
func (c *Client) DeleteSnapshot(ctx context.Context, id string) (v1.Snapshot, error) {
	var s v1.Snapshot
	err := c.call(ctx, http.MethodDelete, "/api/v1/snapshots/"+url.PathEscape(id), nil, nil, &s)
	return s, err
}

// ExportSnapshot returns the file of a Snapshot, with its template's image if
// withTemplate is set. The caller closes it. A failed read returns the server's
// reason; the bytes read before it are no valid file.
func (c *Client) ExportSnapshot(ctx context.Context, id string, withTemplate bool) (io.ReadCloser, error) {
	query := url.Values{}
	if withTemplate {
		query.Set("with_template", "true")
	}
	resp, err := c.do(ctx, request{method: http.MethodGet, path: "/api/v1/snapshots/" + url.PathEscape(id) + "/export", query: query})
	if err != nil {
		return nil, err
	}
	return &answer{resp}, nil
}

// ImportSnapshot makes a Snapshot of an exported file, of size bytes; -1 when that is
// not known.
func (c *Client) ImportSnapshot(ctx context.Context, name string, file io.Reader, size int64) (v1.Snapshot, error) {
	query := url.Values{}
	if name != "" {
		query.Set("name", name)
	}
	if size == 0 {
		file = http.NoBody
	}
	var s v1.Snapshot
	resp, err := c.do(ctx, request{
		method: http.MethodPost, path: "/api/v1/snapshots/import", query: query, body: file, size: size, kind: bytesType,
		header: http.Header{"Expect": {"100-continue"}},
	})
	if err != nil {
		return s, err
	}
	return s, decode(resp, &s)
}
