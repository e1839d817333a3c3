package rest

import (
	"context"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// volumeViews shows Volumes with their use.
func (a *API) volumeViews(ctx context.Context, all ...sandbox.Volume) []v1.Volume {
	held := heldBy(ctx, a.NodeVolumes, all)
	views := make([]v1.Volume, len(all))
	for i, v := range all {
		views[i] = v1.Volume{ID: v.ID, Name: v.Name, SizeMB: v.MaxBytes >> 20, CreatedAt: v1.Time(v.CreatedAt)}
		if use, ok := held[v.ID]; ok {
			views[i].UsedBytes, views[i].Files = &use.Bytes, &use.Files
		}
	}
	return views
}

// heldBy is the use of Volumes, by ID. Volumes of a Node that does not answer are
// missing.
func heldBy(ctx context.Context, nodes sandbox.NodeVolumes, all []sandbox.Volume) map[string]sandbox.VolumeUse {
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

// CreateVolume creates a Volume.
func (a *API) CreateVolume(ctx context.Context, c Call, in *v1.VolumeRequest) (v1.Volume, error) {
	req := sandbox.VolumeRequest{ID: ResourceLike(ctx, "v"), Name: in.Name}
	if in.SizeMB != nil {
		var err error
		if req.MaxBytes, err = sandbox.VolumeBytes(*in.SizeMB); err != nil {
			return v1.Volume{}, err
		}
	}
	made, err := a.Volumes.CreateVolume(ctx, c.Who.Tenant, req)
	if err != nil {
		return v1.Volume{}, err
	}
	Made(ctx, made.ID)
	return a.volumeViews(ctx, made)[0], nil
}

// ListVolumes returns all Volumes of the Tenant.
func (a *API) ListVolumes(ctx context.Context, c Call, _ *noQuery) (v1.Volumes, error) {
	all, err := a.Volumes.ListVolumes(ctx, c.Who.Tenant)
	return v1.Volumes{Volumes: a.volumeViews(ctx, all...)}, err
}

// GetVolume returns a Volume, by ID or name.
func (a *API) GetVolume(ctx context.Context, c Call, _ *Nothing) (v1.Volume, error) {
	v, err := a.Volumes.GetVolume(ctx, c.Who.Tenant, c.ID)
	if err != nil {
		return v1.Volume{}, err
	}
	return a.volumeViews(ctx, v)[0], nil
}

// DeleteVolume deletes a Volume, by ID or name.
func (a *API) DeleteVolume(ctx context.Context, c Call, _ *Nothing) (Nothing, error) {
	_, err := a.Volumes.DeleteVolume(ctx, c.Who.Tenant, c.ID)
	return Nothing{}, err
}
