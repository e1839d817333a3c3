package sandbox

import (
	"context"
	"time"
)

// NodeRecords is a Node's access to the records of the installation. Nodes cannot open the
// database: any session manager answers them, also one that stands by. Methods are safe
// for concurrent use.
//
// The argument node is the name of the Node that asks. Between machines it is the name in
// the Node's certificate.
type NodeRecords interface {
	CopyRecords
	// RenewLease is NodeStore.RenewLease. The record's Name is the name of the Node
	// that asks.
	RenewLease(ctx context.Context, n NodeRecord, life time.Duration) (NodeRecord, error)
	// LeaderOf is LeaderStore.LeaderOf.
	LeaderOf(ctx context.Context, role string) (Leader, error)
	// OwnerOf returns the owner of a state that the Node keeps. NotFound unless the
	// state belongs to a ready Snapshot on the Node.
	OwnerOf(ctx context.Context, node, snapshot string) (SavedOwner, error)
	// NeedsImage returns a Snapshot of any Tenant, on any Node, that needs an image. A
	// Snapshot without an ID stands for a Sandbox that needs the image and has not
	// ended. NotFound when neither exists. The Node that keeps the Templates gets only
	// the ID, Tenant and SandboxID. Other Nodes get the zero Snapshot.
	NeedsImage(ctx context.Context, node, image string) (Snapshot, error)
	// SnapshotsOfBuild returns the number of Snapshots of all Tenants, on all Nodes, whose
	// memory only that build of the Engine restores.
	SnapshotsOfBuild(ctx context.Context, build string) (int, error)
	// TemplateBytes returns the bound of a Tenant's Quota for its Templates; zero: none.
	// Denied unless the Node keeps the Templates.
	TemplateBytes(ctx context.Context, node string, tenant TenantID) (int64, error)
	// VolumeHomes returns the Volumes that a Boot mounts: all of them to the Boot's own Node,
	// and to another Node the Volumes that it stores. NotFound unless the Boot is the
	// Sandbox's latest, has not been paused or ended, and has such a Volume.
	VolumeHomes(ctx context.Context, node string, of BootPlace) ([]VolumeHome, error)
}

// SavedOwner is the owner of a saved state, and the size and age of the state.
type SavedOwner struct {
	Tenant    TenantID
	Bytes     int64 // size of the state on the host
	CreatedAt time.Time
}
