package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

// pipe runs a program that reads standard input while it arrives.
func (o *execOptions) pipe(cmd *cobra.Command, c *client.Client, id string, program []string) error {
	// From here on Ctrl-C goes to the program. Before the program exists, it ends the
	// command.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE)
	defer signal.Stop(signals)
	p, err := c.Start(cmd.Context(), v1.StartProcessRequest{
		Target: v1.Target{SandboxID: id}, Command: "exec -- " + quote(program), KeepStdin: true, Background: true,
		TimeoutSeconds: v1.SecondsOf(o.timeout.duration()), Env: o.env.values, Cwd: o.cwd, User: o.user,
	})
	if err != nil {
		return err
	}
	keys, leave, err := openTerminal(cmd.InOrStdin()).keys()
	if err != nil {
		endProcess(cmd.Context(), cmd, c, id, p.ID)
		return err
	}
	defer leave()
	j := &piped{cmd: cmd, client: c, sandbox: id, process: p.ID, keys: keys, signals: signals}
	ended, err := j.hold(context.WithoutCancel(cmd.Context()))
	if err != nil {
		if !errors.Is(err, sandbox.Conflict) && !errors.Is(err, sandbox.NotFound) { // it runs, and the server may not know that this command is gone
			endProcess(cmd.Context(), cmd, c, id, p.ID)
		}
		return err
	}
	return exitOf(cmd, *ended)
}

// piped is a program in a sandbox that is joined to the local standard streams.
type piped struct {
	cmd     *cobra.Command
	client  *client.Client
	sandbox string
	process string // its ID
	keys    <-chan []byte
	signals <-chan os.Signal

	next    int64  // offset of the next output
	arrived int64  // bytes of input that the program has
	untaken []byte // input after arrived, which the program may not have
	eof     bool   // no more input
	deaf    bool   // it takes no more input
}

// hold attaches to the program, and reattaches when the connection is lost. It
// returns the program once that has ended.
func (j *piped) hold(ctx context.Context) (*v1.Process, error) {
	var p *v1.Process
	err := retry(ctx, func() (came bool, err error) {
		a, err := j.client.Attach(ctx, j.sandbox, j.process, client.AttachOptions{
			From: j.next, Pipes: true, Input: new(j.arrived), End: true,
		})
		if err != nil {
			return false, err
		}
		defer a.Close()
		p, err = j.join(ctx, a)
		return true, err
	}, func(int) {})
	return p, err
}

// join copies bytes both ways until one side has ended.
func (j *piped) join(ctx context.Context, a *client.Attached) (*v1.Process, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	l := &line{piped: j, a: a, taken: make(chan int), refused: make(chan struct{})}
	var sending sync.WaitGroup
	sending.Go(func() { stop(l.send(ctx)) })
	ended, err := l.receive(ctx)
	stop(nil)
	sending.Wait()
	return ended, err
}

// line is one connection of a program.
type line struct {
	*piped
	a       *client.Attached
	taken   chan int      // bytes of input that have arrived
	refused chan struct{} // closed once the program takes no more input
}

// send passes on input and signals until ctx ends, beginning with input that an
// earlier connection may have lost. Its error ends the connection.
func (l *line) send(ctx context.Context) error {
	if err := l.again(ctx); err != nil {
		return err
	}
	refused := l.refused
	for {
		keys := l.keys
		if l.eof || l.deaf || len(l.untaken)+pieceSize > client.MaxUntaken {
			keys = nil
		}
		var err error
		select {
		case <-ctx.Done():
			return nil
		case s := <-l.signals:
			err = l.signal(ctx, s)
		case n := <-l.taken:
			n = min(n, len(l.untaken))
			l.untaken, l.arrived = l.untaken[n:], l.arrived+int64(n)
		case <-refused:
			refused, l.deaf = nil, true
		case piece, more := <-keys:
			l.untaken, l.eof = append(l.untaken, piece...), !more
			if more {
				err = l.a.Input(ctx, piece)
			} else {
				err = l.a.EndInput(ctx)
			}
		}
		if err != nil {
			return err
		}
	}
}

// again resends input that may not have arrived. The server drops duplicates by
// offset.
func (l *line) again(ctx context.Context) error {
	if l.deaf {
		return nil
	}
	for piece := range slices.Chunk(l.untaken, pieceSize) {
		if err := l.a.Input(ctx, piece); err != nil {
			return err
		}
	}
	if l.eof {
		return l.a.EndInput(ctx)
	}
	return nil
}

// signal passes on an interrupt. The others end the command.
func (l *line) signal(ctx context.Context, s os.Signal) error {
	switch s {
	case os.Interrupt:
		return l.a.Signal(ctx, "INT")
	case syscall.SIGPIPE: // the write that caused it fails
		return nil
	}
	return context.Canceled
}

// receive shows the program's output until it has ended.
func (l *line) receive(ctx context.Context) (*v1.Process, error) {
	refused := l.refused
	var last error // the server's latest error
	for {
		e, err := l.a.Next(ctx)
		if cause := context.Cause(ctx); err != nil && cause != nil {
			return nil, cause
		}
		if err != nil {
			return nil, cmp.Or(last, err)
		}
		last = nil
		switch e.Type {
		case "":
			err = l.show(e)
		case "start":
			l.next = e.Offset
		case "dropped":
			err = sandbox.Errorf(sandbox.Exhausted, "%d bytes of output are lost: they were not read here in time", e.Next-e.Offset)
		case "taken":
			if e.Bytes == nil {
				continue
			}
			select {
			case l.taken <- *e.Bytes:
			case <-ctx.Done():
			}
		case "error":
			last, err = l.failed(e)
			if refused != nil && !errors.Is(last, sandbox.Unavailable) {
				close(refused) // its input did not arrive; further input would not either
				refused = nil
			}
		case "end":
			if e.Process != nil {
				return e.Process, nil
			}
		}
		if err != nil {
			return nil, err
		}
	}
}

// failed returns the error that the server sent in an event. The second result is the
// same error if it ends the command, and nil otherwise. Conflict and Unavailable do not
// end it: the events of the program report its end.
func (l *line) failed(e client.AttachEvent) (told, err error) {
	if e.Error == nil {
		return nil, nil
	}
	told = sandbox.Errorf(e.Error.Code, "%s", e.Error.Message)
	if e.Error.Code == sandbox.Conflict || e.Error.Code == sandbox.Unavailable {
		return told, nil
	}
	return told, told
}

// pipeCode is the exit code of a program that a SIGPIPE ends.
const pipeCode = 128 + int(syscall.SIGPIPE)

func (l *line) show(e client.AttachEvent) error {
	out := l.cmd.OutOrStdout()
	if e.Stderr {
		out = l.cmd.ErrOrStderr()
	}
	n, err := out.Write(e.Output)
	l.next += int64(n)
	if errors.Is(err, syscall.EPIPE) {
		return &exitError{code: pipeCode}
	}
	return err
}

// endProcess ends a process, also after a signal.
func endProcess(ctx context.Context, cmd *cobra.Command, c *client.Client, id, process string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	if _, err := c.EndProcess(ctx, id, process); err != nil && !errors.Is(err, sandbox.NotFound) {
		fmt.Fprintf(cmd.ErrOrStderr(), "cloud-sandbox: the process %s was not ended: %s\n", clean(process), clean(sentence(err)))
	}
}
