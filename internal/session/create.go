package session

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// Create implements sandbox.Sandboxes. When ctx ends first, only the Sandbox's
// TerminationRecord is left.
func (m *Manager) Create(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest) (sandbox.Sandbox, error) {
	return m.createAs(ctx, tenant, req, func(*sandbox.Sandbox) {})
}

// createAs is Create; as completes the record before it is stored.
func (m *Manager) createAs(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest, as func(*sandbox.Sandbox)) (sandbox.Sandbox, error) {
	began := time.Now()
	sb, pooled, err := m.create(ctx, tenant, req, as)
	took := time.Since(began)
	m.cfg.Created(pooled, err, took)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	m.log.InfoContext(ctx, "a sandbox runs", telemetry.KeySandbox, sb.ID, telemetry.KeyTenant, sb.Tenant, telemetry.KeyNode, sb.Boot.Node,
		telemetry.KeyBoot, sb.Boot.ID, "pooled", pooled, telemetry.KeyDuration, float64(took.Microseconds())/1000)
	return sb, nil
}

func (m *Manager) create(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest, as func(*sandbox.Sandbox)) (_ sandbox.Sandbox, pooled bool, _ error) {
	sb, nodes, quota, err := m.plan(ctx, tenant, req)
	if err != nil {
		return sandbox.Sandbox{}, false, sandbox.NotBegun(err)
	}
	as(&sb)
	client := ctx
	ctx, c := m.beginCreation(ctx, sb.ID)
	defer m.endCreation(sb.ID, c)

	sb.Boot.Node = nodes[0]
	// The audit entry of the request follows. A Boot without a record is stopped.
	if sb, err = m.store.InsertSandbox(sandbox.CommitLater(ctx), sb); err != nil {
		return sandbox.Sandbox{}, false, sandbox.NotBegun(c.explain(client, err))
	}
	running, pooled, err := m.startInTurn(ctx, sb, nodes, quota)
	if err != nil {
		m.undo(ctx, sb, c.cause(err))
		return sandbox.Sandbox{}, false, c.explain(client, err)
	}
	m.track(running)
	return running, pooled, nil
}

// plan checks a request and returns the record of the new Sandbox, the Nodes to try, and
// the Tenant's Quota.
func (m *Manager) plan(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest) (_ sandbox.Sandbox, nodes []string, quota sandbox.Quota, _ error) {
	if err := req.Check(); err != nil {
		return sandbox.Sandbox{}, nil, quota, err
	}
	if err := m.checkSecrets(ctx, tenant, req.Secrets); err != nil {
		return sandbox.Sandbox{}, nil, quota, err
	}
	sb := m.recordOf(tenant, req)
	found, drop := func() destination { return destination{} }, func() {}
	if req.Snapshot == "" { // while the Store is read
		found, drop = m.seek(ctx, namedTemplate{tenant, sb.Template}, sb.Shape)
	}
	defer drop()
	quota, err := m.store.TenantQuota(ctx, tenant)
	if err != nil {
		return sandbox.Sandbox{}, nil, quota, err
	}
	if err := cmp.Or(quota.AdmitTimeout(req.Timeout), quota.AdmitBandwidth(req.Bandwidth)); err != nil {
		return sandbox.Sandbox{}, nil, quota, err
	}
	mounts, home, err := m.mount(ctx, tenant, req.Volumes)
	if err != nil {
		return sandbox.Sandbox{}, nil, quota, err
	}
	sb.Volumes = mounts
	if req.Snapshot != "" {
		sb, nodes, err := m.planFrom(ctx, sb, req)
		if err == nil {
			err = m.admitEgress(ctx, tenant, quota, sb.Network)
		}
		sb.Limits.Bandwidth = quota.BoundBandwidth(sb.Limits.Bandwidth)
		return sb, nodes, quota, err
	}
	if err := m.admitEgress(ctx, tenant, quota, sb.Network); err != nil {
		return sandbox.Sandbox{}, nil, quota, err
	}
	sb.Limits.Bandwidth = quota.BoundBandwidth(sb.Limits.Bandwidth)
	to := found()
	sb.Image, nodes = to.image, to.nodes
	if to.err == nil {
		nodes = m.nearHome(home, nodes)
	}
	return sb, nodes, quota, to.err
}

// planFrom completes the record of a Sandbox that starts from a Snapshot.
func (m *Manager) planFrom(ctx context.Context, sb sandbox.Sandbox, req sandbox.CreateRequest) (sandbox.Sandbox, []string, error) {
	snap, err := m.startingSnapshot(ctx, sb.Tenant, req.Snapshot)
	if err != nil {
		return sandbox.Sandbox{}, nil, err
	}
	sb.Snapshot, sb.Origin = snap.ID, snap.ID
	if snap.Layer != "" {
		m.touchLayer(ctx, snap)
	}
	if err := m.mountAgain(ctx, snap); err != nil {
		return sandbox.Sandbox{}, nil, err
	}
	sb.Volumes = snap.Volumes
	sb.Template, sb.Image, sb.Shape, sb.Limits = snap.Template, snap.Image, snap.Shape, snap.Limits
	sb.Limits.Bandwidth = orElse(req.Bandwidth, snap.Limits.Bandwidth)
	sb.Network, sb.User, sb.Cwd = orElse(req.Network, snap.Network), orElse(req.User, snap.User), orElse(req.Cwd, snap.Cwd)
	if req.Env == nil {
		sb.Env = snap.Env
	}
	sb.Timeline = max(snap.Timeline, sb.Timeline)
	return sb, []string{snap.Node}, nil
}

// recordOf returns the record of a requested Sandbox, without its image.
func (m *Manager) recordOf(tenant sandbox.TenantID, req sandbox.CreateRequest) sandbox.Sandbox {
	sb := sandbox.Sandbox{
		ID:        cmp.Or(req.ID, sandbox.NewSandboxID()),
		Tenant:    tenant,
		Name:      req.Name,
		State:     sandbox.Starting,
		Template:  orElse(req.Template, "base"),
		Engine:    m.cfg.Engine,
		Shape:     orElse(req.Shape, sandbox.DefaultShape()),
		Network:   orElse(req.Network, m.cfg.Network),
		Ingress:   req.Ingress,
		Secrets:   req.Secrets,
		Metadata:  req.Metadata,
		Env:       req.Env,
		User:      req.User,
		Cwd:       req.Cwd,
		Revision:  1,
		Boot:      sandbox.Boot{ID: sandbox.NewBootID(), Number: 1},
		CreatedAt: now(),
		Timeout:   orElse(req.Timeout, sandbox.DefaultSessionTimeout),
		OnTimeout: orElse(req.OnTimeout, sandbox.OnTimeoutEnd),
		Timeline:  1,
		Snapshot:  req.Snapshot,

		IdleTimeout: req.IdleTimeout,
		StayPaused:  req.StayPaused,

		CheckpointEvery: req.CheckpointEvery,
	}
	sb.Limits = sb.Shape.Limits()
	sb.Limits.Bandwidth = req.Bandwidth
	// If the start hangs, this deadline ends the Starting State.
	sb.Deadline = sb.CreatedAt.Add(startLimit + sb.Timeout)
	return sb
}

func orElse[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// start starts sb on the first Node that accepts it, and records it running. quota is the
// Quota returned by plan.
func (m *Manager) start(ctx context.Context, sb sandbox.Sandbox, nodes []string, quota sandbox.Quota) (_ sandbox.Sandbox, pooled bool, _ error) {
	began := time.Now()
	if sb.Snapshot != "" {
		sb, started, release, err := m.startSaved(ctx, sb)
		defer release()
		if err != nil {
			return sb, false, cannotStart(sb, began, err)
		}
		running, err := m.recordRunning(ctx, sb, quota, started)
		return running, started.Pooled, err
	}
	var refused error
	for _, node := range nodes {
		if node != sb.Boot.Node {
			var err error
			nextBoot(&sb, node)
			if sb, err = m.store.UpdateSandbox(ctx, sb); err != nil {
				return sb, false, err
			}
		}
		started, err := m.startBoot(ctx, sb)
		if err == nil {
			running, err := m.recordRunning(ctx, sb, quota, started)
			return running, started.Pooled, err
		}
		refused = err
		if !errors.Is(err, sandbox.Exhausted) && !errors.Is(err, sandbox.Unavailable) {
			break
		}
	}
	return sb, false, refused
}

func (m *Manager) startRequest(ctx context.Context, sb sandbox.Sandbox) (sandbox.StartRequest, error) {
	b, err := m.binding(ctx, sb)
	if err == nil {
		err = m.checkHomes(b.Volumes)
	}
	return sandbox.StartRequest{BootID: sb.Boot.ID, Image: sb.Image, Shape: sb.Shape, Binding: b, From: sb.Snapshot}, err
}

// binding returns the Binding for the Boot of sb.
func (m *Manager) binding(ctx context.Context, sb sandbox.Sandbox) (sandbox.Binding, error) {
	volumes, err := m.bindVolumes(ctx, sb)
	if err != nil {
		return sandbox.Binding{}, err
	}
	secrets, err := m.openSecrets(ctx, sb)
	token := m.cfg.AccessToken(sb.ID)
	if sb.Ingress.RulesOrClosed().OpenServices {
		token = ""
	}
	return sandbox.Binding{
		SandboxID:   sb.ID,
		BootNumber:  sb.Boot.Number,
		Tenant:      sb.Tenant,
		Template:    sb.Template,
		AccessToken: token,
		Env:         sb.Env,
		User:        sb.User,
		Cwd:         sb.Cwd,
		Network:     sb.Network.Enforced(),
		Limits:      sb.Limits,
		Timeline:    sb.Timeline,
		Revision:    sb.Revision,
		Secrets:     secrets,
		Volumes:     volumes,
	}, err
}

func (m *Manager) recordRunning(ctx context.Context, sb sandbox.Sandbox, quota sandbox.Quota, started sandbox.Started) (sandbox.Sandbox, error) {
	if err := sb.To(sandbox.Running); err != nil {
		return sb, err
	}
	sb.Boot.ID = started.BootID
	sb.StartedAt = now()
	sb.Start(quota, sb.StartedAt)
	if sb.Snapshot != "" {
		sb.SnapshotAt = sb.StartedAt
	}
	running, err := m.store.UpdateSandbox(sandbox.CommitLater(ctx), sb)
	switch {
	case isConflict(err):
		err = sandbox.Errorf(sandbox.Unavailable, "the sandbox ended while it started").WithCause(err)
	case errors.Is(err, sandbox.NotFound): // its commit did not wait for the disk
		err = sandbox.LostRecord()
	}
	if err != nil {
		return sb, err
	}
	return running, nil
}

// undo ends the Sandbox of a failed create. It need not know how far the create came: the
// Node lists the Boots of the Sandbox.
func (m *Manager) undo(ctx context.Context, sb sandbox.Sandbox, cause sandbox.Cause) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	if _, err := m.end(ctx, sb.ID, cause, nil); err != nil && !errors.Is(err, sandbox.NotFound) {
		m.log.WarnContext(ctx, "undoing a failed create failed; will retry", telemetry.KeySandbox, sb.ID, telemetry.KeyError, err)
		m.mendSoon()
	}
}

// A creation is a create in progress in this process.
type creation struct {
	cancel context.CancelFunc
	done   chan struct{}
	began  time.Time

	// Guarded by Manager.mu.
	endedFor sandbox.Cause // cause of an end requested meanwhile; empty: none
	m        *Manager
}

func (m *Manager) beginCreation(ctx context.Context, id string) (context.Context, *creation) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	c := &creation{cancel: cancel, done: make(chan struct{}), began: time.Now(), m: m}
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

// isCreating reports whether a create of the Sandbox is in progress in this process.
func (m *Manager) isCreating(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.creating[id] != nil
}

// abandon cancels a create in progress and waits for its end. It reports whether this
// call was the first to cancel it; false also when no create is in progress.
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

// cause returns the Cause of a Sandbox whose create failed with err. A create that was
// refused with a retry delay, for lack of capacity or a long queue, ends with
// CauseRefused and not CauseEngineLost.
func (c *creation) cause(err error) sandbox.Cause {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.endedFor != "" {
		return c.endedFor
	}
	var refused *sandbox.Error
	if errors.As(err, &refused) && refused.RetryAfter > 0 && (refused.Code == sandbox.Unavailable || refused.Code == sandbox.Exhausted) {
		return sandbox.CauseRefused
	}
	return sandbox.CauseEngineLost
}

// explain returns the client's error for a create that failed with err.
func (c *creation) explain(client context.Context, err error) error {
	c.m.mu.Lock()
	ended := c.endedFor != ""
	c.m.mu.Unlock()
	switch {
	case client.Err() != nil:
		return client.Err()
	case ended:
		return sandbox.Errorf(sandbox.Unavailable, "the sandbox ended while it started").WithCause(err)
	case late(err):
		return sandbox.Errorf(sandbox.Timeout, "the sandbox did not start within %d seconds", int(time.Since(c.began).Seconds())).WithCause(err)
	}
	return err
}
