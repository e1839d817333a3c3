package node

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// updateLimit bounds sending a change to a Boot: the Tenant controls its Guest, which may
// not answer.
const updateLimit = 5 * time.Second

// Update implements sandbox.Nodes. Limits come first, because only they may be refused.
// The journal comes last, so that a change that a crash interrupts is sent again.
func (n *Node) Update(ctx context.Context, node, bootID string, binding sandbox.Binding) error {
	if err := n.check(node); err != nil {
		return err
	}
	to := sandbox.BootRef{BootID: bootID, SandboxID: binding.SandboxID, Number: binding.BootNumber, Tenant: binding.Tenant}
	b, err := n.boundTo(to)
	if err != nil {
		return err
	}
	b.changing.Lock()
	defer b.changing.Unlock()
	if binding.Revision < n.revisionOf(b) {
		return sandbox.Errorf(sandbox.Conflict, "the sandbox got a newer update already")
	}
	ctx, cancel := context.WithTimeout(ctx, updateLimit)
	defer cancel()
	if err := n.engine.SetLimits(ctx, b.id, binding.Limits); err != nil {
		return err
	}
	g, each := errgroup.WithContext(ctx)
	g.Go(func() error { return n.engine.SetNetwork(each, b.id, binding.Network) })
	g.Go(func() error { return n.engine.SetSecrets(each, b.id, binding.Secrets) })
	g.Go(func() error {
		_, err := b.guest.Bind(each, binding)
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	return n.keepChange(b, binding)
}

func (n *Node) revisionOf(b *boot) int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return b.owner.revision
}

// keepChange records a change in force, unless b ends meanwhile: its journal entry may be
// gone by now and must not come back.
func (n *Node) keepChange(b *boot, binding sandbox.Binding) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if b.state != bound || n.boots[b.id] != b {
		return sandbox.Errorf(sandbox.NotFound, "the sandbox does not run here any more")
	}
	b.owner.network, b.owner.revision = binding.Network, binding.Revision
	b.owner.secrets = len(binding.Secrets.Headers) > 0
	return n.journal.write(b.id, b.entry())
}
