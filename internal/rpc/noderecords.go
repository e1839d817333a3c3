package rpc

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/cloud-sandbox/cloud-sandbox"
	sessionv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/session/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/session/v1/sessionv1connect"
)

// NodeRecords are the records at the session managers of an installation, for a Node. Use
// NewNodeRecords.
type NodeRecords struct {
	all   []nodeRecordsPeer
	last  atomic.Int64  // index in all of the session manager to ask first
	limit time.Duration // of one attempt, if there are several
}

type nodeRecordsPeer struct {
	*peer
	client sessionv1connect.NodeRecordsServiceClient
}

var _ sandbox.NodeRecords = (*NodeRecords)(nil)

// NewNodeRecords returns the records at session managers, of which any may answer. It does
// not connect yet. addresses has at least one.
func NewNodeRecords(addresses []string, self Self) *NodeRecords {
	r := &NodeRecords{limit: askLimit}
	for _, address := range addresses {
		p := newPeer(SessionManager, "", address, self)
		r.all = append(r.all, nodeRecordsPeer{p, sessionv1connect.NewNodeRecordsServiceClient(p.http, p.base, p.options()...)})
	}
	return r
}

// Close frees idle connections.
func (r *NodeRecords) Close() {
	for _, p := range r.all {
		p.close()
	}
}

// askLimit bounds one attempt of a call that another session manager may answer. Two fit
// in the time between two renewals of a Lease.
const askLimit = 2 * time.Second

// askAny makes a call to the session manager that answered last, and to the others in turn
// while it is Unavailable, silent, or of an earlier version that does not know the call: all
// calls are idempotent. One whose clock is wrong refuses this Node, which is Unavailable too.
// The last error is returned.
func askAny[Req, Res any](
	ctx context.Context, r *NodeRecords,
	method func(sessionv1connect.NodeRecordsServiceClient, context.Context, *connect.Request[Req]) (*connect.Response[Res], error), msg *Req,
) (res *Res, err error) {
	first := r.last.Load()
	for i := range len(r.all) {
		index := (int(first) + i) % len(r.all)
		p := r.all[index]
		of := func(ctx context.Context, r *connect.Request[Req]) (*connect.Response[Res], error) {
			return method(p.client, ctx, r)
		}
		attempt, cancel := ctx, func() {}
		if len(r.all) > 1 {
			attempt, cancel = context.WithTimeout(ctx, r.limit)
		}
		res, err = call(attempt, p.peer, "", of, msg)
		silent := err != nil && attempt.Err() != nil
		cancel()
		if isUnknown(err) {
			err = p.away(err)
		}
		if !silent && !errors.Is(err, sandbox.Unavailable) {
			r.last.Store(int64(index))
			return res, err
		}
		r.last.Store(int64((index + 1) % len(r.all))) // the caller may have no time left for it
		if ctx.Err() != nil {
			return res, err
		}
		if silent {
			err = p.away(err)
		}
	}
	return res, err
}

// RenewLease implements sandbox.NodeRecords.
func (r *NodeRecords) RenewLease(ctx context.Context, n sandbox.NodeRecord, life time.Duration) (sandbox.NodeRecord, error) {
	m, err := askAny(ctx, r, sessionv1connect.NodeRecordsServiceClient.RenewLease, &sessionv1.RenewLeaseRequest{
		Holder: n.Holder, Engine: n.Engine, Address: n.Address, Version: n.Version, Life: durationpb.New(life),
		FenceAfter: durationpb.New(n.FenceAfter),
	})
	n.Epoch, n.LeaseLeft, n.LostEpoch = m.GetEpoch(), m.GetLeft().AsDuration(), -1
	if m != nil && m.LostEpoch != nil {
		n.LostEpoch = *m.LostEpoch
	}
	return n, err
}

// LeaderOf implements sandbox.NodeRecords.
func (r *NodeRecords) LeaderOf(ctx context.Context, role string) (sandbox.Leader, error) {
	m, err := askAny(ctx, r, sessionv1connect.NodeRecordsServiceClient.LeaderOf, &sessionv1.LeaderOfRequest{Role: role})
	if err != nil {
		return sandbox.Leader{}, err
	}
	return sandbox.Leader{
		LeaderClaim: sandbox.LeaderClaim{Role: role, Holder: m.Holder, Address: m.Address},
		Epoch:       m.Epoch, Left: m.Left.AsDuration(),
	}, nil
}

// OwnerOf implements sandbox.NodeRecords. The Node is Self's.
func (r *NodeRecords) OwnerOf(ctx context.Context, _, snapshot string) (sandbox.SavedOwner, error) {
	m, err := askAny(ctx, r, sessionv1connect.NodeRecordsServiceClient.OwnerOf, &sessionv1.OwnerOfRequest{Snapshot: snapshot})
	return sandbox.SavedOwner{Tenant: sandbox.TenantID(m.GetTenant()), Bytes: m.GetBytes(), CreatedAt: toTime(m.GetCreatedAt())}, err
}

// NeedsImage implements sandbox.NodeRecords. The Node is Self's.
func (r *NodeRecords) NeedsImage(ctx context.Context, _, image string) (sandbox.Snapshot, error) {
	m, err := askAny(ctx, r, sessionv1connect.NodeRecordsServiceClient.NeedsImage, &sessionv1.NeedsImageRequest{Image: image})
	return sandbox.Snapshot{ID: m.GetSnapshot(), Tenant: sandbox.TenantID(m.GetTenant()), SandboxID: m.GetSandboxId()}, err
}

// SnapshotsOfBuild implements sandbox.NodeRecords.
func (r *NodeRecords) SnapshotsOfBuild(ctx context.Context, build string) (int, error) {
	m, err := askAny(ctx, r, sessionv1connect.NodeRecordsServiceClient.SnapshotsOfBuild, &sessionv1.SnapshotsOfBuildRequest{Build: build})
	return int(m.GetCount()), err
}

// TemplateBytes implements sandbox.NodeRecords. The Node is Self's.
func (r *NodeRecords) TemplateBytes(ctx context.Context, _ string, tenant sandbox.TenantID) (int64, error) {
	m, err := askAny(ctx, r, sessionv1connect.NodeRecordsServiceClient.TemplateBytes, &sessionv1.TemplateBytesRequest{Tenant: string(tenant)})
	return m.GetBytes(), err
}

// VolumeHomes implements sandbox.NodeRecords. The Node is Self's.
func (r *NodeRecords) VolumeHomes(ctx context.Context, _ string, of sandbox.BootPlace) ([]sandbox.VolumeHome, error) {
	m, err := askAny(ctx, r, sessionv1connect.NodeRecordsServiceClient.VolumeHomes, &sessionv1.VolumeHomesRequest{
		Sandbox: of.SandboxID, Number: of.Number, BootNode: of.Node,
	})
	var all []sandbox.VolumeHome
	for _, v := range m.GetHomes() {
		all = append(all, sandbox.VolumeHome{
			VolumeSpec: sandbox.VolumeSpec{ID: v.Id, Tenant: sandbox.TenantID(v.Tenant), MaxBytes: v.MaxBytes}, Node: v.Node, Address: v.Address,
		})
	}
	return all, err
}

// KeepCopyKey implements sandbox.CopyRecords.
func (r *NodeRecords) KeepCopyKey(ctx context.Context, prefix string, sealed []byte) ([]byte, error) {
	m, err := askAny(ctx, r, sessionv1connect.NodeRecordsServiceClient.KeepCopyKey, &sessionv1.KeepCopyKeyRequest{Prefix: prefix, Sealed: sealed})
	return m.GetSealed(), err
}

// PackScope implements sandbox.CopyRecords.
func (r *NodeRecords) PackScope(ctx context.Context) (string, error) {
	m, err := askAny(ctx, r, sessionv1connect.NodeRecordsServiceClient.PackScope, &sessionv1.PackScopeRequest{})
	return m.GetScope(), err
}

// BeginCopy implements sandbox.CopyRecords. The Node is Self's, as in the methods below.
func (r *NodeRecords) BeginCopy(ctx context.Context, _ string, c sandbox.CopyRef) (sandbox.CopyAttempt, error) {
	m, err := askAny(ctx, r, sessionv1connect.NodeRecordsServiceClient.BeginCopy, &sessionv1.BeginCopyRequest{Snapshot: c.Snapshot, Prefix: c.Prefix})
	if err != nil {
		return sandbox.CopyAttempt{}, err
	}
	return sandbox.CopyAttempt{CopyRef: c, Number: m.Number}, nil
}

// UsePacks implements sandbox.CopyRecords.
func (r *NodeRecords) UsePacks(ctx context.Context, _ string, use sandbox.PackUse) ([]string, error) {
	m, err := askAny(ctx, r, sessionv1connect.NodeRecordsServiceClient.UsePacks, &sessionv1.UsePacksRequest{
		Attempt: fromAttempt(use.CopyAttempt), Packs: use.Packs, Shared: use.Shared, Life: durationpb.New(use.Life),
	})
	return m.GetRefused(), err
}

// CompleteCopy implements sandbox.CopyRecords.
func (r *NodeRecords) CompleteCopy(ctx context.Context, _ string, c sandbox.CopyAttempt) error {
	_, err := askAny(ctx, r, sessionv1connect.NodeRecordsServiceClient.CompleteCopy, &sessionv1.CompleteCopyRequest{Attempt: fromAttempt(c)})
	return err
}

// AbandonCopy implements sandbox.CopyRecords.
func (r *NodeRecords) AbandonCopy(ctx context.Context, _ string, c sandbox.AbandonedCopy) error {
	_, err := askAny(ctx, r, sessionv1connect.NodeRecordsServiceClient.AbandonCopy, &sessionv1.AbandonCopyRequest{
		Snapshot: c.Snapshot, Prefix: c.Prefix, Packs: c.Packs,
	})
	return err
}

// FindCopy implements sandbox.CopyRecords.
func (r *NodeRecords) FindCopy(ctx context.Context, tenant sandbox.TenantID, snapshot string) (string, error) {
	m, err := askAny(ctx, r, sessionv1connect.NodeRecordsServiceClient.FindCopy, &sessionv1.FindCopyRequest{Tenant: string(tenant), Snapshot: snapshot})
	return m.GetPrefix(), err
}

func fromAttempt(c sandbox.CopyAttempt) *sessionv1.CopyAttempt {
	return &sessionv1.CopyAttempt{Snapshot: c.Snapshot, Prefix: c.Prefix, Number: c.Number}
}

func toAttempt(c *sessionv1.CopyAttempt) sandbox.CopyAttempt {
	return sandbox.CopyAttempt{CopyRef: sandbox.CopyRef{Snapshot: c.GetSnapshot(), Prefix: c.GetPrefix()}, Number: c.GetNumber()}
}

// NodeRecordsService serves records to Nodes. Each is about the Node that the caller's
// certificate names.
func NodeRecordsService(records sandbox.NodeRecords) Service {
	return Service{Name: sessionv1connect.NodeRecordsServiceName, handler: func(o ...connect.HandlerOption) (string, http.Handler) {
		return sessionv1connect.NewNodeRecordsServiceHandler(nodeRecordsServer{records}, o...)
	}}
}

type nodeRecordsServer struct{ records sandbox.NodeRecords }

// maxLease bounds the Lease that a Node may take at once: one that vanishes must not keep
// its name for long.
const maxLease = 5 * time.Minute

// maxHolder bounds the identity of a Node's folder, the name of its Engine and the version
// of its program, in bytes.
const maxHolder = 256

func (s nodeRecordsServer) RenewLease(ctx context.Context, r *connect.Request[sessionv1.RenewLeaseRequest]) (*connect.Response[sessionv1.RenewLeaseResponse], error) {
	life := r.Msg.Life.AsDuration()
	if life <= 0 || life > maxLease {
		return nil, internal(sandbox.Errorf(sandbox.Invalid, "a lease lasts up to %v", maxLease))
	}
	if err := checkOwnAddress(ctx, r.Msg.Address); err != nil {
		return nil, internal(err)
	}
	if max(len(r.Msg.Holder), len(r.Msg.Engine), len(r.Msg.Version)) > maxHolder {
		return nil, internal(sandbox.Errorf(sandbox.Invalid, "the names of a node's folder and of its engine, and its version, have up to %d bytes", maxHolder))
	}
	fence := r.Msg.FenceAfter.AsDuration()
	if fence < 0 || fence > sandbox.MaxFenceAfter {
		return nil, internal(sandbox.Errorf(sandbox.Invalid, "a node fences itself within %v", sandbox.MaxFenceAfter))
	}
	n, err := s.records.RenewLease(ctx, sandbox.NodeRecord{
		Name: callerOf(ctx).Name, Holder: r.Msg.Holder, Engine: r.Msg.Engine, Address: r.Msg.Address, Version: r.Msg.Version, FenceAfter: fence,
	}, life)
	return answer(&sessionv1.RenewLeaseResponse{Epoch: n.Epoch, Left: durationpb.New(n.LeaseLeft), LostEpoch: &n.LostEpoch}, err)
}

// checkOwnAddress returns Invalid for an address that a Node may not have. Other roles call
// the Node there. So a Node on another machine must not name a socket of theirs.
func checkOwnAddress(ctx context.Context, address string) error {
	if connectionOf(ctx).tls != nil && !strings.HasPrefix(address, securePrefix) {
		return sandbox.Errorf(sandbox.Invalid, "the address %.80q of a node on another machine must be https://HOST:PORT: set CLOUD_SANDBOX_NODE_URL", address)
	}
	if address == "" {
		return nil
	}
	return CheckAddress(address)
}

func (s nodeRecordsServer) LeaderOf(ctx context.Context, r *connect.Request[sessionv1.LeaderOfRequest]) (*connect.Response[sessionv1.LeaderOfResponse], error) {
	l, err := s.records.LeaderOf(ctx, r.Msg.Role)
	return answer(&sessionv1.LeaderOfResponse{Holder: l.Holder, Address: l.Address, Epoch: l.Epoch, Left: durationpb.New(l.Left)}, err)
}

func (s nodeRecordsServer) OwnerOf(ctx context.Context, r *connect.Request[sessionv1.OwnerOfRequest]) (*connect.Response[sessionv1.OwnerOfResponse], error) {
	o, err := s.records.OwnerOf(ctx, callerOf(ctx).Name, r.Msg.Snapshot)
	return answer(&sessionv1.OwnerOfResponse{Tenant: string(o.Tenant), Bytes: o.Bytes, CreatedAt: fromTime(o.CreatedAt)}, err)
}

func (s nodeRecordsServer) NeedsImage(ctx context.Context, r *connect.Request[sessionv1.NeedsImageRequest]) (*connect.Response[sessionv1.NeedsImageResponse], error) {
	snap, err := s.records.NeedsImage(ctx, callerOf(ctx).Name, r.Msg.Image)
	return answer(&sessionv1.NeedsImageResponse{Snapshot: snap.ID, Tenant: string(snap.Tenant), SandboxId: snap.SandboxID}, err)
}

func (s nodeRecordsServer) SnapshotsOfBuild(ctx context.Context, r *connect.Request[sessionv1.SnapshotsOfBuildRequest]) (*connect.Response[sessionv1.SnapshotsOfBuildResponse], error) {
	n, err := s.records.SnapshotsOfBuild(ctx, r.Msg.Build)
	return answer(&sessionv1.SnapshotsOfBuildResponse{Count: int64(n)}, err)
}

func (s nodeRecordsServer) TemplateBytes(ctx context.Context, r *connect.Request[sessionv1.TemplateBytesRequest]) (*connect.Response[sessionv1.TemplateBytesResponse], error) {
	bytes, err := s.records.TemplateBytes(ctx, callerOf(ctx).Name, sandbox.TenantID(r.Msg.Tenant))
	return answer(&sessionv1.TemplateBytesResponse{Bytes: bytes}, err)
}

func (s nodeRecordsServer) VolumeHomes(ctx context.Context, r *connect.Request[sessionv1.VolumeHomesRequest]) (*connect.Response[sessionv1.VolumeHomesResponse], error) {
	of := sandbox.BootPlace{SandboxID: r.Msg.Sandbox, Number: r.Msg.Number, Node: r.Msg.BootNode}
	all, err := s.records.VolumeHomes(ctx, callerOf(ctx).Name, of)
	res := &sessionv1.VolumeHomesResponse{}
	for _, v := range all {
		res.Homes = append(res.Homes, &sessionv1.VolumeHome{Id: v.ID, Tenant: string(v.Tenant), MaxBytes: v.MaxBytes, Node: v.Node, Address: v.Address})
	}
	return answer(res, err)
}

func (s nodeRecordsServer) KeepCopyKey(ctx context.Context, r *connect.Request[sessionv1.KeepCopyKeyRequest]) (*connect.Response[sessionv1.KeepCopyKeyResponse], error) {
	sealed, err := s.records.KeepCopyKey(ctx, r.Msg.Prefix, r.Msg.Sealed)
	return answer(&sessionv1.KeepCopyKeyResponse{Sealed: sealed}, err)
}

func (s nodeRecordsServer) PackScope(ctx context.Context, _ *connect.Request[sessionv1.PackScopeRequest]) (*connect.Response[sessionv1.PackScopeResponse], error) {
	scope, err := s.records.PackScope(ctx)
	return answer(&sessionv1.PackScopeResponse{Scope: scope}, err)
}

func (s nodeRecordsServer) BeginCopy(ctx context.Context, r *connect.Request[sessionv1.BeginCopyRequest]) (*connect.Response[sessionv1.BeginCopyResponse], error) {
	a, err := s.records.BeginCopy(ctx, callerOf(ctx).Name, sandbox.CopyRef{Snapshot: r.Msg.Snapshot, Prefix: r.Msg.Prefix})
	return answer(&sessionv1.BeginCopyResponse{Number: a.Number}, err)
}

func (s nodeRecordsServer) UsePacks(ctx context.Context, r *connect.Request[sessionv1.UsePacksRequest]) (*connect.Response[sessionv1.UsePacksResponse], error) {
	refused, err := s.records.UsePacks(ctx, callerOf(ctx).Name, sandbox.PackUse{
		CopyAttempt: toAttempt(r.Msg.Attempt), Packs: r.Msg.Packs, Shared: r.Msg.Shared, Life: r.Msg.Life.AsDuration(),
	})
	return answer(&sessionv1.UsePacksResponse{Refused: refused}, err)
}

func (s nodeRecordsServer) CompleteCopy(ctx context.Context, r *connect.Request[sessionv1.CompleteCopyRequest]) (*connect.Response[sessionv1.CompleteCopyResponse], error) {
	return answer(&sessionv1.CompleteCopyResponse{}, s.records.CompleteCopy(ctx, callerOf(ctx).Name, toAttempt(r.Msg.Attempt)))
}

func (s nodeRecordsServer) AbandonCopy(ctx context.Context, r *connect.Request[sessionv1.AbandonCopyRequest]) (*connect.Response[sessionv1.AbandonCopyResponse], error) {
	return answer(&sessionv1.AbandonCopyResponse{}, s.records.AbandonCopy(ctx, callerOf(ctx).Name, sandbox.AbandonedCopy{
		CopyRef: sandbox.CopyRef{Snapshot: r.Msg.Snapshot, Prefix: r.Msg.Prefix}, Packs: r.Msg.Packs,
	}))
}

func (s nodeRecordsServer) FindCopy(ctx context.Context, r *connect.Request[sessionv1.FindCopyRequest]) (*connect.Response[sessionv1.FindCopyResponse], error) {
	prefix, err := s.records.FindCopy(ctx, sandbox.TenantID(r.Msg.Tenant), r.Msg.Snapshot)
	return answer(&sessionv1.FindCopyResponse{Prefix: prefix}, err)
}
