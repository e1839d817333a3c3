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

// retainEvery is the time between looks at all Tenants' Snapshots, which get old by
// themselves.
const retainEvery = 10 * time.Minute

// retainSoon has Run look at what a Tenant keeps.
func (m *Manager) retainSoon(tenant sandbox.TenantID) {
	m.mu.Lock()
	m.grown[tenant] = true
	m.mu.Unlock()
	select {
	case m.retainCh <- struct{}{}:
	default:
	}
}

// keepRetained lets Snapshots go that Tenants' Retentions do not keep, when one was
// taken and every now and then, until ctx ends.
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

// retain looks at the Tenants that have new Snapshots, or at all.
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

// retainOf lets Snapshots of one Tenant go that its Retention does not keep.
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
		m.cfg.LetGo(ctx, snap)
	})
}

// retainLayers lets layers of one Tenant go that builds need least.
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

// unkeep has Snapshots go: they are not Kept any more, so that they are deleted as
// soon as no Sandbox refers to them, and not before. gone is called for each.
func (m *Manager) unkeep(ctx context.Context, snaps []sandbox.Snapshot, gone func(sandbox.Snapshot)) error {
	defer m.sweepSoon()
	for _, snap := range snaps {
		if !snap.Kept || m.isHeld(snap.ID) {
			continue
		}
		snap.Kept = false
		switch _, err := m.store.UpdateSnapshot(ctx, snap); {
		case isConflict(err), errors.Is(err, sandbox.NotFound): // it was deleted, or is another by now
			continue
		case err != nil:
			return err
		}
		gone(snap)
	}
	return nil
}

// touchLayer records that a layer is used. One that cannot be recorded only goes
// earlier.
func (m *Manager) touchLayer(ctx context.Context, snap sandbox.Snapshot) {
	snap.UsedAt = now()
	if _, err := m.store.UpdateSnapshot(ctx, snap); err != nil && !isConflict(err) {
		m.log.WarnContext(ctx, "recording the use of a layer failed", telemetry.KeySnapshot, snap.ID, telemetry.KeyError, err)
	}
}
