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
	// KeepCopyKey is CopyKeyStore.KeepCopyKey.
	KeepCopyKey(ctx context.Context, prefix string, sealed []byte) ([]byte, error)
}

// CopyKeyStore keeps the keys of the copies of Snapshots, so that Nodes that make the first
// copies of a Tenant at the same time use one key. They are sealed with a key that the Store
// does not have.
type CopyKeyStore interface {
	// KeepCopyKey returns the sealed key of the copies whose Blobs begin with prefix.
	// If the Store has none yet, it stores sealed and returns it. Invalid unless
	// CheckCopyKey accepts both, Exhausted when the Store has MaxCopyKeys.
	KeepCopyKey(ctx context.Context, prefix string, sealed []byte) ([]byte, error)
}

const (
	// MaxCopyKeys bounds the keys of a CopyKeyStore: a Node makes one for each Tenant and
	// each key of the operator.
	MaxCopyKeys = 1_000_000
	// maxCopyKey bounds a sealed key, in bytes.
	maxCopyKey = 1024
)

var copyPrefixPattern = lazily(`^[0-9a-f]{32}$`)

// CheckCopyKey returns Invalid unless a CopyKeyStore can keep sealed for prefix.
func CheckCopyKey(prefix string, sealed []byte) error {
	if !copyPrefixPattern.MatchString(prefix) {
		return Errorf(Invalid, "the prefix of copies of snapshots has 32 hex digits")
	}
	if len(sealed) == 0 || len(sealed) > maxCopyKey {
		return Errorf(Invalid, "the sealed key of copies of snapshots has 1 to %d bytes", maxCopyKey)
	}
	return nil
}

// SavedOwner is the owner of a saved state, and the size and age of the state.
type SavedOwner struct {
	Tenant    TenantID
	Bytes     int64 // size of the state on the host
	CreatedAt time.Time
}
