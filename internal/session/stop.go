package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// End implements sandbox.Sandboxes. Of concurrent calls, one ends the Sandbox; the others
// wait for that and return NotFound. Once the end is recorded, it is carried out even if
// ctx ends.
func (m *Manager) End(ctx context.Context, tenant sandbox.TenantID, idOrName string, cause sandbox.Cause) (sandbox.Sandbox, error) {
	sb, err := m.Get(ctx, tenant, idOrName)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return m.endLive(ctx, sb.ID, loss{cause: cause}, nil)
}

// endLive ends a Sandbox that may still be starting. It does nothing if still is not nil and
// returns false for the current record.
func (m *Manager) endLive(ctx context.Context, id string, l loss, still func(sandbox.Sandbox) bool) (sandbox.Sandbox, error) {
	if still != nil {
		if sb, err := m.store.SandboxByID(ctx, id); err != nil || !still(sb) {
			return sb, err
		}
	}
	first, err := m.abandon(ctx, id, l.cause)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	sb, err := m.endLost(ctx, id, l, still)
	switch {
	case first && errors.Is(err, sandbox.NotFound):
		return m.store.SandboxByID(ctx, id) // the cancelled create ended it
	case first:
		return sb, sandbox.Begun(err) // the create is cancelled
	}
	return sb, err
}

// EndAll ends every Sandbox of every Tenant on Nodes of a Holder except paused ones, and
// returns the number that it ended. It continues after failures and returns them joined.
// It is for a host where nothing runs any more: usage counts until each Sandbox was last
// known to run. Sandboxes on Nodes of earlier versions, which recorded no Holder, are ended
// too, and all of them for an empty holder, which is unknown.
func (m *Manager) EndAll(ctx context.Context, holder string, cause sandbox.Cause) (int, error) {
	nodes, err := m.store.Nodes(ctx)
	if err != nil {
		return 0, err
	}
	elsewhere := map[string]bool{}
	for _, n := range nodes {
		elsewhere[n.Name] = holder != "" && n.Holder != "" && n.Holder != holder
	}
	return m.endOn(ctx, nodes, func(node string) bool { return !elsewhere[node] }, loss{cause: cause})
}

// NodeEnded implements sandbox.BootEnds.
func (m *Manager) NodeEnded(ctx context.Context, node, holder string) (int, error) {
	nodes, err := m.store.Nodes(ctx)
	if err != nil {
		return 0, err
	}
	for _, n := range nodes {
		if n.Name == node && n.Holder != "" && n.Holder != holder {
			return 0, sandbox.Errorf(sandbox.Conflict, "another machine is the node %q now, and its sandboxes keep running", node)
		}
	}
	return m.endOn(ctx, nodes, func(other string) bool { return other == node }, loss{cause: sandbox.CauseOperator, down: true})
}

// endOn ends every Sandbox on some of the Nodes except paused ones, and returns their number.
func (m *Manager) endOn(ctx context.Context, nodes []sandbox.NodeRecord, on func(node string) bool, l loss) (int, error) {
	records, err := m.store.SandboxesNotEnded(ctx)
	if err != nil {
		return 0, err
	}
	ran := map[string]time.Time{}
	for _, n := range nodes {
		ran[n.Name] = vouched(n)
	}
	there := func(sb sandbox.Sandbox) bool { return sb.State != sandbox.Paused && on(sb.Boot.Node) }
	var ended atomic.Int64
	work := newGroup()
	for _, sb := range records {
		if !there(sb) {
			continue
		}
		work.do(func() error {
			l := l
			l.ran = cmp.Or(ran[sb.Boot.Node], lastCounted)
			// While others ended, it may have been paused, or moved to another Node.
			present, err := m.endLive(ctx, sb.ID, l, there)
			if errors.Is(err, sandbox.NotFound) {
				return nil // already ended
			}
			if err == nil && present.State == sandbox.Ended {
				ended.Add(1)
			}
			return err
		})
	}
	err = work.wait()
	return int(ended.Load()), err
}

// BootEnded implements sandbox.BootEnds.
func (m *Manager) BootEnded(ctx context.Context, e sandbox.BootEnd) error {
	_, err := m.lose(ctx, e.SandboxID, loss{cause: e.Cause, at: e.At, ran: e.At}, func(sb sandbox.Sandbox) bool {
		if sb.Boot.Number != e.Number || sb.Boot.Node != e.Node {
			return false
		}
		// A pooled Boot keeps its own ID, which is recorded only when it runs. A Boot
		// that dies during a resume is left to the resume or to reconciling.
		return sb.State == sandbox.Starting || sb.Boot.ID == e.BootID && sb.State != sandbox.Resuming
	})
	if errors.Is(err, sandbox.NotFound) {
		return nil
	}
	return err
}

// end records the end of a Sandbox, carries it out and records the Sandbox as ended. It
// finishes an end recorded earlier with that end's cause. It does nothing if still is not
// nil and returns false for the current record. It returns NotFound for a Sandbox that
// has ended.
func (m *Manager) end(ctx context.Context, id string, cause sandbox.Cause, still func(sandbox.Sandbox) bool) (sandbox.Sandbox, error) {
	return m.endLost(ctx, id, loss{cause: cause}, still)
}

// endLost is end for a Sandbox whose Boot may be lost.
func (m *Manager) endLost(ctx context.Context, id string, l loss, still func(sandbox.Sandbox) bool) (sandbox.Sandbox, error) {
	release, err := m.locks.acquire(ctx, id)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer release()
	sb, err := m.decide(ctx, id, l, still)
	if err != nil || sb.Live() {
		return sb, sandbox.NotBegun(err)
	}
	if sb, err = m.finish(context.WithoutCancel(ctx), sb, l.down); err != nil {
		m.mendSoon()
		return sandbox.Sandbox{}, fmt.Errorf("end sandbox: %w", err)
	}
	m.log.InfoContext(ctx, "a sandbox ended", telemetry.KeySandbox, sb.ID, telemetry.KeyTenant, sb.Tenant, telemetry.KeyNode, sb.Boot.Node, "cause", sb.Ended.Cause)
	m.cfg.Ended(ctx, sb)
	m.sweepSoon() // its Snapshots may be unneeded now
	return sb, nil
}

// decide records the end of a Sandbox and its cause, and returns the record: stopping, or
// still live if still returned false.
func (m *Manager) decide(ctx context.Context, id string, l loss, still func(sandbox.Sandbox) bool) (sandbox.Sandbox, error) {
	for range tries(ctx) {
		sb, err := m.store.SandboxByID(ctx, id)
		switch {
		case err != nil:
			return sandbox.Sandbox{}, err
		case sb.State == sandbox.Ended:
			return sandbox.Sandbox{}, notFound()
		case sb.State == sandbox.Stopping:
			return sb, nil
		case still != nil && !still(sb):
			return sb, nil
		}
		if err := sb.To(sandbox.Stopping); err != nil {
			return sandbox.Sandbox{}, err
		}
		sb.Ended, sb.MeteredAt = &sandbox.TerminationRecord{Cause: l.cause, At: now()}, l.used()
		if sb, err = m.store.UpdateSandbox(ctx, sb); !isConflict(err) {
			return sb, err
		}
	}
	return sandbox.Sandbox{}, errRaced()
}

// finish stops the Boots of a stopping Sandbox, unless its Node is down, and records it as
// ended.
func (m *Manager) finish(ctx context.Context, sb sandbox.Sandbox, down bool) (sandbox.Sandbox, error) {
	m.untrack(sb.ID)
	stopping, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	if down {
		m.log.InfoContext(ctx, "a sandbox ends with its node", telemetry.KeySandbox, sb.ID, telemetry.KeyNode, sb.Boot.Node)
	} else if err := m.stopBoots(stopping, sb); err != nil {
		if now().Sub(sb.Ended.At) < stopPatience {
			return sb, err
		}
		m.log.ErrorContext(ctx, "recorded a sandbox as ended although stopping its boot failed",
			telemetry.KeySandbox, sb.ID, telemetry.KeyBoot, sb.Boot.ID, telemetry.KeyNode, sb.Boot.Node, telemetry.KeyError, err)
	}
	if err := sb.To(sandbox.Ended); err != nil {
		return sb, err
	}
	sb.Ended.OutputTail = m.tails.end(sb.ID)
	recording, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	return m.store.UpdateSandbox(recording, sb)
}

// stopBoots stops the Boot of a Sandbox. A Sandbox that never ran may have a pooled Boot
// whose ID was not recorded; the Node lists it. A Node counts as stopped once nodeLost
// reports it lost.
func (m *Manager) stopBoots(ctx context.Context, sb sandbox.Sandbox) error {
	if sb.Boot.ID == "" { // it was paused
		m.left(ctx, sb.ID)
		return nil
	}
	ids := []string{sb.Boot.ID}
	err := func() error {
		if sb.StartedAt.IsZero() {
			boots, err := m.nodes.Boots(ctx, sb.Boot.Node)
			if err != nil {
				return err
			}
			for _, b := range boots {
				if b.SandboxID == sb.ID && b.BootID != sb.Boot.ID {
					ids = append(ids, b.BootID)
				}
			}
		}
		for _, id := range ids {
			if err := m.nodes.Stop(ctx, sb.Boot.Node, id, m.cfg.StopGrace); err != nil {
				return err
			}
		}
		return nil
	}()
	if errors.Is(err, sandbox.Unavailable) {
		if _, lost, lostErr := m.nodeLost(ctx, sb.Boot.Node); lostErr == nil && lost {
			return nil
		}
	}
	return err
}

// mendSoon makes Run reconcile soon.
func (m *Manager) mendSoon() {
	select {
	case m.mendCh <- struct{}{}:
	default:
	}
}
