package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Entry is what the API tells of a file.
type Entry struct {
	Name string `json:"name"`
	Path string `json:"path"`
	Type string `json:"type"` // "file", "directory", "symlink" or "other"
	Size int64  `json:"size_bytes"`
	Mode string `json:"mode"` // octal

	Owner      string    `json:"owner"`
	Target     string    `json:"symlink_target"` // of a symlink
	ModifiedAt time.Time `json:"modified_at"`
}

// Extracted is what came of an archive that was unpacked.
type Extracted struct {
	Files       int64 `json:"files"`
	Directories int64 `json:"directories"`
	Links       int64 `json:"links"`
	Skipped     int64 `json:"skipped"`
	Bytes       int64 `json:"bytes"`
}

func fileQuery(id, path string) url.Values {
	return url.Values{"sandbox_id": {id}, "path": {path}}
}

// Stat looks at a file and follows no link.
func (c *Client) Stat(ctx context.Context, id, path string) (Entry, error) {
	var e Entry
	err := c.call(ctx, http.MethodGet, "/api/v1/files/stat", fileQuery(id, path), nil, &e)
	return e, err
}

// ListFiles returns what is in a directory, whether there is more, and the server's
// own words.
func (c *Client) ListFiles(ctx context.Context, id, path string) (entries []Entry, truncated bool, raw json.RawMessage, err error) {
	if err := c.call(ctx, http.MethodGet, "/api/v1/files/list", fileQuery(id, path), nil, &raw); err != nil {
		return nil, false, nil, err
	}
	var list struct {
		Entries   []Entry `json:"entries"`
		Truncated bool    `json:"truncated"`
	}
	err = parse(raw, &list)
	return list.Entries, list.Truncated, raw, err
}

// ReadFile returns the bytes of a file, and how many there are: -1 when that is
// not known. The caller closes them; a read that fails has told why.
func (c *Client) ReadFile(ctx context.Context, id, path string) (io.ReadCloser, int64, error) {
	resp, err := c.do(ctx, request{method: http.MethodGet, path: "/api/v1/files", query: fileQuery(id, path)})
	if err != nil {
		return nil, 0, err
	}
	return &answer{resp}, resp.ContentLength, nil
}

// WriteFile makes content, of size bytes, the content of a file; -1 when the
// size is not known.
func (c *Client) WriteFile(ctx context.Context, id, path string, content io.Reader, size int64) (Entry, error) {
	if size == 0 {
		content = http.NoBody
	}
	var e Entry
	err := c.upload(ctx, "/api/v1/files", fileQuery(id, path), content, size, &e)
	return e, err
}

// Chmod sets permissions, in octal.
func (c *Client) Chmod(ctx context.Context, id, path, mode string) error {
	body := map[string]string{"sandbox_id": id, "path": path, "mode": mode}
	return c.call(ctx, http.MethodPost, "/api/v1/files/chmod", nil, body, nil)
}

// ReadArchive returns what is in a directory as a tar. The caller closes it.
func (c *Client) ReadArchive(ctx context.Context, id, path string) (io.ReadCloser, error) {
	query := fileQuery(id, path)
	query.Set("format", "tar")
	resp, err := c.do(ctx, request{method: http.MethodGet, path: "/api/v1/files/archive", query: query})
	if err != nil {
		return nil, err
	}
	return &answer{resp}, nil
}

// WriteArchive unpacks a tar into a directory, which is made if need be.
func (c *Client) WriteArchive(ctx context.Context, id, path string, archive io.Reader) (Extracted, error) {
	query := fileQuery(id, path)
	query.Set("format", "tar")
	var done Extracted
	err := c.upload(ctx, "/api/v1/files/archive", query, archive, -1, &done)
	return done, err
}

// upload asks before it sends, so that a refusal costs no bytes.
func (c *Client) upload(ctx context.Context, path string, query url.Values, body io.Reader, size int64, out any) error {
	resp, err := c.do(ctx, request{
		method: http.MethodPut, path: path, query: query, body: body, size: size, kind: bytesType,
		header: http.Header{"Expect": {"100-continue"}},
	})
	if err != nil {
		return err
	}
	return decode(resp, out)
}

// answer is the body of an answer whose failures say what happened.
type answer struct{ resp *http.Response }

func (a *answer) Read(p []byte) (int, error) {
	n, err := a.resp.Body.Read(p)
	if err != nil && err != io.EOF {
		err = broken(a.resp, err)
	}
	return n, err
}

func (a *answer) Close() error { return a.resp.Body.Close() }
