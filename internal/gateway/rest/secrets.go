package rest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/secrets"
)

func secretViewOf(s sandbox.Secret) v1.Secret {
	return v1.Secret{Name: s.Name, Description: s.Description, Hosts: s.Hosts, CreatedAt: v1.Time(s.CreatedAt), UpdatedAt: v1.Time(s.UpdatedAt)}
}

// CreateSecret answers POST /api/v1/secrets.
func (a *API) CreateSecret(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		Name        string     `json:"name"`
		Value       string     `json:"value"`
		Description *string    `json:"description"`
		Hosts       *hostsBody `json:"hosts"`
	}
	if err := Decode(r, &body); err != nil {
		return err
	}
	req := secrets.Request{Name: body.Name, Description: body.Description, Hosts: (*sandbox.SecretHosts)(body.Hosts), Value: sandbox.SecretValue(body.Value)}
	req.ID = ResourceLike(r.Context(), "p")
	made, err := a.Secrets.Create(r.Context(), who.Tenant, req)
	if err != nil {
		return err
	}
	Made(r.Context(), made.Name)
	return Reply(w, http.StatusCreated, secretViewOf(made))
}

// ListSecrets answers GET /api/v1/secrets.
func (a *API) ListSecrets(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	if _, err := query(r); err != nil {
		return err
	}
	all, err := a.Secrets.List(r.Context(), who.Tenant)
	if err != nil {
		return err
	}
	views := make([]v1.Secret, len(all))
	for i, s := range all {
		views[i] = secretViewOf(s)
	}
	return Reply(w, http.StatusOK, v1.Secrets{Secrets: views})
}

// ReplaceSecret answers PUT /api/v1/secrets/{id}.
func (a *API) ReplaceSecret(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		Value       string     `json:"value"`
		Description *string    `json:"description"`
		Hosts       *hostsBody `json:"hosts"`
	}
	if err := Decode(r, &body); err != nil {
		return err
	}
	req := secrets.Request{Name: r.PathValue("id"), Description: body.Description, Hosts: (*sandbox.SecretHosts)(body.Hosts), Value: sandbox.SecretValue(body.Value)}
	replaced, err := a.Secrets.Replace(r.Context(), who.Tenant, req)
	if err != nil {
		return err
	}
	if err := a.Sandboxes.SecretChanged(r.Context(), who.Tenant, replaced.Name); err != nil {
		return err
	}
	return Reply(w, http.StatusOK, secretViewOf(replaced))
}

// DeleteSecret answers DELETE /api/v1/secrets/{id}.
func (a *API) DeleteSecret(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	if err := DropSecret(r.Context(), a.Secrets, a.Sandboxes, who.Tenant, r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// DropSecret deletes a Secret, and has Sandboxes get it no more: also when it is
// gone, because the first of such requests may have come no further.
func DropSecret(ctx context.Context, all *secrets.Service, boxes sandbox.Sandboxes, tenant sandbox.TenantID, name string) error {
	err := all.Delete(ctx, tenant, name)
	if err != nil && !errors.Is(err, sandbox.NotFound) {
		return err
	}
	return cmp.Or(boxes.SecretChanged(ctx, tenant, name), err)
}

// hostsBody is a list of hosts in JSON; null is absent.
type hostsBody sandbox.SecretHosts

func (b *hostsBody) UnmarshalJSON(raw []byte) error {
	var hosts []string
	if err := json.Unmarshal(raw, &hosts); err != nil {
		return sandbox.Errorf(sandbox.Invalid, "hosts must be a list of names, such as api.example.com")
	}
	normal, err := sandbox.NewSecretHosts(hosts)
	*b = hostsBody(normal)
	return err
}

// usesBody is a list of uses of Secrets in JSON; null is none.
type usesBody sandbox.SecretUses

func (b *usesBody) UnmarshalJSON(raw []byte) error {
	var uses []sandbox.SecretUse
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&uses); err != nil {
		return sandbox.Errorf(sandbox.Invalid, "secrets must be a list of objects of name, host, header and perhaps format, all of them text")
	}
	normal, err := sandbox.NamedSecretUses(uses)
	*b = usesBody(normal)
	return err
}

// uses is none for nil.
func (b *usesBody) uses() sandbox.SecretUses {
	if b == nil {
		return ""
	}
	return sandbox.SecretUses(*b)
}
