package rest

import (
	"errors"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

const (
	workspace = "/workspace" // what relative paths are relative to
	maxPath   = 4096         // bytes, as in Linux
	maxDepth  = 32           // of a list
)

// guestPath is the clean absolute form of a path inside a Sandbox. name is what
// the client calls it.
func guestPath(name, p string) (string, error) {
	switch {
	case p == "":
		return "", sandbox.Errorf(sandbox.Invalid, "%s is missing", name)
	case strings.ContainsRune(p, 0):
		return "", sandbox.Errorf(sandbox.Invalid, "%s must not hold a zero byte", name)
	}
	if !strings.HasPrefix(p, "/") {
		p = workspace + "/" + p
	}
	if p = path.Clean(p); len(p) > maxPath {
		return "", sandbox.Errorf(sandbox.Invalid, "%s has more than %d bytes", name, maxPath)
	}
	return p, nil
}

type entryView struct {
	Name          string `json:"name"`
	Path          string `json:"path"`
	Type          string `json:"type"`
	SizeBytes     int64  `json:"size_bytes"`
	Mode          string `json:"mode"` // octal, "0644"
	Owner         string `json:"owner"`
	Group         string `json:"group"`
	ModifiedAt    string `json:"modified_at"`
	SymlinkTarget string `json:"symlink_target,omitempty"`
}

func entryViewOf(e execution.Entry) entryView {
	return entryView{
		Name: text(e.Name), Path: text(e.Path), Type: entryType(e.Type), SizeBytes: max(e.Size, 0),
		Mode:  "0" + strconv.FormatUint(uint64(e.Mode&0o7777), 8),
		Owner: text(e.Owner), Group: text(e.Group),
		ModifiedAt: timestamp(plausible(e.ModifiedAt)), SymlinkTarget: text(e.SymlinkTarget),
	}
}

// text is what a Guest says, as UTF-8: names of files are any bytes.
func text(s string) string { return strings.ToValidUTF8(s, "\ufffd") }

func entryType(s string) string {
	switch s {
	case "file", "directory", "symlink":
		return s
	}
	return "other"
}

// plausible is t as far as RFC 3339 and clients can express it: programs in a
// Sandbox set any time on their files.
func plausible(t time.Time) time.Time {
	first, last := time.Unix(0, 0), time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	switch {
	case t.Before(first):
		return first
	case t.After(last):
		return last
	}
	return t
}

// fileTarget returns the Guest and path that the query of r names. known are
// the further parameters of the route.
func (a *API) fileTarget(r *http.Request, who sandbox.Identity, known ...string) (execution.Guest, string, map[string]string, error) {
	values, err := query(r, append(known, "sandbox_id", "session_id", "path")...)
	if err != nil {
		return nil, "", nil, err
	}
	more := map[string]string{}
	for _, name := range known {
		more[name] = values.Get(name)
	}
	p, err := guestPath("path", values.Get("path"))
	if err != nil {
		return nil, "", nil, err
	}
	guest, err := a.guest(r, who, target{values.Get("sandbox_id"), values.Get("session_id")})
	return guest, p, more, err
}

func (a *API) guest(r *http.Request, who sandbox.Identity, t target) (execution.Guest, error) {
	id, err := t.required()
	if err != nil {
		return nil, err
	}
	_, guest, err := a.Guests.Open(r.Context(), who.Tenant, id)
	return guest, err
}

// ReadFile answers GET /api/v1/files with the bytes of a file, or the range of
// them that was asked for.
func (a *API) ReadFile(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	guest, p, _, err := a.fileTarget(r, who)
	if err != nil {
		return err
	}
	file, err := guest.ReadFile(r.Context(), p, execution.ReadOptions{Range: r.Header.Get("Range")})
	if err != nil {
		return err
	}
	defer file.Body.Close()
	w.WriteHeader(fileHead(w.Header(), file))
	if r.Method == http.MethodHead {
		return nil
	}
	return copyBody(w, file.Body, file.Size)
}

// fileHead describes a file that anybody may have written, so that no browser
// runs it, and returns the status.
func fileHead(h http.Header, file *execution.FileBody) int {
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", "attachment")
	h.Set("Content-Security-Policy", "sandbox")
	h.Set("Cache-Control", "no-store")
	h.Set("Accept-Ranges", "bytes")
	if file.Size >= 0 {
		h.Set("Content-Length", strconv.FormatInt(file.Size, 10))
	}
	if !file.ModifiedAt.IsZero() {
		h.Set("Last-Modified", plausible(file.ModifiedAt).UTC().Format(http.TimeFormat))
	}
	if file.Partial {
		h.Set("Content-Range", file.ContentRange)
		return http.StatusPartialContent
	}
	return http.StatusOK
}

// buffers are what files pass through: large enough that the number of calls
// does not matter, few enough that memory does not.
var buffers = sync.Pool{New: func() any { return new([256 << 10]byte) }}

// copyBody passes on size bytes, or all there are when size is negative. It
// fails when the Guest sends fewer, and never passes on more.
func copyBody(w io.Writer, body io.Reader, size int64) error {
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
	body := &clientBody{r: r.Body, flow: http.NewResponseController(w)}
	entry, err := guest.WriteFile(r.Context(), p, body, r.ContentLength)
	if failed := body.finish(); failed != nil {
		return bodyError(failed) // the client's failure, not the Guest's
	}
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, entryViewOf(entry))
}

// clientBody is a request's body for somebody who may go on reading after the
// handler has returned, and who tells the client's failures as his own.
type clientBody struct {
	r    io.Reader
	flow *http.ResponseController

	mu   sync.Mutex // held while reading
	err  error      // of r
	over bool
}

func (b *clientBody) Read(p []byte) (int, error) {
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

// finish makes later reads fail and returns how an earlier one did. It ends a
// read that is under way, whose failure means nothing.
func (b *clientBody) finish() error {
	if !b.mu.TryLock() {
		_ = b.flow.SetReadDeadline(time.Unix(1, 0)) // not all writers can
		b.mu.Lock()
		b.err = nil
	}
	defer b.mu.Unlock()
	b.over = true
	return b.err
}

// RemoveFile answers DELETE /api/v1/files with 204. A directory that is not
// empty needs recursive=true.
func (a *API) RemoveFile(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	guest, p, more, err := a.fileTarget(r, who, "recursive")
	if err != nil {
		return err
	}
	recursive, err := parseFlag("recursive", more["recursive"])
	if err != nil {
		return err
	}
	if p == "/" {
		return sandbox.Errorf(sandbox.Invalid, "the root directory cannot be removed")
	}
	if !recursive {
		if err := refuseFull(r, guest, p); err != nil {
			return err
		}
	}
	if err := guest.Remove(r.Context(), p); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// refuseFull returns Conflict for a directory that is not empty.
func refuseFull(r *http.Request, guest execution.Guest, p string) error {
	entry, err := guest.Stat(r.Context(), p)
	if err != nil || entry.Type != "directory" {
		return err
	}
	below, _, err := guest.List(r.Context(), p, 1)
	if err == nil && len(below) > 0 {
		return sandbox.Errorf(sandbox.Conflict, "the directory is not empty; recursive=true removes it with all it holds")
	}
	return err
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

// ListFiles answers GET /api/v1/files/list with what is below a directory.
func (a *API) ListFiles(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	guest, p, more, err := a.fileTarget(r, who, "depth")
	if err != nil {
		return err
	}
	depth := 1
	if s := more["depth"]; s != "" {
		if depth, err = strconv.Atoi(s); err != nil || depth < 1 || depth > maxDepth {
			return sandbox.Errorf(sandbox.Invalid, "depth must be a whole number from 1 to %d", maxDepth)
		}
	}
	entries, truncated, err := guest.List(r.Context(), p, depth)
	if err != nil {
		return err
	}
	reply := struct {
		Path      string      `json:"path"`
		Entries   []entryView `json:"entries"`
		Truncated bool        `json:"truncated"`
	}{text(p), make([]entryView, len(entries)), truncated}
	for i, e := range entries {
		reply.Entries[i] = entryViewOf(e)
	}
	return Reply(w, http.StatusOK, reply)
}

// StatFile answers GET /api/v1/files/stat. It does not follow a symbolic link.
func (a *API) StatFile(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	guest, p, _, err := a.fileTarget(r, who)
	if err != nil {
		return err
	}
	entry, err := guest.Stat(r.Context(), p)
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, entryViewOf(entry))
}

// MakeDir answers POST /api/v1/files/mkdir with 201 and the new directory.
func (a *API) MakeDir(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		target
		Path string `json:"path"`
	}
	if err := Decode(r, &body); err != nil {
		return err
	}
	p, err := guestPath("path", body.Path)
	if err != nil {
		return err
	}
	guest, err := a.guest(r, who, body.target)
	if err != nil {
		return err
	}
	entry, err := guest.MakeDir(r.Context(), p)
	if err != nil {
		return err
	}
	return Reply(w, http.StatusCreated, entryViewOf(entry))
}

// MoveFile answers POST /api/v1/files/move with what is now at the destination.
func (a *API) MoveFile(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		target
		Source      string `json:"source"`
		Destination string `json:"destination"`
	}
	if err := Decode(r, &body); err != nil {
		return err
	}
	source, err := guestPath("source", body.Source)
	if err != nil {
		return err
	}
	destination, err := guestPath("destination", body.Destination)
	if err != nil {
		return err
	}
	guest, err := a.guest(r, who, body.target)
	if err != nil {
		return err
	}
	entry, err := guest.Move(r.Context(), source, destination)
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, entryViewOf(entry))
}
