package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const (
	ownQuotaText = `SELECT quota FROM quotas WHERE tenant = ?`
	quotaUseText = `SELECT count(*), coalesce(sum(cpus), 0), CAST(coalesce(sum(memory_bytes), 0) AS BIGINT), CAST(coalesce(sum(disk_bytes), 0) AS BIGINT)
		FROM sandboxes WHERE tenant = ? AND state <> 'ended'`
	snapshotUseText = `SELECT count(*) FILTER (WHERE kept AND state = 'ready'), CAST(coalesce(sum(bytes), 0) AS BIGINT) FROM snapshots WHERE tenant = ? AND layer = ''`
	volumeUseText   = `SELECT count(*), CAST(coalesce(sum(max_bytes), 0) AS BIGINT) FROM volumes WHERE tenant = ?`
	createsText     = `SELECT count(*) FROM sandboxes WHERE tenant = ? AND created_at > ? AND ended_cause <> 'refused'`
)

// quotaStatements are the writer's prepared statements for quotas.
type quotaStatements struct {
	setQuota, dropQuota *sql.Stmt
	quotaQueries
}

func (s *quotaStatements) all() []prepared {
	return append(s.quotaQueries.all(),
		prepared{&s.setQuota, `INSERT INTO quotas (tenant, quota) VALUES (?, ?) ON CONFLICT (tenant) DO UPDATE SET quota = excluded.quota`},
		prepared{&s.dropQuota, `DELETE FROM quotas WHERE tenant = ?`})
}

// quotaQueries are prepared on reading connections and the writer's: admission must read
// in the writing transaction.
type quotaQueries struct{ ownQuota, quotaUse, snapshotUse, volumeUse, creates *sql.Stmt }

func (q *quotaQueries) all() []prepared {
	return []prepared{{&q.ownQuota, ownQuotaText}, {&q.quotaUse, quotaUseText}, {&q.snapshotUse, snapshotUseText}, {&q.volumeUse, volumeUseText}, {&q.creates, createsText}}
}

// quotaOf returns the Quota of a Tenant: its own, read by stmt, or else otherwise.
func quotaOf(ctx context.Context, stmt *sql.Stmt, tenant sandbox.TenantID, otherwise sandbox.Quota) (quota sandbox.Quota, own bool, err error) {
	var text ownQuota
	if err := text.scan(stmt.QueryRowContext(ctx, string(tenant)).Scan); err != nil {
		return quota, false, err
	}
	return text.or(otherwise)
}

// ownQuota is the text of a Tenant's own Quota; empty: it has none.
type ownQuota string

func (q *ownQuota) scan(scan scanner) error {
	err := scan((*string)(q))
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return err
}

func (q *ownQuota) read(p *pipeline, tenant sandbox.TenantID) {
	p.row(p.st.ownQuota, q.scan, string(tenant))
}

// or returns the Quota and true; without one, it returns otherwise.
func (q ownQuota) or(otherwise sandbox.Quota) (quota sandbox.Quota, own bool, err error) {
	if q == "" {
		return otherwise, false, nil
	}
	if err := json.Unmarshal([]byte(q), &quota); err != nil {
		return quota, true, fmt.Errorf("decode a quota: %w", err)
	}
	return quota, true, nil
}

// useOfSnapshots fills in the use of a Tenant's Snapshots.
func (q *quotaQueries) useOfSnapshots(ctx context.Context, tenant sandbox.TenantID, u *sandbox.QuotaUse) error {
	return q.snapshotUse.QueryRowContext(ctx, string(tenant)).Scan(&u.Snapshots, &u.SnapshotBytes)
}

// useOfVolumes fills in the use of a Tenant's Volumes.
func (q *quotaQueries) useOfVolumes(ctx context.Context, tenant sandbox.TenantID, u *sandbox.QuotaUse) error {
	return q.volumeUse.QueryRowContext(ctx, string(tenant)).Scan(&u.Volumes, &u.VolumeBytes)
}

// use returns the use of a Tenant's Sandboxes at the time now.
func (q *quotaQueries) use(ctx context.Context, tenant sandbox.TenantID, now time.Time) (u sandbox.QuotaUse, err error) {
	if err := scanQuotaUse(&u, q.quotaUse.QueryRowContext(ctx, string(tenant)).Scan); err != nil {
		return u, err
	}
	err = q.creates.QueryRowContext(ctx, string(tenant), createsSince(now)).Scan(&u.Creates)
	return u, err
}

func scanQuotaUse(u *sandbox.QuotaUse, scan scanner) error {
	return scan(&u.Sandboxes, &u.CPUs, &u.MemoryBytes, &u.DiskBytes)
}

// createsSince is the time since when creates count at the time now.
func createsSince(now time.Time) int64 { return micros(now.Add(-sandbox.CreateWindow)) }

// SetDefaultQuota sets the Quota of Tenants without their own. Call it before the Store
// is used.
func (s *Store) SetDefaultQuota(q sandbox.Quota) { s.quota = q }

// admit returns Exhausted if sb exceeds the Quota of its Tenant. It runs in the
// transaction that has just added sb, so that concurrent requests cannot exceed the
// Quota.
func (s *Store) admit(p *pipeline, own ownQuota, sb sandbox.Sandbox) error {
	quota, _, err := own.or(s.quota)
	if err != nil || quota == (sandbox.Quota{}) {
		return err
	}
	var used sandbox.QuotaUse
	p.row(p.st.quotaUse, func(scan scanner) error { return scanQuotaUse(&used, scan) }, string(sb.Tenant))
	p.row(p.st.creates, func(scan scanner) error { return scan(&used.Creates) }, string(sb.Tenant), createsSince(sb.CreatedAt))
	if err := p.flush(); err != nil {
		return err
	}
	used.Sandboxes, used.Creates = used.Sandboxes-1, used.Creates-1
	used.CPUs -= sb.Shape.CPUs
	used.MemoryBytes -= sb.Shape.MemoryBytes
	used.DiskBytes -= sb.Shape.DiskBytes
	return quota.Admit(used, sb.Shape)
}

// admitSnapshot returns Exhausted if a Snapshot that is Kept and no layer exceeds the
// Quota of its Tenant. It runs in the transaction that has just written it.
func (s *Store) admitSnapshot(st *statements, snap sandbox.Snapshot) error {
	if !snap.Kept || snap.Layer != "" {
		return nil
	}
	ctx := context.Background() // the transaction's, which many callers share
	quota, _, err := quotaOf(ctx, st.ownQuota, snap.Tenant, s.quota)
	if err != nil || quota.SnapshotBytes == 0 {
		return err
	}
	var used sandbox.QuotaUse
	if err := st.useOfSnapshots(ctx, snap.Tenant, &used); err != nil {
		return err
	}
	used.SnapshotBytes -= snap.Bytes
	return quota.AdmitSnapshot(used, snap.Bytes)
}

// admitVolume returns Exhausted if a Volume exceeds the Quota of its Tenant. It runs in
// the transaction that has just added it.
func (s *Store) admitVolume(st *statements, v sandbox.Volume) error {
	ctx := context.Background() // as above
	quota, _, err := quotaOf(ctx, st.ownQuota, v.Tenant, s.quota)
	if err != nil || quota.Volumes == 0 && quota.VolumeBytes == 0 {
		return err
	}
	var used sandbox.QuotaUse
	if err := st.useOfVolumes(ctx, v.Tenant, &used); err != nil {
		return err
	}
	used.Volumes, used.VolumeBytes = used.Volumes-1, used.VolumeBytes-v.MaxBytes
	return quota.AdmitVolume(used, v.MaxBytes)
}

// SetQuota implements sandbox.QuotaStore.
func (s *Store) SetQuota(ctx context.Context, tenant sandbox.TenantID, q *sandbox.Quota) error {
	if q == nil {
		return s.writer.write(ctx, func(st *statements) error {
			_, err := st.dropQuota.Exec(string(tenant))
			return err
		})
	}
	text, err := json.Marshal(q)
	if err != nil {
		return err
	}
	return s.writer.write(ctx, func(st *statements) error {
		_, err := st.setQuota.Exec(string(tenant), string(text))
		return err
	})
}

// TenantQuota implements sandbox.QuotaStore.
func (s *Store) TenantQuota(ctx context.Context, tenant sandbox.TenantID) (sandbox.Quota, error) {
	var quota sandbox.Quota
	err := s.brief.do(ctx, func(ctx context.Context, q *briefQueries) (err error) {
		quota, _, err = quotaOf(ctx, q.ownQuota, tenant, s.quota)
		return err
	})
	return quota, classify(err)
}

// QuotaOf implements sandbox.QuotaStore.
func (s *Store) QuotaOf(ctx context.Context, tenant sandbox.TenantID) (q sandbox.Quota, own bool, used sandbox.QuotaUse, err error) {
	if q, own, err = quotaOf(ctx, s.query.ownQuota, tenant, s.quota); err != nil {
		return q, own, used, classify(err)
	}
	if used, err = s.query.use(ctx, tenant, time.Now()); err == nil {
		err = cmp.Or(s.query.useOfSnapshots(ctx, tenant, &used), s.query.useOfVolumes(ctx, tenant, &used))
	}
	return q, own, used, classify(err)
}
