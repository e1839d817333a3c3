package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	firstMend = time.Second
	lastMend  = 30 * time.Second
	// listLimit bounds listing the Boots or traffic of a Node.
	listLimit = 10 * time.Second
	// nodeKept is how long after its Lease the record of an empty Node is kept.
	nodeKept = 24 * time.Hour
)

// keepReconciled reconciles at once, then regularly, and soon after a failure, until ctx
// ends.
func (m *Manager) keepReconciled(ctx context.Context) error {
	pause := firstMend
	for {
		wait := m.cfg.ReconcileEvery
		if err := m.Reconcile(ctx); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			m.log.Warn("reconcile", telemetry.KeyError, err)
			wait, pause = pause, min(2*pause, lastMend)
		} else {
			pause = firstMend
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-m.lostCh: // an operator waits
			timer.Stop()
			pause = firstMend
		case <-m.mendCh:
			timer.Stop()
			if err := sleep(ctx, pause); err != nil { // give the failure time to recover
				return err
			}
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// Reconcile makes the records and the Boots of the Nodes agree. It undoes creates, pauses
// and resumes that no process works on, and finishes recorded ends. A Sandbox whose Boot
// is gone returns to its last checkpoint, or ends with engine_lost, or with node_lost
// when its Node is gone. A Boot with an old Revision is updated; a Boot that no record
// owns is stopped. Unneeded Snapshots, half-made or half-deleted Volumes and the records
// of former Nodes are deleted.
// Reconcile continues after failures and returns them joined. Run calls it; a Node's
// report may too.
func (m *Manager) Reconcile(ctx context.Context) error {
	// The order matters: a Boot is bound before it is recorded as running, so a Boot
	// missing from a list made after reading the records is truly gone.
	records, err := m.store.SandboxesNotEnded(ctx)
	if err != nil {
		return err
	}
	nodes, err := m.store.Nodes(ctx)
	if err != nil {
		return err
	}
	live := map[string]bool{}
	for _, sb := range records {
		live[sb.ID] = true
	}
	m.tails.sweep(live)
	m.forgetAbsent(records)
	byNode := map[string][]sandbox.Sandbox{}
	for _, n := range nodes {
		byNode[n.Name] = nil
	}
	for _, sb := range records {
		byNode[sb.Boot.Node] = append(byNode[sb.Boot.Node], sb)
	}
	work := newGroupOf(parallelNodes)
	for node, records := range byNode {
		work.do(func() error {
			if err := m.reconcileNode(ctx, node, records); err != nil {
				return fmt.Errorf("node %s: %w", node, err)
			}
			return nil
		})
	}
	failed := errors.Join(work.wait(), m.retireNodes(ctx))
	if err := m.sweepAll(ctx); err != nil {
		return errors.Join(failed, fmt.Errorf("sweep: %w", err))
	}
	return failed
}

// retireNodes deletes the records of Nodes that have been away for long and hold nothing.
func (m *Manager) retireNodes(ctx context.Context) error {
	names, err := m.store.RetireNodes(ctx, nodeKept)
	for _, name := range names {
		m.log.Info("retired a node that has been away", telemetry.KeyNode, name)
	}
	return err
}

// reconcileNode compares the records of a Node with its Boots.
func (m *Manager) reconcileNode(ctx context.Context, node string, records []sandbox.Sandbox) error {
	listing, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	at := now()
	boots, err := m.bootsOf(listing, node)
	gone := loss{cause: sandbox.CauseEngineLost, ran: lastCounted}
	if errors.Is(err, sandbox.Unavailable) || err != nil && listing.Err() != nil {
		n, lost, lostErr := m.nodeLost(ctx, node)
		if lostErr != nil {
			return lostErr
		}
		if lost && len(records) == 0 {
			return nil // an old Node without Sandboxes
		}
		if lost {
			gone, err = loss{cause: sandbox.CauseNodeLost, ran: vouched(n)}, nil
		}
	}
	if err != nil {
		return err
	}
	there, runs := map[sandbox.BootRef]sandbox.BoundBoot{}, map[string]bool{}
	for _, b := range boots {
		there[b.BootRef] = b
		runs[b.SandboxID] = true
	}
	work := newGroup()
	work.do(func() error { return m.countUsage(ctx, records, there, at) })
	for _, sb := range records {
		b, ok := there[refOf(sb)]
		work.do(func() error { return m.reconcileRecord(ctx, sb, ok, gone) })
		switch {
		case !sb.MayRun || gone.cause == sandbox.CauseNodeLost:
		case runs[sb.ID]:
			m.mu.Lock()
			delete(m.absent, absentBoot{sb.ID, sb.Boot.Number})
			m.mu.Unlock()
		default:
			work.do(func() error { return m.runsNot(ctx, sb, at) })
		}
		if ok && sb.State == sandbox.Running && b.Revision != sb.Revision {
			work.do(func() error { return m.resendRecord(ctx, sb.ID) })
		}
	}
	owners := make(map[string]sandbox.Sandbox, len(records))
	for _, sb := range records {
		owners[sb.ID] = sb
	}
	for _, b := range boots {
		// If its owner has ended since the records were read, that end stops the Boot.
		if sb, ok := owners[b.SandboxID]; ok && owns(sb, node, b) {
			continue
		}
		work.do(func() error { return m.reconcileBoot(ctx, node, b) })
	}
	return work.wait()
}

// bootsOf lists the Boots of a Node; Unavailable if it is lost.
func (m *Manager) bootsOf(ctx context.Context, node string) ([]sandbox.BoundBoot, error) {
	if m.isLost(node) {
		return nil, sandbox.Errorf(sandbox.Unavailable, "the node is lost")
	}
	return m.nodes.Boots(ctx, node)
}

// startsEnd is a time in which each start on a Node has ended, and is listed if it
// succeeded.
const startsEnd = resumeLimit + time.Minute

// absentBoot identifies a Boot that may run, by its Sandbox and number.
type absentBoot struct {
	sandbox string
	number  int64
}

// forgetAbsent forgets Boots that were absent and do not matter any more.
func (m *Manager) forgetAbsent(records []sandbox.Sandbox) {
	may := map[absentBoot]bool{}
	for _, sb := range records {
		if sb.MayRun {
			may[absentBoot{sb.ID, sb.Boot.Number}] = true
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.absent, func(b absentBoot, _ time.Time) bool { return !may[b] })
}

// runsNot records that no Boot of sb, which is paused, is on its Node, once the Node has not
// listed one for startsEnd.
func (m *Manager) runsNot(ctx context.Context, sb sandbox.Sandbox, at time.Time) error {
	key := absentBoot{sb.ID, sb.Boot.Number}
	m.mu.Lock()
	first, seen := m.absent[key]
	if !seen {
		m.absent[key] = at
	}
	m.mu.Unlock()
	if !seen || at.Sub(first) < startsEnd {
		return nil
	}
	snap, err := m.store.SnapshotByID(ctx, sb.Snapshot)
	if err != nil && !errors.Is(err, sandbox.NotFound) {
		return err
	}
	_, err = m.change(ctx, sb.ID, func(s *sandbox.Sandbox) error {
		if s.State == sandbox.Paused && s.Boot == sb.Boot && s.Snapshot == sb.Snapshot {
			s.MayRun = false
			if snap.ID != "" {
				s.Boot.Node = snap.Node
			}
		}
		return nil
	})
	if err == nil || errors.Is(err, sandbox.NotFound) {
		m.mu.Lock()
		delete(m.absent, key)
		m.mu.Unlock()
		return nil
	}
	return err
}

func refOf(sb sandbox.Sandbox) sandbox.BootRef {
	return sandbox.BootRef{BootID: sb.Boot.ID, SandboxID: sb.ID, Number: sb.Boot.Number, Tenant: sb.Tenant}
}

// reconcileRecord ends sb with the loss gone, or returns it to its last checkpoint, unless
// its record is consistent.
func (m *Manager) reconcileRecord(ctx context.Context, sb sandbox.Sandbox, there bool, gone loss) error {
	switch sb.State {
	case sandbox.Starting:
		if m.isCreating(sb.ID) {
			return nil
		}
	case sandbox.Stopping:
	case sandbox.Paused:
		return nil
	case sandbox.Pausing, sandbox.Resuming:
		if m.isMoving(sb.ID) {
			return nil
		}
		if there || sb.State == sandbox.Resuming {
			return m.undoLeft(ctx, sb.ID)
		}
	default:
		if there {
			m.trackFound(sb)
			return nil
		}
	}
	gone.at = now()
	ended, err := m.lose(ctx, sb.ID, gone, func(present sandbox.Sandbox) bool {
		// The observation holds only for the record that was read. A changed deadline
		// does not matter: it brings no Boot back.
		return present.State == sb.State && present.Boot == sb.Boot && !m.isCreating(sb.ID)
	})
	if errors.Is(err, sandbox.NotFound) {
		return nil
	}
	if err == nil && ended.State == sandbox.Ended {
		m.log.Info("reconcile ended a sandbox", telemetry.KeySandbox, sb.ID, telemetry.KeyNode, sb.Boot.Node, "was", sb.State, "cause", ended.Ended.Cause)
	}
	return err
}

// trackFound tracks a running Sandbox that is not tracked: the write that had it run took effect,
// although it failed.
func (m *Manager) trackFound(sb sandbox.Sandbox) {
	if m.idle.isTracked(sb.ID) || m.isMoving(sb.ID) || m.isCreating(sb.ID) {
		return
	}
	m.track(sb)
}

// reconcileBoot stops a Boot that no record owns. Its record is read after the
// Boot was listed, and a Sandbox is recorded before its Boot starts.
func (m *Manager) reconcileBoot(ctx context.Context, node string, b sandbox.BoundBoot) error {
	sb, err := m.store.SandboxByID(ctx, b.SandboxID)
	if err != nil && !errors.Is(err, sandbox.NotFound) {
		return err
	}
	if err == nil && owns(sb, node, b) {
		return nil
	}
	m.log.Warn("reconcile stops a boot that no sandbox owns", telemetry.KeyBoot, b.BootID, telemetry.KeySandbox, b.SandboxID, telemetry.KeyNode, node)
	stopped := make(chan error, 1)
	m.stopping.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
		defer cancel()
		stopped <- m.nodes.Stop(ctx, node, b.BootID, 0)
	})
	select {
	case err := <-stopped:
		return err
	case <-ctx.Done(): // the Node finishes the stop
		return ctx.Err()
	}
}

// owns reports whether b is, or may become, the Boot of sb. For a stopping sb it reports
// whether its end stops b.
func owns(sb sandbox.Sandbox, node string, b sandbox.BoundBoot) bool {
	if sb.State == sandbox.Ended || sb.Boot.Node != node || sb.Boot.Number != b.Number || sb.Tenant != b.Tenant {
		return false
	}
	return sb.Boot.ID == b.BootID || sb.StartedAt.IsZero()
}

// countUsage counts the usage until at of the Sandboxes whose Boots are in there.
func (m *Manager) countUsage(ctx context.Context, records []sandbox.Sandbox, there map[sandbox.BootRef]sandbox.BoundBoot, at time.Time) error {
	var ran []string
	for _, sb := range records {
		if _, ok := there[refOf(sb)]; ok {
			ran = append(ran, sb.ID)
		}
	}
	return m.store.CountUsage(ctx, ran, at)
}

// nodeLost reads the record of a Node, which may be retired, and reports whether the Node is
// declared lost, or its Lease expired more than NodeGrace ago.
func (m *Manager) nodeLost(ctx context.Context, node string) (n sandbox.NodeRecord, lost bool, err error) {
	n, known, err := m.nodeRecord(ctx, node)
	return n, err == nil && (!known || n.Lost || n.LeaseLeft < -m.cfg.NodeGrace), err
}

// vouched returns the time until which usage of lost Boots of a Node counts, whose record has
// just been read; a Node that was retired has none. With each renewal of its Lease a Node
// vouches for its Boots, because it reports the end of one at once.
func vouched(n sandbox.NodeRecord) time.Time {
	if n.Name == "" {
		return lastCounted
	}
	return now().Add(-n.LeaseAge)
}

// nodeRecord reads the record of a Node. known is false if it was retired.
func (m *Manager) nodeRecord(ctx context.Context, node string) (n sandbox.NodeRecord, known bool, err error) {
	nodes, err := m.store.Nodes(ctx)
	if err != nil {
		return n, false, err
	}
	for _, n := range nodes {
		if n.Name == node {
			return n, true, nil
		}
	}
	return n, false, nil
}

// A group runs functions, several at a time, and joins their errors.
type group struct {
	limited errgroup.Group
	mu      sync.Mutex
	errs    []error
}

func newGroup() *group { return newGroupOf(parallelEnds) }

func newGroupOf(limit int) *group {
	g := &group{}
	g.limited.SetLimit(limit)
	return g
}

func (g *group) do(f func() error) {
	g.limited.Go(func() error {
		if err := f(); err != nil {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.errs = append(g.errs, err)
		}
		return nil
	})
}

func (g *group) wait() error {
	_ = g.limited.Wait()
	return errors.Join(g.errs...)
}
