// Package rpc has the public services of Connect and gRPC. A call of one request and one
// answer carries out the same function as REST: one adapter translates the messages.
// Streams have handlers of their own. The package holds no rules.
package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/cloud-sandbox/cloud-sandbox"
	contextv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/context/v1"
	filev1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/file/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/file/v1/filev1connect"
	gitv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/git/v1"
	keyv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/key/v1"
	processv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/process/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/process/v1/processv1connect"
	sandboxv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1/sandboxv1connect"
	secretv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/secret/v1"
	templatev1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/template/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/template/v1/templatev1connect"
	volumev1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/volume/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	internalrpc "github.com/cloud-sandbox/cloud-sandbox/internal/rpc"
)

// API holds the services that the calls need. All fields are required.
type API struct {
	Guests         *execution.Guests
	Executions     *execution.Service
	TemplateBuilds sandbox.TemplateBuilds
	// Unary are the operations of calls, by procedure.
	Unary map[string]Unary
	Once  Once
	// Explain returns the error of a call with the versions of client and server, if the
	// error may be about them.
	Explain func(http.Header, error) error
}

// MaxStreamed bounds one message of a stream of any length, in bytes.
const MaxStreamed = 4 << 20

// Service is a service that clients call.
type Service struct {
	Name string // its full name in gRPC
	// Calls answer the calls by their paths, through Serve.
	Calls map[string]http.Handler
}

// Services returns all services of an API. It panics for a call that nothing answers:
// that is a bug.
func Services(a *API) []Service {
	own := a.ownHandlers()
	var all []Service
	for _, file := range []protoreflect.FileDescriptor{
		sandboxv1.File_cloudsandbox_sandbox_v1_sandbox_proto, processv1.File_cloudsandbox_process_v1_process_proto,
		filev1.File_cloudsandbox_file_v1_file_proto, contextv1.File_cloudsandbox_context_v1_context_proto,
		templatev1.File_cloudsandbox_template_v1_template_proto, gitv1.File_cloudsandbox_git_v1_git_proto,
		keyv1.File_cloudsandbox_key_v1_key_proto, secretv1.File_cloudsandbox_secret_v1_secret_proto,
		volumev1.File_cloudsandbox_volume_v1_volume_proto,
	} {
		described := file.Services().Get(0)
		s := Service{Name: string(described.FullName()), Calls: map[string]http.Handler{}}
		for i := range described.Methods().Len() {
			method := described.Methods().Get(i)
			procedure := fmt.Sprintf("/%s/%s", s.Name, method.Name())
			op, ok := a.Unary[procedure]
			switch {
			case own[procedure] != nil:
				s.Calls[procedure] = own[procedure]
			case ok:
				s.Calls[procedure] = unary(procedure, method, op, a.options()...)
			default:
				panic("rpc: nothing answers " + procedure)
			}
		}
		all = append(all, s)
	}
	return all
}

func (a *API) options() []connect.HandlerOption {
	return []connect.HandlerOption{
		connect.WithCodec(jsonCodec{"json"}),
		connect.WithCodec(jsonCodec{"json; charset=utf-8"}),
		connect.WithCompression("gzip", nil, nil), // a message is never larger than its body, which is bounded
		connect.WithInterceptors(translator{a.Explain}, a.Once),
	}
}

// ownHandlers answer the calls whose bytes flow as REST's do not: streams, and the start
// of a Process, whose output may be many megabytes. All others are a Unary.
func (a *API) ownHandlers() map[string]http.Handler {
	options := a.options()
	streamed := append(a.options(), connect.WithReadMaxBytes(MaxStreamed))
	f, p, t := files{a.Guests}, processes{a.Executions}, builds{a.TemplateBuilds}
	return map[string]http.Handler{
		sandboxv1connect.SandboxServiceExecuteProcedure:    connect.NewServerStreamHandler(sandboxv1connect.SandboxServiceExecuteProcedure, a.Execute, options...),
		processv1connect.ProcessServiceStartProcedure:      connect.NewUnaryHandler(processv1connect.ProcessServiceStartProcedure, p.Start, options...),
		processv1connect.ProcessServiceOutputProcedure:     connect.NewServerStreamHandler(processv1connect.ProcessServiceOutputProcedure, p.Output, options...),
		filev1connect.FileServiceReadProcedure:             connect.NewServerStreamHandler(filev1connect.FileServiceReadProcedure, f.Read, options...),
		filev1connect.FileServiceWriteProcedure:            connect.NewClientStreamHandler(filev1connect.FileServiceWriteProcedure, f.Write, streamed...),
		filev1connect.FileServiceArchiveProcedure:          connect.NewServerStreamHandler(filev1connect.FileServiceArchiveProcedure, f.Archive, options...),
		filev1connect.FileServiceExtractProcedure:          connect.NewClientStreamHandler(filev1connect.FileServiceExtractProcedure, f.Extract, streamed...),
		filev1connect.FileServiceWatchProcedure:            connect.NewServerStreamHandler(filev1connect.FileServiceWatchProcedure, f.Watch, options...),
		templatev1connect.TemplateServiceBuildProcedure:    connect.NewClientStreamHandler(templatev1connect.TemplateServiceBuildProcedure, t.Build, append(a.options(), connect.WithReadMaxBytes(MaxRecipe))...),
		templatev1connect.TemplateServiceBuildLogProcedure: connect.NewServerStreamHandler(templatev1connect.TemplateServiceBuildLogProcedure, t.BuildLog, options...),
	}
}

// Serve answers one call with h, on behalf of an Identity. The error that it returns,
// if any, has already been sent to the client.
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

// IsCall reports whether a request is a call of a service of ours, known or not.
func IsCall(r *http.Request) bool {
	return r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/cloudsandbox.")
}

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
type translator struct {
	explain func(http.Header, error) error
}

func (t translator) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		if err := checkKnown(r.Any()); err != nil {
			return nil, callError(ctx, t.explain(r.Header(), err))
		}
		res, err := next(ctx, r)
		if err != nil {
			return nil, callError(ctx, t.explain(r.Header(), err))
		}
		return res, nil
	}
}

func (t translator) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		if err := next(ctx, conn); err != nil {
			return callError(ctx, t.explain(conn.RequestHeader(), err))
		}
		return nil
	}
}

func (translator) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// callError is err in the form for clients. Errors of Connect itself stay: they are about
// messages that it could not read or send.
func callError(ctx context.Context, err error) error {
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
