package session

import (
	"context"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// trafficEvery is how often what Boots carried is counted. What a Boot carried
// until its end its Node still knows then.
const trafficEvery = 10 * time.Second

// keepTraffic counts what Boots carried until ctx ends.
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

// countTraffic counts what Boots carried beyond what is in counted, which it
// brings up to date: most carried nothing since the last time. Tenants that have
// sent what they may lose their network. What was refused is told as events, but
// not at the first time, when *known is nil: who counted before has told of it.
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
			return err // what is forgotten here is only counted as nothing more
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
