//go:build linux && !client

package main

import (
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

// serverCommands are the commands that need the server's own parts: onServer, and some
// that the server runs itself.
func serverCommands() []*cobra.Command {
	return []*cobra.Command{
		serveCommand(), doctorCommand(), downCommand(), tokenCommand(), trustCommand(), buildsCommand(), secretsCommand(),
		clusterCommand(),
		builderCommand(), savedCommand(), signatureCommand(), programsCommand(),
	}
}

// printedItself reports whether the process that err is about has already printed it.
func printedItself(err error) bool { return errors.Is(err, launch.ErrServer) }

// setFlags returns the flags that were set on the command line, by name.
func setFlags(cmd *cobra.Command) map[string]string {
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
	return config.DataFolder(setFlags(cmd), os.Getenv)
}

// withStore calls use with the Store of the data folder, for root and the server's own
// user. Other users get an error that begins with the caller's text, such as "the keys
// belong".
func withStore(cmd *cobra.Command, what string, use func(sandbox.Store) error) error {
	if os.Geteuid() != 0 && os.Geteuid() != launch.ServerUID {
		return fmt.Errorf("%s to the server: run it as root", what)
	}
	data, err := config.DataFolder(setFlags(cmd), os.Getenv)
	if err != nil {
		return err
	}
	return serve.WithStore(cmd.Context(), launch.Layout{Root: data}, use)
}
