package rpc

import (
	"context"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	sessionv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/session/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/session/v1/sessionv1connect"
)

// CreateVolume implements sandbox.Sandboxes.
func (s *Sandboxes) CreateVolume(ctx context.Context, tenant sandbox.TenantID, req sandbox.VolumeRequest) (sandbox.Volume, error) {
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.CreateVolume, &sessionv1.CreateVolumeRequest{Id: req.ID, Name: req.Name, MaxBytes: req.MaxBytes})
	return toVolume(r.GetVolume()), err
}

// GetVolume implements sandbox.Sandboxes.
func (s *Sandboxes) GetVolume(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Volume, error) {
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.GetVolume, &sessionv1.GetVolumeRequest{Volume: idOrName})
	return toVolume(r.GetVolume()), err
}

// ListVolumes implements sandbox.Sandboxes.
func (s *Sandboxes) ListVolumes(ctx context.Context, tenant sandbox.TenantID) ([]sandbox.Volume, error) {
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.ListVolumes, &sessionv1.ListVolumesRequest{})
	if err != nil {
		return nil, err
	}
	var all []sandbox.Volume
	for _, v := range r.Volumes {
		all = append(all, toVolume(v))
	}
	return all, nil
}

// DeleteVolume implements sandbox.Sandboxes.
func (s *Sandboxes) DeleteVolume(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Volume, error) {
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.DeleteVolume, &sessionv1.DeleteVolumeRequest{Volume: idOrName})
	return toVolume(r.GetVolume()), err
}

func (s sessionServer) CreateVolume(ctx context.Context, r *connect.Request[sessionv1.CreateVolumeRequest]) (*connect.Response[sessionv1.CreateVolumeResponse], error) {
	return forTenant(ctx, func(t sandbox.TenantID) (*sessionv1.CreateVolumeResponse, error) {
		v, err := s.m.CreateVolume(ctx, t, sandbox.VolumeRequest{ID: r.Msg.Id, Name: r.Msg.Name, MaxBytes: r.Msg.MaxBytes})
		return &sessionv1.CreateVolumeResponse{Volume: fromVolume(v)}, err
	})
}

func (s sessionServer) GetVolume(ctx context.Context, r *connect.Request[sessionv1.GetVolumeRequest]) (*connect.Response[sessionv1.GetVolumeResponse], error) {
	return forTenant(ctx, func(t sandbox.TenantID) (*sessionv1.GetVolumeResponse, error) {
		v, err := s.m.GetVolume(ctx, t, r.Msg.Volume)
		return &sessionv1.GetVolumeResponse{Volume: fromVolume(v)}, err
	})
}

func (s sessionServer) ListVolumes(ctx context.Context, _ *connect.Request[sessionv1.ListVolumesRequest]) (*connect.Response[sessionv1.ListVolumesResponse], error) {
	return forTenant(ctx, func(t sandbox.TenantID) (*sessionv1.ListVolumesResponse, error) {
		all, err := s.m.ListVolumes(ctx, t)
		res := &sessionv1.ListVolumesResponse{}
		for _, v := range all {
			res.Volumes = append(res.Volumes, fromVolume(v))
		}
		return res, err
	})
}

func (s sessionServer) DeleteVolume(ctx context.Context, r *connect.Request[sessionv1.DeleteVolumeRequest]) (*connect.Response[sessionv1.DeleteVolumeResponse], error) {
	return forTenant(ctx, func(t sandbox.TenantID) (*sessionv1.DeleteVolumeResponse, error) {
		v, err := s.m.DeleteVolume(ctx, t, r.Msg.Volume)
		return &sessionv1.DeleteVolumeResponse{Volume: fromVolume(v)}, err
	})
}

func fromVolume(v sandbox.Volume) *sessionv1.Volume {
	return &sessionv1.Volume{
		Id: v.ID, Tenant: string(v.Tenant), Name: v.Name, State: string(v.State), Node: v.Node, MaxBytes: v.MaxBytes, CreatedAt: fromTime(v.CreatedAt),
	}
}

func toVolume(v *sessionv1.Volume) sandbox.Volume {
	return sandbox.Volume{
		ID: v.GetId(), Tenant: sandbox.TenantID(v.GetTenant()), Name: v.GetName(), State: sandbox.VolumeState(v.GetState()), Node: v.GetNode(),
		MaxBytes: v.GetMaxBytes(), CreatedAt: toTime(v.GetCreatedAt()),
	}
}

func fromMounts(mounts []sandbox.VolumeMount) []*sessionv1.VolumeMount {
	var out []*sessionv1.VolumeMount
	for _, m := range mounts {
		out = append(out, &sessionv1.VolumeMount{Volume: m.Volume, Name: m.Name, Path: m.Path})
	}
	return out
}

func toMounts(mounts []*sessionv1.VolumeMount) []sandbox.VolumeMount {
	var out []sandbox.VolumeMount
	for _, m := range mounts {
		out = append(out, sandbox.VolumeMount{Volume: m.GetVolume(), Name: m.GetName(), Path: m.GetPath()})
	}
	return out
}
