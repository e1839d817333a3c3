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
	door    door
	maxBody int64 // bytes; as in catalogue.Operation
}

// door is an API surface. The surfaces differ in the form of their errors and in the
// names of operations in the audit log.
type door int

const (
	restDoor    door = iota
	connectDoor      // Connect and gRPC
	e2bDoor
)

// through returns the routes of bindings, with the body bounds of their operations.
func (d door) through(bindings ...binding) []route {
	all := make([]route, len(bindings))
	for i, b := range bindings {
		all[i] = route{b, d, b.op.MaxBody}
	}
	return all
}

// name is the operation's name in the audit log and in events: the operationId of
// REST, the procedure of Connect, the method and path of E2B's API.
func (rt route) name() string {
	switch rt.door {
	case connectDoor:
		return strings.TrimPrefix(rt.path, "/")
	case e2bDoor:
		return rt.method + " " + rt.path
	}
	return rt.op.Name
}

// routes are the URLs of our own API.
func (s *Server) routes() []route {
	a := s.api
	return restDoor.through(slices.Concat(
		s.ownRoutes(), accountRoutes(a), sessionRoutes(a), snapshotRoutes(a),
		runRoutes(a), fileRoutes(a), gitRoutes(a), templateRoutes(a),
	)...)
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

// accountRoutes are a Tenant's quota, usage, users, keys, secrets, volumes and audit
// log, and the operators' routes.
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
		{"GET", "/api/v1/keys", catalogue.ListKeys, a.ListKeys},
		{"POST", "/api/v1/keys", catalogue.CreateKey, a.CreateKey},
		{"DELETE", "/api/v1/keys/{id}", catalogue.DeleteKey, a.DeleteKey},
		{"POST", "/api/v1/keys/{id}/rotate", catalogue.RotateKey, a.RotateKey},
		{"GET", "/api/v1/secrets", catalogue.ListSecrets, a.ListSecrets},
		{"POST", "/api/v1/secrets", catalogue.CreateSecret, a.CreateSecret},
		{"PUT", "/api/v1/secrets/{id}", catalogue.ReplaceSecret, a.ReplaceSecret},
		{"DELETE", "/api/v1/secrets/{id}", catalogue.DeleteSecret, a.DeleteSecret},
		{"GET", "/api/v1/volumes", catalogue.ListVolumes, a.ListVolumes},
		{"POST", "/api/v1/volumes", catalogue.CreateVolume, a.CreateVolume},
		{"GET", "/api/v1/volumes/{id}", catalogue.GetVolume, a.GetVolume},
		{"DELETE", "/api/v1/volumes/{id}", catalogue.DeleteVolume, a.DeleteVolume},
		{"GET", "/api/v1/audit", catalogue.ReadAudit, a.ReadAudit},
	}
}

// sessionRoutes are Sessions, and the pool in front of them.
func sessionRoutes(a *rest.API) []binding {
	return []binding{
		{"POST", "/api/v1/sandbox/acquire", catalogue.AcquireSandbox, a.Acquire},
		{"POST", "/api/v1/sandbox/release", catalogue.ReleaseSandbox, a.Release},
		{"GET", "/api/v1/sandbox/stats", catalogue.GetStats, a.Stats},
		{"GET", "/api/v1/sessions", catalogue.ListSessions, a.ListSessions},
		{"POST", "/api/v1/sessions", catalogue.CreateSession, a.CreateSession},
		{"GET", "/api/v1/sessions/{id}", catalogue.GetSession, a.GetSession},
		{"PATCH", "/api/v1/sessions/{id}", catalogue.UpdateSession, a.UpdateSession},
		{"DELETE", "/api/v1/sessions/{id}", catalogue.DeleteSession, a.DeleteSession},
		{"GET", "/api/v1/sessions/{id}/network/log", catalogue.ReadNetworkLog, a.NetworkLog},
		{"GET", "/api/v1/sessions/{id}/ports", catalogue.ListPorts, a.ListPorts},
		{"GET", "/api/v1/sessions/{id}/ports/{port}/connect", catalogue.ConnectPort, a.ConnectPort},
		{"POST", "/api/v1/sessions/{id}/timeout", catalogue.SetSessionTimeout, a.SetTimeout},
		{"POST", "/api/v1/sessions/{id}/touch", catalogue.TouchSession, a.TouchSession},
		{"GET", "/api/v1/sessions/{id}/ports/{port}", catalogue.GetPort, a.GetPort},
		{"PUT", "/api/v1/sessions/{id}/ports/{port}", catalogue.SetPort, a.SetPort},
		{"POST", "/api/v1/sessions/{id}/ports/{port}/sign", catalogue.SignPort, a.SignPort},
	}
}

// snapshotRoutes save and restore Sessions.
func snapshotRoutes(a *rest.API) []binding {
	return []binding{
		{"POST", "/api/v1/sessions/{id}/pause", catalogue.PauseSession, a.PauseSession},
		{"POST", "/api/v1/sessions/{id}/resume", catalogue.ResumeSession, a.ResumeSession},
		{"POST", "/api/v1/sessions/{id}/rollback", catalogue.RollbackSession, a.RollbackSession},
		{"POST", "/api/v1/sessions/{id}/fork", catalogue.ForkSession, a.ForkSession},
		{"GET", "/api/v1/sessions/{id}/snapshots", catalogue.ListSessionSnapshots, a.SessionSnapshots},
		{"POST", "/api/v1/sessions/{id}/snapshots", catalogue.TakeSnapshot, a.TakeSnapshot},
		{"GET", "/api/v1/snapshots", catalogue.ListSnapshots, a.ListSnapshots},
		{"POST", "/api/v1/snapshots/import", catalogue.ImportSnapshot, a.ImportSnapshot},
		{"GET", "/api/v1/snapshots/{id}", catalogue.GetSnapshot, a.GetSnapshot},
		{"GET", "/api/v1/snapshots/{id}/export", catalogue.ExportSnapshot, a.ExportSnapshot},
		{"DELETE", "/api/v1/snapshots/{id}", catalogue.DeleteSnapshot, a.DeleteSnapshot},
	}
}

// runRoutes run code and processes in a Session.
func runRoutes(a *rest.API) []binding {
	return []binding{
		{"POST", "/api/v1/execute", catalogue.Execute, a.Execute},
		{"GET", "/api/v1/contexts", catalogue.ListContexts, a.ListContexts},
		{"POST", "/api/v1/contexts", catalogue.CreateContext, a.CreateContext},
		{"DELETE", "/api/v1/contexts/{id}", catalogue.DeleteContext, a.DeleteContext},
		{"POST", "/api/v1/contexts/{id}/restart", catalogue.RestartContext, a.RestartContext},
		{"POST", "/api/v1/contexts/{id}/interrupt", catalogue.InterruptContext, a.InterruptContext},
		{"DELETE", "/api/v1/execute", catalogue.EndExecution, a.EndExecution},
		{"GET", "/api/v1/processes", catalogue.ListProcesses, a.ListProcesses},
		{"POST", "/api/v1/processes", catalogue.StartProcess, a.StartProcess},
		{"GET", "/api/v1/processes/{id}", catalogue.GetProcess, a.GetProcess},
		{"DELETE", "/api/v1/processes/{id}", catalogue.EndProcess, a.EndProcess},
		{"GET", "/api/v1/processes/{id}/output", catalogue.ReadProcessOutput, a.ReadProcessOutput},
		{"POST", "/api/v1/processes/{id}/stdin", catalogue.WriteProcessInput, a.WriteProcessInput},
		{"POST", "/api/v1/processes/{id}/signal", catalogue.SignalProcess, a.SignalProcess},
		{"POST", "/api/v1/processes/{id}/resize", catalogue.ResizeProcess, a.ResizeProcess},
		{"GET", "/api/v1/processes/{id}/wait", catalogue.WaitProcess, a.WaitProcess},
		{"GET", "/api/v1/processes/{id}/attach", catalogue.AttachProcess, a.AttachProcess},
	}
}

// fileRoutes are the files in a Session.
func fileRoutes(a *rest.API) []binding {
	return []binding{
		{"GET", "/api/v1/files", catalogue.ReadFile, a.ReadFile},
		{"PUT", "/api/v1/files", catalogue.WriteFile, a.WriteFile},
		{"POST", "/api/v1/files", catalogue.UploadFiles, a.UploadFiles},
		{"DELETE", "/api/v1/files", catalogue.RemoveFile, a.RemoveFile},
		{"GET", "/api/v1/files/list", catalogue.ListFiles, a.ListFiles},
		{"GET", "/api/v1/files/stat", catalogue.StatFile, a.StatFile},
		{"POST", "/api/v1/files/mkdir", catalogue.MakeDirectory, a.MakeDir},
		{"POST", "/api/v1/files/move", catalogue.MoveFile, a.MoveFile},
		{"POST", "/api/v1/files/copy", catalogue.CopyFile, a.CopyFile},
		{"POST", "/api/v1/files/chmod", catalogue.ChmodFile, a.ChmodFile},
		{"POST", "/api/v1/files/search", catalogue.SearchFiles, a.SearchFiles},
		{"GET", "/api/v1/files/archive", catalogue.ReadArchive, a.ReadArchive},
		{"PUT", "/api/v1/files/archive", catalogue.WriteArchive, a.WriteArchive},
		{"POST", "/api/v1/files/replace", catalogue.ReplaceInFiles, a.ReplaceInFiles},
		{"POST", "/api/v1/files/batch", catalogue.BatchFiles, a.BatchFiles},
		{"GET", "/api/v1/files/watch", catalogue.WatchFiles, a.WatchFiles},
		{"GET", "/api/v1/files/changes", catalogue.FileChanges, a.FileChanges},
		{"POST", "/api/v1/files/sign", catalogue.SignFile, a.SignFile},
		{"POST", "/api/v1/files/sign/rotate", catalogue.RotateFileKey, a.RotateFileKey},
	}
}

// gitRoutes are the git repositories in a Session.
func gitRoutes(a *rest.API) []binding {
	return []binding{
		{"POST", "/api/v1/git/clone", catalogue.GitClone, a.GitClone},
		{"POST", "/api/v1/git/status", catalogue.GitStatus, a.GitStatus},
		{"POST", "/api/v1/git/branches", catalogue.GitBranches, a.GitBranches},
		{"POST", "/api/v1/git/checkout", catalogue.GitCheckout, a.GitCheckout},
		{"POST", "/api/v1/git/add", catalogue.GitAdd, a.GitAdd},
		{"POST", "/api/v1/git/commit", catalogue.GitCommit, a.GitCommit},
		{"POST", "/api/v1/git/pull", catalogue.GitPull, a.GitPull},
		{"POST", "/api/v1/git/push", catalogue.GitPush, a.GitPush},
	}
}

// templateRoutes are Templates and their builds.
func templateRoutes(a *rest.API) []binding {
	return []binding{
		{"GET", "/api/v1/templates", catalogue.ListTemplates, a.ListTemplates},
		{"POST", "/api/v1/templates", catalogue.CreateTemplate, a.CreateTemplate},
		{"GET", "/api/v1/templates/{template}", catalogue.GetTemplate, a.GetTemplate},
		{"DELETE", "/api/v1/templates/{template}", catalogue.DeleteTemplate, a.DeleteTemplate},
		{"GET", "/api/v1/builds", catalogue.ListBuilds, a.ListBuilds},
		{"GET", "/api/v1/builds/{id}", catalogue.GetBuild, a.GetBuild},
		{"DELETE", "/api/v1/builds/{id}", catalogue.CancelBuild, a.CancelBuild},
		{"GET", "/api/v1/builds/{id}/log", catalogue.ReadBuildLog, a.ReadBuildLog},
	}
}
