package cli

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/mcp"
)

// mcpCommand serves MCP over its standard input and output.
func (a *app) mcpCommand() *cobra.Command {
	var n creation
	var tools, session string
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Give an agent sandboxes as tools: an MCP server over stdio",
		Long: `Give an agent sandboxes as tools: an MCP server over standard input and output.

Agents start it.

The first tool call that needs a sandbox creates it. The sandbox pauses when the agent
ends, and continues when the agent is started again in the same folder, or with the
same --session. Flags about new sandboxes apply when that sandbox is created.

A server offers the same tools over HTTP, at /mcp?tools=...&session=...`,
		Example: `  claude mcp add sandbox -- cloud-sandbox mcp
  codex mcp add sandbox -- cloud-sandbox mcp --session my-project
  cloud-sandbox mcp --tools claude --network none`,
		Args: cobra.NoArgs,
	}
	clientFlags(cmd)
	n.register(cmd)
	f := cmd.Flags()
	f.StringVar(&tools, "tools", string(mcp.Full), "which tools: full, or claude for the names and inputs of Claude Code's own")
	f.StringVar(&session, "session", "", "name of the sandbox that this agent returns to (default one for the working directory)")
	_ = cmd.RegisterFlagCompletionFunc("tools", cobra.FixedCompletions([]string{string(mcp.Full), string(mcp.Claude)}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		set, err := mcp.ParseSet(tools)
		if err != nil {
			return usageError{err}
		}
		if session == "" {
			if session, err = sessionHere(); err != nil {
				return err
			}
		}
		c, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		var o mcp.Options
		o.Create, _ = n.requested()
		o.Create.Name = session
		return mcp.ServeStdio(cmd.Context(), c, cmd.Root().Version, set, o, cmd.InOrStdin(), cmd.OutOrStdout())
	}
	return cmd
}

// sessionHere is the name of the session of an agent in the working directory.
func sessionHere() (string, error) {
	folder, err := os.Getwd()
	if err != nil {
		return "", err
	}
	machine, err := os.Hostname()
	if err != nil {
		return "", err
	}
	return mcp.NameFor(machine, folder), nil
}
