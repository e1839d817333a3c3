//go:build linux && !client

package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

func serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Start the server: gateway, session-manager, scheduler and node in one process",
		Long: `Start the server: gateway, session-manager, scheduler and node in one process.

It needs root to make namespaces and cgroups for sandboxes; the server itself
runs as a user without rights. Sandboxes outlive it: the next start adopts
them, and "cloud-sandbox down" ends them.

Environment: JWT_SECRET (signs tokens; needed without --dev), POOL_MIN_SIZE (5),
POOL_MAX_SIZE (50), SANDBOX_IMAGE (python:3.11-slim), CLOUD_SANDBOX_EGRESS
(public or none), RATE_LIMITS, CLOUD_SANDBOX_TRUSTED_PROXIES, CLOUD_SANDBOX_ADDR,
CLOUD_SANDBOX_DATA, CLOUD_SANDBOX_DEV, CLOUD_SANDBOX_LOG_LEVEL.`,
		Example: `  # try it out on this machine
  sudo cloud-sandbox serve --dev

  # serve others
  sudo JWT_SECRET=$(openssl rand -hex 32) cloud-sandbox serve --addr 0.0.0.0:8080`,
		Args: cobra.NoArgs,
		RunE: runServe,
	}
	cmd.Flags().String("addr", "", "address to listen on (default localhost:8080)")
	cmd.Flags().Bool("dev", false, "give a token to anyone who asks; loopback addresses only")
	cmd.Flags().Bool("tls", false, "in dev mode, serve HTTPS too, with certificates of a local CA; \"cloud-sandbox e2b env\" makes clients trust it")
	cmd.Flags().String("log-level", "", "debug, info, warn or error (default info)")
	return cmd
}

func runServe(cmd *cobra.Command, _ []string) error {
	cfg, err := config.Load(setFlags(cmd), os.Environ())
	if err != nil {
		return err
	}
	cfg.Version = version
	log := telemetry.NewLogger(os.Stderr, cfg.LogLevel, telemetry.IsTerminal(os.Stderr))
	in, launched, err := launch.Inherit()
	if err != nil {
		return err
	}
	if launched {
		return serve.Run(cmd.Context(), cfg, in, log)
	}
	return launch.Run(cmd.Context(), launch.Options{
		Addr: cfg.Addr, Data: cfg.Data, Args: os.Args[1:], Log: log, OldestGVisor: cfg.OldestGVisor,
		Build:   func(ctx context.Context) error { return serve.BuildBase(ctx, cfg) },
		Builder: func(ctx context.Context) error { return serve.StartBuilder(ctx, cfg) },
		Saved:   func(ctx context.Context, build string) (bool, error) { return serve.Saved(ctx, cfg, build) },
	})
}
