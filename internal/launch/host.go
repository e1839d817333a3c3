package launch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/payload"
	"github.com/cloud-sandbox/cloud-sandbox/internal/sentryhost"
)

// hostStart bounds the wait for a sentry host to listen.
const hostStart = 10 * time.Second

// hostInUse chooses the build whose sentry host serves: one that runs with
// Boots, so that an upgrade ends none, or else that of this program.
func (l Layout) hostInUse(ctx context.Context, own string, log *slog.Logger) (build string) {
	sockets, _ := filepath.Glob(l.HostSocket("*"))
	for _, s := range sockets {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(s), "sentry-host-"), ".sock")
		if name == own {
			continue
		}
		boots, err := bootsOf(ctx, s)
		if err != nil {
			continue
		}
		if boots > 0 {
			log.Warn("sandboxes of an earlier build run: its sentry host stays in use until a start finds none", "build", name, "boots", boots)
			return name
		}
		if err := downHost(ctx, s); err != nil {
			log.Warn("the sentry host of an earlier build did not end", "build", name, "error", err)
		}
		os.Remove(s)
	}
	return own
}

func bootsOf(ctx context.Context, socket string) (int, error) {
	c, err := sentryhost.Dial(ctx, socket, sentryhost.Events{})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	boots, err := c.List(ctx)
	return len(boots), err
}

func downHost(ctx context.Context, socket string) error {
	c, err := sentryhost.Dial(ctx, socket, sentryhost.Events{})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Down(ctx); err != nil {
		return err
	}
	select {
	case <-c.Done():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// startHost starts the sentry host of a build, detached, and waits until it
// answers. One that answers already is used.
func (l Layout) startHost(ctx context.Context, build string) error {
	socket := l.HostSocket(build)
	if _, err := bootsOf(ctx, socket); err == nil {
		return nil
	}
	unpacked := payload.Unpacked{Dir: filepath.Join(l.Binaries(), build), Build: build}
	log, err := os.OpenFile(filepath.Join(l.Logs(), "sentry-host.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return fmt.Errorf("open the sentry host's log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(unpacked.Path(payload.Sentry), "host",
		"--socket", socket, "--dir", l.Host(build), "--images", l.Images(), "--upper-dir", l.Upper(),
		"--guest-image", unpacked.Path(payload.GuestImage), "--sidecar-dir", unpacked.Dir,
		"--link", unpacked.Path(payload.Link), "--build", build, "--cgroup", l.Group(build),
		"--server-uid", strconv.Itoa(ServerUID), "--link-uid", strconv.Itoa(LinkUID))
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the sentry host: %w", err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	return l.waitHost(ctx, socket, exited)
}

func (l Layout) waitHost(ctx context.Context, socket string, exited <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, hostStart)
	defer cancel()
	for {
		if _, err := bootsOf(ctx, socket); err == nil {
			return nil
		}
		select {
		case err := <-exited:
			return fmt.Errorf("the sentry host ended at once (%v): see %s", err, filepath.Join(l.Logs(), "sentry-host.log"))
		case <-ctx.Done():
			return errors.New("the sentry host did not answer in time")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// keepHost starts the sentry host again whenever it ends, until ctx ends.
func (l Layout) keepHost(ctx context.Context, build string, log *slog.Logger) {
	for ctx.Err() == nil {
		c, err := sentryhost.Dial(ctx, l.HostSocket(build), sentryhost.Events{})
		if err == nil {
			select {
			case <-c.Done():
			case <-ctx.Done():
			}
			c.Close()
			if ctx.Err() != nil {
				return
			}
		}
		log.Warn("the sentry host ended and is started again")
		if err := l.startHost(ctx, build); err != nil && ctx.Err() == nil {
			log.Error("the sentry host cannot be started", "error", err)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}
}

// Down ends every Boot, link shard and sentry host under the data folder. A
// folder that was never used is a success.
func (l Layout) Down(ctx context.Context) error {
	sockets, _ := filepath.Glob(l.HostSocket("*"))
	var errs []error
	for _, s := range sockets {
		build := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(s), "sentry-host-"), ".sock")
		// A dead sentry host may have left sentries: a new one takes them up.
		if err := l.startHost(ctx, build); err != nil {
			errs = append(errs, err)
			continue
		}
		if err := downHost(ctx, s); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, os.Remove(s))
	}
	return errors.Join(errs...)
}
