package session

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// A vigil observes Nodes whose Leases have expired, and declares a Node lost that has
// certainly fenced itself.
//
// A Node counts its FenceAfter from before it asked for its last renewal, and a vigil counts
// it from when it first saw that Lease expired, which is later by at least the life of a
// Lease. Both count monotonic time of their own. A vigil that was interrupted starts over:
// after an outage of the database the Nodes get the time to renew their Leases.
type vigil struct {
	leases leases
	log    *slog.Logger
	gap    time.Duration // of two observations that are continuous
	last   time.Time     // of the last observation
	silent map[string]silence
}

// A silence is a term of a Lease that has expired.
type silence struct {
	epoch int64
	since time.Time // when it was first observed
}

// observe takes the present records of all Nodes, read at the time at.
func (v *vigil) observe(ctx context.Context, nodes []sandbox.NodeRecord, at time.Time) {
	if v.silent == nil || at.Sub(v.last) > v.gap {
		v.silent = map[string]silence{}
	}
	v.last = at
	present := map[string]silence{}
	others := false // a Node that can take Sandboxes over
	for _, n := range nodes {
		others = others || n.LeaseLeft > 0 && !n.Draining
		if n.LeaseLeft > 0 || n.FenceAfter <= 0 || n.Lost {
			continue
		}
		s, seen := v.silent[n.Name]
		if !seen || s.epoch != n.Epoch {
			s = silence{n.Epoch, at}
		}
		present[n.Name] = s
	}
	if !others {
		// Silence counts while another Node could take the Sandboxes over. Otherwise the first
		// Node that comes back would get the Sandboxes of all others.
		present = map[string]silence{}
	}
	v.silent = present
	for _, n := range nodes {
		if s, silent := v.silent[n.Name]; silent && at.Sub(s.since) >= n.FenceAfter {
			v.takeOver(ctx, n, at.Sub(s.since))
		}
	}
}

// takeOver declares a Node lost.
func (v *vigil) takeOver(ctx context.Context, n sandbox.NodeRecord, silent time.Duration) {
	switch err := v.leases.SetLost(ctx, n.Name, n.Epoch, true); {
	case err == nil:
		v.log.WarnContext(ctx, "a node has been silent for so long that it has cut its sandboxes off; they continue elsewhere from their checkpoints", telemetry.KeyNode, n.Name,
			"silent_seconds", silent.Seconds())
	case errors.Is(err, sandbox.Conflict), errors.Is(err, sandbox.NotFound): // it is back, or gone
	default:
		v.log.WarnContext(ctx, "taking over the sandboxes of a silent node failed; will retry", telemetry.KeyNode, n.Name, telemetry.KeyError, err)
	}
}
