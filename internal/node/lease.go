package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// longestLease is the life of a Lease of a Node that does not fence itself, or late.
	longestLease = 15 * time.Second
	// leasesInFence is the number of lives of a Lease in FenceAfter, at least.
	leasesInFence = 6
	// renewLimit bounds one attempt to renew a Lease. It lets a Node ask a second session
	// manager when the first one is silent.
	renewLimit = 5 * time.Second
)

// leaseLife is the life of a Lease. All times of a Lease are in proportion to FenceAfter: a
// Node that fences itself early also tries more often to renew its Lease before.
func (c *Config) leaseLife() time.Duration {
	if c.FenceAfter == 0 {
		return longestLease
	}
	return min(longestLease, c.FenceAfter/leasesInFence)
}

// leaseEvery is the time between two renewals.
func (c *Config) leaseEvery() time.Duration { return c.leaseLife() / 3 }

// leaseAgain is the time until the next attempt after a failure.
func (c *Config) leaseAgain() time.Duration { return c.leaseLife() / 15 }

func identityFile(dir string) string { return filepath.Join(dir, "id") }

// HasRun reports whether a Node has run on a folder. It opens no file in it.
func HasRun(dir string) bool {
	_, err := os.Lstat(identityFile(dir))
	return !errors.Is(err, fs.ErrNotExist)
}

// Leases has the Lease of a Node. sandbox.NodeStore and sandbox.NodeRecords implement it.
type Leases interface {
	RenewLease(ctx context.Context, n sandbox.NodeRecord, life time.Duration) (sandbox.NodeRecord, error)
}

// Holder returns the identity of a Node's folder, which records of its Lease carry. A Node
// keeps it from its first start on; empty: none has started there.
func Holder(dir string) (string, error) {
	id, err := durable.KeptIdentity(identityFile(dir))
	if err != nil {
		return "", fmt.Errorf("read the identity of the node: %w", err)
	}
	return id, nil
}

// takeLease takes the Lease, from another Holder once that Lease has expired and that Node
// has fenced itself: a Node whose folder was lost starts again within this time. Conflict
// when the other one renews. It
// waits while the records are away.
func (n *Node) takeLease(ctx context.Context) error {
	for began := time.Now(); ; {
		attempt, cancel := context.WithTimeout(ctx, longestLease)
		err := n.renewLease(attempt)
		cancel()
		pause := n.cfg.leaseEvery()
		switch {
		case errors.Is(err, sandbox.Unavailable), errors.Is(err, context.DeadlineExceeded):
			n.log.Warn("taking the lease failed; will retry", telemetry.KeyNode, n.cfg.Name, telemetry.KeyError, err)
			began, pause = time.Now(), n.cfg.leaseAgain()
		case !errors.Is(err, sandbox.Conflict) || time.Since(began) > n.cfg.leaseLife()+n.cfg.leaseEvery()+n.cfg.FenceAfter:
			return err
		default:
			n.log.Warn("waiting for the lease of another node to expire", telemetry.KeyNode, n.cfg.Name)
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// keepLease renews the Node's Lease until ctx ends: often after a failure, so that the
// Node gets Sandboxes again soon after the records were away. The Node fences itself when
// that fails for too long.
func (n *Node) keepLease(ctx context.Context) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, renewLimit)
		err := n.renewLease(attempt)
		cancel()
		pause := n.cfg.leaseEvery()
		if err == nil {
			err = n.moveFence(ctx)
		}
		if err != nil && ctx.Err() == nil {
			n.log.Warn("renewing the lease failed", telemetry.KeyError, err)
			pause = n.cfg.leaseAgain()
		}
		n.settleFence(ctx)
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

func (n *Node) renewLease(ctx context.Context) error {
	asked := n.term.now()
	record, err := n.cfg.Leases.RenewLease(ctx, sandbox.NodeRecord{
		Name:       n.cfg.Name,
		Holder:     n.holder,
		Engine:     n.features.Name,
		Address:    n.cfg.Address,
		Version:    n.cfg.Version,
		FenceAfter: n.term.promised(),
	}, n.cfg.leaseLife())
	if err == nil || errors.Is(err, sandbox.Conflict) {
		n.displaced.Store(err != nil)
	}
	if err == nil {
		n.term.renewed(record, asked)
	}
	return err
}

// checkLease returns Unavailable while another host has the Node's name, or this one has
// fenced itself: a Boot that starts here then would be missing from the records.
func (n *Node) checkLease() error {
	switch {
	case n.displaced.Load():
		return sandbox.Errorf(sandbox.Unavailable, "%s", displacedReason)
	case n.term.fenced():
		return sandbox.Errorf(sandbox.Unavailable, "%s", fencedReason)
	}
	return nil
}

const (
	displacedReason = "another node has its name"
	fencedReason    = "it has lost its lease, and cut its sandboxes off"
)
