package rest

import (
	"context"
	"net/http"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// volumeViews shows Volumes with their use.
func (a *API) volumeViews(ctx context.Context, all []sandbox.Volume) []v1.Volume {
	held := HeldBy(ctx, a.NodeVolumes, all)
	views := make([]v1.Volume, len(all))
	for i, v := range all {
		views[i] = v1.Volume{ID: v.ID, Name: v.Name, SizeMB: v.MaxBytes >> 20, CreatedAt: v1.Time(v.CreatedAt)}
		if use, ok := held[v.ID]; ok {
			views[i].UsedBytes, views[i].Files = &use.Bytes, &use.Files
		}
	}
	return views
}

// HeldBy is the use of Volumes, by ID. Volumes of a Node that does not answer are
// missing.
func HeldBy(ctx context.Context, nodes sandbox.NodeVolumes, all []sandbox.Volume) map[string]sandbox.VolumeUse {
	held := map[string]sandbox.VolumeUse{}
	asked := map[string]bool{}
	for _, v := range all {
		if asked[v.Node] {
			continue
		}
		asked[v.Node] = true
		uses, err := nodes.ListVolumes(ctx, v.Node)
		if err != nil {
			continue // its Volumes are listed without their use
		}
		for _, u := range uses {
			held[u.ID] = u
		}
	}
	return held
}

// CreateVolume answers POST /api/v1/volumes.
func (a *API) CreateVolume(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.VolumeRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	req := sandbox.VolumeRequest{ID: ResourceLike(r.Context(), "v"), Name: body.Name}
	if body.SizeMB != nil {
		var err error
		if req.MaxBytes, err = sandbox.VolumeBytes(*body.SizeMB); err != nil {
			return err
		}
	}
	made, err := a.Volumes.CreateVolume(r.Context(), who.Tenant, req)
	if err != nil {
		return err
	}
	Made(r.Context(), made.ID)
	return Reply(w, http.StatusCreated, a.volumeViews(r.Context(), []sandbox.Volume{made})[0])
}

// ListVolumes answers GET /api/v1/volumes.
func (a *API) ListVolumes(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	if _, err := query(r); err != nil {
		return err
	}
	all, err := a.Volumes.ListVolumes(r.Context(), who.Tenant)
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, v1.Volumes{Volumes: a.volumeViews(r.Context(), all)})
}

// GetVolume answers GET /api/v1/volumes/{id}, by ID or name.
func (a *API) GetVolume(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	v, err := a.Volumes.GetVolume(r.Context(), who.Tenant, r.PathValue("id"))
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, a.volumeViews(r.Context(), []sandbox.Volume{v})[0])
}

// DeleteVolume answers DELETE /api/v1/volumes/{id}, by ID or name.
func (a *API) DeleteVolume(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	if _, err := a.Volumes.DeleteVolume(r.Context(), who.Tenant, r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func mountViewsOf(mounts []sandbox.VolumeMount) []v1.Mount {
	var views []v1.Mount
	for _, m := range mounts {
		views = append(views, v1.Mount{Volume: m.Name, VolumeID: m.Volume, Path: m.Path})
	}
	return views
}
