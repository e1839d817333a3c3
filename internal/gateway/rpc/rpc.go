// Package rpc has the public services of Connect and gRPC: it decodes a call, calls,
// and encodes the answer. It holds no rules of its own.
package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/cloud-sandbox/cloud-sandbox"
	contextv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/context/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/context/v1/contextv1connect"
	filev1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/file/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/file/v1/filev1connect"
	gitv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/git/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/git/v1/gitv1connect"
	keyv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/key/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/key/v1/keyv1connect"
	processv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/process/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/process/v1/processv1connect"
	sandboxv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1/sandboxv1connect"
	secretv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/secret/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/secret/v1/secretv1connect"
	templatev1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/template/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/template/v1/templatev1connect"
	volumev1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/volume/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/volume/v1/volumev1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/keys"
	internalrpc "github.com/cloud-sandbox/cloud-sandbox/internal/rpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/secrets"
)

// API holds the services that the calls need. All fields are required.
type API struct {
	Sandboxes      sandbox.SandboxReader
	Lifecycle      sandbox.Lifecycle
	Updates        sandbox.Updates
	Snapshots      sandbox.Snapshots
	Volumes        sandbox.Volumes
	NodeVolumes    sandbox.NodeVolumes
	Guests         *execution.Guests
	Executions     *execution.Service
	Templates      sandbox.TemplateCatalog
	TemplateBuilds sandbox.TemplateBuilds
	Keys           *keys.Service
	Secrets        *secrets.Service
	Once           Once
}

// MaxStreamed bounds one message of a stream of any length, in bytes.
const MaxStreamed = 4 << 20

// Service is a service that clients call.
type Service struct {
	Name string // its full name in gRPC
	// Procedures are the paths of its calls.
	Procedures []string
	// Handler answers the calls, through Serve.
	Handler http.Handler
}

// Services returns all services of an API.
func Services(a *API) []Service {
	options := []connect.HandlerOption{
		connect.WithCodec(jsonCodec{"json"}),
		connect.WithCodec(jsonCodec{"json; charset=utf-8"}),
		connect.WithCompression("gzip", nil, nil), // a message is never larger than its body, which is bounded
		connect.WithInterceptors(translator{}, a.Once),
	}
	_, sandboxes := sandboxv1connect.NewSandboxServiceHandler(a, options...)
	_, file := filev1connect.NewFileServiceHandler(files{a.Guests}, append(options, connect.WithReadMaxBytes(MaxStreamed))...)
	_, contexts := contextv1connect.NewContextServiceHandler(contexts{a.Executions}, options...)
	_, process := processv1connect.NewProcessServiceHandler(processes{a.Executions}, options...)
	_, templates := templatev1connect.NewTemplateServiceHandler(templates{a.Templates, a.TemplateBuilds}, append(options, connect.WithReadMaxBytes(MaxRecipe))...)
	_, git := gitv1connect.NewGitServiceHandler(repositories{a.Guests}, options...)
	_, key := keyv1connect.NewKeyServiceHandler(apiKeys{a.Keys}, options...)
	_, secret := secretv1connect.NewSecretServiceHandler(secretStore{a.Secrets, a.Updates}, options...)
	_, volume := volumev1connect.NewVolumeServiceHandler(volumes{a.Volumes, a.NodeVolumes}, options...)
	return []Service{
		serviceOf(sandboxv1.File_cloudsandbox_sandbox_v1_sandbox_proto, sandboxes),
		serviceOf(processv1.File_cloudsandbox_process_v1_process_proto, process),
		serviceOf(filev1.File_cloudsandbox_file_v1_file_proto, file),
		serviceOf(contextv1.File_cloudsandbox_context_v1_context_proto, contexts),
		serviceOf(templatev1.File_cloudsandbox_template_v1_template_proto, templates),
		serviceOf(gitv1.File_cloudsandbox_git_v1_git_proto, git),
		serviceOf(keyv1.File_cloudsandbox_key_v1_key_proto, key),
		serviceOf(secretv1.File_cloudsandbox_secret_v1_secret_proto, secret),
		serviceOf(volumev1.File_cloudsandbox_volume_v1_volume_proto, volume),
	}
}

// serviceOf is the one service in a file descriptor.
func serviceOf(file protoreflect.FileDescriptor, h http.Handler) Service {
	described := file.Services().Get(0)
	s := Service{Name: string(described.FullName()), Handler: h}
	for i := range described.Methods().Len() {
		s.Procedures = append(s.Procedures, fmt.Sprintf("/%s/%s", s.Name, described.Methods().Get(i).Name()))
	}
	return s
}

// Serve answers one call of who with h. The error that it returns, if any, has already
// been sent to the client.
func Serve(h http.Handler, w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	c := &call{who: who, flow: http.NewResponseController(w)}
	bounded := *r.WithContext(context.WithValue(r.Context(), callKey{}, c))
	bounded.Body = &body{r.Body, c}
	out := &outcome{ResponseWriter: w, flow: c.flow, call: c}
	h.ServeHTTP(out, &bounded)
	switch {
	case c.err == nil:
		return out.failure()
	case context.Cause(r.Context()) == context.Canceled:
		return context.Canceled // the client left; the result does not matter
	}
	return c.err
}

var errorWriter = connect.NewErrorWriter()

// Fail answers a call that does not reach Serve.
func Fail(w http.ResponseWriter, r *http.Request, err error) error {
	return errorWriter.Write(w, r, internalrpc.Public(err))
}

// call is one call in progress.
type call struct {
	who  sandbox.Identity
	flow *http.ResponseController
	err  error // before its translation for the client
}

type callKey struct{}

func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// tenantOf is the Tenant of the caller.
func tenantOf(ctx context.Context) sandbox.TenantID { return callOf(ctx).who.Tenant }

// body keeps the Code of a read error on its way through Connect.
type body struct {
	io.ReadCloser
	c *call
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	b.c.err = err
	return n, internalrpc.Public(err)
}

// outcome observes the answers that Connect itself gives to messages that it cannot
// read.
type outcome struct {
	http.ResponseWriter
	flow   *http.ResponseController
	call   *call
	begun  bool
	status int
}

// begin passes the error to the outer writer before the answer begins: the HTTP status
// may not show it.
func (o *outcome) begin() {
	if w, ok := o.ResponseWriter.(interface{ Fails(error) }); ok && !o.begun && o.call.err != nil {
		w.Fails(o.call.err)
	}
	o.begun = true
}

func (o *outcome) WriteHeader(status int) {
	o.begin()
	o.status = status
	o.ResponseWriter.WriteHeader(status)
}

func (o *outcome) Write(p []byte) (int, error) {
	o.begin()
	return o.ResponseWriter.Write(p)
}

// Flush implements http.Flusher, which Connect requires. A failed flush fails at the
// next write.
func (o *outcome) Flush() {
	o.begin()
	_ = o.flow.Flush()
}

// Unwrap lets http.ResponseController find the rest.
func (o *outcome) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// failure is nil when the call succeeded.
func (o *outcome) failure() error {
	h := o.Header()
	for _, name := range []string{"Grpc-Status", http.TrailerPrefix + "Grpc-Status"} {
		if s := h.Get(name); s != "" && s != "0" {
			return sandbox.Errorf(sandbox.Invalid, "the call was refused with gRPC status %.3s", s)
		}
	}
	if o.status >= http.StatusBadRequest {
		return sandbox.Errorf(sandbox.Invalid, "the call was refused with HTTP status %d", o.status)
	}
	return nil
}

// translator translates the errors of calls to Connect's and refuses unknown fields.
type translator struct{}

func (translator) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		if err := checkKnown(r.Any()); err != nil {
			return nil, told(ctx, err)
		}
		res, err := next(ctx, r)
		if err != nil {
			return nil, told(ctx, err)
		}
		return res, nil
	}
}

func (translator) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		if err := next(ctx, conn); err != nil {
			return told(ctx, err)
		}
		return nil
	}
}

func (translator) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// told is err in the form for clients. Errors of Connect itself stay: they are about
// messages that it could not read or send.
func told(ctx context.Context, err error) error {
	c := callOf(ctx)
	var ours *connect.Error
	if !errors.As(err, &ours) {
		c.err = err
		return internalrpc.Public(err)
	}
	if c.err == nil {
		c.err = sandbox.Errorf(sandbox.Invalid, "the call is malformed").WithCause(err)
	}
	return ours
}

// checkKnown returns Invalid for a message with an unknown field: ignoring it would
// silently drop part of the request.
func checkKnown(msg any) error {
	m, ok := msg.(proto.Message)
	if !ok {
		return nil
	}
	return checkFields(m.ProtoReflect())
}

func checkFields(m protoreflect.Message) error {
	if len(m.GetUnknown()) > 0 {
		return sandbox.Errorf(sandbox.Invalid, "%s has a field that this server does not know", m.Descriptor().Name())
	}
	var err error
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap() && f.MapValue().Kind() == protoreflect.MessageKind:
			v.Map().Range(func(_ protoreflect.MapKey, one protoreflect.Value) bool {
				err = checkFields(one.Message())
				return err == nil
			})
		case f.IsMap(), f.Kind() != protoreflect.MessageKind:
		case f.IsList():
			for i := 0; i < v.List().Len() && err == nil; i++ {
				err = checkFields(v.List().Get(i).Message())
			}
		default:
			err = checkFields(v.Message())
		}
		return err == nil
	})
	return err
}

// jsonCodec is Connect's JSON with REST's field names. It refuses unknown fields.
type jsonCodec struct{ name string }

func (c jsonCodec) Name() string { return c.name }

func (jsonCodec) Marshal(msg any) ([]byte, error) {
	m, ok := msg.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", msg)
	}
	return protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
}

func (jsonCodec) Unmarshal(data []byte, msg any) error {
	m, ok := msg.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message", msg)
	}
	if len(data) == 0 {
		return nil // as in REST
	}
	return protojson.Unmarshal(data, m)
}
