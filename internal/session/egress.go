package session

import (
	"context"
	"errors"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// admitEgress returns Exhausted when a Tenant's egress quota of this month is used up,
// unless network is NetworkNone.
func (m *Manager) admitEgress(ctx context.Context, tenant sandbox.TenantID, quota sandbox.Quota, network sandbox.NetworkPolicy) error {
	if quota.EgressBytes == 0 {
		return nil
	}
	page, err := m.store.Usage(ctx, sandbox.ThisMonth(tenant, now()))
	if err != nil || len(page.Rows) == 0 {
		return err
	}
	return quota.AdmitEgress(page.Rows[0].Sent, network)
}

// changeNetwork is admitEgress for a change of a Sandbox's network.
func (m *Manager) changeNetwork(ctx context.Context, sb sandbox.Sandbox) error {
	quota, err := m.store.TenantQuota(ctx, sb.Tenant)
	if err != nil {
		return err
	}
	return m.admitEgress(ctx, sb.Tenant, quota, sb.Network)
}

// cutEgress sets NetworkNone for a Tenant's running Sandboxes when its egress quota is
// used up. The records change too: the user must restore the network once there is quota
// again.
func (m *Manager) cutEgress(ctx context.Context, tenant sandbox.TenantID) error {
	quota, err := m.store.TenantQuota(ctx, tenant)
	if err != nil {
		return err
	}
	over := m.admitEgress(ctx, tenant, quota, sandbox.NetworkPublic)
	if !errors.Is(over, sandbox.ErrOverQuota) {
		return over
	}
	work := newGroup()
	for q := (sandbox.ListQuery{States: []sandbox.State{sandbox.Running}}); ; {
		page, err := m.store.ListSandboxes(ctx, tenant, q)
		if err != nil {
			return errors.Join(err, work.wait())
		}
		for _, sb := range page.Sandboxes {
			if sb.Network != sandbox.NetworkNone {
				work.do(func() error { return m.cutOne(ctx, sb) })
			}
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			return work.wait()
		}
	}
}

func (m *Manager) cutOne(ctx context.Context, sb sandbox.Sandbox) error {
	none := sandbox.NetworkNone
	_, err := m.Update(ctx, sb.Tenant, sb.ID, sandbox.Change{Network: &none})
	if errors.Is(err, sandbox.NotFound) || isConflict(err) { // it ended, or is about to pause
		return nil
	}
	if err == nil {
		m.cfg.Event(sandbox.Event{Kind: sandbox.EventQuotaHit, Tenant: sb.Tenant, Sandbox: sb.ID, Reason: "egress"})
		m.log.InfoContext(ctx, "a sandbox lost its network, as its tenant's quota of egress is used up", telemetry.KeySandbox, sb.ID, telemetry.KeyTenant, sb.Tenant)
	}
	return err
}
