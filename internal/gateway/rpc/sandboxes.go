package rpc

import (
	"context"
	"math"
	"time"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	sandboxv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// Bounds of a list's filter.
const (
	maxCursor = 512 // bytes of what an earlier page gave
	maxStates = 8
)

// required returns the ID or name of a Sandbox; Invalid when there is none.
func required(idOrName string) (string, error) {
	if idOrName == "" {
		return "", sandbox.Errorf(sandbox.Invalid, "sandbox_id is missing")
	}
	return idOrName, nil
}

// seconds is a length of time that was given: a number of seconds, more than 0.
func seconds(name string, n float64) (time.Duration, error) {
	if !(n > 0) || n > math.MaxInt32 {
		return 0, sandbox.Errorf(sandbox.Invalid, "%s must be a number of seconds, more than 0 and at most %d, not %g", name, math.MaxInt32, n)
	}
	return time.Duration(max(n*float64(time.Second), 1)), nil
}

// secondsOrNone is a length of time of which zero means none.
func secondsOrNone(name string, n float64) (time.Duration, error) {
	if n == 0 {
		return 0, nil
	}
	return seconds(name, n)
}

// secondsOr is what an absent length of time is otherwise.
func secondsOr(name string, n *float64, otherwise time.Duration) (time.Duration, error) {
	if n == nil {
		return otherwise, nil
	}
	return seconds(name, *n)
}

// bytesPerSecond turns Mbit/s into bytes a second.
func bytesPerSecond(mbps *int32) *int64 {
	if mbps == nil {
		return nil
	}
	return new(int64(*mbps) * sandbox.Megabit)
}

// shapeOf checks resources and completes them with those of DefaultShape.
func shapeOf(r *sandboxv1.Resources) (sandbox.Shape, error) {
	s := sandbox.DefaultShape()
	if r.Cpus != nil {
		s.CPUs = *r.Cpus
	}
	for _, f := range []struct{ from, to *int64 }{
		{bytesOf(r.MemoryMb), &s.MemoryBytes}, {bytesOf(r.DiskMb), &s.DiskBytes}, {wide(r.Pids), &s.Pids},
	} {
		if f.from != nil {
			*f.to = *f.from
		}
	}
	return s, s.Check()
}

func createOf(m *sandboxv1.CreateRequest) (req sandbox.CreateRequest, err error) {
	if m.IfExists != "" && m.IfExists != "fail" && m.IfExists != "return" {
		return req, sandbox.Errorf(sandbox.Invalid, `if_exists must be "fail" or "return"`)
	}
	req = sandbox.CreateRequest{
		Template: m.Template, Name: m.Name, Network: sandbox.NetworkPolicy(m.Network),
		Metadata: m.Metadata, Env: m.Env, User: m.User, Cwd: m.Cwd, Snapshot: m.SnapshotId,
		OnTimeout: sandbox.OnTimeout(m.OnTimeout), StayPaused: m.AutoResume != nil && !*m.AutoResume,
	}
	if req.Volumes, err = mountsOf(m.Volumes); err != nil {
		return req, err
	}
	if req.Timeout, err = secondsOr("timeout_seconds", m.TimeoutSeconds, sandbox.DefaultSessionTimeout); err != nil {
		return req, err
	}
	if req.IdleTimeout, err = secondsOrNone("idle_timeout_seconds", m.IdleTimeoutSeconds); err != nil {
		return req, err
	}
	if req.CheckpointEvery, err = secondsOrNone("checkpoint_every_seconds", m.CheckpointEverySeconds); err != nil {
		return req, err
	}
	if m.Resources != nil {
		if n := bytesPerSecond(m.Resources.BandwidthMbps); n != nil {
			req.Bandwidth = *n
		}
		if req.Shape, err = shapeOf(m.Resources); err != nil {
			return req, err
		}
	}
	return req, req.Check()
}

// Create implements the service.
func (a *API) Create(ctx context.Context, r *connect.Request[sandboxv1.CreateRequest]) (*connect.Response[sandboxv1.CreateResponse], error) {
	req, err := createOf(r.Msg)
	if err != nil {
		return nil, err
	}
	var sb sandbox.Sandbox
	created := true
	if r.Msg.IfExists == "return" {
		sb, created, err = a.Sandboxes.Ensure(ctx, tenantOf(ctx), req)
	} else {
		sb, err = a.Sandboxes.Create(ctx, tenantOf(ctx), req)
	}
	if err != nil {
		return nil, err
	}
	if created {
		a.Guests.Warm(ctx, sb)
	}
	return connect.NewResponse(&sandboxv1.CreateResponse{Sandbox: viewOf(sb), Created: created}), nil
}

// Get implements the service.
func (a *API) Get(ctx context.Context, r *connect.Request[sandboxv1.GetRequest]) (*connect.Response[sandboxv1.GetResponse], error) {
	id, err := required(r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	sb, err := a.Sandboxes.Get(ctx, tenantOf(ctx), id)
	return reply(id, &sandboxv1.GetResponse{Sandbox: viewOf(sb)}, err)
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
		v := viewOf(sb)
		if v.Ended != nil {
			v.Ended.OutputTail = ""
		}
		res.Sandboxes = append(res.Sandboxes, v)
	}
	return connect.NewResponse(res), nil
}

func queryOf(m *sandboxv1.ListRequest) (sandbox.ListQuery, error) {
	q := sandbox.ListQuery{Metadata: m.Metadata, Cursor: m.Cursor}
	if len(m.Cursor) > maxCursor {
		return q, sandbox.Errorf(sandbox.Invalid, "cursor is not one of an earlier page")
	}
	if m.Limit != nil {
		if q.Limit = int(*m.Limit); q.Limit < 1 || q.Limit > 100 {
			return q, sandbox.Errorf(sandbox.Invalid, "limit must be a whole number from 1 to 100")
		}
	}
	if len(m.States) > maxStates {
		return q, sandbox.Errorf(sandbox.Invalid, "name at most %d states", maxStates)
	}
	for _, name := range m.States {
		state := sandbox.State(name)
		if !state.Valid() {
			return q, sandbox.Errorf(sandbox.Invalid, "%.32q is not a state", name)
		}
		q.States = append(q.States, state)
	}
	return q, nil
}

// changeOf is what a message changes. A pair that is removed and set is Invalid.
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
		c.CPUs, c.MemoryBytes, c.DiskBytes, c.Pids = r.Cpus, bytesOf(r.MemoryMb), bytesOf(r.DiskMb), wide(r.Pids)
		c.Bandwidth = bytesPerSecond(r.BandwidthMbps)
	}
	var err error
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

// bytesOf turns MiB into bytes.
func bytesOf(mib *int32) *int64 {
	if mib == nil {
		return nil
	}
	return new(int64(*mib) << 20)
}

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
	sb, err := a.Sandboxes.Update(ctx, tenantOf(ctx), id, change)
	return reply(id, &sandboxv1.UpdateResponse{Sandbox: viewOf(sb)}, err)
}

// SetTimeout implements the service.
func (a *API) SetTimeout(ctx context.Context, r *connect.Request[sandboxv1.SetTimeoutRequest]) (*connect.Response[sandboxv1.SetTimeoutResponse], error) {
	id, err := required(r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	d, err := seconds("timeout_seconds", r.Msg.TimeoutSeconds)
	if err != nil || d > sandbox.MaxTimeout {
		return nil, sandbox.Errorf(sandbox.Invalid, "timeout_seconds must be more than 0 and at most %d", int(sandbox.MaxTimeout.Seconds()))
	}
	sb, err := a.Sandboxes.SetTimeout(ctx, tenantOf(ctx), id, d)
	return reply(id, &sandboxv1.SetTimeoutResponse{Sandbox: viewOf(sb)}, err)
}

// Touch implements the service.
func (a *API) Touch(ctx context.Context, r *connect.Request[sandboxv1.TouchRequest]) (*connect.Response[sandboxv1.TouchResponse], error) {
	id, err := required(r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	sb, err := a.Sandboxes.Touch(ctx, tenantOf(ctx), id)
	return reply(id, &sandboxv1.TouchResponse{Sandbox: viewOf(sb)}, err)
}

// End implements the service.
func (a *API) End(ctx context.Context, r *connect.Request[sandboxv1.EndRequest]) (*connect.Response[sandboxv1.EndResponse], error) {
	id, err := required(r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	sb, err := a.Executions.End(ctx, tenantOf(ctx), id)
	return reply(id, &sandboxv1.EndResponse{Sandbox: viewOf(sb)}, err)
}

// reply is msg, or the error about a Sandbox in its place.
func reply[T any](id string, msg *T, err error) (*connect.Response[T], error) {
	if err != nil {
		return nil, execution.Absent(id, err)
	}
	return connect.NewResponse(msg), nil
}
