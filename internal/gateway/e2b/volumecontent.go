package e2b

import (
	"net/http"
	"net/url"
	"path"
	"strconv"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// contentFailure is the body of every error answer about files of Volumes: Code is text
// there.
type contentFailure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// FailContent answers a request about files of a Volume that failed with f.
func FailContent(w http.ResponseWriter, f v1.Failure) {
	if f.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfterSeconds))
	}
	_ = rest.Reply(w, f.Status, contentFailure{string(f.Code), f.Message}) // an error means that the client is gone
}

// statView is a file of a Volume.
type statView struct {
	Name   string                 `json:"name"`
	Type   sandbox.VolumeFileType `json:"type"`
	Path   string                 `json:"path"`
	Size   int64                  `json:"size"`
	Mode   uint32                 `json:"mode"`
	UID    uint32                 `json:"uid"`
	GID    uint32                 `json:"gid"`
	ATime  string                 `json:"atime"`
	MTime  string                 `json:"mtime"`
	CTime  string                 `json:"ctime"`
	Target *string                `json:"target,omitempty"`
}

func statViewOf(f sandbox.VolumeFile) statView {
	v := statView{
		Name: path.Base(f.Path), Type: f.Type, Path: f.Path, Size: f.Bytes, Mode: f.Mode, UID: f.UID, GID: f.GID,
		ATime: fileTime(f.Accessed), MTime: fileTime(f.Modified), CTime: fileTime(f.Changed),
	}
	if f.Type == sandbox.VolumeFileLink {
		v.Target = &f.Target
	}
	return v
}

// fileTime is a time that a guest may have set, limited to years that clients can
// parse.
func fileTime(t time.Time) string {
	first, last := time.Unix(0, 0), time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	switch {
	case t.Before(first):
		t = first
	case t.After(last):
		t = last
	}
	return timestamp(t)
}

// content is a request about files of a Volume.
type content struct {
	node  string
	of    sandbox.VolumeRef
	path  string
	query url.Values
}

// contentOf parses a request about files of a Volume. known are its parameters beside
// the path.
func (a *API) contentOf(r *http.Request, who sandbox.Identity, known ...string) (content, error) {
	query, err := parameters(r, append(known, "path")...)
	if err != nil {
		return content{}, err
	}
	v, err := a.volumeOf(r, who)
	if err != nil {
		return content{}, err
	}
	if query.Get("path") == "" {
		return content{}, sandbox.Errorf(sandbox.Invalid, "path is missing")
	}
	p := path.Clean("/" + query.Get("path"))
	return content{v.Node, sandbox.VolumeRef{ID: v.ID, Tenant: v.Tenant}, p, query}, sandbox.CheckVolumePath(p)
}

// number is a parameter that is a number below 2^32; nil when it is absent.
func (c content) number(name string) (*uint32, error) {
	text := c.query.Get(name)
	if text == "" {
		return nil, nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Invalid, "%s must be a whole number", name)
	}
	return new(uint32(n)), nil
}

// making returns the owner and mode of a new file, and force.
func (c content) making() (change sandbox.VolumeFileChange, force bool, err error) {
	if change.UID, err = c.number("uid"); err != nil {
		return change, false, err
	}
	if change.GID, err = c.number("gid"); err != nil {
		return change, false, err
	}
	if change.Mode, err = c.number("mode"); err != nil {
		return change, false, err
	}
	if err = checkFileChange(change); err != nil {
		return change, false, err
	}
	switch c.query.Get("force") {
	case "", "false":
		return change, false, nil
	case "true":
		return change, true, nil
	}
	return change, false, sandbox.Errorf(sandbox.Invalid, "force must be true or false")
}

// checkFileChange returns Invalid for an invalid mode.
func checkFileChange(c sandbox.VolumeFileChange) error {
	const allBits = 0o7777
	if c.Mode != nil && *c.Mode > allBits {
		return sandbox.Errorf(sandbox.Invalid, "mode must be a whole number from 0 to %d, which are permission bits", allBits)
	}
	return nil
}

// StatVolumeFile answers GET /volumecontent/{id}/path.
func (a *API) StatVolumeFile(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	c, err := a.contentOf(r, who)
	if err != nil {
		return err
	}
	f, err := a.VolumeFiles.StatVolumeFile(r.Context(), c.node, c.of, c.path)
	if err != nil {
		return err
	}
	return replyUnstored(w, http.StatusOK, statViewOf(f))
}

// ChangeVolumeFile answers PATCH /volumecontent/{id}/path.
func (a *API) ChangeVolumeFile(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		UID  *uint32 `json:"uid"`
		GID  *uint32 `json:"gid"`
		Mode *uint32 `json:"mode"`
	}
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	change := sandbox.VolumeFileChange{UID: body.UID, GID: body.GID, Mode: body.Mode}
	if err := checkFileChange(change); err != nil {
		return err
	}
	c, err := a.contentOf(r, who)
	if err != nil {
		return err
	}
	f, err := a.VolumeFiles.ChangeVolumeFile(r.Context(), c.node, c.of, c.path, change)
	if err != nil {
		return err
	}
	return replyUnstored(w, http.StatusOK, statViewOf(f))
}

// RemoveVolumeFile answers DELETE /volumecontent/{id}/path.
func (a *API) RemoveVolumeFile(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	c, err := a.contentOf(r, who)
	if err != nil {
		return err
	}
	if err := a.VolumeFiles.RemoveVolumeFile(r.Context(), c.node, c.of, c.path); err != nil {
		return err
	}
	return noContent(w)
}

// ListVolumeFolder answers GET /volumecontent/{id}/dir.
func (a *API) ListVolumeFolder(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	c, err := a.contentOf(r, who, "depth")
	if err != nil {
		return err
	}
	depth, err := c.number("depth")
	if err != nil || depth != nil && (*depth < 1 || *depth > sandbox.MaxVolumeDepth) {
		return sandbox.Errorf(sandbox.Invalid, "depth must be a whole number from 1 to %d", sandbox.MaxVolumeDepth)
	}
	if depth == nil {
		depth = new(uint32(1))
	}
	all, err := a.VolumeFiles.ListVolumeFolder(r.Context(), c.node, c.of, c.path, int(*depth))
	if err != nil {
		return err
	}
	views := make([]statView, len(all))
	for i, f := range all {
		views[i] = statViewOf(f)
	}
	return replyUnstored(w, http.StatusOK, views)
}

// MakeVolumeFolder answers POST /volumecontent/{id}/dir.
func (a *API) MakeVolumeFolder(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	c, err := a.contentOf(r, who, "uid", "gid", "mode", "force")
	if err != nil {
		return err
	}
	change, force, err := c.making()
	if err != nil {
		return err
	}
	f, err := a.VolumeFiles.MakeVolumeFolder(r.Context(), c.node, c.of, c.path, change, force)
	if err != nil {
		return err
	}
	return replyUnstored(w, http.StatusCreated, statViewOf(f))
}

// ReadVolumeFile answers GET /volumecontent/{id}/file with the streamed bytes of a
// file.
func (a *API) ReadVolumeFile(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	c, err := a.contentOf(r, who)
	if err != nil {
		return err
	}
	out := &beginning{w: w}
	if err := a.VolumeFiles.ReadVolumeFile(r.Context(), c.node, c.of, c.path, out); err != nil {
		return err
	}
	out.begin() // of an empty file
	return nil
}

// beginning is an answer that begins with its first byte: an earlier failure can still
// be answered.
type beginning struct {
	w     http.ResponseWriter
	begun bool
}

func (b *beginning) begin() {
	if b.begun {
		return
	}
	b.begun = true
	b.w.Header().Set("Content-Type", "application/octet-stream")
	b.w.Header().Set("Cache-Control", "no-store")
	b.w.WriteHeader(http.StatusOK)
}

func (b *beginning) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b.begin()
	return b.w.Write(p)
}

// WriteVolumeFile answers PUT /volumecontent/{id}/file.
func (a *API) WriteVolumeFile(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	c, err := a.contentOf(r, who, "uid", "gid", "mode", "force")
	if err != nil {
		return err
	}
	change, force, err := c.making()
	if err != nil {
		return err
	}
	f, err := a.VolumeFiles.WriteVolumeFile(r.Context(), c.node, c.of, c.path, change, force, r.Body)
	if err != nil {
		return err
	}
	return replyUnstored(w, http.StatusCreated, statViewOf(f))
}
