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
	// shrinkAfter is how long a Pool that grew keeps its size when demand falls; then it
	// shrinks a little every shrinkEvery.
	shrinkAfter = 2 * time.Minute
	shrinkEvery = time.Minute
	// measureEvery is how often a Pool looks at the memory of the host.
	measureEvery = 2 * time.Second
	// resolveEvery is how often a Pool looks for a new version of its Template.
	resolveEvery = time.Minute
	// firstRetry and lastRetry bound the pause after a refill that failed.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// quiet is how long after a claim a Pool waits before it is refilled: the claimed
	// Boot gets the cores for its first command. A Pool that is half empty or more waits
	// at most patience.
	quiet    = 200 * time.Millisecond
	patience = time.Second
	// refillLimit bounds one refill.
	refillLimit = 2 * time.Minute
)

// A pool keeps blank Boots of one Template and Shape ready. All but the first
// four fields are guarded by Node.mu.
type pool struct {
	node  *Node
	cfg   PoolConfig
	shape sandbox.Shape
	kick  chan struct{} // wakes the keeper

	image    string // digest of the Template's present version; empty: not known yet
	resolved time.Time
	stale    bool // a request named another image: resolve the Template again
	idle     []*boot
	starting int
	target   int           // idle Boots for demand, from Min to Max
	bearable int           // idle Boots that the memory of the host bears
	demand   demand        // requests that the Pool could serve
	pressed  time.Time     // when demand last needed target, or nearly
	took     time.Duration // refill duration, a moving average
	claimed  time.Time     // when a request last came, got a Boot, or started one cold
	binding  int           // requests whose Boots are being started or bound
	short    time.Time     // since when the Pool is half empty or more and claimed from; zero: it is not
	shrunk   time.Time
	filled   bool // it has once held its minimum

	problem error // of the last refill; nil: none
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
	return &pool{node: n, cfg: cfg, shape: shape, kick: make(chan struct{}, 1), target: cfg.Min, bearable: cfg.Max, took: firstTook}
}

// poolOf returns the Pool that may serve req with the least memory, or nil.
func (n *Node) poolOf(req sandbox.StartRequest) (best *pool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.pools {
		if !p.shape.Covers(req.Shape) || p.cfg.Max == 0 {
			continue
		}
		if p.image == req.Image {
			if best == nil || p.shape.MemoryBytes < best.shape.MemoryBytes {
				best = p
			}
			continue
		}
		if p.cfg.Template == req.Binding.Template && p.image != "" {
			p.stale = true
			p.look()
		}
	}
	return best
}

// look wakes the keeper.
func (p *pool) look() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// pop takes the newest idle Boot for req; nil: none.
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
	if b != nil {
		b.pooled = true
		b.give(req.Binding, p.node.term.latest().epoch)
		p.claimed = time.Now()
		p.binding++
		// The keeper would wait this long anyway, but would read the host's state first,
		// on a core that the Bind needs.
		time.AfterFunc(p.hold(p.claimed), p.look)
		return b
	}
	p.look()
	return nil
}

// bound notes that a Bind finished or failed, of a Boot from pop or a cold start after a
// miss. The keeper wakes by itself when refills may begin; see pop.
func (p *pool) bound() {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	p.binding--
	p.claimed = time.Now()
}

func (p *pool) hit() {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	p.hits++
}

// miss counts a request that found no Boot and starts cold. Until bound, and for its
// first command, refills leave it the cores as after a claim.
func (p *pool) miss() {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	p.misses++
	p.claimed = time.Now()
	p.binding++
	time.AfterFunc(quiet, p.look)
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
}

// adopt parks a blank Boot that an earlier process left, if it fits.
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

// step does the work that is due and returns the longest time until the next step.
func (p *pool) step(ctx context.Context, refills *sync.WaitGroup) time.Duration {
	p.resolve(ctx)
	p.measure()
	for _, b := range p.surplus() {
		if err := p.node.destroy(ctx, b, 0); err != nil && ctx.Err() == nil {
			p.node.log.Warn("destroying a boot of the pool failed", telemetry.KeyBoot, b.id, telemetry.KeyError, err)
		}
	}
	image, n, wait := p.wanted()
	for range n {
		refills.Go(func() { p.refill(ctx, image) })
	}
	return wait
}

// resolve looks up the Template's version if it is unknown, old or stale.
func (p *pool) resolve(ctx context.Context) {
	p.node.mu.Lock()
	fresh := p.image != "" && !p.stale && time.Since(p.resolved) < resolveEvery
	p.node.mu.Unlock()
	if fresh {
		return
	}
	image, err := p.node.cfg.Images.Resolve(ctx, "", p.cfg.Template)
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

// surplus removes from the Pool Boots of an old version and the oldest ones beyond its
// size.
func (p *pool) surplus() []*boot {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	p.shrink()
	var out, keep []*boot
	extra := len(p.idle) - p.size()
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

// wanted reserves how many refills to begin now; wait is when to look again at the
// latest.
func (p *pool) wanted() (image string, n int, wait time.Duration) {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	if p.image == "" {
		return "", 0, firstRetry
	}
	if pause := time.Until(p.retryAt); pause > 0 {
		return "", 0, pause
	}
	if pause := p.hold(time.Now()); pause > 0 {
		return "", 0, pause
	}
	side := p.node.queue.slots
	if len(p.idle) > 0 { // leave cores to recent claims
		side = max(1, side/2)
	}
	n = max(0, min(p.size()-len(p.idle)-p.starting, side-p.starting))
	p.starting += n
	return p.image, n, min(measureEvery, shrinkEvery, resolveEvery)
}

// hold is how long refills wait for recent claims; zero: not at all. Node.mu is held.
func (p *pool) hold(now time.Time) time.Duration {
	pause := quiet - now.Sub(p.claimed)
	if p.binding > 0 {
		pause = quiet
	}
	full := 2*len(p.idle) > p.size() // more than half
	if pause <= 0 || full {
		p.short = time.Time{}
		return max(pause, 0)
	}
	if p.short.IsZero() {
		p.short = now
	}
	return max(0, min(pause, patience-now.Sub(p.short)))
}

// refill starts one Boot, when no request needs the slot, and parks it.
func (p *pool) refill(ctx context.Context, image string) {
	b, took, err := p.startBlank(ctx, image)
	n := p.node
	n.mu.Lock()
	p.starting--
	dead := err == nil && (b.dead || b.state != starting)
	switch {
	case dead:
		err = errors.New("it ended at once")
	case err == nil:
		p.took += (took - p.took) / 8
		p.park(b)
	}
	p.note(ctx, err)
	n.mu.Unlock()
	if dead {
		if err := n.destroy(ctx, b, 0); err != nil {
			n.log.Warn("destroying a boot that ended at its start failed", telemetry.KeyBoot, b.id, telemetry.KeyError, err)
		}
	}
	p.look()
}

// startBlank waits for its turn, starts a Boot and returns how long that took.
func (p *pool) startBlank(ctx context.Context, image string) (_ *boot, took time.Duration, _ error) {
	n := p.node
	if err := n.cfg.Carrier.Present(ctx, image); err != nil { // as long as it takes
		return nil, 0, err
	}
	if err := n.queue.enterLast(ctx); err != nil { // waits while requests do
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, refillLimit)
	defer cancel()
	began := time.Now()
	defer func() { n.queue.leaveLast(time.Since(began)) }()
	if err := n.host.admit(false); err != nil {
		return nil, 0, err
	}
	b, err := n.startBoot(ctx, sandbox.NewBootID(), sandbox.BootSpec{Image: image, Shape: p.shape})
	if err != nil {
		return nil, 0, err
	}
	// Bind uses the connection that Park opens.
	if err := b.guest.Park(ctx, p.shape.Limits().Pids); err != nil {
		return nil, 0, errors.Join(err, n.destroy(context.WithoutCancel(ctx), b, 0))
	}
	return b, time.Since(began), nil
}

// note records the result of a refill. Node.mu is held.
func (p *pool) note(ctx context.Context, err error) {
	switch {
	case err == nil:
		p.problem, p.pause, p.retryAt = nil, 0, time.Time{}
	case errors.Is(ctx.Err(), context.Canceled): // the server stops
	default:
		if p.problem == nil {
			p.node.log.Warn("refilling the pool failed", telemetry.KeyTemplate, p.cfg.Template, telemetry.KeyError, err)
		}
		p.problem = err
		p.pause = min(max(firstRetry, 2*p.pause), lastRetry)
		p.retryAt = time.Now().Add(p.pause)
	}
}

// stats returns the Pool's numbers. Node.mu is held.
func (p *pool) stats() sandbox.PoolStats {
	return sandbox.PoolStats{
		Template: p.cfg.Template, Image: p.image, Shape: p.shape,
		Idle: len(p.idle), Starting: p.starting,
		Wanted: p.size(), Min: p.cfg.Min, Max: p.cfg.Max,
		Hits: p.hits, Misses: p.misses,
	}
}

// notReady is a sentence that says why the Pool is not ready; empty: ready. Node.mu is
// held.
func (p *pool) notReady() string {
	switch {
	case p.image == "" && p.problem != nil:
		return fmt.Sprintf("the template %q does not exist: %s", p.cfg.Template, detailOf(p.problem))
	case p.image == "":
		return fmt.Sprintf("the template %q has not been looked for yet", p.cfg.Template)
	case p.problem != nil && len(p.idle) == 0 && p.cfg.Min > 0:
		return fmt.Sprintf("the pool of %q cannot be filled: %s", p.cfg.Template, detailOf(p.problem))
	case !p.filled:
		return fmt.Sprintf("the pool of %q has %d of %d boots", p.cfg.Template, len(p.idle), p.cfg.Min)
	}
	return ""
}
