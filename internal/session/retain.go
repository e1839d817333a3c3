package session

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// retainEvery is the interval at which all Tenants' Snapshots are checked for age.
const retainEvery = 10 * time.Minute

// retainSoon makes Run apply a Tenant's Retention soon.
func (m *Manager) retainSoon(tenant sandbox.TenantID) {
	m.mu.Lock()
	m.grown[tenant] = true
	m.mu.Unlock()
	select {
	case m.retainCh <- struct{}{}:
	default:
	}
}

// keepRetained deletes Snapshots beyond Tenants' Retentions, after each new Snapshot and
// every retainEvery, until ctx ends.
func (m *Manager) keepRetained(ctx context.Context) error {
	all := true
	for {
		if err := m.retain(ctx, all); err != nil && ctx.Err() == nil {
			m.log.Warn("deleting snapshots beyond the quota failed", telemetry.KeyError, err)
		}
		timer := time.NewTimer(retainEvery)
		select {
		case <-m.retainCh:
			all = false
		case <-timer.C:
			all = true
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// retain applies the Retentions of the Tenants with new Snapshots, or of all Tenants.
func (m *Manager) retain(ctx context.Context, all bool) (err error) {
	m.mu.Lock()
	tenants := slices.Collect(maps.Keys(m.grown))
	clear(m.grown)
	m.mu.Unlock()
	if all {
		if tenants, err = m.store.SnapshotTenants(ctx); err != nil {
			return err
		}
	}
	var errs []error
	for _, tenant := range tenants {
		errs = append(errs, m.retainOf(ctx, tenant), m.retainLayers(ctx, tenant))
	}
	return errors.Join(errs...)
}

// retainOf deletes the Snapshots of one Tenant that are beyond its Retention.
func (m *Manager) retainOf(ctx context.Context, tenant sandbox.TenantID) error {
	quota, err := m.store.TenantQuota(ctx, tenant)
	if err != nil || quota.Retention == (sandbox.Retention{}) {
		return err
	}
	all, err := m.allSnapshots(ctx, tenant, sandbox.SnapshotQuery{})
	if err != nil {
		return err
	}
	return m.unkeep(ctx, quota.Retention.Beyond(all, now()), func(snap sandbox.Snapshot) {
		m.log.InfoContext(ctx, "deleting a snapshot beyond its tenant's quota", telemetry.KeySnapshot, snap.ID, telemetry.KeyTenant, tenant)
		m.cfg.OnPruned(ctx, snap)
	})
}

// retainLayers deletes the layers of one Tenant that LayersBeyond selects.
func (m *Manager) retainLayers(ctx context.Context, tenant sandbox.TenantID) error {
	all, err := m.allSnapshots(ctx, tenant, sandbox.SnapshotQuery{Layers: true})
	if err != nil {
		return err
	}
	return m.unkeep(ctx, sandbox.LayersBeyond(all, m.cfg.LayerBytes, now()), func(sandbox.Snapshot) {})
}

func (m *Manager) allSnapshots(ctx context.Context, tenant sandbox.TenantID, query sandbox.SnapshotQuery) (all []sandbox.Snapshot, err error) {
	for {
		page, err := m.store.ListSnapshots(ctx, tenant, query)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Snapshots...)
		if query.Cursor = page.Next; page.Next == "" {
			return all, nil
		}
	}
}

// unkeep clears Kept of Snapshots, so that each is deleted once no Sandbox refers to it.
// It calls gone for each.
func (m *Manager) unkeep(ctx context.Context, snaps []sandbox.Snapshot, gone func(sandbox.Snapshot)) error {
	defer m.sweepSoon()
	for _, snap := range snaps {
		if !snap.Kept || m.isHeld(snap.ID) {
			continue
		}
		snap.Kept = false
		switch _, err := m.store.UpdateSnapshot(ctx, snap); {
		case isConflict(err), errors.Is(err, sandbox.NotFound): // it was deleted or changed meanwhile
			continue
		case err != nil:
			return err
		}
		gone(snap)
	}
	return nil
}

// touchLayer records the use of a layer. If that fails, the layer is only deleted
// earlier.
func (m *Manager) touchLayer(ctx context.Context, snap sandbox.Snapshot) {
	snap.UsedAt = now()
	if _, err := m.store.UpdateSnapshot(ctx, snap); err != nil && !isConflict(err) {
		m.log.WarnContext(ctx, "recording the use of a layer failed", telemetry.KeySnapshot, snap.ID, telemetry.KeyError, err)
	}
}
