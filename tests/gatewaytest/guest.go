package gatewaytest

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
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// guest is a Guest with files in memory and programs in Go, by their code.
type guest struct {
	execution.Processes // nil, or those of a real Guest
	execution.ProcessStreams

	dial execution.Dial

	Warmed atomic.Bool
	sync.Mutex
	files      map[string][]byte
	Closed     int
	Scripts    map[string]program
	Runs       []execution.RunRequest
	Cells      []execution.CellRequest
	Events     chan *execution.WatchEvent
	LogEntries []execution.LogEntry
}

// A program runs in place of code.
type program func(ctx context.Context, req execution.RunRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error)

func newGuest() *guest {
	return &guest{files: map[string][]byte{"/workspace/": nil}, Scripts: map[string]program{}, Events: make(chan *execution.WatchEvent)}
}

func (g *guest) Warm(context.Context) error {
	g.Warmed.Store(true)
	return nil
}

func (g *guest) Load(context.Context) (execution.Load, error) {
	return execution.Load{At: time.Now(), CPUs: 2, CPUPercent: 50, MemoryUsed: 1, MemoryAll: 2, DiskUsed: 3, DiskAll: 4}, nil
}

func (g *guest) Logs(context.Context) ([]execution.LogEntry, error) { return g.LogEntries, nil }

func (g *guest) ListPorts(context.Context) ([]execution.Listener, bool, error) {
	return []execution.Listener{
		{Port: 8000, Address: netip.MustParseAddr("127.0.0.1"), PID: 7, Process: "web"},
		{Port: 8443, Address: netip.MustParseAddr("::")},
		{Port: sandbox.EnvdPort, Address: netip.MustParseAddr("::"), PID: 1, Process: "guest"},
	}, true, nil
}

func (g *guest) Run(ctx context.Context, req execution.RunRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error) {
	g.Lock()
	g.Runs = append(g.Runs, req)
	run := g.Scripts[req.Args[len(req.Args)-1]]
	g.Unlock()
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
	return execution.ProcessInfo{}, sandbox.Errorf(sandbox.NotFound, "no such process")
}

// Execute runs a program, as if in a context.
func (g *guest) Execute(ctx context.Context, req execution.CellRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error) {
	g.Lock()
	g.Cells = append(g.Cells, req)
	g.Unlock()
	if req.Context != "" && req.Context != "c1" {
		return execution.RunEnd{}, sandbox.Errorf(sandbox.NotFound, "no such context")
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

func (g *guest) DeleteContext(_ context.Context, id string) error { return known(id) }

func known(id string) error {
	if id != "c1" {
		return sandbox.Errorf(sandbox.NotFound, "no such context")
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
		return &execution.FileBody{Body: io.NopCloser(Zeros{}), Size: HugeSize}, nil
	}
	if p == "/broken" {
		return &execution.FileBody{Body: io.NopCloser(strings.NewReader("half")), Size: 8}, nil
	}
	g.Lock()
	defer g.Unlock()
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

// HugeSize is the size of the file /dev/huge in bytes.
const HugeSize = 256 << 20

// Zeros reads as zeros without end.
type Zeros struct{}

func (Zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

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
	g.Lock()
	defer g.Unlock()
	g.files[p] = data
	return g.entry(p)
}

func (g *guest) List(ctx context.Context, p string, depth int) ([]execution.Entry, bool, error) {
	g.Lock()
	defer g.Unlock()
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
	g.Lock()
	defer g.Unlock()
	return g.entry(p)
}

func (g *guest) MakeDir(ctx context.Context, p string) (execution.Entry, error) {
	g.Lock()
	defer g.Unlock()
	if e, err := g.entry(p); err == nil {
		return e, sandbox.Errorf(sandbox.Conflict, "it exists")
	}
	g.files[p+"/"] = nil
	return g.entry(p)
}

func (g *guest) Move(ctx context.Context, source, destination string) (execution.Entry, error) {
	g.Lock()
	defer g.Unlock()
	data, ok := g.files[source]
	if !ok {
		return execution.Entry{}, sandbox.Errorf(sandbox.NotFound, "there is no such file")
	}
	delete(g.files, source)
	g.files[destination] = data
	return g.entry(destination)
}

func (g *guest) Remove(ctx context.Context, p string) error {
	g.Lock()
	defer g.Unlock()
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
	g.Lock()
	defer g.Unlock()
	g.Closed++
}

// Has reports whether there is a file.
func (g *guest) Has(path string) bool {
	g.Lock()
	defer g.Unlock()
	_, ok := g.files[path]
	return ok
}
