package session

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// firstDrainRetry is the pause after a Sandbox could not leave its Node. It doubles with
	// each further attempt, up to lastDrainRetry: a running Sandbox stands still meanwhile.
	firstDrainRetry = 30 * time.Second
	lastDrainRetry  = 10 * time.Minute
	// parallelDrains bounds the Sandboxes and Kept Snapshots that leave Nodes at the same
	// time. A running Sandbox stands still meanwhile. One copy is left for starts.
	parallelDrains = parallelCopies - 1
	// turnPatience bounds the wait of a running Sandbox for a turn to be copied. Everything else
	// that changes the Sandbox waits meanwhile. Then the move is tried again later.
	turnPatience = 30 * time.Second
	// leaveLimit bounds the move of one Sandbox.
	leaveLimit = pauseLimit + copyLimit + resumeLimit
)

// maxGap bounds the time between two looks at the Nodes for which their silence counts as
// observed without interruption.
const maxGap = 10 * time.Second

// watchNodes keeps the known Nodes current until ctx ends, and takes over the Sandboxes of
// Nodes that have fenced themselves.
func (m *Manager) watchNodes(ctx context.Context) error {
	silent := vigil{leases: m.store, log: m.log, gap: m.cfg.NodesEvery + maxGap}
	failing := false
	for {
		nodes, err := m.store.Nodes(ctx)
		if err == nil {
			m.noteNodes(nodes)
			silent.observe(ctx, nodes, time.Now())
		} else if !failing && ctx.Err() == nil {
			m.log.Warn("looking for draining and lost nodes failed; will retry", telemetry.KeyError, err)
		}
		failing = err != nil
		if err := sleep(ctx, m.cfg.NodesEvery); err != nil {
			return err
		}
	}
}

// noteNodes takes over the records of all Nodes. The Sandboxes of a Node that is lost now are
// reconciled at once.
func (m *Manager) noteNodes(nodes []sandbox.NodeRecord) {
	known, lost := map[string]sandbox.NodeRecord{}, false
	m.mu.Lock()
	for _, n := range nodes {
		known[n.Name] = n
		lost = lost || n.Lost && !m.known[n.Name].Lost
	}
	m.known = known
	m.mu.Unlock()
	if lost {
		select {
		case m.lostCh <- struct{}{}:
		default:
		}
	}
}

// knownNode returns the latest known record of a Node. known is false for a retired
// Node, and before the records were read for the first time.
func (m *Manager) knownNode(node string) (_ sandbox.NodeRecord, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, known := m.known[node]
	return n, known
}

// isDraining reports whether the Sandboxes of a Node are to leave it.
func (m *Manager) isDraining(node string) bool {
	n, _ := m.knownNode(node)
	return n.Draining
}

// isAway reports whether the Lease of a Node has expired.
func (m *Manager) isAway(node string) bool {
	n, known := m.knownNode(node)
	return known && n.LeaseLeft <= 0
}

// isLost reports whether nothing runs on a Node, as an operator says.
func (m *Manager) isLost(node string) bool {
	n, _ := m.knownNode(node)
	return n.Lost
}

// isTied reports whether a Sandbox may start on its own Node only, because it may still run
// there.
func (m *Manager) isTied(sb sandbox.Sandbox) bool {
	return sb.MayRun && !m.isLost(sb.Boot.Node)
}

// keepDrained moves Sandboxes away from Nodes that drain, until ctx ends.
func (m *Manager) keepDrained(ctx context.Context) error {
	return m.keepMoving(ctx, "moving the sandboxes of draining nodes failed; will retry", m.drain)
}

// keepMoving calls drain for every look at the Nodes, until ctx ends. It logs the first of
// several failures in a row.
func (m *Manager) keepMoving(ctx context.Context, failed string, drain func(context.Context, *retries) error) error {
	var tried retries
	failing := false
	for {
		err := drain(ctx, &tried)
		if err != nil && !failing && ctx.Err() == nil {
			m.log.Warn(failed, telemetry.KeyError, err)
		}
		failing = err != nil
		if err := sleep(ctx, m.cfg.NodesEvery); err != nil {
			return err
		}
	}
}

// drain moves each Sandbox on a Node that drains once, except those whose next attempt is
// later.
func (m *Manager) drain(ctx context.Context, tried *retries) error {
	if !m.anyDrains() {
		tried.keep(nil)
		return nil
	}
	all, err := m.store.SandboxesNotEnded(ctx)
	if err != nil {
		return err
	}
	work := newGroupOf(parallelDrains)
	there := map[string]bool{}
	for _, sb := range all {
		// A Node that is away can save nothing.
		if node := sb.Boot.Node; !m.isDraining(node) || m.isAway(node) || sb.State != sandbox.Running && sb.State != sandbox.Paused {
			continue
		}
		there[sb.ID] = true
		failed, due := tried.due(sb.ID)
		if !due {
			continue
		}
		work.do(func() error {
			err := m.leave(ctx, sb.ID, failed == 0)
			if err == nil {
				return nil
			}
			tried.fail(sb.ID, min(firstDrainRetry<<min(failed, 10), lastDrainRetry))
			if errors.Is(err, sandbox.ErrCPU) { // waiting does not help
				m.log.WarnContext(ctx, "a sandbox cannot leave its node", telemetry.KeySandbox, sb.ID, telemetry.KeyNode, sb.Boot.Node, telemetry.KeyError, err)
			}
			if isNowhere(err) {
				return nil // until another Node has room; the operator sees the numbers
			}
			return err
		})
	}
	err = work.wait()
	tried.keep(there)
	return err
}

// draining are the Nodes that drain and have their Lease.
func (m *Manager) draining() (nodes []sandbox.NodeRecord) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.known {
		if n.Draining && n.LeaseLeft > 0 {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

func (m *Manager) anyDrains() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.known {
		if n.Draining {
			return true
		}
	}
	return false
}

// leave moves a Sandbox away from its Node, if that drains. Requests to it wait meanwhile.
// When ctx ends, it cancels a copy, and finishes the rest. With sendsAhead, a large state is
// sent ahead.
func (m *Manager) leave(ctx context.Context, id string, sendsAhead bool) error {
	left, err := m.leaveTurn(ctx)
	if err != nil {
		return err
	}
	defer left()
	var sent ahead
	if sendsAhead {
		sent = m.sendAhead(ctx, id)
	}
	sb, done, err := m.move(ctx, id)
	if errors.Is(err, sandbox.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer done()
	if !m.isDraining(sb.Boot.Node) {
		return nil
	}
	switch sb.State {
	case sandbox.Paused:
		_, release, err := m.moveState(ctx, sb)
		if err == nil {
			release()
			m.sweepSoon() // of the state that it left
		}
		return err
	case sandbox.Running:
		return m.leaveRunning(ctx, sb, sent)
	}
	return nil
}

// leaveTurn waits until a Sandbox or a Kept Snapshot may leave a Node; call done after it has.
// The error is ctx's.
func (m *Manager) leaveTurn(ctx context.Context) (done func(), err error) {
	select {
	case m.leaves <- struct{}{}:
		return func() { <-m.leaves }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// leaveRunning moves a running Sandbox, which the caller holds by move. It is frozen while
// its state is saved and copied; if that fails, it continues where it is. Then it starts on
// the other Node, or, if that fails, on its own again. Its record does not say that it is
// paused unless both fail, or this process ends in between. So programs that gateways follow
// continue for their clients. Its deadline stays. It goes where its state was sent ahead, if
// that Node still takes Sandboxes.
func (m *Manager) leaveRunning(ctx context.Context, sb sandbox.Sandbox, sent ahead) error {
	waiting, give := context.WithTimeout(ctx, turnPatience)
	done, err := m.copyTurn(waiting) // it is not frozen while others are copied
	give()
	if err != nil {
		return sandbox.Errorf(sandbox.Unavailable, "other states are being copied").WithCause(err)
	}
	copied := sync.OnceFunc(done)
	defer copied()
	node, err := m.awayFrom(ctx, sb)
	if err != nil {
		return err // it is not frozen in vain
	}
	if _, known := m.knownNode(sent.node); known && !m.isDraining(sent.node) && !m.isAway(sent.node) {
		node = sent.node
	}
	began := time.Now()
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveLimit)
	defer cancel()
	snap, release, err := m.beginSnapshot(work, sb, sandbox.SnapshotRequest{}, false)
	if err != nil {
		return err
	}
	defer release()
	unhold := func() {}
	defer func() { unhold() }()
	var before sandbox.Sandbox
	resuming, err := m.pauseInto(work, sb, snap, true, func(running sandbox.Sandbox) (func(*sandbox.Sandbox) error, error) {
		before = running
		saved, err := m.store.SnapshotByID(work, snap.ID)
		if err != nil {
			return nil, err
		}
		snap = saved
		there, used, err := m.copyOnce(ctx, snap, node, prepared{base: sent.on(node), inTurn: true})
		copied()
		if err != nil {
			return nil, err
		}
		unhold = used
		return func(s *sandbox.Sandbox) error { return resumeFrom(s, there) }, nil
	})
	if err == nil {
		m.untrack(sb.ID)
		m.stopWithin(ctx, before)
		err = m.arrive(ctx, before, resuming, snap)
	}
	m.observe("move", err, began)
	return err
}

// neededCPU returns the CPU features that a state of a running Sandbox will need, as far as
// they are known before it is saved; empty: not known.
func (m *Manager) neededCPU(ctx context.Context, sb sandbox.Sandbox) sandbox.CPUFeatures {
	if sb.Snapshot != "" { // its Boot was saved as this or restored from it, unless it has files alone
		if snap, err := m.store.SnapshotByID(ctx, sb.Snapshot); err != nil || snap.Memory {
			return snap.CPU
		}
	}
	stats, err := m.nodes.Stats(ctx, sb.Boot.Node)
	if err != nil {
		return ""
	}
	return stats.Engine.GuestCPU
}

// stopWithin is stopPaused, within stopLimit and also after ctx has ended.
func (m *Manager) stopWithin(ctx context.Context, before sandbox.Sandbox) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	m.stopPaused(ctx, before)
}

// startWithin is startBoot, within resumeLimit and also after ctx has ended.
func (m *Manager) startWithin(ctx context.Context, sb sandbox.Sandbox) (sandbox.Started, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resumeLimit)
	defer cancel()
	return m.startBoot(ctx, sb)
}

// arrive starts a Sandbox that has left its Node, or returns it to snap on that Node. before
// is its record when it ran.
func (m *Manager) arrive(ctx context.Context, before, sb sandbox.Sandbox, snap sandbox.Snapshot) error {
	started, err := m.startWithin(ctx, sb)
	if err != nil {
		m.log.WarnContext(ctx, "starting a moved sandbox failed; it starts on its node again", telemetry.KeySandbox, sb.ID,
			telemetry.KeyNode, sb.Boot.Node, telemetry.KeyError, err)
		sb, started, err = m.startAgain(ctx, sb, err, snap)
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	if err != nil {
		if _, undoErr := m.stayPaused(undo, sb, err, snap, sb.Timeline, now().Add(sandbox.PausedLife)); undoErr != nil {
			m.log.WarnContext(ctx, "recording that a moved sandbox is paused failed; will retry", telemetry.KeySandbox, sb.ID, telemetry.KeyError, undoErr)
			m.mendSoon()
		}
		return err
	}
	running, err := m.change(undo, sb.ID, func(s *sandbox.Sandbox) error {
		if s.Boot != sb.Boot {
			return notRunning(*s)
		}
		s.Boot.ID, s.SnapshotAt = started.BootID, now()
		s.Deadline, s.RunsUntil = before.Deadline, before.RunsUntil
		return s.To(sandbox.Running)
	})
	if err != nil {
		m.mendSoon()
		return err
	}
	m.track(running)
	m.log.InfoContext(ctx, "a running sandbox moved to another node", telemetry.KeySandbox, sb.ID, telemetry.KeyTenant, sb.Tenant,
		telemetry.KeyNode, running.Boot.Node, "from", before.Boot.Node, telemetry.KeyBoot, running.Boot.ID)
	if running.Boot.Node == before.Boot.Node {
		return errNowhere
	}
	return nil
}

// startAgain starts a resuming Sandbox, whose start failed with cause, from snap on its Node.
// It does not, and returns cause, if the Boot may run on the Node that was tried, which
// cannot be asked to stop it.
func (m *Manager) startAgain(ctx context.Context, sb sandbox.Sandbox, cause error, snap sandbox.Snapshot) (sandbox.Sandbox, sandbox.Started, error) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	if err := m.nodes.Stop(limited, sb.Boot.Node, sb.Boot.ID, 0); err != nil && mayHaveStarted(cause) {
		return sb, sandbox.Started{}, cause
	}
	again, err := m.change(limited, sb.ID, func(s *sandbox.Sandbox) error {
		if s.Boot != sb.Boot || s.State != sandbox.Resuming {
			return notRunning(*s)
		}
		nextBoot(s, snap.Node)
		s.Snapshot, s.Deadline = snap.ID, now().Add(resumeLimit)
		return nil
	})
	if err != nil {
		return sb, sandbox.Started{}, err
	}
	started, err := m.startWithin(ctx, again)
	return again, started, err
}
