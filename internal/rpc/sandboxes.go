package rpc

import (
	"context"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/cloud-sandbox/cloud-sandbox"
	sessionv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/session/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/session/v1/sessionv1connect"
)

// Create implements sandbox.Sandboxes.
func (s *Sandboxes) Create(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest) (sandbox.Sandbox, error) {
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.Create, &sessionv1.CreateRequest{Wanted: fromCreate(req)})
	return toSandbox(r.GetSandbox()), err
}

// Ensure implements sandbox.Sandboxes.
func (s *Sandboxes) Ensure(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest) (sandbox.Sandbox, bool, error) {
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.Ensure, &sessionv1.EnsureRequest{Wanted: fromCreate(req)})
	return toSandbox(r.GetSandbox()), r.GetCreated(), err
}

// Get implements sandbox.Sandboxes.
func (s *Sandboxes) Get(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.Get, &sessionv1.GetRequest{Sandbox: idOrName})
	return toSandbox(r.GetSandbox()), err
}

// List implements sandbox.Sandboxes.
func (s *Sandboxes) List(ctx context.Context, tenant sandbox.TenantID, query sandbox.ListQuery) (sandbox.Page, error) {
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.List, fromQuery(query))
	if err != nil {
		return sandbox.Page{}, err
	}
	return toPage(r), nil
}

// Settled implements sandbox.Sandboxes.
func (s *Sandboxes) Settled(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.Settled, &sessionv1.SettledRequest{Sandbox: idOrName})
	return toSandbox(r.GetSandbox()), err
}

// SetTimeout implements sandbox.Sandboxes.
func (s *Sandboxes) SetTimeout(ctx context.Context, tenant sandbox.TenantID, idOrName string, timeout time.Duration) (sandbox.Sandbox, error) {
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.SetTimeout, &sessionv1.SetTimeoutRequest{Sandbox: idOrName, Timeout: durationpb.New(timeout)})
	return toSandbox(r.GetSandbox()), err
}

// RunFor implements sandbox.Sandboxes.
func (s *Sandboxes) RunFor(ctx context.Context, tenant sandbox.TenantID, idOrName string, timeout time.Duration) (sandbox.Sandbox, error) {
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.SetTimeout, &sessionv1.SetTimeoutRequest{Sandbox: idOrName, Timeout: durationpb.New(timeout), ThisRun: true})
	return toSandbox(r.GetSandbox()), err
}

// Update implements sandbox.Sandboxes.
func (s *Sandboxes) Update(ctx context.Context, tenant sandbox.TenantID, idOrName string, change sandbox.Change) (sandbox.Sandbox, error) {
	req := fromChange(change)
	req.Sandbox = idOrName
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.Update, req)
	return toSandbox(r.GetSandbox()), err
}

// Touch implements sandbox.Sandboxes.
func (s *Sandboxes) Touch(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.Touch, &sessionv1.TouchRequest{Sandbox: idOrName})
	return toSandbox(r.GetSandbox()), err
}

// SecretChanged implements sandbox.Sandboxes.
func (s *Sandboxes) SecretChanged(ctx context.Context, tenant sandbox.TenantID, name string) error {
	_, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.SecretChanged, &sessionv1.SecretChangedRequest{Name: name})
	return err
}

// Used implements sandbox.Sandboxes.
func (s *Sandboxes) Used(ctx context.Context, uses []sandbox.Use) error {
	req := &sessionv1.UsedRequest{}
	for _, u := range uses {
		req.Uses = append(req.Uses, &sessionv1.Use{SandboxId: u.SandboxID, Output: u.Output})
	}
	_, err := lead(ctx, s, "", sessionv1connect.SessionServiceClient.Used, req)
	return err
}

// End implements sandbox.Sandboxes.
func (s *Sandboxes) End(ctx context.Context, tenant sandbox.TenantID, idOrName string, cause sandbox.Cause) (sandbox.Sandbox, error) {
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.End, &sessionv1.EndRequest{Sandbox: idOrName, Cause: string(cause)})
	return toSandbox(r.GetSandbox()), err
}

// Counts implements sandbox.Sandboxes.
func (s *Sandboxes) Counts(ctx context.Context, tenant sandbox.TenantID) (map[sandbox.State]int, error) {
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.Counts, &sessionv1.CountsRequest{})
	if err != nil {
		return nil, err
	}
	counts := map[sandbox.State]int{}
	for state, n := range r.ByState {
		counts[sandbox.State(state)] = int(n)
	}
	return counts, nil
}

// Idle implements sandbox.Sandboxes.
func (s *Sandboxes) Idle(ctx context.Context, tenant sandbox.TenantID) (int, error) {
	r, err := lead(ctx, s, tenant, sessionv1connect.SessionServiceClient.Idle, &sessionv1.IdleRequest{})
	return int(r.GetCount()), err
}

// BootEnded implements sandbox.BootEnds. A Node reports only its own Boots: the name in
// e is Self's.
func (s *Sandboxes) BootEnded(ctx context.Context, e sandbox.BootEnd) error {
	_, err := lead(ctx, s, "", sessionv1connect.SessionServiceClient.BootEnded, fromEnd(e))
	return err
}

// NodeEnded implements sandbox.BootEnds. The Node is Self's.
func (s *Sandboxes) NodeEnded(ctx context.Context, _, holder string) (int, error) {
	r, err := lead(ctx, s, "", sessionv1connect.SessionServiceClient.NodeEnded, &sessionv1.NodeEndedRequest{Holder: holder})
	return int(r.GetCount()), err
}

// Manager is implemented by session managers.
type Manager interface {
	sandbox.Sandboxes
	sandbox.BootEnds
}

// SessionService serves a session manager to gateways and Nodes.
func SessionService(m Manager) Service {
	return Service{
		Name: sessionv1connect.SessionServiceName,
		handler: func(o ...connect.HandlerOption) (string, http.Handler) {
			return sessionv1connect.NewSessionServiceHandler(sessionServer{m}, o...)
		},
		carried: sessionServer{m}.transfers(),
	}
}

type sessionServer struct{ m Manager }

// tenant returns the Tenant of a call.
func tenant(ctx context.Context) (sandbox.TenantID, error) {
	c := callerOf(ctx)
	if c.Tenant == "" {
		return "", sandbox.Errorf(sandbox.Denied, "the call is for no tenant")
	}
	return c.Tenant, nil
}

// answer makes a response from a result or an error.
func answer[Res any](res *Res, err error) (*connect.Response[Res], error) {
	if err != nil {
		return nil, internal(err)
	}
	return connect.NewResponse(res), nil
}

func (s sessionServer) Create(ctx context.Context, r *connect.Request[sessionv1.CreateRequest]) (*connect.Response[sessionv1.CreateResponse], error) {
	t, err := tenant(ctx)
	if err != nil {
		return nil, internal(err)
	}
	sb, err := s.m.Create(ctx, t, toCreate(r.Msg.Wanted))
	return answer(&sessionv1.CreateResponse{Sandbox: fromSandbox(sb)}, err)
}

func (s sessionServer) Ensure(ctx context.Context, r *connect.Request[sessionv1.EnsureRequest]) (*connect.Response[sessionv1.EnsureResponse], error) {
	t, err := tenant(ctx)
	if err != nil {
		return nil, internal(err)
	}
	sb, created, err := s.m.Ensure(ctx, t, toCreate(r.Msg.Wanted))
	return answer(&sessionv1.EnsureResponse{Sandbox: fromSandbox(sb), Created: created}, err)
}

func (s sessionServer) Get(ctx context.Context, r *connect.Request[sessionv1.GetRequest]) (*connect.Response[sessionv1.GetResponse], error) {
	t, err := tenant(ctx)
	if err != nil {
		return nil, internal(err)
	}
	sb, err := s.m.Get(ctx, t, r.Msg.Sandbox)
	return answer(&sessionv1.GetResponse{Sandbox: fromSandbox(sb)}, err)
}

func (s sessionServer) List(ctx context.Context, r *connect.Request[sessionv1.ListRequest]) (*connect.Response[sessionv1.ListResponse], error) {
	t, err := tenant(ctx)
	if err != nil {
		return nil, internal(err)
	}
	page, err := s.m.List(ctx, t, toQuery(r.Msg))
	return answer(fromPage(page), err)
}

func (s sessionServer) SetTimeout(ctx context.Context, r *connect.Request[sessionv1.SetTimeoutRequest]) (*connect.Response[sessionv1.SetTimeoutResponse], error) {
	t, err := tenant(ctx)
	if err != nil {
		return nil, internal(err)
	}
	set := s.m.SetTimeout
	if r.Msg.ThisRun {
		set = s.m.RunFor
	}
	sb, err := set(ctx, t, r.Msg.Sandbox, r.Msg.Timeout.AsDuration())
	return answer(&sessionv1.SetTimeoutResponse{Sandbox: fromSandbox(sb)}, err)
}

func (s sessionServer) Update(ctx context.Context, r *connect.Request[sessionv1.UpdateRequest]) (*connect.Response[sessionv1.UpdateResponse], error) {
	t, err := tenant(ctx)
	if err != nil {
		return nil, internal(err)
	}
	sb, err := s.m.Update(ctx, t, r.Msg.Sandbox, toChange(r.Msg))
	return answer(&sessionv1.UpdateResponse{Sandbox: fromSandbox(sb)}, err)
}

func (s sessionServer) Settled(ctx context.Context, r *connect.Request[sessionv1.SettledRequest]) (*connect.Response[sessionv1.SettledResponse], error) {
	t, err := tenant(ctx)
	if err != nil {
		return nil, internal(err)
	}
	sb, err := s.m.Settled(ctx, t, r.Msg.Sandbox)
	return answer(&sessionv1.SettledResponse{Sandbox: fromSandbox(sb)}, err)
}

func (s sessionServer) Touch(ctx context.Context, r *connect.Request[sessionv1.TouchRequest]) (*connect.Response[sessionv1.TouchResponse], error) {
	t, err := tenant(ctx)
	if err != nil {
		return nil, internal(err)
	}
	sb, err := s.m.Touch(ctx, t, r.Msg.Sandbox)
	return answer(&sessionv1.TouchResponse{Sandbox: fromSandbox(sb)}, err)
}

func (s sessionServer) End(ctx context.Context, r *connect.Request[sessionv1.EndRequest]) (*connect.Response[sessionv1.EndResponse], error) {
	t, err := tenant(ctx)
	if err != nil {
		return nil, internal(err)
	}
	sb, err := s.m.End(ctx, t, r.Msg.Sandbox, sandbox.Cause(r.Msg.Cause))
	return answer(&sessionv1.EndResponse{Sandbox: fromSandbox(sb)}, err)
}

func (s sessionServer) Counts(ctx context.Context, _ *connect.Request[sessionv1.CountsRequest]) (*connect.Response[sessionv1.CountsResponse], error) {
	t, err := tenant(ctx)
	if err != nil {
		return nil, internal(err)
	}
	counts, err := s.m.Counts(ctx, t)
	r := &sessionv1.CountsResponse{ByState: map[string]int64{}}
	for state, n := range counts {
		r.ByState[string(state)] = int64(n)
	}
	return answer(r, err)
}

func (s sessionServer) Idle(ctx context.Context, _ *connect.Request[sessionv1.IdleRequest]) (*connect.Response[sessionv1.IdleResponse], error) {
	t, err := tenant(ctx)
	if err != nil {
		return nil, internal(err)
	}
	n, err := s.m.Idle(ctx, t)
	return answer(&sessionv1.IdleResponse{Count: int64(n)}, err)
}

func (s sessionServer) SecretChanged(ctx context.Context, r *connect.Request[sessionv1.SecretChangedRequest]) (*connect.Response[sessionv1.SecretChangedResponse], error) {
	t, err := tenant(ctx)
	if err != nil {
		return nil, internal(err)
	}
	return answer(&sessionv1.SecretChangedResponse{}, s.m.SecretChanged(ctx, t, r.Msg.Name))
}

func (s sessionServer) Used(ctx context.Context, r *connect.Request[sessionv1.UsedRequest]) (*connect.Response[sessionv1.UsedResponse], error) {
	uses := make([]sandbox.Use, 0, len(r.Msg.Uses))
	for _, u := range r.Msg.Uses {
		uses = append(uses, sandbox.Use{SandboxID: u.SandboxId, Output: u.Output})
	}
	return answer(&sessionv1.UsedResponse{}, s.m.Used(ctx, uses))
}

func (s sessionServer) BootEnded(ctx context.Context, r *connect.Request[sessionv1.BootEndedRequest]) (*connect.Response[sessionv1.BootEndedResponse], error) {
	e := toEnd(r.Msg)
	e.Node = callerOf(ctx).Name // the manager ignores a report about another Node's Boot
	return answer(&sessionv1.BootEndedResponse{}, s.m.BootEnded(ctx, e))
}

func (s sessionServer) NodeEnded(ctx context.Context, r *connect.Request[sessionv1.NodeEndedRequest]) (*connect.Response[sessionv1.NodeEndedResponse], error) {
	n, err := s.m.NodeEnded(ctx, callerOf(ctx).Name, r.Msg.Holder)
	return answer(&sessionv1.NodeEndedResponse{Count: int64(n)}, err)
}
