//go:build linux && !client

package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/payload"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// builderCommand is run by the launcher, not by people.
func builderCommand() *cobra.Command {
	return &cobra.Command{
		Use:    serve.BuilderCommand,
		Short:  "Build the templates that tenants ask for; the server starts it",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			data, err := config.DataFolder(setFlags(cmd), os.Getenv)
			if err != nil {
				return err
			}
			log := telemetry.NewLogger(os.Stderr, slog.LevelInfo, telemetry.IsTerminal(os.Stderr))
			return serve.RunBuilder(cmd.Context(), data, os.Getenv, os.Stdin, log.With(telemetry.KeyRole, serve.BuilderCommand))
		},
	}
}

// savedCommand is run when images and builds are removed, not by people.
func savedCommand() *cobra.Command {
	return &cobra.Command{
		Use:    serve.SavedCommand + " image|build NAME",
		Short:  "Report whether a saved state needs an image or a build",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := config.DataFolder(setFlags(cmd), os.Getenv)
			if err != nil {
				return err
			}
			return serve.PrintSaved(cmd.Context(), launch.Layout{Root: data}, args[0], args[1], cmd.OutOrStdout())
		},
	}
}

// signatureCommand is run when a node starts, not by people.
func signatureCommand() *cobra.Command {
	var folder string
	cmd := &cobra.Command{
		Use:    serve.SignatureCommand + " BUILD",
		Short:  "Print the signature of a build, from the CA of the cluster",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return serve.PrintSignature(cmd.Context(), folder, args[0], cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&folder, "identity", "", "folder of the node's certificate (required)")
	_ = cmd.MarkFlagRequired("identity")
	return cmd
}

// programsCommand is run by "cluster sign-build", not by people.
func programsCommand() *cobra.Command {
	return &cobra.Command{
		Use:    programsName + " FOLDER",
		Short:  "Unpack the programs of this build into a folder",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			u, err := payload.Unpack(args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), u.Dir)
			return err
		},
	}
}
