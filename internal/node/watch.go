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
	// relieveLimit bounds asking a Guest to free memory. The rest of OOMGrace is for the
	// memory to become free.
	relieveLimit = sandbox.OOMGrace * 3 / 4
	// reportLimit bounds one report of an end.
	reportLimit = 40 * time.Second
	firstReport = time.Second
	lastReport  = 30 * time.Second
	// compareSoon is the delay before the first comparison with the Engine's list: no
	// event reported earlier ends.
	compareSoon  = time.Second
	compareEvery = 30 * time.Second
)

// watch handles the Engine's events until ctx ends.
func (n *Node) watch(ctx context.Context) error {
	err := n.engine.Watch(ctx, func(e sandbox.BootEvent) { n.handle(ctx, e) })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(errors.New("the engine is not watched any more"), err)
}

func (n *Node) handle(ctx context.Context, e sandbox.BootEvent) {
	switch e.Kind {
	case sandbox.BootEnded:
		n.ended(e.ID, e.Cause)
	case sandbox.BootMemoryFull:
		n.relieve(ctx, e.ID)
	}
}

// ended records that a Boot ended by itself.
func (n *Node) ended(bootID string, cause sandbox.Cause) {
	switch cause {
	case sandbox.CauseOOM, sandbox.CauseGuestExit, sandbox.CauseDiskFull:
	default:
		cause = sandbox.CauseEngineLost
	}
	end := ending{Cause: cause, At: time.Now().UTC()}
	n.mu.Lock()
	b := n.boots[bootID]
	if b == nil || b.state == stopping {
		n.mu.Unlock()
		return
	}
	state := b.state
	switch state {
	case starting, giving:
		b.dead = true // its starter checks this
	case parked:
		for _, p := range n.pools {
			p.dropIdle(b)
		}
		n.unlist(b)
	case bound:
		n.reports.add(b, end)
		n.unlist(b)
	}
	n.mu.Unlock()
	switch state {
	case parked:
		n.log.Warn("a boot of the pool ended", telemetry.KeyBoot, bootID, "cause", cause)
		b.guest.Close()
	case bound:
		n.log.Info("a boot ended", telemetry.KeyBoot, bootID, telemetry.KeySandbox, b.owner.ref.SandboxID, "cause", cause)
		n.keepEnding(b, end)
		b.guest.Close()
		n.reports.tell(bootID)
	}
}

// keepEnding adds the end of b to its journal entry, so that a later process can report
// it.
func (n *Node) keepEnding(b *boot, end ending) {
	e := b.entry()
	e.Ended = &end
	if err := n.journal.write(b.id, e); err != nil {
		n.log.Warn("writing the cause of a boot's end to the journal failed", telemetry.KeyBoot, b.id, telemetry.KeyError, err)
	}
}

// relieve has the Guest of a Boot whose memory is full kill its biggest Process. One
// request at a time is enough.
func (n *Node) relieve(ctx context.Context, bootID string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	b := n.boots[bootID]
	if b == nil || b.state != bound || b.relieving {
		return
	}
	b.relieving = true
	n.wg.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, relieveLimit)
		defer cancel()
		if err := b.guest.KillBiggest(ctx); err != nil {
			n.log.Warn("a boot is out of memory: asking its guest to free some failed", telemetry.KeyBoot, bootID, telemetry.KeyError, err)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		b.relieving = false
	})
}

// reports are ends that the session manager has not accepted yet.
type reports struct {
	kick chan struct{}
	mu   *sync.Mutex
	ends map[string]pendingEnd // by Boot ID
}

type pendingEnd struct {
	sandbox.BootEnd
	ready bool // it is in the journal and may be reported
}

func newReports() reports {
	return reports{kick: make(chan struct{}, 1), mu: new(sync.Mutex), ends: map[string]pendingEnd{}}
}

// add records the end of b; tell reports it.
func (r *reports) add(b *boot, e ending) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ends[b.id] = pendingEnd{
		BootEnd: sandbox.BootEnd{BootRef: b.owner.ref, Cause: e.Cause, At: e.At},
	}
}

// tell releases the end of a Boot for reporting, now that it is journaled.
func (r *reports) tell(bootID string) {
	r.mu.Lock()
	if e, ok := r.ends[bootID]; ok {
		e.ready = true
		r.ends[bootID] = e
	}
	r.mu.Unlock()
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

func (r *reports) pending() []sandbox.BootEnd {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []sandbox.BootEnd
	for _, e := range r.ends {
		if e.ready {
			all = append(all, e.BootEnd)
		}
	}
	return all
}

func (r *reports) boots() []sandbox.BoundBoot {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []sandbox.BoundBoot
	for _, e := range r.ends {
		all = append(all, sandbox.BoundBoot{BootRef: e.BootRef})
	}
	return all
}

func (r *reports) accepted(bootID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.ends, bootID)
}

// report sends ends to the session manager until ctx ends; it retries until they are
// accepted.
func (n *Node) report(ctx context.Context) error {
	pause := firstReport
	for {
		var again <-chan time.Time
		if n.reportAll(ctx) {
			pause = firstReport
		} else {
			again, pause = time.After(pause), min(2*pause, lastReport)
		}
		select {
		case <-n.reports.kick:
		case <-again:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reportAll reports every pending end once; false when one was not accepted.
func (n *Node) reportAll(ctx context.Context) bool {
	var g errgroup.Group
	g.SetLimit(parallel)
	for _, e := range n.reports.pending() {
		g.Go(func() error { return n.reportOne(ctx, e) })
	}
	return g.Wait() == nil
}

func (n *Node) reportOne(ctx context.Context, e sandbox.BootEnd) error {
	limited, cancel := context.WithTimeout(ctx, reportLimit)
	defer cancel()
	e.Node = n.cfg.Name
	if err := n.cfg.OnEnd(limited, e); err != nil {
		if ctx.Err() == nil {
			n.log.Warn("reporting the end of a boot failed", telemetry.KeyBoot, e.BootID, telemetry.KeySandbox, e.SandboxID, telemetry.KeyError, err)
		}
		return err
	}
	n.reports.accepted(e.BootID)
	if err := n.journal.remove(e.BootID); err != nil {
		n.log.Warn("removing the journal of a reported boot failed", telemetry.KeyBoot, e.BootID, telemetry.KeyError, err)
	}
	return nil
}

// keepCompared runs compare regularly until ctx ends.
func (n *Node) keepCompared(ctx context.Context) error {
	for wait := compareSoon; ; wait = compareEvery {
		if err := sleep(ctx, wait); err != nil {
			return err
		}
		if err := n.compare(ctx); err != nil && ctx.Err() == nil {
			n.log.Warn("comparing boots with the engine's list failed", telemetry.KeyError, err)
		}
	}
}

// compare reconciles the Node's Boots with the Engine's list. Missing Boots have ended.
// Strays, and Boots that could not be stopped before, are stopped.
func (n *Node) compare(ctx context.Context) error {
	settled, unstopped := n.known() // before the list: a Boot missing in it is gone
	listed, err := n.engine.List(ctx)
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, status := range listed {
		there[status.ID] = true
		n.mu.Lock()
		known := n.boots[status.ID] != nil
		n.mu.Unlock()
		if !known {
			n.stopStray(ctx, status.ID)
		}
	}
	for _, id := range settled {
		if !there[id] {
			n.ended(id, sandbox.CauseEngineLost)
		}
	}
	for _, b := range unstopped {
		if err := n.destroy(ctx, b, 0); err != nil {
			return fmt.Errorf("stop boot %s: %w", b.id, err)
		}
	}
	return nil
}

// known returns the Boots that must run, and the Boots that should be gone.
func (n *Node) known() (settled []string, unstopped []*boot) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, b := range n.boots {
		switch b.state {
		case bound, parked:
			settled = append(settled, id)
		case stopping:
			unstopped = append(unstopped, b)
		}
	}
	return settled, unstopped
}

// stopStray stops a Boot that the Engine runs and this Node does not know.
func (n *Node) stopStray(ctx context.Context, bootID string) {
	n.log.Warn("stopping a boot without an owner", telemetry.KeyBoot, bootID)
	if err := n.engine.Stop(ctx, bootID, 0); err != nil {
		n.log.Warn("stopping a boot without an owner failed", telemetry.KeyBoot, bootID, telemetry.KeyError, err)
	}
}
