package gateway

import (
	"net/http"
	"slices"

	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// A unaryBinding maps an operation to its function, which all APIs call, and to the URL
// of REST.
type unaryBinding struct {
	method, path string
	op           *catalogue.Operation
	do           *rest.Unary
}

// unaries are the operations that REST and Connect share.
func unaries(a *rest.API) []unaryBinding {
	return slices.Concat(
		accountUnaries(a), sessionUnaries(a), snapshotUnaries(a), runUnaries(a), fileUnaries(a), gitUnaries(a), templateUnaries(a),
	)
}

// accountUnaries are about Keys, Secrets and Volumes.
func accountUnaries(a *rest.API) []unaryBinding {
	return []unaryBinding{
		{"GET", "/api/v1/keys", catalogue.ListKeys, rest.NewUnary(http.StatusOK, a.ListKeys)},
		{"POST", "/api/v1/keys", catalogue.CreateKey, rest.NewUnary(http.StatusCreated, a.CreateKey)},
		{"DELETE", "/api/v1/keys/{id}", catalogue.DeleteKey, rest.NewUnary(http.StatusNoContent, a.DeleteKey)},
		{"POST", "/api/v1/keys/{id}/rotate", catalogue.RotateKey, rest.NewUnary(http.StatusOK, a.RotateKey)},
		{"GET", "/api/v1/secrets", catalogue.ListSecrets, rest.NewUnary(http.StatusOK, a.ListSecrets)},
		{"POST", "/api/v1/secrets", catalogue.CreateSecret, rest.NewUnary(http.StatusCreated, a.CreateSecret)},
		{"PUT", "/api/v1/secrets/{id}", catalogue.ReplaceSecret, rest.NewUnary(http.StatusOK, a.ReplaceSecret)},
		{"DELETE", "/api/v1/secrets/{id}", catalogue.DeleteSecret, rest.NewUnary(http.StatusNoContent, a.DeleteSecret)},
		{"GET", "/api/v1/volumes", catalogue.ListVolumes, rest.NewUnary(http.StatusOK, a.ListVolumes)},
		{"POST", "/api/v1/volumes", catalogue.CreateVolume, rest.NewUnary(http.StatusCreated, a.CreateVolume)},
		{"GET", "/api/v1/volumes/{id}", catalogue.GetVolume, rest.NewUnary(http.StatusOK, a.GetVolume)},
		{"DELETE", "/api/v1/volumes/{id}", catalogue.DeleteVolume, rest.NewUnary(http.StatusNoContent, a.DeleteVolume)},
	}
}

// sessionUnaries are about Sandboxes.
func sessionUnaries(a *rest.API) []unaryBinding {
	return []unaryBinding{
		{"POST", "/api/v1/sandbox/acquire", catalogue.AcquireSandbox, rest.NewUnary(http.StatusOK, a.Acquire)},
		{"POST", "/api/v1/sandbox/release", catalogue.ReleaseSandbox, rest.NewUnary(http.StatusOK, a.Release)},
		{"GET", "/api/v1/sessions", catalogue.ListSessions, rest.NewUnary(http.StatusOK, a.ListSessions)},
		{"POST", "/api/v1/sessions", catalogue.CreateSession, rest.NewUnary(http.StatusCreated, a.CreateSession)},
		{"GET", "/api/v1/sessions/{id}", catalogue.GetSession, rest.NewUnary(http.StatusOK, a.GetSession)},
		{"PATCH", "/api/v1/sessions/{id}", catalogue.UpdateSession, rest.NewUnary(http.StatusOK, a.UpdateSession)},
		{"DELETE", "/api/v1/sessions/{id}", catalogue.DeleteSession, rest.NewUnary(http.StatusOK, a.DeleteSession)},
		{"POST", "/api/v1/sessions/{id}/timeout", catalogue.SetSessionTimeout, rest.NewUnary(http.StatusOK, a.SetTimeout)},
		{"POST", "/api/v1/sessions/{id}/touch", catalogue.TouchSession, rest.NewUnary(http.StatusOK, a.TouchSession)},
	}
}

// snapshotUnaries save and restore Sandboxes.
func snapshotUnaries(a *rest.API) []unaryBinding {
	return []unaryBinding{
		{"POST", "/api/v1/sessions/{id}/pause", catalogue.PauseSession, rest.NewUnary(http.StatusOK, a.PauseSession)},
		{"POST", "/api/v1/sessions/{id}/resume", catalogue.ResumeSession, rest.NewUnary(http.StatusOK, a.ResumeSession)},
		{"POST", "/api/v1/sessions/{id}/rollback", catalogue.RollbackSession, rest.NewUnary(http.StatusOK, a.RollbackSession)},
		{"POST", "/api/v1/sessions/{id}/fork", catalogue.ForkSession, rest.NewUnary(http.StatusCreated, a.ForkSession)},
		{"GET", "/api/v1/sessions/{id}/snapshots", catalogue.ListSessionSnapshots, rest.NewUnary(http.StatusOK, a.SessionSnapshots)},
		{"POST", "/api/v1/sessions/{id}/snapshots", catalogue.TakeSnapshot, rest.NewUnary(http.StatusCreated, a.TakeSnapshot)},
	}
}

// runUnaries are about contexts and processes.
func runUnaries(a *rest.API) []unaryBinding {
	return []unaryBinding{
		{"GET", "/api/v1/contexts", catalogue.ListContexts, rest.NewUnary(http.StatusOK, a.ListContexts)},
		{"POST", "/api/v1/contexts", catalogue.CreateContext, rest.NewUnary(http.StatusCreated, a.CreateContext)},
		{"DELETE", "/api/v1/contexts/{id}", catalogue.DeleteContext, rest.NewUnary(http.StatusNoContent, a.DeleteContext)},
		{"POST", "/api/v1/contexts/{id}/restart", catalogue.RestartContext, rest.NewUnary(http.StatusOK, a.RestartContext)},
		{"POST", "/api/v1/contexts/{id}/interrupt", catalogue.InterruptContext, rest.NewUnary(http.StatusOK, a.InterruptContext)},
		{"GET", "/api/v1/processes", catalogue.ListProcesses, rest.NewUnary(http.StatusOK, a.ListProcesses)},
		{"GET", "/api/v1/processes/{id}", catalogue.GetProcess, rest.NewUnary(http.StatusOK, a.GetProcess)},
		{"DELETE", "/api/v1/processes/{id}", catalogue.EndProcess, rest.NewUnary(http.StatusOK, a.EndProcess)},
		{"POST", "/api/v1/processes/{id}/stdin", catalogue.WriteProcessInput, rest.NewUnary(http.StatusOK, a.WriteProcessInput)},
		{"POST", "/api/v1/processes/{id}/signal", catalogue.SignalProcess, rest.NewUnary(http.StatusOK, a.SignalProcess)},
		{"POST", "/api/v1/processes/{id}/resize", catalogue.ResizeProcess, rest.NewUnary(http.StatusOK, a.ResizeProcess)},
		{"GET", "/api/v1/processes/{id}/wait", catalogue.WaitProcess, rest.NewUnary(http.StatusOK, a.WaitProcess)},
	}
}

// fileUnaries are about files.
func fileUnaries(a *rest.API) []unaryBinding {
	return []unaryBinding{
		{"DELETE", "/api/v1/files", catalogue.RemoveFile, rest.NewUnary(http.StatusNoContent, a.RemoveFile)},
		{"GET", "/api/v1/files/list", catalogue.ListFiles, rest.NewUnary(http.StatusOK, a.ListFiles)},
		{"GET", "/api/v1/files/stat", catalogue.StatFile, rest.NewUnary(http.StatusOK, a.StatFile)},
		{"POST", "/api/v1/files/mkdir", catalogue.MakeDirectory, rest.NewUnary(http.StatusCreated, a.MakeDir)},
		{"POST", "/api/v1/files/move", catalogue.MoveFile, rest.NewUnary(http.StatusOK, a.MoveFile)},
		{"POST", "/api/v1/files/copy", catalogue.CopyFile, rest.NewUnary(http.StatusOK, a.CopyFile)},
		{"POST", "/api/v1/files/chmod", catalogue.ChmodFile, rest.NewUnary(http.StatusOK, a.ChmodFile)},
		{"POST", "/api/v1/files/search", catalogue.SearchFiles, rest.NewUnary(http.StatusOK, a.SearchFiles)},
		{"POST", "/api/v1/files/replace", catalogue.ReplaceInFiles, rest.NewUnary(http.StatusOK, a.ReplaceInFiles)},
		{"GET", "/api/v1/files/changes", catalogue.FileChanges, rest.NewUnary(http.StatusOK, a.FileChanges)},
	}
}

// gitUnaries are about git repositories.
func gitUnaries(a *rest.API) []unaryBinding {
	return []unaryBinding{
		{"POST", "/api/v1/git/clone", catalogue.GitClone, rest.NewUnary(http.StatusOK, a.GitClone)},
		{"POST", "/api/v1/git/status", catalogue.GitStatus, rest.NewUnary(http.StatusOK, a.GitStatus)},
		{"POST", "/api/v1/git/branches", catalogue.GitBranches, rest.NewUnary(http.StatusOK, a.GitBranches)},
		{"POST", "/api/v1/git/checkout", catalogue.GitCheckout, rest.NewUnary(http.StatusOK, a.GitCheckout)},
		{"POST", "/api/v1/git/add", catalogue.GitAdd, rest.NewUnary(http.StatusOK, a.GitAdd)},
		{"POST", "/api/v1/git/commit", catalogue.GitCommit, rest.NewUnary(http.StatusOK, a.GitCommit)},
		{"POST", "/api/v1/git/pull", catalogue.GitPull, rest.NewUnary(http.StatusOK, a.GitPull)},
		{"POST", "/api/v1/git/push", catalogue.GitPush, rest.NewUnary(http.StatusOK, a.GitPush)},
	}
}

// templateUnaries are about Templates and their builds.
func templateUnaries(a *rest.API) []unaryBinding {
	return []unaryBinding{
		{"GET", "/api/v1/templates", catalogue.ListTemplates, rest.NewUnary(http.StatusOK, a.ListTemplates)},
		{"GET", "/api/v1/templates/{template}", catalogue.GetTemplate, rest.NewUnary(http.StatusOK, a.GetTemplate)},
		{"DELETE", "/api/v1/templates/{template}", catalogue.DeleteTemplate, rest.NewUnary(http.StatusOK, a.DeleteTemplate)},
		{"GET", "/api/v1/builds", catalogue.ListBuilds, rest.NewUnary(http.StatusOK, a.ListBuilds)},
		{"GET", "/api/v1/builds/{id}", catalogue.GetBuild, rest.NewUnary(http.StatusOK, a.GetBuild)},
		{"DELETE", "/api/v1/builds/{id}", catalogue.CancelBuild, rest.NewUnary(http.StatusOK, a.CancelBuild)},
	}
}
