package session

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/snapshot/relay"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// moveVolumeLimit bounds the move of one Volume.
const moveVolumeLimit = 2 * time.Hour

// errMounted says that a Volume cannot move, because a Sandbox that is not paused mounts it.
var errMounted = errors.New("a sandbox that is not paused mounts the volume")

// keepVolumesDrained moves Volumes away from Nodes that drain with them, until ctx ends.
func (m *Manager) keepVolumesDrained(ctx context.Context) error {
	return m.keepMoving(ctx, "moving the volumes of draining nodes failed; will retry", m.drainVolumes)
}

// drainVolumes moves Volumes away from Nodes that drain with their Volumes, one after the
// other: each move takes the full speed of two disks. Volumes that Sandboxes use stay until
// these are paused or end.
func (m *Manager) drainVolumes(ctx context.Context, tried *retries) error {
	there := map[string]bool{}
	for _, n := range m.draining() {
		if !n.MoveVolumes {
			continue
		}
		node := n.Name
		all, err := m.store.VolumesOn(ctx, node)
		if err != nil {
			return err
		}
		for _, v := range all {
			there[v.ID] = true
			failed, due := tried.due(v.ID)
			if !due || m.isHeld(v.ID) || v.LeftOn != "" { // the sweep is first
				continue
			}
			began := time.Now()
			err := m.moveVolume(ctx, v)
			if errors.Is(err, errMounted) {
				continue
			}
			m.observe("move_volume", err, began)
			if err == nil {
				continue
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			tried.fail(v.ID, min(firstDrainRetry<<min(failed, 10), lastDrainRetry))
			if isNowhere(err) {
				return nil // until another Node has room; the operator sees the numbers
			}
			m.log.WarnContext(ctx, "moving a volume failed; will retry", telemetry.KeyVolume, v.ID, telemetry.KeyNode, node, telemetry.KeyError, err)
		}
	}
	tried.keep(there)
	return nil
}

// beginMove makes starts of Sandboxes that mount a Volume wait until end is called. It
// fails with errMounted if one runs, or starts: a start is recorded before it looks whether
// the Volume moves.
func (m *Manager) beginMove(ctx context.Context, id string) (end func(), err error) {
	release := m.hold(id)
	ended := make(chan struct{})
	m.mu.Lock()
	m.carried[id] = ended
	m.mu.Unlock()
	end = func() {
		m.mu.Lock()
		delete(m.carried, id)
		m.mu.Unlock()
		close(ended)
		release()
	}
	_, active, err := m.store.VolumeUses(ctx, id)
	if err == nil && active > 0 {
		err = errMounted
	}
	if err != nil {
		end()
		return nil, err
	}
	return end, nil
}

// carriedPatience is how long a start waits for the move of a Volume.
const carriedPatience = 30 * time.Second

// isCarried reports whether a Volume is being moved. Only the process that leads moves
// Volumes, and starts Sandboxes.
func (m *Manager) isCarried(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.carried[id] != nil
}

// awaitVolumes waits for carriedPatience until no Volume of sb is being moved. A start that is
// recorded calls it before it takes a turn that others wait for. Then no other move begins.
func (m *Manager) awaitVolumes(ctx context.Context, sb sandbox.Sandbox) {
	if len(sb.Volumes) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, carriedPatience)
	defer cancel()
	for _, mount := range sb.Volumes {
		m.mu.Lock()
		ended := m.carried[mount.Volume]
		m.mu.Unlock()
		if ended == nil {
			continue
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return // the start says so
		}
	}
}

// moveVolume moves a Volume, which no Sandbox uses, to another Node. Its record says first
// that the other Node may have files of it, so that a sweep finds the rest of a failure.
func (m *Manager) moveVolume(ctx context.Context, v sandbox.Volume) error {
	end, err := m.beginMove(ctx, v.ID)
	if err != nil {
		return err
	}
	defer end()
	to, err := m.placeElsewhere(ctx, sandbox.BootNeeds{Tenant: v.Tenant, Shape: sandbox.DefaultShape()}, v.Node)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, moveVolumeLimit)
	defer cancel()
	began := time.Now()
	there := sandbox.VolumePlace{Node: v.Node, LeftOn: to}
	if err := m.store.RehomeVolume(ctx, v.ID, v.Place(), there); err != nil {
		return err
	}
	moved := sandbox.VolumePlace{Node: to, LeftOn: v.Node}
	if err = m.carryVolume(ctx, v, to); err == nil {
		err = m.store.RehomeVolume(ctx, v.ID, there, moved)
	}
	undo, stop := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer stop()
	settleErr := m.settleMove(undo, v.ID, to)
	if settleErr != nil {
		m.log.WarnContext(ctx, "removing the files that a volume left failed; will retry", telemetry.KeyVolume, v.ID, telemetry.KeyError, settleErr)
	}
	if err == nil {
		m.log.InfoContext(ctx, "a volume moved to another node", telemetry.KeyVolume, v.ID, telemetry.KeyTenant, v.Tenant, telemetry.KeyNode, to,
			"from", v.Node, telemetry.KeyDuration, float64(time.Since(began).Microseconds())/1000)
	}
	return err
}

// settleMove removes the files that a move to a Node has left. The record says how the move ended: its
// last commit may have failed only for this process.
func (m *Manager) settleMove(ctx context.Context, id, to string) error {
	v, err := m.store.VolumeByID(ctx, id)
	switch {
	case errors.Is(err, sandbox.NotFound), err == nil && v.State != sandbox.VolumeReady: // it was deleted meanwhile
		return m.nodes.DeleteVolume(ctx, to, id)
	case err != nil:
		return err
	}
	return m.settleVolume(ctx, v)
}

// carryVolume carries a Volume from Node to Node.
func (m *Manager) carryVolume(ctx context.Context, v sandbox.Volume, to string) error {
	if err := m.nodes.DeleteVolume(ctx, to, v.ID); err != nil { // of an earlier attempt
		return err
	}
	return relay.Run(
		func(w io.Writer) error {
			return m.nodes.ExportVolume(ctx, v.Node, sandbox.VolumeRef{ID: v.ID, Tenant: v.Tenant}, w)
		},
		func(r io.Reader) error { return m.nodes.ImportVolume(ctx, to, specOf(v), r) })
}

// settleVolume removes the files that a ready Volume has left on another Node, and makes the Volume
// usable on its own one, if a move has ended before. It begins with a write that changes
// nothing: it waits for a commit of the move whose answer was lost, and fails with Conflict if
// the Volume is elsewhere by now. Otherwise the only files of the Volume could be removed.
func (m *Manager) settleVolume(ctx context.Context, v sandbox.Volume) error {
	if v.State != sandbox.VolumeReady || v.LeftOn == "" {
		return nil
	}
	if err := m.store.RehomeVolume(ctx, v.ID, v.Place(), v.Place()); err != nil {
		return err
	}
	if err := m.nodes.CreateVolume(ctx, v.Node, specOf(v)); err != nil {
		return err
	}
	if err := m.dropFiles(ctx, v.LeftOn, v.ID); err != nil {
		return err
	}
	return m.store.RehomeVolume(ctx, v.ID, v.Place(), sandbox.VolumePlace{Node: v.Node})
}
