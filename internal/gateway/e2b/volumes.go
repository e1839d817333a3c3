package e2b

import (
	"net/http"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/signing"
)

// volumeView is a Volume in E2B's lists.
type volumeView struct {
	VolumeID string `json:"volumeID"`
	Name     string `json:"name"`
}

// openVolumeView is a Volume with a token for its files.
type openVolumeView struct {
	volumeView
	Token  string `json:"token"`
	Domain string `json:"domain"`
}

func volumeViewOf(v sandbox.Volume) volumeView { return volumeView{v.ID, v.Name} }

// replyOpen answers with a Volume and a new token, which grants no more than the
// caller's own rights. The token is not stored.
func (a *API) replyOpen(w http.ResponseWriter, r *http.Request, who sandbox.Identity, status int, v sandbox.Volume) error {
	token, err := a.VolumeTokens.Sign(r.Context(), signing.VolumeGrant{Tenant: v.Tenant, Volume: v.ID, Write: who.May(sandbox.ScopeWrite), Until: who.Until})
	if err != nil {
		return err
	}
	rest.Unkept(r.Context())
	return replyUnstored(w, status, openVolumeView{volumeViewOf(v), token, a.domain(r)})
}

// errNoVolume is the one answer about a Volume that is absent or another Tenant's.
func errNoVolume(id string) error {
	return sandbox.Errorf(sandbox.NotFound, "volume %.128q not found", id)
}

// volumeOf returns the Volume in the path.
func (a *API) volumeOf(r *http.Request, who sandbox.Identity) (sandbox.Volume, error) {
	id := r.PathValue("id")
	v, err := a.Volumes.GetVolume(r.Context(), who.Tenant, id)
	if sandbox.CodeOf(err) == sandbox.NotFound {
		err = errNoVolume(id)
	}
	return v, err
}

// CreateVolume answers POST /volumes with 201. A name in use is Invalid.
func (a *API) CreateVolume(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		Name string `json:"name"`
	}
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	v, err := a.Volumes.CreateVolume(r.Context(), who.Tenant, sandbox.VolumeRequest{ID: rest.ResourceLike(r.Context(), "v"), Name: body.Name})
	switch sandbox.CodeOf(err) {
	case sandbox.Conflict:
		return sandbox.Errorf(sandbox.Invalid, "a volume named %q exists already", body.Name).WithCause(err)
	case sandbox.Unsupported:
		return sandbox.Errorf(sandbox.Denied, "this server keeps no volumes").WithCause(err)
	}
	if err != nil {
		return err
	}
	rest.Made(r.Context(), v.ID)
	return a.replyOpen(w, r, who, http.StatusCreated, v)
}

// ListVolumes answers GET /volumes with all of them.
func (a *API) ListVolumes(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	if _, err := parameters(r); err != nil {
		return err
	}
	all, err := a.Volumes.ListVolumes(r.Context(), who.Tenant)
	if err != nil {
		return err
	}
	views := make([]volumeView, len(all))
	for i, v := range all {
		views[i] = volumeViewOf(v)
	}
	return replyUnstored(w, http.StatusOK, views)
}

// GetVolume answers GET /volumes/{id}.
func (a *API) GetVolume(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	v, err := a.volumeOf(r, who)
	if err != nil {
		return err
	}
	return a.replyOpen(w, r, who, http.StatusOK, v)
}

// DeleteVolume answers DELETE /volumes/{id}.
func (a *API) DeleteVolume(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	_, err := a.Volumes.DeleteVolume(r.Context(), who.Tenant, r.PathValue("id"))
	if sandbox.CodeOf(err) == sandbox.NotFound {
		err = errNoVolume(r.PathValue("id"))
	}
	if err != nil {
		return err
	}
	return noContent(w)
}

// mountBody is a Volume, by name, that a Sandbox mounts.
type mountBody struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

func mountsOf(bodies []mountBody) ([]sandbox.VolumeMount, error) {
	var mounts []sandbox.VolumeMount
	for _, b := range bodies {
		if b.Name == "" {
			return nil, sandbox.Errorf(sandbox.Invalid, "volumeMounts: the name of a volume is missing")
		}
		mounts = append(mounts, sandbox.VolumeMount{Volume: b.Name, Path: b.Path})
	}
	return mounts, nil
}

// mountViews are the mounts of a Sandbox, not nil without any.
func mountViews(mounts []sandbox.VolumeMount) []mountBody {
	views := make([]mountBody, len(mounts))
	for i, m := range mounts {
		views[i] = mountBody{Name: m.Name, Path: m.Path}
	}
	return views
}
