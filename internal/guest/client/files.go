package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	neturl "net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
)

const (
	// maxEntries bounds a listing that is passed on.
	maxEntries = 10_000
	// maxErrorBody bounds how much of an error's body is read.
	maxErrorBody = 8 << 10
	// maxPath bounds a path from a Guest, in bytes.
	maxPath = 8 << 10
	// maxEntry bounds a message about one file, in bytes.
	maxEntry = 64 << 10
)

// ReadFile opens a regular file. See execution.Guest.
func (c *Client) ReadFile(ctx context.Context, path string, opts execution.ReadOptions) (*execution.FileBody, error) {
	limited, inTime, cancel := headTimer(ctx)
	req, err := c.fileRequest(limited, http.MethodGet, path, nil)
	if err != nil {
		cancel()
		return nil, err
	}
	req.Header.Set("Accept-Encoding", "identity")
	for name, value := range map[string]string{
		"Range": opts.Range, "If-Range": opts.IfRange, "If-Match": opts.IfMatch, "If-None-Match": opts.IfNoneMatch,
		"If-Modified-Since": opts.IfModifiedSince, "If-Unmodified-Since": opts.IfUnmodifiedSince,
	} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	resp, err := c.http.Do(req)
	inTime()
	if err != nil {
		cancel()
		return nil, fail(limited, err)
	}
	file, err := fileBodyOf(resp, opts)
	if err != nil {
		resp.Body.Close()
		cancel()
		return nil, err
	}
	file.Body = &body{resp.Body, cancel}
	return file, nil
}

var (
	partPattern = regexp.MustCompile(`^bytes (\d{1,18})-(\d{1,18})/(\d{1,18})$`)
	nonePattern = regexp.MustCompile(`^bytes \*/(\d{1,18})$`)
	tagPattern  = regexp.MustCompile(`^(W/)?"[!#-~]{1,100}"$`)
)

// fileBodyOf checks the header of a Guest's answer to a read.
func fileBodyOf(resp *http.Response, opts execution.ReadOptions) (*execution.FileBody, error) {
	file := &execution.FileBody{Size: resp.ContentLength}
	file.ModifiedAt, _ = http.ParseTime(resp.Header.Get("Last-Modified"))
	if tag := resp.Header.Get("ETag"); tagPattern.MatchString(tag) {
		file.ETag = tag
	}
	conditional := opts.IfMatch+opts.IfNoneMatch+opts.IfModifiedSince+opts.IfUnmodifiedSince != ""
	switch {
	case resp.StatusCode == http.StatusOK:
		return file, nil
	case resp.StatusCode == http.StatusPartialContent && opts.Range != "":
		return file, part(file, resp.Header.Get("Content-Range"))
	case resp.StatusCode == http.StatusNotModified && conditional:
		file.Outcome, file.Size = execution.ReadNotModified, 0
		return file, nil
	case resp.StatusCode == http.StatusPreconditionFailed && conditional:
		file.Outcome, file.Size = execution.ReadPrecondition, 0
		return file, nil
	case resp.StatusCode == http.StatusRequestedRangeNotSatisfiable && opts.Range != "":
		m := nonePattern.FindStringSubmatch(resp.Header.Get("Content-Range"))
		if m == nil {
			return nil, errWrongAnswer
		}
		file.Outcome, file.Size = execution.ReadOutOfRange, 0
		file.Total, _ = strconv.ParseInt(m[1], 10, 64)
		return file, nil
	}
	return nil, httpError(resp)
}

// part parses the range of a file that an answer holds.
func part(file *execution.FileBody, header string) error {
	m := partPattern.FindStringSubmatch(header)
	if m == nil {
		return errWrongAnswer
	}
	var n [3]int64
	for i := range n {
		n[i], _ = strconv.ParseInt(m[i+1], 10, 64)
	}
	size := n[1] - n[0] + 1
	if size < 1 || n[1] >= n[2] || file.Size >= 0 && file.Size != size {
		return errWrongAnswer
	}
	file.Outcome, file.Start, file.Size, file.Total = execution.ReadPart, n[0], size, n[2]
	return nil
}

// body frees the request's context when it is closed.
type body struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *body) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

func (c *Client) fileRequest(ctx context.Context, method, path string, content io.Reader) (*http.Request, error) {
	return http.NewRequestWithContext(ctx, method, url(sandbox.GuestPort)+guest.FilesPath+"?path="+neturl.QueryEscape(path), content)
}

// WriteFile replaces a file's content. See execution.Guest.
func (c *Client) WriteFile(ctx context.Context, path string, content io.Reader, size int64) (execution.Entry, error) {
	req, err := c.fileRequest(ctx, http.MethodPut, path, content)
	if err != nil {
		return execution.Entry{}, err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	req.ContentLength = size
	if size == 0 {
		req.Body = http.NoBody
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return execution.Entry{}, fail(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return execution.Entry{}, httpError(resp)
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxEntry))
	if err != nil {
		return execution.Entry{}, fail(ctx, err)
	}
	if resp.Header.Get("Content-Type") != "application/proto" { // an earlier Guest
		return c.Stat(ctx, path)
	}
	var entry guestv1.FileEntry
	if err := proto.Unmarshal(raw, &entry); err != nil {
		return execution.Entry{}, errWrongAnswer
	}
	return entryOf(&entry)
}

// httpError maps an answer about a file's content to a Code.
func httpError(resp *http.Response) error {
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	var e struct {
		Message string `json:"message"`
	}
	_ = json.Unmarshal(raw, &e)
	if e.Message == "" {
		e.Message = strings.TrimSpace(string(raw))
	}
	code, ok := map[int]sandbox.Code{
		http.StatusBadRequest: sandbox.Invalid, http.StatusForbidden: sandbox.Denied, http.StatusNotFound: sandbox.NotFound,
		http.StatusConflict:            sandbox.Conflict,
		http.StatusInsufficientStorage: sandbox.TooLarge,
		http.StatusTooManyRequests:     sandbox.Exhausted,
	}[resp.StatusCode]
	if !ok {
		return sandbox.Errorf(sandbox.Unavailable, "the sandbox answered %d", resp.StatusCode)
	}
	return sandbox.Errorf(code, "%s", tame(e.Message))
}

// List returns the entries below a folder. See execution.Guest.
func (c *Client) List(ctx context.Context, path string, depth int) ([]execution.Entry, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, headTime)
	defer cancel()
	r, err := c.files().ListDir(ctx, connect.NewRequest(&guestv1.ListDirRequest{Path: path, Depth: uint32(max(depth, 1)), Limit: maxEntries}))
	if err != nil {
		return nil, false, fail(ctx, err)
	}
	entries := make([]execution.Entry, 0, min(len(r.Msg.Entries), maxEntries))
	for _, e := range r.Msg.Entries {
		if len(entries) == maxEntries {
			return entries, true, nil
		}
		entry, err := entryOf(e)
		if err != nil {
			return nil, false, err
		}
		entries = append(entries, entry)
	}
	return entries, r.Msg.Truncated || r.Header().Get(truncatedHeader) != "", nil
}

// Stat describes a path. See execution.Guest.
func (c *Client) Stat(ctx context.Context, path string) (execution.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, headTime)
	defer cancel()
	r, err := c.files().Stat(ctx, connect.NewRequest(&guestv1.StatRequest{Path: path}))
	if err != nil {
		return execution.Entry{}, fail(ctx, err)
	}
	return entryOf(r.Msg.Entry)
}

// MakeDir creates a folder. See execution.Guest.
func (c *Client) MakeDir(ctx context.Context, path string) (execution.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, headTime)
	defer cancel()
	r, err := c.files().MakeDir(ctx, connect.NewRequest(&guestv1.MakeDirRequest{Path: path}))
	if err != nil {
		return execution.Entry{}, fail(ctx, err)
	}
	return entryOf(r.Msg.Entry)
}

// Move renames a file. See execution.Guest.
func (c *Client) Move(ctx context.Context, source, destination string) (execution.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, headTime)
	defer cancel()
	r, err := c.files().Move(ctx, connect.NewRequest(&guestv1.MoveRequest{Source: source, Destination: destination}))
	if err != nil {
		return execution.Entry{}, fail(ctx, err)
	}
	return entryOf(r.Msg.Entry)
}

// Remove deletes a path and all below it. It has no time limit, because the tree
// may be large.
func (c *Client) Remove(ctx context.Context, path string) error {
	_, err := c.files().Remove(ctx, connect.NewRequest(&guestv1.RemoveRequest{Path: path}))
	return fail(ctx, err)
}

// entryOf checks a Guest's description of a file.
func entryOf(e *guestv1.FileEntry) (execution.Entry, error) {
	if e == nil || len(e.Path) > maxPath || len(e.Name) > maxPath || len(e.GetSymlinkTarget()) > maxPath || e.Size < 0 {
		return execution.Entry{}, sandbox.Errorf(sandbox.Unavailable, "the sandbox gives a wrong answer")
	}
	out := execution.Entry{
		Name: valid(e.Name), Path: valid(e.Path), Type: "other", Size: e.Size, Mode: e.Mode & 0o7777,
		Owner: valid(e.Owner), Group: valid(e.Group), SymlinkTarget: valid(e.GetSymlinkTarget()),
	}
	switch {
	case e.SymlinkTarget != nil:
		out.Type = "symlink" // our API does not follow links
	case e.Type == guestv1.FileType_FILE_TYPE_FILE:
		out.Type = "file"
	case e.Type == guestv1.FileType_FILE_TYPE_DIRECTORY:
		out.Type = "directory"
	case e.Type == guestv1.FileType_FILE_TYPE_SYMLINK:
		out.Type = "symlink"
	}
	if t := e.ModifiedTime; t != nil && t.IsValid() {
		out.ModifiedAt = t.AsTime().Truncate(time.Microsecond)
	}
	return out, nil
}

func valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
