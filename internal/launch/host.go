package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/payload"
	"github.com/cloud-sandbox/cloud-sandbox/internal/sentryhost"
)

// hostStart bounds the wait for a sentry host to listen: it takes up what an earlier
// one left before, and a server does not start without it.
const hostStart = time.Minute

// hostInUse chooses the build whose sentry host serves: one that runs with
// somebody's Boots, so that an upgrade ends none of them, or else that of this
// program. Boots that only wait in a Pool are ended with their sentry host: the
// new one fills the Pool again. Builds that nothing needs are removed; see
// Options.Saved.
func (l Layout) hostInUse(ctx context.Context, own string, saved func(context.Context, string) (bool, error), log *slog.Logger) (build string) {
	for _, name := range l.builds() {
		if name == own {
			continue
		}
		owned, err := l.ownedBoots(ctx, name)
		switch {
		case err != nil:
			log.Warn("what an earlier build left cannot be found out", "build", name, "error", err)
		case len(owned) > 0:
			log.Warn("sandboxes of an earlier build run: its sentry host stays in use until a start finds none", "build", name, "boots", len(owned))
			return name
		default:
			if err := l.retire(ctx, name, saved); err != nil {
				log.Warn("an earlier build was not removed", "build", name, "error", err)
			}
		}
	}
	return own
}

var buildPattern = regexp.MustCompile(`^[0-9a-f]{16}$`)

// builds lists those that have left anything.
func (l Layout) builds() []string {
	var all []string
	for _, dir := range []string{l.Binaries(), l.path("hosts")} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if name := e.Name(); buildPattern.MatchString(name) && !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	return all
}

// ownedBoots returns the Boots of a build that have an owner, or may have: the
// Node writes a Boot into its journal before it gives it to a Sandbox. A sentry
// host that died and left Boots is started to take them up.
func (l Layout) ownedBoots(ctx context.Context, build string) ([]string, error) {
	boots, err := bootsOf(ctx, l.HostSocket(build))
	if err != nil {
		if left, _ := os.ReadDir(filepath.Join(l.Host(build), "boots")); len(left) == 0 {
			return nil, nil
		}
		if err := l.startHost(ctx, build); err != nil {
			return nil, err
		}
		if boots, err = bootsOf(ctx, l.HostSocket(build)); err != nil {
			return nil, err
		}
	}
	var owned []string
	for _, id := range boots {
		_, err := os.Lstat(filepath.Join(l.Node(), "boots", id+".json"))
		switch {
		case err == nil:
			owned = append(owned, id)
		case !errors.Is(err, os.ErrNotExist):
			return nil, err
		}
	}
	return owned, nil
}

// retire ends the sentry host of a build, and what waits in its Pool, and removes
// its records, and its programs unless something needs them.
func (l Layout) retire(ctx context.Context, build string, saved func(context.Context, string) (bool, error)) error {
	socket := l.HostSocket(build)
	if _, err := bootsOf(ctx, socket); err == nil {
		if err := downHost(ctx, socket); err != nil {
			return err
		}
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.RemoveAll(l.Host(build)); err != nil {
		return err
	}
	needed, err := l.needed(build)
	if err == nil && !needed && saved != nil {
		needed, err = saved(ctx, build)
	}
	if err != nil || needed {
		return err
	}
	return os.RemoveAll(filepath.Join(l.Binaries(), build))
}

// needed reports whether the Guest of a build is in the memory of a saved state,
// or of a Boot that a later build runs. What cannot be read may be.
func (l Layout) needed(build string) (bool, error) {
	states, err := filepath.Glob(filepath.Join(l.Saved(), "*", sentryhost.ManifestName))
	if err != nil {
		return false, err
	}
	boots, err := filepath.Glob(filepath.Join(l.Host("*"), "boots", "*", sentryhost.RecordName))
	if err != nil {
		return false, err
	}
	for _, path := range append(states, boots...) {
		raw, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted just now
		}
		var of struct {
			Memory     bool   `json:"memory"` // of a state
			Build      string `json:"build"`
			GuestBuild string `json:"guest_build"` // of a Boot
		}
		if err != nil || json.Unmarshal(raw, &of) != nil {
			return true, nil
		}
		if of.Memory && of.Build == build || of.GuestBuild == build {
			return true, nil
		}
	}
	return false, nil
}

// bootsOf returns the IDs of the Boots that a sentry host runs.
func bootsOf(ctx context.Context, socket string) ([]string, error) {
	c, err := sentryhost.Dial(ctx, socket, sentryhost.Events{})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	boots, err := c.List(ctx)
	var ids []string
	for _, b := range boots {
		ids = append(ids, b.ID)
	}
	return ids, err
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
