//go:build linux && !client

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/cli"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
)

func trustCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trust",
		Short: "Choose the servers whose snapshots are imported, on the server",
		Long: `Choose the servers whose snapshots are imported, on the server.

A forged snapshot could break out of the first layer of isolation. So a server
signs each snapshot that it exports. It imports a snapshot only if it signed it
itself or if it trusts the server that did. Trust a server if you trust its
operator. Snapshots without memory need trust too.

These commands work on the data folder, as root, whether the server runs or not.`,
		Example: `  sudo cloud-sandbox trust key            # on the one server: prints KEY
  sudo cloud-sandbox trust add KEY        # on the other`,
	}
	cmd.AddCommand(trustKeyCommand(), trustListCommand(),
		trustChange("add KEY...", "Trust servers", "  sudo cloud-sandbox trust add KEY  # that `trust key` prints on the other server",
			(*installation.Keys).Trust),
		trustChange("rm KEY...", "Stop trusting servers; imported snapshots stay", "  sudo cloud-sandbox trust rm KEY",
			(*installation.Keys).Distrust))
	return cmd
}

// withInstallation calls use with the keys of the data folder.
func withInstallation(cmd *cobra.Command, use func(*installation.Keys) error) error {
	if os.Geteuid() != 0 {
		return errors.New("only root may read the keys of the installation: run this as root")
	}
	data, err := onFolder(cmd)
	if err != nil {
		return err
	}
	layout := launch.Layout{Root: data}
	if _, err := os.Stat(layout.Saved()); err != nil {
		return fmt.Errorf("%s is not the data folder of a server that has run: %w", data, err)
	}
	return use(installation.Open(layout.Saved()))
}

func trustKeyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "key",
		Short:   "Print the key of this server, for `trust add` on another server",
		Example: `  sudo cloud-sandbox trust key`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withInstallation(cmd, func(k *installation.Keys) error {
				own, err := k.Own()
				if err != nil {
					return err
				}
				return cli.Print(cmd, map[string]string{"key": own.String()}, own.String())
			})
		},
	}
	cli.JSONFlag(cmd)
	return cmd
}

func trustListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the keys of the servers that are trusted",
		Example: `  sudo cloud-sandbox trust list`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withInstallation(cmd, func(k *installation.Keys) error {
				all, err := k.Trusted()
				if err != nil {
					return err
				}
				names := make([]string, len(all))
				for i, key := range all {
					names[i] = key.String()
				}
				return cli.Print(cmd, names, strings.Join(names, "\n"))
			})
		},
	}
	cli.JSONFlag(cmd)
	return cmd
}

func trustChange(use, short, example string, change func(*installation.Keys, installation.Key) error) *cobra.Command {
	return &cobra.Command{
		Use:     use,
		Short:   short,
		Example: example,
		Args:    cli.Args(1, -1, "one KEY or more"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withInstallation(cmd, func(k *installation.Keys) error {
				for _, text := range args {
					key, err := installation.ParseKey(text)
					if err != nil {
						return err
					}
					if err := change(k, key); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}
