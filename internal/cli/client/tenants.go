package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"
)

const tenantsPath = "/api/v1/tenants"

// Tenant is the record of a Tenant as operators see it.
type Tenant struct {
	ID        string    `json:"tenant"`
	Name      string    `json:"name"`
	State     string    `json:"state"`
	CreatedAt time.Time `json:"created_at"`
	Suspended *struct {
		Reason string `json:"reason"`
	} `json:"suspended"` // nil: it is not

	Raw json.RawMessage `json:"-"` // all of it, as the server said it
}

// UnmarshalJSON keeps the text beside the fields.
func (t *Tenant) UnmarshalJSON(raw []byte) error {
	type fields Tenant
	t.Raw = append(json.RawMessage(nil), raw...)
	return json.Unmarshal(raw, (*fields)(t))
}

// MarshalJSON gives the text as the server said it.
func (t Tenant) MarshalJSON() ([]byte, error) { return t.Raw, nil }

// TenantQuota is what a Tenant may have together, and what it has.
type TenantQuota struct {
	Tenant string             `json:"tenant"`
	Own    bool               `json:"own"` // not the one of all
	Limits map[string]float64 `json:"limits"`
	Used   map[string]float64 `json:"used"`
}

func tenantPath(id string) string { return tenantsPath + "/" + url.PathEscape(id) }

// Tenants lists Tenants of a state, by ID; empty: all.
func (c *Client) Tenants(ctx context.Context, state string) ([]Tenant, error) {
	query := url.Values{}
	if state != "" {
		query.Set("state", state)
	}
	var all []Tenant
	for {
		var page struct {
			Tenants []Tenant `json:"tenants"`
			Next    string   `json:"next_cursor"`
		}
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
func (c *Client) CreateTenant(ctx context.Context, id, name string) (t Tenant, err error) {
	body := map[string]string{"tenant": id}
	if name != "" {
		body["name"] = name
	}
	err = c.call(ctx, http.MethodPost, tenantsPath, nil, body, &t)
	return t, err
}

// SuspendTenant suspends a Tenant, for a reason.
func (c *Client) SuspendTenant(ctx context.Context, id, reason string) (t Tenant, err error) {
	err = c.call(ctx, http.MethodPatch, tenantPath(id), nil, map[string]string{"state": "suspended", "reason": reason}, &t)
	return t, err
}

// ResumeTenant lets a suspended Tenant go on.
func (c *Client) ResumeTenant(ctx context.Context, id string) (t Tenant, err error) {
	err = c.call(ctx, http.MethodPatch, tenantPath(id), nil, map[string]string{"state": "active"}, &t)
	return t, err
}

// RemoveTenant removes a Tenant.
func (c *Client) RemoveTenant(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, tenantPath(id), nil, nil, nil)
}

// TenantQuota returns the quota that holds for a Tenant.
func (c *Client) TenantQuota(ctx context.Context, id string) (q TenantQuota, err error) {
	err = c.call(ctx, http.MethodGet, tenantPath(id)+"/quota", nil, nil, &q)
	return q, err
}

// SetTenantQuota gives a Tenant a quota of its own, by the API's names; nil: that of
// all holds for it again.
func (c *Client) SetTenantQuota(ctx context.Context, id string, limits map[string]float64) (q TenantQuota, err error) {
	if limits == nil {
		err = c.call(ctx, http.MethodDelete, tenantPath(id)+"/quota", nil, nil, &q)
		return q, err
	}
	err = c.call(ctx, http.MethodPut, tenantPath(id)+"/quota", nil, limits, &q)
	return q, err
}
