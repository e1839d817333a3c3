package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// shrinkAfter is how long a Pool that grew with demand stays large without
	// any; then it shrinks a little every shrinkEvery.
	shrinkAfter = 2 * time.Minute
	shrinkEvery = time.Minute
	// resolveEvery is how often a Pool looks for a new version of its Template.
	resolveEvery = time.Minute
	// firstRetry and lastRetry bound the pause after a refill that failed.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// quiet is how long after a claim a Pool that is more than half full waits
	// before it is refilled.
	quiet = 200 * time.Millisecond
	// refillLimit bounds one refill.
	refillLimit = 2 * time.Minute
)

// A pool keeps blank Boots of one Template and Shape ready. All but the first
// four fields are guarded by Node.mu.
type pool struct {
	node  *Node
	cfg   PoolConfig
	shape sandbox.Shape
	kick  chan struct{} // something changed: look again

	image    string // digest of the Template's present version; empty: not known yet
	resolved time.Time
	stale    bool // a request named another image: look for a new version
	idle     []*boot
	starting int
	target   int       // idle Boots wanted now, from Min to Max
	grown    bool      // target grew since the Pool was last full
	drained  time.Time // when a claim last found the Pool empty or emptied it
	claimed  time.Time // when a Boot was last claimed
	shrunk   time.Time
	filled   bool // it has had its minimum once

	problem error // of the last attempt to fill it; nil: none
	pause   time.Duration
	retryAt time.Time

	hits, misses int64
}

func newPool(n *Node, cfg PoolConfig) *pool {
	cfg.Max = max(cfg.Max, 0)
	cfg.Min = min(max(cfg.Min, 0), cfg.Max)
	shape := cfg.Shape
	if shape == (sandbox.Shape{}) {
		shape = sandbox.DefaultShape()
	}
	return &pool{node: n, cfg: cfg, shape: shape, kick: make(chan struct{}, 1), target: cfg.Min}
}

// poolOf returns the Pool that may serve req, or nil.
func (n *Node) poolOf(req sandbox.StartRequest) *pool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.pools {
		if p.shape != req.Shape || p.cfg.Max == 0 {
			continue
		}
		if p.image == req.Image {
			return p
		}
		if p.cfg.Template == req.Binding.Template && p.image != "" {
			p.stale = true
			p.look()
		}
	}
	return nil
}

// look has the keeper look again.
func (p *pool) look() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// pop takes the newest idle Boot for req; nil when there is none.
func (p *pool) pop(req sandbox.StartRequest) *boot {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	var b *boot
	for i := len(p.idle) - 1; i >= 0 && b == nil; i-- {
		if p.idle[i].image == req.Image {
			b = p.idle[i]
			p.idle = slices.Delete(p.idle, i, i+1)
		}
	}
	if len(p.idle) == 0 {
		p.grow()
	}
	if b != nil {
		b.pooled = true
		b.give(req.Binding)
		p.claimed = time.Now()
	}
	p.look()
	return b
}

// grow doubles the target, once until the Pool is full again. Node.mu is held.
func (p *pool) grow() {
	p.drained = time.Now()
	if !p.grown {
		p.target = min(p.cfg.Max, max(1, 2*p.target))
		p.grown = true
	}
}

func (p *pool) hit() {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	p.hits++
}

func (p *pool) miss() {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	p.misses++
}

// dropIdle removes b if it is idle here. Node.mu is held.
func (p *pool) dropIdle(b *boot) {
	if i := slices.Index(p.idle, b); i >= 0 {
		p.idle = slices.Delete(p.idle, i, i+1)
		p.look()
	}
}

// park makes b idle. Node.mu is held.
func (p *pool) park(b *boot) {
	b.state = parked
	p.idle = append(p.idle, b)
	if len(p.idle) >= p.cfg.Min {
		p.filled = true
	}
	if len(p.idle) >= p.target {
		p.grown = false
	}
}

// adopt takes up a blank Boot that an earlier process left, if it fits.
func (p *pool) adopt(b *boot) bool {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	if b.shape != p.shape || p.image != "" && b.image != p.image || len(p.idle) >= p.cfg.Max {
		return false
	}
	p.node.boots[b.id] = b
	p.park(b)
	return true
}

// keep fills and trims the Pool until ctx ends. Its Boots outlive it.
func (p *pool) keep(ctx context.Context) error {
	var refills sync.WaitGroup
	defer refills.Wait()
	for {
		wait := p.step(ctx, &refills)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-p.kick:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
	}
}

// step does what is to be done now and returns when to look again at the
// latest.
func (p *pool) step(ctx context.Context, refills *sync.WaitGroup) time.Duration {
	p.resolve(ctx)
	for _, b := range p.surplus() {
		if err := p.node.destroy(ctx, b, 0); err != nil && ctx.Err() == nil {
			p.node.log.Warn("a boot of the pool stays", telemetry.KeyBoot, b.id, telemetry.KeyError, err)
		}
	}
	image, n, wait := p.wanted()
	for range n {
		refills.Go(func() { p.refill(ctx, image) })
	}
	return wait
}

// resolve looks for the Template's version when it is not known, old or said to
// be wrong.
func (p *pool) resolve(ctx context.Context) {
	p.node.mu.Lock()
	fresh := p.image != "" && !p.stale && time.Since(p.resolved) < resolveEvery
	p.node.mu.Unlock()
	if fresh {
		return
	}
	image, err := p.node.cfg.Images.Resolve(ctx, p.cfg.Template)
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	p.stale = false
	if err != nil {
		if p.image == "" {
			p.problem = err
		}
		return
	}
	p.resolved = time.Now()
	if p.image != image {
		p.image, p.problem, p.retryAt = image, nil, time.Time{}
		p.filled = p.filled || p.cfg.Min == 0
	}
}

// surplus takes out of the Pool what it should not hold: Boots of an old
// version, and the oldest of more than are wanted.
func (p *pool) surplus() []*boot {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	p.shrink()
	var out, keep []*boot
	extra := len(p.idle) - p.target
	for _, b := range p.idle {
		switch {
		case p.image != "" && b.image != p.image:
			out = append(out, b)
		case extra > 0:
			out = append(out, b)
			extra--
		default:
			keep = append(keep, b)
		}
	}
	p.idle = keep
	return out
}

// shrink lowers the target of a Pool that nobody has drained for a while.
// Node.mu is held.
func (p *pool) shrink() {
	now := time.Now()
	if p.target <= p.cfg.Min || now.Sub(p.drained) < shrinkAfter || now.Sub(p.shrunk) < shrinkEvery {
		return
	}
	p.target = max(p.cfg.Min, p.target*3/4)
	p.shrunk = now
}

// wanted reserves how many refills to begin now, and tells when to look again
// if nothing happens.
func (p *pool) wanted() (image string, n int, wait time.Duration) {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	if p.image == "" {
		return "", 0, firstRetry
	}
	if pause := time.Until(p.retryAt); pause > 0 {
		return "", 0, pause
	}
	// While most of it is there, whoever has just claimed gets the cores for
	// the first command.
	if pause := quiet - time.Since(p.claimed); pause > 0 && 2*len(p.idle) > p.target {
		return "", 0, pause
	}
	side := p.node.queue.slots
	if len(p.idle) > 0 { // leave cores to those who have just claimed
		side = max(1, side/2)
	}
	n = max(0, min(p.target-len(p.idle)-p.starting, side-p.starting))
	p.starting += n
	return p.image, n, min(shrinkEvery, resolveEvery)
}

// refill starts one Boot, when no request wants the slot, and parks it.
func (p *pool) refill(ctx context.Context, image string) {
	ctx, cancel := context.WithTimeout(ctx, refillLimit)
	defer cancel()
	b, err := p.startBlank(ctx, image)
	n := p.node
	n.mu.Lock()
	p.starting--
	dead := err == nil && (b.dead || b.state != starting)
	switch {
	case dead:
		err = errors.New("it ended at once")
	case err == nil:
		p.park(b)
	}
	p.note(ctx, err)
	n.mu.Unlock()
	if dead {
		if err := n.destroy(ctx, b, 0); err != nil {
			n.log.Warn("a boot that ended at once stays", telemetry.KeyBoot, b.id, telemetry.KeyError, err)
		}
	}
	p.look()
}

func (p *pool) startBlank(ctx context.Context, image string) (*boot, error) {
	n := p.node
	if err := n.queue.enterLast(ctx); err != nil {
		return nil, err
	}
	began := time.Now()
	defer func() { n.queue.leave(time.Since(began)) }()
	return n.startBoot(ctx, sandbox.NewBootID(), image, p.shape)
}

// note remembers how a refill went. Node.mu is held.
func (p *pool) note(ctx context.Context, err error) {
	switch {
	case err == nil:
		p.problem, p.pause, p.retryAt = nil, 0, time.Time{}
	case errors.Is(ctx.Err(), context.Canceled): // the server stops
	default:
		if p.problem == nil {
			p.node.log.Warn("the pool cannot be refilled", telemetry.KeyTemplate, p.cfg.Template, telemetry.KeyError, err)
		}
		p.problem = err
		p.pause = min(max(firstRetry, 2*p.pause), lastRetry)
		p.retryAt = time.Now().Add(p.pause)
	}
}

// stats returns the Pool's numbers. Node.mu is held.
func (p *pool) stats() sandbox.PoolStats {
	return sandbox.PoolStats{
		Template: p.cfg.Template, Shape: p.shape,
		Idle: len(p.idle), Starting: p.starting,
		Min: p.cfg.Min, Max: p.cfg.Max,
		Hits: p.hits, Misses: p.misses,
	}
}

// notReady says in a sentence what is missing; empty when nothing is. Node.mu
// is held.
func (p *pool) notReady() string {
	switch {
	case p.image == "" && p.problem != nil:
		return fmt.Sprintf("the template %q is not there: %s", p.cfg.Template, detailOf(p.problem))
	case p.image == "":
		return fmt.Sprintf("the template %q has not been looked for yet", p.cfg.Template)
	case p.problem != nil && len(p.idle) == 0 && p.cfg.Min > 0:
		return fmt.Sprintf("the pool of %q cannot be filled: %s", p.cfg.Template, detailOf(p.problem))
	case !p.filled:
		return fmt.Sprintf("the pool of %q has %d of %d boots", p.cfg.Template, len(p.idle), p.cfg.Min)
	}
	return ""
}
