package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/keys"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/tenants"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/builder"
)

// KeysOf is the Keys of a Store.
func KeysOf(s sandbox.KeyStore) *keys.Service { return keys.New(s, slog.New(slog.DiscardHandler)) }

// TenantsOf is the Tenants of a Store, with images as their Templates. Its callers write
// the audit log.
func TenantsOf(s sandbox.Store, images *template.Store, layout launch.Layout) *tenants.Service {
	return tenants.New(tenants.Config{Store: s, Templates: builder.NewClient(images, s, layout.BuilderSocket())})
}

// WithStore calls use with the Store of a data folder, whether its server runs or not;
// the operator makes the first Key this way. It gives up root for good before it opens
// the database, whose files are the server's.
func WithStore(ctx context.Context, layout launch.Layout, use func(sandbox.Store) error) error {
	if !hasDatabase(layout) {
		if hasAccess(layout) {
			return fmt.Errorf("%s is the data folder of a node, which has no access to the database: run this on the machine of a gateway or session-manager", layout.Root)
		}
		return fmt.Errorf("%s has no database yet: start the server once", layout.Root)
	}
	if err := launch.BecomeServer(); err != nil {
		return err
	}
	store, err := openDatabase(ctx, layout)
	if err != nil {
		return err
	}
	return errors.Join(use(store), store.Close())
}

// Operator is the Identity of the operator on the server itself.
func Operator(tenant sandbox.TenantID, role sandbox.Role) sandbox.Identity {
	return sandbox.Identity{Tenant: tenant, User: operator, Role: role}
}
