package gateway

import (
	"maps"
	"net/http"
	"net/netip"
	"reflect"
	"slices"

	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// RouteInfo is a route as tests see it.
type RouteInfo struct {
	Method, Path string
	Call         bool // of Connect and gRPC
	E2B          bool
	Op           *catalogue.Operation
	MaxBody      int64
}

// RouteTable is every route that is served.
func (s *Server) RouteTable() []RouteInfo {
	var all []RouteInfo
	for _, rt := range s.allRoutes() {
		all = append(all, RouteInfo{rt.method, rt.path, rt.surface == connectSurface, rt.surface == e2bSurface, rt.op, rt.maxBody})
	}
	return all
}

// Procedures are the calls that have an operation.
func Procedures() []string { return slices.Collect(maps.Keys(procedures(unaries(&rest.API{})))) }

// WithoutSecretField is a copy of an answer as it is stored.
var WithoutSecretField = withoutSecretField

// FromClient is the RemoteAddr of a request as a Server that trusts proxies sees it.
func FromClient(trusted []netip.Prefix, r *http.Request) string {
	return (&Server{Config: Config{TrustedProxies: trusted}}).fromClient(r).RemoteAddr
}

// UnaryCalls are the operations of the calls that carry out the same function as REST.
var UnaryCalls = unaryCalls

// UnaryTypes are the types that an operation takes and gives, by its row and by the
// function that carries it out.
type UnaryTypes struct {
	Op           *catalogue.Operation
	Takes, Gives reflect.Type // of the function
}

// UnaryTable has every operation that REST and Connect share.
func UnaryTable() []UnaryTypes {
	var all []UnaryTypes
	for _, u := range unaries(&rest.API{}) {
		all = append(all, UnaryTypes{u.op, u.do.Takes, u.do.Gives})
	}
	return all
}
