package cli

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

func (a *app) processesCommand() *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use:   "ps SANDBOX",
		Short: "List the processes that were started in a sandbox",
		Long: `List the processes that were started in a sandbox and run, or ended last: processes
of shell, exec --detach and the API. Processes of exec and run are listed until these
commands have got the result.`,
		Example: `  cloud-sandbox ps my-agent
  cloud-sandbox ps my-agent --json | jq '.[] | select(.state == "running")'`,
		Args: Args(1, 1, "one SANDBOX"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			list, err := c.Processes(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			switch {
			case wantsJSON(cmd):
				return printAll(cmd, list)
			case quiet:
				for _, p := range list {
					fmt.Fprintln(cmd.OutOrStdout(), clean(p.ID))
				}
				return nil
			}
			return printProcesses(cmd.OutOrStdout(), list, time.Now())
		}),
		ValidArgsFunction: a.firstSandbox,
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print IDs only")
	clientFlags(cmd)
	return cmd
}

// commandWidth is the width of a command in a table, in characters.
const commandWidth = 60

func printProcesses(w io.Writer, list []v1.Process, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "PROCESS\tNAME\tSTATE\tSTARTED\tOUTPUT\tCOMMAND")
	for _, p := range list {
		state := p.State
		if p.Status != "" {
			state += " (" + p.Status + ", " + strconv.Itoa(p.Exit()) + ")"
		}
		command := fmt.Sprintf("%.*s", commandWidth, p.Command)
		fmt.Fprintln(t, row(p.ID, p.Name, state, brief(now.Sub(p.StartedAt))+" ago", size(p.OutputEnd), command))
	}
	return t.Flush()
}

func (a *app) killCommand() *cobra.Command {
	var sig string
	cmd := &cobra.Command{
		Use:   "kill SANDBOX PROCESS...",
		Short: "End processes in a sandbox, or send them a signal",
		Long: `End processes and everything they started: SIGTERM, and SIGKILL a second later.
With --signal only that signal is sent, to the process and its group. PROCESS is an
ID or a name, see ps.`,
		Example: `  cloud-sandbox kill my-agent web
  cloud-sandbox kill --signal HUP my-agent web`,
		Args: Args(2, -1, "a SANDBOX and one PROCESS or more"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			var ended []v1.Process
			for _, process := range args[1:] {
				end := c.EndProcess
				if sig != "" {
					end = c.Signal(sig)
				}
				p, err := end(cmd.Context(), args[0], process)
				if err != nil {
					return fmt.Errorf("%s: %w", process, err)
				}
				ended = append(ended, p)
				if !wantsJSON(cmd) {
					fmt.Fprintln(cmd.OutOrStdout(), clean(p.ID))
				}
			}
			if wantsJSON(cmd) {
				return printAll(cmd, ended)
			}
			return nil
		}),
		ValidArgsFunction: a.sandboxAndProcess,
	}
	cmd.Flags().StringVarP(&sig, "signal", "s", "", "send only this signal, by name or number, without waiting")
	clientFlags(cmd)
	return cmd
}
