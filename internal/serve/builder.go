package serve

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/builder"
)

// BuilderCommand is the subcommand of cloud-sandbox that runs the builder.
const BuilderCommand = "builder"

// builderGrace is how long the builder may take to end its builds.
const builderGrace = 10 * time.Second

// StartBuilder runs the builder of Templates in a process of its own until ctx ends. The
// child ends with this process, however that ends.
func StartBuilder(ctx context.Context, cfg config.Config) error {
	exe, err := program(cfg)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, exe, BuilderCommand, "--data", cfg.Data)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = builderGrace
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.Env = withoutSecrets(os.Environ())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's Ctrl-C is for the launcher
	alive, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	defer alive.Close()
	return cmd.Run()
}

// RunBuilder is the builder: it serves until ctx ends, or until alive, which the launcher
// holds, is closed.
func RunBuilder(ctx context.Context, data string, getenv func(string) string, alive io.Reader, log *slog.Logger) error {
	proxy, err := config.ExportProxy(getenv)
	if err != nil {
		return err
	}
	layout := launch.Layout{Root: data}
	store, err := OpenTemplates(layout)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the process at the latest
		_, _ = io.Copy(io.Discard, alive)
		cancel()
	}()
	err = builder.Serve(ctx, builder.Config{
		Store: store, Registries: config.Registries(getenv), NPMRegistry: config.NPMRegistry(getenv), Proxy: proxy, Log: log,
	}, func() (net.Listener, error) { return builder.Listen(layout.BuilderSocket(), launch.ServerUID) })
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("build templates: %w", err)
}
