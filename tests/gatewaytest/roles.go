package gatewaytest

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
	"github.com/cloud-sandbox/cloud-sandbox/tests/core"
)

// sandboxes is the session-manager of a core. It records some of its calls and can be
// made to fail.
type sandboxes struct {
	sandbox.Sandboxes
	Core *core.Core
	t    testing.TB

	sync.Mutex
	Fail           error                    // of Create and Idle
	IdleCounts     map[sandbox.TenantID]int // answers of Idle, so that tests need not wait
	Export         func(w io.Writer) error  // replaces an export; nil: the real one
	SecretsChanged []string                 // tenant and name
	FilesOnly      bool                     // of the last pause
	Reboots        int
}

func (f *sandboxes) failure() error {
	f.Lock()
	defer f.Unlock()
	return f.Fail
}

func (f *sandboxes) Create(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest) (sandbox.Sandbox, error) {
	if err := f.failure(); err != nil {
		return sandbox.Sandbox{}, err
	}
	return f.Sandboxes.Create(ctx, tenant, req)
}

func (f *sandboxes) Idle(_ context.Context, tenant sandbox.TenantID) (int, error) {
	if err := f.failure(); err != nil {
		return 0, err
	}
	return f.IdleCounts[tenant], nil
}

func (f *sandboxes) ExportSnapshot(ctx context.Context, tenant sandbox.TenantID, id string, image bool, w io.Writer) error {
	if f.Export != nil {
		return f.Export(w)
	}
	return f.Sandboxes.ExportSnapshot(ctx, tenant, id, image, w)
}

func (f *sandboxes) SecretChanged(ctx context.Context, tenant sandbox.TenantID, name string) error {
	f.Lock()
	f.SecretsChanged = append(f.SecretsChanged, string(tenant)+" "+name)
	f.Unlock()
	return f.Sandboxes.SecretChanged(ctx, tenant, name)
}

func (f *sandboxes) Pause(ctx context.Context, tenant sandbox.TenantID, idOrName string, filesOnly bool) (sandbox.Sandbox, error) {
	f.Lock()
	f.FilesOnly = filesOnly
	f.Unlock()
	return f.Sandboxes.Pause(ctx, tenant, idOrName, filesOnly)
}

func (f *sandboxes) Reboot(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	f.Lock()
	f.Reboots++
	f.Unlock()
	return f.Sandboxes.Reboot(ctx, tenant, idOrName)
}

// Record returns the record of a Sandbox.
func (f *sandboxes) Record(id string) sandbox.Sandbox {
	f.t.Helper()
	sb, err := f.Core.Store.SandboxByID(context.WithoutCancel(f.t.Context()), id)
	if err != nil {
		f.t.Fatalf("the record of %s: %v", id, err)
	}
	return sb
}

// Live counts the Sandboxes of all Tenants that have not ended.
func (f *sandboxes) Live() int {
	f.t.Helper()
	all, err := f.Core.Store.SandboxesNotEnded(context.WithoutCancel(f.t.Context()))
	if err != nil {
		f.t.Fatal(err)
	}
	return len(all)
}

// Snapshots returns the Snapshots of all Tenants, the oldest first.
func (f *sandboxes) Snapshots() (all []sandbox.Snapshot) {
	f.t.Helper()
	ctx := context.WithoutCancel(f.t.Context())
	owners, err := f.Core.Store.SnapshotTenants(ctx)
	for _, tenant := range owners {
		var page sandbox.SnapshotPage
		if page, err = f.Core.Store.ListSnapshots(ctx, tenant, sandbox.SnapshotQuery{}); err == nil {
			all = append(all, page.Snapshots...)
		}
	}
	if err != nil {
		f.t.Fatal(err)
	}
	slices.SortFunc(all, func(a, b sandbox.Snapshot) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return all
}

// Put stores a record as another process may have left it.
func (f *sandboxes) Put(id string, tenant sandbox.TenantID, state sandbox.State) {
	f.t.Helper()
	ctx, now := f.t.Context(), time.Now().UTC()
	s, err := f.Core.Store.SandboxByID(ctx, id)
	if errors.Is(err, sandbox.NotFound) {
		s, err = f.Core.Store.InsertSandbox(ctx, sandbox.Sandbox{
			ID: id, Tenant: tenant, State: sandbox.Starting, Template: "base", Engine: "fake", Shape: sandbox.DefaultShape(),
			Network: sandbox.NetworkPublic, CreatedAt: now, Deadline: now.Add(time.Hour), Timeout: time.Hour, OnTimeout: sandbox.OnTimeoutEnd,
			Boot: sandbox.Boot{ID: sandbox.NewBootID(), Number: 1, Node: core.NodeName},
		})
	}
	if s.State = state; state != sandbox.Starting && err == nil {
		if state == sandbox.Ended {
			s.Ended = &sandbox.TerminationRecord{Cause: sandbox.CauseEngineLost, At: now}
		} else {
			s.StartedAt = now
		}
		_, err = f.Core.Store.UpdateSandbox(ctx, s)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// nodes is the Node of a core and can be made to fail. Its network log is made up,
// because Boots have no network here.
type nodes struct {
	*node.Node

	sync.Mutex
	NotReady []string
	Silent   bool
}

// BrokenFile is a file of a Volume whose download breaks off after its first bytes.
// FutureFile is one whose modification time is later than clients can represent.
const (
	BrokenFile = "/broken"
	FutureFile = "/future"
)

func (n *nodes) StatVolumeFile(ctx context.Context, name string, of sandbox.VolumeRef, p string) (sandbox.VolumeFile, error) {
	file, err := n.Node.StatVolumeFile(ctx, name, of, p)
	if p == FutureFile {
		file.Modified = file.Modified.AddDate(9000, 0, 0)
	}
	return file, err
}

func (n *nodes) ReadVolumeFile(ctx context.Context, name string, of sandbox.VolumeRef, p string, w io.Writer) error {
	if err := n.Node.ReadVolumeFile(ctx, name, of, p, w); err != nil || p != BrokenFile {
		return err
	}
	return sandbox.Errorf(sandbox.Unavailable, "the node is gone")
}

func (n *nodes) NetworkLog(ctx context.Context, name string, of sandbox.BootRef) (sandbox.NetworkLog, error) {
	if log, err := n.Node.NetworkLog(ctx, name, of); err != nil {
		return log, err
	}
	at := time.Unix(1700000000, 0)
	return sandbox.NetworkLog{Allowed: 3, Refused: 1, Decisions: []sandbox.NetworkDecision{
		{Seq: 1, First: at, Last: at, Count: 3, Protocol: "tcp", Addr: netip.MustParseAddr("1.2.3.4"), Port: 443, Allowed: true, Reason: "no rule refuses it"},
		{Seq: 2, First: at, Last: at, Count: 1, Protocol: "dns", Name: "\xffevil.example", Port: 53, Reason: "no rule allows it"},
	}}, nil
}

// Stats returns the stats of the Node with the numbers of a full Pool.
func (n *nodes) Stats(ctx context.Context, name string) (sandbox.NodeStats, error) {
	n.Lock()
	defer n.Unlock()
	if n.Silent {
		return sandbox.NodeStats{}, sandbox.Errorf(sandbox.Unavailable, "silent")
	}
	stats, err := n.Node.Stats(ctx, name)
	stats.Pools = []sandbox.PoolStats{{Template: "base", Shape: sandbox.DefaultShape(), Idle: 5, Min: 5, Max: 50, Hits: 7, Misses: 1}}
	stats.Ready, stats.NotReady = len(n.NotReady) == 0, n.NotReady
	return stats, err
}
