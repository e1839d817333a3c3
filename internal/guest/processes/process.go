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
	// readSize is the most that is read from a Process at once.
	readSize = 32 << 10
	// inputTime is how long a Process may take to read its input.
	inputTime = 30 * time.Second
)

// Size is that of a terminal, in characters.
type Size struct{ Cols, Rows uint16 }

// Process is one program that a client started. Its methods are safe for
// concurrent use.
type Process struct {
	ID      string
	Name    string
	Shell   string // session that it belongs to
	Text    string // what was asked for, shortened
	Command server.Command
	Timeout time.Duration // zero: none
	Started time.Time

	job    *server.Job
	output *spool
	tty    bool
	stop   chan struct{} // has a value once a client wants its end
	ended  chan struct{} // closed once result is set
	atEnd  func()        // called just before; may be nil

	writing chan struct{} // holds a value while somebody writes input

	mu     sync.Mutex
	input  *os.File // its pipe or terminal; nil: it has none, or no more
	size   Size     // of its terminal
	result server.RunResult
	at     time.Time // when it ended
}

// PID is that of the program, and of its group and session.
func (p *Process) PID() int { return p.job.PID() }

// Ended is closed when the Process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Result is how it ended, once it has.
func (p *Process) Result() (server.RunResult, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.result, !p.at.IsZero()
}

// launch starts the program with pipes, or on a terminal of its own, and what
// reads its output. keep is whether its input stays open after stdin.
func (p *Process) launch(g *server.Guest, stdin []byte, keep bool) error {
	var outputs []*os.File
	if p.tty {
		job, terminal, err := g.StartTerminal(p.Command, p.size.Cols, p.size.Rows)
		if err != nil {
			return err
		}
		p.job, p.input, outputs = job, terminal, []*os.File{terminal}
	} else {
		piped, err := g.StartPiped(p.Command, keep || len(stdin) > 0)
		if err != nil {
			return err
		}
		p.job, p.input, outputs = piped.Job, piped.Stdin, []*os.File{piped.Stdout, piped.Stderr}
	}
	p.Started = time.Now()
	var readers sync.WaitGroup
	var taps []*server.Tap
	for i, f := range outputs {
		tap := server.NewTap(f, readSize)
		taps = append(taps, tap)
		readers.Go(func() { p.read(f, tap, i == 1) })
	}
	if eof := !keep && !p.tty; p.input != nil && (len(stdin) > 0 || eof) {
		p.writing <- struct{}{} // what clients write comes after it
		go p.feed(p.input, stdin, eof)
	}
	go p.see(&readers, taps...)
	return nil
}

// feed gives the Process its first input, however late it reads it. The end of
// the Process ends it.
func (p *Process) feed(input *os.File, stdin []byte, eof bool) {
	defer func() { <-p.writing }()
	_, _ = input.Write(stdin) // it need not read it
	if eof {
		p.closeInput()
	}
}

// read keeps what comes from one stream, to its end: also what something that
// the program left behind writes later.
func (p *Process) read(f *os.File, tap *server.Tap, stderr bool) {
	if !p.tty {
		defer f.Close()
	}
	tap.Run(func(data []byte) { p.output.append(stderr, data) })
}

// see sees the Process to its end.
func (p *Process) see(readers *sync.WaitGroup, outputs ...*server.Tap) {
	defer p.job.Release()
	var expired <-chan struct{}
	if p.Timeout > 0 {
		var stop func()
		expired, stop = p.job.Countdown(p.Timeout)
		defer stop()
	}
	why := server.CutByNobody
	var status syscall.WaitStatus
	select {
	case status = <-p.job.Exited():
	case <-expired:
		why = server.CutByTimeout
		status = p.job.Terminate()
	case <-p.stop:
		why = server.CutByClient
		status = p.job.Terminate()
	}
	p.output.hurry()
	read := make(chan struct{})
	go func() { readers.Wait(); close(read) }()
	server.Drained(read, nil, outputs...)
	p.finish(p.job.Judge(status, why))
}

func (p *Process) finish(result server.RunResult) {
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

// End asks for the end of the Process and of everything it started.
func (p *Process) End() {
	select {
	case p.stop <- struct{}{}:
	default: // it has been asked for
	}
}

// errInput says that a Process takes no input.
var errInput = errors.New("the process has no input: start it with keep_stdin or a pty")

// errEnded says that it is too late.
var errEnded = errors.New("the process has ended")

// errClosed says that it reads no more.
var errClosed = errors.New("the process has closed its input")

// controlD ends the input of a terminal.
const controlD = 4

// Write gives input to the Process and returns how much it took. With eof that
// was the last of it. A Process that does not read is waited for, but not for
// ever; then the error is os.ErrDeadlineExceeded.
func (p *Process) Write(ctx context.Context, data []byte, eof bool) (int, error) {
	late := time.Now().Add(inputTime)
	ctx, cancel := context.WithDeadline(ctx, late)
	defer cancel()
	select {
	case p.writing <- struct{}{}:
	case <-ctx.Done():
		return 0, os.ErrDeadlineExceeded // another one's input comes first
	}
	defer func() { <-p.writing }()
	p.mu.Lock()
	input := p.input
	over := !p.at.IsZero()
	p.mu.Unlock()
	switch {
	case over:
		return 0, errEnded
	case input == nil:
		return 0, errInput
	}
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
		p.closeInput()
	}
	return n, err
}

// cutShort ends a write when ctx ends: whoever sent it has left. The next write
// may begin once stop has returned.
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

// Signal sends a signal to the Process and its group; one from the keyboard of a
// terminal to what runs in the foreground.
func (p *Process) Signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock() // a process that is over may lend its PID to another
	if !p.at.IsZero() {
		return errEnded
	}
	if p.tty && (s == unix.SIGINT || s == unix.SIGQUIT || s == unix.SIGTSTP) {
		if group, err := foreground(p.input); err == nil && group > 1 {
			return unix.Kill(-group, s)
		}
	}
	return p.job.Signal(s)
}

// foreground is the group that reads from a terminal.
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

// Resize changes the size of its terminal.
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
