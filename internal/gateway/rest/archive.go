package rest

import (
	"cmp"
	"mime"
	"net/http"
	"path"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

var archiveTypes = map[execution.ArchiveFormat]string{
	execution.Tar: "application/x-tar", execution.TarGz: "application/gzip", execution.Zip: "application/zip",
}

// archiveTarget returns the Guest, path, user and format in the query of an archive
// request.
func (a *API) archiveTarget(r *http.Request, who sandbox.Identity) (guest execution.Trees, p, user string, format execution.ArchiveFormat, err error) {
	guest, p, more, err := a.fileTarget(r, who, "format", "user")
	if err != nil {
		return nil, "", "", "", err
	}
	format = execution.ArchiveFormat(more["format"])
	if err := format.Check(); err != nil {
		return nil, "", "", "", err
	}
	user, err = execution.Actor(more["user"])
	return guest, p, user, format, err
}

// ReadArchive answers GET /api/v1/files/archive with an archive of a directory's
// content.
func (a *API) ReadArchive(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	guest, p, user, format, err := a.archiveTarget(r, who)
	if err != nil {
		return err
	}
	format = cmp.Or(format, execution.TarGz)
	archive, err := guest.Archive(r.Context(), user, p, format)
	if err != nil {
		return err
	}
	defer archive.Close()
	name := path.Base(p)
	if name == "/" {
		name = "root"
	}
	h := w.Header()
	h.Set("Content-Type", archiveTypes[format])
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": text(name) + "." + string(format)}))
	h.Set("Content-Security-Policy", "sandbox")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	return passBody(w, archive, -1)
}

// WriteArchive answers PUT /api/v1/files/archive: the body is unpacked into a
// directory.
func (a *API) WriteArchive(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	guest, p, user, format, err := a.archiveTarget(r, who)
	if err != nil {
		return err
	}
	body := NewClientBody(r.Body, http.NewResponseController(w))
	done, err := guest.Extract(r.Context(), user, p, format, body)
	if failed := body.Finish(); failed != nil {
		return bodyError(failed) // the client's failure, not the Guest's
	}
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, v1.Extracted{
		Path: text(p), Files: done.Files, Directories: done.Directories, Links: done.Links, Skipped: done.Skipped, Bytes: done.Bytes,
	})
}
