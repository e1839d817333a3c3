package gatewaytest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// guest is a Guest with files in memory. It runs no code: the entry of Scripts for the
// code runs in its place. With the Processes of a real Guest it passes the suite of a
// Guest's ports.
type guest struct {
	execution.Processes // nil, or those of a real Guest
	execution.ProcessStreams
	*files

	dial execution.Dial

	Warmed atomic.Bool
	// The lock of files guards the fields below.
	Closed         int
	Scripts        map[string]program
	Runs           []execution.RunRequest
	Cells          []execution.CellRequest
	LogEntries     []execution.LogEntry
	PortsTruncated bool // what ListPorts reports
	contexts       []execution.Context
}

// A program runs in place of code. It returns soon after ctx ends.
type program func(ctx context.Context, req execution.RunRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error)

var _ execution.Guest = (*guest)(nil)

func newGuest() *guest {
	return &guest{
		files: newFiles(), Scripts: map[string]program{},
		contexts: []execution.Context{{ID: "python", Language: "python", Cwd: home, User: "user", Default: true}},
	}
}

func (g *guest) Warm(ctx context.Context) error {
	g.Warmed.Store(true)
	return ctx.Err()
}

func (g *guest) Close() {
	g.Lock()
	defer g.Unlock()
	g.Closed++
}

func (g *guest) Load(ctx context.Context) (execution.Load, error) {
	return execution.Load{At: time.Now(), CPUs: 2, CPUPercent: 50, MemoryUsed: 1, MemoryAll: 2, DiskUsed: 3, DiskAll: 4}, ctx.Err()
}

func (g *guest) Logs(ctx context.Context) ([]execution.LogEntry, error) {
	return g.LogEntries, ctx.Err()
}

func (g *guest) ListPorts(ctx context.Context) ([]execution.Listener, bool, error) {
	return []execution.Listener{
		{Port: 8000, Address: netip.MustParseAddr("127.0.0.1"), PID: 7, Process: "web"},
		{Port: 8443, Address: netip.MustParseAddr("::")},
		{Port: sandbox.EnvdPort, Address: netip.MustParseAddr("::"), PID: 1, Process: "guest"},
	}, g.PortsTruncated, ctx.Err()
}

// installed are the programs in the PATH.
var installed = []string{"python3", "node", "bash", "cc", "git"}

func (g *guest) Programs(ctx context.Context, names []string) ([]string, error) {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !slices.Contains(installed, name) }), ctx.Err()
}

var errTimeLimit = errors.New("the time limit is over")

// Run runs the script of the last argument. Without one, the program prints a greeting.
func (g *guest) Run(ctx context.Context, req execution.RunRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error) {
	g.Lock()
	g.Runs = append(g.Runs, req)
	script := g.Scripts[req.Args[len(req.Args)-1]]
	err := cmp.Or(ctx.Err(), checkUser(req.User), g.checkFolder(cmp.Or(req.Cwd, home)))
	g.Unlock()
	switch {
	case err != nil:
		return execution.RunEnd{}, err
	case !slices.Contains(installed, req.Args[0]) && req.Args[0][0] != '/':
		return execution.RunEnd{Status: execution.StatusError, Message: req.Args[0] + " is not installed"}, nil
	case script == nil:
		script = greet
	}
	inner := ctx
	if req.Timeout > 0 {
		var stop context.CancelFunc
		inner, stop = context.WithTimeoutCause(ctx, req.Timeout, errTimeLimit)
		defer stop()
	}
	o := &output{handle: handle, limit: req.MaxOutput}
	if err := handle(execution.RunEvent{Started: true, PID: 7}); err != nil {
		return execution.RunEnd{}, err
	}
	end, err := script(inner, req, o.pass)
	switch {
	case o.failed != nil:
		return execution.RunEnd{}, o.failed
	case err != nil && ctx.Err() == nil && errors.Is(context.Cause(inner), errTimeLimit):
		end, err = execution.RunEnd{Status: execution.StatusTimeout}, nil
	}
	end.StdoutDropped += o.stdout.dropped
	end.StderrDropped += o.stderr.dropped
	return end, err
}

func greet(_ context.Context, _ execution.RunRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error) {
	return execution.RunEnd{Status: execution.StatusOK}, handle(execution.RunEvent{Stdout: []byte("Hello!\n")})
}

// output forwards the events of a program, with at most limit bytes of each stream.
type output struct {
	handle         func(execution.RunEvent) error
	limit          int64 // zero: none
	stdout, stderr stream
	failed         error // of handle
}

type stream struct{ passed, dropped int64 }

// cut returns the part of b that fits.
func (s *stream) cut(b []byte, limit int64) []byte {
	fits := int64(len(b))
	if limit > 0 {
		fits = min(fits, limit-s.passed)
	}
	s.passed += fits
	s.dropped += int64(len(b)) - fits
	return b[:fits]
}

func (o *output) pass(e execution.RunEvent) error {
	if o.failed != nil {
		return o.failed
	}
	had := len(e.Stdout)+len(e.Stderr) > 0
	e.Stdout, e.Stderr = o.stdout.cut(e.Stdout, o.limit), o.stderr.cut(e.Stderr, o.limit)
	if had && len(e.Stdout)+len(e.Stderr) == 0 {
		return nil
	}
	o.failed = o.handle(e)
	return o.failed
}

// EndProcess finds no process without a registry: programs then end with their calls.
func (g *guest) EndProcess(ctx context.Context, id string) (execution.ProcessInfo, error) {
	if g.Processes != nil {
		return g.Processes.EndProcess(ctx, id)
	}
	return execution.ProcessInfo{}, sandbox.Errorf(sandbox.NotFound, "no such process")
}

// Execute runs the script of the code, as if in a context.
func (g *guest) Execute(ctx context.Context, req execution.CellRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error) {
	id := cmp.Or(req.Context, req.Language)
	if req.Context != "" {
		if _, err := g.context(ctx, id); err != nil {
			return execution.RunEnd{}, err
		}
	}
	cell := &execution.Cell{ContextID: id, Count: 1}
	g.Lock()
	g.Cells = append(g.Cells, req)
	if i := slices.IndexFunc(g.contexts, func(c execution.Context) bool { return c.ID == id }); i >= 0 {
		g.contexts[i].Count++
		cell.Count = g.contexts[i].Count
	}
	g.Unlock()
	return g.Run(ctx, execution.RunRequest{
		Args: []string{"python3", req.Code}, Env: req.Env, Cwd: req.Cwd, User: req.User,
		Stdin: req.Stdin, Timeout: req.Timeout, MaxOutput: req.MaxOutput,
	}, func(e execution.RunEvent) error {
		if e.Started {
			e.Cell = cell
		}
		return handle(e)
	})
}

func (g *guest) Contexts(ctx context.Context) ([]execution.Context, error) {
	g.Lock()
	defer g.Unlock()
	return slices.Clone(g.contexts), ctx.Err()
}

func (g *guest) CreateContext(ctx context.Context, spec execution.ContextSpec) (execution.Context, error) {
	g.Lock()
	defer g.Unlock()
	c := execution.Context{
		ID: fmt.Sprintf("c%d", len(g.contexts)), Language: spec.Language, Cwd: cmp.Or(spec.Cwd, home), User: cmp.Or(spec.User, "user"),
	}
	if err := cmp.Or(ctx.Err(), checkUser(spec.User), g.checkFolder(c.Cwd)); err != nil {
		return execution.Context{}, err
	}
	g.contexts = append(g.contexts, c)
	return c, nil
}

// context returns a context that was created, or a default one.
func (g *guest) context(ctx context.Context, id string) (execution.Context, error) {
	g.Lock()
	defer g.Unlock()
	for _, c := range g.contexts {
		if c.ID == id {
			return c, ctx.Err()
		}
	}
	return execution.Context{}, cmp.Or(ctx.Err(), error(sandbox.Errorf(sandbox.NotFound, "no such context")))
}

func (g *guest) RestartContext(ctx context.Context, id string) (execution.Context, error) {
	return g.context(ctx, id)
}

func (g *guest) InterruptContext(ctx context.Context, id string) (bool, error) {
	_, err := g.context(ctx, id)
	return err == nil, err
}

func (g *guest) DeleteContext(ctx context.Context, id string) error {
	if _, err := g.context(ctx, id); err != nil {
		return err
	}
	g.Lock()
	defer g.Unlock()
	g.contexts = slices.DeleteFunc(g.contexts, func(c execution.Context) bool { return c.ID == id })
	return nil
}
