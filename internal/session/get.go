package session

import (
	"context"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Records reads Sandboxes, Snapshots and Volumes from the Store. It is the read-only part
// of sandbox.Sandboxes, which needs no Manager.
type Records struct {
	Store recordStore
}

// recordStore is the part of a Store that Records read.
type recordStore interface {
	sandbox.SandboxRecords
	sandbox.SnapshotRecords
	sandbox.VolumeRecords
}

// Get is sandbox.Sandboxes.Get.
func (r Records) Get(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	if !sandbox.ValidSandboxID(idOrName) {
		if idOrName == "" {
			return sandbox.Sandbox{}, notFound()
		}
		sb, err := r.Store.SandboxByName(ctx, tenant, idOrName)
		return sb, sandbox.NotBegun(err) // changes begin with it too
	}
	sb, err := r.Store.SandboxByID(ctx, idOrName)
	if err == nil && sb.Tenant != tenant {
		return sandbox.Sandbox{}, notFound()
	}
	return sb, sandbox.NotBegun(err)
}

// List is sandbox.Sandboxes.List.
func (r Records) List(ctx context.Context, tenant sandbox.TenantID, query sandbox.ListQuery) (sandbox.Page, error) {
	return r.Store.ListSandboxes(ctx, tenant, query)
}

// Counts is sandbox.Sandboxes.Counts.
func (r Records) Counts(ctx context.Context, tenant sandbox.TenantID) (map[sandbox.State]int, error) {
	return r.Store.CountSandboxes(ctx, tenant)
}
