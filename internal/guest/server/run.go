package server

import (
	"context"
	"errors"
	"math"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// termGrace is how long processes have between SIGTERM and SIGKILL.
	termGrace = time.Second
	// readSize is the maximum size of one piece of output, in bytes.
	readSize = 32 << 10
	// runMark is the variable by which a run's processes are found again.
	runMark = "CLOUD_SANDBOX_RUN"
)

// Status is how a run ended.
type Status int

// The order is the protocol's.
const (
	StatusOK Status = iota + 1
	StatusError
	StatusTimeout
	StatusOOM
	StatusPids
	StatusDiskFull
	StatusKilled
)

// RunRequest describes one program to run to its end.
type RunRequest struct {
	Args                     []string
	Env                      map[string]string
	Cwd, User                string
	Stdin                    []byte
	Timeout                  time.Duration // zero: none
	StdoutLimit, StderrLimit int64         // bytes; zero: no limit
}

// RunResult describes how a run ended.
type RunResult struct {
	Status                       Status
	ExitCode                     int
	Signal                       int
	Message                      string
	StdoutDropped, StderrDropped int64
	Duration                     time.Duration
}

// RunHandler receives the events of a run, one call at a time. An error ends the
// run.
type RunHandler interface {
	Started(pid int) error
	Output(stderr bool, data []byte) error
}

// run is one running program.
type run struct {
	leader int
	mark   string
	start  int64 // no process of it started earlier, in clock ticks

	mu  sync.Mutex
	oom bool // KillBiggest chose it
}

// Run runs one program to its end. When ctx ends, the timeout passes or the handler
// fails, the program and everything that it started are ended. A program that ends
// by itself may leave daemons: they keep running, and their output is dropped.
func (g *Guest) Run(ctx context.Context, req RunRequest, h RunHandler) (RunResult, error) {
	c, err := g.Command(req.Args, req.Env, req.Cwd, req.User)
	if err != nil {
		return RunResult{}, err
	}
	began := time.Now()
	p, err := g.StartRun(c, len(req.Stdin) > 0)
	if err != nil {
		if errors.Is(err, syscall.EAGAIN) {
			return NoMoreProcesses(), nil
		}
		return RunResult{}, err
	}
	defer p.Release()
	out := newOutput(h, req.StdoutLimit, req.StderrLimit)
	if err := h.Started(p.PID()); err != nil {
		p.Kill()
		p.close()
		return RunResult{}, err
	}
	status, why := p.follow(ctx, req, out)
	result := p.Judge(status, why)
	result.Duration = time.Since(began)
	result.StdoutDropped, result.StderrDropped = out.dropped()
	return result, out.failure()
}

// NoMoreProcesses is the result of a program that could not be started because the
// limit of processes is reached.
func NoMoreProcesses() RunResult {
	return RunResult{Status: StatusPids, ExitCode: -1, Message: "no more processes may be started"}
}

// StartRun is StartPiped for a short program: processes that begin from now on and
// have wiped all traces of their starter are a part of it.
func (g *Guest) StartRun(c Command, input bool) (*Piped, error) {
	start := startTicks()
	p, err := g.StartPiped(c, input)
	if err == nil {
		p.claimHidden(start)
	}
	return p, err
}

// startTicks returns the current time, or slightly earlier, in clock ticks since
// boot: the unit in which proc(5) gives the start times of processes.
func startTicks() int64 {
	const perSecond, margin = 100, 2
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return math.MaxInt64 // nothing began later than that
	}
	return t.Sec*perSecond + t.Nsec/(int64(time.Second)/perSecond) - margin
}

// follow feeds and reads a program until it ends, or ends it.
func (p *Piped) follow(ctx context.Context, req RunRequest, out *output) (syscall.WaitStatus, Cut) {
	if p.Stdin != nil {
		go func() {
			_, _ = p.Stdin.Write(req.Stdin) // a program need not read it
			p.Stdin.Close()
		}()
	}
	var readers sync.WaitGroup
	var taps []*Tap
	for stream, f := range []*os.File{p.Stdout, p.Stderr} {
		tap := NewTap(f, readSize)
		taps = append(taps, tap)
		readers.Go(func() { out.copy(tap, stream) })
	}
	read := make(chan struct{})
	go func() { readers.Wait(); close(read) }()

	var expired <-chan struct{}
	if req.Timeout > 0 {
		var stop func()
		expired, stop = p.guest.Countdown(req.Timeout)
		defer stop()
	}
	why := CutByNobody
	var status syscall.WaitStatus
	select {
	case status = <-p.Exited():
	case <-expired:
		why = CutByTimeout
		status = p.Terminate()
	case <-ctx.Done():
		why = CutByClient
		status = p.Terminate()
	case <-out.broken:
		why = CutByClient
		status = p.Terminate()
	}
	// The program has ended. The pipes hold its own output; later output comes from
	// processes that it left behind. They continue without a reader of ours, but
	// their pipe must not break.
	Drained(read, out.broken, taps...)
	out.detach()
	return status, why
}

// Full reports whether a file system has no room left for one more page.
func Full(path string) bool {
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

// copy reads a stream to its end. Data beyond the limit, or after detach, is read
// and dropped.
func (o *output) copy(t *Tap, stream int) {
	defer t.file.Close()
	t.Run(func(data []byte) {
		if data = o.within(stream, data); len(data) > 0 {
			o.pass(stream, data)
		}
	})
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

// detach waits for the handler's current call and allows no other.
func (o *output) detach() {
	o.send.Lock()
	defer o.send.Unlock()
	o.detached = true
}
