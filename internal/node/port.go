package node

import (
	"context"
	"errors"
	"io"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// carriers bounds concurrent exports and imports: each reads or writes at full disk
// speed.
const carriers = 4

// porter returns the Engine's Porter for one export or import; call done after it.
func (n *Node) porter(node string) (_ sandbox.Porter, done func(), err error) {
	engine, err := n.pauser(node)
	if err != nil {
		return nil, nil, err
	}
	p, ok := engine.(sandbox.Porter)
	if !ok {
		return nil, nil, sandbox.Errorf(sandbox.Unsupported, "the engine %s cannot carry saved state elsewhere", n.features.Name)
	}
	done, err = n.carrier("snapshots are exported and imported")
	return p, done, err
}

// carrier begins one export or import; kind is for the error.
func (n *Node) carrier(kind string) (done func(), err error) {
	select {
	case n.carrying <- struct{}{}:
		return func() { <-n.carrying }, nil
	default:
		e := sandbox.Errorf(sandbox.Exhausted, "%d %s at the moment: try again soon", carriers, kind)
		e.RetryAfter = retryAfter
		return nil, e
	}
}

// ExportSaved implements sandbox.Nodes.
func (n *Node) ExportSaved(ctx context.Context, node, snapshot string, image bool, w io.Writer) error {
	engine, done, err := n.porter(node)
	if err != nil {
		return err
	}
	defer done()
	return engine.ExportSaved(ctx, snapshot, image, w)
}

// ImportSaved implements sandbox.Nodes.
func (n *Node) ImportSaved(ctx context.Context, node string, tenant sandbox.TenantID, snapshot, image string, r io.Reader) (sandbox.Saved, error) {
	engine, done, err := n.porter(node)
	if err != nil {
		return sandbox.Saved{}, err
	}
	defer done()
	if !sandbox.ValidSnapshotID(snapshot) {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Invalid, "the snapshot ID is invalid")
	}
	if image != "" {
		// The Engine says what to do about an image that is nowhere.
		if err := n.cfg.Carrier.Present(ctx, image); err != nil && !errors.Is(err, sandbox.NotFound) {
			return sandbox.Saved{}, err
		}
	}
	saved, err := engine.ImportSaved(ctx, snapshot, r)
	if err != nil {
		return saved, err
	}
	return n.brought(ctx, saved, tenant, snapshot)
}

// brought takes up a state that came from another host.
func (n *Node) brought(ctx context.Context, saved sandbox.Saved, tenant sandbox.TenantID, snapshot string) (sandbox.Saved, error) {
	// The image may have come with it, and the Template that is made of it is elsewhere.
	if err := n.cfg.Carrier.Offer(ctx, saved.Image); err != nil {
		undo, cancel := uncancelled(ctx)
		defer cancel()
		return sandbox.Saved{}, errors.Join(err, n.DeleteSaved(undo, n.cfg.Name, snapshot))
	}
	n.share(ctx, snapshot, tenant)
	return saved, nil
}

// FetchSaved implements sandbox.Nodes.
func (n *Node) FetchSaved(ctx context.Context, node string, r sandbox.FetchRequest) (sandbox.Saved, error) {
	engine, done, err := n.porter(node)
	if err != nil {
		return sandbox.Saved{}, err
	}
	defer done()
	replicator, ok := engine.(sandbox.Replicator)
	if !ok {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Unsupported, "snapshots have no copies outside of their node: set CLOUD_SANDBOX_BLOBS")
	}
	if !sandbox.ValidSnapshotID(r.From) || !sandbox.ValidSnapshotID(r.Snapshot) {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Invalid, "the snapshot ID is invalid")
	}
	// Much of a replica is downloaded before the Engine sees what it needs.
	if err := n.features.CPU.Admit(r.CPU, n.cfg.Name); err != nil {
		return sandbox.Saved{}, err
	}
	if err := n.cfg.Carrier.Present(ctx, r.Image); err != nil && !errors.Is(err, sandbox.NotFound) {
		return sandbox.Saved{}, err
	}
	observed := n.observe(StepFetch)
	saved, err := replicator.FetchSaved(ctx, r.Snapshot, r.From, string(r.Tenant))
	if observed(err); err != nil {
		return sandbox.Saved{}, err
	}
	return n.brought(ctx, saved, r.Tenant, r.Snapshot)
}
