package gateway_test

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

func (f *sandboxes) findVolume(tenant sandbox.TenantID, idOrName string) (sandbox.Volume, error) {
	for _, v := range f.volumes {
		if v.Tenant == tenant && (v.ID == idOrName || v.Name == idOrName) {
			return v, nil
		}
	}
	return sandbox.Volume{}, sandbox.Errorf(sandbox.NotFound, "there is no such volume")
}

func (f *sandboxes) mount(tenant sandbox.TenantID, asked []sandbox.VolumeMount) ([]sandbox.VolumeMount, error) {
	var mounts []sandbox.VolumeMount
	for _, a := range asked {
		v, err := f.findVolume(tenant, a.Volume)
		if err != nil {
			return nil, sandbox.Errorf(sandbox.Invalid, "there is no volume %q", a.Volume)
		}
		mounts = append(mounts, sandbox.VolumeMount{Volume: v.ID, Name: v.Name, Path: a.Path})
	}
	return mounts, nil
}

func (f *sandboxes) CreateVolume(_ context.Context, tenant sandbox.TenantID, req sandbox.VolumeRequest) (sandbox.Volume, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := req.Check(); err != nil {
		return sandbox.Volume{}, err
	}
	if _, err := f.findVolume(tenant, req.Name); err == nil {
		return sandbox.Volume{}, sandbox.Errorf(sandbox.Conflict, "there is a volume named %q", req.Name)
	}
	v := sandbox.Volume{
		ID: cmp.Or(req.ID, sandbox.NewVolumeID()), Tenant: tenant, Name: req.Name, State: sandbox.VolumeReady, Node: "n1",
		MaxBytes: cmp.Or(req.MaxBytes, sandbox.DefaultVolumeBytes), CreatedAt: time.Now().UTC(),
	}
	f.volumes[v.ID] = v
	return v, nil
}

func (f *sandboxes) GetVolume(_ context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Volume, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.findVolume(tenant, idOrName)
}

func (f *sandboxes) ListVolumes(_ context.Context, tenant sandbox.TenantID) ([]sandbox.Volume, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []sandbox.Volume
	for _, v := range f.volumes {
		if v.Tenant == tenant {
			all = append(all, v)
		}
	}
	slices.SortFunc(all, func(a, b sandbox.Volume) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

func (f *sandboxes) DeleteVolume(_ context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Volume, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v, err := f.findVolume(tenant, idOrName)
	if err != nil {
		return v, err
	}
	for _, s := range f.byID {
		if s.Ended == nil && slices.ContainsFunc(s.Volumes, func(m sandbox.VolumeMount) bool { return m.Volume == v.ID }) {
			return v, sandbox.Errorf(sandbox.Conflict, "the volume is in use")
		}
	}
	delete(f.volumes, v.ID)
	return v, nil
}
