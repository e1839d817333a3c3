package rpc

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	nodev1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/node/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/node/v1/nodev1connect"
)

// addressLife is how long a Node's address is cached.
const addressLife = 2 * time.Second

// Nodes calls the Nodes of an installation in their own processes, at the addresses in
// their records. Use NewNodes.
type Nodes struct {
	records func(context.Context) ([]sandbox.NodeRecord, error)
	peers   peers
	starts  peers // for Start: their connections end soon when the Node's machine is silent

	mu        sync.Mutex
	addresses map[string]string // by Node
	read      time.Time
}

var _ sandbox.Nodes = (*Nodes)(nil)

// NewNodes returns the Nodes in the list that records returns.
func NewNodes(records func(context.Context) ([]sandbox.NodeRecord, error), self Self) *Nodes {
	hasty := self
	hasty.unheard = startUnheard
	return &Nodes{records: records, peers: newPeers(self), starts: newPeers(hasty)}
}

// Close frees idle connections.
func (n *Nodes) Close() {
	n.peers.close()
	n.starts.close()
}

// of returns the peer of a Node.
func (n *Nodes) of(ctx context.Context, node string) (*peer, error) {
	return n.among(ctx, &n.peers, node)
}

func (n *Nodes) among(ctx context.Context, peers *peers, node string) (*peer, error) {
	address, fresh := n.known(node)
	if address == "" || !fresh {
		if err := n.refresh(ctx); err != nil && address == "" {
			return nil, err
		}
		address, _ = n.known(node)
	}
	if address == "" {
		return nil, sandbox.Errorf(sandbox.Unavailable, "no node %q", node)
	}
	return peers.at(node, address), nil
}

func (n *Nodes) known(node string) (address string, fresh bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.addresses[node], time.Since(n.read) < addressLife
}

func (n *Nodes) refresh(ctx context.Context) error {
	records, err := n.records(ctx)
	if err != nil {
		return err
	}
	addresses := map[string]string{}
	for _, r := range records {
		if CheckAddress(r.Address) == nil {
			addresses[r.Name] = r.Address
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addresses, n.read = addresses, time.Now()
	return nil
}

// ask makes one call to a Node.
func ask[Req, Res any](
	ctx context.Context, n *Nodes, node string, tenant sandbox.TenantID,
	method func(nodev1connect.NodeServiceClient, context.Context, *connect.Request[Req]) (*connect.Response[Res], error), msg *Req,
) (*Res, error) {
	return askAmong(ctx, n, &n.peers, node, tenant, method, msg)
}

func askAmong[Req, Res any](
	ctx context.Context, n *Nodes, peers *peers, node string, tenant sandbox.TenantID,
	method func(nodev1connect.NodeServiceClient, context.Context, *connect.Request[Req]) (*connect.Response[Res], error), msg *Req,
) (*Res, error) {
	p, err := n.among(ctx, peers, node)
	if err != nil {
		return nil, err
	}
	of := func(ctx context.Context, r *connect.Request[Req]) (*connect.Response[Res], error) {
		return method(p.node, ctx, r)
	}
	return call(ctx, p, tenant, of, msg)
}

// Start implements sandbox.Nodes.
func (n *Nodes) Start(ctx context.Context, node string, req sandbox.StartRequest) (sandbox.Started, error) {
	r, err := askAmong(ctx, n, &n.starts, node, req.Binding.Tenant, nodev1connect.NodeServiceClient.Start, fromStart(node, req))
	return sandbox.Started{BootID: r.GetBootId(), Pooled: r.GetPooled()}, err
}

// Update implements sandbox.Nodes.
func (n *Nodes) Update(ctx context.Context, node, bootID string, b sandbox.Binding) error {
	msg := &nodev1.UpdateRequest{Node: node, BootId: bootID, Binding: fromBinding(b)}
	_, err := ask(ctx, n, node, b.Tenant, nodev1connect.NodeServiceClient.Update, msg)
	return err
}

// Stop implements sandbox.Nodes.
func (n *Nodes) Stop(ctx context.Context, node, bootID string, grace time.Duration) error {
	msg := &nodev1.StopRequest{Node: node, BootId: bootID, Grace: fromDuration(grace)}
	_, err := ask(ctx, n, node, "", nodev1connect.NodeServiceClient.Stop, msg)
	return err
}

// Save implements sandbox.Nodes.
func (n *Nodes) Save(ctx context.Context, node string, r sandbox.SaveRequest) (sandbox.Saved, error) {
	m, err := ask(ctx, n, node, r.Boot.Tenant, nodev1connect.NodeServiceClient.Save, fromSave(node, r))
	return toSaved(m), err
}

// SaveFiles implements sandbox.Nodes.
func (n *Nodes) SaveFiles(ctx context.Context, node string, r sandbox.FilesRequest) (sandbox.Saved, error) {
	msg := &nodev1.SaveFilesRequest{Node: node, From: r.From, Image: r.Image, Shape: fromShape(r.Shape), Snapshot: r.Snapshot}
	m, err := ask(ctx, n, node, r.Tenant, nodev1connect.NodeServiceClient.SaveFiles, msg)
	return toSaved(m.GetSaved()), err
}

// FetchSaved implements sandbox.Nodes.
func (n *Nodes) FetchSaved(ctx context.Context, node string, r sandbox.FetchRequest) (sandbox.Saved, error) {
	msg := &nodev1.FetchSavedRequest{Node: node, From: r.From, Image: r.Image, Snapshot: r.Snapshot, Cpu: string(r.CPU)}
	m, err := ask(ctx, n, node, r.Tenant, nodev1connect.NodeServiceClient.FetchSaved, msg)
	return toSaved(m.GetSaved()), err
}

// Thaw implements sandbox.Nodes.
func (n *Nodes) Thaw(ctx context.Context, node string, boot sandbox.BootRef) error {
	msg := &nodev1.ThawRequest{Node: node, Boot: fromRef(boot)}
	_, err := ask(ctx, n, node, boot.Tenant, nodev1connect.NodeServiceClient.Thaw, msg)
	return err
}

// DeleteSaved implements sandbox.Nodes.
func (n *Nodes) DeleteSaved(ctx context.Context, node, snapshot string) error {
	msg := &nodev1.DeleteSavedRequest{Node: node, Snapshot: snapshot}
	_, err := ask(ctx, n, node, "", nodev1connect.NodeServiceClient.DeleteSaved, msg)
	return err
}

// ListSaved implements sandbox.Nodes.
func (n *Nodes) ListSaved(ctx context.Context, node string) ([]string, error) {
	r, err := ask(ctx, n, node, "", nodev1connect.NodeServiceClient.ListSaved, &nodev1.ListSavedRequest{Node: node})
	return r.GetSnapshots(), err
}

// Boots implements sandbox.Nodes.
func (n *Nodes) Boots(ctx context.Context, node string) ([]sandbox.BoundBoot, error) {
	r, err := ask(ctx, n, node, "", nodev1connect.NodeServiceClient.Boots, &nodev1.BootsRequest{Node: node})
	if err != nil {
		return nil, err
	}
	var all []sandbox.BoundBoot
	for _, b := range r.Boots {
		all = append(all, toBoot(b))
	}
	return all, nil
}

// Traffic implements sandbox.Nodes.
func (n *Nodes) Traffic(ctx context.Context, node string) ([]sandbox.BootTraffic, error) {
	r, err := ask(ctx, n, node, "", nodev1connect.NodeServiceClient.Traffic, &nodev1.TrafficRequest{Node: node})
	if err != nil {
		return nil, err
	}
	var all []sandbox.BootTraffic
	for _, b := range r.Boots {
		all = append(all, sandbox.BootTraffic{BootRef: toRef(b.Boot), Traffic: sandbox.Traffic{Sent: b.Sent, Received: b.Received, Refused: b.Refused}})
	}
	return all, nil
}

// NetworkLog implements sandbox.Nodes.
func (n *Nodes) NetworkLog(ctx context.Context, node string, of sandbox.BootRef) (sandbox.NetworkLog, error) {
	msg := &nodev1.NetworkLogRequest{Node: node, BootId: of.BootID, SandboxId: of.SandboxID, Number: of.Number}
	r, err := ask(ctx, n, node, of.Tenant, nodev1connect.NodeServiceClient.NetworkLog, msg)
	if err != nil {
		return sandbox.NetworkLog{}, err
	}
	return toNetworkLog(r), nil
}

// Usage implements sandbox.Nodes.
func (n *Nodes) Usage(ctx context.Context, node string, of sandbox.BootRef) (sandbox.Usage, error) {
	msg := &nodev1.UsageRequest{Node: node, Boot: fromRef(of)}
	r, err := ask(ctx, n, node, of.Tenant, nodev1connect.NodeServiceClient.Usage, msg)
	if err != nil {
		return sandbox.Usage{}, err
	}
	return toUsage(r), nil
}

// Stats implements sandbox.Nodes.
func (n *Nodes) Stats(ctx context.Context, node string) (sandbox.NodeStats, error) {
	r, err := ask(ctx, n, node, "", nodev1connect.NodeServiceClient.Stats, &nodev1.StatsRequest{Node: node})
	if err != nil {
		return sandbox.NodeStats{}, err
	}
	return toStats(r), nil
}

// Dial implements sandbox.Nodes.
func (n *Nodes) Dial(ctx context.Context, node string, to sandbox.BootRef, port uint16) (net.Conn, error) {
	p, err := n.of(ctx, node)
	if err != nil {
		return nil, err
	}
	return p.dialGuest(ctx, node, to, port)
}

// NodeService serves a Node to the session-manager and to gateways.
func NodeService(n sandbox.Nodes, homes sandbox.VolumeHomes) Service {
	return Service{
		Name: nodev1connect.NodeServiceName,
		handler: func(o ...connect.HandlerOption) (string, http.Handler) {
			return nodev1connect.NewNodeServiceHandler(nodeServer{n}, o...)
		},
		nodes:   n,
		homes:   homes,
		carried: nodeServer{n}.transfers(),
	}
}

type nodeServer struct{ n sandbox.Nodes }

// checkTenant checks that a call's binding or Boot belongs to the caller's Tenant.
func checkTenant(ctx context.Context, of interface{ GetTenant() string }) error {
	c := callerOf(ctx)
	if c.Tenant == "" || string(c.Tenant) != of.GetTenant() {
		return sandbox.Errorf(sandbox.Denied, "the call is for another tenant")
	}
	return nil
}

func (s nodeServer) Start(ctx context.Context, r *connect.Request[nodev1.StartRequest]) (*connect.Response[nodev1.StartResponse], error) {
	if err := checkTenant(ctx, r.Msg.Binding); err != nil {
		return nil, internal(err)
	}
	started, err := s.n.Start(ctx, r.Msg.Node, toStart(r.Msg))
	return answer(&nodev1.StartResponse{BootId: started.BootID, Pooled: started.Pooled}, err)
}

func (s nodeServer) Update(ctx context.Context, r *connect.Request[nodev1.UpdateRequest]) (*connect.Response[nodev1.UpdateResponse], error) {
	if err := checkTenant(ctx, r.Msg.Binding); err != nil {
		return nil, internal(err)
	}
	return answer(&nodev1.UpdateResponse{}, s.n.Update(ctx, r.Msg.Node, r.Msg.BootId, toBinding(r.Msg.Binding)))
}

func (s nodeServer) Stop(ctx context.Context, r *connect.Request[nodev1.StopRequest]) (*connect.Response[nodev1.StopResponse], error) {
	return answer(&nodev1.StopResponse{}, s.n.Stop(ctx, r.Msg.Node, r.Msg.BootId, r.Msg.Grace.AsDuration()))
}

func (s nodeServer) Save(ctx context.Context, r *connect.Request[nodev1.SaveRequest]) (*connect.Response[nodev1.SaveResponse], error) {
	if err := checkTenant(ctx, r.Msg.Boot); err != nil {
		return nil, internal(err)
	}
	saved, err := s.n.Save(ctx, r.Msg.Node, toSave(r.Msg))
	return answer(fromSaved(saved), err)
}

func (s nodeServer) SaveFiles(ctx context.Context, r *connect.Request[nodev1.SaveFilesRequest]) (*connect.Response[nodev1.SaveFilesResponse], error) {
	req := sandbox.FilesRequest{
		Tenant: callerOf(ctx).Tenant, From: r.Msg.From, Image: r.Msg.Image, Shape: toShape(r.Msg.Shape), Snapshot: r.Msg.Snapshot,
	}
	saved, err := s.n.SaveFiles(ctx, r.Msg.Node, req)
	return answer(&nodev1.SaveFilesResponse{Saved: fromSaved(saved)}, err)
}

func (s nodeServer) FetchSaved(ctx context.Context, r *connect.Request[nodev1.FetchSavedRequest]) (*connect.Response[nodev1.FetchSavedResponse], error) {
	req := sandbox.FetchRequest{Tenant: callerOf(ctx).Tenant, From: r.Msg.From, Image: r.Msg.Image, Snapshot: r.Msg.Snapshot, CPU: sandbox.CPUFeatures(r.Msg.Cpu)}
	saved, err := s.n.FetchSaved(ctx, r.Msg.Node, req)
	return answer(&nodev1.FetchSavedResponse{Saved: fromSaved(saved)}, err)
}

func (s nodeServer) Thaw(ctx context.Context, r *connect.Request[nodev1.ThawRequest]) (*connect.Response[nodev1.ThawResponse], error) {
	if err := checkTenant(ctx, r.Msg.Boot); err != nil {
		return nil, internal(err)
	}
	return answer(&nodev1.ThawResponse{}, s.n.Thaw(ctx, r.Msg.Node, toRef(r.Msg.Boot)))
}

func (s nodeServer) DeleteSaved(ctx context.Context, r *connect.Request[nodev1.DeleteSavedRequest]) (*connect.Response[nodev1.DeleteSavedResponse], error) {
	return answer(&nodev1.DeleteSavedResponse{}, s.n.DeleteSaved(ctx, r.Msg.Node, r.Msg.Snapshot))
}

func (s nodeServer) ListSaved(ctx context.Context, r *connect.Request[nodev1.ListSavedRequest]) (*connect.Response[nodev1.ListSavedResponse], error) {
	saved, err := s.n.ListSaved(ctx, r.Msg.Node)
	return answer(&nodev1.ListSavedResponse{Snapshots: saved}, err)
}

func (s nodeServer) Boots(ctx context.Context, r *connect.Request[nodev1.BootsRequest]) (*connect.Response[nodev1.BootsResponse], error) {
	boots, err := s.n.Boots(ctx, r.Msg.Node)
	res := &nodev1.BootsResponse{}
	for _, b := range boots {
		res.Boots = append(res.Boots, fromBoot(b))
	}
	return answer(res, err)
}

func (s nodeServer) Traffic(ctx context.Context, r *connect.Request[nodev1.TrafficRequest]) (*connect.Response[nodev1.TrafficResponse], error) {
	boots, err := s.n.Traffic(ctx, r.Msg.Node)
	res := &nodev1.TrafficResponse{}
	for _, b := range boots {
		res.Boots = append(res.Boots, &nodev1.BootTraffic{Boot: fromRef(b.BootRef), Sent: b.Sent, Received: b.Received, Refused: b.Refused})
	}
	return answer(res, err)
}

// NetworkLog takes the Tenant from the caller's token.
func (s nodeServer) NetworkLog(ctx context.Context, r *connect.Request[nodev1.NetworkLogRequest]) (*connect.Response[nodev1.NetworkLogResponse], error) {
	of := sandbox.BootRef{BootID: r.Msg.BootId, SandboxID: r.Msg.SandboxId, Number: r.Msg.Number, Tenant: callerOf(ctx).Tenant}
	log, err := s.n.NetworkLog(ctx, r.Msg.Node, of)
	return answer(fromNetworkLog(log), err)
}

func (s nodeServer) Usage(ctx context.Context, r *connect.Request[nodev1.UsageRequest]) (*connect.Response[nodev1.UsageResponse], error) {
	if err := checkTenant(ctx, r.Msg.Boot); err != nil {
		return nil, internal(err)
	}
	used, err := s.n.Usage(ctx, r.Msg.Node, toRef(r.Msg.Boot))
	return answer(fromUsage(used), err)
}

func (s nodeServer) Stats(ctx context.Context, r *connect.Request[nodev1.StatsRequest]) (*connect.Response[nodev1.StatsResponse], error) {
	stats, err := s.n.Stats(ctx, r.Msg.Node)
	return answer(fromStats(stats), err)
}
