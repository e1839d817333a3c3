package sqlite

import (
	"context"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// RenewLease implements sandbox.NodeStore.
func (s *Store) RenewLease(ctx context.Context, n sandbox.NodeRecord) error {
	return s.writer.write(ctx, func(st *statements) error {
		_, err := st.renewLease.Exec(n.Name, n.Engine, micros(n.LeaseUntil))
		return err
	})
}

// Nodes implements sandbox.NodeStore.
func (s *Store) Nodes(ctx context.Context) ([]sandbox.NodeRecord, error) {
	rows, err := s.query.nodes.QueryContext(ctx)
	if err != nil {
		return nil, classify(err)
	}
	defer rows.Close()
	var all []sandbox.NodeRecord
	for rows.Next() {
		var n sandbox.NodeRecord
		var until int64
		if err := rows.Scan(&n.Name, &n.Engine, &until); err != nil {
			return nil, classify(err)
		}
		n.LeaseUntil = fromMicros(until)
		all = append(all, n)
	}
	return all, classify(rows.Err())
}
