package rest

import (
	"net/http"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/keys"
)

// KeyViewOf shows a Key to its Tenant, without its secret.
func KeyViewOf(k sandbox.Key) v1.Key {
	v := v1.Key{
		ID: k.ID, Name: k.Name, Role: RoleName(k.Role), Scopes: k.Scopes, Hint: k.Hint, CreatedBy: k.CreatedBy,
		CreatedAt: v1.Time(k.CreatedAt), ExpiresAt: v1.Time(k.ExpiresAt), LastUsedAt: v1.Time(k.LastUsed()),
	}
	if p := k.Previous; p.ValidAt(time.Now()) {
		v.Previous = &v1.PreviousKey{Hint: p.Hint, ValidUntil: v1.Time(p.Until), LastUsedAt: v1.Time(p.UsedAt)}
	}
	return v
}

// userRole is the clients' name for the developer Role.
const userRole = "user"

// RoleName is the clients' name for a Role.
func RoleName(r sandbox.Role) string {
	if r == sandbox.RoleDeveloper {
		return userRole
	}
	return string(r)
}

// ParseRole parses a client's name for a Role: "user" or the Role's own name. Other
// names are Invalid.
func ParseRole(name string) (sandbox.Role, error) {
	if name == userRole {
		return sandbox.RoleDeveloper, nil
	}
	if r := sandbox.Role(name); r.Valid() {
		return r, nil
	}
	return "", sandbox.Errorf(sandbox.Invalid, `role must be "viewer", "user", "admin", "owner" or "operator"`)
}

// CreateKey answers POST /api/v1/keys.
func (a *API) CreateKey(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.KeyRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	req := keys.Request{Name: body.Name, Scopes: body.Scopes}
	req.ID = ResourceLike(r.Context(), "k")
	if body.ExpiresInSeconds != nil {
		if req.Life = body.ExpiresInSeconds.Duration(); req.Life < time.Second {
			return sandbox.Errorf(sandbox.Invalid, "expires_in_seconds must be at least 1, or absent for a key that does not expire")
		}
	}
	if body.Role != "" {
		role, err := ParseRole(body.Role)
		if err != nil {
			return err
		}
		req.Role = role
	}
	key, secret, err := a.Keys.Create(r.Context(), who, req)
	if err != nil {
		return err
	}
	Made(r.Context(), key.ID)
	view := KeyViewOf(key)
	view.Secret = secret
	return Reply(w, http.StatusCreated, view)
}

// RotateKey answers POST /api/v1/keys/{id}/rotate.
func (a *API) RotateKey(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.KeyRotation
	if err := Decode(r, &body); err != nil {
		return err
	}
	overlap := sandbox.DefaultKeyOverlap
	if body.OverlapSeconds != nil {
		overlap = time.Duration(*body.OverlapSeconds)
	}
	key, secret, err := a.Keys.Rotate(r.Context(), who, r.PathValue("id"), overlap)
	if err != nil {
		return err
	}
	view := KeyViewOf(key)
	view.Secret = secret
	return Reply(w, http.StatusOK, view)
}

// ListKeys answers GET /api/v1/keys.
func (a *API) ListKeys(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	if _, err := query(r); err != nil {
		return err
	}
	all, err := a.Keys.List(r.Context(), who.Tenant)
	if err != nil {
		return err
	}
	views := make([]v1.Key, len(all))
	for i, k := range all {
		views[i] = KeyViewOf(k)
	}
	return Reply(w, http.StatusOK, v1.Keys{Keys: views})
}

// DeleteKey answers DELETE /api/v1/keys/{id}.
func (a *API) DeleteKey(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	if err := a.Keys.Revoke(r.Context(), who, r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
