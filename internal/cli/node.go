package cli

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

const (
	// drainLook is the interval at which drain looks at its progress.
	drainLook = time.Second
	// drainQuiet is how long a node must be empty: creates that were placed before the
	// schedulers knew of the drain may still arrive.
	drainQuiet = 6 * time.Second
)

// NodeCommand returns the command node. local are further commands, which work on this
// machine.
func NodeCommand(getenv func(string) string, local ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Manage the nodes of a cluster, for operators",
		Long: `Manage the nodes of a cluster, for operators.

A node that drains gets no new sandboxes, and those on it move to other nodes with
their memory. Stop the node's machine when nothing is left on it.

Declare a node lost when its machine is off for good. Its running sandboxes then go back
to their checkpoints, and start on other nodes from their copies in the blob store.`,
		Example: `  cloud-sandbox node ls
  cloud-sandbox node drain node-1
  cloud-sandbox node undrain node-1
  cloud-sandbox node lost node-1`,
	}
	n := nodeCommands{&app{getenv: getenv}}
	remote := []*cobra.Command{n.list(), n.drain(), n.undrain(), n.lost()}
	for _, c := range remote {
		clientFlags(c)
	}
	cmd.AddCommand(append(remote, local...)...)
	return cmd
}

type nodeCommands struct{ *app }

func (n *nodeCommands) list() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List nodes, by name",
		Example: `  cloud-sandbox node ls
  cloud-sandbox node ls --json | jq -r '.[] | select(.draining) | .name'`,
		Args: Args(0, 0, "no arguments"),
		RunE: n.with(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			all, err := c.Nodes(cmd.Context())
			if err != nil {
				return err
			}
			if wantsJSON(cmd) {
				return printJSON(cmd, all)
			}
			t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
			fmt.Fprintln(t, "NODE\tSTATE\tSANDBOXES\tMEMORY FREE\tDISK FREE")
			for _, one := range all {
				memory, disk := "-", "-"
				if h := one.Host; h != nil {
					memory, disk = fmt.Sprintf("%d of %d MiB", h.MemoryFreeMB, h.MemoryMB), fmt.Sprintf("%d of %d MiB", h.DiskFreeMB, h.DiskMB)
				}
				fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\n", one.Name, nodeState(one), one.Sandboxes, memory, disk)
			}
			return t.Flush()
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
}

// nodeState describes a node in a word or sentence.
func nodeState(n v1.NodeDetails) string {
	switch {
	case n.Lost:
		return "lost"
	case n.Draining:
		return "draining"
	case !n.Ready:
		return "not ready: " + strings.Join(n.Reasons, "; ")
	case n.Full:
		return "full"
	}
	return "ready"
}

func (n *nodeCommands) drain() *cobra.Command {
	var wait, volumes bool
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Move the sandboxes of a node to other nodes",
		Long: `Move the sandboxes of a node to other nodes, with their memory, processes and files.
Each of them stands still while it moves, and requests to it wait. Without other nodes
with room they keep running on the node. Kept snapshots move too. A snapshot with a
copy in S3 stays: sandboxes start elsewhere from the copy. Volumes stay: sandboxes elsewhere use them,
and wait for the node while it is away.

With --volumes, volumes move too, for a node that will not come back: each once only
paused sandboxes mount it, one after the other. Starts of sandboxes that mount one, and
calls to its files, are answered with 503 while it moves.

The command prints the numbers of the rest as they change. It ends when no sandbox is
left, no kept snapshot without a copy in S3, and with --volumes no volume. If you
interrupt it, the drain continues, also after a restart of the node, until "node undrain".`,
		Example: `  cloud-sandbox node drain node-1
  cloud-sandbox node drain node-1 --wait=false
  cloud-sandbox node drain node-1 --volumes`,
		Args:              Args(1, 1, "one NODE"),
		ValidArgsFunction: n.complete,
	}
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until all that moves has left the node")
	cmd.Flags().BoolVar(&volumes, "volumes", false, "move the volumes of the node too")
	cmd.RunE = n.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
		node, err := c.SetDraining(cmd.Context(), args[0], true, volumes)
		if err != nil {
			return err
		}
		if wait {
			if node, err = awaitDrain(cmd, c, node); err != nil {
				return err
			}
		}
		done := "is drained"
		if !wait {
			done = "drains"
		}
		return Print(cmd, node, fmt.Sprintf("%s %s: %s", node.Name, done, leftOn(node)))
	})
	return cmd
}

// awaitDrain waits until nothing that moves has been on a node for drainQuiet, and prints
// its progress to the error output.
func awaitDrain(cmd *cobra.Command, c *client.Client, node v1.NodeDetails) (_ v1.NodeDetails, err error) {
	said, busy := "", time.Now()
	for time.Since(busy) < drainQuiet {
		if r := node.Records; r.Running+r.Paused+r.UncopiedSnapshots > 0 || node.MoveVolumes && r.Volumes > 0 {
			busy = time.Now()
			if now := leftOn(node); now != said {
				said = now
				fmt.Fprintf(cmd.ErrOrStderr(), "%s drains: %s\n", node.Name, said)
			}
		}
		select {
		case <-time.After(drainLook):
		case <-cmd.Context().Done():
			return node, cmd.Context().Err()
		}
		if node, err = c.Node(cmd.Context(), node.Name); err != nil {
			return node, err
		}
		if !node.Draining {
			return node, fmt.Errorf("%s does not drain any more: another operator stopped that", node.Name)
		}
	}
	return node, nil
}

// leftOn says what is left on a node.
func leftOn(n v1.NodeDetails) string {
	r := n.Records
	return fmt.Sprintf("%d running and %d paused sandboxes, %d kept snapshots (%d without a copy in S3) and %d volumes are on it",
		r.Running, r.Paused, r.Snapshots, r.UncopiedSnapshots, r.Volumes)
}

func (n *nodeCommands) undrain() *cobra.Command {
	return &cobra.Command{
		Use:     "undrain NODE",
		Short:   "Let a node take sandboxes again",
		Example: `  cloud-sandbox node undrain node-1`,
		Args:    Args(1, 1, "one NODE"),
		RunE: n.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			node, err := c.SetDraining(cmd.Context(), args[0], false, false)
			if err != nil {
				return err
			}
			return Print(cmd, node, node.Name+" takes sandboxes again")
		}),
		ValidArgsFunction: n.complete,
	}
}

func (n *nodeCommands) lost() *cobra.Command {
	var undo bool
	cmd := &cobra.Command{
		Use:   "lost NODE",
		Short: "Declare that the machine of a node is off",
		Long: `Declare that the machine of a node is off, and that nothing runs on it any more.
Its running sandboxes go back to their last checkpoint, or end with node_lost if they
have none. From then on they start on other nodes, if the node had copied their state to
the blob store. Paused sandboxes do so without this command. Sandboxes with volumes of
the node wait for it.

Turn the machine off first. Otherwise a sandbox may run twice: the node cannot be
asked to stop it. A node that fences itself is declared lost without this command, some
two minutes after it fell silent. The command is refused while the node renews its lease, for some 15
seconds after its end. A node that comes back is no longer lost. --undo brings nothing
back that has ended or gone back to a checkpoint.`,
		Example: `  cloud-sandbox node lost node-1
  cloud-sandbox node lost node-1 --undo`,
		Args:              Args(1, 1, "one NODE"),
		ValidArgsFunction: n.complete,
	}
	cmd.Flags().BoolVar(&undo, "undo", false, "take the declaration back")
	cmd.RunE = n.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
		node, err := c.SetLost(cmd.Context(), args[0], !undo)
		if err != nil {
			return err
		}
		if undo {
			return Print(cmd, node, node.Name+" is not declared lost")
		}
		return Print(cmd, node, fmt.Sprintf("%s is lost: %s", node.Name, leftOn(node)))
	})
	return cmd
}

// complete completes the name of a node.
func (n *nodeCommands) complete(cmd *cobra.Command, given []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(given) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return n.suggest(cmd, given, begun, func(ctx context.Context, c *client.Client) (all []suggestion, err error) {
		list, err := c.Nodes(ctx)
		for _, one := range list {
			all = append(all, suggestion{one.Name, nodeState(one)})
		}
		return all, err
	})
}
