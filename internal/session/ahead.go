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

const (
	// aheadBytes is how much memory and written files a Sandbox that leaves its Node must have
	// for its state to be sent ahead. A smaller one stands still for longer while it is saved
	// twice than while all of its state is copied.
	aheadBytes = 64 << 20
	// aheadFiles bounds the written files of such a Sandbox. A save copies them if the Boot
	// continues and the disk cannot share them, and the Sandbox stands still meanwhile.
	aheadFiles = 1 << 30
)

// ahead is the state of a running Sandbox that was carried to another Node, before the
// Sandbox is frozen and its changes follow. The zero value: none was.
type ahead struct {
	node     string // where it was carried
	snapshot string
}

// on returns the Snapshot whose state is on a Node, or an empty string.
func (a ahead) on(node string) string {
	if a.node != node {
		return ""
	}
	return a.snapshot
}

// sendAhead carries the state of a Sandbox that is to leave its Node to another one, while the
// Sandbox runs, if it is large. Without it the Sandbox leaves all the same.
func (m *Manager) sendAhead(ctx context.Context, id string) ahead {
	began := time.Now()
	snap, node, release, err := m.saveAhead(ctx, id)
	if err == nil && node == "" || errors.Is(err, sandbox.NotFound) {
		return ahead{}
	}
	if err == nil {
		err = m.carryBase(ctx, snap, node)
		// The Nodes remember it. Its files must not take the room of the next save.
		if dropErr := m.discard(context.WithoutCancel(ctx), snap, true); dropErr != nil {
			m.log.WarnContext(ctx, "deleting a state that was sent ahead failed; will retry", telemetry.KeySnapshot, snap.ID, telemetry.KeyError, dropErr)
		}
		release()
	}
	m.observe("ahead", err, began)
	if err != nil {
		if ctx.Err() == nil {
			m.log.WarnContext(ctx, "sending the state of a sandbox ahead failed; it leaves without", telemetry.KeySandbox, id, telemetry.KeyError, err)
		}
		return ahead{}
	}
	m.log.InfoContext(ctx, "the state of a sandbox was sent ahead", telemetry.KeySandbox, id, telemetry.KeyTenant, snap.Tenant, telemetry.KeyNode, node,
		"from", snap.Node, telemetry.KeySnapshot, snap.ID, telemetry.KeyDuration, float64(time.Since(began).Microseconds())/1000)
	return ahead{node: node, snapshot: snap.ID}
}

// saveAhead saves a large running Sandbox that is to leave its Node, and chooses the Node that
// it goes to, which is empty if it is not such a Sandbox, or if no Node takes it. It holds the
// Sandbox for as long as the save takes. The Sandbox does not refer to the Snapshot, which is
// kept until release is called.
func (m *Manager) saveAhead(ctx context.Context, id string) (snap sandbox.Snapshot, node string, release func(), err error) {
	sb, done, err := m.move(ctx, id)
	if err != nil {
		return snap, "", nil, err
	}
	defer done()
	if sb.State != sandbox.Running || !m.isDraining(sb.Boot.Node) {
		return snap, "", nil, nil
	}
	limited, cancel := context.WithTimeout(ctx, pauseLimit)
	defer cancel()
	// A Node of an earlier version cannot tell, and cannot carry a state ahead.
	used, err := m.nodes.Usage(limited, sb.Boot.Node, refOf(sb))
	if err != nil || used.MemoryBytes+used.DiskBytes < aheadBytes || used.DiskBytes > aheadFiles {
		return snap, "", nil, nil
	}
	if node, err = m.awayFrom(limited, sb); err != nil {
		return snap, "", nil, nil // the move says so
	}
	snap, release, err = m.beginSnapshot(limited, sb, sandbox.SnapshotRequest{}, false)
	if err != nil {
		return snap, "", nil, err
	}
	if err := m.save(limited, sb, snap, sandbox.SaveRequest{Leaves: true}); err != nil {
		release() // and a sweep deletes it
		return snap, "", nil, err
	}
	return snap, node, release, nil
}

// awayFrom chooses the Node that a running Sandbox goes to. On error it cannot leave.
func (m *Manager) awayFrom(ctx context.Context, sb sandbox.Sandbox) (string, error) {
	node, err := m.placeElsewhere(ctx, needsOf(sb, m.neededCPU(ctx, sb)), sb.Boot.Node)
	if err != nil {
		return "", err
	}
	volumes, err := m.bindVolumes(ctx, sb)
	if err != nil {
		return "", err
	}
	return node, m.checkHomes(volumes)
}

// carryBase carries the state of a Snapshot to a Node as a base.
func (m *Manager) carryBase(ctx context.Context, snap sandbox.Snapshot, node string) error {
	done, err := m.copyTurn(ctx)
	if err != nil {
		return err
	}
	defer done()
	limited, cancel := context.WithTimeout(ctx, copyLimit)
	defer cancel()
	return relay.Run(
		func(w io.Writer) error { return m.nodes.ExportBase(limited, snap.Node, snap.ID, w) },
		func(r io.Reader) error { return m.nodes.KeepBase(limited, node, snap.ID, r) })
}

// carryChanges is carryState for a state whose base is on the Node.
func (m *Manager) carryChanges(ctx context.Context, from sandbox.Snapshot, node, id, base string) (saved sandbox.Saved, _ error) {
	err := relay.Run(
		func(w io.Writer) error { return m.nodes.ExportChanges(ctx, from.Node, from.ID, base, w) },
		func(r io.Reader) (err error) {
			saved, err = m.nodes.ImportChanges(ctx, node, from.Tenant, sandbox.ChangesRequest{Snapshot: id, Image: from.Image, Base: base}, r)
			return err
		})
	return saved, err
}
