package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// trafficEvery is the interval of counting traffic. The Node keeps the totals of ended
// Boots for longer.
const trafficEvery = 10 * time.Second

// counted is the traffic that is counted already, by Node and Boot.
type counted map[string]map[string]sandbox.Traffic

// keepTraffic counts the traffic of Boots until ctx ends.
func (m *Manager) keepTraffic(ctx context.Context) error {
	known := counted{}
	for {
		if err := m.countTraffic(ctx, known); err != nil && ctx.Err() == nil {
			m.log.Warn("reading the traffic of sandboxes failed; will retry", telemetry.KeyError, err)
		}
		if err := sleep(ctx, trafficEvery); err != nil {
			return err
		}
	}
}

// countTraffic counts the traffic of Boots whose totals differ from known, and updates
// known; most Boots have no new traffic. A Node that does not answer is counted by a
// later call, and delays no other Node by more than its own silence. Tenants that used up
// their egress quota lose their network. Refusals are reported as events, except on the
// first answer of a Node: the previous process reported them.
func (m *Manager) countTraffic(ctx context.Context, known counted) error {
	nodes, err := m.store.Nodes(ctx)
	if err != nil {
		return err
	}
	asked := newGroupOf(parallelNodes)
	answers := make([][]sandbox.BootTraffic, len(nodes))
	answered := make([]bool, len(nodes))
	for i, n := range nodes {
		asked.do(func() error {
			listing, cancel := context.WithTimeout(ctx, listLimit)
			defer cancel()
			boots, err := m.nodes.Traffic(listing, n.Name)
			if err != nil {
				return fmt.Errorf("node %s: %w", n.Name, err)
			}
			answers[i], answered[i] = boots, true
			return nil
		})
	}
	failed := asked.wait()
	var errs []error
	names := map[string]bool{}
	for i, n := range nodes {
		names[n.Name] = true
		if answered[i] {
			errs = append(errs, m.countNode(ctx, known, n.Name, answers[i]))
		}
	}
	for node := range known {
		if !names[node] {
			delete(known, node)
		}
	}
	return errors.Join(append(errs, failed)...)
}

// countNode counts the traffic of a Node's Boots.
func (m *Manager) countNode(ctx context.Context, known counted, node string, boots []sandbox.BootTraffic) error {
	before, seen := known[node]
	var more []sandbox.BootTraffic
	for _, b := range boots {
		if before[b.BootID] != b.Traffic {
			more = append(more, b)
		}
	}
	if len(more) > 0 {
		if err := m.store.CountTraffic(ctx, more, now()); err != nil {
			return err // known stays as it is, and the next call counts it
		}
	}
	after := make(map[string]sandbox.Traffic, len(boots))
	for _, b := range boots {
		after[b.BootID] = b.Traffic
	}
	known[node] = after
	var errs []error
	cut := map[sandbox.TenantID]bool{}
	for _, b := range more {
		if n := b.Refused - before[b.BootID].Refused; n > 0 && seen {
			m.cfg.Event(sandbox.Event{Kind: sandbox.EventEgressDenied, Tenant: b.Tenant, Sandbox: b.SandboxID, Count: n})
		}
		if !cut[b.Tenant] {
			cut[b.Tenant] = true
			errs = append(errs, m.cutEgress(ctx, b.Tenant))
		}
	}
	return errors.Join(errs...)
}
