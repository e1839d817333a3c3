// Command cloud-sandbox turns a Linux machine into a private code-execution
// cloud. It is server and command line in one program.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve"
)

// version is set by the build.
var version = "dev"

func main() {
	ctx, stop := launch.Signals(context.Background())
	cmd, err := root().ExecuteContextC(ctx)
	stop()
	if err != nil && errors.Is(err, launch.ErrServer) { // it has told its error itself
		os.Exit(1)
	}
	if code := cli.Report(cmd, err); code != 0 {
		os.Exit(code)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "cloud-sandbox",
		Short:         "Run code that nobody should trust, strongly isolated, in milliseconds",
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
	for _, c := range []*cobra.Command{keyCommand(), templateCommand(), tenantCommand()} { // of a server too
		c.GroupID = cli.GroupID
		cmd.AddCommand(c)
	}
	server := []*cobra.Command{
		serveCommand(), downCommand(), tokenCommand(), auditCommand(), trustCommand(), buildsCommand(), secretsCommand(),
		builderCommand(), savedCommand(),
	}
	for _, c := range server {
		c.GroupID = serverGroup
	}
	cmd.AddCommand(server...)
	cli.Strict(cmd)
	return cmd
}

// serverGroup is the group of the commands that work on this machine alone.
const serverGroup = "server"

// given returns the flags that were set on the command line, by name.
func given(cmd *cobra.Command) map[string]string {
	flags := map[string]string{}
	for _, name := range []string{"addr", "data", "dev", "tls", "log-level"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			flags[name] = f.Value.String()
		}
	}
	return flags
}

// onFolder is config.DataFolder for a command that works on a data folder alone.
func onFolder(cmd *cobra.Command) (string, error) {
	if err := cli.OnFolder(cmd, os.Getenv); err != nil {
		return "", err
	}
	return config.DataFolder(given(cmd), os.Getenv)
}

// withStore calls use with the Store of the data folder, for root and the server's
// own user; what says what is in there.
func withStore(cmd *cobra.Command, what string, use func(sandbox.Store) error) error {
	if os.Geteuid() != 0 && os.Geteuid() != launch.ServerUID {
		return fmt.Errorf("%s to the server: run it as root", what)
	}
	data, err := config.DataFolder(given(cmd), os.Getenv)
	if err != nil {
		return err
	}
	return serve.WithStore(cmd.Context(), launch.Layout{Root: data}, use)
}
