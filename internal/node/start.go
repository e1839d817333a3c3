package node

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// bindLimit bounds a Bind of a Boot that was just started.
	bindLimit = 10 * time.Second
	// claimLimit bounds a Bind of a Boot from a Pool: one that does not answer
	// soon is broken, and the next is at hand.
	claimLimit = 2 * time.Second
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
	ctx, a, there, err := n.arrive(ctx, req)
	if err != nil {
		return sandbox.Started{}, err
	}
	if there != nil {
		return sandbox.Started{BootID: there.id, Pooled: there.pooled}, nil
	}
	defer n.depart(req.Binding.SandboxID, a)
	b, err := n.claim(ctx, req)
	if b == nil && err == nil {
		b, err = n.cold(ctx, req)
	}
	if err != nil {
		return sandbox.Started{}, err
	}
	return sandbox.Started{BootID: b.id, Pooled: b.pooled}, nil
}

func checkStart(req sandbox.StartRequest) error {
	switch {
	case !sandbox.ValidBootID(req.BootID):
		return sandbox.Errorf(sandbox.Invalid, "the boot ID is not one")
	case !sandbox.ValidSandboxID(req.Binding.SandboxID):
		return sandbox.Errorf(sandbox.Invalid, "the sandbox ID is not one")
	case req.Binding.BootNumber < 1:
		return sandbox.Errorf(sandbox.Invalid, "the boot number must be at least 1")
	case !req.Binding.Network.Valid():
		return sandbox.Errorf(sandbox.Invalid, "there is no such network policy")
	}
	return req.Shape.Check()
}

// An arrival is a start under way.
type arrival struct {
	number int64
	bootID string
	cancel context.CancelFunc
	done   chan struct{}
}

// arrive makes this request the only one that works on its Sandbox: it waits
// for an equal one, puts an end to older ones and to what they left, and gives
// way to newer ones with Conflict. It returns the Boot when it is there
// already.
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
			a := &arrival{number: number, bootID: req.BootID, cancel: cancel, done: make(chan struct{})}
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

// claim gives a Boot of a Pool to the request's Sandbox; nil without an error
// when none is to be had.
func (n *Node) claim(ctx context.Context, req sandbox.StartRequest) (*boot, error) {
	p := n.poolOf(req)
	if p == nil {
		return nil, nil
	}
	for range maxClaims {
		b := p.pop(req)
		if b == nil {
			break
		}
		err := n.bind(ctx, b, req.Binding, claimLimit)
		if err == nil {
			p.hit()
			return b, nil
		}
		if ctx.Err() != nil || errors.Is(err, sandbox.Invalid) {
			return nil, err
		}
		n.log.Warn("a boot of the pool could not be bound", telemetry.KeyBoot, b.id, telemetry.KeyError, err)
	}
	return nil, nil
}

// cold starts a Boot for the request, when its turn comes.
func (n *Node) cold(ctx context.Context, req sandbox.StartRequest) (*boot, error) {
	if err := n.queue.enter(ctx, req.Binding.Tenant); err != nil {
		return nil, err
	}
	began := time.Now()
	defer func() { n.queue.leave(time.Since(began)) }()
	// While this request waited, a refill may have been finished.
	if b, err := n.claim(ctx, req); b != nil || err != nil {
		return b, err
	}
	if p := n.poolOf(req); p != nil {
		p.miss()
	}
	b, err := n.startBoot(ctx, req.BootID, req.Image, req.Shape)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	b.give(req.Binding)
	n.mu.Unlock()
	if err := n.bind(ctx, b, req.Binding, bindLimit); err != nil {
		return nil, err
	}
	return b, nil
}

// startBoot has the Engine start a Boot if the host has room for it. On error
// nothing is left of it.
func (n *Node) startBoot(ctx context.Context, id, image string, shape sandbox.Shape) (*boot, error) {
	if err := n.host.admit(); err != nil {
		return nil, err
	}
	b := n.newBoot(id, image, shape)
	n.mu.Lock()
	if n.boots[id] != nil {
		n.mu.Unlock()
		return nil, sandbox.Errorf(sandbox.Conflict, "the boot runs already")
	}
	n.boots[id] = b // before it starts, so that no comparison takes it for a stray
	n.mu.Unlock()
	if err := n.engine.Start(ctx, id, sandbox.BootSpec{Image: image, Shape: shape}); err != nil {
		n.forget(b)
		return nil, err
	}
	return b, nil
}

// give makes the Sandbox of binding the owner of b. Node.mu is held.
func (b *boot) give(binding sandbox.Binding) {
	b.state = max(b.state, giving) // one that is being stopped stays so
	b.owner = owner{
		ref:     sandbox.BootRef{BootID: b.id, SandboxID: binding.SandboxID, Number: binding.BootNumber},
		tenant:  binding.Tenant,
		network: binding.Network,
	}
}

// bind opens the life of b under the owner it was given. On error b is
// destroyed: it may know secrets by now.
func (n *Node) bind(ctx context.Context, b *boot, binding sandbox.Binding, limit time.Duration) error {
	err := n.tryBind(ctx, b, binding, limit)
	if err == nil {
		err = n.settle(b)
	}
	if err != nil {
		if destroyErr := n.destroy(ctx, b, 0); destroyErr != nil {
			n.log.Warn("a boot that could not be bound is still there", telemetry.KeyBoot, b.id, telemetry.KeyError, destroyErr)
		}
	}
	return err
}

// tryBind journals whom b belongs to, then sets its network and binds its Guest
// side by side: no Process of the user runs before this returns.
func (n *Node) tryBind(ctx context.Context, b *boot, binding sandbox.Binding, limit time.Duration) error {
	if err := n.journal.write(b.id, b.entry()); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	g, each := errgroup.WithContext(limited)
	if binding.Network != sandbox.NetworkNone { // which is what a Boot starts with
		g.Go(func() error { return n.engine.SetNetwork(each, b.id, binding.Network) })
	}
	g.Go(func() error { return b.guest.Bind(each, binding) })
	err := g.Wait()
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return sandbox.Errorf(sandbox.Unavailable, "the sandbox did not answer in time").WithCause(err)
	}
	return err
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
