package sqlite

import (
	"context"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// RenewLease implements sandbox.NodeStore.
func (s *Store) RenewLease(ctx context.Context, n sandbox.NodeRecord) error {
	return s.writer.write(ctx, func(st *statements) error {
		_, err := st.renewLease.Exec(n.Name, n.Engine, n.Address, micros(n.LeaseUntil))
		return err
	})
}

// Nodes implements sandbox.NodeStore.
func (s *Store) Nodes(ctx context.Context) ([]sandbox.NodeRecord, error) {
	return collect(scanNode)(s.query.nodes.QueryContext(ctx))
}

func scanNode(scan func(...any) error) (n sandbox.NodeRecord, err error) {
	var until int64
	err = scan(&n.Name, &n.Engine, &n.Address, &until)
	n.LeaseUntil = fromMicros(until)
	return n, err
}
