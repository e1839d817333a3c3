package rpc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/cloud-sandbox/cloud-sandbox"
	builderv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/builder/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/builder/v1/builderv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/frames"
)

// Templates is a client of the Node that keeps the Templates of an installation, in
// another process. Use NewTemplates.
type Templates struct {
	peer   *peer
	client builderv1connect.BuilderServiceClient
}

// Home keeps the Templates of an installation.
type Home interface {
	sandbox.Templates
	sandbox.TemplateImages
	// Ended returns every Tenant's builds that ended at since or later, in no particular
	// order.
	Ended(ctx context.Context, since time.Time) ([]sandbox.TemplateBuild, error)
	// Keep records an image that came with a Tenant's Snapshot as a version of its
	// Template, and Drop removes one without names and users.
	Keep(ctx context.Context, tenant sandbox.TenantID, template, version string) error
	Drop(ctx context.Context, version string) error
}

var (
	_ Home                    = (*Templates)(nil)
	_ sandbox.Images          = (*Templates)(nil)
	_ sandbox.TemplateUploads = (*Templates)(nil)
)

// NewTemplates returns the Templates that a Node keeps, by its name and its address. An
// https:// address needs the name. It does not connect yet.
func NewTemplates(node, address string, self Self) *Templates {
	p := newPeer(Node, node, address, self)
	return &Templates{peer: p, client: builderv1connect.NewBuilderServiceClient(p.http, p.base, p.options()...)}
}

// Close frees idle connections.
func (t *Templates) Close() { t.peer.close() }

// The paths of the calls whose bodies or answers are streams.
const (
	buildPath       = "/cloudsandbox.builder.v1.BuilderService.Build"
	buildLogPath    = "/cloudsandbox.builder.v1.BuilderService.BuildLog"
	openImagePath   = "/cloudsandbox.builder.v1.BuilderService.OpenImage"
	storeImagePath  = "/cloudsandbox.builder.v1.BuilderService.StoreImage"
	openUploadPath  = "/cloudsandbox.builder.v1.BuilderService.OpenUpload"
	storeUploadPath = "/cloudsandbox.builder.v1.BuilderService.StoreUpload"
	// maxWanted bounds the message that begins a build, in bytes.
	maxWanted = 32 << 20
	// maxEntry bounds one line of a build's log as JSON, in bytes.
	maxEntry = 256 << 10
	// sizeBytes is the size of a length. A length precedes a message in a build's body,
	// and an image in an answer.
	sizeBytes = 8
)

// sized is a stream's beginning that says how many bytes follow.
func sized(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// sizeOf reads a length that sized made; a length above most is an error.
func sizeOf(r io.Reader, most int64) (int64, error) {
	var head [sizeBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, err
	}
	n := binary.BigEndian.Uint64(head[:])
	if n > uint64(most) {
		return 0, fmt.Errorf("%d bytes are said to follow, and at most %d may", n, most)
	}
	return int64(n), nil
}

// Build implements sandbox.Templates.
func (t *Templates) Build(ctx context.Context, tenant sandbox.TenantID, req sandbox.TemplateRequest, archive io.Reader) (sandbox.TemplateBuild, error) {
	wanted := fromWanted(req)
	wanted.Upload, wanted.Archive = req.Upload != nil, archive != nil
	head, err := proto.Marshal(wanted)
	if err != nil {
		return sandbox.TemplateBuild{}, err
	}
	if len(head) > maxWanted {
		return sandbox.TemplateBuild{}, sandbox.Errorf(sandbox.TooLarge, "the description of a template may have at most %d MiB", maxWanted>>20)
	}
	body := []io.Reader{bytes.NewReader(append(sized(int64(len(head))), head...))}
	if req.Upload != nil {
		body = append(body, frames.Encode(req.Upload))
	}
	if archive != nil {
		body = append(body, archive)
	}
	reply := &builderv1.Build{}
	err = t.peer.upload(ctx, tenant, buildPath, nil, io.MultiReader(body...), reply)
	if err != nil {
		return sandbox.TemplateBuild{}, err
	}
	return toBuild(reply), nil
}

// Builds implements sandbox.Templates.
func (t *Templates) Builds(ctx context.Context, tenant sandbox.TenantID) ([]sandbox.TemplateBuild, error) {
	r, err := call(ctx, t.peer, tenant, t.client.Builds, &builderv1.BuildsRequest{})
	return toBuilds(r.GetBuilds()), err
}

// Ended implements Home.
func (t *Templates) Ended(ctx context.Context, since time.Time) ([]sandbox.TemplateBuild, error) {
	r, err := call(ctx, t.peer, "", t.client.Ended, &builderv1.EndedRequest{Since: fromTime(since)})
	return toBuilds(r.GetBuilds()), err
}

// BuildByID implements sandbox.Templates.
func (t *Templates) BuildByID(ctx context.Context, tenant sandbox.TenantID, id string) (sandbox.TemplateBuild, error) {
	r, err := call(ctx, t.peer, tenant, t.client.BuildByID, &builderv1.BuildByIDRequest{Id: id})
	return toBuild(r.GetBuild()), err
}

// CancelBuild implements sandbox.Templates.
func (t *Templates) CancelBuild(ctx context.Context, tenant sandbox.TenantID, id string) (sandbox.TemplateBuild, error) {
	r, err := call(ctx, t.peer, tenant, t.client.CancelBuild, &builderv1.CancelBuildRequest{Id: id})
	return toBuild(r.GetBuild()), err
}

// BuildLog implements sandbox.Templates.
func (t *Templates) BuildLog(ctx context.Context, tenant sandbox.TenantID, id string, from int64, follow bool, each func(sandbox.BuildLine) error) error {
	query := url.Values{"id": {id}, "from": {strconv.FormatInt(from, 10)}, "follow": {strconv.FormatBool(follow)}}
	res, err := t.peer.transfer(ctx, tenant, http.MethodGet, buildLogPath, query, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, maxEntry)
	for lines.Scan() {
		entry := &builderv1.LogEntry{}
		if err := protojson.Unmarshal(lines.Bytes(), entry); err != nil {
			return t.peer.broken(fmt.Errorf("an invalid line of a log: %w", err))
		}
		if entry.Failure != nil {
			return errorOf(entry.Failure)
		}
		if err := each(sandbox.BuildLine{At: toTime(entry.At), Text: entry.Text, Next: entry.Next}); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return t.peer.broke(ctx, err)
	}
	return nil
}

// List implements sandbox.Templates.
func (t *Templates) List(ctx context.Context, tenant sandbox.TenantID) ([]sandbox.Template, error) {
	r, err := call(ctx, t.peer, tenant, t.client.List, &builderv1.ListRequest{})
	return toTemplates(r.GetTemplates()), err
}

// Find implements sandbox.Templates.
func (t *Templates) Find(ctx context.Context, tenant sandbox.TenantID, template string) (sandbox.Template, error) {
	r, err := call(ctx, t.peer, tenant, t.client.Find, &builderv1.FindRequest{Template: template})
	return toTemplate(r.GetTemplate()), err
}

// Resolve implements sandbox.Images.
func (t *Templates) Resolve(ctx context.Context, tenant sandbox.TenantID, template string) (string, error) {
	found, err := t.Find(ctx, tenant, template)
	return found.Version, err
}

// Versions implements sandbox.Templates.
func (t *Templates) Versions(ctx context.Context, tenant sandbox.TenantID, template string) (sandbox.Template, []sandbox.Template, error) {
	r, err := call(ctx, t.peer, tenant, t.client.Versions, &builderv1.VersionsRequest{Template: template})
	return toTemplate(r.GetTemplate()), toTemplates(r.GetVersions()), err
}

// Tag implements sandbox.Templates.
func (t *Templates) Tag(ctx context.Context, tenant sandbox.TenantID, template string, tags []string) (sandbox.Template, error) {
	r, err := call(ctx, t.peer, tenant, t.client.Tag, &builderv1.TagRequest{Template: template, Tags: tags})
	return toTemplate(r.GetTemplate()), err
}

// Reuse implements sandbox.Templates.
func (t *Templates) Reuse(ctx context.Context, tenant sandbox.TenantID, template string, as sandbox.Template) (sandbox.Template, error) {
	r, err := call(ctx, t.peer, tenant, t.client.Reuse, &builderv1.ReuseRequest{Template: template, As: fromTemplate(as)})
	return toTemplate(r.GetTemplate()), err
}

// Remove implements sandbox.Templates.
func (t *Templates) Remove(ctx context.Context, tenant sandbox.TenantID, template string) (sandbox.RemovedTemplates, error) {
	r, err := call(ctx, t.peer, tenant, t.client.Remove, &builderv1.RemoveRequest{Template: template})
	return sandbox.RemovedTemplates{Names: append([]string{}, r.GetNames()...), FreedBytes: r.GetFreedBytes()}, err
}

// StoredBytes implements sandbox.Templates.
func (t *Templates) StoredBytes(ctx context.Context, tenant sandbox.TenantID) (int64, error) {
	r, err := call(ctx, t.peer, tenant, t.client.StoredBytes, &builderv1.StoredBytesRequest{})
	return r.GetBytes(), err
}

// Admit implements sandbox.Templates.
func (t *Templates) Admit(ctx context.Context, tenant sandbox.TenantID, version string) error {
	_, err := call(ctx, t.peer, tenant, t.client.Admit, &builderv1.AdmitRequest{Version: version})
	return err
}

// Keep implements Home.
func (t *Templates) Keep(ctx context.Context, tenant sandbox.TenantID, template, version string) error {
	_, err := call(ctx, t.peer, tenant, t.client.Keep, &builderv1.KeepRequest{Template: template, Version: version})
	return err
}

// Drop implements Home.
func (t *Templates) Drop(ctx context.Context, version string) error {
	_, err := call(ctx, t.peer, "", t.client.Drop, &builderv1.DropRequest{Version: version})
	return err
}

// MissingImages implements sandbox.TemplateImages.
func (t *Templates) MissingImages(ctx context.Context, versions []string) ([]string, error) {
	r, err := call(ctx, t.peer, "", t.client.MissingImages, &builderv1.MissingImagesRequest{Versions: versions})
	return r.GetVersions(), err
}

// OpenImage implements sandbox.TemplateImages.
func (t *Templates) OpenImage(ctx context.Context, version string) (io.ReadCloser, int64, error) {
	return t.open(ctx, "", openImagePath, url.Values{"version": {version}})
}

// open reads the answer of a transfer that begins with its size.
func (t *Templates) open(ctx context.Context, tenant sandbox.TenantID, path string, query url.Values) (io.ReadCloser, int64, error) {
	res, err := t.peer.transfer(ctx, tenant, http.MethodGet, path, query, nil)
	if err != nil {
		return nil, 0, err
	}
	n, err := sizeOf(res.Body, 1<<62)
	if err != nil {
		res.Body.Close()
		return nil, 0, t.peer.broke(ctx, err)
	}
	return &remoteFile{ReadCloser: res.Body, left: n, broke: func(err error) error { return t.peer.broke(ctx, err) }}, n, nil
}

// remoteFile reads a file from another process.
type remoteFile struct {
	io.ReadCloser
	left  int64 // bytes that are still to come
	broke func(error) error
}

func (f *remoteFile) Read(p []byte) (int, error) {
	n, err := f.ReadCloser.Read(p)
	f.left -= int64(n)
	switch {
	case err == nil, errors.Is(err, io.EOF) && f.left == 0:
		return n, err
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return n, f.broke(err)
}

// StoreImage implements sandbox.TemplateImages.
func (t *Templates) StoreImage(ctx context.Context, version string, n int64, image io.Reader) error {
	query := url.Values{"version": {version}, "bytes": {strconv.FormatInt(n, 10)}}
	return t.peer.upload(ctx, "", storeImagePath, query, image, &builderv1.DropResponse{})
}

// HasUpload implements sandbox.TemplateUploads. A Node of the version before is
// Unsupported, here and in the methods below.
func (t *Templates) HasUpload(ctx context.Context, tenant sandbox.TenantID, hash string) (bool, error) {
	r, err := call(ctx, t.peer, tenant, t.client.HasUpload, &builderv1.HasUploadRequest{Hash: hash})
	return r.GetPresent(), takesUploads(err)
}

// OpenUpload implements sandbox.TemplateUploads.
func (t *Templates) OpenUpload(ctx context.Context, tenant sandbox.TenantID, hash string) (io.ReadCloser, int64, error) {
	archive, n, err := t.open(ctx, tenant, openUploadPath, url.Values{"hash": {hash}})
	return archive, n, takesUploads(err)
}

// StoreUpload implements sandbox.TemplateUploads.
func (t *Templates) StoreUpload(ctx context.Context, tenant sandbox.TenantID, hash string, archive io.Reader) error {
	err := t.peer.upload(ctx, tenant, storeUploadPath, url.Values{"hash": {hash}}, archive, &builderv1.HasUploadResponse{})
	return takesUploads(err)
}

// takesUploads turns the error of a call that the other end does not know into
// Unsupported.
func takesUploads(err error) error {
	if isUnknown(err) {
		return sandbox.Errorf(sandbox.Unsupported, "the node that keeps the templates is of an earlier version, which takes no uploads: upgrade it").WithCause(err)
	}
	return err
}

// isUnknown reports whether err says that the other end, of an earlier version, does not
// know the call.
func isUnknown(err error) bool {
	var remote *connect.Error
	return errors.Is(err, errUnknownCall) || errors.As(err, &remote) && remote.Code() == connect.CodeUnimplemented
}
