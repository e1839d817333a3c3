package session

import (
	"context"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// trafficEvery is the interval of counting traffic. The Node keeps the totals of ended
// Boots for longer.
const trafficEvery = 10 * time.Second

// keepTraffic counts the traffic of Boots until ctx ends.
func (m *Manager) keepTraffic(ctx context.Context) error {
	var counted map[string]sandbox.Traffic
	for {
		if err := m.countTraffic(ctx, &counted); err != nil && ctx.Err() == nil {
			m.log.Warn("reading the traffic of sandboxes failed; will retry", telemetry.KeyError, err)
		}
		if err := sleep(ctx, trafficEvery); err != nil {
			return err
		}
	}
}

// countTraffic counts the traffic of Boots whose totals differ from known, and updates
// known; most Boots have no new traffic. Tenants that used up their egress quota lose
// their network. Refusals are reported as events, except on the first call, when *known
// is nil: the previous process reported them.
func (m *Manager) countTraffic(ctx context.Context, known *map[string]sandbox.Traffic) error {
	first := *known == nil
	if first {
		*known = map[string]sandbox.Traffic{}
	}
	counted := *known
	nodes, err := m.store.Nodes(ctx)
	if err != nil {
		return err
	}
	there := map[string]bool{}
	var more []sandbox.BootTraffic
	for _, n := range nodes {
		listing, cancel := context.WithTimeout(ctx, listLimit)
		boots, err := m.nodes.Traffic(listing, n.Name)
		cancel()
		if err != nil {
			return err // known stays as it is, and the next call counts the rest
		}
		for _, b := range boots {
			if there[b.BootID] = true; counted[b.BootID] != b.Traffic {
				more = append(more, b)
			}
		}
	}
	if len(more) > 0 {
		if err := m.store.CountTraffic(ctx, more, now()); err != nil {
			return err
		}
	}
	var errs []error
	asked := map[sandbox.TenantID]bool{}
	for _, b := range more {
		if n := b.Refused - counted[b.BootID].Refused; n > 0 && !first {
			m.cfg.Event(sandbox.Event{Kind: sandbox.EventEgressDenied, Tenant: b.Tenant, Sandbox: b.SandboxID, Count: n})
		}
		counted[b.BootID] = b.Traffic
		if !asked[b.Tenant] {
			asked[b.Tenant] = true
			errs = append(errs, m.cutEgress(ctx, b.Tenant))
		}
	}
	for id := range counted {
		if !there[id] {
			delete(counted, id)
		}
	}
	return errors.Join(errs...)
}
