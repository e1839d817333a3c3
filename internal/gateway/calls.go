package gateway

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/file/v1/filev1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/template/v1/templatev1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rpc"
	internalrpc "github.com/cloud-sandbox/cloud-sandbox/internal/rpc"
)

// callRoutes are the calls of Connect and gRPC. Each is a route as those of REST
// are: who may use it, how often and with how much is decided there.
func (s *Server) callRoutes() []route {
	var all []route
	var names []string
	for _, service := range s.services {
		names = append(names, service.Name)
		for _, path := range service.Procedures {
			all = append(all, route{"POST", path, tenant, maxCall(path), false, call(service.Handler)})
		}
	}
	health := internalrpc.Health{
		Ready:    func(ctx context.Context) bool { return s.readiness(ctx).Ready },
		Draining: s.draining,
	}
	for path, handler := range internalrpc.Tools(health, names...) {
		all = append(all, route{"POST", path, anyone, toolBody, true, call(handler)})
	}
	return all
}

// streamed are the calls whose client sends as many messages as it likes.
var streamed = []string{
	filev1connect.FileServiceWriteProcedure, filev1connect.FileServiceExtractProcedure, templatev1connect.TemplateServiceBuildProcedure,
}

// maxCall bounds what a client sends in a call, in bytes.
func maxCall(path string) int64 {
	switch {
	case strings.HasSuffix(path, "/Execute"):
		return executeBody
	case strings.HasSuffix(path, ".FileService/Replace"):
		return replaceBody
	case strings.Contains(path, ".SecretService/"):
		return secretBody
	case slices.Contains(streamed, path):
		return endless // each message has a bound
	case strings.HasSuffix(path, "/Input"), strings.HasSuffix(path, ".ProcessService/Start"):
		return 2 * jsonBody // a full one, in base64 or escaped, and the rest
	}
	return jsonBody
}

// isCall reports whether a route is one of Connect and gRPC, whose errors have a
// form of their own: the names of services have dots. Who asks its path with a
// wrong method speaks neither.
func (rt route) isCall() bool {
	service, _, _ := strings.Cut(strings.TrimPrefix(rt.path, "/"), "/")
	return rt.method != "" && strings.Contains(service, ".")
}

// call has h answer.
func call(h http.Handler) rest.Handler {
	return func(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
		if err := rpc.Serve(h, w, r, who); err != nil {
			return &rest.Answered{Err: err}
		}
		return nil
	}
}
