// Command cloud-sandbox turns a Linux machine into a private code-execution
// cloud. It is server and command line in one program. On other systems, and with
// the build tag client, it is the command line alone.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/cli"
)

// version is set by the build.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	cmd, err := root().ExecuteContextC(ctx)
	stop()
	if printedItself(err) {
		os.Exit(1)
	}
	if code := cli.Report(cmd, err); code != 0 {
		os.Exit(code)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "cloud-sandbox",
		Short:         "Run untrusted code, strongly isolated, in milliseconds",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.PersistentFlags().String("data", "", "folder that keeps everything (default /var/lib/cloud-sandbox; environment CLOUD_SANDBOX_DATA)")
	cmd.AddGroup(
		&cobra.Group{ID: cli.GroupID, Title: "Use sandboxes, here or on another machine:"},
		&cobra.Group{ID: serverGroup, Title: "Run a server, on this machine:"},
	)
	cmd.SetFlagErrorFunc(cli.FlagError)
	cmd.AddCommand(cli.Commands(os.Getenv)...)
	for _, c := range []*cobra.Command{keyCommand(), templateCommand(), tenantCommand(), nodeCommand(), benchCommand()} { // these differ by build
		c.GroupID = cli.GroupID
		cmd.AddCommand(c)
	}
	server := append(serverCommands(), auditCommand())
	for _, c := range server {
		c.GroupID = serverGroup
	}
	cmd.AddCommand(server...)
	cli.Strict(cmd)
	return cmd
}

// serverGroup is the group of the commands that work on this machine alone.
const serverGroup = "server"

// onServer are the commands of serverGroup that need the server's own parts, which
// only run on Linux.
var onServer = []string{"serve", "doctor", "down", "token", "trust", "builds", "secrets", "cluster"}
