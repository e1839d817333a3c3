package rest

import (
	"cmp"
	"context"
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
	var body v1.SecretRequest
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
	var body v1.SecretReplacement
	if err := Decode(r, &body); err != nil {
		return err
	}
	req := secrets.Request{Name: r.PathValue("id"), Description: body.Description, Hosts: (*sandbox.SecretHosts)(body.Hosts), Value: sandbox.SecretValue(body.Value)}
	replaced, err := a.Secrets.Replace(r.Context(), who.Tenant, req)
	if err != nil {
		return err
	}
	if err := a.Updates.SecretChanged(r.Context(), who.Tenant, replaced.Name); err != nil {
		return err
	}
	return Reply(w, http.StatusOK, secretViewOf(replaced))
}

// DeleteSecret answers DELETE /api/v1/secrets/{id}.
func (a *API) DeleteSecret(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	if err := DropSecret(r.Context(), a.Secrets, a.Updates, who.Tenant, r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// DropSecret deletes a Secret and removes it from Sandboxes. It removes it also when
// the Secret is already gone, because an earlier request may have stopped in between.
func DropSecret(ctx context.Context, all *secrets.Service, boxes sandbox.Updates, tenant sandbox.TenantID, name string) error {
	err := all.Delete(ctx, tenant, name)
	if err != nil && !errors.Is(err, sandbox.NotFound) {
		return err
	}
	return cmp.Or(boxes.SecretChanged(ctx, tenant, name), err)
}
