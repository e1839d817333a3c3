package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// A term is the Node's term of its Lease, and the fence that closes when the Lease is not
// renewed. Without a fence it does nothing. Its methods are safe for concurrent use.
type term struct {
	path   string
	after  time.Duration  // FenceAfter; zero: no fence
	fencer sandbox.Fencer // nil: no fence
	log    *slog.Logger

	mu    sync.Mutex
	epoch int64         // the last term that was confirmed and taken up; 0: none
	last  renewal       // the last confirmed one
	at    time.Duration // when the fence closes, by FenceClock; 0: not set yet
	works bool          // all Boots have the fence
}

// renewal is a confirmed renewal of the Lease.
type renewal struct {
	epoch, lost int64         // of the record
	asked       time.Duration // by FenceClock
}

func termFile(dir string) string { return filepath.Join(dir, "term") }

// savedTerm is the content of a term's file.
type savedTerm struct {
	Epoch int64 `json:"epoch"`
}

// openTerm reads the last term of the folder.
func openTerm(cfg Config) (*term, error) {
	t := &term{path: termFile(cfg.Dir), log: cfg.Log}
	if cfg.FenceAfter <= 0 {
		return t, nil
	}
	t.after, t.fencer = cfg.FenceAfter, cfg.Fencer
	raw, err := os.ReadFile(t.path)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	var saved savedTerm
	if err == nil {
		err = json.Unmarshal(raw, &saved)
	}
	if err != nil {
		return nil, fmt.Errorf("read the term of the node's lease: %w", err)
	}
	t.epoch = saved.Epoch
	return t, nil
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

// fenced reports whether the fence is closed.
func (t *term) fenced() bool {
	t.mu.Lock()
	at := t.at
	t.mu.Unlock()
	return at != 0 && t.now() >= at
}

// givenUp reports whether the Node was lost since it took up its term: its Sandboxes may
// run elsewhere.
func (t *term) givenUp() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.epoch != 0 && t.last.lost >= t.epoch
}

// takeUp makes the term of the last renewal the Node's.
func (t *term) takeUp() renewal {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.epoch == t.last.epoch {
		return t.last
	}
	t.epoch = t.last.epoch
	content, err := json.Marshal(savedTerm{t.epoch})
	if err == nil {
		err = durable.Write(t.path, content, 0o600)
	}
	if err != nil { // a restart may then stop Boots that it could keep
		t.log.Warn("writing the term of the lease failed", telemetry.KeyError, err)
	}
	return t.last
}

// fenceLimit bounds setting the fence, between two renewals of the Lease.
const fenceLimit = leaseEvery

// moveFence moves the fence on after a renewal. If the Node was lost meanwhile, all Boots
// that have an owner are stopped before.
func (n *Node) moveFence(ctx context.Context) error {
	t := n.term
	if t.fencer == nil {
		return nil
	}
	if t.givenUp() {
		if err := n.stopGivenUp(ctx); err != nil {
			return err
		}
	}
	last := t.takeUp()
	at := last.asked + t.after
	ctx, cancel := context.WithTimeout(ctx, fenceLimit)
	defer cancel()
	err := t.fencer.FenceAt(ctx, at)
	t.mu.Lock()
	t.at = at
	changed := t.works != (err == nil)
	t.works = err == nil
	t.mu.Unlock()
	if err != nil && changed {
		n.log.Warn("not all sandboxes here would be cut off if this node lost its lease, so no other node takes them over", telemetry.KeyError, err)
	}
	return nil
}

// stopGivenUp stops all Boots that have an owner, and cancels starts.
func (n *Node) stopGivenUp(ctx context.Context) error {
	n.mu.Lock()
	var owned, starts []string
	for _, b := range n.boots {
		if b.owner.ref.SandboxID != "" {
			owned = append(owned, b.id)
		}
	}
	for _, a := range n.arriving {
		starts = append(starts, a.bootID)
	}
	n.mu.Unlock()
	if len(owned)+len(starts) > 0 {
		n.log.Warn("this node was away for so long that others took its sandboxes over: their boots end here", "boots", len(owned), "starts", len(starts))
	}
	var work errgroup.Group
	work.SetLimit(parallel)
	for _, id := range append(starts, owned...) { // Stop cancels a start
		work.Go(func() error {
			if err := n.Stop(ctx, n.cfg.Name, id, 0); err != nil {
				return fmt.Errorf("stop boot %s: %w", id, err)
			}
			return nil
		})
	}
	return work.Wait()
}

// settleFence freezes bound Boots if the fence is closed, and thaws the ones it has
// frozen if it is open. It does not wait, and leaves out Boots that are being saved or
// changed: it is called again after the next renewal.
func (n *Node) settleFence(ctx context.Context) {
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
		if b.state == bound && !b.paused && b.fenced != fenced {
			all = append(all, b)
		}
	}
	return all
}

// settleBoot freezes or thaws a Boot, unless it is settled, or frozen by a pause.
func (n *Node) settleBoot(ctx context.Context, engine sandbox.Pauser, b *boot) {
	if !b.changing.TryLock() {
		return
	}
	defer b.changing.Unlock()
	fence := n.term.fenced()
	n.mu.Lock()
	settled := b.state != bound || b.paused || b.fenced == fence
	n.mu.Unlock()
	switch {
	case settled:
	case fence:
		n.setFenced(b, true) // before: a later process thaws it
		if err := engine.Freeze(ctx, b.id); err != nil {
			n.log.Warn("freezing a boot after the loss of the lease failed; it keeps running, but is cut off", telemetry.KeyBoot, b.id, telemetry.KeyError, err)
		}
	default:
		if err := engine.Thaw(ctx, b.id); err != nil {
			n.log.Warn("thawing a boot after the lease was renewed failed; will retry", telemetry.KeyBoot, b.id, telemetry.KeyError, err)
			return
		}
		n.setFenced(b, false)
	}
}

// setFenced records whether the fence has frozen b.
func (n *Node) setFenced(b *boot, fenced bool) {
	n.mu.Lock()
	b.fenced = fenced
	e, gone := b.entry(), n.boots[b.id] != b
	n.mu.Unlock()
	if gone {
		return
	}
	if err := n.journal.write(b.id, e); err != nil {
		n.log.Warn("writing to the journal that a boot is frozen failed", telemetry.KeyBoot, b.id, telemetry.KeyError, err)
	}
}
