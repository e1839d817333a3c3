package serve

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// does is the help text of each role.
var does = map[string]string{
	config.RoleGateway:        "Serve clients: authenticate, authorize and answer their requests",
	config.RoleSessionManager: "Keep the life of every sandbox, from its create to its end",
	config.RoleScheduler:      "Choose the node that a sandbox starts on",
	config.RoleNode:           "Run sandboxes on this machine",
}

// Main is the program of a process with one role. It returns the exit code.
func Main(role, version string) int {
	ctx, stop := launch.Signals(context.Background())
	defer stop()
	err := command(role, version).ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case !errors.Is(err, launch.ErrServer): // it has printed its error itself
		fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
	}
	return 1
}

func command(role, version string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   role,
		Short: does[role],
		Long: does[role] + `.

One of the four roles that "cloud-sandbox serve" has in one process; roles find
each other in the data folder, or by addresses in their environment.
"make run-all" starts all four. Roles on several machines need certificates:
see "cloud-sandbox cluster --help".`,
		Example:       "  sudo " + role + " --data /var/lib/cloud-sandbox",
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return start(cmd, role) },
	}
	cmd.Flags().String(config.FlagAddr, "", "address to listen on, host:port")
	cmd.Flags().String(config.FlagData, "", "folder that keeps everything (default /var/lib/cloud-sandbox; environment CLOUD_SANDBOX_DATA)")
	cmd.Flags().String(config.FlagLogLevel, "", "debug, info, warn or error (default info)")
	if role == config.RoleGateway {
		cmd.Flags().Bool(config.FlagDev, false, "give a token to anyone who asks; loopback addresses only")
		cmd.Flags().Bool(config.FlagTLS, false, "in dev mode, serve HTTPS too, with certificates of a local CA")
	}
	return cmd
}

// start runs the role: a Node under a launcher, which has the rights to start Sandboxes,
// other roles directly.
func start(cmd *cobra.Command, role string) error {
	flags := map[string]string{}
	for _, name := range []string{config.FlagAddr, config.FlagData, config.FlagLogLevel, config.FlagDev, config.FlagTLS} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			flags[name] = f.Value.String()
		}
	}
	cfg, err := config.LoadRole(role, flags, os.Environ())
	if err != nil {
		return err
	}
	cfg.Version = cmd.Version
	log := telemetry.NewLogger(os.Stderr, cfg.LogLevel, telemetry.IsTerminal(os.Stderr)).With(telemetry.KeyRole, role)
	options := launch.Options{Role: role, Addr: cfg.Addr, Data: cfg.Data, Args: os.Args[1:], Log: log, OldestGVisor: cfg.OldestGVisor}
	if role != config.RoleNode {
		in, err := launch.Light(options)
		if err != nil {
			return err
		}
		return RunRole(cmd.Context(), cfg, in, log)
	}
	in, launched, err := launch.Inherit()
	if err != nil {
		return err
	}
	if launched {
		return RunRole(cmd.Context(), cfg, in, log)
	}
	if cfg.KeepsTemplates() { // otherwise the base comes from there
		options.Build = func(ctx context.Context) error { return BuildBase(ctx, cfg) }
	}
	options.Builder = func(ctx context.Context) error { return StartBuilder(ctx, cfg) }
	options.Saved = func(ctx context.Context, build string) (bool, error) { return Saved(ctx, cfg, build) }
	if cfg.Cluster != "" {
		options.Signature = func(ctx context.Context, build string) ([]byte, error) { return Signature(ctx, cfg, build) }
	}
	return launch.Run(cmd.Context(), options)
}
