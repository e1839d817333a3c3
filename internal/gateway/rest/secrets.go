package rest

import (
	"cmp"
	"context"
	"errors"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/secrets"
)

// CreateSecret creates a Secret.
func (a *API) CreateSecret(ctx context.Context, c Call, in *v1.SecretRequest) (v1.Secret, error) {
	req := secretRequest(in.Name, &in.SecretReplacement)
	req.ID = ResourceLike(ctx, "p")
	made, err := a.Secrets.Create(ctx, c.Who.Tenant, req)
	if err != nil {
		return v1.Secret{}, err
	}
	Made(ctx, made.Name)
	return v1.SecretOf(made), nil
}

func secretRequest(name string, b *v1.SecretReplacement) secrets.Request {
	return secrets.Request{Name: name, Description: b.Description, Hosts: (*sandbox.SecretHosts)(b.Hosts), Value: sandbox.SecretValue(b.Value)}
}

// ListSecrets returns all Secrets of the Tenant.
func (a *API) ListSecrets(ctx context.Context, c Call, _ *noQuery) (v1.Secrets, error) {
	all, err := a.Secrets.List(ctx, c.Who.Tenant)
	views := make([]v1.Secret, len(all))
	for i, s := range all {
		views[i] = v1.SecretOf(s)
	}
	return v1.Secrets{Secrets: views}, err
}

// ReplaceSecret replaces the value of a Secret.
func (a *API) ReplaceSecret(ctx context.Context, c Call, in *v1.SecretReplacement) (v1.Secret, error) {
	replaced, err := a.Secrets.Replace(ctx, c.Who.Tenant, secretRequest(c.ID, in))
	if err != nil {
		return v1.Secret{}, err
	}
	return v1.SecretOf(replaced), a.Updates.SecretChanged(ctx, c.Who.Tenant, replaced.Name)
}

// DeleteSecret deletes a Secret.
func (a *API) DeleteSecret(ctx context.Context, c Call, _ *Nothing) (Nothing, error) {
	return Nothing{}, DropSecret(ctx, a.Secrets, a.Updates, c.Who.Tenant, c.ID)
}

// DropSecret deletes a Secret and removes it from Sandboxes. It removes it also when
// the Secret is already gone, because an earlier request may have stopped in between.
func DropSecret(ctx context.Context, all *secrets.Service, boxes sandbox.Updates, tenant sandbox.TenantID, name string) error {
	err := all.Delete(ctx, tenant, name)
	if err != nil && (name == "" || !errors.Is(err, sandbox.NotFound)) { // uses of literal values name no Secret
		return err
	}
	return cmp.Or(boxes.SecretChanged(ctx, tenant, name), err)
}
