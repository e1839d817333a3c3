//go:build linux

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
	gvisorlog "gvisor.dev/gvisor/pkg/log"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost/server"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/fdrpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// host runs the sentry host until SIGTERM or a client's "down", and returns the
// exit status. It is started by the launcher or by a service manager.
func host(args []string) int {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil)).With("service", "sentry-host")
	if err := runHost(args, log); err != nil {
		log.Error("the sentry host ends", telemetry.KeyError, err)
		return 1
	}
	return 0
}

func runHost(args []string, log *slog.Logger) error {
	var cfg server.Config
	fs := flag.NewFlagSet("sentry host", flag.ContinueOnError)
	socket := fs.String("socket", "", "Unix socket to listen on")
	fs.StringVar(&cfg.Dir, "dir", "", "folder of the sentry host's records")
	fs.StringVar(&cfg.Images, "images", "", "folder of Template images")
	fs.StringVar(&cfg.UpperDir, "upper-dir", "", "folder where upper layers are made")
	fs.StringVar(&cfg.Saved, "saved", "", "folder of saved states of all builds; empty: beside the folder of records")
	fs.StringVar(&cfg.GuestImage, "guest-image", "", "EROFS image of the guest")
	fs.StringVar(&cfg.SidecarDir, "sidecar-dir", "", "folder that holds gvisor_sentry")
	fs.StringVar(&cfg.LinkBinary, "link", "", "the link shard's binary")
	fs.StringVar(&cfg.Build, "build", "", "name of this sentry build")
	fs.IntVar(&cfg.ServerUID, "server-uid", 0, "user that may connect beside root")
	fs.IntVar(&cfg.LinkUID, "link-uid", 0, "user that link shards run as; no other program may run as it")
	fs.StringVar(&cfg.Parent, "cgroup", "cloud-sandbox", "parent cgroup")
	if err := fs.Parse(args); err != nil {
		return err
	}
	for _, name := range []string{"socket", "dir", "images", "upper-dir", "guest-image", "sidecar-dir", "link"} {
		if fs.Lookup(name).Value.String() == "" {
			return fmt.Errorf("the flag --%s is missing", name)
		}
	}
	if cfg.Saved == "" { // the launcher's layout; it starts hosts of earlier builds too
		cfg.Saved = filepath.Join(filepath.Dir(filepath.Dir(cfg.Dir)), "saved")
	}
	const nobody = 65534 // the UID of sentries
	if cfg.LinkUID <= 0 || cfg.LinkUID == nobody {
		return fmt.Errorf("--link-uid must name a user that no other program runs as, not root and not the user %q", "nobody")
	}
	unix.Umask(0o022)
	// runsc logs every step of every Boot; relevant failures come back as errors.
	gvisorlog.SetLevel(gvisorlog.Warning)
	gvisorlog.SetTarget(gvisorlog.GoogleEmitter{Writer: &gvisorlog.Writer{Next: io.Discard}})
	h, err := server.New(cfg, log)
	if err != nil {
		return err
	}
	l, err := fdrpc.Listen(*socket, 0o600)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", *socket, err)
	}
	if err := os.Chown(*socket, cfg.ServerUID, -1); err != nil {
		return fmt.Errorf("give the socket to the server: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log.Info("the sentry host is ready", "pid", os.Getpid(), telemetry.KeyBuild, cfg.Build)
	return h.Serve(ctx, l)
}
