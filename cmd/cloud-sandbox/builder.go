//go:build linux && !client

package main

import (
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
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
