package gateway

import (
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// access says who may use a route.
type access int

const (
	anyone access = iota // no token is looked at
	tenant               // a valid token; the answer is about its Tenant only
)

// Bounds of request bodies in bytes.
const (
	noBody    int64 = 0
	jsonBody  int64 = 1 << 20
	endless   int64 = -1 // streamed; the disk of the Sandbox is the bound
	tokenBody int64 = 4 << 10
	// Code and stdin, each character escaped to twice its bytes, and the rest.
	executeBody int64 = 2*(execution.MaxCode+execution.MaxStdin) + 4<<20
)

// route is one URL: how it is asked, by whom, with how much, and who answers.
type route struct {
	method, path string
	access       access
	maxBody      int64
	quiet        bool // logged at level debug
	answer       rest.Handler
}

// routes is every URL of the gateway.
func (s *Server) routes() []route {
	a := s.api
	return []route{
		{"GET", "/health", anyone, noBody, true, s.health},
		{"GET", "/ready", anyone, noBody, true, s.ready},
		{"GET", "/metrics", anyone, noBody, true, s.metricsPage},
		{"GET", "/docs", anyone, noBody, false, s.docsPage},
		{"GET", "/api/v1/openapi.yaml", anyone, noBody, false, s.openAPI},
		{"POST", "/api/v1/auth/token", anyone, tokenBody, false, s.createToken},

		{"POST", "/api/v1/sandbox/acquire", tenant, jsonBody, false, a.Acquire},
		{"POST", "/api/v1/sandbox/release", tenant, jsonBody, false, a.Release},
		{"GET", "/api/v1/sandbox/stats", tenant, noBody, false, a.Stats},

		{"GET", "/api/v1/sessions", tenant, noBody, false, a.ListSessions},
		{"POST", "/api/v1/sessions", tenant, jsonBody, false, a.CreateSession},
		{"GET", "/api/v1/sessions/{id}", tenant, noBody, false, a.GetSession},
		{"DELETE", "/api/v1/sessions/{id}", tenant, noBody, false, a.DeleteSession},
		{"POST", "/api/v1/sessions/{id}/timeout", tenant, jsonBody, false, a.SetTimeout},

		{"POST", "/api/v1/execute", tenant, executeBody, false, a.Execute},

		{"GET", "/api/v1/files", tenant, noBody, false, a.ReadFile},
		{"PUT", "/api/v1/files", tenant, endless, false, a.WriteFile},
		{"DELETE", "/api/v1/files", tenant, noBody, false, a.RemoveFile},
		{"GET", "/api/v1/files/list", tenant, noBody, false, a.ListFiles},
		{"GET", "/api/v1/files/stat", tenant, noBody, false, a.StatFile},
		{"POST", "/api/v1/files/mkdir", tenant, jsonBody, false, a.MakeDir},
		{"POST", "/api/v1/files/move", tenant, jsonBody, false, a.MoveFile},
	}
}
