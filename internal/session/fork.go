package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// parallelForks bounds the concurrent starts of one Fork. The Node has its own queue.
const parallelForks = 8

// Fork implements sandbox.Sandboxes.
func (m *Manager) Fork(ctx context.Context, tenant sandbox.TenantID, idOrName string, req sandbox.ForkRequest) ([]sandbox.Forked, error) {
	if err := req.Check(); err != nil {
		return nil, err
	}
	sb, err := m.Get(ctx, tenant, idOrName)
	if err != nil {
		return nil, err
	}
	forks := make([]sandbox.Forked, req.Count)
	if err := m.madeForks(ctx, tenant, req, forks); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(forks, func(f sandbox.Forked) bool { return f.Sandbox.ID == "" }) {
		return forks, nil
	}
	snap, release, err := m.forkSource(ctx, sb.ID)
	if err != nil {
		return nil, m.whyNotSaved(ctx, sb.ID, err)
	}
	defer release()
	work := newGroupOf(parallelForks)
	for i := range forks {
		if forks[i].Sandbox.ID != "" {
			continue
		}
		work.do(func() error {
			forks[i].Sandbox, forks[i].Err = m.createAs(ctx, tenant, forkRequest(sb, snap, req, i), func(fork *sandbox.Sandbox) { fork.Origin = sb.Origin })
			return nil
		})
	}
	return forks, work.wait()
}

// forkSource returns the Snapshot that copies of a Sandbox start from. It takes a new
// Snapshot of a running Sandbox; a paused Sandbox already has one.
func (m *Manager) forkSource(ctx context.Context, id string) (_ sandbox.Snapshot, release func(), err error) {
	sb, done, err := m.move(ctx, id)
	if err != nil {
		return sandbox.Snapshot{}, nil, err
	}
	defer done()
	if sb.State == sandbox.Paused {
		snap, err := m.store.SnapshotByID(ctx, sb.Snapshot)
		return snap, m.hold(snap.ID), err
	}
	if err := runs(sb); err != nil {
		return sandbox.Snapshot{}, nil, err
	}
	saving, cancel := context.WithTimeout(context.WithoutCancel(ctx), pauseLimit)
	defer cancel()
	req := sandbox.SnapshotRequest{ID: sandbox.NewSnapshotID()}
	release = m.hold(req.ID)
	snap, err := m.saveRunning(saving, sb, "fork", req, false)
	if err != nil {
		release()
	}
	return snap, release, err
}

// madeForks fills in the copies that an earlier attempt of the same idempotent request
// made.
func (m *Manager) madeForks(ctx context.Context, tenant sandbox.TenantID, req sandbox.ForkRequest, forks []sandbox.Forked) error {
	if req.ID == "" {
		return nil
	}
	for i := range forks {
		sb, err := m.Get(ctx, tenant, forkID(req.ID, i))
		switch {
		case errors.Is(err, sandbox.NotFound):
		case err != nil:
			return err
		case sb.Live():
			forks[i].Sandbox = sb
		default:
			forks[i] = sandbox.Forked{Sandbox: sb, Err: sandbox.Errorf(sandbox.Conflict, "the fork %s, which the first of these requests made, has ended", sb.ID)}
		}
	}
	return nil
}

// forkID returns the ID of copy number i. It is derived from the request's ID, or fresh
// if that is empty.
func forkID(id string, i int) string {
	if id == "" {
		return sandbox.NewSandboxID()
	}
	return sandbox.SandboxIDOf(fmt.Sprintf("fork %d of %s", i, id))
}

// forkRequest returns the CreateRequest for copy number i of sb.
func forkRequest(sb sandbox.Sandbox, snap sandbox.Snapshot, req sandbox.ForkRequest, i int) sandbox.CreateRequest {
	create := sandbox.CreateRequest{
		ID: forkID(req.ID, i), Snapshot: snap.ID, Name: req.Name,
		Timeout: cmp.Or(req.Timeout, sb.Timeout), IdleTimeout: sb.IdleTimeout, OnTimeout: cmp.Or(req.OnTimeout, sb.OnTimeout), StayPaused: sb.StayPaused,
		CheckpointEvery: sb.CheckpointEvery,
		Network:         cmp.Or(req.Network, sb.Network), Ingress: sb.Ingress, Metadata: changed(sb.Metadata, req.Metadata),
		User: sb.User, Cwd: sb.Cwd, Env: changed(sb.Env, req.Env),
	}
	if req.Name != "" && req.Count > 1 {
		create.Name = fmt.Sprintf("%s-%d", req.Name, i+1)
	}
	switch {
	case req.Secrets != nil:
		create.Secrets = *req.Secrets
	case req.KeepSecrets:
		create.Secrets = sb.Secrets
	}
	if req.IdleTimeout != nil {
		create.IdleTimeout = *req.IdleTimeout
	}
	if req.StayPaused != nil {
		create.StayPaused = *req.StayPaused
	}
	return create
}

// changed returns a copy of m with the pairs of change set; a nil value removes its key.
func changed(m map[string]string, change map[string]*string) map[string]string {
	out := map[string]string{}
	maps.Copy(out, m)
	for k, v := range change {
		if v == nil {
			delete(out, k)
		} else {
			out[k] = *v
		}
	}
	return out
}
