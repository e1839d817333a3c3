package session

import (
	"context"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// movedAtOnce bounds the Snapshots that one look at a Node that drains considers.
	movedAtOnce = 1000
	// moveSettle is the pause before the first move of a process that leads. It is longer than
	// a deletion of a former leader may take, which could delete the state that has moved.
	moveSettle = leftLimit + 5*time.Second
	// moveSnapshotLimit bounds the move of one Snapshot. No request waits for it.
	moveSnapshotLimit = time.Hour
	// commitPatience is how long a move whose state has arrived waits for Sandboxes that start
	// from the Snapshot.
	commitPatience = 30 * time.Second
	// commitLook is the time between two tries meanwhile.
	commitLook = 500 * time.Millisecond
)

// errHeld says that a Snapshot does not move now, because something uses it.
var errHeld = errors.New("the snapshot is in use")

// keepSnapshotsDrained moves Kept Snapshots away from Nodes that drain, until ctx ends.
func (m *Manager) keepSnapshotsDrained(ctx context.Context) error {
	if err := sleep(ctx, moveSettle); err != nil {
		return err
	}
	return m.keepMoving(ctx, "moving the snapshots of draining nodes failed; will retry", m.drainSnapshots)
}

// drainSnapshots moves Kept Snapshots away from Nodes that drain, one after the other, so
// that Sandboxes that leave at the same time get most of the turns. Snapshots with a copy
// outside of their Node stay: Sandboxes start elsewhere from the copy.
func (m *Manager) drainSnapshots(ctx context.Context, tried *retries) error {
	there := map[string]bool{}
	for _, n := range m.draining() {
		node := n.Name
		all, err := m.store.SnapshotsAlone(ctx, node, movedAtOnce)
		if err != nil {
			return err
		}
		for _, snap := range all {
			there[snap.ID] = true
			failed, due := tried.due(snap.ID)
			if !due || !m.isDraining(node) {
				continue
			}
			began := time.Now()
			err := m.moveSnapshot(ctx, snap)
			if errors.Is(err, errHeld) {
				continue
			}
			m.observe("move_snapshot", err, began)
			if err == nil {
				continue
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			tried.fail(snap.ID, min(firstDrainRetry<<min(failed, 10), lastDrainRetry))
			if isNowhere(err) && !errors.Is(err, sandbox.ErrCPU) {
				return nil // until another Node has room; the operator sees the numbers
			}
			m.log.WarnContext(ctx, "moving a snapshot failed; will retry", telemetry.KeySnapshot, snap.ID, telemetry.KeyNode, node, telemetry.KeyError, err)
		}
	}
	tried.keep(there)
	return nil
}

// moveSnapshot moves the state of a Snapshot to another Node, where it keeps its ID. The
// records always name the Node on which files may be that no Snapshot needs, so that a
// sweep finds the rest of a failure or a crash.
func (m *Manager) moveSnapshot(ctx context.Context, snap sandbox.Snapshot) error {
	release, free := m.keepFree(snap.ID)
	if !free {
		return errHeld
	}
	defer m.sweepSoon()
	defer release()
	needs := sandbox.BootNeeds{Tenant: snap.Tenant, Image: snap.Image, Shape: snap.Shape, CPU: snap.CPU}
	to, err := m.placeElsewhere(ctx, needs, snap.Node)
	if err != nil {
		return err
	}
	left, err := m.leaveTurn(ctx)
	if err != nil {
		return err
	}
	defer left()
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, moveSnapshotLimit)
	defer cancel()
	if err := m.store.BeginSnapshotMove(ctx, snap, to); err != nil {
		return err
	}
	moved, err := m.carrySnapshot(ctx, snap, to)
	if err == nil {
		err = m.commitMove(ctx, moved, snap.Node)
	}
	if err == nil {
		m.log.InfoContext(ctx, "a snapshot moved to another node", telemetry.KeySnapshot, snap.ID, telemetry.KeyTenant, snap.Tenant, telemetry.KeyNode, to,
			"from", snap.Node, "bytes", moved.Bytes, telemetry.KeyDuration, float64(time.Since(began).Microseconds())/1000)
	}
	return err
}

// carrySnapshot carries the state of a Snapshot to another Node, and returns its record there.
func (m *Manager) carrySnapshot(ctx context.Context, snap sandbox.Snapshot, to string) (sandbox.Snapshot, error) {
	done, err := m.copyTurn(ctx)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	defer done()
	saved, err := m.carryState(ctx, snap, to, snap.ID)
	if err == nil {
		err = checkSaved(snap, saved)
	}
	snap.Node, snap.Bytes, snap.Build, snap.Digest, snap.CPU = to, saved.Bytes, saved.Build, saved.Digest, saved.CPU
	return snap, err
}

// commitMove records that the state of a Snapshot has moved, once no Sandbox needs it on its
// former Node.
func (m *Manager) commitMove(ctx context.Context, moved sandbox.Snapshot, from string) error {
	for end := now().Add(commitPatience); ; {
		err := m.store.MoveSnapshot(ctx, moved, from)
		if !isConflict(err) || !now().Before(end) {
			return err
		}
		present, lookErr := m.store.SnapshotByID(ctx, moved.ID)
		if lookErr != nil || present.State != sandbox.SnapshotReady || !present.Kept || present.Node != from {
			return errHeld // it is being deleted
		}
		if err := sleep(ctx, commitLook); err != nil {
			return err
		}
	}
}
