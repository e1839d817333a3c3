package session

import (
	"context"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// NodeRecords implements sandbox.NodeRecords with a Store. It needs no Manager.
type NodeRecords struct {
	Store nodeRecordStore
	// Home is the name of the Node that keeps the Templates; empty: every Node keeps
	// the Templates of its machine.
	Home string
}

// nodeRecordStore is the part of a Store that NodeRecords use.
type nodeRecordStore interface {
	RenewLease(ctx context.Context, n sandbox.NodeRecord, life time.Duration) (sandbox.NodeRecord, error)
	LeaderOf(ctx context.Context, role string) (sandbox.Leader, error)
	SnapshotByID(ctx context.Context, id string) (sandbox.Snapshot, error)
	SnapshotOfImage(ctx context.Context, image string) (sandbox.Snapshot, error)
	SnapshotBuilds(ctx context.Context) (map[string]int, error)
	SandboxesNotEnded(ctx context.Context) ([]sandbox.Sandbox, error)
	TenantQuota(ctx context.Context, tenant sandbox.TenantID) (sandbox.Quota, error)
	mountRecords
	sandbox.CopyRecords
}

// mountRecords say which Volumes a Sandbox mounts, and where they are.
type mountRecords interface {
	SandboxByID(ctx context.Context, id string) (sandbox.Sandbox, error)
	VolumeByID(ctx context.Context, id string) (sandbox.Volume, error)
	Nodes(ctx context.Context) ([]sandbox.NodeRecord, error)
}

var _ sandbox.NodeRecords = NodeRecords{}

// RenewLease implements sandbox.NodeRecords.
func (r NodeRecords) RenewLease(ctx context.Context, n sandbox.NodeRecord, life time.Duration) (sandbox.NodeRecord, error) {
	return r.Store.RenewLease(ctx, n, life)
}

// LeaderOf implements sandbox.NodeRecords.
func (r NodeRecords) LeaderOf(ctx context.Context, role string) (sandbox.Leader, error) {
	return r.Store.LeaderOf(ctx, role)
}

// OwnerOf implements sandbox.NodeRecords.
func (r NodeRecords) OwnerOf(ctx context.Context, node, snapshot string) (sandbox.SavedOwner, error) {
	snap, err := r.Store.SnapshotByID(ctx, snapshot)
	if err == nil && (snap.Node != node || snap.State != sandbox.SnapshotReady) {
		err = sandbox.Errorf(sandbox.NotFound, "this node has no ready snapshot %.64q", snapshot)
	}
	if err != nil {
		return sandbox.SavedOwner{}, err
	}
	return sandbox.SavedOwner{Tenant: snap.Tenant, Bytes: snap.Bytes, CreatedAt: snap.CreatedAt}, nil
}

// NeedsImage implements sandbox.NodeRecords.
func (r NodeRecords) NeedsImage(ctx context.Context, node, image string) (sandbox.Snapshot, error) {
	snap, err := r.Store.SnapshotOfImage(ctx, image)
	if errors.Is(err, sandbox.NotFound) {
		snap, err = r.runsImage(ctx, image)
	}
	if err != nil || r.mayUseTemplates(node) != nil {
		return sandbox.Snapshot{}, err
	}
	return sandbox.Snapshot{ID: snap.ID, Tenant: snap.Tenant, SandboxID: snap.SandboxID}, nil
}

// runsImage is NeedsImage for Sandboxes that have not ended. It reads their records,
// because the file locks of images show only the Sandboxes of one host.
func (r NodeRecords) runsImage(ctx context.Context, image string) (sandbox.Snapshot, error) {
	all, err := r.Store.SandboxesNotEnded(ctx)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	for _, sb := range all {
		if sb.Image == image {
			return sandbox.Snapshot{Tenant: sb.Tenant, SandboxID: sb.ID}, nil
		}
	}
	return sandbox.Snapshot{}, sandbox.Errorf(sandbox.NotFound, "no sandbox needs the image %.64s", image)
}

// SnapshotsOfBuild implements sandbox.NodeRecords.
func (r NodeRecords) SnapshotsOfBuild(ctx context.Context, build string) (int, error) {
	counts, err := r.Store.SnapshotBuilds(ctx)
	return counts[build], err
}

// TemplateBytes implements sandbox.NodeRecords.
func (r NodeRecords) TemplateBytes(ctx context.Context, node string, tenant sandbox.TenantID) (int64, error) {
	if err := r.mayUseTemplates(node); err != nil {
		return 0, err
	}
	quota, err := r.Store.TenantQuota(ctx, tenant)
	return quota.TemplateBytes, err
}

// mayUseTemplates returns Denied unless a Node keeps Templates.
func (r NodeRecords) mayUseTemplates(node string) error {
	if r.Home != "" && r.Home != node {
		return sandbox.Errorf(sandbox.Denied, "the node %.64s does not keep the templates of this installation", node)
	}
	return nil
}

// VolumeHomes implements sandbox.NodeRecords.
func (r NodeRecords) VolumeHomes(ctx context.Context, node string, of sandbox.BootPlace) ([]sandbox.VolumeHome, error) {
	none := sandbox.Errorf(sandbox.NotFound, "the boot %d of the sandbox %.64s has no volumes for this node", of.Number, of.SandboxID)
	if !sandbox.ValidSandboxID(of.SandboxID) {
		return nil, none
	}
	sb, err := r.Store.SandboxByID(ctx, of.SandboxID)
	switch {
	case errors.Is(err, sandbox.NotFound):
		return nil, none
	case err != nil:
		return nil, err
	case sb.Boot.Number != of.Number, sb.Boot.Node != of.Node, sb.State == sandbox.Paused, sb.State == sandbox.Ended:
		return nil, none
	}
	nodes, err := r.Store.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	addresses := map[string]string{}
	for _, n := range nodes {
		addresses[n.Name] = n.Address
	}
	var homes []sandbox.VolumeHome
	for _, mount := range sb.Volumes {
		v, err := r.Store.VolumeByID(ctx, mount.Volume)
		switch {
		case errors.Is(err, sandbox.NotFound):
			continue
		case err != nil:
			return nil, err
		case v.Tenant != sb.Tenant, v.State != sandbox.VolumeReady, node != of.Node && node != v.Node:
			continue
		}
		homes = append(homes, sandbox.VolumeHome{VolumeSpec: specOf(v), Node: v.Node, Address: addresses[v.Node]})
	}
	if len(homes) == 0 {
		return nil, none
	}
	return homes, nil
}

// KeepCopyKey implements sandbox.CopyRecords.
func (r NodeRecords) KeepCopyKey(ctx context.Context, prefix string, sealed []byte) ([]byte, error) {
	return r.Store.KeepCopyKey(ctx, prefix, sealed)
}

// PackScope implements sandbox.CopyRecords.
func (r NodeRecords) PackScope(ctx context.Context) (string, error) { return r.Store.PackScope(ctx) }

// BeginCopy implements sandbox.CopyRecords.
func (r NodeRecords) BeginCopy(ctx context.Context, node string, c sandbox.CopyRef) (sandbox.CopyAttempt, error) {
	return r.Store.BeginCopy(ctx, node, c)
}

// UsePacks implements sandbox.CopyRecords.
func (r NodeRecords) UsePacks(ctx context.Context, node string, use sandbox.PackUse) ([]string, error) {
	return r.Store.UsePacks(ctx, node, use)
}

// CompleteCopy implements sandbox.CopyRecords.
func (r NodeRecords) CompleteCopy(ctx context.Context, node string, c sandbox.CopyAttempt) error {
	return r.Store.CompleteCopy(ctx, node, c)
}

// AbandonCopy implements sandbox.CopyRecords.
func (r NodeRecords) AbandonCopy(ctx context.Context, node string, c sandbox.AbandonedCopy) error {
	return r.Store.AbandonCopy(ctx, node, c)
}

// FindCopy implements sandbox.CopyRecords.
func (r NodeRecords) FindCopy(ctx context.Context, tenant sandbox.TenantID, snapshot string) (string, error) {
	return r.Store.FindCopy(ctx, tenant, snapshot)
}
