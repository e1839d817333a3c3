package gateway_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
	"github.com/cloud-sandbox/cloud-sandbox/tests/core"
)

// sandboxes is the session manager of a core, which notes some of its calls and fails on
// request.
type sandboxes struct {
	sandbox.Sandboxes
	core *core.Core
	t    testing.TB

	mu             sync.Mutex
	fail           error                    // of Create and Idle
	idle           map[sandbox.TenantID]int // what Idle answers, without the wait for that
	export         func(w io.Writer) error  // in place of an export; nil: that
	secretsChanged []string                 // tenant and name
	filesOnly      bool                     // the last pause
	reboots        int
}

func (f *sandboxes) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fail
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
	return f.idle[tenant], nil
}

func (f *sandboxes) ExportSnapshot(ctx context.Context, tenant sandbox.TenantID, id string, image bool, w io.Writer) error {
	if f.export != nil {
		return f.export(w)
	}
	return f.Sandboxes.ExportSnapshot(ctx, tenant, id, image, w)
}

func (f *sandboxes) SecretChanged(ctx context.Context, tenant sandbox.TenantID, name string) error {
	f.mu.Lock()
	f.secretsChanged = append(f.secretsChanged, string(tenant)+" "+name)
	f.mu.Unlock()
	return f.Sandboxes.SecretChanged(ctx, tenant, name)
}

func (f *sandboxes) Pause(ctx context.Context, tenant sandbox.TenantID, idOrName string, filesOnly bool) (sandbox.Sandbox, error) {
	f.mu.Lock()
	f.filesOnly = filesOnly
	f.mu.Unlock()
	return f.Sandboxes.Pause(ctx, tenant, idOrName, filesOnly)
}

func (f *sandboxes) Reboot(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	f.mu.Lock()
	f.reboots++
	f.mu.Unlock()
	return f.Sandboxes.Reboot(ctx, tenant, idOrName)
}

// record returns the record of a Sandbox.
func (f *sandboxes) record(id string) sandbox.Sandbox {
	f.t.Helper()
	sb, err := f.core.Store.SandboxByID(context.WithoutCancel(f.t.Context()), id)
	if err != nil {
		f.t.Fatalf("the record of %s: %v", id, err)
	}
	return sb
}

// live counts everyone's Sandboxes that have not ended.
func (f *sandboxes) live() int {
	f.t.Helper()
	all, err := f.core.Store.SandboxesNotEnded(context.WithoutCancel(f.t.Context()))
	if err != nil {
		f.t.Fatal(err)
	}
	return len(all)
}

// snapshots returns everyone's Snapshots, the oldest first.
func (f *sandboxes) snapshots() (all []sandbox.Snapshot) {
	f.t.Helper()
	ctx := context.WithoutCancel(f.t.Context())
	owners, err := f.core.Store.SnapshotTenants(ctx)
	for _, tenant := range owners {
		var page sandbox.SnapshotPage
		if page, err = f.core.Store.ListSnapshots(ctx, tenant, sandbox.SnapshotQuery{}); err == nil {
			all = append(all, page.Snapshots...)
		}
	}
	if err != nil {
		f.t.Fatal(err)
	}
	slices.SortFunc(all, func(a, b sandbox.Snapshot) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return all
}

// nodes is the Node of a core, which fails on request. Nothing of a Boot reaches a
// network, so what its network log shows is made up.
type nodes struct {
	*node.Node

	mu       sync.Mutex
	notReady []string
	silent   bool
}

// brokenFile is a file of a Volume that breaks off after its first bytes, and futureFile
// one that was changed after all years that clients know.
const (
	brokenFile = "/broken"
	futureFile = "/future"
)

func (n *nodes) StatVolumeFile(ctx context.Context, name string, of sandbox.VolumeRef, p string) (sandbox.VolumeFile, error) {
	file, err := n.Node.StatVolumeFile(ctx, name, of, p)
	if p == futureFile {
		file.Modified = file.Modified.AddDate(9000, 0, 0)
	}
	return file, err
}

func (n *nodes) ReadVolumeFile(ctx context.Context, name string, of sandbox.VolumeRef, p string, w io.Writer) error {
	if err := n.Node.ReadVolumeFile(ctx, name, of, p, w); err != nil || p != brokenFile {
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

// Stats are those of the Node with the numbers of a Pool that is full.
func (n *nodes) Stats(ctx context.Context, name string) (sandbox.NodeStats, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.silent {
		return sandbox.NodeStats{}, sandbox.Errorf(sandbox.Unavailable, "silent")
	}
	stats, err := n.Node.Stats(ctx, name)
	stats.Pools = []sandbox.PoolStats{{Template: "base", Shape: sandbox.DefaultShape(), Idle: 5, Min: 5, Max: 50, Hits: 7, Misses: 1}}
	stats.Ready, stats.NotReady = len(n.notReady) == 0, n.notReady
	return stats, err
}

// guest is a Guest with files in memory and programs in Go, by their code.
type guest struct {
	execution.Processes // nil, or those of a real Guest
	execution.ProcessStreams

	dial execution.Dial

	warmed   atomic.Bool
	mu       sync.Mutex
	files    map[string][]byte
	closed   int
	programs map[string]program
	runs     []execution.RunRequest
	cells    []execution.CellRequest
	changes  chan *execution.WatchEvent
	logs     []execution.LogEntry
}

type program func(ctx context.Context, req execution.RunRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error)

func newGuest() *guest {
	return &guest{files: map[string][]byte{"/workspace/": nil}, programs: map[string]program{}, changes: make(chan *execution.WatchEvent)}
}

func (g *guest) Warm(context.Context) error {
	g.warmed.Store(true)
	return nil
}

func (g *guest) Load(context.Context) (execution.Load, error) {
	return execution.Load{At: time.Now(), CPUs: 2, CPUPercent: 50, MemoryUsed: 1, MemoryAll: 2, DiskUsed: 3, DiskAll: 4}, nil
}

func (g *guest) Logs(context.Context) ([]execution.LogEntry, error) { return g.logs, nil }

func (g *guest) ListPorts(context.Context) ([]execution.Listener, bool, error) {
	return []execution.Listener{
		{Port: 8000, Address: netip.MustParseAddr("127.0.0.1"), PID: 7, Process: "web"},
		{Port: 8443, Address: netip.MustParseAddr("::")},
		{Port: sandbox.EnvdPort, Address: netip.MustParseAddr("::"), PID: 1, Process: "guest"},
	}, true, nil
}

func (g *guest) Run(ctx context.Context, req execution.RunRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error) {
	g.mu.Lock()
	g.runs = append(g.runs, req)
	run := g.programs[req.Args[len(req.Args)-1]]
	g.mu.Unlock()
	if err := handle(execution.RunEvent{Started: true, PID: 7}); err != nil {
		return execution.RunEnd{}, err
	}
	if run == nil {
		if err := handle(execution.RunEvent{Stdout: []byte("Hello!\n")}); err != nil {
			return execution.RunEnd{}, err
		}
		return execution.RunEnd{Status: execution.StatusOK}, nil
	}
	return run(ctx, req, handle)
}

// EndProcess finds none where there is no registry: what runs then ends with its
// call.
func (g *guest) EndProcess(ctx context.Context, id string) (execution.ProcessInfo, error) {
	if g.Processes != nil {
		return g.Processes.EndProcess(ctx, id)
	}
	return execution.ProcessInfo{}, sandbox.Errorf(sandbox.NotFound, "there is no such process")
}

// Execute runs a program, as if in a context.
func (g *guest) Execute(ctx context.Context, req execution.CellRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error) {
	g.mu.Lock()
	g.cells = append(g.cells, req)
	g.mu.Unlock()
	if req.Context != "" && req.Context != "c1" {
		return execution.RunEnd{}, sandbox.Errorf(sandbox.NotFound, "there is no such context")
	}
	cell := &execution.Cell{ContextID: cmp.Or(req.Context, req.Language), Count: 1}
	return g.Run(ctx, execution.RunRequest{
		Args: []string{req.Language, req.Code}, Env: req.Env, Cwd: req.Cwd, User: req.User,
		Stdin: req.Stdin, Timeout: req.Timeout, MaxOutput: req.MaxOutput,
	}, func(e execution.RunEvent) error {
		if e.Started {
			e.Cell = cell
		}
		return handle(e)
	})
}

func (g *guest) Contexts(context.Context) ([]execution.Context, error) {
	return []execution.Context{{ID: "python", Language: "python", Cwd: "/workspace", User: "user", Default: true}}, nil
}

func (g *guest) CreateContext(_ context.Context, spec execution.ContextSpec) (execution.Context, error) {
	if spec.Cwd == "/none" {
		return execution.Context{}, sandbox.Errorf(sandbox.Invalid, "the working directory %q does not exist", spec.Cwd)
	}
	return execution.Context{ID: "c1", Language: spec.Language, Cwd: cmp.Or(spec.Cwd, "/workspace"), User: cmp.Or(spec.User, "user")}, nil
}

func (g *guest) RestartContext(_ context.Context, id string) (execution.Context, error) {
	return execution.Context{ID: id, Language: "python", Cwd: "/workspace", User: "user", Count: 3}, known(id)
}

func (g *guest) InterruptContext(_ context.Context, id string) (bool, error) { return true, known(id) }
func (g *guest) DeleteContext(_ context.Context, id string) error            { return known(id) }

func known(id string) error {
	if id != "c1" {
		return sandbox.Errorf(sandbox.NotFound, "there is no such context")
	}
	return nil
}

func (g *guest) Programs(_ context.Context, names []string) ([]string, error) {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !slices.Contains([]string{"python3", "node", "bash", "cc"}, name) }), nil
}

func (g *guest) entry(p string) (execution.Entry, error) {
	e := execution.Entry{Name: path.Base(p), Path: p, Type: "file", Mode: 0o644, Owner: "user", Group: "user", ModifiedAt: time.Unix(1e9, 0)}
	if data, ok := g.files[p]; ok {
		e.Size = int64(len(data))
		return e, nil
	}
	if _, ok := g.files[strings.TrimSuffix(p, "/")+"/"]; ok || p == "/" {
		e.Type, e.Mode = "directory", 0o755
		return e, nil
	}
	return e, sandbox.Errorf(sandbox.NotFound, "there is no such file")
}

func (g *guest) ReadFile(ctx context.Context, p string, opts execution.ReadOptions) (*execution.FileBody, error) {
	if p == "/dev/huge" {
		return &execution.FileBody{Body: io.NopCloser(zeros{}), Size: hugeSize}, nil
	}
	if p == "/broken" {
		return &execution.FileBody{Body: io.NopCloser(strings.NewReader("half")), Size: 8}, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	data, ok := g.files[p]
	if !ok {
		return nil, sandbox.Errorf(sandbox.NotFound, "there is no such file")
	}
	const tag = `"1-2-3-4"`
	if opts.IfNoneMatch == tag {
		return &execution.FileBody{Body: http.NoBody, Outcome: execution.ReadNotModified, ETag: tag}, nil
	}
	if opts.IfMatch != "" && opts.IfMatch != tag {
		return &execution.FileBody{Body: http.NoBody, Outcome: execution.ReadPrecondition, ETag: tag}, nil
	}
	if opts.Range != "" {
		var from, to int
		if _, err := fmt.Sscanf(opts.Range, "bytes=%d-%d", &from, &to); err != nil || from > to || to >= len(data) {
			return &execution.FileBody{Body: http.NoBody, Outcome: execution.ReadOutOfRange, Total: int64(len(data))}, nil
		}
		part := data[from : to+1]
		return &execution.FileBody{
			Body: io.NopCloser(bytes.NewReader(part)), Outcome: execution.ReadPart,
			Start: int64(from), Size: int64(len(part)), Total: int64(len(data)), ETag: tag,
		}, nil
	}
	return &execution.FileBody{Body: io.NopCloser(bytes.NewReader(data)), Size: int64(len(data)), ModifiedAt: time.Unix(1e9, 0)}, nil
}

const hugeSize = 256 << 20

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func (g *guest) WriteFile(ctx context.Context, p string, body io.Reader, size int64) (execution.Entry, error) {
	if p == "/dev/null" {
		n, err := io.Copy(io.Discard, body)
		return execution.Entry{Name: "null", Path: p, Type: "other", Size: n}, err
	}
	if p == "/early" { // answers before it has read, and reads on afterwards
		go io.Copy(io.Discard, body)
		return execution.Entry{}, sandbox.Errorf(sandbox.TooLarge, "the disk is full")
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return execution.Entry{}, sandbox.Errorf(sandbox.Unavailable, "the upload broke").WithCause(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.files[p] = data
	return g.entry(p)
}

func (g *guest) List(ctx context.Context, p string, depth int) ([]execution.Entry, bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e, err := g.entry(p); err != nil || e.Type != "directory" {
		return nil, false, cmp.Or(err, error(sandbox.Errorf(sandbox.Invalid, "not a directory")))
	}
	var entries []execution.Entry
	prefix := strings.TrimSuffix(p, "/") + "/"
	for name := range g.files {
		below, ok := strings.CutPrefix(name, prefix)
		if ok && below != "" && strings.Count(strings.TrimSuffix(below, "/"), "/") < depth {
			e, _ := g.entry(strings.TrimSuffix(name, "/"))
			entries = append(entries, e)
		}
	}
	slices.SortFunc(entries, func(a, b execution.Entry) int { return cmp.Compare(a.Path, b.Path) })
	return entries, false, nil
}

func (g *guest) Stat(ctx context.Context, p string) (execution.Entry, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.entry(p)
}

func (g *guest) MakeDir(ctx context.Context, p string) (execution.Entry, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e, err := g.entry(p); err == nil {
		return e, sandbox.Errorf(sandbox.Conflict, "it exists")
	}
	g.files[p+"/"] = nil
	return g.entry(p)
}

func (g *guest) Move(ctx context.Context, source, destination string) (execution.Entry, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	data, ok := g.files[source]
	if !ok {
		return execution.Entry{}, sandbox.Errorf(sandbox.NotFound, "there is no such file")
	}
	delete(g.files, source)
	g.files[destination] = data
	return g.entry(destination)
}

func (g *guest) Remove(ctx context.Context, p string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, err := g.entry(p); err != nil {
		return err
	}
	for name := range g.files {
		if name == p || strings.HasPrefix(name, p+"/") {
			delete(g.files, name)
		}
	}
	return nil
}

func (g *guest) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed++
}
