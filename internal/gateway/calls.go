package gateway

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
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
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rpc"
	internalrpc "github.com/cloud-sandbox/cloud-sandbox/internal/rpc"
)

// inBase64 bounds a message with 1 MiB of input, in base64 or escaped, and its other
// fields.
const inBase64 = 2 * catalogue.JSON

// procedures map calls of Connect and gRPC to operations, and bound a call's request. A
// message counts as a body, also where REST takes none. A stream is bounded per message
// instead.
var procedures = map[string]struct {
	op      *catalogue.Operation
	maxBody int64 // bytes
}{
	sandboxv1connect.SandboxServiceCreateProcedure:     {catalogue.CreateSession, catalogue.JSON},
	sandboxv1connect.SandboxServiceGetProcedure:        {catalogue.GetSession, catalogue.JSON},
	sandboxv1connect.SandboxServiceListProcedure:       {catalogue.ListSessions, catalogue.JSON},
	sandboxv1connect.SandboxServiceUpdateProcedure:     {catalogue.UpdateSession, catalogue.JSON},
	sandboxv1connect.SandboxServiceSetTimeoutProcedure: {catalogue.SetSessionTimeout, catalogue.JSON},
	sandboxv1connect.SandboxServiceTouchProcedure:      {catalogue.TouchSession, catalogue.JSON},
	sandboxv1connect.SandboxServicePauseProcedure:      {catalogue.PauseSession, catalogue.JSON},
	sandboxv1connect.SandboxServiceResumeProcedure:     {catalogue.ResumeSession, catalogue.JSON},
	sandboxv1connect.SandboxServiceForkProcedure:       {catalogue.ForkSession, catalogue.JSON},
	sandboxv1connect.SandboxServiceSnapshotProcedure:   {catalogue.TakeSnapshot, catalogue.JSON},
	sandboxv1connect.SandboxServiceHistoryProcedure:    {catalogue.ListSessionSnapshots, catalogue.JSON},
	sandboxv1connect.SandboxServiceRollbackProcedure:   {catalogue.RollbackSession, catalogue.JSON},
	sandboxv1connect.SandboxServiceEndProcedure:        {catalogue.DeleteSession, catalogue.JSON},
	sandboxv1connect.SandboxServiceExecuteProcedure:    {catalogue.Execute, catalogue.Execute.MaxBody},

	processv1connect.ProcessServiceStartProcedure:  {catalogue.StartProcess, catalogue.StartProcess.MaxBody},
	processv1connect.ProcessServiceGetProcedure:    {catalogue.GetProcess, catalogue.JSON},
	processv1connect.ProcessServiceListProcedure:   {catalogue.ListProcesses, catalogue.JSON},
	processv1connect.ProcessServiceOutputProcedure: {catalogue.ReadProcessOutput, catalogue.JSON},
	processv1connect.ProcessServiceInputProcedure:  {catalogue.WriteProcessInput, inBase64},
	processv1connect.ProcessServiceSignalProcedure: {catalogue.SignalProcess, catalogue.JSON},
	processv1connect.ProcessServiceResizeProcedure: {catalogue.ResizeProcess, catalogue.JSON},
	processv1connect.ProcessServiceWaitProcedure:   {catalogue.WaitProcess, catalogue.JSON},
	processv1connect.ProcessServiceEndProcedure:    {catalogue.EndProcess, catalogue.JSON},

	filev1connect.FileServiceReadProcedure:    {catalogue.ReadFile, catalogue.JSON},
	filev1connect.FileServiceWriteProcedure:   {catalogue.WriteFile, catalogue.Streamed},
	filev1connect.FileServiceListProcedure:    {catalogue.ListFiles, catalogue.JSON},
	filev1connect.FileServiceStatProcedure:    {catalogue.StatFile, catalogue.JSON},
	filev1connect.FileServiceMakeDirProcedure: {catalogue.MakeDirectory, catalogue.JSON},
	filev1connect.FileServiceMoveProcedure:    {catalogue.MoveFile, catalogue.JSON},
	filev1connect.FileServiceCopyProcedure:    {catalogue.CopyFile, catalogue.JSON},
	filev1connect.FileServiceChmodProcedure:   {catalogue.ChmodFile, catalogue.JSON},
	filev1connect.FileServiceRemoveProcedure:  {catalogue.RemoveFile, catalogue.JSON},
	filev1connect.FileServiceSearchProcedure:  {catalogue.SearchFiles, catalogue.JSON},
	filev1connect.FileServiceReplaceProcedure: {catalogue.ReplaceInFiles, catalogue.ReplaceInFiles.MaxBody},
	filev1connect.FileServiceArchiveProcedure: {catalogue.ReadArchive, catalogue.JSON},
	filev1connect.FileServiceExtractProcedure: {catalogue.WriteArchive, catalogue.Streamed},
	filev1connect.FileServiceWatchProcedure:   {catalogue.WatchFiles, catalogue.JSON},
	filev1connect.FileServiceChangesProcedure: {catalogue.FileChanges, catalogue.JSON},

	contextv1connect.ContextServiceCreateProcedure:    {catalogue.CreateContext, catalogue.JSON},
	contextv1connect.ContextServiceListProcedure:      {catalogue.ListContexts, catalogue.JSON},
	contextv1connect.ContextServiceRestartProcedure:   {catalogue.RestartContext, catalogue.JSON},
	contextv1connect.ContextServiceInterruptProcedure: {catalogue.InterruptContext, catalogue.JSON},
	contextv1connect.ContextServiceDeleteProcedure:    {catalogue.DeleteContext, catalogue.JSON},

	templatev1connect.TemplateServiceBuildProcedure:       {catalogue.CreateTemplate, catalogue.Streamed},
	templatev1connect.TemplateServiceGetProcedure:         {catalogue.GetTemplate, catalogue.JSON},
	templatev1connect.TemplateServiceListProcedure:        {catalogue.ListTemplates, catalogue.JSON},
	templatev1connect.TemplateServiceRemoveProcedure:      {catalogue.DeleteTemplate, catalogue.JSON},
	templatev1connect.TemplateServiceGetBuildProcedure:    {catalogue.GetBuild, catalogue.JSON},
	templatev1connect.TemplateServiceListBuildsProcedure:  {catalogue.ListBuilds, catalogue.JSON},
	templatev1connect.TemplateServiceBuildLogProcedure:    {catalogue.ReadBuildLog, catalogue.JSON},
	templatev1connect.TemplateServiceCancelBuildProcedure: {catalogue.CancelBuild, catalogue.JSON},

	gitv1connect.GitServiceCloneProcedure:    {catalogue.GitClone, catalogue.JSON},
	gitv1connect.GitServiceStatusProcedure:   {catalogue.GitStatus, catalogue.JSON},
	gitv1connect.GitServiceBranchesProcedure: {catalogue.GitBranches, catalogue.JSON},
	gitv1connect.GitServiceCheckoutProcedure: {catalogue.GitCheckout, catalogue.JSON},
	gitv1connect.GitServiceAddProcedure:      {catalogue.GitAdd, catalogue.JSON},
	gitv1connect.GitServiceCommitProcedure:   {catalogue.GitCommit, catalogue.JSON},
	gitv1connect.GitServicePullProcedure:     {catalogue.GitPull, catalogue.JSON},
	gitv1connect.GitServicePushProcedure:     {catalogue.GitPush, catalogue.JSON},

	keyv1connect.KeyServiceCreateProcedure: {catalogue.CreateKey, catalogue.JSON},
	keyv1connect.KeyServiceListProcedure:   {catalogue.ListKeys, catalogue.JSON},
	keyv1connect.KeyServiceRotateProcedure: {catalogue.RotateKey, catalogue.JSON},
	keyv1connect.KeyServiceRevokeProcedure: {catalogue.DeleteKey, catalogue.JSON},

	secretv1connect.SecretServiceCreateProcedure:  {catalogue.CreateSecret, catalogue.CreateSecret.MaxBody},
	secretv1connect.SecretServiceListProcedure:    {catalogue.ListSecrets, catalogue.JSON},
	secretv1connect.SecretServiceReplaceProcedure: {catalogue.ReplaceSecret, catalogue.ReplaceSecret.MaxBody},
	secretv1connect.SecretServiceDeleteProcedure:  {catalogue.DeleteSecret, catalogue.JSON},

	volumev1connect.VolumeServiceCreateProcedure: {catalogue.CreateVolume, catalogue.JSON},
	volumev1connect.VolumeServiceGetProcedure:    {catalogue.GetVolume, catalogue.JSON},
	volumev1connect.VolumeServiceListProcedure:   {catalogue.ListVolumes, catalogue.JSON},
	volumev1connect.VolumeServiceDeleteProcedure: {catalogue.DeleteVolume, catalogue.JSON},
}

// callRoutes are the routes of Connect and gRPC calls, as routes are the REST ones. It
// panics for a call without an operation: that is a bug.
func (s *Server) callRoutes() []route {
	var all []route
	var names []string
	for _, service := range s.services {
		names = append(names, service.Name)
		for path, handler := range service.Calls {
			p, ok := procedures[path]
			if !ok {
				panic(fmt.Sprintf("gateway: the procedure %s has no operation in the catalogue", path))
			}
			all = append(all, route{binding{"POST", path, p.op, call(handler)}, connectSurface, p.maxBody})
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

// unaryCalls are the operations of the calls that carry out the same function as REST.
func unaryCalls(a *rest.API) map[string]rpc.Unary {
	functions := map[*catalogue.Operation]rpc.Unary{}
	for _, u := range unaries(a) {
		functions[u.op] = rpc.Unary{Unary: u.do, HasID: strings.Contains(u.path, "{")}
	}
	calls := map[string]rpc.Unary{}
	for path, p := range procedures {
		if f, ok := functions[p.op]; ok {
			calls[path] = f
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
