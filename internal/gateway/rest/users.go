package rest

import (
	"net/http"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/users"
)

// credentialRole is the clients' name for a User without a Role: the User's credentials
// determine it.
const credentialRole = "credential"

// parseGiven parses the Role of a User.
func parseGiven(name string) (sandbox.Role, error) {
	if name == credentialRole {
		return "", nil
	}
	role, err := ParseRole(name)
	if err != nil {
		return "", sandbox.Errorf(sandbox.Invalid, `role must be "viewer", "user", "admin", "owner", "operator", or %q for the role in their tokens`, credentialRole)
	}
	return role, nil
}

// ListUsers answers GET /api/v1/users.
func (a *API) ListUsers(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	return a.listUsers(w, r, who.Tenant)
}

// CreateUser answers POST /api/v1/users.
func (a *API) CreateUser(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	return a.createUser(w, r, who, who.Tenant)
}

// GetUser answers GET /api/v1/users/{user}.
func (a *API) GetUser(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	return a.getUser(w, r, who.Tenant)
}

// ChangeUser answers PATCH /api/v1/users/{user}.
func (a *API) ChangeUser(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	return a.changeUser(w, r, who, who.Tenant)
}

// DeleteUser answers DELETE /api/v1/users/{user}.
func (a *API) DeleteUser(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	return a.deleteUser(w, r, who, who.Tenant)
}

// ListTenantUsers answers GET /api/v1/tenants/{id}/users.
func (a *API) ListTenantUsers(w http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
	tenant, err := a.recorded(r)
	if err != nil {
		return err
	}
	return a.listUsers(w, r, tenant)
}

// CreateTenantUser answers POST /api/v1/tenants/{id}/users.
func (a *API) CreateTenantUser(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	tenant, err := a.recorded(r)
	if err != nil {
		return err
	}
	return a.createUser(w, r, who, tenant)
}

// GetTenantUser answers GET /api/v1/tenants/{id}/users/{user}.
func (a *API) GetTenantUser(w http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
	tenant, err := a.recorded(r)
	if err != nil {
		return err
	}
	return a.getUser(w, r, tenant)
}

// ChangeTenantUser answers PATCH /api/v1/tenants/{id}/users/{user}.
func (a *API) ChangeTenantUser(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	tenant, err := a.recorded(r)
	if err != nil {
		return err
	}
	return a.changeUser(w, r, who, tenant)
}

// DeleteTenantUser answers DELETE /api/v1/tenants/{id}/users/{user}.
func (a *API) DeleteTenantUser(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	tenant, err := a.recorded(r)
	if err != nil {
		return err
	}
	return a.deleteUser(w, r, who, tenant)
}

// recorded is the Tenant in the path, which must have a record.
func (a *API) recorded(r *http.Request) (sandbox.TenantID, error) {
	id, err := tenantOf(r)
	if err != nil {
		return "", err
	}
	_, err = a.Tenants.Get(r.Context(), id)
	return id, err
}

func (a *API) listUsers(w http.ResponseWriter, r *http.Request, tenant sandbox.TenantID) error {
	values, err := query(r, "state", "limit", "cursor")
	if err != nil {
		return err
	}
	q := sandbox.UserQuery{State: sandbox.UserState(values.Get("state")), Cursor: values.Get("cursor")}
	if len(q.Cursor) > maxUserCursor {
		return sandbox.Errorf(sandbox.Invalid, "cursor is not one of an earlier page")
	}
	if err := pageLimit(values, sandbox.MaxTenantPage, &q.Limit); err != nil {
		return err
	}
	page, err := a.Users.List(r.Context(), tenant, q)
	if err != nil {
		return err
	}
	reply := v1.Users{Users: []v1.User{}, Next: page.Next}
	for _, u := range page.Users {
		reply.Users = append(reply.Users, v1.UserOf(u))
	}
	return Reply(w, http.StatusOK, reply)
}

// maxUserCursor bounds a cursor, in bytes: an ID in base64.
const maxUserCursor = 4 * sandbox.MaxUserID * 4 / 3

func (a *API) createUser(w http.ResponseWriter, r *http.Request, who sandbox.Identity, tenant sandbox.TenantID) error {
	var body v1.UserRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	in := users.Invite{ID: body.ID, Name: body.Name, Email: body.Email}
	var err error
	if body.Role != "" {
		if in.Role, err = parseGiven(body.Role); err != nil {
			return err
		}
	}
	u, err := a.Users.Create(r.Context(), who, tenant, in)
	if err != nil {
		return err
	}
	made := u.ID
	if of := r.PathValue("id"); of != "" {
		made = of + "/users/" + made
	}
	Made(r.Context(), made)
	return Reply(w, http.StatusCreated, v1.UserOf(u))
}

func (a *API) getUser(w http.ResponseWriter, r *http.Request, tenant sandbox.TenantID) error {
	u, err := a.Users.Get(r.Context(), tenant, r.PathValue("user"))
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, v1.UserOf(u))
}

func (a *API) changeUser(w http.ResponseWriter, r *http.Request, who sandbox.Identity, tenant sandbox.TenantID) error {
	var body v1.UserChange
	if err := Decode(r, &body); err != nil {
		return err
	}
	change := sandbox.UserChange{Name: body.Name, Email: body.Email, State: body.State}
	if body.Role != nil {
		given, err := parseGiven(*body.Role)
		if err != nil {
			return err
		}
		change.Role = &given
	}
	u, err := a.Users.Change(r.Context(), who, tenant, r.PathValue("user"), change)
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, v1.UserOf(u))
}

func (a *API) deleteUser(w http.ResponseWriter, r *http.Request, who sandbox.Identity, tenant sandbox.TenantID) error {
	if err := a.Users.Remove(r.Context(), who, tenant, r.PathValue("user")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
