package rpc

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/cloud-sandbox/cloud-sandbox"
	builderv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/builder/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/builder/v1/builderv1connect"
	rpcv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/rpc/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/frames"
)

// maxOpenImages bounds the images that are read at once by other Nodes; more of them wait.
const maxOpenImages = 8

// TemplateService serves the Templates that a Node keeps, and the uploads for their
// builds, to the other roles.
func TemplateService(h Home, uploads sandbox.TemplateUploads) Service {
	s := builderServer{h: h, uploads: uploads, open: make(chan struct{}, maxOpenImages)}
	return Service{
		Name: builderv1connect.BuilderServiceName,
		handler: func(o ...connect.HandlerOption) (string, http.Handler) {
			return builderv1connect.NewBuilderServiceHandler(s, o...)
		},
		carried: s.transfers(),
	}
}

type builderServer struct {
	h       Home
	uploads sandbox.TemplateUploads
	open    chan struct{} // one for each image that is being read
}

// transfers are the calls whose bodies or answers are streams.
func (s builderServer) transfers() map[string]transfer {
	return map[string]transfer{
		"POST " + buildPath:       s.build,
		"GET " + buildLogPath:     s.buildLog,
		"GET " + openImagePath:    s.openImage,
		"POST " + storeImagePath:  s.storeImage,
		"GET " + openUploadPath:   s.openUpload,
		"POST " + storeUploadPath: s.storeUpload,
	}
}

func (s builderServer) build(ctx context.Context, _ url.Values, from io.Reader, to io.Writer) error {
	t, err := tenant(ctx)
	if err != nil {
		return err
	}
	n, err := sizeOf(from, maxWanted)
	head := make([]byte, n)
	if err == nil {
		_, err = io.ReadFull(from, head)
	}
	wanted := &builderv1.Wanted{}
	if err == nil {
		err = proto.Unmarshal(head, wanted)
	}
	if err != nil {
		return sandbox.Errorf(sandbox.Invalid, "the description of the template cannot be read").WithCause(err)
	}
	req := toWanted(wanted)
	if wanted.Upload {
		req.Upload = frames.Decode(from)
	}
	var archive io.Reader
	if wanted.Archive {
		archive = from
	}
	b, err := s.h.Build(ctx, t, req, archive)
	return writeReply(to, fromBuild(b), err)
}

// buildLog writes lines as they come. After the first line, a failure is sent as the last
// one.
func (s builderServer) buildLog(ctx context.Context, q url.Values, _ io.Reader, to io.Writer) error {
	t, err := tenant(ctx)
	if err != nil {
		return err
	}
	from, err := strconv.ParseInt(q.Get("from"), 10, 64)
	if err != nil {
		return sandbox.Errorf(sandbox.Invalid, "from must be a whole number").WithCause(err)
	}
	wrote := false
	write := func(entry *builderv1.LogEntry) error {
		raw, err := protojson.Marshal(entry)
		if err != nil {
			return err
		}
		wrote = true
		_, err = prompt{to}.Write(append(raw, '\n'))
		return err
	}
	err = s.h.BuildLog(ctx, t, q.Get("id"), from, q.Get("follow") == "true", func(l sandbox.BuildLine) error {
		return write(&builderv1.LogEntry{At: fromTime(l.At), Text: l.Text, Next: l.Next})
	})
	if err == nil || !wrote || ctx.Err() != nil {
		return err
	}
	return write(&builderv1.LogEntry{Failure: failureOf(err)})
}

// failureOf is an error as a message, for a place where an answer has begun.
func failureOf(err error) *rpcv1.Failure {
	for _, d := range internal(err).Details() {
		if value, err := d.Value(); err == nil {
			if f, ok := value.(*rpcv1.Failure); ok {
				return f
			}
		}
	}
	return &rpcv1.Failure{Code: string(sandbox.Unavailable), Message: "the call ended early"}
}

func (s builderServer) openImage(ctx context.Context, q url.Values, _ io.Reader, to io.Writer) error {
	select {
	case s.open <- struct{}{}:
		defer func() { <-s.open }()
	case <-ctx.Done():
		return ctx.Err()
	}
	image, n, err := s.h.OpenImage(ctx, q.Get("version"))
	if err != nil {
		return err
	}
	defer image.Close()
	return send(to, image, n)
}

// send writes a file of n bytes, with its size before it.
func send(to io.Writer, file io.Reader, n int64) error {
	if _, err := to.Write(sized(n)); err != nil {
		return err
	}
	sent, err := io.Copy(to, file)
	if err == nil && sent != n {
		err = fmt.Errorf("the file has %d bytes and not %d", sent, n)
	}
	return err
}

func (s builderServer) storeImage(ctx context.Context, q url.Values, from io.Reader, to io.Writer) error {
	n, err := strconv.ParseInt(q.Get("bytes"), 10, 64)
	if err != nil {
		return sandbox.Errorf(sandbox.Invalid, "the size of the image is missing").WithCause(err)
	}
	return writeReply(to, &builderv1.DropResponse{}, s.h.StoreImage(ctx, q.Get("version"), n, from))
}

func (s builderServer) openUpload(ctx context.Context, q url.Values, _ io.Reader, to io.Writer) error {
	t, err := tenant(ctx)
	if err != nil {
		return err
	}
	archive, n, err := s.uploads.OpenUpload(ctx, t, q.Get("hash"))
	if err != nil {
		return err
	}
	defer archive.Close()
	return send(to, archive, n)
}

func (s builderServer) storeUpload(ctx context.Context, q url.Values, from io.Reader, to io.Writer) error {
	t, err := tenant(ctx)
	if err != nil {
		return err
	}
	return writeReply(to, &builderv1.HasUploadResponse{Present: true}, s.uploads.StoreUpload(ctx, t, q.Get("hash"), from))
}

func (s builderServer) HasUpload(ctx context.Context, r *connect.Request[builderv1.HasUploadRequest]) (*connect.Response[builderv1.HasUploadResponse], error) {
	t, err := tenant(ctx)
	if err != nil {
		return nil, internal(err)
	}
	present, err := s.uploads.HasUpload(ctx, t, r.Msg.Hash)
	return answer(&builderv1.HasUploadResponse{Present: present}, err)
}

func (s builderServer) Builds(ctx context.Context, _ *connect.Request[builderv1.BuildsRequest]) (*connect.Response[builderv1.BuildsResponse], error) {
	t, err := tenant(ctx)
	if err != nil {
		return nil, internal(err)
	}
	all, err := s.h.Builds(ctx, t)
	return answer(&builderv1.BuildsResponse{Builds: fromBuilds(all)}, err)
}

func (s builderServer) Ended(ctx context.Context, r *connect.Request[builderv1.EndedRequest]) (*connect.Response[builderv1.EndedResponse], error) {
	all, err := s.h.Ended(ctx, toTime(r.Msg.Since))
	return answer(&builderv1.EndedResponse{Builds: fromBuilds(all)}, err)
}

func (s builderServer) BuildByID(ctx context.Context, r *connect.Request[builderv1.BuildByIDRequest]) (*connect.Response[builderv1.BuildByIDResponse], error) {
	t, err := tenant(ctx)
	if err != nil {
		return nil, internal(err)
	}
	b, err := s.h.BuildByID(ctx, t, r.Msg.Id)
	return answer(&builderv1.BuildByIDResponse{Build: fromBuild(b)}, err)
}

func (s builderServer) CancelBuild(ctx context.Context, r *connect.Request[builderv1.CancelBuildRequest]) (*connect.Response[builderv1.CancelBuildResponse], error) {
	t, err := tenant(ctx)
	if err != nil {
		return nil, internal(err)
	}
	b, err := s.h.CancelBuild(ctx, t, r.Msg.Id)
	return answer(&builderv1.CancelBuildResponse{Build: fromBuild(b)}, err)
}

func (s builderServer) List(ctx context.Context, _ *connect.Request[builderv1.ListRequest]) (*connect.Response[builderv1.ListResponse], error) {
	t, err := tenant(ctx)
	if err != nil {
		return nil, internal(err)
	}
	all, err := s.h.List(ctx, t)
	return answer(&builderv1.ListResponse{Templates: fromTemplates(all)}, err)
}

// Find is for gateways, for the session-manager, and for Nodes, whose Pools are of the
// operator's Templates.
func (s builderServer) Find(ctx context.Context, r *connect.Request[builderv1.FindRequest]) (*connect.Response[builderv1.FindResponse], error) {
	t := callerOf(ctx).Tenant // empty: none, if the rule allows it
	found, err := s.h.Find(ctx, t, r.Msg.Template)
	return answer(&builderv1.FindResponse{Template: fromTemplate(found)}, err)
}

func (s builderServer) Versions(ctx context.Context, r *connect.Request[builderv1.VersionsRequest]) (*connect.Response[builderv1.VersionsResponse], error) {
	t, err := tenant(ctx)
	if err != nil {
		return nil, internal(err)
	}
	found, versions, err := s.h.Versions(ctx, t, r.Msg.Template)
	return answer(&builderv1.VersionsResponse{Template: fromTemplate(found), Versions: fromTemplates(versions)}, err)
}

func (s builderServer) Tag(ctx context.Context, r *connect.Request[builderv1.TagRequest]) (*connect.Response[builderv1.TagResponse], error) {
	t, err := tenant(ctx)
	if err != nil {
		return nil, internal(err)
	}
	tagged, err := s.h.Tag(ctx, t, r.Msg.Template, r.Msg.Tags)
	return answer(&builderv1.TagResponse{Template: fromTemplate(tagged)}, err)
}

func (s builderServer) Reuse(ctx context.Context, r *connect.Request[builderv1.ReuseRequest]) (*connect.Response[builderv1.ReuseResponse], error) {
	t, err := tenant(ctx)
	if err != nil {
		return nil, internal(err)
	}
	reused, err := s.h.Reuse(ctx, t, r.Msg.Template, toTemplate(r.Msg.As))
	return answer(&builderv1.ReuseResponse{Template: fromTemplate(reused)}, err)
}

func (s builderServer) Remove(ctx context.Context, r *connect.Request[builderv1.RemoveRequest]) (*connect.Response[builderv1.RemoveResponse], error) {
	t, err := tenant(ctx)
	if err != nil {
		return nil, internal(err)
	}
	gone, err := s.h.Remove(ctx, t, r.Msg.Template)
	return answer(&builderv1.RemoveResponse{Names: gone.Names, FreedBytes: gone.FreedBytes}, err)
}

func (s builderServer) StoredBytes(ctx context.Context, _ *connect.Request[builderv1.StoredBytesRequest]) (*connect.Response[builderv1.StoredBytesResponse], error) {
	t, err := tenant(ctx)
	if err != nil {
		return nil, internal(err)
	}
	n, err := s.h.StoredBytes(ctx, t)
	return answer(&builderv1.StoredBytesResponse{Bytes: n}, err)
}

func (s builderServer) Admit(ctx context.Context, r *connect.Request[builderv1.AdmitRequest]) (*connect.Response[builderv1.AdmitResponse], error) {
	t := callerOf(ctx).Tenant // empty: none, if the rule allows it
	return answer(&builderv1.AdmitResponse{}, s.h.Admit(ctx, t, r.Msg.Version))
}

func (s builderServer) Keep(ctx context.Context, r *connect.Request[builderv1.KeepRequest]) (*connect.Response[builderv1.KeepResponse], error) {
	return answer(&builderv1.KeepResponse{}, s.h.Keep(ctx, callerOf(ctx).Tenant, r.Msg.Template, r.Msg.Version))
}

func (s builderServer) Drop(ctx context.Context, r *connect.Request[builderv1.DropRequest]) (*connect.Response[builderv1.DropResponse], error) {
	return answer(&builderv1.DropResponse{}, s.h.Drop(ctx, r.Msg.Version))
}

func (s builderServer) MissingImages(ctx context.Context, r *connect.Request[builderv1.MissingImagesRequest]) (*connect.Response[builderv1.MissingImagesResponse], error) {
	missing, err := s.h.MissingImages(ctx, r.Msg.Versions)
	return answer(&builderv1.MissingImagesResponse{Versions: missing}, err)
}

func fromTemplate(t sandbox.Template) *builderv1.Template {
	return &builderv1.Template{
		Name: t.Name, Tag: t.Tag, Version: t.Version, Shared: t.Shared, Source: t.Source, Packages: t.Packages, Env: t.Env,
		Start: t.Start, Ready: t.Ready, Defaults: fromDefaults(t.Defaults), Build: t.Build, Layer: t.Layer,
		SizeBytes: t.SizeBytes, StoredBytes: t.StoredBytes, CreatedAt: fromTime(t.CreatedAt), MadeAt: fromTime(t.MadeAt),
	}
}

func toTemplate(t *builderv1.Template) sandbox.Template {
	if t == nil {
		return sandbox.Template{}
	}
	return sandbox.Template{
		Name: t.Name, Tag: t.Tag, Version: t.Version, Shared: t.Shared, Source: t.Source, Packages: t.Packages, Env: t.Env,
		Start: t.Start, Ready: t.Ready, Defaults: toDefaults(t.Defaults), Build: t.Build, Layer: t.Layer,
		SizeBytes: t.SizeBytes, StoredBytes: t.StoredBytes, CreatedAt: toTime(t.CreatedAt), MadeAt: toTime(t.MadeAt),
	}
}

func fromTemplates(all []sandbox.Template) (out []*builderv1.Template) {
	for _, t := range all {
		out = append(out, fromTemplate(t))
	}
	return out
}

func toTemplates(all []*builderv1.Template) []sandbox.Template {
	out := []sandbox.Template{}
	for _, t := range all {
		out = append(out, toTemplate(t))
	}
	return out
}

func fromDefaults(d sandbox.TemplateDefaults) *builderv1.Defaults {
	return &builderv1.Defaults{User: d.User, Cwd: d.Cwd, Cpus: d.CPUs, MemoryBytes: d.MemoryBytes, DiskBytes: d.DiskBytes}
}

func toDefaults(d *builderv1.Defaults) sandbox.TemplateDefaults {
	if d == nil {
		return sandbox.TemplateDefaults{}
	}
	return sandbox.TemplateDefaults{User: d.User, Cwd: d.Cwd, CPUs: d.Cpus, MemoryBytes: d.MemoryBytes, DiskBytes: d.DiskBytes}
}

// fromWanted converts all of a request but its Upload.
func fromWanted(r sandbox.TemplateRequest) *builderv1.Wanted {
	w := &builderv1.Wanted{
		Template: r.Template, Source: r.Source, Dockerfile: r.Dockerfile, BuildArgs: r.BuildArgs, Packages: r.Packages, Env: r.Env,
		Start: r.Start, Ready: r.Ready, Bare: r.Bare, Force: r.Force, Whole: r.Whole, Base: r.Base,
		Defaults: fromDefaults(r.Defaults), Build: r.Build, Layer: r.Layer,
	}
	for _, f := range r.Files {
		w.Files = append(w.Files, &builderv1.File{Path: f.Path, Content: f.Content, Mode: f.Mode, User: f.User})
	}
	return w
}

func toWanted(w *builderv1.Wanted) sandbox.TemplateRequest {
	r := sandbox.TemplateRequest{
		Template: w.Template, Source: w.Source, Dockerfile: w.Dockerfile, BuildArgs: w.BuildArgs, Packages: w.Packages, Env: w.Env,
		Start: w.Start, Ready: w.Ready, Bare: w.Bare, Force: w.Force, Whole: w.Whole, Base: w.Base,
		Defaults: toDefaults(w.Defaults), Build: w.Build, Layer: w.Layer,
	}
	for _, f := range w.Files {
		r.Files = append(r.Files, sandbox.TemplateFile{Path: f.Path, Content: f.Content, Mode: f.Mode, User: f.User})
	}
	return r
}

func fromBuild(b sandbox.TemplateBuild) *builderv1.Build {
	out := &builderv1.Build{
		Id: b.ID, Tenant: string(b.Tenant), Template: b.Template, Source: b.Source, State: string(b.State), Progress: b.Progress,
		CreatedAt: fromTime(b.CreatedAt), StartedAt: fromTime(b.StartedAt), EndedAt: fromTime(b.EndedAt),
		Version: b.Version, SizeBytes: b.SizeBytes, Cached: b.Cached, Build: b.Build,
	}
	if b.Failure != nil {
		out.Failure = &rpcv1.Failure{Code: string(b.Failure.Code), Message: b.Failure.Message}
	}
	return out
}

func toBuild(b *builderv1.Build) sandbox.TemplateBuild {
	if b == nil {
		return sandbox.TemplateBuild{}
	}
	out := sandbox.TemplateBuild{
		ID: b.Id, Tenant: sandbox.TenantID(b.Tenant), Template: b.Template, Source: b.Source, State: sandbox.BuildState(b.State), Progress: b.Progress,
		CreatedAt: toTime(b.CreatedAt), StartedAt: toTime(b.StartedAt), EndedAt: toTime(b.EndedAt),
		Version: b.Version, SizeBytes: b.SizeBytes, Cached: b.Cached, Build: b.Build,
	}
	if b.Failure != nil {
		out.Failure = &sandbox.Failure{Code: sandbox.Code(b.Failure.Code), Message: b.Failure.Message}
	}
	return out
}

func fromBuilds(all []sandbox.TemplateBuild) (out []*builderv1.Build) {
	for _, b := range all {
		out = append(out, fromBuild(b))
	}
	return out
}

func toBuilds(all []*builderv1.Build) []sandbox.TemplateBuild {
	out := []sandbox.TemplateBuild{}
	for _, b := range all {
		out = append(out, toBuild(b))
	}
	return out
}
