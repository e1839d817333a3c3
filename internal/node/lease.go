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
	leaseLife  = 15 * time.Second
	leaseEvery = 5 * time.Second
	leaseAgain = time.Second // after a failure
)

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
		attempt, cancel := context.WithTimeout(ctx, leaseLife)
		err := n.renewLease(attempt)
		cancel()
		pause := leaseEvery
		switch {
		case errors.Is(err, sandbox.Unavailable), errors.Is(err, context.DeadlineExceeded):
			n.log.Warn("taking the lease failed; will retry", telemetry.KeyNode, n.cfg.Name, telemetry.KeyError, err)
			began, pause = time.Now(), leaseAgain
		case !errors.Is(err, sandbox.Conflict) || time.Since(began) > leaseLife+leaseEvery+n.cfg.FenceAfter:
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
		attempt, cancel := context.WithTimeout(ctx, leaseEvery)
		err := n.renewLease(attempt)
		cancel()
		pause := leaseEvery
		if err == nil {
			err = n.moveFence(ctx)
		}
		if err != nil && ctx.Err() == nil {
			n.log.Warn("renewing the lease failed", telemetry.KeyError, err)
			pause = leaseAgain
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
	}, leaseLife)
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
