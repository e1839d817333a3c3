package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

// states are all states of a sandbox, for ls --all.
var states = []string{"starting", "running", "pausing", "paused", "resuming", "stopping", "ended"}

type listOptions struct {
	all, quiet bool
	states     []string
	metadata   pairs
	limit      int
}

func (a *app) listCommand() *cobra.Command {
	var o listOptions
	cmd := &cobra.Command{
		Use:     "ls [SANDBOX:PATH]",
		Aliases: []string{"list"},
		Short:   "List sandboxes, or files in one",
		Long: `List your sandboxes, newest first. Ended sandboxes are left out, unless --all or
--state asks for them. With SANDBOX:PATH list the files in a directory.`,
		Example: `  cloud-sandbox ls
  cloud-sandbox ls --all --metadata team=blue
  cloud-sandbox ls --json | jq -r '.[].sandbox_id'
  cloud-sandbox ls my-agent:/workspace`,
		Args: Args(0, 1, "at most one SANDBOX:PATH"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if len(args) > 0 {
				return o.files(cmd, c, args[0])
			}
			return o.sandboxes(cmd, c)
		}),
		ValidArgsFunction: a.remotePath,
	}
	f := cmd.Flags()
	f.BoolVarP(&o.all, "all", "a", false, "also sandboxes that have ended")
	f.StringSliceVar(&o.states, "state", nil, "only sandboxes in these states: "+strings.Join(states, ", "))
	f.Var(&o.metadata, "metadata", "only sandboxes with this label; may be given several times")
	f.IntVar(&o.limit, "limit", 0, "at most this many (default all)")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print IDs, or names of files, only")
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp))
	clientFlags(cmd)
	return cmd
}

func (o *listOptions) sandboxes(cmd *cobra.Command, c *client.Client) error {
	switch {
	case o.limit < 0:
		return usagef("--limit must be 0 or more")
	case o.all && len(o.states) > 0:
		return usagef("--all and --state exclude each other: leave one out")
	case o.all:
		o.states = states
	}
	list, err := c.List(cmd.Context(), o.states, o.metadata.values, o.limit)
	if err != nil {
		return err
	}
	if wantsJSON(cmd) {
		return printAll(cmd, list)
	}
	if o.quiet {
		for _, s := range list {
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), clean(s.ID)); err != nil {
				return err
			}
		}
		return nil
	}
	return printSandboxes(cmd.OutOrStdout(), list, time.Now())
}

func printSandboxes(w io.Writer, list []v1.Sandbox, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "SANDBOX\tNAME\tSTATE\tTEMPLATE\tCREATED\tENDS")
	for _, s := range list {
		state, ends := string(s.State), "in "+brief(s.Deadline.Sub(now))
		if s.Ended != nil {
			state, ends = state+" ("+string(s.Ended.Cause)+")", brief(now.Sub(s.Ended.At))+" ago"
		}
		if s.LostSeconds != nil && s.Ended == nil {
			state += " (lost " + brief(time.Duration(*s.LostSeconds*float64(time.Second))) + ")"
		}
		fmt.Fprintln(t, row(s.ID, s.Name, state, s.Template, brief(now.Sub(s.CreatedAt))+" ago", ends))
	}
	return t.Flush()
}

// row joins cells for a tabwriter; none can break the table.
func row(cells ...string) string {
	for i, cell := range cells {
		if cell = strings.Map(oneLine, clean(cell)); cell == "" {
			cell = "-"
		}
		cells[i] = cell
	}
	return strings.Join(cells, "\t")
}

func oneLine(r rune) rune {
	if r == '\n' || r == '\t' {
		return ' '
	}
	return r
}

// brief is a length of time with its largest unit, as "3m".
func brief(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return strconv.Itoa(int(d.Seconds())) + "s"
	case d < time.Hour:
		return strconv.Itoa(int(d.Minutes())) + "m"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + "h"
	}
	return strconv.Itoa(int(d.Hours()/24)) + "d"
}

func (o *listOptions) files(cmd *cobra.Command, c *client.Client, where string) error {
	p, err := parsePlace(where)
	if err != nil {
		return err
	}
	if p.local() {
		return usagef("%q names no directory of a sandbox: write SANDBOX:PATH, for example %s:/workspace", where, where)
	}
	if o.all || len(o.states) > 0 || len(o.metadata.values) > 0 || o.limit != 0 {
		return usagef("--all, --state, --metadata and --limit choose sandboxes, not files: leave them out")
	}
	list, err := c.ListFiles(cmd.Context(), p.sandbox, p.path)
	if err != nil {
		return err
	}
	if wantsJSON(cmd) {
		return printJSON(cmd, list)
	}
	t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	for _, e := range list.Entries {
		if o.quiet {
			fmt.Fprintln(t, row(e.Name))
			continue
		}
		name := e.Name
		switch e.Type {
		case "directory":
			name += "/"
		case "symlink":
			name += " -> " + e.SymlinkTarget
		}
		fmt.Fprintln(t, row(e.Mode, e.Owner, strconv.FormatInt(e.SizeBytes, 10), e.ModifiedAt.Local().Format(time.DateTime), name))
	}
	if err := t.Flush(); err != nil || !list.Truncated {
		return err
	}
	_, err = fmt.Fprintf(cmd.ErrOrStderr(), "more exist: these are the first %d\n", len(list.Entries))
	return err
}
