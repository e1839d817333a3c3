package sqlite

import (
	"context"

	"github.com/cloud-sandbox/cloud-sandbox"
)

var nodeTable = newTable("nodes", func(n *sandbox.NodeRecord, c *columns) {
	c.add("name", &n.Name)
	c.add("engine", &n.Engine)
	c.add("address", &n.Address)
	c.add("lease_until", (*moment)(&n.LeaseUntil))
})

var renewLease = nodeTable.inserting("ON CONFLICT (name) DO UPDATE SET engine = excluded.engine, address = excluded.address, lease_until = excluded.lease_until")

// RenewLease implements sandbox.NodeStore.
func (s *Store) RenewLease(ctx context.Context, n sandbox.NodeRecord) error {
	return s.writer.write(ctx, func(st *statements) error {
		_, err := renewLease.exec(st.renewLease, &n)
		return err
	})
}

// Nodes implements sandbox.NodeStore.
func (s *Store) Nodes(ctx context.Context) ([]sandbox.NodeRecord, error) {
	return collect(nodeTable.scan)(s.query.nodes.QueryContext(ctx))
}
