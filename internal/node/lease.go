package node

import (
	"context"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	leaseLife  = 15 * time.Second
	leaseEvery = 5 * time.Second
)

// keepLease renews the Node's Lease until ctx ends.
func (n *Node) keepLease(ctx context.Context) error {
	ticker := time.NewTicker(leaseEvery)
	defer ticker.Stop()
	for {
		attempt, cancel := context.WithTimeout(ctx, leaseEvery)
		err := n.renewLease(attempt)
		cancel()
		if err != nil && ctx.Err() == nil {
			n.log.Warn("renewing the lease failed", telemetry.KeyError, err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (n *Node) renewLease(ctx context.Context) error {
	return n.cfg.Store.RenewLease(ctx, sandbox.NodeRecord{
		Name:       n.cfg.Name,
		Engine:     n.features.Name,
		Address:    n.cfg.Address,
		LeaseUntil: time.Now().UTC().Add(leaseLife),
	})
}
