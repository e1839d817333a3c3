package cli

import (
	"cmp"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

type execOptions struct {
	timeout   seconds
	input     bool
	tty       bool
	cwd, user string
	env       pairs
	detach    bool
	name      string
}

const execLong = `Run a program in a sandbox and show its output while it runs.

No shell is involved: the program gets each argument unchanged. For pipes and
variables of the sandbox run a shell: exec SANDBOX bash -c '...'.

The exit code is the program's. Some codes have a meaning of their own: 127 when the
program does not exist, 124 when it ran longer than --timeout, 128 plus the number of
the signal that ended it, 130 after Ctrl-C, which ends the program too. 125 means that
this command itself failed.

Output is shown byte by byte. A lost connection is made again without loss of output,
also after a restart of the server. When the sandbox is paused meanwhile, this command
ends with 125 and names the process, which continues when the sandbox resumes.

The time is not limited unless --timeout sets a limit.

With -i the program reads standard input while it runs, to its end. Ctrl-C
is then a SIGINT for the program, and Ctrl-\ ends it. It ends with this command.
Input that was on its way when a connection broke is sent again, and read once.

With -t the program has a terminal of the same size as the local one; with -it it gets
every key as it is typed, Ctrl-C too. It ends with this command.

With --detach it prints the ID of a process that keeps running; see ps, logs and kill.`

func (a *app) execCommand() *cobra.Command {
	o := execOptions{env: pairs{getenv: a.getenv}}
	cmd := &cobra.Command{
		Use:   "exec [FLAGS] SANDBOX [--] PROGRAM [ARGUMENT...]",
		Short: "Run a program in a sandbox",
		Long:  execLong,
		Example: `  cloud-sandbox exec my-agent ls -la /workspace
  cloud-sandbox exec --cwd /tmp my-agent bash -c 'ps aux | wc -l'
  tar c src | cloud-sandbox exec -i my-agent tar x
  cloud-sandbox exec -it my-agent bash
  cloud-sandbox exec --json my-agent -- git status --short
  cloud-sandbox exec --detach --name web my-agent python3 -m http.server 8000`,
		Args:        cobra.ArbitraryArgs, // check reports wrong arguments
		Annotations: map[string]string{runsCode: "yes"},
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			id, program, err := o.check(args)
			if err != nil {
				return err
			}
			if o.tty && wantsJSON(cmd) && !o.detach {
				return usagef("--json and --tty exclude each other: leave one out")
			}
			if o.tty {
				o.setTerm(cmp.Or(a.getenv("TERM"), "xterm-256color"))
			}
			if o.tty && !o.detach {
				return o.terminal(cmd, c, id, program)
			}
			if o.input && !o.detach && !wantsJSON(cmd) {
				return o.pipe(cmd, c, id, program)
			}
			var stdin []byte
			if o.input {
				if stdin, err = readAll(cmd.InOrStdin(), "standard input"); err != nil {
					return err
				}
			}
			if o.detach {
				return o.start(cmd, c, id, program, stdin)
			}
			return o.run(cmd, c, id, program, stdin)
		}),
		ValidArgsFunction: a.firstSandbox,
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // arguments after the sandbox are the program's
	f.Var(&o.timeout, "timeout", "time limit of the program (default none)")
	f.VarP(&o.env, "env", "e", "set an environment variable; KEY alone copies the local variable")
	f.StringVar(&o.cwd, "cwd", "", "folder in the sandbox to run in")
	f.StringVar(&o.user, "user", "", "user in the sandbox to run as")
	f.BoolVarP(&o.input, "stdin", "i", false, "give the program standard input as it comes; with --json or --detach all of it at first, at most 1 MiB")
	f.BoolVarP(&o.tty, "tty", "t", false, "give the program a terminal")
	f.BoolVarP(&o.detach, "detach", "d", false, "start it, print its ID, and leave it running")
	f.StringVar(&o.name, "name", "", "name of the process, with --detach")
	clientFlags(cmd)
	return cmd
}

// sandboxAndProgram splits arguments; program may be empty.
func sandboxAndProgram(args []string) (id string, program []string, err error) {
	if len(args) == 0 || args[0] == "" {
		return "", nil, usagef("name a SANDBOX; `cloud-sandbox ls` lists them")
	}
	id, program = args[0], args[1:]
	switch {
	case len(program) > 0 && program[0] == "--":
		program = program[1:]
	case len(program) > 0 && strings.HasPrefix(program[0], "-"):
		return "", nil, usagef("%s is after the SANDBOX, where the program begins: write flags before the SANDBOX", program[0])
	}
	return id, program, nil
}

// check returns the sandbox and the program.
func (o *execOptions) check(args []string) (id string, program []string, err error) {
	id, program, err = sandboxAndProgram(args)
	switch {
	case err != nil:
	case len(program) == 0 || program[0] == "":
		err = usagef("no program to run in %s: write exec SANDBOX PROGRAM [ARGUMENT...]", id)
	case o.name != "" && !o.detach:
		err = usagef("--name needs --detach")
	}
	return id, program, err
}

// run runs a program to its end.
func (o *execOptions) run(cmd *cobra.Command, c *client.Client, id string, program []string, stdin []byte) error {
	return execute(cmd, c, client.ExecuteRequest{ExecuteRequest: v1.ExecuteRequest{
		Target: v1.Target{SandboxID: id}, Code: "exec -- " + quote(program), Language: "bash", Stdin: v1.StdinOf(stdin),
		TimeoutSeconds: new(v1.SecondsOrNone(o.timeout.duration())), Env: o.env.values, Cwd: o.cwd, User: o.user,
	}}, &results{})
}

// setTerm sets the program's TERM, unless --env does.
func (o *execOptions) setTerm(kind string) {
	if _, said := o.env.values["TERM"]; !said {
		_ = o.env.Set("TERM=" + kind)
	}
}

// terminal runs a program in a terminal to its end.
func (o *execOptions) terminal(cmd *cobra.Command, c *client.Client, id string, program []string) error {
	t := openTerminal(cmd.InOrStdin())
	size := t.size()
	s := &session{cmd: cmd, client: c, sandbox: id, terminal: t, deaf: !o.input, ends: true}
	return s.begin(v1.StartProcessRequest{
		Target: v1.Target{SandboxID: id}, Command: "exec -- " + quote(program), Background: true, PTY: &size,
		TimeoutSeconds: v1.SecondsOf(o.timeout.duration()), Env: o.env.values, Cwd: o.cwd, User: o.user,
	})
}

// start starts a program in the background.
func (o *execOptions) start(cmd *cobra.Command, c *client.Client, id string, program []string, stdin []byte) error {
	argv, command := program, ""
	if !utf8.ValidString(strings.Join(program, "")) {
		argv, command = nil, "exec -- "+quote(program)
	}
	var pty *v1.TerminalSize
	if o.tty {
		pty = new(openTerminal(cmd.InOrStdin()).size())
	}
	p, err := c.Start(cmd.Context(), v1.StartProcessRequest{
		Target: v1.Target{SandboxID: id}, Argv: argv, Command: command, Background: true, Name: o.name, Stdin: v1.StdinOf(stdin), PTY: pty,
		TimeoutSeconds: v1.SecondsOf(o.timeout.duration()), Env: o.env.values, Cwd: o.cwd, User: o.user,
	})
	if err != nil {
		return err
	}
	return printMade(cmd, p, p.ID)
}
