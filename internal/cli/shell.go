package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

type shellOptions struct {
	cwd, user, name string
	attach          string
	env             pairs
	keep            bool
}

func (a *app) shellCommand() *cobra.Command {
	o := shellOptions{env: pairs{getenv: a.getenv}}
	cmd := &cobra.Command{
		Use:   "shell [FLAGS] SANDBOX [[--] PROGRAM [ARGUMENT...]]",
		Short: "Open a terminal in a sandbox",
		Long: `Open a terminal in a sandbox: a login shell, or PROGRAM. It gets keys as they are
typed, Ctrl-C too, and has the size of the local terminal. It ends with the
connection, unless --keep is given; a lost connection is made again.

With --keep, and with --attach, Ctrl-] detaches and leaves it running. --attach PROCESS
opens the terminal of a running process, by its ID or name. Several users may attach at
once: all see the same output and can type.

The exit code is the program's; 125 means that this command itself failed.`,
		Example: `  cloud-sandbox shell my-agent
  cloud-sandbox shell --user root --cwd /etc my-agent
  cloud-sandbox shell my-agent python3
  cloud-sandbox shell --keep --name work my-agent
  cloud-sandbox shell --attach work my-agent`,
		Args:        cobra.ArbitraryArgs, // check reports wrong arguments
		Annotations: map[string]string{runsCode: "yes"},
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return o.run(cmd, c, args, cmp.Or(a.getenv("TERM"), "xterm-256color"))
		}),
		ValidArgsFunction: a.firstSandbox,
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // arguments after the sandbox are the program's
	f.StringVar(&o.cwd, "cwd", "", "folder in the sandbox to begin in")
	f.StringVar(&o.user, "user", "", "user in the sandbox to be")
	f.StringVar(&o.name, "name", "", "name of the process, for --attach and logs")
	f.VarP(&o.env, "env", "e", "set an environment variable; KEY alone copies the local variable")
	f.BoolVar(&o.keep, "keep", false, "keep it running when the connection ends; Ctrl-] detaches")
	f.StringVar(&o.attach, "attach", "", "open the terminal of this process, by ID or name, instead of a new one")
	clientFlags(cmd)
	return cmd
}

// check returns the sandbox and the program.
func (o *shellOptions) check(args []string) (id string, program []string, err error) {
	id, program, err = sandboxAndProgram(args)
	switch {
	case err != nil:
	case o.attach == "":
	case len(program) > 0 || o.cwd != "" || o.user != "" || o.name != "" || len(o.env.values) > 0:
		err = usagef("--attach opens a process that runs already: leave out the program, --cwd, --user, --name and --env")
	case o.keep:
		err = usagef("--attach always leaves the process running: leave out --keep")
	}
	return id, program, err
}

func (o *shellOptions) run(cmd *cobra.Command, c *client.Client, args []string, term string) error {
	id, program, err := o.check(args)
	if err != nil {
		return err
	}
	t := openTerminal(cmd.InOrStdin())
	s := &session{
		cmd: cmd, client: c, sandbox: id, terminal: t,
		leave: o.keep || o.attach != "", ends: !o.keep && o.attach == "",
	}
	if o.attach != "" {
		return s.enter(o.attach)
	}
	if _, ok := o.env.values["TERM"]; !ok {
		_ = o.env.Set("TERM=" + term)
	}
	size := t.size()
	return s.begin(v1.StartProcessRequest{
		Target: v1.Target{SandboxID: id}, Argv: program, Name: o.name, User: o.user, Cwd: o.cwd, Env: o.env.values,
		Background: true, PTY: &size,
	})
}

// session joins the local terminal to one in a sandbox.
type session struct {
	cmd      *cobra.Command
	client   *client.Client
	sandbox  string
	process  string // its ID
	terminal *terminal
	leave    bool // Ctrl-] leaves it
	deaf     bool // typed input does not go to it
	ends     bool // the process ends with this command

	next int64 // offset of the next output
}

// context returns a context that ends with the command, and when the local terminal
// is closed.
func (s *session) context() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(s.cmd.Context(), syscall.SIGHUP)
}

// begin starts a process and joins the terminals until it ends.
func (s *session) begin(r v1.StartProcessRequest) error {
	ctx, stop := s.context()
	defer stop()
	p, err := s.client.Start(ctx, r)
	if err != nil {
		return err
	}
	s.process = p.ID
	return s.run(ctx)
}

// enter joins the terminal of an existing process.
func (s *session) enter(process string) error {
	ctx, stop := s.context()
	defer stop()
	if err := s.find(ctx, process); err != nil {
		return err
	}
	return s.run(ctx)
}

// replay is the most earlier output that is shown, in bytes.
const replay = 64 << 10

func (s *session) find(ctx context.Context, process string) error {
	p, err := s.client.GetProcess(ctx, s.sandbox, process)
	if err != nil {
		return err
	}
	if p.PTY == nil {
		return sandbox.Errorf(sandbox.Invalid, "%s has no terminal: `cloud-sandbox logs` shows its output", process)
	}
	s.process, s.next = p.ID, -replay
	return nil
}

// errLeft means that the user left and the process keeps running.
var errLeft = errors.New("left")

// run joins the terminals until the process ends, and returns its exit code.
func (s *session) run(ctx context.Context) error {
	var p *v1.Process
	err := s.typed(ctx, func(in *input) (err error) {
		p, err = s.hold(ctx, in)
		return err
	})
	switch {
	case errors.Is(err, errLeft):
		fmt.Fprintf(s.cmd.ErrOrStderr(), "\nit keeps running: cloud-sandbox shell --attach %s %s\n", clean(s.process), clean(s.sandbox))
		return nil
	case err != nil:
		if s.ends {
			endProcess(ctx, s.cmd, s.client, s.sandbox, s.process)
		}
		return err
	}
	return exitOf(s.cmd, *p)
}

// typed calls join while the terminal is raw and its keys are read.
func (s *session) typed(ctx context.Context, join func(*input) error) error {
	if s.leave && s.terminal.is {
		fmt.Fprintln(s.cmd.ErrOrStderr(), "Ctrl-] leaves it running")
	}
	resized, unwatch := s.terminal.watchSize()
	defer unwatch()
	if s.deaf {
		return join(&input{resized: resized})
	}
	if err := s.terminal.raw(); err != nil {
		return err
	}
	defer s.terminal.restore()
	keys, stop, err := s.terminal.keys()
	if err != nil {
		return err
	}
	defer stop()
	return join(&input{keys: keys, resized: resized})
}

// exitOf returns an error with the exit code of a process.
func exitOf(cmd *cobra.Command, p v1.Process) error {
	if p.Error != nil && p.Status != "ok" && p.Status != "error" {
		fmt.Fprintf(cmd.ErrOrStderr(), "cloud-sandbox: %s\n", clean(p.Error.Message))
	}
	return ended(v1.ExecuteResult{Status: p.Status, ExitCode: p.Exit()})
}

// input is the user's input.
type input struct {
	keys    <-chan []byte // nil after its end, and without any input
	resized <-chan struct{}
	over    int // how often the process must still be sent the end of keys
}

// hold attaches to the process, and reattaches when the connection is lost. It
// returns the process once that has ended.
func (s *session) hold(ctx context.Context, in *input) (*v1.Process, error) {
	var p *v1.Process
	err := retry(ctx, func() (came bool, err error) {
		a, err := s.client.Attach(ctx, s.sandbox, s.process, client.AttachOptions{From: s.next})
		if err != nil {
			return false, err
		}
		defer a.Close()
		p, err = s.join(ctx, a, in)
		return true, err
	}, func(failed int) {
		if failed == 1 {
			fmt.Fprint(s.cmd.ErrOrStderr(), "\r\n[the connection is lost, trying again]\r\n")
		}
	})
	return p, err
}

// join copies bytes both ways until one side has ended.
func (s *session) join(ctx context.Context, a *client.Attached, in *input) (*v1.Process, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel(nil)
	sending.Go(func() {
		if err := s.send(ctx, a, in); err != nil {
			cancel(err)
		}
	})
	p, err := s.receive(ctx, a)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause // of send, or the end of the command
	}
	return p, err
}

// receive shows the process's output until it has ended.
func (s *session) receive(ctx context.Context, a *client.Attached) (*v1.Process, error) {
	for {
		e, err := a.Next(ctx)
		if err != nil {
			return nil, err
		}
		switch {
		case e.Type == "":
			if _, err := s.cmd.OutOrStdout().Write(e.Output); err != nil {
				return nil, err
			}
			s.next += int64(len(e.Output))
		case e.Type == "start":
			s.next = e.Offset
		case e.Type == "dropped":
			s.next = e.Next
		case e.Type == "error" && e.Error != nil:
			if e.Error.Code == sandbox.Unavailable || e.Error.Code == sandbox.Conflict {
				continue // the end of the connection, or of the process, follows
			}
			fmt.Fprintf(s.cmd.ErrOrStderr(), "\r\ncloud-sandbox: %s\r\n", clean(e.Error.Message))
		case e.Type == "end" && e.Process != nil:
			return e.Process, nil
		}
	}
}

// leaveKey is Ctrl-].
const leaveKey = 0x1d

// The end of input is a key, Ctrl-D. A terminal loses it while its program changes
// the input mode, as a shell does when it starts. So it is sent up to endings times,
// one each endingPace, until the program ends.
const (
	endings    = 10
	endingPace = time.Second
)

// send passes on keys and the size of the terminal until ctx ends. It returns errLeft
// when the user leaves.
func (s *session) send(ctx context.Context, a *client.Attached, in *input) error {
	if s.terminal.is {
		if err := a.Resize(ctx, s.terminal.size()); err != nil {
			return err
		}
	}
	var again <-chan time.Time
	for {
		if in.over > 0 && again == nil {
			if err := a.EndInput(ctx); err != nil {
				return err
			}
			in.over--
			again = time.After(endingPace)
		}
		select {
		case <-again:
			again = nil
		case <-ctx.Done():
			return nil
		case <-in.resized:
			if err := a.Resize(ctx, s.terminal.size()); err != nil {
				return err
			}
		case keys, more := <-in.keys:
			if !more {
				in.keys, in.over = nil, endings
				continue
			}
			if at := bytes.IndexByte(keys, leaveKey); at >= 0 && s.leave && s.terminal.is {
				return errLeft
			}
			if err := a.Input(ctx, keys); err != nil {
				return err
			}
		}
	}
}
