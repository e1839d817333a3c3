package main

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template"
)

func serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Start the server: gateway, session-manager, scheduler and node in one process",
		Long: `Start the server: gateway, session-manager, scheduler and node in one process.

It needs root to make namespaces and cgroups for sandboxes; the server itself
runs as a user without rights. Sandboxes outlive it: the next start takes them
up again, and "cloud-sandbox down" ends them.

Environment: JWT_SECRET (signs tokens; needed without --dev), POOL_MIN_SIZE (5),
POOL_MAX_SIZE (50), SANDBOX_IMAGE (python:3.11-slim), CLOUD_SANDBOX_EGRESS
(public or none), CLOUD_SANDBOX_ADDR, CLOUD_SANDBOX_DATA, CLOUD_SANDBOX_DEV,
CLOUD_SANDBOX_LOG_LEVEL.`,
		Example: `  # try it out on this machine
  sudo cloud-sandbox serve --dev

  # serve others
  sudo JWT_SECRET=$(openssl rand -hex 32) cloud-sandbox serve --addr 0.0.0.0:8080`,
		Args: cobra.NoArgs,
		RunE: runServe,
	}
	cmd.Flags().String("addr", "", "address to listen on (default localhost:8080)")
	cmd.Flags().Bool("dev", false, "give a token to anyone who asks; loopback addresses only")
	cmd.Flags().String("log-level", "", "debug, info, warn or error (default info)")
	return cmd
}

func runServe(cmd *cobra.Command, _ []string) error {
	cfg, err := config.Load(given(cmd), os.Getenv)
	if err != nil {
		return err
	}
	log := telemetry.NewLogger(os.Stderr, cfg.LogLevel, telemetry.IsTerminal(os.Stderr))
	in, launched, err := launch.Inherit()
	if err != nil {
		return err
	}
	if launched {
		return serve.Run(cmd.Context(), cfg, in, log)
	}
	return launch.Run(cmd.Context(), launch.Options{
		Addr: cfg.Addr, Data: cfg.Data, Args: os.Args[1:], Log: log,
		Build: func(ctx context.Context) error { return buildBase(ctx, cfg) },
	})
}

// buildBase builds the Template base in a process of its own, if it is missing,
// because the build needs rights that the server has not.
func buildBase(ctx context.Context, cfg config.Config) error {
	store, err := template.Open(launch.Layout{Root: cfg.Data}.Templates())
	if err != nil {
		return err
	}
	if _, err := store.Resolve(ctx, "base"); err == nil {
		return nil
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	build := exec.CommandContext(ctx, exe, "template", "build", "base", "--data", cfg.Data)
	build.Cancel = func() error { return build.Process.Signal(syscall.SIGTERM) }
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	build.Env = append(withoutSecrets(os.Environ()), "SANDBOX_IMAGE="+cfg.SandboxImage)
	return build.Run()
}

// withoutSecrets keeps what signs tokens out of a process that runs package
// scripts.
func withoutSecrets(env []string) []string {
	kept := env[:0:0]
	for _, v := range env {
		if !strings.HasPrefix(v, "JWT_SECRET=") {
			kept = append(kept, v)
		}
	}
	return kept
}
