package contexts

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

const (
	// interruptGrace is how long an interpreter has to react to an interrupt. After
	// that it is ended, and its state is lost.
	interruptGrace = 2 * time.Second
	// againAfter is the time until an interrupt is repeated: code may catch one,
	// and a program that it waits for is ended before the next.
	againAfter = 100 * time.Millisecond
	// maxQueue bounds the executions that wait for one context.
	maxQueue = 64
)

// Errors of an execution that does not begin.
var (
	ErrBusy    = errors.New("the context is busy with other executions; wait, or use another context")
	ErrDeleted = errors.New("the context was deleted")
)

// Result is how an execution ended.
type Result struct {
	server.RunResult
	Lost           bool // the interpreter ended: its state is gone
	Interrupted    bool // on request
	ResultsDropped int64
}

// Info describes a context.
type Info struct {
	ID, Language, Cwd, User string
	Default                 bool
	Alive, Busy             bool // it has an interpreter; that interpreter is executing
	Count                   int64
}

// kept is one context: its interpreter, if it has one, and its queue.
type kept struct {
	id, cwd, user string
	language      language
	isDefault     bool
	guest         *server.Guest
	turn          chan struct{} // holds one value while the turn is free
	// start starts or reuses an interpreter for it.
	start func(language, server.Command) (*worker, error)

	mu      sync.Mutex
	waiting int
	count   int64
	worker  *worker
	current *cell
	cut     chan cutBy // of current
	deleted bool
}

// cutBy is the reason why an execution was ended before it ended by itself.
type cutBy int

const (
	cutByNobody cutBy = iota
	cutByTimeout
	cutByClient
	cutByInterrupt
	cutByRestart
)

func newContext(g *server.Guest, id string, l language, cwd, user string) *kept {
	c := &kept{id: id, language: l, cwd: cwd, user: user, guest: g, turn: make(chan struct{}, 1)}
	c.turn <- struct{}{}
	return c
}

func (c *kept) info() Info {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Info{
		ID: c.id, Language: c.language.name, Cwd: c.cwd, User: c.user, Default: c.isDefault,
		Alive: c.worker != nil && !c.worker.gone(), Busy: c.current != nil, Count: c.count,
	}
}

// execute runs code when it is its turn. It fails if it has to wait for the turn
// longer than req.Timeout.
func (c *kept) execute(ctx context.Context, req Request, h Handler) (Result, error) {
	if err := c.await(ctx, req.Timeout); err != nil {
		return Result{}, err
	}
	defer func() { c.turn <- struct{}{} }()
	w, restarted, err := c.interpreter()
	if errors.Is(err, syscall.EAGAIN) {
		return Result{RunResult: server.RunResult{Status: server.StatusPids, ExitCode: -1, Message: "no more processes may be started"}}, nil
	}
	if err != nil {
		return Result{}, err
	}
	cl, cut, err := c.begin(w, req, h)
	if err != nil {
		return Result{}, err
	}
	defer c.end()
	if err := h.Started(Started{ContextID: c.id, Language: c.language.name, Count: cl.count, Restarted: restarted}); err != nil {
		return Result{}, err
	}
	if err := w.begin(cl); err != nil && !errors.Is(err, syscall.EPIPE) { // the end of a worker is handled below
		w.kill(0)
	}
	return c.follow(ctx, w, cl, cut)
}

// await waits for the turn.
func (c *kept) await(ctx context.Context, limit time.Duration) error {
	select {
	case <-c.turn:
		return nil
	default:
	}
	c.mu.Lock()
	if c.waiting >= maxQueue {
		c.mu.Unlock()
		return ErrBusy
	}
	c.waiting++
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.waiting--
		c.mu.Unlock()
	}()
	var late <-chan time.Time
	if limit > 0 {
		t := time.NewTimer(limit)
		defer t.Stop()
		late = t.C
	}
	select {
	case <-c.turn:
		return nil
	case <-late:
		return ErrBusy
	case <-ctx.Done():
		return ctx.Err()
	}
}

// interpreter returns the context's worker, or starts a new one if none is alive.
// The caller has the turn.
func (c *kept) interpreter() (w *worker, restarted bool, err error) {
	c.mu.Lock()
	w, restarted, deleted := c.worker, c.count > 0, c.deleted
	c.mu.Unlock()
	if deleted {
		return nil, false, ErrDeleted
	}
	if w != nil && !w.gone() {
		return w, false, nil
	}
	command, err := c.guest.Command(c.language.args, nil, c.cwd, c.user)
	if err != nil {
		return nil, false, err
	}
	if w, err = c.start(c.language, command); err != nil {
		return nil, false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.worker = w
	return w, restarted, nil
}

// begin makes the execution the context's current one.
func (c *kept) begin(w *worker, req Request, h Handler) (*cell, chan cutBy, error) {
	owner, _ := c.guest.Owner()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deleted {
		w.kill(0)
		return nil, nil, ErrDeleted
	}
	c.count++
	c.current = newCell(req, c.count, lifetimeOf(owner), server.SandboxEnv(owner), h)
	c.cut = make(chan cutBy, 1)
	return c.current, c.cut, nil
}

func (c *kept) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current, c.cut = nil, nil
}

// follow waits for the end of a cell, or ends it.
func (c *kept) follow(ctx context.Context, w *worker, cl *cell, cut <-chan cutBy) (Result, error) {
	var expired <-chan struct{}
	if cl.request.Timeout > 0 {
		var stop func()
		expired, stop = c.guest.Countdown(cl.request.Timeout)
		defer stop()
	}
	why := cutByNobody
	select {
	case <-cl.done:
	case <-w.ended:
		select {
		case why = <-cut: // the worker ended because of it
		default:
		}
	case <-expired:
		why = cutByTimeout
	case <-ctx.Done():
		why = cutByClient
	case <-cl.broken:
		why = cutByClient
	case why = <-cut:
	}
	if why == cutByClient {
		cl.detach() // the client has disconnected: the worker must not wait for it
	}
	if why != cutByNobody && why != cutByRestart {
		c.stop(w, cl)
	}
	if why == cutByRestart {
		w.kill(time.Since(cl.began))
	}
	return c.judge(w, cl, why), cl.err
}

// stop interrupts a cell, ends the processes that it started, and returns when it
// is over. A worker that does not react to the interrupt is ended.
func (c *kept) stop(w *worker, cl *cell) {
	late := time.NewTimer(interruptGrace)
	defer late.Stop()
	again := time.NewTicker(againAfter)
	defer again.Stop()
	ready := make(chan bool, 1)
	go func() {
		ready <- w.handles(cl)
		close(ready)
	}()
	defer func() {
		for range ready { // it ends with the cell or the worker
		}
	}()
	first, interrupted := ready, false
	for round := 0; ; {
		select {
		case <-cl.done:
			w.proc.EndSince(cl.moment())
			return
		case <-w.ended:
			return
		case <-late.C:
			w.kill(time.Since(cl.began))
			<-w.ended
			return
		case interrupted = <-first:
			if first = nil; interrupted {
				w.proc.Signal(unix.SIGINT)
			}
		case <-again.C:
			w.proc.EndSince(cl.moment())
			if !interrupted || cl.over() {
				continue
			}
			if round++; round%c.language.every != 0 {
				continue
			}
			w.proc.Signal(unix.SIGINT)
			if c.language.forceInterrupt != 0 {
				w.proc.Signal(c.language.forceInterrupt)
			}
		}
	}
}

// judge returns the result of a cell.
func (c *kept) judge(w *worker, cl *cell, why cutBy) Result {
	r := Result{Interrupted: why == cutByInterrupt}
	select {
	case <-cl.done:
		r.Status, r.ExitCode = server.StatusOK, cl.code
	default:
		<-w.ended
	}
	if r.Status == 0 {
		w.settle()
		r.Lost = true
		r.RunResult = endOf(w)
	}
	switch {
	case r.Status == server.StatusOOM:
	case why == cutByTimeout:
		r.Status = server.StatusTimeout
	case why == cutByClient:
		r.Status = server.StatusKilled
	case why == cutByRestart:
		r.Status, r.Message = server.StatusKilled, "the context was restarted"
	case r.Status == server.StatusOK && r.ExitCode != 0 && !r.Interrupted:
		r.Status = w.proc.Shortage(w.command.Cwd)
	}
	if r.Status == server.StatusPids && !r.Lost {
		// Its processes would leave no room for others. The next execution must not
		// use a worker that is about to end.
		w.kill(time.Since(cl.began))
		<-w.ended
		r.Lost = true
	}
	w.finish()
	cl.detach()
	r.Duration = time.Since(cl.began)
	r.StdoutDropped, r.StderrDropped, r.ResultsDropped = cl.lost[0], cl.lost[1], cl.dropped
	return r
}

// endOf returns the end of a worker as a program's result.
func endOf(w *worker) server.RunResult {
	r := server.RunResult{Status: server.StatusOK, ExitCode: w.status.ExitStatus()}
	if w.status.Signaled() {
		r.Status, r.ExitCode, r.Signal = server.StatusKilled, -1, int(w.status.Signal())
	}
	if w.proc.OutOfMemory(w.status) {
		r.Status = server.StatusOOM
	}
	return r
}

// interrupt interrupts the current execution; it reports whether there was one.
func (c *kept) interrupt() bool { return c.cutCurrent(cutByInterrupt) }

func (c *kept) cutCurrent(why cutBy) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut == nil {
		return false
	}
	select {
	case c.cut <- why:
	default: // it is being ended already
	}
	return true
}

// restart ends the interpreter, and with it the current execution.
func (c *kept) restart() {
	c.mu.Lock()
	w := c.worker
	c.mu.Unlock()
	if w == nil || w.gone() {
		return
	}
	c.cutCurrent(cutByRestart)
	w.kill(0)
	<-w.ended
}

// delete restarts the context and marks it as deleted.
func (c *kept) delete() {
	c.mu.Lock()
	c.deleted = true
	c.mu.Unlock()
	c.restart()
}
