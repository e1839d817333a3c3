package session

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// parallelCopies bounds the Snapshots that are copied between Nodes at the same time: each
// copy uses the full speed of two disks. A Node takes that many exports and imports.
const parallelCopies = 4

// copies are the copies of Snapshots to other Nodes that are being made or used.
type copies struct {
	turns chan struct{} // a semaphore
	made  map[copyKey]*snapshotCopy
}

func newCopies() copies {
	return copies{turns: make(chan struct{}, parallelCopies), made: map[copyKey]*snapshotCopy{}}
}

// copyKey identifies a copy: concurrent starts from one Snapshot share it.
type copyKey struct{ snapshot, node string }

// snapshotCopy is one copy. Its users hold it from sweeps.
type snapshotCopy struct {
	users int // guarded by Manager.mu
	done  chan struct{}
	// Valid once done is closed.
	snap sandbox.Snapshot
	err  error
}

// isDraining reports whether the Sandboxes of a Node are to leave it.
func (m *Manager) isDraining(node string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.drains[node]
}

// startSaved starts the Boot of a Sandbox from its Snapshot, and returns the record, which
// may have changed, also with an error. The Node that keeps the Snapshot is the first
// choice. If it has no room or is draining, the Boot starts on another Node from a copy of
// the Snapshot. Callers call release once the Sandbox is recorded as running.
func (m *Manager) startSaved(ctx context.Context, sb sandbox.Sandbox) (_ sandbox.Sandbox, _ sandbox.Started, release func(), _ error) {
	here := func() (sandbox.Sandbox, sandbox.Started, func(), error) {
		started, err := m.startBoot(ctx, sb)
		return sb, started, func() {}, err
	}
	leave := m.isDraining(sb.Boot.Node)
	var refused error
	if !leave {
		there, started, release, err := here()
		if !errors.Is(err, sandbox.Exhausted) {
			return there, started, release, err
		}
		refused = err
	}
	moved, release, err := m.moveState(ctx, sb)
	if err == nil {
		started, err := m.startBoot(ctx, moved)
		return moved, started, release, err
	}
	if !isNowhere(err) {
		m.log.WarnContext(ctx, "copying a saved state to another node failed", telemetry.KeySandbox, sb.ID, telemetry.KeyNode, sb.Boot.Node,
			telemetry.KeySnapshot, sb.Snapshot, telemetry.KeyError, err)
	}
	if leave {
		return here() // a Node that drains has room until it is empty
	}
	return sb, sandbox.Started{}, func() {}, refused
}

// startBoot starts the Boot of a Sandbox on its Node.
func (m *Manager) startBoot(ctx context.Context, sb sandbox.Sandbox) (sandbox.Started, error) {
	req, err := m.startRequest(ctx, sb)
	if err != nil {
		return sandbox.Started{}, err
	}
	return m.nodes.Start(ctx, sb.Boot.Node, req)
}

// errNowhere says that no other Node takes a Sandbox.
var errNowhere = errors.New("no other node takes the sandbox")

func isNowhere(err error) bool { return errors.Is(err, errNowhere) }

// moveState copies the Snapshot of a Sandbox, which has no Boot, to another Node, and
// records that the Sandbox is to start there. It keeps the copy until release is called.
// On error the Sandbox is as before.
func (m *Manager) moveState(ctx context.Context, sb sandbox.Sandbox) (_ sandbox.Sandbox, release func(), _ error) {
	node, err := m.placeElsewhere(ctx, sb)
	if err != nil {
		return sandbox.Sandbox{}, nil, err
	}
	snap, err := m.store.SnapshotByID(ctx, sb.Snapshot)
	if err != nil {
		return sandbox.Sandbox{}, nil, err
	}
	there, release, err := m.copyOnce(ctx, snap, node)
	if err != nil {
		return sandbox.Sandbox{}, nil, err
	}
	moved, err := m.change(ctx, sb.ID, func(s *sandbox.Sandbox) error {
		if s.State != sb.State || s.Boot != sb.Boot || s.Snapshot != sb.Snapshot {
			return notRunning(*s)
		}
		s.Snapshot, s.Boot.Node = there.ID, node
		if s.State != sandbox.Paused {
			// A new number invalidates anything that the other Node may still do.
			s.Boot.ID, s.Boot.Number = sandbox.NewBootID(), s.Boot.Number+1
		}
		return nil
	})
	if err != nil {
		release()
		return sandbox.Sandbox{}, nil, err
	}
	m.log.InfoContext(ctx, "a sandbox moved to another node", telemetry.KeySandbox, sb.ID, telemetry.KeyTenant, sb.Tenant, telemetry.KeyNode, node,
		"from", sb.Boot.Node, telemetry.KeySnapshot, there.ID)
	m.sweepSoon() // of the state that it left
	return moved, release, nil
}

// placeElsewhere chooses a Node for a Sandbox other than its own; errNowhere if there is
// none. Volumes tie a Sandbox to their Node.
func (m *Manager) placeElsewhere(ctx context.Context, sb sandbox.Sandbox) (string, error) {
	if len(sb.Volumes) > 0 {
		return "", errNowhere
	}
	node, err := m.placement.PlaceElsewhere(ctx, sb.Image, sb.Shape, sb.Boot.Node)
	if errors.Is(err, sandbox.Exhausted) {
		err = errors.Join(errNowhere, err)
	}
	return node, err
}

// copyOnce copies a Snapshot to a Node, or waits for the same copy that another start makes.
// Sweeps keep the copy until release is called.
func (m *Manager) copyOnce(ctx context.Context, snap sandbox.Snapshot, node string) (_ sandbox.Snapshot, release func(), _ error) {
	key := copyKey{snap.ID, node}
	m.mu.Lock()
	c, known := m.copies.made[key]
	if !known {
		c = &snapshotCopy{done: make(chan struct{})}
		m.copies.made[key] = c
	}
	c.users++
	m.mu.Unlock()
	var swept func()
	if !known {
		swept = m.makeCopy(ctx, c, snap, node)
	}
	release = func() {
		m.mu.Lock()
		if c.users--; c.users == 0 && m.copies.made[key] == c {
			delete(m.copies.made, key)
		}
		m.mu.Unlock()
		if swept != nil {
			swept()
		}
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		release()
		return sandbox.Snapshot{}, nil, ctx.Err()
	}
	if c.err != nil {
		release()
		return sandbox.Snapshot{}, nil, c.err
	}
	held := m.hold(c.snap.ID)
	first := release
	return c.snap, func() { held(); first() }, nil
}

// makeCopy makes a copy and closes its done. swept ends the maker's own hold on it.
func (m *Manager) makeCopy(ctx context.Context, c *snapshotCopy, snap sandbox.Snapshot, node string) (swept func()) {
	defer close(c.done)
	began := time.Now()
	to := snap
	to.ID, to.Parent = sandbox.NewSnapshotID(), snap.ID
	to.Name, to.Kept, to.Layer, to.UsedAt = "", false, "", time.Time{}
	to.State, to.CreatedAt, to.Node = sandbox.SnapshotSaving, now(), node
	to.Bytes, to.Build, to.Digest, to.Version = 0, "", "", 0
	swept = m.hold(to.ID)
	if c.snap, c.err = m.copyState(ctx, snap, to); c.err == nil {
		m.log.InfoContext(ctx, "copied a saved state to another node", telemetry.KeySnapshot, to.ID, "copy_of", snap.ID, telemetry.KeyNode, node,
			"from", snap.Node, "bytes", c.snap.Bytes, telemetry.KeyDuration, float64(time.Since(began).Microseconds())/1000)
	}
	m.observe("copy", c.err, began)
	return swept
}

// copyState records the copy to of a Snapshot, and carries the state from Node to Node. If
// that fails, a sweep deletes what is left.
func (m *Manager) copyState(ctx context.Context, from, to sandbox.Snapshot) (sandbox.Snapshot, error) {
	select {
	case m.copies.turns <- struct{}{}:
		defer func() { <-m.copies.turns }()
	case <-ctx.Done():
		return sandbox.Snapshot{}, ctx.Err()
	}
	to, err := m.store.InsertSnapshot(ctx, to)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	content, in := io.Pipe()
	exported := make(chan error, 1)
	go func() {
		err := m.nodes.ExportSaved(ctx, from.Node, from.ID, false, in)
		in.CloseWithError(err)
		exported <- err
	}()
	copied, err := m.receive(ctx, to, to.Image, content)
	content.CloseWithError(errors.Join(err, io.ErrClosedPipe))
	if exportErr := <-exported; err != nil && exportErr != nil && !errors.Is(exportErr, io.ErrClosedPipe) {
		return sandbox.Snapshot{}, exportErr // the reason why the other end fails too
	}
	return copied, err
}
