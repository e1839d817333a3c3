package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// usersPath returns the path of a Tenant's Users; empty: the caller's Tenant.
func usersPath(tenant string) string {
	if tenant == "" {
		return "/api/v1/users"
	}
	return "/api/v1/tenants/" + url.PathEscape(tenant) + "/users"
}

func userPath(tenant, id string) string { return usersPath(tenant) + "/" + url.PathEscape(id) }

// Users lists the Users of a Tenant in a state, by ID. An empty state selects all but
// removed Users.
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

// AddUser makes a User of a Tenant before their first token is used.
func (c *Client) AddUser(ctx context.Context, tenant string, u v1.UserRequest) (made v1.User, err error) {
	err = c.call(ctx, http.MethodPost, usersPath(tenant), nil, u, &made)
	return made, err
}

// ChangeUser changes a User of a Tenant.
func (c *Client) ChangeUser(ctx context.Context, tenant, id string, f v1.UserChange) (u v1.User, err error) {
	err = c.call(ctx, http.MethodPatch, userPath(tenant, id), nil, f, &u)
	return u, err
}

// RemoveUser removes a User from a Tenant.
func (c *Client) RemoveUser(ctx context.Context, tenant, id string) error {
	return c.call(ctx, http.MethodDelete, userPath(tenant, id), nil, nil, nil)
}
