package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"
)

// User is who acts for a Tenant, as its admins see them.
type User struct {
	ID        string    `json:"user_id"`
	Name      string    `json:"name"`
	Role      string    `json:"role"` // empty: their first token says
	RoleGiven bool      `json:"role_given"`
	State     string    `json:"state"`
	Source    string    `json:"source"`
	Issuer    string    `json:"issuer"`
	SeenAt    time.Time `json:"last_seen_at"` // zero: never

	Raw json.RawMessage `json:"-"` // all of it, as the server said it
}

// UnmarshalJSON keeps the text beside the fields.
func (u *User) UnmarshalJSON(raw []byte) error {
	type fields User
	u.Raw = append(json.RawMessage(nil), raw...)
	return json.Unmarshal(raw, (*fields)(u))
}

// MarshalJSON gives the text as the server said it.
func (u User) MarshalJSON() ([]byte, error) { return u.Raw, nil }

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
func (c *Client) Users(ctx context.Context, tenant, state string) ([]User, error) {
	query := url.Values{}
	if state != "" {
		query.Set("state", state)
	}
	var all []User
	for {
		var page struct {
			Users []User `json:"users"`
			Next  string `json:"next_cursor"`
		}
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
func (c *Client) AddUser(ctx context.Context, tenant, id string, f UserFields) (u User, err error) {
	body := struct {
		ID string `json:"user_id"`
		UserFields
	}{id, f}
	err = c.call(ctx, http.MethodPost, usersPath(tenant), nil, body, &u)
	return u, err
}

// ChangeUser changes a User of a Tenant.
func (c *Client) ChangeUser(ctx context.Context, tenant, id string, f UserFields) (u User, err error) {
	err = c.call(ctx, http.MethodPatch, userPath(tenant, id), nil, f, &u)
	return u, err
}

// RemoveUser removes a User from a Tenant.
func (c *Client) RemoveUser(ctx context.Context, tenant, id string) error {
	return c.call(ctx, http.MethodDelete, userPath(tenant, id), nil, nil, nil)
}
