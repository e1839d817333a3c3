package rest

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// ReadQuota answers GET /api/v1/quota with the Tenant's limits and its use of them.
func (a *API) ReadQuota(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	if _, err := query(r); err != nil {
		return err
	}
	limits, has, _, err := a.quotaOf(r.Context(), who.Tenant)
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, v1.QuotaState{Limits: limits, Used: has})
}

// tenantOf is the Tenant {id} of the path, which need not have a record.
func tenantOf(r *http.Request) (sandbox.TenantID, error) {
	if _, err := query(r); err != nil {
		return "", err
	}
	id := sandbox.TenantID(r.PathValue("id"))
	return id, id.Check()
}

// ReadTenantQuota answers GET /api/v1/tenants/{id}/quota.
func (a *API) ReadTenantQuota(w http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
	tenant, err := tenantOf(r)
	if err != nil {
		return err
	}
	return a.replyQuota(w, r, tenant)
}

// SetTenantQuota answers PUT /api/v1/tenants/{id}/quota: the Tenant has a Quota of its
// own from now on. Fields that the body leaves out are unlimited.
func (a *API) SetTenantQuota(w http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
	tenant, err := tenantOf(r)
	if err != nil {
		return err
	}
	var body map[string]*float64
	if err := Decode(r, &body); err != nil {
		return err
	}
	fields := map[string]float64{}
	for _, name := range slices.Sorted(maps.Keys(body)) {
		n := body[name]
		if n == nil {
			return sandbox.Errorf(sandbox.Invalid, "%.40q must be a number: leave a field out for no limit", name)
		}
		fields[name] = *n
	}
	q, err := sandbox.QuotaOf(fields)
	if err != nil {
		return err
	}
	if err := a.Quotas.SetQuota(r.Context(), tenant, &q); err != nil {
		return err
	}
	return a.replyQuota(w, r, tenant)
}

// DropTenantQuota answers DELETE /api/v1/tenants/{id}/quota: the Tenant has the default
// Quota from now on.
func (a *API) DropTenantQuota(w http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
	tenant, err := tenantOf(r)
	if err != nil {
		return err
	}
	if err := a.Quotas.SetQuota(r.Context(), tenant, nil); err != nil {
		return err
	}
	return a.replyQuota(w, r, tenant)
}

// replyQuota answers with the Quota of a Tenant, and whether it is its own.
func (a *API) replyQuota(w http.ResponseWriter, r *http.Request, tenant sandbox.TenantID) error {
	limits, has, own, err := a.quotaOf(r.Context(), tenant)
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, v1.TenantQuota{Tenant: string(tenant), TenantLimits: v1.TenantLimits{Own: own, Limits: limits, Used: has}})
}

// quotaOf returns the limits and the use of a Tenant, and whether the Quota is its own.
func (a *API) quotaOf(ctx context.Context, tenant sandbox.TenantID) (limits, has v1.Quota, own bool, err error) {
	q, own, used, err := a.Quotas.QuotaOf(ctx, tenant)
	if err != nil {
		return limits, has, own, err
	}
	stored, err := a.TemplateQuota.StoredBytes(ctx, tenant)
	if err != nil {
		return limits, has, own, err
	}
	limits, has = QuotaViewsOf(q, used, stored)
	month, err := a.Usage.Usage(ctx, sandbox.ThisMonth(tenant, time.Now()))
	if err != nil {
		return limits, has, own, err
	}
	has.EgressMB = new(int64)
	for _, row := range month.Rows {
		*has.EgressMB = row.Sent >> 20
	}
	return limits, has, own, nil
}

// QuotaViewsOf shows a Quota and its use. templates is the disk space of the Tenant's
// Templates, in bytes. This month's egress is not set.
func QuotaViewsOf(q sandbox.Quota, used sandbox.QuotaUse, templates int64) (limits, has v1.Quota) {
	limits = v1.Quota{
		Sandboxes: v1.NonZero(q.Sandboxes), CPUs: v1.NonZero(q.CPUs), MemoryMB: v1.NonZero(q.MemoryBytes >> 20), DiskMB: v1.NonZero(q.DiskBytes >> 20),
		CreatesPerMinute: v1.NonZero(q.CreatesPerMinute), SessionMinutes: v1.NonZero(int64(q.SessionLength / time.Minute)), SnapshotMB: v1.NonZero(q.SnapshotBytes >> 20), BandwidthMbps: v1.NonZero(q.Bandwidth / sandbox.Megabit), EgressMB: v1.NonZero(q.EgressBytes >> 20),
		Volumes: v1.NonZero(q.Volumes), VolumeMB: v1.NonZero(q.VolumeBytes >> 20), TemplateMB: v1.NonZero(q.TemplateBytes >> 20),
		KeepSnapshots: v1.NonZero(q.Retention.Snapshots), KeepSnapshotMB: v1.NonZero(q.Retention.Bytes >> 20), KeepSnapshotHours: v1.NonZero(int64(q.Retention.Age / time.Hour)),
	}
	const mib = 1 << 20
	has = v1.Quota{
		Sandboxes: &used.Sandboxes, CPUs: &used.CPUs, MemoryMB: new(used.MemoryBytes / mib), DiskMB: new(used.DiskBytes / mib),
		CreatesPerMinute: &used.Creates, Snapshots: &used.Snapshots, SnapshotMB: new(wholeMiB(used.SnapshotBytes)),
		Volumes: &used.Volumes, VolumeMB: new(used.VolumeBytes / mib), TemplateMB: new(wholeMiB(templates)),
	}
	return limits, has
}

// wholeMiB is n bytes in MiB, rounded up.
func wholeMiB(n int64) int64 {
	const mib = 1 << 20
	return (n + mib - 1) / mib
}
