package rest

import (
	"net/http"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// copyRequest converts b.
func copyRequest(b *v1.FileCopy) (execution.CopyRequest, error) {
	req := execution.CopyRequest{
		Source: b.Source, Destination: b.Destination, Recursive: b.Recursive, Overwrite: b.Overwrite, User: b.User,
	}
	return req, req.Complete()
}

// CopyFile answers POST /api/v1/files/copy with the entry at the destination.
func (a *API) CopyFile(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.CopyRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	req, err := copyRequest(&body.FileCopy)
	if err != nil {
		return err
	}
	guest, err := a.guest(r, who, body.Target)
	if err != nil {
		return err
	}
	copied, err := guest.Copy(r.Context(), req)
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, v1.Copied{Entry: entryViewOf(copied.Entry), Files: copied.Files, Bytes: copied.Bytes, FilesSkipped: copied.FilesSkipped})
}

// chmodRequest converts b.
func chmodRequest(b *v1.FileChmod) (execution.ChmodRequest, error) {
	req := execution.ChmodRequest{Path: b.Path, Recursive: b.Recursive, User: b.User}
	return req, req.Complete(b.Mode)
}

// ChmodFile answers POST /api/v1/files/chmod with the number of changed files.
func (a *API) ChmodFile(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.ChmodRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	req, err := chmodRequest(&body.FileChmod)
	if err != nil {
		return err
	}
	guest, err := a.guest(r, who, body.Target)
	if err != nil {
		return err
	}
	changed, err := guest.Chmod(r.Context(), req)
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, v1.ChangedFiles{Path: text(req.Path), Changed: changed})
}
