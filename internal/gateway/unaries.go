package gateway

import (
	"net/http"
	"slices"

	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/context/v1/contextv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/file/v1/filev1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/git/v1/gitv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/key/v1/keyv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/process/v1/processv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1/sandboxv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/secret/v1/secretv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/template/v1/templatev1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/volume/v1/volumev1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// A unaryBinding maps an operation to its function, which all APIs call, to the URL of
// REST, and to the call of Connect and gRPC.
type unaryBinding struct {
	method, path string
	op           *catalogue.Operation
	procedure    string // empty: only REST has it
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
		{"GET", "/api/v1/keys", catalogue.ListKeys, keyv1connect.KeyServiceListProcedure, rest.NewUnary(http.StatusOK, a.ListKeys)},
		{"POST", "/api/v1/keys", catalogue.CreateKey, keyv1connect.KeyServiceCreateProcedure, rest.NewUnary(http.StatusCreated, a.CreateKey)},
		{"DELETE", "/api/v1/keys/{id}", catalogue.DeleteKey, keyv1connect.KeyServiceRevokeProcedure, rest.NewUnary(http.StatusNoContent, a.DeleteKey)},
		{"POST", "/api/v1/keys/{id}/rotate", catalogue.RotateKey, keyv1connect.KeyServiceRotateProcedure, rest.NewUnary(http.StatusOK, a.RotateKey)},
		{"GET", "/api/v1/secrets", catalogue.ListSecrets, secretv1connect.SecretServiceListProcedure, rest.NewUnary(http.StatusOK, a.ListSecrets)},
		{"POST", "/api/v1/secrets", catalogue.CreateSecret, secretv1connect.SecretServiceCreateProcedure, rest.NewUnary(http.StatusCreated, a.CreateSecret)},
		{"PUT", "/api/v1/secrets/{id}", catalogue.ReplaceSecret, secretv1connect.SecretServiceReplaceProcedure, rest.NewUnary(http.StatusOK, a.ReplaceSecret)},
		{"DELETE", "/api/v1/secrets/{id}", catalogue.DeleteSecret, secretv1connect.SecretServiceDeleteProcedure, rest.NewUnary(http.StatusNoContent, a.DeleteSecret)},
		{"GET", "/api/v1/volumes", catalogue.ListVolumes, volumev1connect.VolumeServiceListProcedure, rest.NewUnary(http.StatusOK, a.ListVolumes)},
		{"POST", "/api/v1/volumes", catalogue.CreateVolume, volumev1connect.VolumeServiceCreateProcedure, rest.NewUnary(http.StatusCreated, a.CreateVolume)},
		{"GET", "/api/v1/volumes/{id}", catalogue.GetVolume, volumev1connect.VolumeServiceGetProcedure, rest.NewUnary(http.StatusOK, a.GetVolume)},
		{"DELETE", "/api/v1/volumes/{id}", catalogue.DeleteVolume, volumev1connect.VolumeServiceDeleteProcedure, rest.NewUnary(http.StatusNoContent, a.DeleteVolume)},
	}
}

// sessionUnaries are about Sandboxes.
func sessionUnaries(a *rest.API) []unaryBinding {
	return []unaryBinding{
		{"POST", "/api/v1/sandbox/acquire", catalogue.AcquireSandbox, "", rest.NewUnary(http.StatusOK, a.Acquire)},
		{"POST", "/api/v1/sandbox/release", catalogue.ReleaseSandbox, "", rest.NewUnary(http.StatusOK, a.Release)},
		{"GET", "/api/v1/sessions", catalogue.ListSessions, sandboxv1connect.SandboxServiceListProcedure, rest.NewUnary(http.StatusOK, a.ListSessions)},
		{"POST", "/api/v1/sessions", catalogue.CreateSession, sandboxv1connect.SandboxServiceCreateProcedure, rest.NewUnary(http.StatusCreated, a.CreateSession)},
		{"GET", "/api/v1/sessions/{id}", catalogue.GetSession, sandboxv1connect.SandboxServiceGetProcedure, rest.NewUnary(http.StatusOK, a.GetSession)},
		{"PATCH", "/api/v1/sessions/{id}", catalogue.UpdateSession, sandboxv1connect.SandboxServiceUpdateProcedure, rest.NewUnary(http.StatusOK, a.UpdateSession)},
		{"DELETE", "/api/v1/sessions/{id}", catalogue.DeleteSession, sandboxv1connect.SandboxServiceEndProcedure, rest.NewUnary(http.StatusOK, a.DeleteSession)},
		{"POST", "/api/v1/sessions/{id}/timeout", catalogue.SetSessionTimeout, sandboxv1connect.SandboxServiceSetTimeoutProcedure, rest.NewUnary(http.StatusOK, a.SetTimeout)},
		{"POST", "/api/v1/sessions/{id}/touch", catalogue.TouchSession, sandboxv1connect.SandboxServiceTouchProcedure, rest.NewUnary(http.StatusOK, a.TouchSession)},
	}
}

// snapshotUnaries save and restore Sandboxes.
func snapshotUnaries(a *rest.API) []unaryBinding {
	return []unaryBinding{
		{"POST", "/api/v1/sessions/{id}/pause", catalogue.PauseSession, sandboxv1connect.SandboxServicePauseProcedure, rest.NewUnary(http.StatusOK, a.PauseSession)},
		{"POST", "/api/v1/sessions/{id}/resume", catalogue.ResumeSession, sandboxv1connect.SandboxServiceResumeProcedure, rest.NewUnary(http.StatusOK, a.ResumeSession)},
		{"POST", "/api/v1/sessions/{id}/rollback", catalogue.RollbackSession, sandboxv1connect.SandboxServiceRollbackProcedure, rest.NewUnary(http.StatusOK, a.RollbackSession)},
		{"POST", "/api/v1/sessions/{id}/fork", catalogue.ForkSession, sandboxv1connect.SandboxServiceForkProcedure, rest.NewUnary(http.StatusCreated, a.ForkSession)},
		{"GET", "/api/v1/sessions/{id}/snapshots", catalogue.ListSessionSnapshots, sandboxv1connect.SandboxServiceHistoryProcedure, rest.NewUnary(http.StatusOK, a.SessionSnapshots)},
		{"POST", "/api/v1/sessions/{id}/snapshots", catalogue.TakeSnapshot, sandboxv1connect.SandboxServiceSnapshotProcedure, rest.NewUnary(http.StatusCreated, a.TakeSnapshot)},
	}
}

// runUnaries are about contexts and processes.
func runUnaries(a *rest.API) []unaryBinding {
	return []unaryBinding{
		{"GET", "/api/v1/contexts", catalogue.ListContexts, contextv1connect.ContextServiceListProcedure, rest.NewUnary(http.StatusOK, a.ListContexts)},
		{"POST", "/api/v1/contexts", catalogue.CreateContext, contextv1connect.ContextServiceCreateProcedure, rest.NewUnary(http.StatusCreated, a.CreateContext)},
		{"DELETE", "/api/v1/contexts/{id}", catalogue.DeleteContext, contextv1connect.ContextServiceDeleteProcedure, rest.NewUnary(http.StatusNoContent, a.DeleteContext)},
		{"POST", "/api/v1/contexts/{id}/restart", catalogue.RestartContext, contextv1connect.ContextServiceRestartProcedure, rest.NewUnary(http.StatusOK, a.RestartContext)},
		{"POST", "/api/v1/contexts/{id}/interrupt", catalogue.InterruptContext, contextv1connect.ContextServiceInterruptProcedure, rest.NewUnary(http.StatusOK, a.InterruptContext)},
		{"GET", "/api/v1/processes", catalogue.ListProcesses, processv1connect.ProcessServiceListProcedure, rest.NewUnary(http.StatusOK, a.ListProcesses)},
		{"GET", "/api/v1/processes/{id}", catalogue.GetProcess, processv1connect.ProcessServiceGetProcedure, rest.NewUnary(http.StatusOK, a.GetProcess)},
		{"DELETE", "/api/v1/processes/{id}", catalogue.EndProcess, processv1connect.ProcessServiceEndProcedure, rest.NewUnary(http.StatusOK, a.EndProcess)},
		{"POST", "/api/v1/processes/{id}/stdin", catalogue.WriteProcessInput, processv1connect.ProcessServiceInputProcedure, rest.NewUnary(http.StatusOK, a.WriteProcessInput)},
		{"POST", "/api/v1/processes/{id}/signal", catalogue.SignalProcess, processv1connect.ProcessServiceSignalProcedure, rest.NewUnary(http.StatusOK, a.SignalProcess)},
		{"POST", "/api/v1/processes/{id}/resize", catalogue.ResizeProcess, processv1connect.ProcessServiceResizeProcedure, rest.NewUnary(http.StatusOK, a.ResizeProcess)},
		{"GET", "/api/v1/processes/{id}/wait", catalogue.WaitProcess, processv1connect.ProcessServiceWaitProcedure, rest.NewUnary(http.StatusOK, a.WaitProcess)},
	}
}

// fileUnaries are about files.
func fileUnaries(a *rest.API) []unaryBinding {
	return []unaryBinding{
		{"DELETE", "/api/v1/files", catalogue.RemoveFile, filev1connect.FileServiceRemoveProcedure, rest.NewUnary(http.StatusNoContent, a.RemoveFile)},
		{"GET", "/api/v1/files/list", catalogue.ListFiles, filev1connect.FileServiceListProcedure, rest.NewUnary(http.StatusOK, a.ListFiles)},
		{"GET", "/api/v1/files/stat", catalogue.StatFile, filev1connect.FileServiceStatProcedure, rest.NewUnary(http.StatusOK, a.StatFile)},
		{"POST", "/api/v1/files/mkdir", catalogue.MakeDirectory, filev1connect.FileServiceMakeDirProcedure, rest.NewUnary(http.StatusCreated, a.MakeDir)},
		{"POST", "/api/v1/files/move", catalogue.MoveFile, filev1connect.FileServiceMoveProcedure, rest.NewUnary(http.StatusOK, a.MoveFile)},
		{"POST", "/api/v1/files/copy", catalogue.CopyFile, filev1connect.FileServiceCopyProcedure, rest.NewUnary(http.StatusOK, a.CopyFile)},
		{"POST", "/api/v1/files/chmod", catalogue.ChmodFile, filev1connect.FileServiceChmodProcedure, rest.NewUnary(http.StatusOK, a.ChmodFile)},
		{"POST", "/api/v1/files/search", catalogue.SearchFiles, filev1connect.FileServiceSearchProcedure, rest.NewUnary(http.StatusOK, a.SearchFiles)},
		{"POST", "/api/v1/files/replace", catalogue.ReplaceInFiles, filev1connect.FileServiceReplaceProcedure, rest.NewUnary(http.StatusOK, a.ReplaceInFiles)},
		{"GET", "/api/v1/files/changes", catalogue.FileChanges, filev1connect.FileServiceChangesProcedure, rest.NewUnary(http.StatusOK, a.FileChanges)},
	}
}

// gitUnaries are about git repositories.
func gitUnaries(a *rest.API) []unaryBinding {
	return []unaryBinding{
		{"POST", "/api/v1/git/clone", catalogue.GitClone, gitv1connect.GitServiceCloneProcedure, rest.NewUnary(http.StatusOK, a.GitClone)},
		{"POST", "/api/v1/git/status", catalogue.GitStatus, gitv1connect.GitServiceStatusProcedure, rest.NewUnary(http.StatusOK, a.GitStatus)},
		{"POST", "/api/v1/git/branches", catalogue.GitBranches, gitv1connect.GitServiceBranchesProcedure, rest.NewUnary(http.StatusOK, a.GitBranches)},
		{"POST", "/api/v1/git/checkout", catalogue.GitCheckout, gitv1connect.GitServiceCheckoutProcedure, rest.NewUnary(http.StatusOK, a.GitCheckout)},
		{"POST", "/api/v1/git/add", catalogue.GitAdd, gitv1connect.GitServiceAddProcedure, rest.NewUnary(http.StatusOK, a.GitAdd)},
		{"POST", "/api/v1/git/commit", catalogue.GitCommit, gitv1connect.GitServiceCommitProcedure, rest.NewUnary(http.StatusOK, a.GitCommit)},
		{"POST", "/api/v1/git/pull", catalogue.GitPull, gitv1connect.GitServicePullProcedure, rest.NewUnary(http.StatusOK, a.GitPull)},
		{"POST", "/api/v1/git/push", catalogue.GitPush, gitv1connect.GitServicePushProcedure, rest.NewUnary(http.StatusOK, a.GitPush)},
	}
}

// templateUnaries are about Templates and their builds.
func templateUnaries(a *rest.API) []unaryBinding {
	return []unaryBinding{
		{"GET", "/api/v1/templates", catalogue.ListTemplates, templatev1connect.TemplateServiceListProcedure, rest.NewUnary(http.StatusOK, a.ListTemplates)},
		{"GET", "/api/v1/templates/{template}", catalogue.GetTemplate, templatev1connect.TemplateServiceGetProcedure, rest.NewUnary(http.StatusOK, a.GetTemplate)},
		{"DELETE", "/api/v1/templates/{template}", catalogue.DeleteTemplate, templatev1connect.TemplateServiceRemoveProcedure, rest.NewUnary(http.StatusOK, a.DeleteTemplate)},
		{"GET", "/api/v1/builds", catalogue.ListBuilds, templatev1connect.TemplateServiceListBuildsProcedure, rest.NewUnary(http.StatusOK, a.ListBuilds)},
		{"GET", "/api/v1/builds/{id}", catalogue.GetBuild, templatev1connect.TemplateServiceGetBuildProcedure, rest.NewUnary(http.StatusOK, a.GetBuild)},
		{"DELETE", "/api/v1/builds/{id}", catalogue.CancelBuild, templatev1connect.TemplateServiceCancelBuildProcedure, rest.NewUnary(http.StatusOK, a.CancelBuild)},
	}
}
