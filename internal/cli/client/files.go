package client

import (
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

func fileQuery(id, path string) url.Values {
	return url.Values{"sandbox_id": {id}, "path": {path}}
}

// Stat returns a file's metadata and follows no link.
func (c *Client) Stat(ctx context.Context, id, path string) (v1.File, error) {
	var e v1.File
	err := c.call(ctx, http.MethodGet, "/api/v1/files/stat", fileQuery(id, path), nil, &e)
	return e, err
}

// ListFiles returns the entries of a directory.
func (c *Client) ListFiles(ctx context.Context, id, path string) (list v1.Files, err error) {
	err = c.call(ctx, http.MethodGet, "/api/v1/files/list", fileQuery(id, path), nil, &list)
	return list, err
}

// ReadFile returns the content of a file and its size in bytes: -1 when that is not
// known. The caller closes the reader. A failed read returns the server's reason.
func (c *Client) ReadFile(ctx context.Context, id, path string) (io.ReadCloser, int64, error) {
	resp, err := c.do(ctx, request{method: http.MethodGet, path: "/api/v1/files", query: fileQuery(id, path)})
	if err != nil {
		return nil, 0, err
	}
	return &answer{resp}, resp.ContentLength, nil
}

// WriteFile makes content, of size bytes, the content of a file; -1 when the
// size is not known.
func (c *Client) WriteFile(ctx context.Context, id, path string, content io.Reader, size int64) (v1.File, error) {
	if size == 0 {
		content = http.NoBody
	}
	var e v1.File
	err := c.upload(ctx, "/api/v1/files", fileQuery(id, path), content, size, &e)
	return e, err
}

// Chmod sets permissions, in octal.
func (c *Client) Chmod(ctx context.Context, id, path, mode string) error {
	body := v1.ChmodRequest{Target: v1.Target{SandboxID: id}, FileChmod: v1.FileChmod{Path: path, Mode: mode}}
	return c.call(ctx, http.MethodPost, "/api/v1/files/chmod", nil, body, nil)
}

// ReadArchive returns the content of a directory as a tar. The caller closes it.
func (c *Client) ReadArchive(ctx context.Context, id, path string) (io.ReadCloser, error) {
	query := fileQuery(id, path)
	query.Set("format", "tar")
	resp, err := c.do(ctx, request{method: http.MethodGet, path: "/api/v1/files/archive", query: query})
	if err != nil {
		return nil, err
	}
	return &answer{resp}, nil
}

// WriteArchive unpacks a tar into a directory, which is made if it is missing.
func (c *Client) WriteArchive(ctx context.Context, id, path string, archive io.Reader) (v1.Extracted, error) {
	query := fileQuery(id, path)
	query.Set("format", "tar")
	var done v1.Extracted
	err := c.upload(ctx, "/api/v1/files/archive", query, archive, -1, &done)
	return done, err
}

// upload waits for the server's consent before it sends the body, so that a refusal
// costs no bytes.
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

// answer is the body of an answer. A failed read returns the server's reason.
type answer struct{ resp *http.Response }

func (a *answer) Read(p []byte) (int, error) {
	n, err := a.resp.Body.Read(p)
	if err != nil && err != io.EOF {
		err = broken(a.resp, err)
	}
	return n, err
}

func (a *answer) Close() error { return a.resp.Body.Close() }
