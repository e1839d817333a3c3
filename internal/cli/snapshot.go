package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

func (a *app) snapshotCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Take, list, delete, export and import snapshots",
		Long: `Take, list, delete, export and import snapshots: the saved state of a sandbox, from which any
number of others start (create --snapshot) and to which it goes back (rollback).
They stay until they are deleted, also when the sandbox has ended.`,
		Example: `  cloud-sandbox snapshot create my-agent --name before-refactoring
  cloud-sandbox snapshot ls
  cloud-sandbox snapshot rm s7d0f4w2kq9x1m5a8z3c6
  cloud-sandbox snapshot export s7d0f4w2kq9x1m5a8z3c6 -o monday.snapshot`,
	}
	cmd.AddCommand(a.takeSnapshotCommand(), a.listSnapshotsCommand(), a.deleteSnapshotsCommand(), a.exportCommand(), a.importCommand())
	clientFlags(cmd)
	return cmd
}

func (a *app) takeSnapshotCommand() *cobra.Command {
	var name string
	var filesOnly bool
	cmd := &cobra.Command{
		Use:   "create SANDBOX",
		Short: "Save a sandbox without stopping it, and print the snapshot's ID",
		Example: `  cloud-sandbox snapshot create my-agent
  cloud-sandbox snapshot create my-agent --name before-refactoring`,
		Args: Args(1, 1, "one SANDBOX"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			s, err := c.TakeSnapshot(cmd.Context(), args[0], name, filesOnly)
			if err != nil {
				return err
			}
			return printMade(cmd, s, s.ID)
		}),
		ValidArgsFunction: a.firstSandbox,
	}
	cmd.Flags().StringVar(&name, "name", "", "name it")
	cmd.Flags().BoolVar(&filesOnly, "files-only", false, "leave memory and programs out")
	return cmd
}

func (a *app) listSnapshotsCommand() *cobra.Command {
	var limit int
	var quiet bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List snapshots, newest first",
		Example: `  cloud-sandbox snapshot ls
  cloud-sandbox snapshot ls --json | jq '.[].size_bytes'`,
		Args: Args(0, 0, "no arguments"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			if limit < 0 {
				return usagef("--limit must be 0 or more")
			}
			list, err := c.Snapshots(cmd.Context(), limit)
			if err != nil {
				return err
			}
			return printSnapshots(cmd, list, quiet)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().IntVar(&limit, "limit", 0, "at most this many (default all)")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print IDs only")
	return cmd
}

func printSnapshots(cmd *cobra.Command, list []v1.Snapshot, quiet bool) error {
	if wantsJSON(cmd) {
		return printAll(cmd, list)
	}
	t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
	if !quiet {
		fmt.Fprintln(t, "SNAPSHOT\tNAME\tSANDBOX\tCREATED\tSIZE\tHOLDS\tUSES")
	}
	for _, s := range list {
		if quiet {
			fmt.Fprintln(t, row(s.ID))
			continue
		}
		fmt.Fprintln(t, row(s.ID, s.Name, s.SandboxID, brief(time.Since(s.CreatedAt))+" ago", mebibytes(s.SizeBytes), holds(s), fmt.Sprint(s.Uses)))
	}
	return t.Flush()
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

func holds(s v1.Snapshot) string {
	if s.Memory {
		return "memory, files"
	}
	return "files"
}

func (a *app) deleteSnapshotsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "rm SNAPSHOT...",
		Aliases: []string{"delete"},
		Short:   "Delete snapshots that no sandbox is paused in",
		Example: `  cloud-sandbox snapshot rm s7d0f4w2kq9x1m5a8z3c6
  cloud-sandbox snapshot ls -q | xargs -r cloud-sandbox snapshot rm`,
		Args: Args(1, -1, "one SNAPSHOT or more"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			for _, id := range args {
				s, err := c.DeleteSnapshot(cmd.Context(), id)
				if err != nil {
					return fmt.Errorf("%s: %w", id, err)
				}
				if err := printMade(cmd, s, s.ID); err != nil {
					return err
				}
			}
			return nil
		}),
		ValidArgsFunction: a.snapshotIDs,
	}
	return cmd
}

func (a *app) rollbackCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollback SANDBOX SNAPSHOT",
		Short: "Put a sandbox back into the state of a snapshot",
		Long: `Put a sandbox back into the state of a snapshot in its history, by the snapshot's ID
or name. The present state is lost, unless you take a snapshot of it first.`,
		Example: `  cloud-sandbox rollback my-agent before-refactoring
  cloud-sandbox rollback my-agent s7d0f4w2kq9x1m5a8z3c6`,
		Args: Args(2, 2, "a SANDBOX and a SNAPSHOT"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			s, err := c.Rollback(cmd.Context(), args[0], args[1])
			return changed(cmd, s, err)
		}),
		ValidArgsFunction: a.sandboxAndSnapshot,
	}
	clientFlags(cmd)
	return cmd
}

func (a *app) historyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "history SANDBOX",
		Short: "Draw the snapshots of a sandbox as a tree",
		Long: `Draw the snapshots of a sandbox, and the snapshots that it came from, as a tree. The
mark * is at the snapshot that it is paused in, or continues from.`,
		Example: `  cloud-sandbox history my-agent
  cloud-sandbox history my-agent --json | jq '.[].parent_id'`,
		Args: Args(1, 1, "one SANDBOX"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			list, err := c.History(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if wantsJSON(cmd) {
				return printSnapshots(cmd, list, false)
			}
			return drawTree(cmd.OutOrStdout(), list, time.Now())
		}),
		ValidArgsFunction: a.firstSandbox,
	}
	clientFlags(cmd)
	return cmd
}

// drawTree draws list, in which parents come before their children. An only child is
// drawn straight below its parent; branches are indented.
func drawTree(w io.Writer, list []v1.Snapshot, now time.Time) error {
	known, children := map[string]bool{}, map[string][]v1.Snapshot{}
	for _, s := range list {
		parent := s.ParentID
		if !known[parent] {
			parent = ""
		}
		known[s.ID] = true
		children[parent] = append(children[parent], s)
	}
	var b strings.Builder
	drawBranches(&b, children, children[""], "", now)
	_, err := io.WriteString(w, b.String())
	return err
}

func drawBranches(b *strings.Builder, children map[string][]v1.Snapshot, branches []v1.Snapshot, indent string, now time.Time) {
	for i, s := range branches {
		lead, below := indent, indent
		if len(branches) > 1 {
			lead, below = indent+"├─ ", indent+"│  "
			if i == len(branches)-1 {
				lead, below = indent+"└─ ", indent+"   "
			}
		}
		drawLine(b, lead, s, now)
		next := children[s.ID]
		for len(next) == 1 {
			drawLine(b, below, next[0], now)
			next = children[next[0].ID]
		}
		drawBranches(b, children, next, below, now)
	}
}

func drawLine(b *strings.Builder, lead string, s v1.Snapshot, now time.Time) {
	mark := "o"
	if s.Current {
		mark = "*"
	}
	name := strings.Map(oneLine, clean(s.Name))
	if name != "" {
		name = " " + name
	}
	fmt.Fprintf(b, "%s%s %s%s  %s ago, %s, %s\n", lead, mark, strings.Map(oneLine, clean(s.ID)), name, brief(now.Sub(s.CreatedAt)), mebibytes(s.SizeBytes), holds(s))
}
