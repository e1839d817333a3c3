package node

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// bindLimit bounds a Bind of a Boot that was just started.
	bindLimit = 10 * time.Second
	// lateBindLimit is the same bound for a Boot whose memory is still on its way.
	lateBindLimit = 100 * time.Second
	// latePerStart is how many Boots start at a time, for each cold-start slot, from states
	// that are still on their way: such a start mostly waits for the network.
	latePerStart = 4
	// claimLimit bounds a Bind of a Boot from a Pool: a Boot that is slower is broken,
	// and the next one is at hand.
	claimLimit = 2 * time.Second
	// readyLimit bounds the wait for the Template's services.
	readyLimit = time.Minute
	// claimsPerStart is how many Boots of Pools are bound at a time per cold-start slot:
	// a claim mostly waits for others.
	claimsPerStart = 2
	// maxBinds is how many times a Bind is retried.
	maxBinds = 2
	// maxClaims is how many Boots from a Pool are tried before a cold start.
	maxClaims = 3
)

// Start implements sandbox.Nodes.
func (n *Node) Start(ctx context.Context, node string, req sandbox.StartRequest) (sandbox.Started, error) {
	if err := n.check(node); err != nil {
		return sandbox.Started{}, err
	}
	if err := checkStart(req); err != nil {
		return sandbox.Started{}, err
	}
	if err := n.checkLease(); err != nil {
		return sandbox.Started{}, err
	}
	if err := n.checkVolumes(ctx, req.Binding); err != nil {
		return sandbox.Started{}, err
	}
	ctx, a, there, err := n.arrive(ctx, req)
	if err != nil {
		return sandbox.Started{}, err
	}
	if there != nil {
		return sandbox.Started{BootID: there.id, Pooled: there.pooled}, nil
	}
	defer n.depart(req.Binding.SandboxID, a)
	// Before the start's turn, so that others do not wait for the image.
	if err := n.cfg.Carrier.Present(ctx, req.Image); err != nil {
		return sandbox.Started{}, err
	}
	// Again: a fetch may take longer than a Lease.
	if err := n.checkLease(); err != nil {
		return sandbox.Started{}, err
	}
	var b *boot
	if req.From == "" {
		n.ask(req)
		if b, err = n.claim(ctx, req, n.claimTurn); b == nil && err == nil {
			b, err = n.cold(ctx, req, turnsOf{n.queue, bindLimit})
		}
	} else {
		b, err = n.restore(ctx, req)
	}
	if err != nil {
		return sandbox.Started{}, err
	}
	return sandbox.Started{BootID: b.id, Pooled: b.pooled}, nil
}

// restore starts a Boot from a saved state. If the state was to leave, its move has failed.
func (n *Node) restore(ctx context.Context, req sandbox.StartRequest) (b *boot, err error) {
	err = n.fetched(ctx, req.From, false, func(arrives bool) error {
		turns := turnsOf{n.queue, bindLimit}
		if arrives {
			turns = turnsOf{n.late, lateBindLimit}
		}
		b, err = n.cold(ctx, req, turns)
		return err
	})
	if err == nil {
		n.stays(req.From)
	}
	return b, err
}

// fetched runs start, which starts a Boot from a saved state. If the state turns out
// damaged or missing and the Engine can fetch, it is fetched again and start retried
// once. The fetch happens outside the start's turn, so that others do not wait for it. With
// arrives, the rest of the state is still on its way; with whole it never is.
func (n *Node) fetched(ctx context.Context, snapshot string, whole bool, start func(arrives bool) error) error {
	for again := false; ; again = true {
		hold, err := n.fetch(ctx, snapshot, whole)
		if err != nil {
			return err
		}
		err = start(hold.Arrives)
		hold.Release()
		broken := errors.Is(err, sandbox.ErrDamaged) || errors.Is(err, sandbox.NotFound)
		if _, fetches := n.engine.(sandbox.Fetcher); again || !broken || !fetches {
			return err
		}
	}
}

func checkStart(req sandbox.StartRequest) error {
	switch {
	case !sandbox.ValidBootID(req.BootID):
		return sandbox.Errorf(sandbox.Invalid, "the boot ID is invalid")
	case !sandbox.ValidSandboxID(req.Binding.SandboxID):
		return sandbox.Errorf(sandbox.Invalid, "the sandbox ID is invalid")
	case req.Binding.BootNumber < 1:
		return sandbox.Errorf(sandbox.Invalid, "the boot number must be at least 1")
	case !req.Binding.Network.Valid():
		return sandbox.Errorf(sandbox.Invalid, "no such network policy")
	case req.From != "" && !sandbox.ValidSnapshotID(req.From):
		return sandbox.Errorf(sandbox.Invalid, "the snapshot ID is invalid")
	}
	if err := req.Shape.Check(); err != nil {
		return err
	}
	return req.Shape.CheckLimits(req.Binding.Limits)
}

// An arrival is a start in progress.
type arrival struct {
	number int64
	bootID string
	epoch  int64 // of the Lease when it began
	cancel context.CancelFunc
	done   chan struct{}
}

// arrive makes this request the only one that works on its Sandbox. It waits for an equal
// request, cancels older ones and destroys their Boots, and yields to newer ones with
// Conflict. It returns the Boot if it already runs.
func (n *Node) arrive(ctx context.Context, req sandbox.StartRequest) (context.Context, *arrival, *boot, error) {
	id, number := req.Binding.SandboxID, req.Binding.BootNumber
	for {
		n.mu.Lock()
		if number < n.fence.highest(id) {
			n.mu.Unlock()
			return ctx, nil, nil, sandbox.Errorf(sandbox.Conflict, "the sandbox has a newer boot")
		}
		n.fence.see(id, number)
		other, b := n.arriving[id], n.owners[id]
		if other == nil && b == nil {
			ctx, cancel := context.WithCancel(ctx)
			a := &arrival{number: number, bootID: req.BootID, epoch: n.term.latest().epoch, cancel: cancel, done: make(chan struct{})}
			n.arriving[id] = a
			n.mu.Unlock()
			return ctx, a, nil, nil
		}
		there := b != nil && b.state == bound && b.owner.ref.Number == number
		n.mu.Unlock()

		switch {
		case other != nil:
			if other.number < number {
				other.cancel()
			}
			select {
			case <-other.done:
			case <-ctx.Done():
				return ctx, nil, nil, ctx.Err()
			}
		case there:
			return ctx, nil, b, nil
		default:
			if err := n.destroy(ctx, b, 0); err != nil {
				return ctx, nil, nil, err
			}
		}
	}
}

func (n *Node) depart(sandboxID string, a *arrival) {
	a.cancel()
	n.mu.Lock()
	delete(n.arriving, sandboxID)
	n.mu.Unlock()
	close(a.done)
}

// A turn takes a slot of n.claims for a Tenant; the caller leaves it. False without an
// error: a cold start is better.
type turn func(ctx context.Context, tenant sandbox.TenantID) (bool, error)

// claimTurn waits for a turn. If the wait for a Boot of a Pool would be too long, it
// returns false and the request queues for a cold start. Without time left for a cold
// start, the refusal is returned at once.
func (n *Node) claimTurn(ctx context.Context, tenant sandbox.TenantID) (bool, error) {
	err := n.claims.enter(ctx, tenant)
	if errors.Is(err, sandbox.Unavailable) && n.queue.inTime(ctx) {
		return false, nil
	}
	return err == nil, err
}

// claimNow takes a turn without waiting, for a request that may start cold now.
func (n *Node) claimNow(_ context.Context, tenant sandbox.TenantID) (bool, error) {
	return n.claims.enterNow(tenant), nil
}

// claim gives a Boot of a Pool to the request's Sandbox; nil without an error: none is
// available.
func (n *Node) claim(ctx context.Context, req sandbox.StartRequest, turn turn) (*boot, error) {
	p := n.poolOf(req)
	if p == nil {
		return nil, nil
	}
	for range maxClaims {
		b, err := n.claimOne(ctx, p, req, turn)
		if b == nil && err == nil {
			break
		}
		if err == nil {
			p.hit()
			return b, nil
		}
		if b == nil || ctx.Err() != nil || errors.Is(err, sandbox.Invalid) {
			return nil, err
		}
		n.log.WarnContext(ctx, "binding a boot of the pool failed", telemetry.KeyBoot, b.id, telemetry.KeyError, err)
	}
	return nil, nil
}

// claimOne waits for its turn, takes a Boot from a Pool and binds it. Turns exist because
// serial binds serve half of many claims in half the time; concurrent ones all finish at
// the end. It returns no Boot when the Pool is empty, and the failed Boot with an error.
func (n *Node) claimOne(ctx context.Context, p *pool, req sandbox.StartRequest, turn turn) (*boot, error) {
	if has, err := turn(ctx, req.Binding.Tenant); err != nil || !has {
		return nil, err
	}
	began := time.Now()
	defer func() { n.claims.leave(req.Binding.Tenant, time.Since(began)) }()
	b := p.pop(req)
	if b == nil {
		return nil, nil
	}
	defer p.bound()
	return b, n.bind(ctx, b, req.Binding, claimLimit, func() {})
}

// turnsOf says in which queue a start waits, and how long its Bind may take.
type turnsOf struct {
	queue *queue
	bind  time.Duration
}

// cold waits for its turn and starts a Boot for the request.
func (n *Node) cold(ctx context.Context, req sandbox.StartRequest, turns turnsOf) (*boot, error) {
	observed := n.observe(StepQueue)
	err := turns.queue.enter(ctx, req.Binding.Tenant)
	if observed(err); err != nil {
		return nil, err
	}
	began := time.Now()
	leave := sync.OnceFunc(func() { turns.queue.leave(req.Binding.Tenant, time.Since(began)) })
	defer leave()
	if req.From == "" {
		// While this request waited, a refill may have been finished.
		if b, err := n.claim(ctx, req, n.claimNow); b != nil || err != nil {
			return b, err
		}
		if p := n.poolOf(req); p != nil {
			p.miss()
			defer p.bound()
		}
	}
	req.Binding.Restored = req.From != ""
	again := req.From != "" && req.Binding.BootNumber > 1
	if err := n.room(ctx, again); err != nil {
		return nil, err
	}
	b, err := n.startBoot(ctx, req.BootID, sandbox.BootSpec{Image: req.Image, Shape: req.Shape, From: req.From})
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	b.give(req.Binding, n.term.latest().epoch)
	b.held = req.From != ""
	n.mu.Unlock()
	if err := n.bind(ctx, b, req.Binding, turns.bind, leave); err != nil {
		return nil, err
	}
	return b, nil
}

// startBoot has the Engine start a Boot; the caller has checked the host's room. On error
// nothing is left of the Boot.
func (n *Node) startBoot(ctx context.Context, id string, spec sandbox.BootSpec) (*boot, error) {
	b := n.newBoot(id, spec.Image, spec.Shape)
	n.mu.Lock()
	if n.boots[id] != nil {
		n.mu.Unlock()
		return nil, sandbox.Errorf(sandbox.Conflict, "the boot runs already")
	}
	n.boots[id] = b // before it starts, so that compare does not take it for a stray
	n.mu.Unlock()
	step := StepStart
	if spec.From != "" {
		step = StepRestore
	}
	observed := n.observe(step)
	err := n.engine.Start(ctx, id, spec)
	if observed(err); err != nil {
		n.forget(b)
		return nil, err
	}
	return b, nil
}

// give makes the Sandbox of binding the owner of b, in a term of the Lease. Node.mu is
// held.
func (b *boot) give(binding sandbox.Binding, epoch int64) {
	b.epoch = epoch
	b.state = max(b.state, giving) // a Boot being stopped stays so
	b.owner = owner{
		ref:     sandbox.BootRef{BootID: b.id, SandboxID: binding.SandboxID, Number: binding.BootNumber, Tenant: binding.Tenant},
		network: binding.Network, secrets: len(binding.Secrets.Headers) > 0, volumes: mountedBy(binding.Volumes), revision: binding.Revision,
	}
}

// bind starts the life of b under its new owner. It calls begun when only the Template's
// services are still waited for. On error b is destroyed: it may hold secrets by now.
func (n *Node) bind(ctx context.Context, b *boot, binding sandbox.Binding, limit time.Duration, begun func()) error {
	observed := n.observe(StepBind)
	waits, err := n.tryBind(ctx, b, binding, limit)
	observed(err)
	begun()
	if err == nil {
		err = n.release(ctx, b)
	}
	if err == nil {
		n.mount(b)
	}
	if err == nil && waits {
		err = b.guest.Ready(ctx, readyLimit)
	}
	if err == nil {
		err = n.settle(b)
	}
	if err != nil {
		if destroyErr := n.destroy(ctx, b, 0); destroyErr != nil {
			n.log.WarnContext(ctx, "destroying a boot whose bind failed did not succeed", telemetry.KeyBoot, b.id, telemetry.KeyError, destroyErr)
		}
	}
	return err
}

// release thaws a restored Boot, now that it is bound.
func (n *Node) release(ctx context.Context, b *boot) error {
	n.mu.Lock()
	held := b.held
	b.held = false
	entry := b.entry()
	n.mu.Unlock()
	if !held {
		return nil
	}
	engine, err := n.pauser(n.cfg.Name)
	if err != nil {
		return err
	}
	if err := engine.Thaw(ctx, b.id); err != nil {
		return err
	}
	return n.journal.write(b.id, entry)
}

// tryBind journals the owner of b, then concurrently sets its network and limits and
// binds its Guest. No Process of the user runs before this returns.
func (n *Node) tryBind(ctx context.Context, b *boot, binding sandbox.Binding, limit time.Duration) (waits bool, err error) {
	if err := n.journal.write(b.id, b.entry()); err != nil {
		return false, err
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	g, each := errgroup.WithContext(limited)
	if binding.Network != sandbox.NetworkNone { // the default of a Boot
		g.Go(func() error { return n.engine.SetNetwork(each, b.id, binding.Network) })
	}
	if len(binding.Secrets.Headers) > 0 { // none is the default
		g.Go(func() error { return n.engine.SetSecrets(each, b.id, binding.Secrets) })
	}
	// Full limits are the default. A saved Boot may have had more than its owner has now.
	if binding.Restored || binding.Limits != b.shape.Limits() {
		g.Go(func() error { return n.engine.SetLimits(each, b.id, binding.Limits) })
	}
	g.Go(func() (err error) {
		waits, err = bindGuest(each, b, binding)
		return err
	})
	err = g.Wait()
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		err = sandbox.Errorf(sandbox.Unavailable, "the sandbox did not answer in time").WithCause(err)
	}
	return waits, err
}

// bindGuest binds the Guest of b. It retries if the answer is lost, as when the link
// shard is replaced: Bind is idempotent.
func bindGuest(ctx context.Context, b *boot, binding sandbox.Binding) (waits bool, err error) {
	for attempt := 0; ; attempt++ {
		waits, err = b.guest.Bind(ctx, binding)
		if !errors.Is(err, sandbox.Unavailable) || attempt == maxBinds || ctx.Err() != nil {
			return waits, err
		}
	}
}

// settle records that b is bound, unless it died meanwhile.
func (n *Node) settle(b *boot) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if b.dead || b.state != giving {
		return sandbox.Errorf(sandbox.Unavailable, "the sandbox ended while it started")
	}
	b.state = bound
	n.owners[b.owner.ref.SandboxID] = b
	return nil
}
