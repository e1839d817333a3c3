package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

// pipe runs a program that reads standard input as it comes.
func (o *execOptions) pipe(cmd *cobra.Command, c *client.Client, id string, program []string) error {
	// From here on Ctrl-C is the program's. One that comes before there is a program
	// ends the command.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE)
	defer signal.Stop(signals)
	p, err := c.Start(cmd.Context(), client.StartRequest{
		SandboxID: id, Command: "exec -- " + quote(program), KeepStdin: true, Background: true,
		Timeout: float64(o.timeout), Env: o.env.values, Cwd: o.cwd, User: o.user,
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(context.WithoutCancel(cmd.Context()))
	defer stop(nil)
	a, err := c.Attach(ctx, id, p.ID, client.AttachOptions{Pipes: true, End: true})
	if err != nil {
		endProcess(ctx, cmd, c, id, p.ID)
		return err
	}
	defer a.Close()
	keys, leave, err := openTerminal(cmd.InOrStdin()).keys()
	if err != nil {
		return err
	}
	defer leave()
	j := &piped{
		cmd: cmd, a: a, keys: keys, signals: signals,
		taken: make(chan int), refused: make(chan struct{}),
	}
	var sending sync.WaitGroup
	sending.Go(func() { stop(j.send(ctx)) })
	ended, err := j.receive(ctx)
	stop(nil)
	sending.Wait()
	switch {
	case err == nil:
		return exitOf(cmd, *ended)
	case errors.Is(err, sandbox.Unavailable):
		endProcess(ctx, cmd, c, id, p.ID) // the server may not know yet that nobody listens
	}
	return err
}

// piped is a program in a sandbox that is joined to the standard streams here.
type piped struct {
	cmd     *cobra.Command
	a       *client.Attached
	keys    <-chan []byte
	signals <-chan os.Signal
	taken   chan int      // bytes of input that have arrived
	refused chan struct{} // closed once the program takes no more
}

// send passes on input and signals until ctx ends. What it returns ends the
// command.
func (j *piped) send(ctx context.Context) error {
	untaken := 0
	keys := j.keys
	for {
		ready := keys
		if untaken+pieceSize > client.MaxUntaken {
			ready = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case s := <-j.signals:
			if err := j.signal(ctx, s); err != nil {
				return err
			}
			continue
		case n := <-j.taken:
			untaken -= n
			continue
		case <-j.refused:
			keys, j.refused = nil, nil
			continue
		case piece, more := <-ready:
			var err error
			if more {
				err = j.a.Input(ctx, piece)
			} else {
				keys = nil
				err = j.a.EndInput(ctx)
			}
			if err != nil {
				return err
			}
			untaken += len(piece)
		}
	}
}

// signal passes on an interrupt. The others end the command.
func (j *piped) signal(ctx context.Context, s os.Signal) error {
	switch s {
	case os.Interrupt:
		return j.a.Signal(ctx, "INT")
	case syscall.SIGPIPE: // the write that it is about fails
		return nil
	}
	return context.Canceled
}

// receive shows what the program writes until it has ended.
func (j *piped) receive(ctx context.Context) (*client.Process, error) {
	refused := j.refused
	var last error // that the server told just now
	for {
		e, err := j.a.Next(ctx)
		if cause := context.Cause(ctx); err != nil && cause != nil {
			return nil, cause
		}
		if err != nil {
			return nil, cmp.Or(last, err)
		}
		last = nil
		switch e.Kind {
		case "":
			err = j.show(e)
		case "dropped":
			err = sandbox.Errorf(sandbox.Exhausted, "%d bytes of output are lost: they were not read here in time", e.Next-e.Offset)
		case "taken":
			select {
			case j.taken <- e.Bytes:
			case <-ctx.Done():
			}
		case "error":
			if refused != nil {
				close(refused) // what it was about did not arrive; others would not either
				refused = nil
			}
			last, err = j.failed(e)
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

// failed returns what an error of the server says, and whether that ends the
// command: not that the program has ended, or takes no input, of which it tells
// itself.
func (j *piped) failed(e client.AttachEvent) (told, err error) {
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

func (j *piped) show(e client.AttachEvent) error {
	out := j.cmd.OutOrStdout()
	if e.Stderr {
		out = j.cmd.ErrOrStderr()
	}
	_, err := out.Write(e.Output)
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
