package gateway

import (
	"net/http"
	"net/netip"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/ratelimit"
)

// RouteInfo is what a route asks of who uses it.
type RouteInfo struct {
	Method, Path string
	Call         bool // of Connect and gRPC
	E2B          bool
	Anyone       bool
	Scope        sandbox.Scope
	Class        ratelimit.Class
	Creates      bool
}

// RouteTable is every route that is served.
func (s *Server) RouteTable() []RouteInfo {
	var all []RouteInfo
	for _, rt := range s.allRoutes() {
		all = append(all, RouteInfo{rt.method, rt.path, rt.isCall(), isE2B(rt.path), rt.access == anyone, scopeOf(rt), classOf(rt), creates(rt)})
	}
	return all
}

// FromClient is the RemoteAddr of a request as a Server that trusts proxies sees it.
func FromClient(trusted []netip.Prefix, r *http.Request) string {
	return (&Server{Config: Config{TrustedProxies: trusted}}).fromClient(r).RemoteAddr
}
