//go:build !linux || client

package main

import (
	"fmt"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli"
)

// needsServer is the error of a command that this client-only program lacks.
func needsServer(cmd *cobra.Command) error {
	return fmt.Errorf("`%s` works on a server's data folder: run it on the server's Linux machine; this program, for %s, is the client alone and calls a server with --url", cmd.CommandPath(), runtime.GOOS)
}

// serverCommands returns stubs for onServer whose error says where they work.
func serverCommands() []*cobra.Command {
	all := make([]*cobra.Command, len(onServer))
	for i, name := range onServer {
		all[i] = &cobra.Command{
			Use: name, Short: "Works on the Linux machine of a server only", Hidden: true, DisableFlagParsing: true,
			RunE: func(cmd *cobra.Command, _ []string) error { return needsServer(cmd) },
		}
	}
	return all
}

// printedItself is for the full program: the client starts no process that prints its own
// errors.
func printedItself(error) bool { return false }

func keyCommand() *cobra.Command {
	return cli.KeyCommand(os.Getenv, func(cmd *cobra.Command, _ string, _ func(cli.Keys) error) error { return needsServer(cmd) })
}

func templateCommand() *cobra.Command {
	return cli.TemplateCommand(os.Getenv, func(cmd *cobra.Command, _ func(cli.Templates) error) error { return needsServer(cmd) })
}

func tenantCommand() *cobra.Command {
	return cli.TenantCommand(os.Getenv, func(cmd *cobra.Command, _ func(cli.Tenants) error) error { return needsServer(cmd) })
}

func nodeCommand() *cobra.Command { return cli.NodeCommand(os.Getenv) }

func withStore(cmd *cobra.Command, _ string, _ func(sandbox.Store) error) error {
	return needsServer(cmd)
}
