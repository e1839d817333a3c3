package rpc

import (
	"context"
	"io"
	"net/url"
	"strconv"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	nodev1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/node/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/node/v1/nodev1connect"
)

var _ sandbox.VolumeFiles = (*Nodes)(nil)

// CreateVolume implements sandbox.VolumeFiles.
func (n *Nodes) CreateVolume(ctx context.Context, node string, v sandbox.VolumeSpec) error {
	msg := &nodev1.CreateVolumeRequest{Node: node, Volume: fromVolumeSpec(v)}
	_, err := ask(ctx, n, node, v.Tenant, nodev1connect.NodeServiceClient.CreateVolume, msg)
	return err
}

// DeleteVolume implements sandbox.VolumeFiles.
func (n *Nodes) DeleteVolume(ctx context.Context, node, id string) error {
	_, err := ask(ctx, n, node, "", nodev1connect.NodeServiceClient.DeleteVolume, &nodev1.DeleteVolumeRequest{Node: node, Volume: id})
	return err
}

// ListVolumes implements sandbox.VolumeFiles.
func (n *Nodes) ListVolumes(ctx context.Context, node string) ([]sandbox.VolumeUse, error) {
	r, err := ask(ctx, n, node, "", nodev1connect.NodeServiceClient.ListVolumes, &nodev1.ListVolumesRequest{Node: node})
	if err != nil {
		return nil, err
	}
	all := []sandbox.VolumeUse{}
	for _, v := range r.Volumes {
		all = append(all, sandbox.VolumeUse{ID: v.Id, Bytes: v.Bytes, Files: v.Files})
	}
	return all, nil
}

// ExportVolume implements sandbox.NodeVolumes.
func (n *Nodes) ExportVolume(ctx context.Context, node string, of sandbox.VolumeRef, w io.Writer) error {
	p, err := n.of(ctx, node)
	if err != nil {
		return err
	}
	return p.download(ctx, of.Tenant, exportVolumePath, url.Values{"node": {node}, "volume": {of.ID}}, w)
}

// ImportVolume implements sandbox.NodeVolumes.
func (n *Nodes) ImportVolume(ctx context.Context, node string, v sandbox.VolumeSpec, r io.Reader) error {
	p, err := n.of(ctx, node)
	if err != nil {
		return err
	}
	query := url.Values{"node": {node}, "volume": {v.ID}, "max_bytes": {strconv.FormatInt(v.MaxBytes, 10)}}
	return p.upload(ctx, v.Tenant, importVolumePath, query, r, &nodev1.CreateVolumeResponse{})
}

func (s nodeServer) exportVolume(ctx context.Context, q url.Values, _ io.Reader, to io.Writer) error {
	t, err := tenant(ctx)
	if err != nil {
		return err
	}
	return s.n.ExportVolume(ctx, q.Get("node"), sandbox.VolumeRef{ID: q.Get("volume"), Tenant: t}, to)
}

func (s nodeServer) importVolume(ctx context.Context, q url.Values, from io.Reader, to io.Writer) error {
	t, err := tenant(ctx)
	if err != nil {
		return err
	}
	most, err := strconv.ParseInt(q.Get("max_bytes"), 10, 64)
	if err != nil {
		return sandbox.Errorf(sandbox.Invalid, "the size of the volume is no number").WithCause(err)
	}
	err = s.n.ImportVolume(ctx, q.Get("node"), sandbox.VolumeSpec{ID: q.Get("volume"), Tenant: t, MaxBytes: most}, from)
	return writeReply(to, &nodev1.CreateVolumeResponse{}, err)
}

func volumePath(node string, of sandbox.VolumeRef, path string) *nodev1.VolumePath {
	return &nodev1.VolumePath{Node: node, Volume: of.ID, Path: path}
}

// StatVolumeFile implements sandbox.VolumeFiles.
func (n *Nodes) StatVolumeFile(ctx context.Context, node string, of sandbox.VolumeRef, path string) (sandbox.VolumeFile, error) {
	msg := &nodev1.StatVolumeFileRequest{Of: volumePath(node, of, path)}
	r, err := ask(ctx, n, node, of.Tenant, nodev1connect.NodeServiceClient.StatVolumeFile, msg)
	return toVolumeFile(r.GetFile()), err
}

// ListVolumeFolder implements sandbox.VolumeFiles.
func (n *Nodes) ListVolumeFolder(ctx context.Context, node string, of sandbox.VolumeRef, path string, depth int) ([]sandbox.VolumeFile, error) {
	msg := &nodev1.ListVolumeFolderRequest{Of: volumePath(node, of, path), Depth: int32(min(depth, sandbox.MaxVolumeDepth))}
	r, err := ask(ctx, n, node, of.Tenant, nodev1connect.NodeServiceClient.ListVolumeFolder, msg)
	if err != nil {
		return nil, err
	}
	files := []sandbox.VolumeFile{}
	for _, f := range r.Files {
		files = append(files, toVolumeFile(f))
	}
	return files, nil
}

// MakeVolumeFolder implements sandbox.VolumeFiles.
func (n *Nodes) MakeVolumeFolder(ctx context.Context, node string, of sandbox.VolumeRef, path string, c sandbox.VolumeFileChange, force bool) (sandbox.VolumeFile, error) {
	msg := &nodev1.MakeVolumeFolderRequest{Of: volumePath(node, of, path), Change: fromFileChange(c), Force: force}
	r, err := ask(ctx, n, node, of.Tenant, nodev1connect.NodeServiceClient.MakeVolumeFolder, msg)
	return toVolumeFile(r.GetFile()), err
}

// ChangeVolumeFile implements sandbox.VolumeFiles.
func (n *Nodes) ChangeVolumeFile(ctx context.Context, node string, of sandbox.VolumeRef, path string, c sandbox.VolumeFileChange) (sandbox.VolumeFile, error) {
	msg := &nodev1.ChangeVolumeFileRequest{Of: volumePath(node, of, path), Change: fromFileChange(c)}
	r, err := ask(ctx, n, node, of.Tenant, nodev1connect.NodeServiceClient.ChangeVolumeFile, msg)
	return toVolumeFile(r.GetFile()), err
}

// RemoveVolumeFile implements sandbox.VolumeFiles.
func (n *Nodes) RemoveVolumeFile(ctx context.Context, node string, of sandbox.VolumeRef, path string) error {
	msg := &nodev1.RemoveVolumeFileRequest{Of: volumePath(node, of, path)}
	_, err := ask(ctx, n, node, of.Tenant, nodev1connect.NodeServiceClient.RemoveVolumeFile, msg)
	return err
}

// ReadVolumeFile implements sandbox.VolumeFiles.
func (n *Nodes) ReadVolumeFile(ctx context.Context, node string, of sandbox.VolumeRef, path string, w io.Writer) error {
	p, err := n.of(ctx, node)
	if err != nil {
		return err
	}
	return p.download(ctx, of.Tenant, readVolumeFilePath, url.Values{"node": {node}, "volume": {of.ID}, "path": {path}}, w)
}

// WriteVolumeFile implements sandbox.VolumeFiles.
func (n *Nodes) WriteVolumeFile(ctx context.Context, node string, of sandbox.VolumeRef, path string, c sandbox.VolumeFileChange, force bool, r io.Reader) (sandbox.VolumeFile, error) {
	p, err := n.of(ctx, node)
	if err != nil {
		return sandbox.VolumeFile{}, err
	}
	query := url.Values{"node": {node}, "volume": {of.ID}, "path": {path}, "force": {strconv.FormatBool(force)}}
	for name, v := range changeFields(&c) {
		if *v != nil {
			query.Set(name, strconv.FormatUint(uint64(**v), 10))
		}
	}
	reply := &nodev1.VolumeFile{}
	err = p.upload(ctx, of.Tenant, writeVolumeFilePath, query, r, reply)
	return toVolumeFile(reply), err
}

// changeFields are the fields of a change by their names in a query.
func changeFields(c *sandbox.VolumeFileChange) map[string]**uint32 {
	return map[string]**uint32{"uid": &c.UID, "gid": &c.GID, "mode": &c.Mode}
}

// file returns the Volume in a call about a file, of the caller's Tenant.
func file(ctx context.Context, volume string) (sandbox.VolumeRef, error) {
	t, err := tenant(ctx)
	return sandbox.VolumeRef{ID: volume, Tenant: t}, err
}

func (s nodeServer) CreateVolume(ctx context.Context, r *connect.Request[nodev1.CreateVolumeRequest]) (*connect.Response[nodev1.CreateVolumeResponse], error) {
	if err := checkTenant(ctx, r.Msg.Volume); err != nil {
		return nil, internal(err)
	}
	return answer(&nodev1.CreateVolumeResponse{}, s.n.CreateVolume(ctx, r.Msg.Node, toVolumeSpec(r.Msg.Volume)))
}

func (s nodeServer) DeleteVolume(ctx context.Context, r *connect.Request[nodev1.DeleteVolumeRequest]) (*connect.Response[nodev1.DeleteVolumeResponse], error) {
	return answer(&nodev1.DeleteVolumeResponse{}, s.n.DeleteVolume(ctx, r.Msg.Node, r.Msg.Volume))
}

func (s nodeServer) ListVolumes(ctx context.Context, r *connect.Request[nodev1.ListVolumesRequest]) (*connect.Response[nodev1.ListVolumesResponse], error) {
	res := &nodev1.ListVolumesResponse{}
	all, err := s.n.ListVolumes(ctx, r.Msg.Node)
	for _, v := range all {
		res.Volumes = append(res.Volumes, &nodev1.VolumeUse{Id: v.ID, Bytes: v.Bytes, Files: v.Files})
	}
	return answer(res, err)
}

func (s nodeServer) StatVolumeFile(ctx context.Context, r *connect.Request[nodev1.StatVolumeFileRequest]) (*connect.Response[nodev1.StatVolumeFileResponse], error) {
	of, err := file(ctx, r.Msg.GetOf().GetVolume())
	if err != nil {
		return nil, internal(err)
	}
	f, err := s.n.StatVolumeFile(ctx, r.Msg.Of.Node, of, r.Msg.Of.Path)
	return answer(&nodev1.StatVolumeFileResponse{File: fromVolumeFile(f)}, err)
}

func (s nodeServer) ListVolumeFolder(ctx context.Context, r *connect.Request[nodev1.ListVolumeFolderRequest]) (*connect.Response[nodev1.ListVolumeFolderResponse], error) {
	of, err := file(ctx, r.Msg.GetOf().GetVolume())
	if err != nil {
		return nil, internal(err)
	}
	all, err := s.n.ListVolumeFolder(ctx, r.Msg.Of.Node, of, r.Msg.Of.Path, int(r.Msg.Depth))
	res := &nodev1.ListVolumeFolderResponse{}
	for _, f := range all {
		res.Files = append(res.Files, fromVolumeFile(f))
	}
	return answer(res, err)
}

func (s nodeServer) MakeVolumeFolder(ctx context.Context, r *connect.Request[nodev1.MakeVolumeFolderRequest]) (*connect.Response[nodev1.MakeVolumeFolderResponse], error) {
	of, err := file(ctx, r.Msg.GetOf().GetVolume())
	if err != nil {
		return nil, internal(err)
	}
	f, err := s.n.MakeVolumeFolder(ctx, r.Msg.Of.Node, of, r.Msg.Of.Path, toFileChange(r.Msg.Change), r.Msg.Force)
	return answer(&nodev1.MakeVolumeFolderResponse{File: fromVolumeFile(f)}, err)
}

func (s nodeServer) ChangeVolumeFile(ctx context.Context, r *connect.Request[nodev1.ChangeVolumeFileRequest]) (*connect.Response[nodev1.ChangeVolumeFileResponse], error) {
	of, err := file(ctx, r.Msg.GetOf().GetVolume())
	if err != nil {
		return nil, internal(err)
	}
	f, err := s.n.ChangeVolumeFile(ctx, r.Msg.Of.Node, of, r.Msg.Of.Path, toFileChange(r.Msg.Change))
	return answer(&nodev1.ChangeVolumeFileResponse{File: fromVolumeFile(f)}, err)
}

func (s nodeServer) RemoveVolumeFile(ctx context.Context, r *connect.Request[nodev1.RemoveVolumeFileRequest]) (*connect.Response[nodev1.RemoveVolumeFileResponse], error) {
	of, err := file(ctx, r.Msg.GetOf().GetVolume())
	if err != nil {
		return nil, internal(err)
	}
	return answer(&nodev1.RemoveVolumeFileResponse{}, s.n.RemoveVolumeFile(ctx, r.Msg.Of.Node, of, r.Msg.Of.Path))
}

func (s nodeServer) readVolumeFile(ctx context.Context, q url.Values, _ io.Reader, to io.Writer) error {
	of, err := file(ctx, q.Get("volume"))
	if err != nil {
		return err
	}
	return s.n.ReadVolumeFile(ctx, q.Get("node"), of, q.Get("path"), to)
}

func (s nodeServer) writeVolumeFile(ctx context.Context, q url.Values, from io.Reader, to io.Writer) error {
	of, err := file(ctx, q.Get("volume"))
	if err != nil {
		return err
	}
	var c sandbox.VolumeFileChange
	for name, field := range changeFields(&c) {
		if !q.Has(name) {
			continue
		}
		n, err := strconv.ParseUint(q.Get(name), 10, 32)
		if err != nil {
			return sandbox.Errorf(sandbox.Invalid, "the %s is no number", name)
		}
		*field = new(uint32(n))
	}
	f, err := s.n.WriteVolumeFile(ctx, q.Get("node"), of, q.Get("path"), c, q.Get("force") == "true", from)
	return writeReply(to, fromVolumeFile(f), err)
}

func fromVolumeSpec(v sandbox.VolumeSpec) *nodev1.VolumeSpec {
	return &nodev1.VolumeSpec{Id: v.ID, Tenant: string(v.Tenant), MaxBytes: v.MaxBytes}
}

func toVolumeSpec(v *nodev1.VolumeSpec) sandbox.VolumeSpec {
	return sandbox.VolumeSpec{ID: v.GetId(), Tenant: sandbox.TenantID(v.GetTenant()), MaxBytes: v.GetMaxBytes()}
}

func fromVolumeBindings(volumes []sandbox.VolumeBinding) []*nodev1.VolumeBinding {
	var out []*nodev1.VolumeBinding
	for _, v := range volumes {
		out = append(out, &nodev1.VolumeBinding{Volume: fromVolumeSpec(v.VolumeSpec), Path: v.Path, Home: v.Home})
	}
	return out
}

func toVolumeBindings(volumes []*nodev1.VolumeBinding) []sandbox.VolumeBinding {
	var out []sandbox.VolumeBinding
	for _, v := range volumes {
		out = append(out, sandbox.VolumeBinding{VolumeSpec: toVolumeSpec(v.GetVolume()), Path: v.GetPath(), Home: v.GetHome()})
	}
	return out
}

func fromVolumeFile(f sandbox.VolumeFile) *nodev1.VolumeFile {
	return &nodev1.VolumeFile{
		Path: f.Path, Type: string(f.Type), Bytes: f.Bytes, Mode: f.Mode, Uid: f.UID, Gid: f.GID,
		Accessed: fromTime(f.Accessed), Modified: fromTime(f.Modified), Changed: fromTime(f.Changed), Target: f.Target,
	}
}

func toVolumeFile(f *nodev1.VolumeFile) sandbox.VolumeFile {
	return sandbox.VolumeFile{
		Path: f.GetPath(), Type: sandbox.VolumeFileType(f.GetType()), Bytes: f.GetBytes(), Mode: f.GetMode(), UID: f.GetUid(), GID: f.GetGid(),
		Accessed: toTime(f.GetAccessed()), Modified: toTime(f.GetModified()), Changed: toTime(f.GetChanged()), Target: f.GetTarget(),
	}
}

func fromFileChange(c sandbox.VolumeFileChange) *nodev1.VolumeFileChange {
	return &nodev1.VolumeFileChange{Uid: c.UID, Gid: c.GID, Mode: c.Mode}
}

func toFileChange(c *nodev1.VolumeFileChange) sandbox.VolumeFileChange {
	if c == nil {
		return sandbox.VolumeFileChange{}
	}
	return sandbox.VolumeFileChange{UID: c.Uid, GID: c.Gid, Mode: c.Mode}
}
