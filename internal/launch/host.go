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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/payload"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// hostStart bounds the wait for a new sentry host to listen. It first recovers the Boots
// of its predecessor. A server does not start without a sentry host.
const hostStart = time.Minute

const (
	// hostGrace is how long a responsive sentry host may take to end: it finishes its
	// saves. silentGrace is the same for an unresponsive one.
	hostGrace   = time.Minute
	silentGrace = 10 * time.Second
	// killLimit bounds the wait for the end of a process after SIGKILL.
	killLimit = 10 * time.Second
)

// builds lists the builds that have a folder of programs or of a sentry host.
func (l Layout) builds() []string {
	var all []string
	for _, dir := range []string{l.Binaries(), l.path("hosts")} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if name := e.Name(); sentryhost.ValidBuild(name) && !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	return all
}

// ownedBoots returns the Boots of a build that have, or may have, an owner: the Node
// journals a Boot before it gives it to a Sandbox.
func (l Layout) ownedBoots(ctx context.Context, build string) ([]string, error) {
	boots, err := l.earlierBoots(ctx, build)
	if err != nil {
		return nil, err
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

// earlierBoots returns the Boots of an earlier build. If its sentry host died and left
// Boots, it is started to recover them.
func (l Layout) earlierBoots(ctx context.Context, build string) ([]string, error) {
	boots, err := bootsOf(ctx, l.HostSocket(build))
	if err == nil || ctx.Err() != nil {
		return boots, err
	}
	if left, _ := os.ReadDir(filepath.Join(l.Host(build), "boots")); len(left) == 0 {
		return nil, nil
	}
	if err := l.startHost(ctx, build, l.SavedEarlier(build)); err != nil {
		return nil, err
	}
	return bootsOf(ctx, l.HostSocket(build))
}

// retire ends the sentry host of a build and its pooled Boots, and removes the records of
// the build. It also removes the programs of the build, unless they are needed.
func (l Layout) retire(ctx context.Context, build string, saved func(context.Context, string) (bool, error)) error {
	socket := l.HostSocket(build)
	if _, err := bootsOf(ctx, socket); err == nil {
		if err := downHost(ctx, socket); err != nil {
			return err
		}
	} else if ctx.Err() != nil { // it may still run
		return ctx.Err()
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := errors.Join(os.RemoveAll(l.Host(build)), os.RemoveAll(l.SavedEarlier(build))); err != nil {
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

// needed reports whether the Guest of a build is in the memory of a saved state, or of a
// Boot that a later build runs. An unreadable record counts as needed.
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

// startHost starts the sentry host of a trusted build, detached, with a folder of saved
// states, and waits until it answers. A running one with that folder is reused. One with another
// folder is ended first, and its Boots live on.
func (l Layout) startHost(ctx context.Context, build, saved string) error {
	socket := l.HostSocket(build)
	c, dialErr := sentryhost.Dial(ctx, socket, sentryhost.Events{})
	if dialErr == nil {
		c.Close()
		if l.savedOf(c.Info.Pid) == saved {
			return nil
		}
	}
	if err := l.trust(ctx, build); err != nil { // before anything is ended
		return err
	}
	if dialErr == nil {
		if err := endProcess(ctx, c.Info.Pid, hostGrace); err != nil {
			return fmt.Errorf("end the sentry host of build %s: %w", build, err)
		}
	} else if err := l.endSilent(ctx, build); err != nil {
		return err
	}
	unpacked := payload.Unpacked{Dir: filepath.Join(l.Binaries(), build), Build: build}
	log, err := os.OpenFile(filepath.Join(l.Logs(), "sentry-host.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return fmt.Errorf("open the sentry host's log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(unpacked.Path(payload.Sentry), "host",
		"--socket", socket, "--dir", l.Host(build), "--images", l.Images(), "--upper-dir", l.Upper(), "--saved", saved,
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
	err = l.waitHost(ctx, socket, exited)
	if err != nil { // no later start would reuse the process
		err = errors.Join(err, l.endSilent(context.WithoutCancel(ctx), build))
	}
	return err
}

// endSilent ends unresponsive processes of a build's sentry host: their server ended
// before they listened. Boots live on.
func (l Layout) endSilent(ctx context.Context, build string) error {
	if err := ctx.Err(); err != nil {
		return err // ctx has ended, so its silence proves nothing
	}
	for _, pid := range hostProcesses(l.HostSocket(build)) {
		if err := endProcess(ctx, pid, silentGrace); err != nil {
			return fmt.Errorf("end the sentry host of build %s, which does not answer: %w", build, err)
		}
	}
	return nil
}

// hostProcesses finds the processes of the sentry host of a socket, whether they listen
// yet or not.
func hostProcesses(socket string) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if args := argsOf(pid); len(args) > 3 && args[1] == "host" && args[2] == "--socket" && args[3] == socket {
			pids = append(pids, pid)
		}
	}
	return pids
}

// argsOf returns the command line of a process; an ended one has one empty argument.
func argsOf(pid int) []string {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.Split(string(line), "\x00")
}

// savedOf returns the folder of saved states that a sentry host was started with.
func (l Layout) savedOf(pid int) string {
	args := argsOf(pid)
	if i := slices.Index(args, "--saved"); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return l.Saved() // the default without the flag
}

// endProcess ends a process with SIGTERM, or with SIGKILL if it still runs after grace,
// and waits for its end.
func endProcess(ctx context.Context, pid int, grace time.Duration) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(fd)
	for _, step := range []struct {
		signal unix.Signal
		wait   time.Duration
	}{{unix.SIGTERM, grace}, {unix.SIGKILL, killLimit}} {
		if err := unix.PidfdSendSignal(fd, step.signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return os.NewSyscallError("pidfd_send_signal", err)
		}
		if ended, err := awaitEnd(ctx, fd, step.wait); ended || err != nil {
			return err
		}
	}
	return fmt.Errorf("process %d still exists %v after SIGKILL: see its state in /proc/%[1]d/status", pid, killLimit)
}

// awaitEnd waits for a pidfd's process to end, and reports whether it ended within limit.
func awaitEnd(ctx context.Context, fd int, limit time.Duration) (bool, error) {
	const look = 20 // milliseconds
	began := time.Now()
	for p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}; ctx.Err() == nil && time.Since(began) < limit; {
		if n, err := unix.Poll(p, look); n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return n > 0, os.NewSyscallError("poll", err)
		}
	}
	return false, ctx.Err()
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

// keepHost restarts the sentry host whenever it ends, until ctx ends.
func (l Layout) keepHost(ctx context.Context, build, saved string, log *slog.Logger) {
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
		log.Warn("the sentry host ended; restarting it", telemetry.KeyBuild, build)
		if err := l.startHost(ctx, build, saved); err != nil && ctx.Err() == nil {
			log.Error("starting the sentry host failed", telemetry.KeyError, err)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}
}

// Down ends every Boot, link shard and sentry host under the data folder. It succeeds
// for a folder that was never used.
func (l Layout) Down(ctx context.Context) error {
	var errs []error
	for _, build := range l.builds() {
		s := l.HostSocket(build)
		// A dead sentry host may have left sentries: a new one recovers them. A host that
		// was still starting when its server was killed has no socket yet.
		if _, err := bootsOf(ctx, s); err != nil {
			if _, err := os.Lstat(s); errors.Is(err, os.ErrNotExist) && len(hostProcesses(s)) == 0 {
				continue
			}
			if err := l.startHost(ctx, build, l.SavedEarlier(build)); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		if err := downHost(ctx, s); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, os.Remove(s))
	}
	return errors.Join(errs...)
}
