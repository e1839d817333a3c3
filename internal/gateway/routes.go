package gateway

import (
	"slices"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// access says who may use a route.
type access int

const (
	anyone access = iota // no token is looked at
	tenant               // a valid token, or for two routes a signed URL; the answer is about its Tenant only
)

// Bounds of request bodies in bytes.
const (
	noBody    int64 = 0
	jsonBody  int64 = 1 << 20
	endless   int64 = -1 // streamed; the disk of the Sandbox is the bound
	tokenBody int64 = 4 << 10
	// A value and a description, each character escaped to six bytes.
	secretBody int64 = 6*(sandbox.MaxSecretValue+4*sandbox.MaxSecretDescription) + 4<<10
	toolBody   int64 = 64 << 10 // of one stream of reflection or health
	// Code and stdin, each character escaped to twice its bytes, and the rest.
	executeBody int64 = 2*(execution.MaxCode+execution.MaxStdin) + 4<<20
	// The steps of a template, escaped, and the rest.
	recipeBody  int64 = 4 << 20
	replaceBody int64 = 2*(execution.MaxReplacePattern+execution.MaxReplacement) + 1<<20
	batchBody   int64 = 16 << 20
	// What is to be run, stdin and the rest.
	processBody int64 = 2*(execution.MaxCommand+execution.MaxStdin) + 2<<20
)

// route is one URL: how it is asked, by whom, with how much, and who answers.
type route struct {
	method, path string
	access       access
	maxBody      int64
	quiet        bool // logged at level debug
	answer       rest.Handler
}

// routes is every URL of our own API.
func (s *Server) routes() []route {
	a := s.api
	return slices.Concat(
		s.ownRoutes(), accountRoutes(a), sessionRoutes(a), snapshotRoutes(a),
		runRoutes(a), fileRoutes(a), gitRoutes(a), templateRoutes(a),
	)
}

// ownRoutes is what the gateway itself answers.
func (s *Server) ownRoutes() []route {
	return []route{
		{"GET", "/health", anyone, noBody, true, s.health},
		{"GET", "/ready", anyone, noBody, true, s.ready},
		{"GET", "/metrics", anyone, noBody, true, s.metricsPage},
		{"GET", "/", anyone, noBody, false, s.startPage},
		{"GET", "/docs", anyone, noBody, false, s.docsPage},
		{"GET", "/api/v1/openapi.yaml", anyone, noBody, false, s.openAPI},
		{"POST", tokenPath, anyone, tokenBody, false, s.createToken},
		{"GET", "/api/v1/auth/providers", anyone, noBody, false, s.listProviders},
	}
}

// accountRoutes is what a Tenant has: a quota, usage, users, keys, secrets, volumes and an
// audit log; and what operators see.
func accountRoutes(a *rest.API) []route {
	return []route{
		{"GET", "/api/v1/quota", tenant, noBody, false, a.ReadQuota},
		{"GET", "/api/v1/usage", tenant, noBody, false, a.ReadUsage},
		{"GET", tenantsPath, tenant, noBody, false, a.ListTenants},
		{"POST", tenantsPath, tenant, jsonBody, false, a.CreateTenant},
		{"GET", tenantsPath + "/{id}", tenant, noBody, false, a.GetTenant},
		{"PATCH", tenantsPath + "/{id}", tenant, jsonBody, false, a.ChangeTenant},
		{"DELETE", tenantsPath + "/{id}", tenant, noBody, false, a.DeleteTenant},
		{"GET", tenantQuotaPath, tenant, noBody, false, a.ReadTenantQuota},
		{"PUT", tenantQuotaPath, tenant, jsonBody, false, a.SetTenantQuota},
		{"DELETE", tenantQuotaPath, tenant, noBody, false, a.DropTenantQuota},
		{"GET", tenantUsersPath, tenant, noBody, false, a.ListTenantUsers},
		{"POST", tenantUsersPath, tenant, jsonBody, false, a.CreateTenantUser},
		{"GET", tenantUsersPath + "/{user}", tenant, noBody, false, a.GetTenantUser},
		{"PATCH", tenantUsersPath + "/{user}", tenant, jsonBody, false, a.ChangeTenantUser},
		{"DELETE", tenantUsersPath + "/{user}", tenant, noBody, false, a.DeleteTenantUser},
		{"GET", usersPath, tenant, noBody, false, a.ListUsers},
		{"POST", usersPath, tenant, jsonBody, false, a.CreateUser},
		{"GET", usersPath + "/{user}", tenant, noBody, false, a.GetUser},
		{"PATCH", usersPath + "/{user}", tenant, jsonBody, false, a.ChangeUser},
		{"DELETE", usersPath + "/{user}", tenant, noBody, false, a.DeleteUser},
		{"GET", nodesPath, tenant, noBody, false, a.ListNodes},
		{"GET", nodesPath + "/{name}", tenant, noBody, false, a.GetNode},
		{"GET", keysPath, tenant, noBody, false, a.ListKeys},
		{"POST", keysPath, tenant, jsonBody, false, a.CreateKey},
		{"DELETE", keysPath + "/{id}", tenant, noBody, false, a.DeleteKey},
		{"POST", rotateKeyPath, tenant, jsonBody, false, a.RotateKey},
		{"GET", secretsPath, tenant, noBody, false, a.ListSecrets},
		{"POST", secretsPath, tenant, secretBody, false, a.CreateSecret},
		{"PUT", secretsPath + "/{id}", tenant, secretBody, false, a.ReplaceSecret},
		{"DELETE", secretsPath + "/{id}", tenant, noBody, false, a.DeleteSecret},
		{"GET", volumesPath, tenant, noBody, false, a.ListVolumes},
		{"POST", volumesPath, tenant, jsonBody, false, a.CreateVolume},
		{"GET", volumesPath + "/{id}", tenant, noBody, false, a.GetVolume},
		{"DELETE", volumesPath + "/{id}", tenant, noBody, false, a.DeleteVolume},
		{"GET", auditPath, tenant, noBody, false, a.ReadAudit},
	}
}

// sessionRoutes is Sessions, and the pool in front of them.
func sessionRoutes(a *rest.API) []route {
	return []route{
		{"POST", "/api/v1/sandbox/acquire", tenant, jsonBody, false, a.Acquire},
		{"POST", "/api/v1/sandbox/release", tenant, jsonBody, false, a.Release},
		{"GET", "/api/v1/sandbox/stats", tenant, noBody, false, a.Stats},
		{"GET", "/api/v1/sessions", tenant, noBody, false, a.ListSessions},
		{"POST", "/api/v1/sessions", tenant, jsonBody, false, a.CreateSession},
		{"GET", "/api/v1/sessions/{id}", tenant, noBody, false, a.GetSession},
		{"PATCH", "/api/v1/sessions/{id}", tenant, jsonBody, false, a.UpdateSession},
		{"DELETE", "/api/v1/sessions/{id}", tenant, noBody, false, a.DeleteSession},
		{"GET", "/api/v1/sessions/{id}/network/log", tenant, noBody, false, a.NetworkLog},
		{"GET", "/api/v1/sessions/{id}/ports", tenant, noBody, false, a.ListPorts},
		{"GET", connectPath, tenant, noBody, false, a.ConnectPort},
		{"POST", "/api/v1/sessions/{id}/timeout", tenant, jsonBody, false, a.SetTimeout},
		{"POST", "/api/v1/sessions/{id}/touch", tenant, jsonBody, false, a.TouchSession},
		{"GET", "/api/v1/sessions/{id}/ports/{port}", tenant, noBody, false, a.GetPort},
		{"PUT", "/api/v1/sessions/{id}/ports/{port}", tenant, jsonBody, false, a.SetPort},
		{"POST", "/api/v1/sessions/{id}/ports/{port}/sign", tenant, jsonBody, false, a.SignPort},
	}
}

// snapshotRoutes is how Sessions are saved and come back.
func snapshotRoutes(a *rest.API) []route {
	return []route{
		{"POST", "/api/v1/sessions/{id}/pause", tenant, jsonBody, false, a.PauseSession},
		{"POST", "/api/v1/sessions/{id}/resume", tenant, jsonBody, false, a.ResumeSession},
		{"POST", "/api/v1/sessions/{id}/rollback", tenant, jsonBody, false, a.RollbackSession},
		{"POST", forkPath, tenant, jsonBody, false, a.ForkSession},
		{"GET", sessionSnapshotsPath, tenant, noBody, false, a.SessionSnapshots},
		{"POST", sessionSnapshotsPath, tenant, jsonBody, false, a.TakeSnapshot},
		{"GET", "/api/v1/snapshots", tenant, noBody, false, a.ListSnapshots},
		{"POST", importPath, tenant, endless, false, a.ImportSnapshot},
		{"GET", "/api/v1/snapshots/{id}", tenant, noBody, false, a.GetSnapshot},
		{"GET", exportPath, tenant, noBody, false, a.ExportSnapshot},
		{"DELETE", "/api/v1/snapshots/{id}", tenant, noBody, false, a.DeleteSnapshot},
	}
}

// runRoutes is what runs in a Session.
func runRoutes(a *rest.API) []route {
	return []route{
		{"POST", "/api/v1/execute", tenant, executeBody, false, a.Execute},
		{"GET", "/api/v1/contexts", tenant, noBody, false, a.ListContexts},
		{"POST", "/api/v1/contexts", tenant, jsonBody, false, a.CreateContext},
		{"DELETE", "/api/v1/contexts/{id}", tenant, noBody, false, a.DeleteContext},
		{"POST", "/api/v1/contexts/{id}/restart", tenant, jsonBody, false, a.RestartContext},
		{"POST", "/api/v1/contexts/{id}/interrupt", tenant, jsonBody, false, a.InterruptContext},
		{"DELETE", "/api/v1/execute", tenant, noBody, false, a.EndExecution},
		{"GET", "/api/v1/processes", tenant, noBody, false, a.ListProcesses},
		{"POST", "/api/v1/processes", tenant, processBody, false, a.StartProcess},
		{"GET", "/api/v1/processes/{id}", tenant, noBody, false, a.GetProcess},
		{"DELETE", "/api/v1/processes/{id}", tenant, noBody, false, a.EndProcess},
		{"GET", "/api/v1/processes/{id}/output", tenant, noBody, false, a.ReadProcessOutput},
		{"POST", "/api/v1/processes/{id}/stdin", tenant, execution.MaxInput, false, a.WriteProcessInput},
		{"POST", "/api/v1/processes/{id}/signal", tenant, jsonBody, false, a.SignalProcess},
		{"POST", "/api/v1/processes/{id}/resize", tenant, jsonBody, false, a.ResizeProcess},
		{"GET", "/api/v1/processes/{id}/wait", tenant, noBody, false, a.WaitProcess},
		{"GET", "/api/v1/processes/{id}/attach", tenant, noBody, false, a.AttachProcess},
	}
}

// fileRoutes is the files in a Session.
func fileRoutes(a *rest.API) []route {
	return []route{
		{"GET", rest.FilesPath, tenant, noBody, false, a.ReadFile},
		{"PUT", rest.FilesPath, tenant, endless, false, a.WriteFile},
		{"POST", rest.FilesPath, tenant, endless, false, a.UploadFiles},
		{"DELETE", rest.FilesPath, tenant, noBody, false, a.RemoveFile},
		{"GET", "/api/v1/files/list", tenant, noBody, false, a.ListFiles},
		{"GET", "/api/v1/files/stat", tenant, noBody, false, a.StatFile},
		{"POST", "/api/v1/files/mkdir", tenant, jsonBody, false, a.MakeDir},
		{"POST", "/api/v1/files/move", tenant, jsonBody, false, a.MoveFile},
		{"POST", "/api/v1/files/copy", tenant, jsonBody, false, a.CopyFile},
		{"POST", "/api/v1/files/chmod", tenant, jsonBody, false, a.ChmodFile},
		{"POST", "/api/v1/files/search", tenant, jsonBody, false, a.SearchFiles},
		{"GET", "/api/v1/files/archive", tenant, noBody, false, a.ReadArchive},
		{"PUT", "/api/v1/files/archive", tenant, endless, false, a.WriteArchive},
		{"POST", "/api/v1/files/replace", tenant, replaceBody, false, a.ReplaceInFiles},
		{"POST", "/api/v1/files/batch", tenant, batchBody, false, a.BatchFiles},
		{"GET", "/api/v1/files/watch", tenant, noBody, false, a.WatchFiles},
		{"GET", "/api/v1/files/changes", tenant, noBody, false, a.FileChanges},
		{"POST", "/api/v1/files/sign", tenant, jsonBody, false, a.SignFile},
		{"POST", "/api/v1/files/sign/rotate", tenant, jsonBody, false, a.RotateFileKey},
	}
}

// gitRoutes is the git repositories in a Session.
func gitRoutes(a *rest.API) []route {
	return []route{
		{"POST", "/api/v1/git/clone", tenant, jsonBody, false, a.GitClone},
		{"POST", "/api/v1/git/status", tenant, jsonBody, false, a.GitStatus},
		{"POST", "/api/v1/git/branches", tenant, jsonBody, false, a.GitBranches},
		{"POST", "/api/v1/git/checkout", tenant, jsonBody, false, a.GitCheckout},
		{"POST", "/api/v1/git/add", tenant, jsonBody, false, a.GitAdd},
		{"POST", "/api/v1/git/commit", tenant, jsonBody, false, a.GitCommit},
		{"POST", "/api/v1/git/pull", tenant, jsonBody, false, a.GitPull},
		{"POST", "/api/v1/git/push", tenant, jsonBody, false, a.GitPush},
	}
}

// templateRoutes is Templates and how they are built.
func templateRoutes(a *rest.API) []route {
	return []route{
		{"GET", "/api/v1/templates", tenant, noBody, false, a.ListTemplates},
		{"POST", "/api/v1/templates", tenant, endless, false, a.CreateTemplate},
		{"GET", "/api/v1/templates/{template}", tenant, noBody, false, a.GetTemplate},
		{"DELETE", "/api/v1/templates/{template}", tenant, noBody, false, a.DeleteTemplate},
		{"GET", "/api/v1/builds", tenant, noBody, false, a.ListBuilds},
		{"GET", "/api/v1/builds/{id}", tenant, noBody, false, a.GetBuild},
		{"DELETE", "/api/v1/builds/{id}", tenant, noBody, false, a.CancelBuild},
		{"GET", "/api/v1/builds/{id}/log", tenant, noBody, false, a.ReadBuildLog},
	}
}
