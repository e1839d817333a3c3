package rpc

import (
	"cmp"
	"slices"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/builder/v1/builderv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/node/v1/nodev1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/scheduler/v1/schedulerv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/session/v1/sessionv1connect"
)

// A rule says who may make a call.
type rule struct {
	forTenant []Role // for one Tenant, which the token names
	forNone   []Role // for no Tenant
}

// forTenantBy allows a call for one Tenant, and forNone a call for no Tenant.
func forTenantBy(roles ...Role) rule { return rule{forTenant: roles} }
func forNone(roles ...Role) rule     { return rule{forNone: roles} }

// speakers are the roles that may speak for a Tenant.
var speakers = []Role{Gateway, SessionManager}

// rules has each procedure of every service between roles. A procedure without a rule is
// refused, and a test fails.
//
// To the session manager a Node may only report, and ask about itself. Both are about the
// Node that the caller's certificate names, never about one in the message, and the
// session manager ignores a report about a Boot that its record places on another Node. At the Node that
// keeps the Templates it may find the operator's, and get and store images by their hash.
// Of another Node it may ask the Volumes of its own Boots: that Node asks the session manager
// which these are.
var rules = map[string]rule{
	// Of the session-manager.
	sessionv1connect.SessionServiceCreateProcedure:         forTenantBy(Gateway),
	sessionv1connect.SessionServiceEnsureProcedure:         forTenantBy(Gateway),
	sessionv1connect.SessionServiceGetProcedure:            forTenantBy(Gateway),
	sessionv1connect.SessionServiceSettledProcedure:        forTenantBy(Gateway),
	sessionv1connect.SessionServiceListProcedure:           forTenantBy(Gateway),
	sessionv1connect.SessionServiceSetTimeoutProcedure:     forTenantBy(Gateway),
	sessionv1connect.SessionServiceUpdateProcedure:         forTenantBy(Gateway),
	sessionv1connect.SessionServiceTouchProcedure:          forTenantBy(Gateway),
	sessionv1connect.SessionServiceEndProcedure:            forTenantBy(Gateway),
	sessionv1connect.SessionServiceCountsProcedure:         forTenantBy(Gateway),
	sessionv1connect.SessionServiceIdleProcedure:           forTenantBy(Gateway),
	sessionv1connect.SessionServicePauseProcedure:          forTenantBy(Gateway),
	sessionv1connect.SessionServiceResumeProcedure:         forTenantBy(Gateway),
	sessionv1connect.SessionServiceRollbackProcedure:       forTenantBy(Gateway),
	sessionv1connect.SessionServiceForkProcedure:           forTenantBy(Gateway),
	sessionv1connect.SessionServiceTakeSnapshotProcedure:   forTenantBy(Gateway),
	sessionv1connect.SessionServiceGetSnapshotProcedure:    forTenantBy(Gateway),
	sessionv1connect.SessionServiceListSnapshotsProcedure:  forTenantBy(Gateway),
	sessionv1connect.SessionServiceHistoryProcedure:        forTenantBy(Gateway),
	sessionv1connect.SessionServiceDeleteSnapshotProcedure: forTenantBy(Gateway),
	sessionv1connect.SessionServiceCreateVolumeProcedure:   forTenantBy(Gateway),
	sessionv1connect.SessionServiceGetVolumeProcedure:      forTenantBy(Gateway),
	sessionv1connect.SessionServiceListVolumesProcedure:    forTenantBy(Gateway),
	sessionv1connect.SessionServiceDeleteVolumeProcedure:   forTenantBy(Gateway),
	sessionv1connect.SessionServiceSecretChangedProcedure:  forTenantBy(Gateway),
	exportSnapshotPath:                                forTenantBy(Gateway),
	importSnapshotPath:                                forTenantBy(Gateway),
	sessionv1connect.SessionServiceUsedProcedure:      forNone(Gateway), // of Sandboxes of many Tenants
	sessionv1connect.SessionServiceBootEndedProcedure: forNone(Node),
	sessionv1connect.SessionServiceNodeEndedProcedure: forNone(Node),

	// Of each session-manager, also one that stands by.
	sessionv1connect.NodeRecordsServiceRenewLeaseProcedure:       forNone(Node),
	sessionv1connect.NodeRecordsServiceLeaderOfProcedure:         forNone(Node),
	sessionv1connect.NodeRecordsServiceOwnerOfProcedure:          forNone(Node),
	sessionv1connect.NodeRecordsServiceNeedsImageProcedure:       forNone(Node),
	sessionv1connect.NodeRecordsServiceSnapshotsOfBuildProcedure: forNone(Node),
	sessionv1connect.NodeRecordsServiceTemplateBytesProcedure:    forNone(Node),
	sessionv1connect.NodeRecordsServiceVolumeHomesProcedure:      forNone(Node),
	sessionv1connect.NodeRecordsServiceKeepCopyKeyProcedure:      forNone(Node),
	sessionv1connect.NodeRecordsServicePackScopeProcedure:        forNone(Node),
	sessionv1connect.NodeRecordsServiceBeginCopyProcedure:        forNone(Node),
	sessionv1connect.NodeRecordsServiceUsePacksProcedure:         forNone(Node),
	sessionv1connect.NodeRecordsServiceCompleteCopyProcedure:     forNone(Node),
	sessionv1connect.NodeRecordsServiceAbandonCopyProcedure:      forNone(Node),
	sessionv1connect.NodeRecordsServiceFindCopyProcedure:         forNone(Node),

	// Of the scheduler.
	schedulerv1connect.SchedulerServicePlaceProcedure:          forNone(SessionManager),
	schedulerv1connect.SchedulerServicePlaceElsewhereProcedure: forNone(SessionManager),

	// Of a Node.
	nodev1connect.NodeServiceStartProcedure:            forTenantBy(SessionManager),
	nodev1connect.NodeServiceUpdateProcedure:           forTenantBy(SessionManager),
	nodev1connect.NodeServiceSaveProcedure:             forTenantBy(SessionManager),
	nodev1connect.NodeServiceSaveFilesProcedure:        forTenantBy(SessionManager),
	nodev1connect.NodeServiceFetchSavedProcedure:       forTenantBy(SessionManager),
	nodev1connect.NodeServiceThawProcedure:             forTenantBy(SessionManager),
	nodev1connect.NodeServiceDeleteSavedProcedure:      forNone(SessionManager),
	nodev1connect.NodeServiceListSavedProcedure:        forNone(SessionManager),
	nodev1connect.NodeServiceStopProcedure:             forNone(SessionManager),
	nodev1connect.NodeServiceBootsProcedure:            forNone(SessionManager),
	nodev1connect.NodeServiceTrafficProcedure:          forNone(SessionManager),
	nodev1connect.NodeServiceStatsProcedure:            forNone(SessionManager, Gateway, Scheduler),
	nodev1connect.NodeServiceNetworkLogProcedure:       forTenantBy(Gateway),
	nodev1connect.NodeServiceUsageProcedure:            forTenantBy(SessionManager),
	nodev1connect.NodeServiceCreateVolumeProcedure:     forTenantBy(SessionManager),
	nodev1connect.NodeServiceDeleteVolumeProcedure:     forNone(SessionManager),
	nodev1connect.NodeServiceListVolumesProcedure:      forNone(SessionManager, Gateway),
	nodev1connect.NodeServiceStatVolumeFileProcedure:   forTenantBy(Gateway),
	nodev1connect.NodeServiceListVolumeFolderProcedure: forTenantBy(Gateway),
	nodev1connect.NodeServiceMakeVolumeFolderProcedure: forTenantBy(Gateway),
	nodev1connect.NodeServiceChangeVolumeFileProcedure: forTenantBy(Gateway),
	nodev1connect.NodeServiceRemoveVolumeFileProcedure: forTenantBy(Gateway),
	exportVolumePath:    forTenantBy(SessionManager),
	importVolumePath:    forTenantBy(SessionManager),
	readVolumeFilePath:  forTenantBy(Gateway),
	writeVolumeFilePath: forTenantBy(Gateway),
	exportSavedPath:     forNone(SessionManager),
	importSavedPath:     forTenantBy(SessionManager),
	exportBasePath:      forNone(SessionManager),
	keepBasePath:        forNone(SessionManager),
	exportChangesPath:   forNone(SessionManager),
	importChangesPath:   forTenantBy(SessionManager),
	dialPath:            forTenantBy(Gateway),
	volumesPath:         forNone(Node),

	// Of the Node that keeps the Templates.
	buildPath:       forTenantBy(Gateway),
	buildLogPath:    forTenantBy(Gateway),
	openImagePath:   forNone(Node),
	storeImagePath:  forNone(Node),
	openUploadPath:  forTenantBy(Gateway),
	storeUploadPath: forTenantBy(Gateway),
	builderv1connect.BuilderServiceBuildsProcedure:        forTenantBy(Gateway),
	builderv1connect.BuilderServiceBuildByIDProcedure:     forTenantBy(Gateway),
	builderv1connect.BuilderServiceCancelBuildProcedure:   forTenantBy(Gateway),
	builderv1connect.BuilderServiceEndedProcedure:         forNone(Gateway), // of all Tenants
	builderv1connect.BuilderServiceListProcedure:          forTenantBy(Gateway),
	builderv1connect.BuilderServiceFindProcedure:          {forTenant: []Role{Gateway, SessionManager}, forNone: []Role{SessionManager, Node}},
	builderv1connect.BuilderServiceVersionsProcedure:      forTenantBy(Gateway),
	builderv1connect.BuilderServiceTagProcedure:           forTenantBy(Gateway),
	builderv1connect.BuilderServiceReuseProcedure:         forTenantBy(Gateway),
	builderv1connect.BuilderServiceRemoveProcedure:        forTenantBy(Gateway),
	builderv1connect.BuilderServiceStoredBytesProcedure:   forTenantBy(Gateway),
	builderv1connect.BuilderServiceAdmitProcedure:         forTenantBy(Gateway, SessionManager),
	builderv1connect.BuilderServiceKeepProcedure:          forTenantBy(SessionManager),
	builderv1connect.BuilderServiceDropProcedure:          forNone(SessionManager),
	builderv1connect.BuilderServiceMissingImagesProcedure: forNone(Node),
	builderv1connect.BuilderServiceHasUploadProcedure:     forTenantBy(Gateway),
}

// authorize returns Denied unless c may call a procedure.
func authorize(procedure string, c Caller) error {
	r, known := rules[procedure]
	if !known {
		return sandbox.Errorf(sandbox.Denied, "no role may call %.80s", procedure)
	}
	switch {
	case c.may(append(slices.Clone(r.forTenant), r.forNone...)...) != nil:
		return c.may()
	case c.Tenant == "" && len(r.forNone) == 0:
		return sandbox.Errorf(sandbox.Denied, "the call must be for a tenant")
	case c.Tenant != "" && len(r.forTenant) == 0:
		return sandbox.Errorf(sandbox.Denied, "the call is for no tenant, and its token names one")
	case c.Tenant == "":
		return c.may(r.forNone...)
	}
	return cmp.Or(c.may(speakers...), c.may(r.forTenant...))
}
