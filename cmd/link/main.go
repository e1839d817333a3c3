//go:build linux

// Command link is a link shard: it holds the host's end of up to 256 links and
// speaks for their guests. The sentry host starts it as a user without rights,
// with its listening socket as an open descriptor.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link/shard"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/fdrpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

func main() {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil)).With("service", "link")
	if err := run(os.Args[1:], log); err != nil {
		log.Error("the link shard ends", telemetry.KeyError, err)
		os.Exit(1)
	}
}

func run(args []string, log *slog.Logger) error {
	fs := flag.NewFlagSet("link", flag.ContinueOnError)
	fd := fs.Int("listen-fd", 3, "descriptor of the listening Unix socket")
	socket := fs.String("socket", "", "Unix socket to make and listen on instead")
	uid := fs.Uint("allow-uid", 0, "user that may connect beside root")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := giveUpRights(); err != nil {
		return err
	}
	tune()
	l, err := listener(*socket, *fd)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := shard.New(shard.Config{Log: log, Allow: func(u uint32) bool { return uint(u) == *uid }})
	if err := s.Serve(ctx, l); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// listener makes the socket, or uses the inherited one.
func listener(socket string, fd int) (*net.UnixListener, error) {
	if socket != "" {
		l, err := fdrpc.Listen(socket, 0o600)
		if err != nil {
			return nil, fmt.Errorf("listen on %s: %w", socket, err)
		}
		return l, nil
	}
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("take over the listener: %w", err)
	}
	unixListener, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return nil, errors.New("the listener is not a Unix socket")
	}
	unixListener.SetUnlinkOnClose(false) // its maker removes it
	return unixListener, nil
}

// giveUpRights makes sure that this process can gain no rights. no_new_privs is per
// thread, and the runtime has started several by now: it is set on this thread, which
// then re-executes the program.
func giveUpRights() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("keep debuggers out: %w", err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err != nil || set == 1 {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up rights: %w", err)
	}
	return fmt.Errorf("start again without rights: %w", unix.Exec("/proc/self/exe", os.Args, os.Environ()))
}

// tune keeps the heap close to the live data, raises the limit of descriptors to its
// maximum, and bounds threads: each stack has a worker per core of the runtime, and
// none of them blocks outside the netpoller.
func tune() {
	const softLimit, maxCores = 1 << 30, 4
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(softLimit)
	// Use more than one core. On a host with two, uploads of 64 MiB through the links ran
	// at 469 MB/s on one core and 712 on both, and eight at once at 368 and 583.
	// Downloads run at about 900 MB/s on either.
	runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), maxCores))
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) == nil {
		l.Cur = l.Max
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &l)
	}
}
