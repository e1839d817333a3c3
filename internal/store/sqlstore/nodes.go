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
	// fenceUntil is the end of the Lease that was renewed with FenceAfter, as versionUntil.
	fenceUntil time.Time
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
	c.add("lost_epoch", &n.LostEpoch)
	c.add("fence_after", (*span)(&n.FenceAfter))
	c.add("fence_until", (*moment)(&n.fenceUntil))
	c.compute(clockName, &n.clock)
})

func scanNode(scan func(...any) error) (sandbox.NodeRecord, error) {
	n, err := nodeTable.scan(scan)
	n.LeaseLeft = n.until.Sub(clockAt(n.clock))
	n.Lost = n.LeaseLeft <= 0 && n.LostEpoch == max(n.Epoch, 1)
	if !n.versionUntil.Equal(n.until) {
		n.Version = ""
	}
	if !n.fenceUntil.Equal(n.until) {
		n.FenceAfter = 0
	}
	return n.NodeRecord, err
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
		row.Epoch, row.until = 1, now.Add(life)
		old, err := one(st.nodeNow.QueryRow(n.Name), nodeTable.scan, func() error { return sandbox.Errorf(sandbox.NotFound, "no such node") })
		switch expired := !now.Before(old.until); {
		case errors.Is(err, sandbox.NotFound):
		case err != nil:
			return err
		case expired:
			row.Epoch = max(old.Epoch, 1) + 1
		case old.Holder != n.Holder && old.Holder != "": // earlier versions had none
			return sandbox.Errorf(sandbox.Conflict, "another node is named %q: give this one a name of its own with CLOUD_SANDBOX_NODE, or stop the other one", n.Name)
		default:
			row.Epoch = max(old.Epoch, 1)
		}
		row.versionUntil, row.fenceUntil, row.Draining, row.LostEpoch = row.until, row.until, old.Draining, old.LostEpoch
		_, err = keepNode.exec(st.keepNode, &row)
		return err
	})
	if err != nil {
		return sandbox.NodeRecord{}, err
	}
	row.LeaseLeft, row.Lost = life, false
	return row.NodeRecord, nil
}

// nodeUseText counts the records for each field of NodeUse, in the order of the fields;
// ?1 is the Node. The condition state <> 'ended' is always written out, because the
// index of Sandboxes that have not ended is only used with it.
const nodeUseText = `SELECT
	(SELECT count(*) FROM sandboxes WHERE boot_node = ?1 AND state <> 'ended' AND state <> 'paused'),
	(SELECT count(*) FROM sandboxes JOIN snapshots ON snapshots.id = sandboxes.snapshot WHERE snapshots.node = ?1 AND sandboxes.state <> 'ended' AND sandboxes.state = 'paused'),
	(SELECT count(*) FROM snapshots WHERE node = ?1 AND kept AND state = 'ready' AND layer = ''),
	(SELECT count(*) FROM volumes WHERE node = ?1 AND state = 'ready')`

// SetDraining implements sandbox.NodeStore.
func (s *Store) SetDraining(ctx context.Context, name string, draining bool) error {
	return s.writer.write(ctx, func(st *statements) error {
		result, err := st.drainNode.Exec(draining, name)
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
func (s *Store) SetLost(ctx context.Context, name string, lost bool) error {
	return s.writer.write(ctx, func(st *statements) error {
		now, err := st.now()
		if err != nil {
			return err
		}
		n, err := one(st.nodeNow.QueryRow(name), nodeTable.scan, func() error { return sandbox.Errorf(sandbox.NotFound, "no such node") })
		if err != nil {
			return err
		}
		epoch := int64(0)
		if lost {
			if now.Before(n.until) {
				return sandbox.Errorf(sandbox.Conflict, "the node %q renews its lease, so it is not lost: turn its machine off, and try again after %d seconds",
					name, 1+int(n.until.Sub(now).Seconds()))
			}
			epoch = max(n.Epoch, 1)
		}
		_, err = st.loseNode.Exec(epoch, name)
		return err
	})
}

// NodeUse implements sandbox.NodeStore.
func (s *Store) NodeUse(ctx context.Context, name string) (u sandbox.NodeUse, err error) {
	err = s.query.nodeUse.QueryRowContext(ctx, name).Scan(&u.Running, &u.Paused, &u.Snapshots, &u.Volumes)
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
