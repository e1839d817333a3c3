package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Snapshot is what the API tells of one.
type Snapshot struct {
	ID        string    `json:"snapshot_id"`
	SandboxID string    `json:"sandbox_id"`
	Parent    string    `json:"parent_id"`
	Name      string    `json:"name"`
	Kept      bool      `json:"kept"`
	CreatedAt time.Time `json:"created_at"`
	Size      int64     `json:"size_bytes"`
	Memory    bool      `json:"memory"`
	Template  string    `json:"template"`
	Uses      int       `json:"uses"`
	Current   bool      `json:"current"`

	Raw json.RawMessage `json:"-"` // all of it, as the server said it
}

// UnmarshalJSON keeps the text beside the fields.
func (s *Snapshot) UnmarshalJSON(raw []byte) error {
	type fields Snapshot
	if err := json.Unmarshal(raw, (*fields)(s)); err != nil {
		return err
	}
	s.Raw = append(json.RawMessage(nil), raw...)
	return nil
}

// MarshalJSON gives the text as the server said it.
func (s Snapshot) MarshalJSON() ([]byte, error) { return s.Raw, nil }

func session(id, what string) string { return "/api/v1/sessions/" + url.PathEscape(id) + what }

// Pause answers when the state of a Sandbox is safe.
func (c *Client) Pause(ctx context.Context, id string, filesOnly bool) (Sandbox, error) {
	var s Sandbox
	err := c.call(ctx, http.MethodPost, session(id, "/pause"), nil, map[string]bool{"memory": !filesOnly}, &s)
	return s, err
}

// Resume answers when a paused Sandbox runs.
func (c *Client) Resume(ctx context.Context, id string, filesOnly bool) (Sandbox, error) {
	var s Sandbox
	err := c.call(ctx, http.MethodPost, session(id, "/resume"), nil, map[string]bool{"memory": !filesOnly}, &s)
	return s, err
}

// Rollback has a Sandbox go on from a Snapshot, by ID or name.
func (c *Client) Rollback(ctx context.Context, id, snapshot string) (Sandbox, error) {
	var s Sandbox
	err := c.call(ctx, http.MethodPost, session(id, "/rollback"), nil, map[string]string{"snapshot_id": snapshot}, &s)
	return s, err
}

// ForkRequest asks for copies of a Sandbox. Zero fields are as in the original.
type ForkRequest struct {
	Count    int                `json:"count"`
	Name     string             `json:"name,omitempty"`
	Timeout  float64            `json:"timeout_seconds,omitempty"`
	Metadata map[string]*string `json:"metadata,omitempty"`
}

// Forked is a copy that runs, or why there is none.
type Forked struct {
	Sandbox
	Error *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
}

// UnmarshalJSON reads either.
func (f *Forked) UnmarshalJSON(raw []byte) error {
	var failed struct {
		Error *struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(raw, &failed); err != nil {
		return err
	}
	f.Error = failed.Error
	return f.Sandbox.UnmarshalJSON(raw)
}

// Fork answers when all copies run or have failed.
func (c *Client) Fork(ctx context.Context, id string, r ForkRequest) ([]Forked, error) {
	var reply struct {
		Forks []Forked `json:"forks"`
	}
	err := c.call(ctx, http.MethodPost, session(id, "/fork"), nil, r, &reply)
	return reply.Forks, err
}

// TakeSnapshot answers when a Sandbox is saved.
func (c *Client) TakeSnapshot(ctx context.Context, id, name string, filesOnly bool) (Snapshot, error) {
	var s Snapshot
	body := map[string]any{"memory": !filesOnly}
	if name != "" {
		body["name"] = name
	}
	err := c.call(ctx, http.MethodPost, session(id, "/snapshots"), nil, body, &s)
	return s, err
}

// History returns what a Sandbox was saved in and came from, oldest first.
func (c *Client) History(ctx context.Context, id string) ([]Snapshot, error) {
	var reply struct {
		Snapshots []Snapshot `json:"snapshots"`
	}
	err := c.call(ctx, http.MethodGet, session(id, "/snapshots"), nil, nil, &reply)
	return reply.Snapshots, err
}

// Snapshots returns Snapshots, newest first; at most limit, unless it is zero.
func (c *Client) Snapshots(ctx context.Context, limit int) ([]Snapshot, error) {
	query := url.Values{}
	var all []Snapshot
	for {
		var page struct {
			Snapshots []Snapshot `json:"snapshots"`
			Next      string     `json:"next_cursor"`
		}
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
func (c *Client) DeleteSnapshot(ctx context.Context, id string) (Snapshot, error) {
	var s Snapshot
	err := c.call(ctx, http.MethodDelete, "/api/v1/snapshots/"+url.PathEscape(id), nil, nil, &s)
	return s, err
}

// ExportSnapshot returns the file of a Snapshot, with the image of its template if
// that is wanted. The caller closes it; a read
// that fails has told why, and what was read then is no such file.
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

// ImportSnapshot makes a Snapshot of such a file, of size bytes; -1 when that is
// not known.
func (c *Client) ImportSnapshot(ctx context.Context, name string, file io.Reader, size int64) (Snapshot, error) {
	query := url.Values{}
	if name != "" {
		query.Set("name", name)
	}
	if size == 0 {
		file = http.NoBody
	}
	var s Snapshot
	resp, err := c.do(ctx, request{
		method: http.MethodPost, path: "/api/v1/snapshots/import", query: query, body: file, size: size, kind: bytesType,
		header: http.Header{"Expect": {"100-continue"}},
	})
	if err != nil {
		return s, err
	}
	return s, decode(resp, &s)
}
