package session

import (
	"context"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Get implements sandbox.Sandboxes.
func (m *Manager) Get(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	if !sandbox.ValidSandboxID(idOrName) {
		if idOrName == "" {
			return sandbox.Sandbox{}, notFound()
		}
		return m.store.SandboxByName(ctx, tenant, idOrName)
	}
	sb, err := m.store.SandboxByID(ctx, idOrName)
	if err == nil && sb.Tenant != tenant {
		return sandbox.Sandbox{}, notFound()
	}
	return sb, err
}

// List implements sandbox.Sandboxes.
func (m *Manager) List(ctx context.Context, tenant sandbox.TenantID, query sandbox.ListQuery) (sandbox.Page, error) {
	return m.store.ListSandboxes(ctx, tenant, query)
}

// Counts implements sandbox.Sandboxes.
func (m *Manager) Counts(ctx context.Context, tenant sandbox.TenantID) (map[sandbox.State]int, error) {
	return m.store.CountSandboxes(ctx, tenant)
}
