package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// termGrace is how long processes have between SIGTERM and SIGKILL.
	termGrace = time.Second
	// drainTime is how long output is still read once the program has ended
	// and something that it left behind holds the pipes.
	drainTime = 100 * time.Millisecond
	// readSize is the most that one piece of output holds.
	readSize = 32 << 10
	// runMark is the variable by which a run's processes are found again.
	runMark = "CLOUD_SANDBOX_RUN"
)

// Status is how a run ended.
type Status int

// The order is that of the protocol.
const (
	StatusOK Status = iota + 1
	StatusError
	StatusTimeout
	StatusOOM
	StatusPids
	StatusDiskFull
	StatusKilled
)

// RunRequest asks for one program to its end.
type RunRequest struct {
	Args                     []string
	Env                      map[string]string
	Cwd, User                string
	Stdin                    []byte
	Timeout                  time.Duration // zero: none
	StdoutLimit, StderrLimit int64         // bytes; zero: no limit
}

// RunResult is how it ended.
type RunResult struct {
	Status                       Status
	ExitCode                     int
	Signal                       int
	Message                      string
	StdoutDropped, StderrDropped int64
	Duration                     time.Duration
}

// RunHandler is told what happens, one call at a time. An error ends the run.
type RunHandler interface {
	Started(pid int) error
	Output(stderr bool, data []byte) error
}

// run is one program under way.
type run struct {
	leader int
	mark   string
	start  int64 // when the leader started, in clock ticks

	mu  sync.Mutex
	oom bool // KillBiggest chose it
}

// Run runs one program to its end. When ctx ends, or the timeout passes, or the
// handler fails, everything that it started is ended. A program that ends by
// itself may leave daemons: they live on, and their output is dropped.
func (g *Guest) Run(ctx context.Context, req RunRequest, h RunHandler) (RunResult, error) {
	mark := fmt.Sprintf("%s=%d-%d", runMark, os.Getpid(), g.runs.Add(1))
	c, err := g.Command(req.Args, req.Env, req.Cwd, req.User)
	if err != nil {
		return RunResult{}, err
	}
	c.Env = append(c.Env, mark)
	began := time.Now()
	p, err := g.startPiped(c)
	if err != nil {
		if errors.Is(err, syscall.EAGAIN) {
			return RunResult{Status: StatusPids, ExitCode: -1, Message: "no more processes may be started"}, nil
		}
		return RunResult{}, err
	}
	r := &run{leader: p.child.PID, mark: mark, start: startOf(p.child.PID)}
	g.track(r)
	defer g.untrack(r)
	out := newOutput(h, req.StdoutLimit, req.StderrLimit)
	if err := h.Started(p.child.PID); err != nil {
		killFamily(r, map[int]bool{})
		p.close()
		return RunResult{}, err
	}
	status, why := g.follow(ctx, r, p, req, out)
	result := g.judge(r, status, why, c)
	result.Duration = time.Since(began)
	result.StdoutDropped, result.StderrDropped = out.dropped()
	return result, out.failure()
}

// startOf is when a process started; one that is over already has left nothing
// that began later than everything.
func startOf(pid int) int64 {
	t, ok := readTask(pid)
	if !ok {
		return math.MaxInt64
	}
	return t.start
}

// piped is a program with pipes.
type piped struct {
	child          *Child
	stdin          *os.File
	stdout, stderr *os.File
}

func (p *piped) close() {
	p.stdin.Close()
	p.stdout.Close()
	p.stderr.Close()
}

// startPiped starts a command with a pipe for each stream.
func (g *Guest) startPiped(c Command) (*piped, error) {
	var all []*os.File
	closeFrom := func(i int) {
		for _, f := range all[i:] {
			f.Close()
		}
	}
	for range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			closeFrom(0)
			return nil, fmt.Errorf("make a pipe: %w", err)
		}
		all = append(all, r, w)
	}
	inR, inW, outR, outW, errR, errW := all[0], all[1], all[2], all[3], all[4], all[5]
	child, err := g.Start(c, []*os.File{inR, outW, errW}, false)
	for _, f := range []*os.File{inR, outW, errW} {
		f.Close()
	}
	if err != nil {
		for _, f := range []*os.File{inW, outR, errR} {
			f.Close()
		}
		return nil, err
	}
	return &piped{child: child, stdin: inW, stdout: outR, stderr: errR}, nil
}

// cutBy says what ended a run before it ended by itself.
type cutBy int

const (
	cutByNobody cutBy = iota
	cutByTimeout
	cutByClient
)

// follow feeds and reads a program until it ends, or ends it.
func (g *Guest) follow(ctx context.Context, r *run, p *piped, req RunRequest, out *output) (syscall.WaitStatus, cutBy) {
	go func() {
		_, _ = p.stdin.Write(req.Stdin) // a program need not read it
		p.stdin.Close()
	}()
	var readers sync.WaitGroup
	readers.Go(func() { out.copy(p.stdout, 0) })
	readers.Go(func() { out.copy(p.stderr, 1) })
	read := make(chan struct{})
	go func() { readers.Wait(); close(read) }()

	var expired <-chan time.Time
	if req.Timeout > 0 {
		t := time.NewTimer(req.Timeout)
		defer t.Stop()
		expired = t.C
	}
	why := cutByNobody
	var status syscall.WaitStatus
	select {
	case status = <-p.child.Exited:
	case <-expired:
		why = cutByTimeout
		status = g.terminate(r, p.child)
	case <-ctx.Done():
		why = cutByClient
		status = g.terminate(r, p.child)
	case <-out.broken:
		why = cutByClient
		status = g.terminate(r, p.child)
	}
	// The program has ended. What is in the pipes is its own; what comes later
	// is from something that it left behind, which goes on without a reader of
	// ours but must not find its pipe broken.
	select {
	case <-read:
	case <-time.After(drainTime):
	case <-out.broken:
	}
	out.detach()
	return status, why
}

// terminate ends all of a run: SIGTERM, a second's grace, SIGKILL.
func (g *Guest) terminate(r *run, child *Child) syscall.WaitStatus {
	known, asked := askFamily(r)
	if !asked {
		return <-child.Exited
	}
	var status syscall.WaitStatus
	exited := false
	select {
	case status = <-child.Exited:
		exited = true
	case <-time.After(termGrace):
	}
	killFamily(r, known)
	if !exited {
		status = <-child.Exited
	}
	return status
}

// judge turns an end into a status.
func (g *Guest) judge(r *run, status syscall.WaitStatus, why cutBy, c Command) RunResult {
	result := RunResult{Status: StatusOK, ExitCode: status.ExitStatus()}
	if status.Signaled() {
		result.Status, result.ExitCode, result.Signal = StatusKilled, -1, int(status.Signal())
	}
	r.mu.Lock()
	oom := r.oom
	r.mu.Unlock()
	switch {
	case oom && (result.Status != StatusOK || result.ExitCode != 0):
		result.Status = StatusOOM
	case why == cutByTimeout:
		result.Status = StatusTimeout
	case why == cutByClient:
		result.Status = StatusKilled
	case result.Status == StatusOK && result.ExitCode == 0:
	case crowded(c.User.UID, g.pidsLimit()):
		result.Status = StatusPids
	case slices.ContainsFunc([]string{c.Cwd, "/", "/tmp"}, full):
		result.Status = StatusDiskFull
	}
	return result
}

// full reports whether a file system has no room left for one more page.
func full(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Blocks > 0 && st.Bavail*uint64(st.Bsize) < 64<<10
}

func (g *Guest) track(r *run) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.active[r.leader] = r
}

func (g *Guest) untrack(r *run) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.active, r.leader)
}

// output hands pieces of two streams to one handler, up to their limits.
type output struct {
	handler RunHandler
	limits  [2]int64
	broken  chan struct{} // closed at the handler's first failure

	send     sync.Mutex // held while the handler runs, which may be long
	detached bool       // guarded by send

	mu   sync.Mutex
	sent [2]int64
	lost [2]int64
	err  error
}

func newOutput(h RunHandler, stdoutLimit, stderrLimit int64) *output {
	return &output{handler: h, limits: [2]int64{stdoutLimit, stderrLimit}, broken: make(chan struct{})}
}

// copy reads a stream to its end. What is beyond the limit, or comes after
// detach, is read and dropped.
func (o *output) copy(f *os.File, stream int) {
	defer f.Close()
	buf := make([]byte, readSize)
	for {
		n, err := f.Read(buf)
		if data := o.within(stream, buf[:n]); len(data) > 0 {
			o.pass(stream, data)
		}
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return // mostly io.EOF
		}
	}
}

// within returns the part of data that the limit allows, and counts the rest.
func (o *output) within(stream int, data []byte) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return nil
	}
	if limit := o.limits[stream]; limit > 0 && o.sent[stream]+int64(len(data)) > limit {
		keep := max(limit-o.sent[stream], 0)
		o.lost[stream] += int64(len(data)) - keep
		data = data[:keep]
	}
	o.sent[stream] += int64(len(data))
	return data
}

func (o *output) pass(stream int, data []byte) {
	o.send.Lock()
	defer o.send.Unlock()
	if o.detached {
		return
	}
	if err := o.handler.Output(stream == 1, data); err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.err == nil {
			o.err = err
			close(o.broken)
		}
	}
}

func (o *output) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

func (o *output) dropped() (stdout, stderr int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lost[0], o.lost[1]
}

// detach waits for the handler's call under way and allows no other.
func (o *output) detach() {
	o.send.Lock()
	defer o.send.Unlock()
	o.detached = true
}
