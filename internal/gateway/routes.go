package gateway

import (
	"slices"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// A binding maps a URL to an operation of the catalogue and its handler.
type binding struct {
	method, path string
	op           *catalogue.Operation
	answer       rest.Handler
}

// route is one URL that is served.
type route struct {
	binding
	surface surface
	maxBody int64 // bytes; as in catalogue.Operation
}

// surface is an API surface. The surfaces differ in the form of their errors and in the
// names of operations in the audit log.
type surface int

const (
	restSurface    surface = iota
	connectSurface         // Connect and gRPC
	e2bSurface
)

// through returns the routes of bindings, with the body bounds of their operations.
func (d surface) through(bindings ...binding) []route {
	all := make([]route, len(bindings))
	for i, b := range bindings {
		all[i] = route{b, d, b.op.MaxBody}
	}
	return all
}

// name is the operation's name in the audit log and in events: the operationId of
// REST, the procedure of Connect, the method and path of E2B's API.
func (rt route) name() string {
	switch rt.surface {
	case connectSurface:
		return strings.TrimPrefix(rt.path, "/")
	case e2bSurface:
		return rt.method + " " + rt.path
	}
	return rt.op.Name
}

// routes are the URLs of our own API.
func (s *Server) routes() []route {
	a := s.api
	all := slices.Concat(s.ownRoutes(), accountRoutes(a), sandboxRoutes(a))
	for _, u := range unaries(a) {
		all = append(all, binding{u.method, u.path, u.op, u.do.Answer})
	}
	return restSurface.through(all...)
}

// ownRoutes are the gateway's own pages and probes.
func (s *Server) ownRoutes() []binding {
	return []binding{
		{"GET", "/health", catalogue.Health, s.health},
		{"GET", "/ready", catalogue.Ready, s.ready},
		{"GET", "/metrics", catalogue.Metrics, s.metricsPage},
		{"GET", "/", catalogue.StartPage, s.startPage},
		{"GET", "/docs", catalogue.Docs, s.docsPage},
		{"GET", "/api/v1/openapi.yaml", catalogue.OpenAPI, s.openAPI},
		{"POST", "/api/v1/auth/token", catalogue.CreateToken, s.createToken},
		{"GET", "/api/v1/auth/providers", catalogue.ListProviders, s.listProviders},
		{"POST", mcpPath, catalogue.CallMCP, s.mcp.Serve},
		{"GET", mcpPath, catalogue.StreamMCP, s.mcp.Serve},
		{"DELETE", mcpPath, catalogue.EndMCP, s.mcp.Serve},
		{"GET", resourcePath + mcpPath, catalogue.DescribeResource, s.describeResource},
	}
}

// accountRoutes are a Tenant's quota, usage, users and audit log, and the operators'
// routes.
func accountRoutes(a *rest.API) []binding {
	return []binding{
		{"GET", "/api/v1/quota", catalogue.ReadQuota, a.ReadQuota},
		{"GET", "/api/v1/usage", catalogue.ReadUsage, a.ReadUsage},
		{"GET", "/api/v1/tenants", catalogue.ListTenants, a.ListTenants},
		{"POST", "/api/v1/tenants", catalogue.CreateTenant, a.CreateTenant},
		{"GET", "/api/v1/tenants/{id}", catalogue.GetTenant, a.GetTenant},
		{"PATCH", "/api/v1/tenants/{id}", catalogue.ChangeTenant, a.ChangeTenant},
		{"DELETE", "/api/v1/tenants/{id}", catalogue.DeleteTenant, a.DeleteTenant},
		{"GET", "/api/v1/tenants/{id}/quota", catalogue.ReadTenantQuota, a.ReadTenantQuota},
		{"PUT", "/api/v1/tenants/{id}/quota", catalogue.SetTenantQuota, a.SetTenantQuota},
		{"DELETE", "/api/v1/tenants/{id}/quota", catalogue.DropTenantQuota, a.DropTenantQuota},
		{"GET", "/api/v1/tenants/{id}/users", catalogue.ListTenantUsers, a.ListTenantUsers},
		{"POST", "/api/v1/tenants/{id}/users", catalogue.CreateTenantUser, a.CreateTenantUser},
		{"GET", "/api/v1/tenants/{id}/users/{user}", catalogue.GetTenantUser, a.GetTenantUser},
		{"PATCH", "/api/v1/tenants/{id}/users/{user}", catalogue.ChangeTenantUser, a.ChangeTenantUser},
		{"DELETE", "/api/v1/tenants/{id}/users/{user}", catalogue.DeleteTenantUser, a.DeleteTenantUser},
		{"GET", "/api/v1/users", catalogue.ListUsers, a.ListUsers},
		{"POST", "/api/v1/users", catalogue.CreateUser, a.CreateUser},
		{"GET", "/api/v1/users/{user}", catalogue.GetUser, a.GetUser},
		{"PATCH", "/api/v1/users/{user}", catalogue.ChangeUser, a.ChangeUser},
		{"DELETE", "/api/v1/users/{user}", catalogue.DeleteUser, a.DeleteUser},
		{"GET", "/api/v1/nodes", catalogue.ListNodes, a.ListNodes},
		{"GET", "/api/v1/nodes/{name}", catalogue.GetNode, a.GetNode},
		{"PATCH", "/api/v1/nodes/{name}", catalogue.ChangeNode, a.ChangeNode},
		{"GET", "/api/v1/audit", catalogue.ReadAudit, a.ReadAudit},
	}
}

// sandboxRoutes are Sandboxes, their snapshots, the code, processes and files in them,
// and the Templates that they start from.
func sandboxRoutes(a *rest.API) []binding {
	return []binding{
		{"GET", "/api/v1/sandbox/stats", catalogue.GetStats, a.Stats},
		{"GET", "/api/v1/sessions/{id}/network/log", catalogue.ReadNetworkLog, a.NetworkLog},
		{"GET", "/api/v1/sessions/{id}/ports", catalogue.ListPorts, a.ListPorts},
		{"GET", "/api/v1/sessions/{id}/ports/{port}/connect", catalogue.ConnectPort, a.ConnectPort},
		{"GET", "/api/v1/sessions/{id}/ports/{port}", catalogue.GetPort, a.GetPort},
		{"PUT", "/api/v1/sessions/{id}/ports/{port}", catalogue.SetPort, a.SetPort},
		{"POST", "/api/v1/sessions/{id}/ports/{port}/sign", catalogue.SignPort, a.SignPort},

		{"GET", "/api/v1/snapshots", catalogue.ListSnapshots, a.ListSnapshots},
		{"POST", "/api/v1/snapshots/import", catalogue.ImportSnapshot, a.ImportSnapshot},
		{"GET", "/api/v1/snapshots/{id}", catalogue.GetSnapshot, a.GetSnapshot},
		{"GET", "/api/v1/snapshots/{id}/export", catalogue.ExportSnapshot, a.ExportSnapshot},
		{"DELETE", "/api/v1/snapshots/{id}", catalogue.DeleteSnapshot, a.DeleteSnapshot},

		{"POST", "/api/v1/execute", catalogue.Execute, a.Execute},
		{"DELETE", "/api/v1/execute", catalogue.EndExecution, a.EndExecution},
		{"POST", "/api/v1/processes", catalogue.StartProcess, a.StartProcess},
		{"GET", "/api/v1/processes/{id}/output", catalogue.ReadProcessOutput, a.ReadProcessOutput},
		{"GET", "/api/v1/processes/{id}/attach", catalogue.AttachProcess, a.AttachProcess},

		{"GET", "/api/v1/files", catalogue.ReadFile, a.ReadFile},
		{"PUT", "/api/v1/files", catalogue.WriteFile, a.WriteFile},
		{"POST", "/api/v1/files", catalogue.UploadFiles, a.UploadFiles},
		{"GET", "/api/v1/files/archive", catalogue.ReadArchive, a.ReadArchive},
		{"PUT", "/api/v1/files/archive", catalogue.WriteArchive, a.WriteArchive},
		{"POST", "/api/v1/files/batch", catalogue.BatchFiles, a.BatchFiles},
		{"GET", "/api/v1/files/watch", catalogue.WatchFiles, a.WatchFiles},
		{"POST", "/api/v1/files/sign", catalogue.SignFile, a.SignFile},
		{"POST", "/api/v1/files/sign/rotate", catalogue.RotateFileKey, a.RotateFileKey},

		{"POST", "/api/v1/templates", catalogue.CreateTemplate, a.CreateTemplate},
		{"GET", "/api/v1/builds/{id}/log", catalogue.ReadBuildLog, a.ReadBuildLog},
	}
}
