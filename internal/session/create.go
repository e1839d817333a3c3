package session

import (
	"context"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// Create implements sandbox.Sandboxes. When ctx ends first, nothing is left of
// the Sandbox but its Certificate.
func (m *Manager) Create(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest) (sandbox.Sandbox, error) {
	sb, err := m.plan(ctx, tenant, req)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	nodes, err := m.placement.Place(ctx, sb.Image, sb.Shape)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	if len(nodes) == 0 {
		return sandbox.Sandbox{}, sandbox.Errorf(sandbox.Exhausted, "no node has room")
	}
	client := ctx
	ctx, c := m.beginCreation(ctx, sb.ID)
	defer m.endCreation(sb.ID, c)

	sb.Boot.Node = nodes[0]
	if sb, err = m.store.InsertSandbox(ctx, sb); err != nil {
		return sandbox.Sandbox{}, c.explain(client, err)
	}
	running, err := m.start(ctx, sb, req, nodes)
	if err != nil {
		m.undo(ctx, sb, c.cause())
		return sandbox.Sandbox{}, c.explain(client, err)
	}
	m.alarm.set(running.Deadline)
	return running, nil
}

// plan checks a request and makes the record that it asks for.
func (m *Manager) plan(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest) (sandbox.Sandbox, error) {
	if err := req.Check(); err != nil {
		return sandbox.Sandbox{}, err
	}
	sb := sandbox.Sandbox{
		ID:        sandbox.NewSandboxID(),
		Tenant:    tenant,
		Name:      req.Name,
		State:     sandbox.Starting,
		Template:  orElse(req.Template, "base"),
		Engine:    m.cfg.Engine,
		Shape:     orElse(req.Shape, sandbox.DefaultShape()),
		Network:   orElse(req.Network, m.cfg.Network),
		Metadata:  req.Metadata,
		Env:       req.Env,
		Boot:      sandbox.Boot{ID: sandbox.NewBootID(), Number: 1},
		CreatedAt: now(),
		Timeout:   orElse(req.Timeout, sandbox.DefaultSessionTimeout),
		OnTimeout: sandbox.OnTimeoutEnd,
		Timeline:  1,
	}
	// While it starts, the deadline is the way out of that State.
	sb.Deadline = sb.CreatedAt.Add(startLimit + sb.Timeout)
	var err error
	sb.Image, err = m.images.Resolve(ctx, sb.Template)
	return sb, err
}

func orElse[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// start has the first Node that takes it start sb, and records it running.
func (m *Manager) start(ctx context.Context, sb sandbox.Sandbox, req sandbox.CreateRequest, nodes []string) (sandbox.Sandbox, error) {
	var refused error
	for i, node := range nodes {
		if i > 0 {
			// Another Node is another Boot: what the last one may still do
			// with the old number is void.
			var err error
			sb.Boot = sandbox.Boot{ID: sandbox.NewBootID(), Number: sb.Boot.Number + 1, Node: node}
			if sb, err = m.store.UpdateSandbox(ctx, sb); err != nil {
				return sb, err
			}
		}
		started, err := m.nodes.Start(ctx, node, m.startRequest(sb, req))
		if err == nil {
			return m.recordRunning(ctx, sb, started)
		}
		refused = err
		if !errors.Is(err, sandbox.Exhausted) && !errors.Is(err, sandbox.Unavailable) {
			break
		}
	}
	return sb, refused
}

func (m *Manager) startRequest(sb sandbox.Sandbox, req sandbox.CreateRequest) sandbox.StartRequest {
	return sandbox.StartRequest{
		BootID: sb.Boot.ID,
		Image:  sb.Image,
		Shape:  sb.Shape,
		Binding: sandbox.Binding{
			SandboxID:   sb.ID,
			BootNumber:  sb.Boot.Number,
			Tenant:      sb.Tenant,
			Template:    sb.Template,
			AccessToken: m.cfg.AccessToken(sb.ID),
			Env:         sb.Env,
			User:        req.User,
			Cwd:         req.Cwd,
			Network:     sb.Network,
			Pids:        sb.Shape.Pids,
			Timeline:    sb.Timeline,
		},
	}
}

func (m *Manager) recordRunning(ctx context.Context, sb sandbox.Sandbox, started sandbox.Started) (sandbox.Sandbox, error) {
	if err := sb.To(sandbox.Running); err != nil {
		return sb, err
	}
	sb.Boot.ID = started.BootID
	sb.StartedAt = now()
	sb.Deadline = sb.StartedAt.Add(sb.Timeout)
	running, err := m.store.UpdateSandbox(ctx, sb)
	if isConflict(err) {
		return sb, sandbox.Errorf(sandbox.Unavailable, "the sandbox ended while it started").WithCause(err)
	}
	return running, err
}

// undo ends what a failed create left. It needs no memory of how far the create
// came: Boots that name the Sandbox are found at their Node.
func (m *Manager) undo(ctx context.Context, sb sandbox.Sandbox, cause sandbox.Cause) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	if _, err := m.end(ctx, sb.ID, cause, nil); err != nil && !errors.Is(err, sandbox.NotFound) {
		m.log.Warn("undo of a create goes on later", telemetry.KeySandbox, sb.ID, telemetry.KeyError, err)
	}
}

// A creation is a create under way in this process.
type creation struct {
	cancel context.CancelFunc
	done   chan struct{}

	// Guarded by Manager.mu.
	endedFor sandbox.Cause // somebody ends the Sandbox meanwhile; empty: nobody
	m        *Manager
}

func (m *Manager) beginCreation(ctx context.Context, id string) (context.Context, *creation) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	c := &creation{cancel: cancel, done: make(chan struct{}), m: m}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.creating[id] = c
	return ctx, c
}

func (m *Manager) endCreation(id string, c *creation) {
	c.cancel()
	m.mu.Lock()
	delete(m.creating, id)
	m.mu.Unlock()
	close(c.done)
}

// isCreating reports whether a create of the Sandbox is under way here.
func (m *Manager) isCreating(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.creating[id] != nil
}

// abandon has a create under way give up and waits until it has. It reports
// whether this call, and not an earlier one, made it so; false also when there
// is no create under way.
func (m *Manager) abandon(ctx context.Context, id string, cause sandbox.Cause) (first bool, err error) {
	m.mu.Lock()
	c := m.creating[id]
	if c != nil && c.endedFor == "" {
		c.endedFor, first = cause, true
	}
	m.mu.Unlock()
	if c == nil {
		return false, nil
	}
	c.cancel()
	select {
	case <-c.done:
		return first, nil
	case <-ctx.Done():
		return first, ctx.Err()
	}
}

// cause is why a create that fails ends its Sandbox.
func (c *creation) cause() sandbox.Cause {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.endedFor != "" {
		return c.endedFor
	}
	return sandbox.CauseEngineLost
}

// explain returns what the client is told when a create fails with err.
func (c *creation) explain(client context.Context, err error) error {
	c.m.mu.Lock()
	ended := c.endedFor != ""
	c.m.mu.Unlock()
	switch {
	case client.Err() != nil:
		return client.Err()
	case ended:
		return sandbox.Errorf(sandbox.Unavailable, "the sandbox ended while it started").WithCause(err)
	case errors.Is(err, context.DeadlineExceeded):
		return sandbox.Errorf(sandbox.Timeout, "the sandbox did not start within %d seconds", int(startLimit/time.Second)).WithCause(err)
	}
	return err
}
