package node

import (
	"context"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// leaveTime is how long a state that leaves this Node is neither packed nor copied. If it is
// still here then, its move has failed or takes long.
const leaveTime = time.Minute

// pauser returns the Engine's Pauser, or Unsupported.
func (n *Node) pauser(node string) (sandbox.Pauser, error) {
	if err := n.check(node); err != nil {
		return nil, err
	}
	if p, ok := n.engine.(sandbox.Pauser); ok && n.features.Pause {
		return p, nil
	}
	return nil, sandbox.Errorf(sandbox.Unsupported, "the engine %s cannot save sandboxes", n.features.Name)
}

// turn waits until tenant may save a Boot; done ends the turn. Meanwhile the Boot runs:
// others' saves must neither freeze it nor delay its changes.
func (n *Node) turn(ctx context.Context, tenant sandbox.TenantID) (done func(), err error) {
	observed := n.observe(StepSaveQueue)
	err = n.saves.enter(ctx, tenant)
	if observed(err); err != nil {
		return nil, err
	}
	began := time.Now()
	return func() { n.saves.leave(tenant, time.Since(began)) }, nil
}

// Save implements sandbox.Nodes. The Boot gets no changes while it is saved.
func (n *Node) Save(ctx context.Context, node string, r sandbox.SaveRequest) (sandbox.Saved, error) {
	engine, err := n.pauser(node)
	if err != nil {
		return sandbox.Saved{}, err
	}
	if !sandbox.ValidSnapshotID(r.Snapshot) {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Invalid, "the snapshot ID is invalid")
	}
	b, err := n.boundTo(r.Boot)
	if err != nil {
		return sandbox.Saved{}, err
	}
	if err := n.awaitArrival(ctx, b); err != nil {
		return sandbox.Saved{}, err
	}
	done, err := n.turn(ctx, r.Boot.Tenant)
	if err != nil {
		return sandbox.Saved{}, err
	}
	defer done()
	b.changing.Lock()
	defer b.changing.Unlock()
	observed := n.observe(StepSave)
	saved, err := n.save(ctx, engine, b, r)
	observed(err)
	if err == nil && r.Freeze {
		n.setPaused(b, true)
	}
	return saved, err
}

// awaitArrival waits until all of the state that b started from is here. It runs before the
// turn of a save: a slow download must not hold up others.
func (n *Node) awaitArrival(ctx context.Context, b *boot) error {
	fetcher, ok := n.engine.(sandbox.Fetcher)
	if !ok {
		return nil
	}
	observed := n.observe(StepFetch)
	err := fetcher.AwaitArrival(ctx, b.id)
	observed(err)
	return err
}

// setPaused records whether b is saved and frozen, about to be stopped. The fence has no
// part in it then.
func (n *Node) setPaused(b *boot, paused bool) {
	n.mark(b, func() { b.paused, b.fenced = paused, false })
}

// save freezes b first if it is to stay frozen: the saved state must contain all that b
// did.
func (n *Node) save(ctx context.Context, engine sandbox.Pauser, b *boot, r sandbox.SaveRequest) (sandbox.Saved, error) {
	var saved sandbox.Saved
	var err error
	if r.Freeze {
		err = engine.Freeze(ctx, b.id)
	}
	if err == nil {
		saved, err = engine.Save(ctx, b.id, r.Snapshot, r.Memory)
	}
	switch {
	case err == nil && r.Leaves:
		n.leaves(r.Snapshot, r.Boot.Tenant)
	case err == nil:
		n.share(ctx, r.Snapshot, r.Boot.Tenant)
	}
	if err == nil || !r.Freeze {
		return saved, err
	}
	// A freeze that failed may have stopped it all the same.
	undo, cancel := uncancelled(ctx)
	defer cancel()
	if thawErr := engine.Thaw(undo, b.id); thawErr != nil {
		n.log.ErrorContext(ctx, "thawing a boot after a failed save failed", telemetry.KeyBoot, b.id, telemetry.KeyError, thawErr)
	}
	return sandbox.Saved{}, err
}

// SaveFiles implements sandbox.Nodes. It starts a Boot to write out files that exist only
// in the state's memory.
func (n *Node) SaveFiles(ctx context.Context, node string, r sandbox.FilesRequest) (sandbox.Saved, error) {
	engine, err := n.pauser(node)
	if err != nil {
		return sandbox.Saved{}, err
	}
	if !sandbox.ValidSnapshotID(r.From) || !sandbox.ValidSnapshotID(r.Snapshot) {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Invalid, "the snapshot ID is invalid")
	}
	if err := r.Shape.Check(); err != nil {
		return sandbox.Saved{}, err
	}
	if err := n.cfg.Carrier.Present(ctx, r.Image); err != nil {
		return sandbox.Saved{}, err
	}
	var saved sandbox.Saved
	err = n.fetched(ctx, r.From, true, func(bool) error {
		saved, err = n.saveFiles(ctx, engine, r)
		return err
	})
	if err == nil {
		n.share(ctx, r.Snapshot, r.Tenant)
	}
	return saved, err
}

// saveFiles starts a Boot from r.From, saves its files, and ends it. The start and the
// save each wait for their turn. The Boot is never bound, so it stays held.
func (n *Node) saveFiles(ctx context.Context, engine sandbox.Pauser, r sandbox.FilesRequest) (sandbox.Saved, error) {
	b, err := n.startToSave(ctx, r)
	if err != nil {
		return sandbox.Saved{}, err
	}
	saved, err := n.saveFilesOf(ctx, engine, b, r)
	if destroyErr := n.destroy(ctx, b, 0); destroyErr != nil {
		n.log.WarnContext(ctx, "destroying a boot after a save of its files failed", telemetry.KeyBoot, b.id, telemetry.KeyError, destroyErr)
	}
	return saved, err
}

// startToSave waits for its turn and starts a Boot from r.From.
func (n *Node) startToSave(ctx context.Context, r sandbox.FilesRequest) (*boot, error) {
	observed := n.observe(StepQueue)
	err := n.queue.enter(ctx, r.Tenant)
	if observed(err); err != nil {
		return nil, err
	}
	began := time.Now()
	defer func() { n.queue.leave(r.Tenant, time.Since(began)) }()
	if err := n.room(ctx, true); err != nil {
		return nil, err
	}
	return n.startBoot(ctx, sandbox.NewBootID(), sandbox.BootSpec{Image: r.Image, Shape: r.Shape, From: r.From})
}

// saveFilesOf waits for its turn and saves the files of b.
func (n *Node) saveFilesOf(ctx context.Context, engine sandbox.Pauser, b *boot, r sandbox.FilesRequest) (sandbox.Saved, error) {
	done, err := n.turn(ctx, r.Tenant)
	if err != nil {
		return sandbox.Saved{}, err
	}
	defer done()
	observed := n.observe(StepSave)
	saved, err := engine.Save(ctx, b.id, r.Snapshot, false)
	observed(err)
	return saved, err
}

// share lets a Snapshot share disk space with others of its Tenant, unless it is deleted by
// now. Failure costs only space.
func (n *Node) share(ctx context.Context, snapshot string, tenant sandbox.TenantID) {
	engine, ok := n.engine.(sandbox.Deduplicator)
	if !ok {
		return
	}
	if err := engine.ShareSaved(ctx, snapshot, string(tenant)); err != nil && !errors.Is(err, sandbox.Unsupported) && !errors.Is(err, sandbox.NotFound) {
		n.log.WarnContext(ctx, "asking for the packing of a snapshot failed", telemetry.KeySnapshot, snapshot, telemetry.KeyError, err)
	}
}

// leaves has share wait until a Snapshot stays, or for leaveTime.
func (n *Node) leaves(snapshot string, tenant sandbox.TenantID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leaving[snapshot] = tenant
	time.AfterFunc(leaveTime, func() { n.stays(snapshot) })
}

// stays shares a Snapshot that was to leave this Node.
func (n *Node) stays(snapshot string) {
	n.mu.Lock()
	tenant, leaves := n.leaving[snapshot]
	delete(n.leaving, snapshot)
	n.mu.Unlock()
	if !leaves {
		return
	}
	ctx, cancel := uncancelled(context.Background())
	defer cancel()
	n.share(ctx, snapshot, tenant)
}

// fetch keeps a saved state on this host until it is released: all of it with whole, or so much
// that a start can begin. It runs before the start's turn: a slow download must not hold up
// others.
func (n *Node) fetch(ctx context.Context, snapshot string, whole bool) (sandbox.Hold, error) {
	engine, err := n.pauser(n.cfg.Name)
	if err != nil {
		return sandbox.Hold{}, err
	}
	fetcher, ok := engine.(sandbox.Fetcher)
	if !ok {
		return sandbox.Hold{Release: func() {}}, nil
	}
	observed := n.observe(StepFetch)
	hold, err := fetcher.HoldSaved(ctx, snapshot, whole)
	observed(err)
	return hold, err
}

// Thaw implements sandbox.Nodes.
func (n *Node) Thaw(ctx context.Context, node string, to sandbox.BootRef) error {
	engine, err := n.pauser(node)
	if err != nil {
		return err
	}
	b, err := n.boundTo(to)
	if err != nil {
		return err
	}
	b.changing.Lock()
	defer b.changing.Unlock()
	if err := engine.Thaw(ctx, b.id); err != nil {
		return err
	}
	n.setPaused(b, false)
	return nil
}

// DeleteSaved implements sandbox.Nodes.
func (n *Node) DeleteSaved(ctx context.Context, node, snapshot string) error {
	engine, err := n.pauser(node)
	if err != nil {
		return err
	}
	return engine.DeleteSaved(ctx, snapshot)
}

// ListSaved implements sandbox.Nodes.
func (n *Node) ListSaved(ctx context.Context, node string) ([]string, error) {
	engine, err := n.pauser(node)
	if err != nil {
		return nil, err
	}
	return engine.ListSaved(ctx)
}
