package gateway_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// sandboxes is the life of Sandboxes in memory: the Sandboxes port without
// anything that runs.
type sandboxes struct {
	mu   sync.Mutex
	byID map[string]sandbox.Sandbox
	fail error // of Create
	uses []sandbox.Use

	secretsChanged []string // tenant and name

	volumes   map[string]sandbox.Volume // by ID
	snapshots []sandbox.Snapshot
	forks     map[string][]sandbox.Forked // by the ID of the request
	filesOnly bool                        // the last pause
	reboots   int
}

func newSandboxes() *sandboxes {
	return &sandboxes{byID: map[string]sandbox.Sandbox{}, volumes: map[string]sandbox.Volume{}, forks: map[string][]sandbox.Forked{}}
}

func (f *sandboxes) Create(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest) (sandbox.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return sandbox.Sandbox{}, f.fail
	}
	if err := req.Check(); err != nil {
		return sandbox.Sandbox{}, err
	}
	if req.Template != "" && req.Template != "base" {
		return sandbox.Sandbox{}, sandbox.Errorf(sandbox.NotFound, "there is no template %q", req.Template)
	}
	if req.Snapshot != "" && !slices.ContainsFunc(f.snapshots, func(s sandbox.Snapshot) bool { return s.ID == req.Snapshot && s.Tenant == tenant }) {
		return sandbox.Sandbox{}, sandbox.Errorf(sandbox.NotFound, "no snapshot")
	}
	if req.Name != "" {
		if _, err := f.find(tenant, req.Name); err == nil {
			return sandbox.Sandbox{}, sandbox.Errorf(sandbox.Conflict, "the name %q is in use", req.Name)
		}
	}
	mounts, err := f.mount(tenant, req.Volumes)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	now := time.Now().UTC()
	s := sandbox.Sandbox{
		Volumes: mounts,
		ID:      cmp.Or(req.ID, sandbox.NewSandboxID()), Tenant: tenant, Name: req.Name, State: sandbox.Running,
		Template: "base", Image: "sha256:0", Engine: "fake", Shape: req.Shape, Network: req.Network, Ingress: req.Ingress, Secrets: req.Secrets,
		Metadata: req.Metadata, Env: req.Env, Boot: sandbox.Boot{ID: sandbox.NewBootID(), Number: 1, Node: "n1"},
		Snapshot: req.Snapshot, Origin: req.Snapshot, CreatedAt: now, StartedAt: now, Timeout: req.Timeout, Deadline: now.Add(req.Timeout),
		OnTimeout: cmp.Or(req.OnTimeout, sandbox.OnTimeoutEnd), StayPaused: req.StayPaused, Version: 1, IdleTimeout: req.IdleTimeout, CheckpointEvery: req.CheckpointEvery, User: req.User, Cwd: req.Cwd, Revision: 1,
	}
	s.Network = cmp.Or(s.Network, sandbox.NetworkPublic)
	if s.Shape == (sandbox.Shape{}) {
		s.Shape = sandbox.DefaultShape()
	}
	s.Limits = s.Shape.Limits()
	f.byID[s.ID] = s
	return s, nil
}

func (f *sandboxes) find(tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	if s, ok := f.byID[idOrName]; ok && s.Tenant == tenant {
		return s, nil
	}
	for _, s := range f.byID {
		if s.Tenant == tenant && s.Name != "" && s.Name == idOrName && s.Ended == nil {
			return s, nil
		}
	}
	// Worse than the contract allows: it tells which, and the gateway must not.
	return sandbox.Sandbox{}, sandbox.Errorf(sandbox.NotFound, "no sandbox %s among %d", idOrName, len(f.byID))
}

func (f *sandboxes) Get(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.find(tenant, idOrName)
}

func (f *sandboxes) SandboxByID(_ context.Context, id string) (sandbox.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s, ok := f.byID[id]; ok {
		return s, nil
	}
	return sandbox.Sandbox{}, sandbox.NotFound
}

func (f *sandboxes) List(ctx context.Context, tenant sandbox.TenantID, q sandbox.ListQuery) (sandbox.Page, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []sandbox.Sandbox
	for _, s := range f.byID {
		if s.Tenant == tenant && selected(s, q) && (q.Cursor == "" || s.ID > q.Cursor) {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b sandbox.Sandbox) int { return cmp.Compare(a.ID, b.ID) })
	limit := cmp.Or(q.Limit, 100)
	if len(all) > limit {
		return sandbox.Page{Sandboxes: all[:limit], Next: all[limit-1].ID}, nil
	}
	return sandbox.Page{Sandboxes: all}, nil
}

func selected(s sandbox.Sandbox, q sandbox.ListQuery) bool {
	for k, v := range q.Metadata {
		if got, ok := s.Metadata[k]; !ok || got != v {
			return false
		}
	}
	if q.Template != "" && s.Template != q.Template || s.CreatedAt.Before(q.From) {
		return false
	}
	if len(q.States) == 0 {
		return s.State != sandbox.Ended
	}
	return slices.Contains(q.States, s.State)
}

// Settled is Get: nothing takes time here.
func (f *sandboxes) Settled(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	return f.Get(ctx, tenant, idOrName)
}

func (f *sandboxes) RunFor(ctx context.Context, tenant sandbox.TenantID, idOrName string, d time.Duration) (sandbox.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.find(tenant, idOrName)
	if err != nil {
		return s, err
	}
	if err := s.RunFor(d, time.Now()); err != nil {
		return s, err
	}
	f.byID[s.ID] = s
	return s, nil
}

func (f *sandboxes) SetTimeout(ctx context.Context, tenant sandbox.TenantID, idOrName string, d time.Duration) (sandbox.Sandbox, error) {
	if err := sandbox.CheckTimeout(d); err != nil {
		return sandbox.Sandbox{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.find(tenant, idOrName)
	if err != nil {
		return s, err
	}
	if s.Ended != nil {
		return s, sandbox.Errorf(sandbox.Conflict, "the sandbox has ended")
	}
	s.Timeout, s.Deadline = d, time.Now().Add(d)
	f.byID[s.ID] = s
	return s, nil
}

func (f *sandboxes) Ensure(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest) (sandbox.Sandbox, bool, error) {
	if req.Name == "" {
		return sandbox.Sandbox{}, false, sandbox.Errorf(sandbox.Invalid, "a name is needed")
	}
	if s, err := f.Get(ctx, tenant, req.Name); err == nil {
		return s, false, nil
	}
	s, err := f.Create(ctx, tenant, req)
	return s, err == nil, err
}

func (f *sandboxes) Update(ctx context.Context, tenant sandbox.TenantID, idOrName string, change sandbox.Change) (sandbox.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.find(tenant, idOrName)
	if err != nil {
		return s, err
	}
	if s.Ended != nil {
		return s, sandbox.Errorf(sandbox.Conflict, "the sandbox has ended")
	}
	if s, err = change.Apply(s, time.Now()); err == nil {
		f.byID[s.ID] = s
	}
	return s, err
}

func (f *sandboxes) Touch(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	s, err := f.Get(ctx, tenant, idOrName)
	if err != nil {
		return s, err
	}
	return f.SetTimeout(ctx, tenant, s.ID, s.Timeout)
}

func (f *sandboxes) SecretChanged(_ context.Context, tenant sandbox.TenantID, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.secretsChanged = append(f.secretsChanged, string(tenant)+" "+name)
	return nil
}

func (f *sandboxes) Used(_ context.Context, uses []sandbox.Use) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.uses = append(f.uses, uses...)
	return nil
}

func (f *sandboxes) End(ctx context.Context, tenant sandbox.TenantID, idOrName string, cause sandbox.Cause) (sandbox.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return sandbox.Sandbox{}, err
	}
	s, err := f.find(tenant, idOrName)
	if err != nil || s.Ended != nil {
		return s, sandbox.Errorf(sandbox.NotFound, "not there any more: %s", idOrName)
	}
	s.State, s.Ended, s.Boot.ID = sandbox.Ended, &sandbox.Certificate{Cause: cause, At: time.Now()}, ""
	f.byID[s.ID] = s
	return s, nil
}

// Idle counts those that were never said to be used.
func (f *sandboxes) Idle(_ context.Context, tenant sandbox.TenantID) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return 0, f.fail
	}
	n := 0
	for _, s := range f.byID {
		used := slices.ContainsFunc(f.uses, func(u sandbox.Use) bool { return u.SandboxID == s.ID })
		if s.Tenant == tenant && s.State == sandbox.Running && !used {
			n++
		}
	}
	return n, nil
}

func (f *sandboxes) Counts(ctx context.Context, tenant sandbox.TenantID) (map[sandbox.State]int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	counts := map[sandbox.State]int{}
	for _, s := range f.byID {
		if s.Tenant == tenant && s.State != sandbox.Ended {
			counts[s.State]++
		}
	}
	return counts, nil
}

// live counts everyone's Sandboxes that have not ended.
func (f *sandboxes) live() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, s := range f.byID {
		if s.Ended == nil {
			n++
		}
	}
	return n
}

// nodes is one Node whose Boots all are the same guest.
type nodes struct {
	volumeFiles

	mu       sync.Mutex
	notReady []string
	silent   bool
}

func (n *nodes) Dial(_ context.Context, _ string, to sandbox.BootRef, _ uint16) (net.Conn, error) {
	return nil, sandbox.Errorf(sandbox.NotFound, "boot %s is not here", to.BootID)
}

func (n *nodes) NetworkLog(_ context.Context, _ string, of sandbox.BootRef) (sandbox.NetworkLog, error) {
	if of.SandboxID == "" || of.Tenant == "" {
		return sandbox.NetworkLog{}, errors.New("no boot is named")
	}
	at := time.Unix(1700000000, 0)
	return sandbox.NetworkLog{Allowed: 3, Refused: 1, Decisions: []sandbox.NetworkDecision{
		{Seq: 1, First: at, Last: at, Count: 3, Protocol: "tcp", Addr: netip.MustParseAddr("1.2.3.4"), Port: 443, Allowed: true, Reason: "no rule refuses it"},
		{Seq: 2, First: at, Last: at, Count: 1, Protocol: "dns", Name: "\xffevil.example", Port: 53, Reason: "no rule allows it"},
	}}, nil
}

func (n *nodes) Stats(_ context.Context, node string) (sandbox.NodeStats, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.silent {
		return sandbox.NodeStats{}, sandbox.Errorf(sandbox.Unavailable, "silent")
	}
	return sandbox.NodeStats{
		Node: node, Engine: sandbox.Features{Name: "fake"}, Bound: 1,
		Pools: []sandbox.PoolStats{{Template: "base", Shape: sandbox.DefaultShape(), Idle: 5, Min: 5, Max: 50, Hits: 7, Misses: 1}},
		Ready: len(n.notReady) == 0, NotReady: n.notReady,
	}, nil
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
