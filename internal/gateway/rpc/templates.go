package rpc

import (
	"context"
	"io"
	"strconv"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	templatev1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/template/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// MaxRecipe bounds one message of a build, in bytes: the files in a Template's recipe,
// and the rest.
const MaxRecipe = 16 << 20

// templates is the service of Templates and their builds.
type templates struct {
	templates sandbox.TemplateCatalog
	builds    sandbox.TemplateBuilds
}

func templateOf(t sandbox.Template) *templatev1.Template {
	return &templatev1.Template{
		Template: rest.TemplateName(t), Name: t.Name, Tag: t.Tag, Version: t.Version, Shared: t.Shared, Source: text(t.Source),
		Packages: texts(t.Packages), Env: textMap(t.Env), Start: text(t.Start), Ready: text(t.Ready), SizeBytes: t.SizeBytes, StoredBytes: t.StoredBytes, CreatedAt: timestamp(t.CreatedAt),
	}
}

// textMap applies text to each key and value.
func textMap(m map[string]string) map[string]string {
	out := make(map[string]string, len(m))
	for key, value := range m {
		out[text(key)] = text(value)
	}
	return out
}

func buildOf(b sandbox.TemplateBuild) *templatev1.Build {
	v := &templatev1.Build{
		BuildId: b.ID, Template: b.Template, Source: text(b.Source), State: string(b.State), Progress: text(b.Progress),
		CreatedAt: timestamp(b.CreatedAt), StartedAt: timestamp(b.StartedAt), EndedAt: timestamp(b.EndedAt),
		Version: b.Version, SizeBytes: b.SizeBytes, Cached: b.Cached,
	}
	if b.Failure != nil {
		v.Error = &templatev1.Failure{Code: string(b.Failure.Code), Message: text(b.Failure.Message)}
	}
	return v
}

func recipeOf(m *templatev1.Recipe) (sandbox.TemplateRequest, error) {
	req := sandbox.TemplateRequest{
		Template: m.Template, Source: m.Source, Packages: m.Packages, Env: m.Env, Start: m.Start, Ready: m.Ready, Bare: m.Bare, Force: m.Force,
		Dockerfile: m.Dockerfile, BuildArgs: m.BuildArgs,
	}
	switch {
	case m.Template == "":
		return req, sandbox.Errorf(sandbox.Invalid, "template, its name, is missing")
	case m.Source == "" && m.Dockerfile == "":
		return req, rest.ErrNoSource
	}
	for _, f := range m.Files {
		file := sandbox.TemplateFile{Path: f.Path, Content: f.Content, User: f.Owner == "user"}
		if f.Mode != "" {
			mode, err := strconv.ParseUint(f.Mode, 8, 32)
			if err != nil {
				return req, sandbox.Errorf(sandbox.Invalid, `the mode of %.80q must be octal, for example "0755"`, f.Path)
			}
			file.Mode = uint32(mode)
		}
		if f.Owner != "" && f.Owner != "root" && f.Owner != "user" {
			return req, sandbox.Errorf(sandbox.Invalid, "the owner of %.80q must be root or user", f.Path)
		}
		req.Files = append(req.Files, file)
	}
	return req, nil
}

// following are the messages after the recipe: pieces of files, and then of an archive.
type following struct {
	in   *connect.ClientStream[templatev1.BuildRequest]
	next *templatev1.BuildRequest // the message to read; nil: there are no more
}

// advance receives the next message.
func (s *following) advance() error {
	s.next = nil
	if !s.in.Receive() {
		return s.in.Err()
	}
	if err := checkKnown(s.in.Msg()); err != nil {
		return err
	}
	if s.in.Msg().GetRecipe() != nil {
		return sandbox.Errorf(sandbox.Invalid, "only the first message of a build is a recipe")
	}
	s.next = s.in.Msg()
	return nil
}

// pieces reads the bytes of messages of one kind, up to the first of another.
type pieces struct {
	sent  *following
	files bool // false: the archive
	data  []byte
	begun bool
}

func (p *pieces) of(m *templatev1.BuildRequest) (data []byte, ok bool) {
	switch part := m.GetPart().(type) {
	case *templatev1.BuildRequest_Files:
		return part.Files, p.files
	case *templatev1.BuildRequest_Archive:
		return part.Archive, !p.files
	}
	return nil, false
}

func (p *pieces) Read(buf []byte) (int, error) {
	for len(p.data) == 0 {
		if p.begun {
			if err := p.sent.advance(); err != nil {
				return 0, err
			}
		}
		data, ok := p.of(p.sent.next)
		switch {
		case !ok && p.files, p.sent.next == nil:
			return 0, io.EOF
		case !ok:
			return 0, sandbox.Errorf(sandbox.Invalid, "files come before the archive")
		}
		p.data, p.begun = data, true
	}
	n := copy(buf, p.data)
	p.data = p.data[n:]
	return n, nil
}

// withArchive is the source of a Template that is built from an archive.
const withArchive = "tar:"

// Build implements the service.
func (s templates) Build(ctx context.Context, in *connect.ClientStream[templatev1.BuildRequest]) (*connect.Response[templatev1.BuildResponse], error) {
	if !in.Receive() {
		if err := in.Err(); err != nil {
			return nil, err
		}
	}
	first := in.Msg()
	if err := checkKnown(first); err != nil {
		return nil, err
	}
	if first.GetRecipe() == nil {
		return nil, sandbox.Errorf(sandbox.Invalid, "recipe is missing: it is the first message of a build")
	}
	req, err := recipeOf(first.GetRecipe())
	if err != nil {
		return nil, err
	}
	follows := &following{in: in}
	if err := follows.advance(); err != nil {
		return nil, err
	}
	files, archive := &pieces{sent: follows, files: true}, &pieces{sent: follows}
	_, hasFiles := files.of(follows.next)
	_, hasArchive := archive.of(follows.next)
	if hasArchive && req.Source != withArchive && req.Dockerfile == "" {
		return nil, sandbox.Errorf(sandbox.Invalid, "an archive is for the source %q, or a dockerfile", withArchive)
	}
	build := func(archive io.Reader) (sandbox.TemplateBuild, error) {
		return s.builds.Build(ctx, tenantOf(ctx), req, archive)
	}
	withFiles := func(files io.Reader) (sandbox.TemplateBuild, error) {
		if req.Upload = files; !hasArchive && req.Source != withArchive {
			return build(nil)
		}
		return taking(ctx, archive, build) // it begins where the files end
	}
	b, err := func() (sandbox.TemplateBuild, error) {
		if hasFiles {
			return taking(ctx, files, withFiles)
		}
		return withFiles(nil)
	}()
	if err != nil {
		return nil, err
	}
	rest.Made(ctx, b.ID)
	return connect.NewResponse(&templatev1.BuildResponse{Build: buildOf(b)}), nil
}

// List implements the service.
func (s templates) List(ctx context.Context, _ *connect.Request[templatev1.ListRequest]) (*connect.Response[templatev1.ListResponse], error) {
	all, err := s.templates.List(ctx, tenantOf(ctx))
	if err != nil {
		return nil, err
	}
	res := &templatev1.ListResponse{}
	for _, t := range all {
		res.Templates = append(res.Templates, templateOf(t))
	}
	return connect.NewResponse(res), nil
}

// Get implements the service.
func (s templates) Get(ctx context.Context, r *connect.Request[templatev1.GetRequest]) (*connect.Response[templatev1.GetResponse], error) {
	found, versions, err := s.templates.Versions(ctx, tenantOf(ctx), r.Msg.Template)
	if err != nil {
		return nil, err
	}
	res := &templatev1.GetResponse{Template: templateOf(found)}
	for _, t := range versions {
		res.Versions = append(res.Versions, templateOf(t))
	}
	return connect.NewResponse(res), nil
}

// Remove implements the service.
func (s templates) Remove(ctx context.Context, r *connect.Request[templatev1.RemoveRequest]) (*connect.Response[templatev1.RemoveResponse], error) {
	rest.Names(ctx, r.Msg.Template)
	gone, err := s.templates.Remove(ctx, tenantOf(ctx), r.Msg.Template)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&templatev1.RemoveResponse{Removed: gone.Names, FreedBytes: gone.FreedBytes}), nil
}

// ListBuilds implements the service.
func (s templates) ListBuilds(ctx context.Context, _ *connect.Request[templatev1.ListBuildsRequest]) (*connect.Response[templatev1.ListBuildsResponse], error) {
	all, err := s.builds.Builds(ctx, tenantOf(ctx))
	if err != nil {
		return nil, err
	}
	res := &templatev1.ListBuildsResponse{}
	for _, b := range all {
		res.Builds = append(res.Builds, buildOf(b))
	}
	return connect.NewResponse(res), nil
}

// GetBuild implements the service.
func (s templates) GetBuild(ctx context.Context, r *connect.Request[templatev1.GetBuildRequest]) (*connect.Response[templatev1.GetBuildResponse], error) {
	b, err := s.builds.BuildByID(ctx, tenantOf(ctx), r.Msg.BuildId)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&templatev1.GetBuildResponse{Build: buildOf(b)}), nil
}

// BuildLog implements the service.
func (s templates) BuildLog(ctx context.Context, r *connect.Request[templatev1.BuildLogRequest], out *connect.ServerStream[templatev1.BuildLogResponse]) error {
	if err := checkKnown(r.Msg); err != nil {
		return err
	}
	if r.Msg.From < 0 {
		return sandbox.Errorf(sandbox.Invalid, "from must be 0, or the next_offset of a line before")
	}
	err := s.builds.BuildLog(ctx, tenantOf(ctx), r.Msg.BuildId, r.Msg.From, r.Msg.Follow, func(l sandbox.BuildLine) error {
		line := &templatev1.Line{At: timestamp(l.At), Text: text(l.Text), NextOffset: l.Next}
		return out.Send(&templatev1.BuildLogResponse{Event: &templatev1.BuildLogResponse_Line{Line: line}})
	})
	if err != nil {
		return err
	}
	b, err := s.builds.BuildByID(ctx, tenantOf(ctx), r.Msg.BuildId)
	if err != nil {
		return err
	}
	return out.Send(&templatev1.BuildLogResponse{Event: &templatev1.BuildLogResponse_Build{Build: buildOf(b)}})
}

// CancelBuild implements the service.
func (s templates) CancelBuild(ctx context.Context, r *connect.Request[templatev1.CancelBuildRequest]) (*connect.Response[templatev1.CancelBuildResponse], error) {
	rest.Names(ctx, r.Msg.BuildId)
	b, err := s.builds.CancelBuild(ctx, tenantOf(ctx), r.Msg.BuildId)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&templatev1.CancelBuildResponse{Build: buildOf(b)}), nil
}
