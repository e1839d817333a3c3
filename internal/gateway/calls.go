package gateway

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/file/v1/filev1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/process/v1/processv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1/sandboxv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/template/v1/templatev1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rpc"
	internalrpc "github.com/cloud-sandbox/cloud-sandbox/internal/rpc"
)

// ownCalls are the calls that have handlers of their own in package rpc. All others carry
// out the same function as REST: see unaries.
var ownCalls = map[string]*catalogue.Operation{
	sandboxv1connect.SandboxServiceExecuteProcedure:    catalogue.Execute,
	processv1connect.ProcessServiceStartProcedure:      catalogue.StartProcess,
	processv1connect.ProcessServiceOutputProcedure:     catalogue.ReadProcessOutput,
	filev1connect.FileServiceReadProcedure:             catalogue.ReadFile,
	filev1connect.FileServiceWriteProcedure:            catalogue.WriteFile,
	filev1connect.FileServiceArchiveProcedure:          catalogue.ReadArchive,
	filev1connect.FileServiceExtractProcedure:          catalogue.WriteArchive,
	filev1connect.FileServiceWatchProcedure:            catalogue.WatchFiles,
	templatev1connect.TemplateServiceBuildProcedure:    catalogue.CreateTemplate,
	templatev1connect.TemplateServiceBuildLogProcedure: catalogue.ReadBuildLog,
}

// procedures maps all calls of Connect and gRPC to operations.
func procedures(shared []unaryBinding) map[string]*catalogue.Operation {
	all := maps.Clone(ownCalls)
	for _, u := range shared {
		if u.procedure != "" {
			all[u.procedure] = u.op
		}
	}
	return all
}

// messageBound bounds a call's request in bytes. A message counts as a body, also where
// REST takes none. A stream is bounded per message instead.
func messageBound(op *catalogue.Operation) int64 {
	if op == catalogue.WriteProcessInput {
		return 2 * catalogue.JSON // REST takes the bytes as they are, a message has them in base64 or escaped
	}
	return cmp.Or(op.MaxBody, catalogue.JSON)
}

// callRoutes are the routes of Connect and gRPC calls, as routes are the REST ones. It
// panics for a call without an operation: that is a bug.
func (s *Server) callRoutes() []route {
	var all []route
	var names []string
	for _, service := range s.services {
		names = append(names, service.Name)
		for path, handler := range service.Calls {
			op, ok := s.procedures[path]
			if !ok {
				panic(fmt.Sprintf("gateway: the procedure %s has no operation in the catalogue", path))
			}
			all = append(all, route{binding{"POST", path, op, call(handler)}, connectSurface, messageBound(op)})
		}
	}
	health := internalrpc.Health{
		Ready:    func(ctx context.Context) bool { return s.readiness(ctx).Ready },
		Draining: s.draining,
	}
	for path, handler := range internalrpc.Tools(health, names...) {
		all = append(all, connectSurface.through(binding{"POST", path, catalogue.UseTool, call(handler)})...)
	}
	return all
}

// unaryCalls are the calls that carry out the same function as REST.
func unaryCalls(a *rest.API) map[string]rpc.Unary {
	calls := map[string]rpc.Unary{}
	for _, u := range unaries(a) {
		if u.procedure != "" {
			calls[u.procedure] = rpc.Unary{Unary: u.do, HasID: strings.Contains(u.path, "{")}
		}
	}
	return calls
}

// call makes h a rest.Handler.
func call(h http.Handler) rest.Handler {
	return func(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
		if err := rpc.Serve(h, w, r, who); err != nil {
			return &rest.Answered{Err: err}
		}
		return nil
	}
}
