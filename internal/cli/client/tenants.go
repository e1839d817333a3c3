package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

const tenantsPath = "/api/v1/tenants"

func tenantPath(id string) string { return tenantsPath + "/" + url.PathEscape(id) }

// Tenants lists Tenants of a state, by ID; empty: all.
func (c *Client) Tenants(ctx context.Context, state string) ([]v1.Tenant, error) {
	query := url.Values{}
	if state != "" {
		query.Set("state", state)
	}
	var all []v1.Tenant
	for {
		var page v1.Tenants
		if err := c.call(ctx, http.MethodGet, tenantsPath, query, nil, &page); err != nil {
			return nil, err
		}
		if all = append(all, page.Tenants...); page.Next == "" {
			return all, nil
		}
		query.Set("cursor", page.Next)
	}
}

// CreateTenant makes the record of a Tenant.
func (c *Client) CreateTenant(ctx context.Context, id, name string) (t v1.Tenant, err error) {
	body := v1.TenantRequest{Tenant: id, Name: name}
	err = c.call(ctx, http.MethodPost, tenantsPath, nil, body, &t)
	return t, err
}

// SuspendTenant suspends a Tenant, for a reason.
func (c *Client) SuspendTenant(ctx context.Context, id, reason string) (t v1.Tenant, err error) {
	err = c.call(ctx, http.MethodPatch, tenantPath(id), nil, v1.TenantChange{State: new(sandbox.TenantSuspended), Reason: reason}, &t)
	return t, err
}

// ResumeTenant reactivates a suspended Tenant.
func (c *Client) ResumeTenant(ctx context.Context, id string) (t v1.Tenant, err error) {
	err = c.call(ctx, http.MethodPatch, tenantPath(id), nil, v1.TenantChange{State: new(sandbox.TenantActive)}, &t)
	return t, err
}

// RemoveTenant removes a Tenant.
func (c *Client) RemoveTenant(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, tenantPath(id), nil, nil, nil)
}

// TenantQuota returns the effective quota of a Tenant.
func (c *Client) TenantQuota(ctx context.Context, id string) (q v1.TenantQuota, err error) {
	err = c.call(ctx, http.MethodGet, tenantPath(id)+"/quota", nil, nil, &q)
	return q, err
}

// SetTenantQuota gives a Tenant a quota of its own, by the API's names; nil resets it
// to the default.
func (c *Client) SetTenantQuota(ctx context.Context, id string, limits map[string]float64) (q v1.TenantQuota, err error) {
	if limits == nil {
		err = c.call(ctx, http.MethodDelete, tenantPath(id)+"/quota", nil, nil, &q)
		return q, err
	}
	err = c.call(ctx, http.MethodPut, tenantPath(id)+"/quota", nil, limits, &q)
	return q, err
}
