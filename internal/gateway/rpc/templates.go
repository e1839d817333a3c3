package rpc

import (
	"context"
	"io"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	templatev1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/template/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// MaxRecipe bounds one message of a build, in bytes: the files in a Template's recipe,
// and the rest.
const MaxRecipe = 16 << 20

// builds are the calls of streams about builds of Templates.
type builds struct{ builds sandbox.TemplateBuilds }

// following are the messages after the recipe: pieces of files, and then of an archive.
type following struct {
	in   *connect.ClientStream[templatev1.BuildRequest]
	next *templatev1.BuildRequest // the message to read; nil: after the last message
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

// Build implements the service.
func (s builds) Build(ctx context.Context, in *connect.ClientStream[templatev1.BuildRequest]) (*connect.Response[templatev1.BuildResponse], error) {
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
	var recipe v1.TemplateRequest
	if err := take(&recipe, first.GetRecipe()); err != nil {
		return nil, err
	}
	req, err := rest.TemplateRequest(&recipe)
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
	if hasArchive && req.Source != sandbox.ArchiveSource && req.Dockerfile == "" {
		return nil, sandbox.Errorf(sandbox.Invalid, "an archive is for the source %q, or a dockerfile", sandbox.ArchiveSource)
	}
	build := func(archive io.Reader) (sandbox.TemplateBuild, error) {
		return s.builds.Build(ctx, tenantOf(ctx), req, archive)
	}
	withFiles := func(files io.Reader) (sandbox.TemplateBuild, error) {
		if req.Upload = files; !hasArchive && req.Source != sandbox.ArchiveSource {
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
	return connect.NewResponse(messageOf(&templatev1.BuildResponse{}, v1.BuildOf(b))), nil
}

// BuildLog implements the service.
func (s builds) BuildLog(ctx context.Context, r *connect.Request[templatev1.BuildLogRequest], out *connect.ServerStream[templatev1.BuildLogResponse]) error {
	if err := checkKnown(r.Msg); err != nil {
		return err
	}
	if r.Msg.From < 0 {
		return sandbox.ErrLogOffset
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
	return out.Send(&templatev1.BuildLogResponse{Event: &templatev1.BuildLogResponse_Build{Build: messageOf(&templatev1.Build{}, v1.BuildOf(b))}})
}
