//go:build linux && !client

package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/tenants"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template"
)

func tenantCommand() *cobra.Command {
	return cli.TenantCommand(os.Getenv, func(cmd *cobra.Command, use func(cli.Tenants) error) error {
		data, err := config.DataFolder(setFlags(cmd), os.Getenv)
		if err != nil {
			return err
		}
		return withStore(cmd, "tenants belong", func(s sandbox.Store) error {
			layout := launch.Layout{Root: data}
			images, err := template.Open(layout.Templates())
			if err != nil {
				return err
			}
			return use(localTenants{serve.TenantsOf(s, images, layout), s, images})
		})
	})
}

// localTenants are the Tenants of a data folder; changes go into its audit log.
type localTenants struct {
	tenants *tenants.Service
	store   interface {
		sandbox.AuditStore
		sandbox.QuotaStore
	}
	images *template.Store
}

// operator is the Identity of a command on a data folder.
func operator() sandbox.Identity { return serve.Operator("", sandbox.RoleOperator) }

// did records an operation of the operator on a Tenant and its result.
func (l localTenants) did(ctx context.Context, operation, id string, err error) error {
	return serve.AuditOperator(ctx, l.store, sandbox.AuditEntry{Tenant: sandbox.TenantID(id), Operation: operation, Target: id}, err)
}

// changed records the operation and returns the Tenant as the API shows it.
func (l localTenants) changed(ctx context.Context, operation string, t sandbox.Tenant, id string, err error) (view v1.Tenant, _ error) {
	if err := l.did(ctx, operation, id, err); err != nil {
		return view, err
	}
	return v1.TenantOf(t), nil
}

// Tenants implements cli.Tenants.
func (l localTenants) Tenants(ctx context.Context, state string) ([]v1.Tenant, error) {
	var all []v1.Tenant
	for q := (sandbox.TenantQuery{State: sandbox.TenantState(state)}); ; {
		page, err := l.tenants.List(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, t := range page.Tenants {
			all = append(all, v1.TenantOf(t))
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			return all, nil
		}
	}
}

// CreateTenant implements cli.Tenants.
func (l localTenants) CreateTenant(ctx context.Context, id, name string) (v1.Tenant, error) {
	t, err := l.tenants.Create(ctx, sandbox.TenantID(id), name)
	return l.changed(ctx, "createTenant", t, id, err)
}

// SuspendTenant implements cli.Tenants.
func (l localTenants) SuspendTenant(ctx context.Context, id, reason string) (v1.Tenant, error) {
	t, err := l.tenants.Change(ctx, operator(), sandbox.TenantID(id), sandbox.TenantChange{State: new(sandbox.TenantSuspended), Reason: reason})
	return l.changed(ctx, sandbox.AuditTenantSuspended, t, id, err)
}

// ResumeTenant implements cli.Tenants.
func (l localTenants) ResumeTenant(ctx context.Context, id string) (v1.Tenant, error) {
	t, err := l.tenants.Change(ctx, operator(), sandbox.TenantID(id), sandbox.TenantChange{State: new(sandbox.TenantActive)})
	return l.changed(ctx, sandbox.AuditTenantResumed, t, id, err)
}

// RemoveTenant implements cli.Tenants.
func (l localTenants) RemoveTenant(ctx context.Context, id string) error {
	return l.did(ctx, "deleteTenant", id, l.tenants.Remove(ctx, operator(), sandbox.TenantID(id)))
}

// TenantQuota implements cli.Tenants.
func (l localTenants) TenantQuota(ctx context.Context, id string) (v1.TenantQuota, error) {
	q, own, used, err := l.store.QuotaOf(ctx, sandbox.TenantID(id))
	if err != nil {
		return v1.TenantQuota{}, err
	}
	stored, err := l.images.StoredBytes(sandbox.TenantID(id))
	if err != nil {
		return v1.TenantQuota{}, err
	}
	view := v1.TenantQuota{Tenant: id, TenantLimits: v1.TenantLimits{Own: own}}
	view.Limits, view.Used = rest.QuotaViewsOf(q, used, stored)
	return view, nil
}

// SetTenantQuota implements cli.Tenants.
func (l localTenants) SetTenantQuota(ctx context.Context, id string, limits map[string]float64) (v1.TenantQuota, error) {
	err := l.did(ctx, "setQuota", id, func() error {
		if limits == nil {
			return l.store.SetQuota(ctx, sandbox.TenantID(id), nil)
		}
		q, err := sandbox.QuotaOf(limits)
		if err != nil {
			return err
		}
		return l.store.SetQuota(ctx, sandbox.TenantID(id), &q)
	}())
	if err != nil {
		return v1.TenantQuota{}, err
	}
	return l.TenantQuota(ctx, id)
}
