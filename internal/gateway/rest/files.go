package rest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/status"
)

// FileViewOf shows an entry.
func FileViewOf(e execution.Entry) v1.File {
	return v1.File{
		Name: text(e.Name), Path: text(e.Path), Type: e.Kind(), SizeBytes: max(e.Size, 0),
		Mode:  "0" + strconv.FormatUint(uint64(e.Mode&0o7777), 8),
		Owner: text(e.Owner), Group: text(e.Group),
		ModifiedAt: v1.Time(execution.Plausible(e.ModifiedAt)), SymlinkTarget: text(e.SymlinkTarget),
	}
}

// text converts a Guest's text to valid UTF-8: file names are any bytes.
func text(s string) string { return strings.ToValidUTF8(s, "\ufffd") }

// files is the part of a Guest that works on files.
type files interface {
	execution.Files
	execution.Trees
}

// fileTarget returns the Guest and path that the query of r names. known are
// the further parameters of the route.
func (a *API) fileTarget(r *http.Request, who sandbox.Identity, known ...string) (files, string, map[string]string, error) {
	var in fileQuery
	values, err := in.readMore(r, known...)
	if err != nil {
		return nil, "", nil, err
	}
	more := map[string]string{}
	for _, name := range known {
		more[name] = values.Get(name)
	}
	guest, p, err := a.open(r.Context(), Call{Who: who}, &in)
	return guest, p, more, err
}

// guest returns the Guest of a Sandbox.
func (a *API) guest(ctx context.Context, who sandbox.Identity, t v1.Target) (execution.Guest, error) {
	id, err := t.Required()
	if err != nil {
		return nil, err
	}
	_, guest, err := a.Guests.Open(ctx, who.Tenant, id)
	return guest, err
}

// ReadFile answers GET /api/v1/files with the bytes of a file, or the requested range
// of them, under the conditions of RFC 9110.
func (a *API) ReadFile(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	guest, p, _, err := a.fileTarget(r, who)
	if err != nil {
		return err
	}
	file, err := guest.ReadFile(r.Context(), p, readOptions(r))
	if err != nil {
		return err
	}
	defer file.Body.Close()
	h := w.Header()
	if file.ETag != "" {
		h.Set("ETag", file.ETag)
	}
	if !file.ModifiedAt.IsZero() {
		h.Set("Last-Modified", execution.Plausible(file.ModifiedAt).UTC().Format(http.TimeFormat))
	}
	h.Set("Accept-Ranges", "bytes")
	h.Set("Cache-Control", "no-store")
	switch file.Outcome {
	case execution.ReadNotModified:
		w.WriteHeader(http.StatusNotModified)
		return nil
	case execution.ReadPrecondition:
		return refused(w, http.StatusPreconditionFailed, file.Refusal())
	case execution.ReadOutOfRange:
		h.Set("Content-Range", fmt.Sprintf("bytes */%d", file.Total))
		return refused(w, http.StatusRequestedRangeNotSatisfiable, file.Refusal())
	}
	w.WriteHeader(fileHead(h, file))
	if r.Method == http.MethodHead {
		return nil
	}
	return passBody(w, file.Body, file.Size)
}

// refused answers with a status that HTTP defines for one header alone.
func refused(w http.ResponseWriter, code int, err error) error {
	if sent := Reply(w, code, v1.FailureBody{Error: status.Of(err)}); sent != nil {
		return sent
	}
	return &Answered{err}
}

var rangePattern = regexp.MustCompile(`^bytes=(?:(\d{1,18})-(\d{0,18})|-\d{1,18})$`)

// readOptions are the conditions of a read. Anything but one range of bytes is ignored,
// as RFC 9110 has it (section 14.2): the answer is the whole file.
func readOptions(r *http.Request) execution.ReadOptions {
	h := r.Header
	opts := execution.ReadOptions{
		IfMatch: h.Get("If-Match"), IfNoneMatch: h.Get("If-None-Match"),
		IfModifiedSince: h.Get("If-Modified-Since"), IfUnmodifiedSince: h.Get("If-Unmodified-Since"),
	}
	if asked := h.Get("Range"); r.Method == http.MethodGet && isOneRange(asked) {
		opts.Range, opts.IfRange = asked, h.Get("If-Range")
	}
	return opts
}

func isOneRange(s string) bool {
	m := rangePattern.FindStringSubmatch(s)
	if m == nil {
		return false
	}
	first, err := strconv.ParseInt(m[1], 10, 64)
	last, missing := strconv.ParseInt(m[2], 10, 64)
	return err != nil || missing != nil || first <= last
}

// fileHead sets the headers for a file of any origin, so that no browser runs it, and
// returns the status.
func fileHead(h http.Header, file *execution.FileBody) int {
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", "attachment")
	h.Set("Content-Security-Policy", "sandbox")
	if file.Size >= 0 {
		h.Set("Content-Length", strconv.FormatInt(file.Size, 10))
	}
	if file.Outcome == execution.ReadPart {
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", file.Start, file.Start+file.Size-1, file.Total))
		return http.StatusPartialContent
	}
	return http.StatusOK
}

// buffers are copy buffers for files: large enough to keep the number of calls low, and
// pooled to keep memory low.
var buffers = sync.Pool{New: func() any { return new([256 << 10]byte) }}

// passBody copies size bytes, or the whole body when size is negative. It fails when
// the Guest sends fewer, and never copies more.
func passBody(w io.Writer, body io.Reader, size int64) error {
	if size >= 0 {
		body = io.LimitReader(body, size)
	}
	buf := buffers.Get().(*[256 << 10]byte)
	defer buffers.Put(buf)
	// Hiding everything but Write keeps io from choosing buffers of its own.
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{body}, buf[:])
	if err == nil && size >= 0 && n < size {
		return sandbox.Errorf(sandbox.Unavailable, "the file broke off").WithCause(io.ErrUnexpectedEOF)
	}
	return err
}

// WriteFile answers PUT /api/v1/files: the body becomes the file's content.
func (a *API) WriteFile(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	guest, p, _, err := a.fileTarget(r, who)
	if err != nil {
		return err
	}
	body := NewClientBody(r.Body, http.NewResponseController(w))
	entry, err := guest.WriteFile(r.Context(), p, body, r.ContentLength)
	if failed := body.Finish(); failed != nil {
		return bodyError(failed) // the client's failure, not the Guest's
	}
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, FileViewOf(entry))
}

// ClientBody is a request body for a reader that may continue after the handler has
// returned, and that reports the client's read failures as its own. Call Finish before
// the handler returns.
type ClientBody struct {
	r    io.Reader
	flow *http.ResponseController

	mu   sync.Mutex // held while reading
	err  error      // of r
	over bool
}

// NewClientBody returns the ClientBody that reads r and sets read deadlines with flow.
func NewClientBody(r io.Reader, flow *http.ResponseController) *ClientBody {
	return &ClientBody{r: r, flow: flow}
}

func (b *ClientBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.err = err
	}
	return n, err
}

// Finish makes later reads fail and returns the error of an earlier one. It interrupts
// a read that is in progress and drops that read's error.
func (b *ClientBody) Finish() error {
	if !b.mu.TryLock() {
		_ = b.flow.SetReadDeadline(time.Unix(1, 0)) // not all writers can
		b.mu.Lock()
		b.err = nil
	}
	defer b.mu.Unlock()
	b.over = true
	return b.err
}

// fileQuery names a file in the query.
type fileQuery struct {
	v1.Target
	Path string `json:"path"`
}

func (in *fileQuery) read(r *http.Request) error {
	_, err := in.readMore(r)
	return err
}

// readMore returns the query, which may have more parameters.
func (in *fileQuery) readMore(r *http.Request, known ...string) (url.Values, error) {
	values, err := query(r, slices.Concat(known, targetParameters, []string{"path"})...)
	in.Target, in.Path = targetIn(values), values.Get("path")
	return values, err
}

// open returns the Guest, and the path in it.
func (a *API) open(ctx context.Context, c Call, in *fileQuery) (files, string, error) {
	p, err := execution.Path("path", in.Path)
	if err != nil {
		return nil, "", err
	}
	guest, err := a.guest(ctx, c.Who, in.Target)
	return guest, p, err
}

// removeRequest removes a file; Recursive also a directory that is not empty.
type removeRequest struct {
	fileQuery
	Recursive bool `json:"recursive"`
}

func (in *removeRequest) read(r *http.Request) error {
	values, err := in.readMore(r, "recursive")
	if err != nil {
		return err
	}
	in.Recursive, err = parseFlag("recursive", values.Get("recursive"))
	return err
}

// RemoveFile removes a file or directory.
func (a *API) RemoveFile(ctx context.Context, c Call, in *removeRequest) (Nothing, error) {
	guest, p, err := a.open(ctx, c, &in.fileQuery)
	if err != nil {
		return Nothing{}, err
	}
	return Nothing{}, execution.Remove(ctx, guest, p, in.Recursive)
}

func parseFlag(name, value string) (bool, error) {
	switch value {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	}
	return false, sandbox.Errorf(sandbox.Invalid, "%s must be true or false", name)
}

// listFilesRequest lists a directory. A nil Depth is 1.
type listFilesRequest struct {
	fileQuery
	Depth *int `json:"depth"`
}

func (in *listFilesRequest) read(r *http.Request) error {
	values, err := in.readMore(r, "depth")
	in.Depth = number(values.Get("depth"))
	return err
}

// ListFiles returns the entries below a directory.
func (a *API) ListFiles(ctx context.Context, c Call, in *listFilesRequest) (v1.Files, error) {
	depth, err := execution.Depth(in.Depth)
	if err != nil {
		return v1.Files{}, err
	}
	guest, p, err := a.open(ctx, c, &in.fileQuery)
	if err != nil {
		return v1.Files{}, err
	}
	entries, truncated, err := guest.List(ctx, p, depth)
	list := v1.Files{Path: text(p), Entries: make([]v1.File, len(entries)), Truncated: truncated}
	for i, e := range entries {
		list.Entries[i] = FileViewOf(e)
	}
	return list, err
}

// StatFile returns an entry. It does not follow a symbolic link.
func (a *API) StatFile(ctx context.Context, c Call, in *fileQuery) (v1.File, error) {
	guest, p, err := a.open(ctx, c, in)
	if err != nil {
		return v1.File{}, err
	}
	entry, err := guest.Stat(ctx, p)
	return FileViewOf(entry), err
}

// MakeDir makes a directory.
func (a *API) MakeDir(ctx context.Context, c Call, in *v1.MakeDirRequest) (v1.File, error) {
	guest, p, err := a.open(ctx, c, &fileQuery{in.Target, in.Path})
	if err != nil {
		return v1.File{}, err
	}
	entry, err := guest.MakeDir(ctx, p)
	return FileViewOf(entry), err
}

// MoveFile moves a file or directory and returns the entry at the destination.
func (a *API) MoveFile(ctx context.Context, c Call, in *v1.MoveRequest) (v1.File, error) {
	source, err := execution.Path("source", in.Source)
	if err != nil {
		return v1.File{}, err
	}
	destination, err := execution.Path("destination", in.Destination)
	if err != nil {
		return v1.File{}, err
	}
	guest, err := a.guest(ctx, c.Who, in.Target)
	if err != nil {
		return v1.File{}, err
	}
	entry, err := guest.Move(ctx, source, destination)
	return FileViewOf(entry), err
}
