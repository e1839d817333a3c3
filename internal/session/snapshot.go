package session

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// maxHistory bounds the Snapshots in one Sandbox's history.
	maxHistory = 1000
	// sweepPause is the time before a failed sweep is retried.
	sweepPause = 30 * time.Second
	// lossTime bounds the wait, after a failed save, for the report that the Boot
	// ended.
	lossTime = 3 * time.Second
	// lossLook is the interval of polling for that report.
	lossLook = 20 * time.Millisecond
)

// TakeSnapshot implements sandbox.Sandboxes.
func (m *Manager) TakeSnapshot(ctx context.Context, tenant sandbox.TenantID, idOrName string, req sandbox.SnapshotRequest) (sandbox.Snapshot, error) {
	if err := req.Check(); err != nil {
		return sandbox.Snapshot{}, err
	}
	if req.Layer != "" && m.cfg.LayerBytes == 0 {
		return sandbox.Snapshot{}, sandbox.Errorf(sandbox.Unsupported, "this server keeps no layers of builds")
	}
	sb, err := m.Get(ctx, tenant, idOrName)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	snap, err := m.takeSnapshot(ctx, tenant, sb.ID, req)
	return snap, m.whyNotSaved(ctx, sb.ID, err)
}

func (m *Manager) takeSnapshot(ctx context.Context, tenant sandbox.TenantID, id string, req sandbox.SnapshotRequest) (sandbox.Snapshot, error) {
	sb, done, err := m.move(ctx, id)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	defer done()
	if made, err := m.madeSnapshot(ctx, req.ID, func(s sandbox.Snapshot) bool { return s.SandboxID == sb.ID }); err != nil || made.ID != "" {
		return made, err
	}
	defer m.retainSoon(tenant)
	if sb.State == sandbox.Paused && req.Layer == "" {
		return m.keepSnapshot(ctx, sb, req.Name)
	}
	if err := runs(sb); err != nil {
		return sandbox.Snapshot{}, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pauseLimit)
	defer cancel()
	if !req.TakeName || req.Name == "" {
		return m.saveRunning(ctx, sb, "snapshot", req, true)
	}
	name := req.Name
	req.Name = "" // takeName sets the name once the Snapshot is ready
	snap, err := m.saveRunning(ctx, sb, "snapshot", req, true)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	return m.takeName(ctx, sb, snap, name)
}

// takeName gives a Snapshot of sb a name, and takes it from another Snapshot of sb. The
// caller holds sb by move.
func (m *Manager) takeName(ctx context.Context, sb sandbox.Sandbox, snap sandbox.Snapshot, name string) (sandbox.Snapshot, error) {
	for range tries(ctx) {
		before, err := m.named(ctx, sb, name)
		if err != nil {
			return sandbox.Snapshot{}, err
		}
		if before.ID != "" && before.ID != snap.ID {
			before.Name = ""
			if _, err := m.store.UpdateSnapshot(ctx, before); isConflict(err) {
				continue
			} else if err != nil {
				return sandbox.Snapshot{}, err
			}
		}
		if snap, err = m.store.SnapshotByID(ctx, snap.ID); err != nil {
			return sandbox.Snapshot{}, err
		}
		snap.Name = name
		if named, err := m.store.UpdateSnapshot(ctx, snap); !isConflict(err) {
			return named, err
		}
	}
	return sandbox.Snapshot{}, errRaced()
}

// madeSnapshot returns the Snapshot that an earlier attempt of the same idempotent
// request made, or one without an ID. A Snapshot for which ours returns false is a
// Conflict.
func (m *Manager) madeSnapshot(ctx context.Context, id string, ours func(sandbox.Snapshot) bool) (sandbox.Snapshot, error) {
	if id == "" {
		return sandbox.Snapshot{}, nil
	}
	snap, err := m.store.SnapshotByID(ctx, id)
	switch {
	case errors.Is(err, sandbox.NotFound):
		return sandbox.Snapshot{}, nil
	case err != nil:
		return sandbox.Snapshot{}, err
	case !ours(snap) || snap.State == sandbox.SnapshotDeleting:
		return sandbox.Snapshot{}, sandbox.Errorf(sandbox.Conflict, "the snapshot that the first of these requests made is gone")
	case snap.State == sandbox.SnapshotSaving: // its process died
		return sandbox.Snapshot{}, m.discard(ctx, snap, true)
	}
	return snap, nil
}

// keepSnapshot sets Kept on the Snapshot that a paused Sandbox is saved in.
func (m *Manager) keepSnapshot(ctx context.Context, sb sandbox.Sandbox, name string) (sandbox.Snapshot, error) {
	for range tries(ctx) {
		snap, err := m.store.SnapshotByID(ctx, sb.Snapshot)
		if err != nil {
			return sandbox.Snapshot{}, cannotStart(sb, time.Now(), err)
		}
		if snap.Kept && (name == "" || name == snap.Name) {
			return snap, nil
		}
		if snap.Kept && snap.Name != "" || snap.SandboxID != sb.ID {
			return sandbox.Snapshot{}, sandbox.Errorf(sandbox.Conflict, "the sandbox is paused in the snapshot %s already: give no other name", snap.ID)
		}
		snap.Kept, snap.Name = true, name
		kept, err := m.store.UpdateSnapshot(ctx, snap)
		if !isConflict(err) {
			return kept, err
		}
		if taken, lookErr := m.named(ctx, sb, name); lookErr != nil || taken.ID != "" && taken.ID != snap.ID {
			return sandbox.Snapshot{}, cmp.Or(lookErr, err)
		}
	}
	return sandbox.Snapshot{}, errRaced()
}

// saveRunning saves a Sandbox, which keeps running. operation names the save in
// metrics, such as "snapshot" or "fork". The caller holds the Sandbox by move.
func (m *Manager) saveRunning(ctx context.Context, sb sandbox.Sandbox, operation string, req sandbox.SnapshotRequest, kept bool) (sandbox.Snapshot, error) {
	began := time.Now()
	snap, release, err := m.beginSnapshot(ctx, sb, req, kept)
	if err != nil {
		if errors.Is(err, sandbox.ErrOverQuota) {
			m.observe(operation, err, began)
		}
		return sandbox.Snapshot{}, err
	}
	defer release()
	err = m.save(ctx, sb, snap, sandbox.SaveRequest{})
	m.observe(operation, err, began)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	// This becomes the Parent of its next Snapshot.
	_, err = m.change(ctx, sb.ID, func(s *sandbox.Sandbox) error {
		if s.Boot != sb.Boot || s.State != sandbox.Running {
			return notRunning(*s)
		}
		s.Snapshot, s.SnapshotAt = snap.ID, snap.CreatedAt
		return nil
	})
	if err != nil && !kept {
		return sandbox.Snapshot{}, err
	}
	return m.store.SnapshotByID(ctx, snap.ID)
}

// beginSnapshot records that sb is about to be saved. Until release is called, sweeps do
// not treat the record as a leftover of a crash.
func (m *Manager) beginSnapshot(ctx context.Context, sb sandbox.Sandbox, req sandbox.SnapshotRequest, kept bool) (_ sandbox.Snapshot, release func(), err error) {
	snap := sandbox.Snapshot{
		ID: cmp.Or(req.ID, sandbox.NewSnapshotID()), Tenant: sb.Tenant, SandboxID: sb.ID, Parent: sb.Snapshot, Name: req.Name, Kept: kept,
		State: sandbox.SnapshotSaving, CreatedAt: now(), Node: sb.Boot.Node, Memory: !req.FilesOnly,
		Template: sb.Template, Image: sb.Image, Shape: sb.Shape, Limits: sb.Limits,
		Network: sb.Network.Enforced(), Env: sb.Env, User: sb.User, Cwd: sb.Cwd, Timeline: sb.Timeline, Volumes: sb.Volumes,
	}
	if req.Layer != "" {
		snap.Layer, snap.UsedAt = req.Layer, snap.CreatedAt
	}
	release = m.hold(snap.ID)
	if snap, err = m.store.InsertSnapshot(ctx, snap); err != nil {
		release()
		return sandbox.Snapshot{}, nil, err
	}
	return snap, release, nil
}

// hold keeps sweeps from a Snapshot or Volume until release is called; release then asks
// for a sweep.
func (m *Manager) hold(snapshot string) (release func()) {
	unkeep := m.keep(snapshot)
	return func() {
		unkeep()
		m.sweepSoon()
	}
}

// keep is like hold, but its release does not request a sweep: the caller requests one
// itself if it is needed.
func (m *Manager) keep(snapshot string) (release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.keepLocked(snapshot)
}

// keepLocked is keep for a caller that holds m.mu.
func (m *Manager) keepLocked(snapshot string) (release func()) {
	m.held[snapshot]++
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.held[snapshot]--; m.held[snapshot] == 0 {
			delete(m.held, snapshot)
		}
	}
}

// keepFree is keep, unless one is held already.
func (m *Manager) keepFree(id string) (release func(), free bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held[id] > 0 {
		return nil, false
	}
	return m.keepLocked(id), true
}

func (m *Manager) isHeld(snapshot string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.held[snapshot] > 0
}

// save saves sb on its Node and records snap as ready. how has Freeze and Leaves.
func (m *Manager) save(ctx context.Context, sb sandbox.Sandbox, snap sandbox.Snapshot, how sandbox.SaveRequest) error {
	began := time.Now()
	how.Boot, how.Snapshot, how.Memory = refOf(sb), snap.ID, snap.Memory
	saved, err := m.nodes.Save(ctx, sb.Boot.Node, how)
	switch {
	case errors.Is(err, sandbox.NotFound): // of the Boot, not of the Sandbox
		return sandbox.Errorf(sandbox.Unavailable, "the sandbox does not answer").WithCause(err)
	case late(err):
		return sandbox.Errorf(sandbox.Timeout, "the sandbox was not saved within %d seconds", int(time.Since(began).Seconds())).WithCause(err)
	case err != nil:
		return err
	}
	_, err = m.saved(ctx, snap, saved)
	return err
}

// whyNotSaved converts err, from a save of a Sandbox that did not answer, to a Conflict
// with the cause if its Boot was lost. The caller must have released the Sandbox from
// move, because its end waits for that.
func (m *Manager) whyNotSaved(ctx context.Context, id string, err error) error {
	if sandbox.CodeOf(err) != sandbox.Unavailable {
		return err
	}
	for end := now().Add(lossTime); ; {
		sb, lookErr := m.store.SandboxByID(ctx, id)
		switch {
		case lookErr != nil:
			return err
		case sb.Ended != nil:
			return sandbox.Errorf(sandbox.Conflict, "the sandbox ended while it was saved: %s", sb.Ended.Cause).WithCause(err)
		case sb.State == sandbox.Paused:
			return sandbox.Errorf(sandbox.Conflict, "the sandbox was lost while it was saved and went back to its last checkpoint: it is paused").WithCause(err)
		case !now().Before(end) || sleep(ctx, lossLook) != nil:
			return err
		}
	}
}

// saved records snap as ready.
func (m *Manager) saved(ctx context.Context, snap sandbox.Snapshot, s sandbox.Saved) (sandbox.Snapshot, error) {
	snap.State, snap.Bytes, snap.Memory, snap.Build, snap.Digest, snap.CPU = sandbox.SnapshotReady, s.Bytes, s.Memory, s.Build, s.Digest, s.CPU
	return m.store.UpdateSnapshot(ctx, snap)
}

// SnapshotByID implements sandbox.Sandboxes.
func (r Records) SnapshotByID(ctx context.Context, tenant sandbox.TenantID, id string) (sandbox.Snapshot, error) {
	if !sandbox.ValidSnapshotID(id) {
		return sandbox.Snapshot{}, noSnapshot(id)
	}
	snap, err := r.Store.SnapshotByID(ctx, id)
	if errors.Is(err, sandbox.NotFound) || err == nil && (snap.Tenant != tenant || snap.State != sandbox.SnapshotReady) {
		return sandbox.Snapshot{}, noSnapshot(id)
	}
	return snap, err
}

// startingSnapshot finds the Snapshot for a new Sandbox by ID, or the newest one of a
// name. Snapshots of several Sandboxes may have the same name.
func (r Records) startingSnapshot(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Snapshot, error) {
	if sandbox.ValidSnapshotID(idOrName) {
		return r.SnapshotByID(ctx, tenant, idOrName)
	}
	page, err := r.Store.ListSnapshots(ctx, tenant, sandbox.SnapshotQuery{Name: idOrName, Kept: true, Limit: 1})
	switch {
	case err != nil:
		return sandbox.Snapshot{}, err
	case len(page.Snapshots) == 0:
		return sandbox.Snapshot{}, noSnapshot(idOrName)
	}
	return page.Snapshots[0], nil
}

// noSnapshot is the error for an absent Snapshot and for another Tenant's.
func noSnapshot(idOrName string) error {
	return sandbox.Errorf(sandbox.NotFound, "no snapshot %.64q; `cloud-sandbox snapshot ls` and GET /api/v1/snapshots list yours", idOrName)
}

// ListSnapshots implements sandbox.Sandboxes.
func (r Records) ListSnapshots(ctx context.Context, tenant sandbox.TenantID, query sandbox.SnapshotQuery) (sandbox.SnapshotPage, error) {
	return r.Store.ListSnapshots(ctx, tenant, query)
}

// History implements sandbox.Sandboxes.
func (r Records) History(ctx context.Context, tenant sandbox.TenantID, idOrName string) ([]sandbox.Snapshot, error) {
	sb, err := r.Get(ctx, tenant, idOrName)
	if err != nil {
		return nil, err
	}
	return r.history(ctx, sb)
}

func (r Records) history(ctx context.Context, sb sandbox.Sandbox) ([]sandbox.Snapshot, error) {
	var all []sandbox.Snapshot
	for query := (sandbox.SnapshotQuery{SandboxID: sb.ID}); len(all) < maxHistory; {
		page, err := r.Store.ListSnapshots(ctx, sb.Tenant, query)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Snapshots...)
		if query.Cursor = page.Next; page.Next == "" {
			break
		}
	}
	slices.Reverse(all)
	first := sb.Snapshot // its origin, before its own Snapshots
	if len(all) > 0 {
		first = all[0].Parent
	}
	return r.withAncestors(ctx, sb.Tenant, all, first)
}

// withAncestors prepends first and its ancestors to all.
func (r Records) withAncestors(ctx context.Context, tenant sandbox.TenantID, all []sandbox.Snapshot, first string) ([]sandbox.Snapshot, error) {
	known := map[string]bool{}
	for _, s := range all {
		known[s.ID] = true
	}
	for id := first; id != "" && !known[id] && len(all) < maxHistory; {
		snap, err := r.Store.SnapshotByID(ctx, id)
		if errors.Is(err, sandbox.NotFound) {
			break
		}
		if err != nil {
			return nil, err
		}
		if snap.Tenant == tenant && snap.State == sandbox.SnapshotReady && snap.Layer == "" {
			all = append([]sandbox.Snapshot{snap}, all...)
		}
		known[id], id = true, snap.Parent
	}
	return all, nil
}

// inHistory finds a Snapshot that sb can roll back to, by ID or name.
func (m *Manager) inHistory(ctx context.Context, sb sandbox.Sandbox, idOrName string) (sandbox.Snapshot, error) {
	all, err := m.history(ctx, sb)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	for _, s := range slices.Backward(all) {
		if idOrName != "" && (s.ID == idOrName || s.Name == idOrName) {
			return s, nil
		}
	}
	return sandbox.Snapshot{}, sandbox.Errorf(sandbox.NotFound, "no snapshot %.64q of this sandbox; GET /api/v1/sessions/%s/snapshots lists them", idOrName, sb.ID)
}

// named returns sb's own Snapshot of a name, or one without an ID.
func (m *Manager) named(ctx context.Context, sb sandbox.Sandbox, name string) (sandbox.Snapshot, error) {
	all, err := m.history(ctx, sb)
	for _, s := range all {
		if s.SandboxID == sb.ID && name != "" && s.Name == name {
			return s, nil
		}
	}
	return sandbox.Snapshot{}, err
}

// DeleteSnapshot implements sandbox.Sandboxes. Once the deletion is recorded, the bytes
// are deleted now or by a later sweep.
func (m *Manager) DeleteSnapshot(ctx context.Context, tenant sandbox.TenantID, id string) (sandbox.Snapshot, error) {
	snap, err := m.SnapshotByID(ctx, tenant, id)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	err = m.discard(ctx, snap, false)
	if isConflict(err) {
		return sandbox.Snapshot{}, sandbox.Errorf(sandbox.Conflict, "the snapshot is in use: a sandbox is paused in it or starts from it")
	}
	return snap, err
}

// discard deletes a Snapshot: it marks the record, deletes the bytes, and drops the
// record. loose is passed to RetireSnapshot. If the Node fails, a sweep retries. If the Node
// is lost, the record is dropped, and the Node deletes the bytes if it returns.
func (m *Manager) discard(ctx context.Context, snap sandbox.Snapshot, loose bool) error {
	if err := m.store.RetireSnapshot(ctx, snap.ID, loose); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	// It may have moved since the caller read the record. From now on it does not.
	snap, err := m.store.SnapshotByID(ctx, snap.ID)
	if errors.Is(err, sandbox.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	err = m.deleteSaved(ctx, snap)
	if err == nil || errors.Is(err, sandbox.Unsupported) {
		return m.store.DropSnapshot(ctx, snap.ID)
	}
	if errors.Is(err, sandbox.Unavailable) || ctx.Err() != nil {
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
		defer cancel()
		switch _, lost, lostErr := m.nodeLost(after, snap.Node); {
		case lostErr != nil:
			return lostErr
		case lost:
			m.log.InfoContext(ctx, "a deleted snapshot stays on a lost node", telemetry.KeySnapshot, snap.ID, telemetry.KeyNode, snap.Node)
			return m.store.LeaveSnapshot(after, snap.ID)
		}
	}
	m.log.WarnContext(ctx, "deleting saved state failed; will retry", telemetry.KeySnapshot, snap.ID, telemetry.KeyNode, snap.Node, telemetry.KeyError, err)
	return nil
}

// deleteSaved deletes the state of a Snapshot on its Node; Unavailable if that is lost.
func (m *Manager) deleteSaved(ctx context.Context, snap sandbox.Snapshot) error {
	if m.isLost(snap.Node) {
		return sandbox.Errorf(sandbox.Unavailable, "the node is lost")
	}
	return m.nodes.DeleteSaved(ctx, snap.Node, snap.ID)
}

const (
	// leftAtOnce bounds the states that one sweep deletes on Nodes that have returned.
	leftAtOnce = 1000
	// leftLimit bounds the deletion of one of them, from before the records say that it is
	// left.
	leftLimit = 10 * time.Second
)

// sweepLeft deletes the states of dropped Snapshots on Nodes that have returned.
func (m *Manager) sweepLeft(ctx context.Context) error {
	left, err := m.store.StatesLeft(ctx, leftAtOnce)
	if err != nil {
		return err
	}
	work := newGroup()
	for _, state := range left {
		work.do(func() error { return m.deleteLeft(ctx, state) })
	}
	return work.wait()
}

// deleteLeft deletes a state that was left on a Node, unless a move or a start uses its
// Snapshot. Since the list was read, a move may have made it the Snapshot's only state: this
// process holds the Snapshot then, and another one waits for moveSettle.
func (m *Manager) deleteLeft(ctx context.Context, state sandbox.LeftState) error {
	release, free := m.keepFree(state.Snapshot)
	if !free {
		return nil
	}
	defer release()
	limited, cancel := context.WithTimeout(ctx, leftLimit)
	defer cancel()
	switch err := m.store.ClaimState(limited, state); {
	case errors.Is(err, sandbox.NotFound):
		return nil
	case err != nil:
		return err
	}
	if err := m.nodes.DeleteSaved(limited, state.Node, state.Snapshot); err != nil && !errors.Is(err, sandbox.Unsupported) {
		return err
	}
	return m.store.ForgetState(ctx, state)
}

// sweep deletes unneeded Snapshots: Snapshots of incomplete saves and deletions, and
// unreferenced Snapshots that are not Kept.
func (m *Manager) sweep(ctx context.Context) error {
	left, err := m.store.SnapshotsLeft(ctx)
	if err != nil {
		return err
	}
	work := newGroup()
	for _, snap := range left {
		if m.isHeld(snap.ID) {
			continue
		}
		work.do(func() error {
			if err := m.discard(ctx, snap, true); !isConflict(err) { // needed again: keep it
				return err
			}
			return nil
		})
	}
	return work.wait()
}

// sweepAll deletes unneeded Snapshots, files of former ones, and half-done Volumes.
func (m *Manager) sweepAll(ctx context.Context) error {
	return errors.Join(m.sweep(ctx), m.sweepLeft(ctx), m.sweepVolumes(ctx))
}

// keepSwept runs a sweep whenever sweepSoon asks for one, until ctx ends.
func (m *Manager) keepSwept(ctx context.Context) error {
	for {
		select {
		case <-m.sweepCh:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := m.sweepAll(ctx); err != nil && ctx.Err() == nil {
			m.log.Warn("deleting unused saved states and volumes failed", telemetry.KeyError, err)
			if err := sleep(ctx, sweepPause); err != nil {
				return err
			}
			m.sweepSoon()
		}
	}
}

// sweepSoon makes Run sweep soon.
func (m *Manager) sweepSoon() {
	select {
	case m.sweepCh <- struct{}{}:
	default:
	}
}
