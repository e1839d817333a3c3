package node

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// resolveLimit bounds resolving a Pool's image while Boots are recovered.
const resolveLimit = 2 * time.Second

// recover takes up the Boots of an earlier process.
func (n *Node) recover(ctx context.Context) error {
	entries, err := n.journal.read()
	if err != nil {
		return err
	}
	listed, err := n.engine.List(ctx)
	if err != nil {
		return err
	}
	n.resolvePools(ctx)
	var g errgroup.Group
	g.SetLimit(parallel)
	for _, status := range listed {
		e, journaled := entries[status.ID]
		delete(entries, status.ID)
		g.Go(func() error {
			n.recoverBoot(ctx, status, e, journaled)
			return nil
		})
	}
	_ = g.Wait()
	for id, e := range entries {
		n.recoverEnding(id, e)
	}
	return ctx.Err()
}

// resolvePools resolves the images of Pools where it can, so that Boots of old versions
// are not adopted.
func (n *Node) resolvePools(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, resolveLimit)
	defer cancel()
	for _, p := range n.pools {
		p.resolve(ctx)
	}
}

// recoverBoot recovers one running Boot. Only the journal says which Sandbox it belongs
// to: a Guest may lie. A Boot without an entry that did not start from a saved state has
// never run a user's code, so its Guest is believed when it reports itself blank.
func (n *Node) recoverBoot(ctx context.Context, status sandbox.BootStatus, e *entry, journaled bool) {
	b := n.newBoot(status.ID, status.Image, status.Shape)
	if !journaled && status.From == "" && n.blank(ctx, b) {
		for _, p := range n.pools {
			if p.adopt(b) {
				return
			}
		}
	}
	ended := e != nil && e.Ended != nil
	// After an interrupted restore the Boot has sent nothing to the outside, and its saved
	// state still exists.
	cut := e != nil && e.Held
	if e != nil && !ended && !cut && n.recoverBound(ctx, b, status, *e) {
		return
	}
	if ended {
		n.recoverEnding(b.id, e)
	}
	n.mu.Lock()
	n.boots[b.id] = b
	n.mu.Unlock()
	if err := n.destroy(ctx, b, 0); err != nil {
		n.log.Warn("destroying a boot without an owner failed", telemetry.KeyBoot, b.id, telemetry.KeyError, err)
	}
}

// blank reports whether the Guest answers and has no owner.
func (n *Node) blank(ctx context.Context, b *boot) bool {
	ctx, cancel := context.WithTimeout(ctx, healthLimit)
	defer cancel()
	id, number, err := b.guest.Health(ctx)
	return err == nil && id == "" && number == 0
}

// recoverBound gives b back to its Sandbox; false: this Node has a newer Boot of the
// Sandbox.
func (n *Node) recoverBound(ctx context.Context, b *boot, status sandbox.BootStatus, e entry) bool {
	n.mu.Lock()
	older := n.owners[e.SandboxID]
	if older != nil && older.owner.ref.Number >= e.Number {
		n.mu.Unlock()
		return false
	}
	b.own(e)
	n.boots[b.id] = b
	n.owners[e.SandboxID] = b
	n.fence.see(e.SandboxID, e.Number)
	n.mu.Unlock()
	if older != nil {
		if err := n.destroy(ctx, older, 0); err != nil {
			n.log.Warn("destroying an older boot of a sandbox failed", telemetry.KeyBoot, older.id, telemetry.KeyError, err)
		}
	}
	if status.Network != e.Network {
		if err := n.engine.SetNetwork(ctx, b.id, e.Network); err != nil {
			n.log.Warn("restoring the network of a boot failed", telemetry.KeyBoot, b.id, telemetry.KeyError, err)
		}
	}
	return true
}

// recoverEnding reports the end of a Boot that is journaled and gone.
func (n *Node) recoverEnding(bootID string, e *entry) {
	if e == nil { // the owner is lost; the Sandbox's record will miss its Boot
		if err := n.journal.remove(bootID); err != nil {
			n.log.Warn("removing the journal of a boot that is gone failed", telemetry.KeyBoot, bootID, telemetry.KeyError, err)
		}
		return
	}
	b := &boot{id: bootID}
	b.own(*e)
	end := ending{Cause: sandbox.CauseEngineLost, At: time.Now().UTC()}
	if e.Ended != nil {
		end = *e.Ended
	}
	n.mu.Lock()
	n.fence.see(e.SandboxID, e.Number)
	n.mu.Unlock()
	n.reports.add(b, end)
	n.reports.tell(bootID)
}
