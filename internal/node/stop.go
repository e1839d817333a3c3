package node

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// Stop implements sandbox.Nodes. It first cancels a start of the Boot that is in
// progress.
func (n *Node) Stop(ctx context.Context, node, bootID string, grace time.Duration) error {
	if err := n.check(node); err != nil {
		return err
	}
	if !sandbox.ValidBootID(bootID) {
		return sandbox.Errorf(sandbox.Invalid, "the boot ID is invalid")
	}
	if err := n.giveUp(ctx, bootID); err != nil {
		return err
	}
	n.mu.Lock()
	b := n.boots[bootID]
	n.mu.Unlock()
	if b == nil {
		return n.engine.Stop(ctx, bootID, grace)
	}
	return n.destroy(ctx, b, grace)
}

// giveUp cancels the start of a Boot and waits for its cleanup.
func (n *Node) giveUp(ctx context.Context, bootID string) error {
	n.mu.Lock()
	var found *arrival
	for _, a := range n.arriving {
		if a.bootID == bootID {
			found = a
		}
	}
	n.mu.Unlock()
	if found == nil {
		return nil
	}
	found.cancel()
	select {
	case <-found.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// destroy ends b and forgets it, even when ctx has ended. On failure b stays known as
// stopping, and the regular comparison retries.
func (n *Node) destroy(ctx context.Context, b *boot, grace time.Duration) error {
	n.mu.Lock()
	b.state = stopping
	for _, p := range n.pools {
		p.dropIdle(b)
	}
	n.mu.Unlock()
	ctx, cancel := uncancelled(ctx)
	defer cancel()
	observed := n.observe(StepStop)
	err := n.engine.Stop(ctx, b.id, grace)
	if observed(err); err != nil {
		return err
	}
	n.forget(b)
	return nil
}

// forget drops the record of a Boot that is gone. The journal entry must outlive the
// Boot: without it, a later process would take a used Boot for a blank one.
func (n *Node) forget(b *boot) {
	if err := n.journal.remove(b.id); err != nil {
		n.log.Warn("removing the journal of a stopped boot failed", telemetry.KeyBoot, b.id, telemetry.KeyError, err)
	}
	n.mu.Lock()
	n.unlist(b)
	n.mu.Unlock()
	b.guest.Close()
}

// unlist removes b from the Node's Boots. Node.mu is held.
func (n *Node) unlist(b *boot) {
	if b.unmount != nil {
		b.unmount()
	}
	if n.boots[b.id] == b {
		delete(n.boots, b.id)
	}
	if id := b.owner.ref.SandboxID; n.owners[id] == b {
		delete(n.owners, id)
	}
	if b.owner.ref.SandboxID != "" {
		n.left[b.id] = departure{b.owner.ref, time.Now()}
	}
	n.host.stale.Store(true)
	close(n.gone)
	n.gone = make(chan struct{})
}

// Down ends every Boot of this Node, bound or not, and returns how many it ended. These
// ends are not reported: the caller ends the Sandboxes first. Do not call it while Run
// runs.
func (n *Node) Down(ctx context.Context) (int, error) {
	listed, err := n.engine.List(ctx)
	if err != nil {
		return 0, err
	}
	var ended atomic.Int64
	errs := make([]error, len(listed))
	var g errgroup.Group
	g.SetLimit(parallel)
	for i, status := range listed {
		g.Go(func() error {
			if errs[i] = n.Stop(ctx, n.cfg.Name, status.ID, 0); errs[i] == nil {
				errs[i] = n.journal.remove(status.ID)
				ended.Add(1)
			}
			return nil
		})
	}
	_ = g.Wait()
	for _, e := range n.reports.pending() {
		errs = append(errs, n.reportOne(ctx, e))
	}
	return int(ended.Load()), errors.Join(errs...)
}
