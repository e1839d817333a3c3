package rest

import (
	"net/http"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// ListTenants answers GET /api/v1/tenants.
func (a *API) ListTenants(w http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
	values, err := query(r, "state", "limit", "cursor")
	if err != nil {
		return err
	}
	q := sandbox.TenantQuery{State: sandbox.TenantState(values.Get("state")), Cursor: values.Get("cursor")}
	if err := sandbox.CheckCursor(q.Cursor); err != nil {
		return err
	}
	if err := pageLimit(values, sandbox.MaxTenantPage, &q.Limit); err != nil {
		return err
	}
	page, err := a.Tenants.List(r.Context(), q)
	if err != nil {
		return err
	}
	reply := v1.Tenants{Tenants: []v1.Tenant{}, Next: page.Next}
	for _, t := range page.Tenants {
		reply.Tenants = append(reply.Tenants, v1.TenantOf(t))
	}
	return Reply(w, http.StatusOK, reply)
}

// CreateTenant answers POST /api/v1/tenants.
func (a *API) CreateTenant(w http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
	var body v1.TenantRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	t, err := a.Tenants.Create(r.Context(), sandbox.TenantID(body.Tenant), body.Name)
	if err != nil {
		return err
	}
	Made(r.Context(), string(t.ID))
	return Reply(w, http.StatusCreated, v1.TenantOf(t))
}

// GetTenant answers GET /api/v1/tenants/{id} with the record, the quota and its use.
func (a *API) GetTenant(w http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
	id, err := tenantOf(r)
	if err != nil {
		return err
	}
	t, err := a.Tenants.Get(r.Context(), id)
	if err != nil {
		return err
	}
	limits, has, own, err := a.quotaOf(r.Context(), id)
	if err != nil {
		return err
	}
	v := v1.TenantOf(t)
	v.Quota = &v1.TenantLimits{Own: own, Limits: limits, Used: has}
	return Reply(w, http.StatusOK, v)
}

// ChangeTenant answers PATCH /api/v1/tenants/{id}.
func (a *API) ChangeTenant(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	id, err := tenantOf(r)
	if err != nil {
		return err
	}
	var body v1.TenantChange
	if err := Decode(r, &body); err != nil {
		return err
	}
	t, err := a.Tenants.Change(r.Context(), who, id, sandbox.TenantChange{Name: body.Name, State: body.State, Reason: body.Reason})
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, v1.TenantOf(t))
}

// DeleteTenant answers DELETE /api/v1/tenants/{id}.
func (a *API) DeleteTenant(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	id, err := tenantOf(r)
	if err != nil {
		return err
	}
	if err := a.Tenants.Remove(r.Context(), who, id); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
