package rpc

import (
	"context"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	sandboxv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1"
	volumev1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/volume/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// volumes is the service of Volumes.
type volumes struct {
	volumes sandbox.Volumes
	nodes   sandbox.NodeVolumes
}

// views shows Volumes with their use.
func (s volumes) views(ctx context.Context, all ...sandbox.Volume) []*volumev1.Volume {
	held := rest.HeldBy(ctx, s.nodes, all)
	views := make([]*volumev1.Volume, len(all))
	for i, v := range all {
		views[i] = &volumev1.Volume{VolumeId: v.ID, Name: v.Name, SizeMb: v.MaxBytes >> 20, CreatedAt: timestamp(v.CreatedAt)}
		if use, ok := held[v.ID]; ok {
			views[i].UsedBytes, views[i].Files = &use.Bytes, &use.Files
		}
	}
	return views
}

// Create implements the service.
func (s volumes) Create(ctx context.Context, r *connect.Request[volumev1.CreateRequest]) (*connect.Response[volumev1.CreateResponse], error) {
	req := sandbox.VolumeRequest{ID: rest.ResourceLike(ctx, "v"), Name: r.Msg.Name}
	if r.Msg.SizeMb != nil {
		var err error
		if req.MaxBytes, err = sandbox.VolumeBytes(*r.Msg.SizeMb); err != nil {
			return nil, err
		}
	}
	made, err := s.volumes.CreateVolume(ctx, tenantOf(ctx), req)
	if err != nil {
		return nil, err
	}
	rest.Made(ctx, made.ID)
	return connect.NewResponse(&volumev1.CreateResponse{Volume: s.views(ctx, made)[0]}), nil
}

// Get implements the service.
func (s volumes) Get(ctx context.Context, r *connect.Request[volumev1.GetRequest]) (*connect.Response[volumev1.GetResponse], error) {
	rest.Names(ctx, r.Msg.VolumeId)
	v, err := s.volumes.GetVolume(ctx, tenantOf(ctx), r.Msg.VolumeId)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&volumev1.GetResponse{Volume: s.views(ctx, v)[0]}), nil
}

// List implements the service.
func (s volumes) List(ctx context.Context, _ *connect.Request[volumev1.ListRequest]) (*connect.Response[volumev1.ListResponse], error) {
	all, err := s.volumes.ListVolumes(ctx, tenantOf(ctx))
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&volumev1.ListResponse{Volumes: s.views(ctx, all...)}), nil
}

// Delete implements the service.
func (s volumes) Delete(ctx context.Context, r *connect.Request[volumev1.DeleteRequest]) (*connect.Response[volumev1.DeleteResponse], error) {
	rest.Names(ctx, r.Msg.VolumeId)
	if _, err := s.volumes.DeleteVolume(ctx, tenantOf(ctx), r.Msg.VolumeId); err != nil {
		return nil, err
	}
	return connect.NewResponse(&volumev1.DeleteResponse{}), nil
}

// mountsOf are the mounts in a request.
func mountsOf(asked []*sandboxv1.VolumeMount) ([]sandbox.VolumeMount, error) {
	var mounts []sandbox.VolumeMount
	for _, m := range asked {
		if m.Volume == "" {
			return nil, sandbox.Errorf(sandbox.Invalid, "volumes: say which volume is to be at %.100q, by its name or ID", m.Path)
		}
		mounts = append(mounts, sandbox.VolumeMount{Volume: m.Volume, Path: m.Path})
	}
	return mounts, nil
}

func mountViews(mounts []sandbox.VolumeMount) []*sandboxv1.VolumeMount {
	var views []*sandboxv1.VolumeMount
	for _, m := range mounts {
		views = append(views, &sandboxv1.VolumeMount{Volume: m.Name, Path: m.Path})
	}
	return views
}
