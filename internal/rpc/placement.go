package rpc

import (
	"context"
	"net/http"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	schedulerv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/scheduler/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/scheduler/v1/schedulerv1connect"
)

// Placement is the scheduler in another process. Use NewPlacement.
type Placement struct {
	peer   *peer
	client schedulerv1connect.SchedulerServiceClient
}

var _ sandbox.Placement = (*Placement)(nil)

// NewPlacement returns the scheduler at an address. It does not connect yet.
func NewPlacement(address string, self Self) *Placement {
	p := newPeer(Scheduler, "", address, self)
	return &Placement{peer: p, client: schedulerv1connect.NewSchedulerServiceClient(p.http, p.base, p.options()...)}
}

// Close frees idle connections.
func (p *Placement) Close() { p.peer.close() }

// Place implements sandbox.Placement.
func (p *Placement) Place(ctx context.Context, needs sandbox.BootNeeds) ([]string, error) {
	r, err := call(ctx, p.peer, "", p.client.Place, &schedulerv1.PlaceRequest{
		Tenant: string(needs.Tenant), Image: needs.Image, Shape: fromShape(needs.Shape), Cpu: string(needs.CPU),
	})
	return r.GetNodes(), err
}

// PlaceElsewhere implements sandbox.Placement.
func (p *Placement) PlaceElsewhere(ctx context.Context, needs sandbox.BootNeeds, node string) (string, error) {
	r, err := call(ctx, p.peer, "", p.client.PlaceElsewhere, &schedulerv1.PlaceElsewhereRequest{
		Tenant: string(needs.Tenant), Image: needs.Image, Shape: fromShape(needs.Shape), Cpu: string(needs.CPU), Node: node,
	})
	return r.GetNode(), err
}

// Alive returns Unavailable when the scheduler does not answer.
func (p *Placement) Alive(ctx context.Context) error { return p.peer.alive(ctx) }

// SchedulerService serves a scheduler to the session-manager.
func SchedulerService(p sandbox.Placement) Service {
	return Service{Name: schedulerv1connect.SchedulerServiceName, handler: func(o ...connect.HandlerOption) (string, http.Handler) {
		return schedulerv1connect.NewSchedulerServiceHandler(schedulerServer{p}, o...)
	}}
}

type schedulerServer struct{ p sandbox.Placement }

func (s schedulerServer) Place(ctx context.Context, r *connect.Request[schedulerv1.PlaceRequest]) (*connect.Response[schedulerv1.PlaceResponse], error) {
	nodes, err := s.p.Place(ctx, sandbox.BootNeeds{
		Tenant: sandbox.TenantID(r.Msg.Tenant), Image: r.Msg.Image, Shape: toShape(r.Msg.Shape), CPU: sandbox.CPUFeatures(r.Msg.Cpu),
	})
	return answer(&schedulerv1.PlaceResponse{Nodes: nodes}, err)
}

func (s schedulerServer) PlaceElsewhere(ctx context.Context, r *connect.Request[schedulerv1.PlaceElsewhereRequest]) (*connect.Response[schedulerv1.PlaceElsewhereResponse], error) {
	node, err := s.p.PlaceElsewhere(ctx, sandbox.BootNeeds{
		Tenant: sandbox.TenantID(r.Msg.Tenant), Image: r.Msg.Image, Shape: toShape(r.Msg.Shape), CPU: sandbox.CPUFeatures(r.Msg.Cpu),
	}, r.Msg.Node)
	return answer(&schedulerv1.PlaceElsewhereResponse{Node: node}, err)
}
