package sqlstore

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// nodeRow is a Node as stored in its row, and the clock of the database when it was read.
type nodeRow struct {
	sandbox.NodeRecord
	until time.Time // the end of the Lease, by that clock
	// versionUntil is the end of the Lease that was renewed with Version. An earlier
	// program renews a Lease without the two.
	versionUntil time.Time
	// declared is the Epoch for which the Node is Lost; 0: none. An earlier program resets it
	// when it renews a Lease.
	declared int64
	// fenceUntil is the end of the Lease that was renewed with FenceAfter, as versionUntil.
	fenceUntil time.Time
	renewed    time.Time // when the Lease was renewed; an earlier program does not set it
	clock      int64
}

var nodeTable = newTable("nodes", func(n *nodeRow, c *columns) {
	c.add("name", &n.Name)
	c.add("engine", &n.Engine)
	c.add("address", &n.Address)
	c.add("lease_until", (*moment)(&n.until))
	c.add("holder", &n.Holder)
	c.add("epoch", &n.Epoch)
	c.add("version", &n.Version)
	c.add("version_until", (*moment)(&n.versionUntil))
	c.add("draining", &n.Draining)
	c.add("move_volumes", &n.MoveVolumes)
	c.add("lost_epoch", &n.declared)
	c.add("given_up_epoch", &n.LostEpoch)
	c.add("fence_after", (*span)(&n.FenceAfter))
	c.add("fence_until", (*moment)(&n.fenceUntil))
	c.add("renewed_at", (*moment)(&n.renewed))
	c.compute(clockName, &n.clock)
})

func scanNode(scan func(...any) error) (sandbox.NodeRecord, error) {
	n, err := scanNodeRow(scan)
	n.LeaseLeft, n.LeaseAge = n.until.Sub(clockAt(n.clock)), clockAt(n.clock).Sub(n.renewed)
	n.Lost = n.LeaseLeft <= 0 && n.declared == max(n.Epoch, 1)
	if !n.versionUntil.Equal(n.until) {
		n.Version = ""
	}
	return n.NodeRecord, err
}

func scanNodeRow(scan func(...any) error) (nodeRow, error) {
	n, err := nodeTable.scan(scan)
	if !n.fenceUntil.Equal(n.until) {
		n.FenceAfter = 0
	}
	return n, err
}

// mayRun reports whether Boots of a Node whose Lease has expired may still reach something.
// It is not known of a Node that does not fence itself.
func (n *nodeRow) mayRun(now time.Time) bool {
	return now.Before(n.until.Add(n.FenceAfter)) && n.declared != max(n.Epoch, 1)
}

var keepNode = nodeTable.replacing("name")

const retireNodesText = `DELETE FROM nodes WHERE lease_until < ? AND NOT draining
	AND name NOT IN (SELECT boot_node FROM sandboxes WHERE state <> 'ended')
	AND name NOT IN (SELECT node FROM snapshots) AND name NOT IN (SELECT node FROM volumes)
	RETURNING name`

// RenewLease implements sandbox.NodeStore.
func (s *Store) RenewLease(ctx context.Context, n sandbox.NodeRecord, life time.Duration) (sandbox.NodeRecord, error) {
	row := nodeRow{NodeRecord: n}
	err := s.writer.write(ctx, func(st *statements) error {
		now, err := st.now()
		if err != nil {
			return err
		}
		row.Epoch, row.until, row.renewed = 1, now.Add(life), now
		old, err := one(st.nodeNow.QueryRow(n.Name), scanNodeRow, func() error { return sandbox.Errorf(sandbox.NotFound, "no such node") })
		other := old.Holder != n.Holder && old.Holder != "" // earlier versions had none
		expired := !now.Before(old.until)
		row.LostEpoch = old.LostEpoch
		switch {
		case errors.Is(err, sandbox.NotFound):
		case err != nil:
			return err
		case expired && other && old.mayRun(now):
			return sandbox.Errorf(sandbox.Conflict, "another node was named %q, and has not cut its sandboxes off yet: declare it lost if its machine is off", n.Name)
		case expired:
			row.Epoch = max(old.Epoch, 1) + 1
			if other {
				row.LostEpoch = max(old.Epoch, 1)
			}
		case other:
			return sandbox.Errorf(sandbox.Conflict, "another node is named %q: give this one a name of its own with CLOUD_SANDBOX_NODE, or stop the other one", n.Name)
		default:
			row.Epoch = max(old.Epoch, 1)
		}
		row.versionUntil, row.fenceUntil, row.Draining, row.MoveVolumes = row.until, row.until, old.Draining, old.MoveVolumes
		_, err = keepNode.exec(st.keepNode, &row)
		return err
	})
	if err != nil {
		return sandbox.NodeRecord{}, err
	}
	row.LeaseLeft, row.LeaseAge, row.Lost = life, 0, false
	return row.NodeRecord, nil
}

// nodeUseText counts the records for each field of NodeUse, in the order of the fields;
// ?1 is the Node. The condition state <> 'ended' is always written out, because the
// index of Sandboxes that have not ended is only used with it.
const nodeUseText = `SELECT
	(SELECT count(*) FROM sandboxes WHERE boot_node = ?1 AND state <> 'ended' AND state <> 'paused'),
	(SELECT count(*) FROM sandboxes JOIN snapshots ON snapshots.id = sandboxes.snapshot WHERE snapshots.node = ?1 AND sandboxes.state <> 'ended' AND sandboxes.state = 'paused')
		+ (SELECT count(*) FROM sandboxes JOIN snapshots ON snapshots.id = sandboxes.back_snapshot WHERE snapshots.node = ?1 AND sandboxes.back_snapshot <> '' AND sandboxes.state = 'resuming'),
	(SELECT count(*) FROM snapshots WHERE node = ?1 AND kept AND state = 'ready' AND layer = ''),
	(SELECT count(*) FROM snapshots WHERE node = ?1 AND kept AND state = 'ready' AND layer = '' AND ` + uncopied + `),
	(SELECT count(*) FROM volumes WHERE node = ?1 AND state = 'ready')`

// SetDraining implements sandbox.NodeStore.
func (s *Store) SetDraining(ctx context.Context, name string, draining, volumes bool) error {
	return s.writer.write(ctx, func(st *statements) error {
		result, err := st.drainNode.Exec(draining, volumes, name)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return cmp.Or(err, error(sandbox.Errorf(sandbox.NotFound, "no such node")))
		}
		return nil
	})
}

// SetLost implements sandbox.NodeStore. The next term of the Lease has another Epoch, also
// when an earlier program renews it.
func (s *Store) SetLost(ctx context.Context, name string, epoch int64, lost bool) error {
	return s.writer.write(ctx, func(st *statements) error {
		now, err := st.now()
		if err != nil {
			return err
		}
		n, err := one(st.nodeNow.QueryRow(name), nodeTable.scan, func() error { return sandbox.Errorf(sandbox.NotFound, "no such node") })
		if err != nil {
			return err
		}
		if epoch != 0 && epoch != max(n.Epoch, 1) {
			return sandbox.Errorf(sandbox.Conflict, "the node %q has renewed its lease", name)
		}
		declared, givenUp := int64(0), n.LostEpoch
		if lost {
			if now.Before(n.until) {
				return sandbox.Errorf(sandbox.Conflict, "the node %q renews its lease, so it is not lost: turn its machine off, and try again after %d seconds",
					name, 1+int(n.until.Sub(now).Seconds()))
			}
			declared = max(n.Epoch, 1)
			givenUp = declared
		}
		_, err = st.loseNode.Exec(declared, givenUp, name)
		return err
	})
}

// NodeUse implements sandbox.NodeStore.
func (s *Store) NodeUse(ctx context.Context, name string) (u sandbox.NodeUse, err error) {
	err = s.query.nodeUse.QueryRowContext(ctx, name).Scan(&u.Running, &u.Paused, &u.Snapshots, &u.Uncopied, &u.Volumes)
	return u, classify(err)
}

// RetireNodes implements sandbox.NodeStore.
func (s *Store) RetireNodes(ctx context.Context, away time.Duration) (names []string, err error) {
	err = s.writer.write(ctx, func(st *statements) error {
		now, err := st.now()
		if err != nil {
			return err
		}
		names, err = collect(func(scan func(...any) error) (name string, err error) {
			err = scan(&name)
			return name, err
		})(st.retireNodes.Query(micros(now.Add(-away))))
		return err
	})
	return names, err
}

// Nodes implements sandbox.NodeStore.
func (s *Store) Nodes(ctx context.Context) ([]sandbox.NodeRecord, error) {
	return collect(scanNode)(s.query.nodes.QueryContext(ctx))
}
