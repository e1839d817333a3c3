package sqlstore

import (
	"context"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

var nodeTable = newTable("nodes", func(n *sandbox.NodeRecord, c *columns) {
	c.add("name", &n.Name)
	c.add("engine", &n.Engine)
	c.add("address", &n.Address)
	c.add("lease_until", (*moment)(&n.LeaseUntil))
	c.add("holder", &n.Holder)
	c.add("epoch", &n.Epoch)
})

var keepNode = nodeTable.replacing("name")

const retireNodesText = `DELETE FROM nodes WHERE lease_until < ?
	AND name NOT IN (SELECT boot_node FROM sandboxes WHERE state <> 'ended')
	AND name NOT IN (SELECT node FROM snapshots) AND name NOT IN (SELECT node FROM volumes)
	RETURNING name`

// RenewLease implements sandbox.NodeStore.
func (s *Store) RenewLease(ctx context.Context, n sandbox.NodeRecord, life time.Duration) (sandbox.NodeRecord, error) {
	err := s.writer.write(ctx, func(st *statements) error {
		now := time.Now()
		n.Epoch, n.LeaseUntil = 1, now.Add(life)
		old, err := one(st.nodeNow.QueryRow(n.Name), nodeTable.scan, func() error { return sandbox.Errorf(sandbox.NotFound, "no such node") })
		switch expired := !now.Before(old.LeaseUntil); {
		case errors.Is(err, sandbox.NotFound):
		case err != nil:
			return err
		case expired:
			n.Epoch = old.Epoch + 1
		case old.Holder != n.Holder && old.Holder != "": // earlier versions had none
			return sandbox.Errorf(sandbox.Conflict, "another node is named %q: give this one a name of its own with CLOUD_SANDBOX_NODE, or stop the other one", n.Name)
		default:
			n.Epoch = max(old.Epoch, 1)
		}
		_, err = keepNode.exec(st.keepNode, &n)
		return err
	})
	if err != nil {
		return sandbox.NodeRecord{}, err
	}
	return n, nil
}

// RetireNodes implements sandbox.NodeStore.
func (s *Store) RetireNodes(ctx context.Context, before time.Time) (names []string, err error) {
	err = s.writer.write(ctx, func(st *statements) error {
		names, err = collect(func(scan func(...any) error) (name string, err error) {
			err = scan(&name)
			return name, err
		})(st.retireNodes.Query(micros(before)))
		return err
	})
	return names, err
}

// Nodes implements sandbox.NodeStore.
func (s *Store) Nodes(ctx context.Context) ([]sandbox.NodeRecord, error) {
	return collect(nodeTable.scan)(s.query.nodes.QueryContext(ctx))
}
