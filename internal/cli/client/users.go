package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// UserFields are what is to be said of a User; what is nil is left as it is.
type UserFields struct {
	Name  *string `json:"name,omitempty"`
	Email *string `json:"email,omitempty"`
	Role  *string `json:"role,omitempty"`
	State *string `json:"state,omitempty"` // not of a new one
}

// usersPath is where the Users of a Tenant are; empty: of the caller's.
func usersPath(tenant string) string {
	if tenant == "" {
		return "/api/v1/users"
	}
	return "/api/v1/tenants/" + url.PathEscape(tenant) + "/users"
}

func userPath(tenant, id string) string { return usersPath(tenant) + "/" + url.PathEscape(id) }

// Users lists the Users of a Tenant that are of a state, by ID; empty: all but
// those that were removed.
func (c *Client) Users(ctx context.Context, tenant, state string) ([]v1.User, error) {
	query := url.Values{}
	if state != "" {
		query.Set("state", state)
	}
	var all []v1.User
	for {
		var page v1.Users
		if err := c.call(ctx, http.MethodGet, usersPath(tenant), query, nil, &page); err != nil {
			return nil, err
		}
		if all = append(all, page.Users...); page.Next == "" {
			return all, nil
		}
		query.Set("cursor", page.Next)
	}
}

// AddUser makes a User of a Tenant before a token of theirs comes.
func (c *Client) AddUser(ctx context.Context, tenant, id string, f UserFields) (u v1.User, err error) {
	body := struct {
		ID string `json:"user_id"`
		UserFields
	}{id, f}
	err = c.call(ctx, http.MethodPost, usersPath(tenant), nil, body, &u)
	return u, err
}

// ChangeUser changes a User of a Tenant.
func (c *Client) ChangeUser(ctx context.Context, tenant, id string, f UserFields) (u v1.User, err error) {
	err = c.call(ctx, http.MethodPatch, userPath(tenant, id), nil, f, &u)
	return u, err
}

// RemoveUser removes a User from a Tenant.
func (c *Client) RemoveUser(ctx context.Context, tenant, id string) error {
	return c.call(ctx, http.MethodDelete, userPath(tenant, id), nil, nil, nil)
}
