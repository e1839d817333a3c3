package session

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// drainRetry is the pause after a Sandbox could not leave its Node.
	drainRetry = 30 * time.Second
	// parallelDrains bounds the Sandboxes that leave Nodes at the same time. Each of them
	// stands still meanwhile.
	parallelDrains = 4
)

// keepDrained moves Sandboxes away from Nodes that drain, until ctx ends.
func (m *Manager) keepDrained(ctx context.Context) error {
	retry := map[string]time.Time{} // by Sandbox ID
	failing := false
	for {
		err := m.drain(ctx, retry)
		if err != nil && !failing && ctx.Err() == nil {
			m.log.Warn("moving the sandboxes of draining nodes failed; will retry", telemetry.KeyError, err)
		}
		failing = err != nil
		if err := sleep(ctx, m.cfg.DrainsEvery); err != nil {
			return err
		}
	}
}

// drain moves each Sandbox on a Node that drains once, except those in retry.
func (m *Manager) drain(ctx context.Context, retry map[string]time.Time) error {
	nodes, err := m.store.Nodes(ctx)
	if err != nil {
		return err
	}
	drains := map[string]bool{}
	for _, n := range nodes {
		if n.Draining {
			drains[n.Name] = true
		}
	}
	m.mu.Lock()
	m.drains = drains
	m.mu.Unlock()
	if len(drains) == 0 {
		clear(retry)
		return nil
	}
	all, err := m.store.SandboxesNotEnded(ctx)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	work := newGroupOf(parallelDrains)
	there := map[string]bool{}
	for _, sb := range all {
		if !drains[sb.Boot.Node] || sb.State != sandbox.Running && sb.State != sandbox.Paused {
			continue
		}
		there[sb.ID] = true
		mu.Lock()
		next := retry[sb.ID]
		mu.Unlock()
		if now().Before(next) {
			continue
		}
		work.do(func() error {
			err := m.leave(ctx, sb.ID)
			if err == nil || errors.Is(err, sandbox.NotFound) {
				return nil
			}
			mu.Lock()
			retry[sb.ID] = now().Add(drainRetry)
			mu.Unlock()
			if isNowhere(err) {
				return nil // until another Node has room; the operator sees what is left
			}
			return err
		})
	}
	err = work.wait()
	maps.DeleteFunc(retry, func(id string, _ time.Time) bool { return !there[id] })
	return err
}

// leave moves a Sandbox away from its Node, if that drains. A running one is paused,
// which also saves it, and resumes on another Node; requests wait meanwhile.
func (m *Manager) leave(ctx context.Context, id string) error {
	sb, done, err := m.move(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	if !m.isDraining(sb.Boot.Node) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pauseLimit+resumeLimit)
	defer cancel()
	switch sb.State {
	case sandbox.Paused:
		_, release, err := m.moveState(ctx, sb)
		if err == nil {
			release()
		}
		return err
	case sandbox.Running:
		return m.leaveRunning(ctx, sb)
	}
	return nil
}

// leaveRunning moves a running Sandbox, which the caller holds by move. Its record never
// says that it is paused, so programs that gateways follow go on for their clients. Its
// deadline stays. If it can start nowhere, it is paused.
func (m *Manager) leaveRunning(ctx context.Context, sb sandbox.Sandbox) error {
	if _, err := m.placeElsewhere(ctx, sb); err != nil {
		return err // it is not stopped in vain
	}
	began := time.Now()
	snap, release, err := m.beginSnapshot(ctx, sb, sandbox.SnapshotRequest{}, false)
	if err != nil {
		return err
	}
	defer release()
	resuming, err := m.pauseInto(ctx, sb, snap, func(s *sandbox.Sandbox) error { return resumeFrom(s, snap) })
	if err != nil {
		return err
	}
	m.untrack(sb.ID)
	m.stopPaused(ctx, sb)
	before := resuming
	before.Deadline = now().Add(sandbox.PausedLife)
	if _, err = m.finishResume(ctx, before, resuming, snap); err == nil {
		var running sandbox.Sandbox
		running, err = m.change(ctx, sb.ID, func(s *sandbox.Sandbox) error {
			if s.State == sandbox.Running {
				s.Deadline, s.RunsUntil = sb.Deadline, sb.RunsUntil
			}
			return nil
		})
		if err == nil {
			m.alarm.set(running.Deadline)
		}
	}
	m.observe("move", err, began)
	return err
}
