//go:build linux && !client

package main

import (
	"cmp"
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/keys"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve"
)

func keyCommand() *cobra.Command {
	return cli.KeyCommand(os.Getenv, func(cmd *cobra.Command, tenant string, use func(cli.Keys) error) error {
		if err := checkTenant(tenant); err != nil {
			return err
		}
		return withStore(cmd, "the keys belong", func(s sandbox.Store) error {
			return use(localKeys{sandbox.TenantID(tenant), serve.KeysOf(s), s})
		})
	})
}

// checkTenant rejects slashes: they are for the Tenants of users that a key vouches for.
func checkTenant(tenant string) error {
	if tenant == "" || len(tenant) > 100 || strings.Contains(tenant, "/") {
		return errors.New("--tenant must have 1 to 100 bytes and no slash")
	}
	return nil
}

// localKeys are the Keys of one Tenant in a data folder; changes go into its audit log.
type localKeys struct {
	tenant sandbox.TenantID
	keys   *keys.Service
	log    sandbox.AuditStore
}

// did records an operation of the operator and its result.
func (l localKeys) did(ctx context.Context, operation, key string, err error) error {
	return serve.AuditOperator(ctx, l.log, sandbox.AuditEntry{Tenant: l.tenant, Operation: operation, Target: key}, err)
}

// CreateKey implements cli.Keys.
func (l localKeys) CreateKey(ctx context.Context, k v1.KeyRequest) (v1.Key, error) {
	role, err := rest.ParseRole(cmp.Or(k.Role, string(sandbox.RoleDeveloper)))
	if err != nil {
		return v1.Key{}, err
	}
	req := keys.Request{Name: k.Name, Life: k.ExpiresInSeconds.Duration(), Scopes: k.Scopes}
	made, secret, err := l.keys.Create(ctx, serve.Operator(l.tenant, role), req)
	return keyOf(made, secret), l.did(ctx, "createKey", made.ID, err)
}

// Keys implements cli.Keys.
func (l localKeys) Keys(ctx context.Context) ([]v1.Key, error) {
	all, err := l.keys.List(ctx, l.tenant)
	views := make([]v1.Key, len(all))
	for i, k := range all {
		views[i] = keyOf(k, "")
	}
	return views, err
}

// RotateKey implements cli.Keys.
func (l localKeys) RotateKey(ctx context.Context, id string, overlap time.Duration) (v1.Key, error) {
	rotated, secret, err := l.keys.Rotate(ctx, serve.Operator(l.tenant, sandbox.RoleOperator), id, overlap)
	return keyOf(rotated, secret), l.did(ctx, "rotateKey", id, err)
}

// RevokeKey implements cli.Keys.
func (l localKeys) RevokeKey(ctx context.Context, id string) error {
	return l.did(ctx, "deleteKey", id, l.keys.Revoke(ctx, serve.Operator(l.tenant, sandbox.RoleOperator), id))
}

// keyOf is a Key as the API shows it, with its secret unless that is empty.
func keyOf(k sandbox.Key, secret string) v1.Key {
	view := v1.KeyOf(k)
	view.Secret = secret
	return view
}
