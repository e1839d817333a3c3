package cli

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

type logsOptions struct {
	follow bool
	from   int64
	tail   int64
	stream string
}

func (a *app) logsCommand() *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{
		Use:   "logs SANDBOX [PROCESS]",
		Short: "Show the output of a process",
		Long: `Show the output of a process, from its beginning or from any byte, and with --follow
also new output until the process ends. PROCESS is an ID or a name, see ps; the
default is the process that was started last. A lost connection is made again without
loss of output.

For an ended sandbox it shows the last output that was kept.`,
		Example: `  cloud-sandbox logs my-agent web
  cloud-sandbox logs my-agent web --follow --tail 4096
  cloud-sandbox logs my-agent --stream stderr
  cloud-sandbox logs my-agent web --from 1048576 --json`,
		Args: Args(1, 2, "a SANDBOX and at most one PROCESS"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return o.run(cmd, c, args)
		}),
		ValidArgsFunction: a.sandboxAndProcess,
	}
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "show new output until the process ends")
	f.Int64Var(&o.from, "from", 0, "begin at this byte of its output")
	f.Int64Var(&o.tail, "tail", 0, "begin with this many bytes before the end")
	f.StringVar(&o.stream, "stream", "", "only this stream: stdout or stderr")
	_ = cmd.RegisterFlagCompletionFunc("stream", cobra.FixedCompletions([]string{"stdout", "stderr"}, cobra.ShellCompDirectiveNoFileComp))
	clientFlags(cmd)
	return cmd
}

func (o *logsOptions) check() error {
	switch {
	case o.from < 0 || o.tail < 0:
		return usagef("--from and --tail are numbers of bytes, 0 or more")
	case o.from > 0 && o.tail > 0:
		return usagef("--from and --tail both say where to begin: leave one out")
	case o.stream != "" && o.stream != "stdout" && o.stream != "stderr":
		return usagef("--stream must be stdout or stderr")
	}
	return nil
}

func (o *logsOptions) run(cmd *cobra.Command, c *client.Client, args []string) error {
	if err := o.check(); err != nil {
		return err
	}
	id, process := args[0], ""
	if len(args) > 1 {
		process = args[1]
	} else {
		s, err := c.Get(cmd.Context(), id)
		if err != nil {
			return err
		}
		if s.Ended != nil {
			return printTail(cmd, s)
		}
		if process, err = newest(cmd, c, id); err != nil {
			return err
		}
	}
	return o.show(cmd, c, id, process)
}

// printTail shows the end of an ended sandbox's output.
func printTail(cmd *cobra.Command, s v1.Sandbox) error {
	if wantsJSON(cmd) {
		return printJSON(cmd, s)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "the sandbox ended (%s); the last of its output:\n", clean(string(s.Ended.Cause)))
	if s.Ended.OutputTail == nil {
		return nil
	}
	_, err := io.WriteString(cmd.OutOrStdout(), *s.Ended.OutputTail)
	return err
}

// newest returns the process that was started last, and prints its name.
func newest(cmd *cobra.Command, c *client.Client, id string) (string, error) {
	list, err := c.Processes(cmd.Context(), id)
	if err != nil {
		return "", err
	}
	if len(list) == 0 {
		return "", sandbox.Errorf(sandbox.NotFound, "no process was started in %s: `cloud-sandbox exec --detach %s PROGRAM` starts one", id, id)
	}
	p := list[len(list)-1]
	fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", row(p.ID), row(p.Command))
	return p.ID, nil
}

// show prints the output of a process.
func (o *logsOptions) show(cmd *cobra.Command, c *client.Client, id, process string) error {
	next := o.from
	if o.tail > 0 {
		next = -o.tail
	}
	write := printOutput(cmd)
	return retry(cmd.Context(), func() (came bool, err error) {
		_, err = c.Output(cmd.Context(), id, process, next, o.follow, o.stream, func(e v1.OutputEvent) error {
			if err := write(e); err != nil {
				return err
			}
			came, next = true, e.Next
			return nil
		})
		return came, err
	}, func(int) {})
}

// printOutput returns a function that writes events to the command's output: bytes to
// the stream that they come from, or with --json one line for each.
func printOutput(cmd *cobra.Command) func(v1.OutputEvent) error {
	if wantsJSON(cmd) {
		lines := json.NewEncoder(cmd.OutOrStdout())
		lines.SetEscapeHTML(false)
		return func(e v1.OutputEvent) error { return lines.Encode(e) }
	}
	return func(e v1.OutputEvent) error {
		var err error
		switch e.Event {
		case "stderr":
			_, err = cmd.ErrOrStderr().Write(e.Bytes())
		case "dropped":
			_, err = fmt.Fprintf(cmd.ErrOrStderr(), "[%d bytes are not kept]\n", e.Next-e.Offset)
		default:
			_, err = cmd.OutOrStdout().Write(e.Bytes())
		}
		return err
	}
}
