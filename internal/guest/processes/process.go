package processes

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

const (
	// readSize is the maximum of one read from a Process, in bytes.
	readSize = 32 << 10
	// inputTime is how long a Process may take to read its input.
	inputTime = 30 * time.Second
)

// Size is the size of a terminal, in characters.
type Size struct{ Cols, Rows uint16 }

// Process is one program that a client started. Its methods are safe for
// concurrent use.
type Process struct {
	ID      string
	Name    string
	Shell   string // session that it belongs to
	Text    string // command or code of the request, shortened
	Command server.Command
	Timeout time.Duration // zero: none
	Started time.Time

	output *spool
	tty    bool
	source *Source       // code of which the program is made; nil: the program exists
	cell   *cell         // set for code in a context; nil: a program
	stop   chan struct{} // has a value once a client has requested its end
	ended  chan struct{} // closed once result is set
	atEnd  func()        // called just before ended is closed; may be nil

	writing chan struct{} // holds a value during a write of input
	given   int64         // bytes of input that it has received; guarded by writing
	sawEOF  bool          // its input ended with given; guarded by writing
	placed  chan struct{} // closed once the Registry has it, with its key

	mu     sync.Mutex
	job    *server.Job // of the current step; nil: code, or it did not start
	input  *os.File    // its pipe or terminal; nil: no input, or no longer
	size   Size        // of its terminal
	result server.RunResult
	unmade bool      // the compiler was its last step, or the code could not be written
	at     time.Time // when it ended
}

// PID is the process ID of the program, and the ID of its group and session; 0 for
// code in a context.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.job == nil {
		return 0
	}
	return p.job.PID()
}

// Ended is closed when the Process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Result returns how it ended; false while it runs.
func (p *Process) Result() (server.RunResult, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.result, !p.at.IsZero()
}

// launch starts the program with pipes, or on a terminal of its own, and the
// readers of its output. keep says that its input stays open after stdin.
func (p *Process) launch(g *server.Guest, stdin []byte, keep bool) error {
	first := step{command: p.Command, stdin: stdin, keep: keep}
	var next []step
	if p.source != nil {
		var err error
		if first, next, err = p.source.steps(p, first); err != nil {
			p.Started = time.Now()
			p.unmade = true
			go p.finish(p.source.failed(p, err))
			return nil
		}
	}
	begun, err := p.begin(g, first)
	if p.output.owned && errors.Is(err, syscall.EAGAIN) {
		p.Started = time.Now()
		go p.finish(server.NoMoreProcesses())
		return nil
	}
	if err != nil {
		p.source.remove(p)
		return err
	}
	p.Started = time.Now()
	go p.see(g, begun, next)
	return nil
}

// step is one of the programs that run in turn for a Process.
type step struct {
	command  server.Command
	stdin    []byte
	keep     bool // its input stays open after stdin
	compiles bool // its output is about the code, and it produces the program of the next step
}

// begun is a running step.
type begun struct {
	step
	job     *server.Job
	readers sync.WaitGroup
	taps    []*server.Tap
}

// begin starts a step and the readers of its output.
func (p *Process) begin(g *server.Guest, s step) (*begun, error) {
	b := &begun{step: s}
	var outputs []*os.File
	var input *os.File
	if p.tty {
		job, terminal, err := g.StartTerminal(s.command, p.size.Cols, p.size.Rows)
		if err != nil {
			return nil, err
		}
		b.job, input, outputs = job, terminal, []*os.File{terminal}
	} else {
		start := g.StartPiped
		if p.output.owned {
			start = g.StartRun
		}
		piped, err := start(s.command, s.keep || len(s.stdin) > 0)
		if err != nil {
			return nil, err
		}
		b.job, input, outputs = piped.Job, piped.Stdin, []*os.File{piped.Stdout, piped.Stderr}
	}
	p.mu.Lock()
	p.job, p.input = b.job, input
	p.mu.Unlock()
	for i, f := range outputs {
		tap := server.NewTap(f, readSize)
		b.taps = append(b.taps, tap)
		b.readers.Go(func() { p.read(f, tap, i == 1 || s.compiles) })
	}
	if eof := !s.keep && !p.tty; input != nil && (len(s.stdin) > 0 || eof) {
		p.writing <- struct{}{} // input from clients comes after it
		go p.feed(input, s.stdin, eof)
	}
	return b, nil
}

// feed writes the first input to the Process, however late it reads it. The end of
// the Process ends feed.
func (p *Process) feed(input *os.File, stdin []byte, eof bool) {
	defer func() { <-p.writing }()
	_, _ = input.Write(stdin) // it need not read it
	if eof {
		p.closeInput()
	}
}

// read keeps all output of one stream, to its end. That includes later output of
// processes that the program left behind.
func (p *Process) read(f *os.File, tap *server.Tap, stderr bool) {
	if !p.tty {
		defer f.Close()
	}
	tap.Run(func(data []byte) { p.output.append(stderr, data) })
}

// see waits for the end of the Process, through all its steps.
func (p *Process) see(g *server.Guest, b *begun, next []step) {
	var expired <-chan struct{}
	if p.Timeout > 0 {
		var stop func()
		expired, stop = g.Countdown(p.Timeout)
		defer stop()
	}
	for {
		result, cut := p.await(b, expired)
		if len(next) == 0 || cut || result.Status != server.StatusOK || result.ExitCode != 0 {
			p.unmade = b.compiles
			p.finish(result)
			return
		}
		p.mu.Lock()
		p.job = nil
		p.mu.Unlock()
		var err error
		if next[0].command, err = g.Command(next[0].command.Args, p.source.Env, p.Command.Cwd, p.Command.User.Name); err == nil {
			b, err = p.begin(g, next[0])
		}
		switch {
		case errors.Is(err, syscall.EAGAIN):
			p.finish(server.NoMoreProcesses())
			return
		case err != nil:
			p.finish(server.RunResult{Status: server.StatusError, Message: err.Error()})
			return
		}
		next = next[1:]
	}
}

// await waits for the end of a step. cut says that it was ended from outside.
func (p *Process) await(b *begun, expired <-chan struct{}) (result server.RunResult, cut bool) {
	defer b.job.Release()
	why := server.CutByNobody
	var status syscall.WaitStatus
	select {
	case status = <-b.job.Exited():
	case <-expired:
		why = server.CutByTimeout
		status = b.job.Terminate()
	case <-p.stop:
		why = server.CutByClient
		status = b.job.Terminate()
	}
	if !b.compiles {
		p.output.hurry()
	}
	read := make(chan struct{})
	go func() { b.readers.Wait(); close(read) }()
	server.Drained(read, nil, b.taps...)
	return b.job.Judge(status, why), why != server.CutByNobody
}

func (p *Process) finish(result server.RunResult) {
	p.source.remove(p)
	if p.output.owned {
		p.output.seal() // later output comes from processes that it left behind
	}
	p.mu.Lock()
	p.result, p.at = result, time.Now()
	input := p.input
	p.input = nil
	p.mu.Unlock()
	if input != nil {
		input.Close()
	}
	if p.atEnd != nil {
		p.atEnd()
	}
	close(p.ended)
}

// End requests the end of the Process and of everything it started.
func (p *Process) End() {
	select {
	case p.stop <- struct{}{}:
	default: // already requested
	}
}

// errInput says that a Process has no input.
var errInput = errors.New("the process has no input: start it with keep_stdin or a pty")

// errEnded says that the Process has ended.
var errEnded = errors.New("the process has ended")

// errClosed says that the Process has closed its input.
var errClosed = errors.New("the process has closed its input")

// errGap says that input is missing.
var errGap = errors.New("input before this has not arrived: give it first")

// errNoSignal says that the Process has no program to signal.
var errNoSignal = errors.New("the process is code in a context, which takes SIGINT only: interrupt or restart the context, or end the process")

// controlD ends the input of a terminal.
const controlD = 4

// Input is input for a Process.
type Input struct {
	Data []byte
	EOF  bool // Data is the last
	// From is the offset of Data's first byte, counted over all data of Write.
	// Bytes that the Process already has are skipped. Nil: Data is next.
	From *int64
}

// Write writes input to the Process and returns how much of it the Process has. It
// waits up to inputTime for a Process that does not read; then the error is
// os.ErrDeadlineExceeded.
func (p *Process) Write(ctx context.Context, in Input) (int, error) {
	late := time.Now().Add(inputTime)
	ctx, cancel := context.WithDeadline(ctx, late)
	defer cancel()
	select {
	case p.writing <- struct{}{}:
	case <-ctx.Done():
		return 0, os.ErrDeadlineExceeded // another writer was first
	}
	defer func() { <-p.writing }()
	has := 0
	if in.From != nil {
		if *in.From < 0 || *in.From > p.given {
			return 0, errGap
		}
		has = int(min(p.given-*in.From, int64(len(in.Data))))
	}
	p.mu.Lock()
	input := p.input
	over := !p.at.IsZero()
	p.mu.Unlock()
	switch {
	case over:
		return 0, errEnded
	case input == nil && in.From != nil && p.sawEOF && has == len(in.Data):
		return has, nil // the Process has all of it, and its end
	case input == nil:
		return 0, errInput
	}
	n, err := p.pass(ctx, late, input, in.Data[has:], in.EOF)
	p.given += int64(n)
	return has + n, err
}

// pass writes to the Process's pipe or terminal, until late or until ctx ends.
func (p *Process) pass(ctx context.Context, late time.Time, input *os.File, data []byte, eof bool) (int, error) {
	if eof && p.tty {
		data = append(data[:len(data):len(data)], controlD)
	}
	_ = input.SetWriteDeadline(late)
	defer cutShort(ctx, input)()
	n, err := input.Write(data)
	if eof && p.tty && n == len(data) {
		n--
	}
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.EIO) {
		err = errClosed
	}
	if eof && !p.tty && err == nil {
		p.sawEOF = true
		p.closeInput()
	}
	return n, err
}

// cutShort ends a write when ctx ends, because its client has disconnected. The
// next write may begin once stop has returned.
func cutShort(ctx context.Context, input *os.File) (stop func()) {
	cut := make(chan struct{})
	undo := context.AfterFunc(ctx, func() {
		_ = input.SetWriteDeadline(time.Now())
		close(cut)
	})
	return func() {
		if !undo() {
			<-cut
		}
	}
}

func (p *Process) closeInput() {
	p.mu.Lock()
	input := p.input
	p.input = nil
	p.mu.Unlock()
	if input != nil {
		input.Close()
	}
}

// Signal sends a signal to the Process and its group. A signal of a terminal's
// keyboard goes to the foreground group.
func (p *Process) Signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock() // the PID of an ended process may be reused
	switch {
	case !p.at.IsZero():
		return errEnded
	case p.cell != nil && s == unix.SIGINT:
		p.cell.interrupt()
		return nil
	case p.job == nil:
		return errNoSignal
	}
	if p.tty && (s == unix.SIGINT || s == unix.SIGQUIT || s == unix.SIGTSTP) {
		if group, err := foreground(p.input); err == nil && group > 1 {
			return unix.Kill(-group, s)
		}
	}
	return p.job.Signal(s)
}

// foreground returns the foreground process group of a terminal.
func foreground(terminal *os.File) (group int, err error) {
	raw, err := terminal.SyscallConn()
	if err != nil {
		return 0, err
	}
	err2 := raw.Control(func(fd uintptr) { group, err = unix.IoctlGetInt(int(fd), unix.TIOCGPGRP) })
	return group, errors.Join(err, err2)
}

// errNoTerminal says that only a terminal has a size.
var errNoTerminal = errors.New("the process has no terminal")

// Resize changes the size of the Process's terminal.
func (p *Process) Resize(size Size) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.tty:
		return errNoTerminal
	case !p.at.IsZero():
		return errEnded
	}
	if err := server.ResizeTerminal(p.input, size.Cols, size.Rows); err != nil {
		return err
	}
	p.size = size
	return nil
}
