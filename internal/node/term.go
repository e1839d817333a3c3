package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// fenceLimit bounds setting the fence, between two renewals of the Lease.
	fenceLimit = 2 * time.Second
	// settleLimit bounds freezing or thawing one Boot for the fence.
	settleLimit = 10 * time.Second
	// neverFence lifts a fence.
	neverFence = time.Duration(0)
)

// A term is the Node's term of its Lease, and the fence that closes when the Lease is not
// renewed. Without a Fencer it does nothing. Its methods are safe for concurrent use.
type term struct {
	after  time.Duration  // FenceAfter; zero: the fence never closes
	fencer sandbox.Fencer // nil: no fence

	mu     sync.Mutex
	last   renewal       // the last confirmed one
	set    bool          // the fence was set after a renewal: until then it is closed
	at     time.Duration // when it closes, by FenceClock
	works  bool          // all Boots have the fence
	warned bool          // the log says that not all have it
}

// renewal is a confirmed renewal of the Lease.
type renewal struct {
	epoch int64
	lost  int64         // LostEpoch; negative: not known
	asked time.Duration // by FenceClock
}

// now is the time by the fence's clock.
func (t *term) now() time.Duration {
	if t.fencer == nil {
		return 0
	}
	return t.fencer.FenceClock()
}

// promised is after which time the Boots are certainly cut off; zero: not certainly.
func (t *term) promised() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.works {
		return 0
	}
	return t.after
}

func (t *term) renewed(r sandbox.NodeRecord, asked time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = renewal{epoch: r.Epoch, lost: r.LostEpoch, asked: asked}
}

func (t *term) latest() renewal {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// fenced reports whether the fence is closed.
func (t *term) fenced() bool {
	if t.fencer == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.set || t.at != neverFence && t.now() >= t.at
}

// takes reports whether the Sandbox of a Boot may have another Boot elsewhere: the Node was
// lost after the Boot's epoch had begun, or its record was made again since.
func (r renewal) takes(b *boot) bool {
	return b.epoch != 0 && (b.epoch <= r.lost || b.epoch > r.epoch)
}

var errNotOpened = errors.New("the sandboxes of this node stay cut off")

// moveFence moves the fence on after a renewal. If the Node was lost meanwhile, it closes
// the fence, and opens it only once the Boots from before have ended.
func (n *Node) moveFence(ctx context.Context) error {
	t := n.term
	if t.fencer == nil {
		return nil
	}
	last := t.latest()
	if last.lost < 0 && t.fenced() && n.hasOwned() {
		return fmt.Errorf("%w until a session-manager of this version says whether others run them", errNotOpened)
	}
	taken := n.takenBy(last)
	if len(taken) > 0 {
		if err := n.setFence(ctx, t.now(), false); err != nil {
			return err
		}
		n.endTaken(ctx, taken)
		return fmt.Errorf("%w until %d boots have ended whose sandboxes others run", errNotOpened, len(taken))
	}
	at := neverFence
	if t.after > 0 {
		at = last.asked + t.after
	}
	return n.setFence(ctx, at, true)
}

// setFence has the fence close at a time; open says that the Node counts on it.
func (n *Node) setFence(ctx context.Context, at time.Duration, open bool) error {
	ctx, cancel := context.WithTimeout(ctx, fenceLimit)
	defer cancel()
	t := n.term
	err := t.fencer.FenceAt(ctx, at)
	if errors.Is(err, sandbox.Unsupported) && at == neverFence {
		err = nil // a shard that cannot be closed is open
	}
	t.mu.Lock()
	t.at, t.works = at, err == nil
	t.set = t.set || open
	warn := err != nil && !t.warned
	t.warned = err != nil
	t.mu.Unlock()
	if warn {
		n.log.Warn("not all sandboxes here would be cut off if this node lost its lease, so no other node takes them over", telemetry.KeyError, err)
	}
	if !open {
		return err
	}
	return nil
}

// hasOwned reports whether a Boot has an owner.
func (n *Node) hasOwned() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.owners) > 0
}

// takenBy returns the IDs of the Boots that have an owner which r takes, and of starts.
func (n *Node) takenBy(r renewal) (ids []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, b := range n.boots {
		if b.owner.ref.SandboxID != "" && r.takes(b) {
			ids = append(ids, b.id)
		}
	}
	for _, a := range n.arriving {
		if a.epoch != 0 && a.epoch <= r.lost {
			ids = append(ids, a.bootID)
		}
	}
	return ids
}

// endTaken ends Boots and cancels starts, several at a time. It does not wait: the Lease is
// renewed meanwhile.
func (n *Node) endTaken(ctx context.Context, ids []string) {
	select {
	case n.ending <- struct{}{}:
	default:
		return // it is being done
	}
	n.log.Warn("this node was away for so long that others run its sandboxes: their boots end here", "boots", len(ids))
	n.wg.Go(func() {
		defer func() { <-n.ending }()
		var work errgroup.Group
		work.SetLimit(parallel)
		for _, id := range ids {
			work.Go(func() error {
				if err := n.Stop(ctx, n.cfg.Name, id, 0); err != nil {
					n.log.Warn("ending a boot whose sandbox others run failed; will retry", telemetry.KeyBoot, id, telemetry.KeyError, err)
				}
				return nil
			})
		}
		_ = work.Wait()
	})
}

// settleFence freezes bound Boots if the fence is closed, and thaws the ones it has
// frozen if it is open. It does not wait, and leaves out Boots that are being saved or
// changed: it is called again after the next renewal.
func (n *Node) settleFence(ctx context.Context) {
	if n.term.fenced() { // Boots of other Nodes are no longer checked
		n.homes.Cut()
	}
	engine, ok := n.engine.(sandbox.Pauser)
	if !ok || !n.features.Pause || n.term.fencer == nil {
		return
	}
	unsettled := n.unsettled()
	if len(unsettled) == 0 {
		return
	}
	select {
	case n.settling <- struct{}{}:
	default:
		return // it is being done
	}
	n.wg.Go(func() {
		defer func() { <-n.settling }()
		var work errgroup.Group
		work.SetLimit(parallel)
		for _, b := range unsettled {
			work.Go(func() error {
				n.settleBoot(ctx, engine, b)
				return nil
			})
		}
		_ = work.Wait()
	})
}

// unsettled returns the bound Boots that are to be frozen or thawed.
func (n *Node) unsettled() (all []*boot) {
	fenced := n.term.fenced()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, b := range n.owners {
		if b.state == bound && !b.paused && !b.settled(fenced) {
			all = append(all, b)
		}
	}
	return all
}

// settled reports whether a Boot is as the fence wants it. The caller holds Node.mu.
func (b *boot) settled(fenced bool) bool { return b.fenced == fenced && !(fenced && b.refreeze) }

// settleBoot freezes or thaws a Boot, unless it is settled, or frozen by a pause.
func (n *Node) settleBoot(ctx context.Context, engine sandbox.Pauser, b *boot) {
	if !b.changing.TryLock() {
		return
	}
	defer b.changing.Unlock()
	fence := n.term.fenced()
	n.mu.Lock()
	settled, again := b.state != bound || b.paused || b.settled(fence), b.refreeze
	n.mu.Unlock()
	if settled {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	if fence {
		if !again {
			n.mark(b, func() { b.fenced = true }) // before: a later process thaws it
		}
		err := engine.Freeze(ctx, b.id)
		n.mu.Lock()
		b.refreeze = errors.Is(err, sandbox.Unavailable) // its memory may still arrive
		n.mu.Unlock()
		if err != nil && !again {
			n.log.Warn("freezing a boot after the loss of the lease failed; it keeps running, but is cut off", telemetry.KeyBoot, b.id, telemetry.KeyError, err)
		}
		return
	}
	if err := engine.Thaw(ctx, b.id); err != nil {
		n.log.Warn("thawing a boot after the lease was renewed failed; will retry", telemetry.KeyBoot, b.id, telemetry.KeyError, err)
		return
	}
	n.mark(b, func() { b.fenced, b.refreeze = false, false })
}

// mark changes a field of b that its journal entry keeps, and writes the entry. It does
// nothing for a Boot that is being stopped, whose entry is about to be removed.
func (n *Node) mark(b *boot, change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if b.state != bound {
		return
	}
	change()
	if err := n.journal.write(b.id, b.entry()); err != nil {
		n.log.Warn("writing to the journal that a boot is frozen failed", telemetry.KeyBoot, b.id, telemetry.KeyError, err)
	}
}
