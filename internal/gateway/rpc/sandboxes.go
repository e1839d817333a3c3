package rpc

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	sandboxv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// required returns the ID or name of a Sandbox; Invalid when it is empty.
func required(idOrName string) (string, error) {
	if idOrName == "" {
		return "", sandbox.Errorf(sandbox.Invalid, "sandbox_id is missing")
	}
	return idOrName, nil
}

// seconds is a given duration: a number of seconds, more than 0.
func seconds(name string, n float64) (time.Duration, error) {
	d, ok := sandbox.Seconds(n)
	if !ok {
		return 0, sandbox.NotSeconds(name, fmt.Sprint(n))
	}
	return d, nil
}

// secondsOrNone is a duration whose zero means none.
func secondsOrNone(name string, n float64) (time.Duration, error) {
	if n == 0 {
		return 0, nil
	}
	return seconds(name, n)
}

// secondsOr is a duration; otherwise is the default.
func secondsOr(name string, n *float64, otherwise time.Duration) (time.Duration, error) {
	if n == nil {
		return otherwise, nil
	}
	return seconds(name, *n)
}

// resourcesOf are the Resources in a message.
func resourcesOf(m *sandboxv1.Resources) sandbox.Resources {
	return sandbox.Resources{
		Type: m.Type, CPUs: m.Cpus, MemoryMB: wide(m.MemoryMb), DiskMB: wide(m.DiskMb), Pids: wide(m.Pids), BandwidthMbps: wide(m.BandwidthMbps),
	}
}

// ingressOf is empty for no message.
func ingressOf(m *sandboxv1.Ports) (sandbox.Ingress, error) {
	if m == nil {
		return "", nil
	}
	return sandbox.PortRules(m.Private, numbers(m.Exceptions), m.Host, numbers(m.Tls))
}

func numbers(ports []uint32) []int64 {
	all := make([]int64, len(ports))
	for i, p := range ports {
		all[i] = int64(p)
	}
	return all
}

func secretUsesOf(all []*sandboxv1.SecretUse) (sandbox.SecretUses, error) {
	uses := make([]sandbox.SecretUse, len(all))
	for i, u := range all {
		uses[i] = sandbox.SecretUse{Secret: u.Name, Host: u.Host, Header: u.Header, Format: u.Format}
	}
	return sandbox.NamedSecretUses(uses)
}

func createOf(m *sandboxv1.CreateRequest) (req sandbox.CreateRequest, err error) {
	req = sandbox.CreateRequest{
		Template: m.Template, Name: m.Name, Network: sandbox.NetworkPolicy(m.Network),
		Metadata: m.Metadata, Env: m.Env, User: m.User, Cwd: m.Cwd, Snapshot: m.SnapshotId,
		OnTimeout: sandbox.OnTimeout(m.OnTimeout), StayPaused: m.AutoResume != nil && !*m.AutoResume,
	}
	if req.Volumes, err = mountsOf(m.Volumes); err != nil {
		return req, err
	}
	if req.Ingress, err = ingressOf(m.Ports); err != nil {
		return req, err
	}
	if req.Secrets, err = secretUsesOf(m.Secrets); err != nil {
		return req, err
	}
	if req.Timeout, err = secondsOr("timeout_seconds", m.TimeoutSeconds, 0); err != nil {
		return req, err
	}
	if req.IdleTimeout, err = secondsOrNone("idle_timeout_seconds", m.IdleTimeoutSeconds); err != nil {
		return req, err
	}
	if req.CheckpointEvery, err = secondsOrNone("checkpoint_every_seconds", m.CheckpointEverySeconds); err != nil {
		return req, err
	}
	if m.Resources != nil {
		if err = resourcesOf(m.Resources).Create(&req); err != nil {
			return req, err
		}
	}
	sandbox.SessionDefaults().Fill(&req)
	return req, nil
}

// Create implements the service.
func (a *API) Create(ctx context.Context, r *connect.Request[sandboxv1.CreateRequest]) (*connect.Response[sandboxv1.CreateResponse], error) {
	req, err := createOf(r.Msg)
	if err != nil {
		return nil, err
	}
	sb, created, err := rest.Create(ctx, a.Sandboxes, a.Lifecycle, a.Guests, tenantOf(ctx), req, sandbox.IfExists(r.Msg.IfExists))
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&sandboxv1.CreateResponse{Sandbox: viewOf(ctx, sb), Created: created}), nil
}

// Get implements the service.
func (a *API) Get(ctx context.Context, r *connect.Request[sandboxv1.GetRequest]) (*connect.Response[sandboxv1.GetResponse], error) {
	id, err := required(r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	sb, err := a.Sandboxes.Get(ctx, tenantOf(ctx), id)
	return reply(id, &sandboxv1.GetResponse{Sandbox: viewOf(ctx, sb)}, err)
}

// List implements the service.
func (a *API) List(ctx context.Context, r *connect.Request[sandboxv1.ListRequest]) (*connect.Response[sandboxv1.ListResponse], error) {
	q, err := queryOf(r.Msg)
	if err != nil {
		return nil, err
	}
	page, err := a.Sandboxes.List(ctx, tenantOf(ctx), q)
	if err != nil {
		return nil, err
	}
	res := &sandboxv1.ListResponse{NextCursor: page.Next}
	for _, sb := range page.Sandboxes {
		v := viewOf(ctx, sb)
		if v.Ended != nil {
			v.Ended.OutputTail = ""
		}
		res.Sandboxes = append(res.Sandboxes, v)
	}
	return connect.NewResponse(res), nil
}

func queryOf(m *sandboxv1.ListRequest) (sandbox.ListQuery, error) {
	q := sandbox.ListQuery{Metadata: m.Metadata, Cursor: m.Cursor}
	if m.Limit != nil {
		var err error
		if q.Limit, err = sandbox.PageLimit(int(*m.Limit), sandbox.MaxPage); err != nil {
			return q, err
		}
	}
	for _, name := range m.States {
		q.States = append(q.States, sandbox.State(name))
	}
	return q, q.Check()
}

// changeOf is the change in a message. A pair that is both removed and set is Invalid.
func changeOf(m *sandboxv1.UpdateRequest) (sandbox.Change, error) {
	c := sandbox.Change{
		Name: m.Name, Network: (*sandbox.NetworkPolicy)(m.Network), User: m.User, Cwd: m.Cwd, OnTimeout: (*sandbox.OnTimeout)(m.OnTimeout),
	}
	if m.AutoResume != nil {
		c.StayPaused = new(!*m.AutoResume)
	}
	if m.TimeoutSeconds != nil {
		d, err := seconds("timeout_seconds", *m.TimeoutSeconds)
		if err != nil {
			return c, err
		}
		c.Timeout = &d
	}
	for _, f := range []struct {
		name string
		from *float64
		to   **time.Duration
	}{{"idle_timeout_seconds", m.IdleTimeoutSeconds, &c.IdleTimeout}, {"checkpoint_every_seconds", m.CheckpointEverySeconds, &c.CheckpointEvery}} {
		if f.from == nil {
			continue
		}
		d, err := secondsOrNone(f.name, *f.from)
		if err != nil {
			return c, err
		}
		*f.to = &d
	}
	if r := m.Resources; r != nil {
		if err := resourcesOf(r).Change(&c); err != nil {
			return c, err
		}
	}
	var err error
	if m.Ports != nil {
		if c.Ingress, err = pointer(ingressOf(m.Ports)); err != nil {
			return c, err
		}
	}
	if m.Secrets != nil {
		if c.Secrets, err = pointer(secretUsesOf(m.Secrets.Uses)); err != nil {
			return c, err
		}
	}
	if c.Metadata, err = pairs("metadata", m.Metadata, m.RemoveMetadata); err != nil {
		return c, err
	}
	c.Env, err = pairs("env", m.Env, m.RemoveEnv)
	return c, err
}

func wide(n *int32) *int64 {
	if n == nil {
		return nil
	}
	return new(int64(*n))
}

// pointer returns the address of v, and err.
func pointer[T any](v T, err error) (*T, error) { return &v, err }

func pairs(what string, set map[string]string, remove []string) (map[string]*string, error) {
	if len(set)+len(remove) == 0 {
		return nil, nil
	}
	all := map[string]*string{}
	for k, v := range set {
		all[k] = &v
	}
	for _, k := range remove {
		if all[k] != nil {
			return nil, sandbox.Errorf(sandbox.Invalid, "%s both sets and removes %.64q", what, k)
		}
		all[k] = nil
	}
	return all, nil
}

// Update implements the service.
func (a *API) Update(ctx context.Context, r *connect.Request[sandboxv1.UpdateRequest]) (*connect.Response[sandboxv1.UpdateResponse], error) {
	id, err := required(r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	change, err := changeOf(r.Msg)
	if err != nil {
		return nil, err
	}
	sb, err := a.Updates.Update(ctx, tenantOf(ctx), id, change)
	return reply(id, &sandboxv1.UpdateResponse{Sandbox: viewOf(ctx, sb)}, err)
}

// SetTimeout implements the service.
func (a *API) SetTimeout(ctx context.Context, r *connect.Request[sandboxv1.SetTimeoutRequest]) (*connect.Response[sandboxv1.SetTimeoutResponse], error) {
	id, err := required(r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	d, ok := sandbox.Seconds(r.Msg.TimeoutSeconds)
	if !ok {
		return nil, sandbox.CheckTimeout(0) // which names the real maximum
	}
	sb, err := a.Updates.SetTimeout(ctx, tenantOf(ctx), id, d)
	return reply(id, &sandboxv1.SetTimeoutResponse{Sandbox: viewOf(ctx, sb)}, err)
}

// Touch implements the service.
func (a *API) Touch(ctx context.Context, r *connect.Request[sandboxv1.TouchRequest]) (*connect.Response[sandboxv1.TouchResponse], error) {
	id, err := required(r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	sb, err := a.Updates.Touch(ctx, tenantOf(ctx), id)
	return reply(id, &sandboxv1.TouchResponse{Sandbox: viewOf(ctx, sb)}, err)
}

// End implements the service.
func (a *API) End(ctx context.Context, r *connect.Request[sandboxv1.EndRequest]) (*connect.Response[sandboxv1.EndResponse], error) {
	id, err := required(r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	sb, err := a.Executions.End(ctx, tenantOf(ctx), id)
	return reply(id, &sandboxv1.EndResponse{Sandbox: viewOf(ctx, sb)}, err)
}

// reply is a response with msg, or the error about a Sandbox.
func reply[T any](id string, msg *T, err error) (*connect.Response[T], error) {
	if err != nil {
		return nil, execution.Absent(id, err)
	}
	return connect.NewResponse(msg), nil
}
