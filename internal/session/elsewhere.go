package session

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/snapshot/relay"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// parallelCopies bounds the Snapshots that are copied between Nodes at the same time:
	// each copy uses the full speed of two disks. A Node allows one more export or
	// import at a time, so that exports and imports of users are not refused.
	parallelCopies = 3
	// copyLimit bounds a copy.
	copyLimit = 5 * time.Minute
)

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

// snapshotCopy is one copy. It is cancelled, or given to sweeps, when its last user leaves.
type snapshotCopy struct {
	users  int    // guarded by Manager.mu
	ended  bool   // guarded by Manager.mu: done is closed, or about to be
	unhold func() // ends the hold that keeps sweeps from it
	cancel context.CancelFunc
	done   chan struct{}
	// Valid once done is closed.
	snap sandbox.Snapshot
	err  error
}

// startSaved starts the Boot of a Sandbox from its Snapshot, and returns the record, which
// may have changed, also with an error. The Node that keeps the Snapshot is the first
// choice. If it has no room, drains, is away or lacks CPU features that the Snapshot needs,
// the Boot starts on another Node from a copy of the Snapshot. If it has lost the Snapshot,
// it fetches a copy. Callers call release once the Sandbox is recorded as running. They
// hold the Snapshot, which the Sandbox may leave.
func (m *Manager) startSaved(ctx context.Context, sb sandbox.Sandbox) (_ sandbox.Sandbox, _ sandbox.Started, release func(), _ error) {
	here := func() (sandbox.Sandbox, sandbox.Started, func(), error) {
		started, err := m.startBoot(ctx, sb)
		return sb, started, func() {}, err
	}
	node := sb.Boot.Node
	if m.isTied(sb) {
		return here()
	}
	away := m.isAway(node)
	leave := away || m.isDraining(node)
	move := m.moveState
	var refused error
	if !leave {
		there, started, release, err := here()
		switch {
		case errors.Is(err, sandbox.Exhausted), errors.Is(err, sandbox.ErrCPU):
		case errors.Is(err, sandbox.NotFound) && m.isMissing(ctx, sb):
			move = func(ctx context.Context, sb sandbox.Sandbox) (sandbox.Sandbox, func(), error) {
				return m.moveStateTo(ctx, sb, node)
			}
		default:
			return there, started, release, err
		}
		refused = err
	}
	// Half of the time is left for a start on a Node that drains.
	limited, cancel := ctx, func() {}
	if end, has := ctx.Deadline(); has && leave && !away {
		limited, cancel = context.WithTimeout(ctx, time.Until(end)/2)
	}
	moved, release, err := move(limited, sb)
	cancel()
	if err == nil {
		started, err := m.startBoot(ctx, moved)
		return moved, started, release, err
	}
	if !isNowhere(err) {
		m.log.WarnContext(ctx, "copying a saved state to another node failed", telemetry.KeySandbox, sb.ID, telemetry.KeyNode, node,
			telemetry.KeySnapshot, sb.Snapshot, telemetry.KeyError, err)
	}
	if !leave {
		return sb, sandbox.Started{}, func() {}, refused
	}
	there, started, release, hereErr := here() // a Node that drains has room until it is empty
	if away && errors.Is(hereErr, sandbox.Unavailable) {
		hereErr = awayError(hereErr, err)
	}
	return there, started, release, hereErr
}

// awayError is the client's error for a Sandbox whose Node is away and that could not
// start on another Node. err is the error of its Node, and moveErr the error of the
// move to another Node.
func awayError(err, moveErr error) error {
	var e *sandbox.Error
	if !errors.As(err, &e) {
		return err
	}
	c := *e
	c.Cause = errors.Join(err, moveErr)
	switch {
	case errors.Is(moveErr, sandbox.ErrCPU):
		c.Detail = "the node of the sandbox is away, and " + detailOf(moveErr)
	case isNowhere(moveErr):
		c.Detail = "the node of the sandbox is away, and no other node takes the sandbox"
	case errors.Is(moveErr, sandbox.NotFound), errors.Is(moveErr, sandbox.Unsupported):
		c.Detail = "the node of the sandbox is away, and no other node has a copy of its state"
	default:
		c.Detail = "the node of the sandbox is away, and its state cannot be fetched at the moment"
	}
	return &c
}

// detailOf returns the Detail of the Error in err, or err's text.
func detailOf(err error) string {
	if e := (*sandbox.Error)(nil); errors.As(err, &e) {
		return e.Detail
	}
	return err.Error()
}

// isMissing reports whether the Node of a Sandbox has lost its Snapshot.
func (m *Manager) isMissing(ctx context.Context, sb sandbox.Sandbox) bool {
	there, err := m.nodes.ListSaved(ctx, sb.Boot.Node)
	return err == nil && !slices.Contains(there, sb.Snapshot)
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
// On error the record is as before, unless the database was lost while it committed.
func (m *Manager) moveState(ctx context.Context, sb sandbox.Sandbox) (_ sandbox.Sandbox, release func(), _ error) {
	if m.isTied(sb) {
		return sandbox.Sandbox{}, nil, errNowhere
	}
	snap, err := m.store.SnapshotByID(ctx, sb.Snapshot)
	if err != nil {
		return sandbox.Sandbox{}, nil, err
	}
	node, err := m.placeElsewhere(ctx, needsOf(sb, snap.CPU), sb.Boot.Node)
	if err != nil {
		return sandbox.Sandbox{}, nil, err
	}
	return m.moveStateTo(ctx, sb, node)
}

// moveStateTo is moveState to a given Node, which may be the Sandbox's own.
func (m *Manager) moveStateTo(ctx context.Context, sb sandbox.Sandbox, node string) (_ sandbox.Sandbox, release func(), _ error) {
	snap, err := m.store.SnapshotByID(ctx, sb.Snapshot)
	if err != nil {
		return sandbox.Sandbox{}, nil, err
	}
	there, release, err := m.copyOnce(ctx, snap, node, prepared{})
	if err != nil {
		return sandbox.Sandbox{}, nil, err
	}
	moved, err := m.change(ctx, sb.ID, func(s *sandbox.Sandbox) error {
		if s.State != sb.State || s.Boot != sb.Boot || s.Snapshot != sb.Snapshot {
			return notRunning(*s)
		}
		if m.isTied(*s) {
			return errNowhere
		}
		s.Snapshot = there.ID
		if s.State == sandbox.Paused {
			s.Boot.Node = node
		} else {
			nextBoot(s, node)
		}
		return nil
	})
	if err != nil {
		release()
		return sandbox.Sandbox{}, nil, err
	}
	m.log.InfoContext(ctx, "a sandbox moved to another node", telemetry.KeySandbox, sb.ID, telemetry.KeyTenant, sb.Tenant, telemetry.KeyNode, node,
		"from", sb.Boot.Node, telemetry.KeySnapshot, there.ID)
	return moved, release, nil
}

// needsOf returns the needs of a Sandbox that starts from a state, which needs CPU features.
func needsOf(sb sandbox.Sandbox, cpu sandbox.CPUFeatures) sandbox.BootNeeds {
	return sandbox.BootNeeds{Tenant: sb.Tenant, Image: sb.Image, Shape: sb.Shape, CPU: cpu}
}

// placeElsewhere chooses a Node other than the present one of a Sandbox, Snapshot or Volume.
// It returns errNowhere if no other Node can take it.
func (m *Manager) placeElsewhere(ctx context.Context, needs sandbox.BootNeeds, present string) (string, error) {
	node, err := m.placement.PlaceElsewhere(ctx, needs, present)
	if errors.Is(err, sandbox.Exhausted) || errors.Is(err, sandbox.ErrCPU) {
		err = errors.Join(errNowhere, err)
	}
	return node, err
}

// prepared says which steps of a copy are done. The zero value: none.
type prepared struct {
	base   string // a Snapshot whose state was sent to the Node ahead; empty: none
	inTurn bool   // the caller has a copyTurn
}

// copyOnce copies a Snapshot to a Node, or waits for the same copy that another start makes.
// Sweeps keep the copy until release is called. The copy continues while at least one
// caller waits.
func (m *Manager) copyOnce(ctx context.Context, snap sandbox.Snapshot, node string, prepared prepared) (_ sandbox.Snapshot, release func(), _ error) {
	key := copyKey{snap.ID, node}
	m.mu.Lock()
	c := m.copies.made[key]
	if c == nil {
		work, cancel := context.WithTimeout(context.WithoutCancel(ctx), copyLimit)
		c = &snapshotCopy{cancel: cancel, done: make(chan struct{})}
		m.copies.made[key] = c
		m.stopping.Go(func() { m.makeCopy(work, key, c, snap, prepared) })
	}
	c.users++
	m.mu.Unlock()
	release = func() {
		m.mu.Lock()
		c.users--
		last := c.users == 0
		if last && m.copies.made[key] == c {
			delete(m.copies.made, key)
		}
		unhold := last && c.ended
		m.mu.Unlock()
		if last {
			c.cancel()
		}
		if unhold {
			c.unhold()
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
	return c.snap, release, nil
}

// makeCopy makes a copy, and keeps sweeps from it until its last user has left.
func (m *Manager) makeCopy(ctx context.Context, key copyKey, c *snapshotCopy, snap sandbox.Snapshot, prepared prepared) {
	began := time.Now()
	to := snap
	to.ID, to.Parent = sandbox.NewSnapshotID(), snap.ID
	to.Name, to.Kept, to.Layer, to.UsedAt = "", false, "", time.Time{}
	to.State, to.CreatedAt, to.Node = sandbox.SnapshotSaving, now(), key.node
	to.Bytes, to.Build, to.Digest, to.CPU, to.Version = 0, "", "", "", 0
	unhold := m.hold(to.ID)
	made, err := m.copyState(ctx, snap, to, prepared)
	if err == nil {
		m.log.InfoContext(ctx, "copied a saved state to another node", telemetry.KeySnapshot, to.ID, "copy_of", snap.ID, telemetry.KeyNode, to.Node,
			"from", snap.Node, "bytes", made.Bytes, telemetry.KeyDuration, float64(time.Since(began).Microseconds())/1000)
	}
	m.observe("copy", err, began)
	m.mu.Lock()
	c.snap, c.err, c.unhold, c.ended = made, err, unhold, true
	if err != nil && m.copies.made[key] == c { // the next start tries again
		delete(m.copies.made, key)
	}
	left := c.users == 0
	close(c.done)
	m.mu.Unlock()
	if left {
		unhold()
	}
}

// copyState records the copy to of a Snapshot, and makes its state: from the Node of the
// Snapshot, or from its replica if that Node is away or has lost it. If that fails, a sweep
// deletes the rest.
func (m *Manager) copyState(ctx context.Context, from, to sandbox.Snapshot, prepared prepared) (sandbox.Snapshot, error) {
	if !prepared.inTurn {
		done, err := m.copyTurn(ctx)
		if err != nil {
			return sandbox.Snapshot{}, err
		}
		defer done()
	}
	to, err := m.store.InsertSnapshot(ctx, to)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	err = sandbox.Errorf(sandbox.Unavailable, "the node of the snapshot is away")
	if !m.isAway(from.Node) {
		var copied sandbox.Snapshot
		if copied, err = m.carry(ctx, from, to, prepared.base); !isOutOfReach(err) {
			return copied, err
		}
	}
	saved, fetchErr := m.nodes.FetchSaved(ctx, to.Node, sandbox.FetchRequest{Tenant: from.Tenant, From: from.ID, Image: from.Image, Snapshot: to.ID, CPU: from.CPU})
	if fetchErr != nil {
		return sandbox.Snapshot{}, errors.Join(err, fetchErr)
	}
	return m.received(ctx, to, saved)
}

// copyTurn waits until a state may be copied; call done after the copy. The error is ctx's.
func (m *Manager) copyTurn(ctx context.Context) (done func(), err error) {
	select {
	case m.copies.turns <- struct{}{}:
		return func() { <-m.copies.turns }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// isOutOfReach reports whether err says that a saved state cannot be had from its Node.
func isOutOfReach(err error) bool {
	return errors.Is(err, sandbox.Unavailable) || errors.Is(err, sandbox.NotFound) || errors.Is(err, sandbox.ErrDamaged)
}

// carry carries a state, or its difference from base, from Node to Node, and records the copy.
func (m *Manager) carry(ctx context.Context, from, to sandbox.Snapshot, base string) (sandbox.Snapshot, error) {
	var saved sandbox.Saved
	var err error
	if base == "" {
		saved, err = m.carryState(ctx, from, to.Node, to.ID)
	} else {
		saved, err = m.carryChanges(ctx, from, to.Node, to.ID, base)
	}
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	return m.received(ctx, to, saved)
}

// carryState carries the state of a Snapshot to a Node, where it gets the name id.
func (m *Manager) carryState(ctx context.Context, from sandbox.Snapshot, node, id string) (saved sandbox.Saved, _ error) {
	err := relay.Run(
		func(w io.Writer) error { return m.nodes.ExportSaved(ctx, from.Node, from.ID, false, w) },
		func(r io.Reader) (err error) {
			saved, err = m.nodes.ImportSaved(ctx, node, from.Tenant, id, from.Image, r)
			return err
		})
	return saved, err
}
