package rest

import (
	"cmp"
	"mime"
	"net/http"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// ExportSnapshot answers GET /api/v1/snapshots/{id}/export with one file. with_template
// adds the template's image to it.
func (a *API) ExportSnapshot(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	q, err := query(r, "with_template")
	if err != nil {
		return err
	}
	image, err := parseFlag("with_template", q.Get("with_template"))
	if err != nil {
		return err
	}
	snap, err := a.Snapshots.SnapshotByID(r.Context(), who.Tenant, r.PathValue("id"))
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Cache-Control", "no-store")
	name := cmp.Or(snap.Name, snap.ID) + ".snapshot"
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": name}))
	return a.SnapshotFiles.ExportSnapshot(r.Context(), who.Tenant, snap.ID, image, w)
}

// ImportSnapshot answers POST /api/v1/snapshots/import with 201 and the new Snapshot.
// The body is a file that an export wrote.
func (a *API) ImportSnapshot(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	q, err := query(r, "name")
	if err != nil {
		return err
	}
	req := sandbox.ImportRequest{Name: q.Get("name")}
	req.ID = ResourceLike(r.Context(), "s")
	if err := req.Check(); err != nil {
		return err
	}
	snap, err := a.SnapshotFiles.ImportSnapshot(r.Context(), who.Tenant, req, r.Body)
	if err != nil {
		return err
	}
	return Reply(w, http.StatusCreated, v1.SnapshotOf(snap))
}
