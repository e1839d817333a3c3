package launch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/semver"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/payload"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/fdrpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// earlierHosts are the sentry hosts of earlier builds that run beside ours. They have
// Boots, or the server needs them for states that only they can restore. Each ends when
// it has no Boot and is not needed.
type earlierHosts struct {
	Layout
	own    string // build
	saved  func(ctx context.Context, build string) (bool, error)
	oldest string
	log    *slog.Logger
}

// takeUp keeps the sentry hosts of earlier builds with owned Boots running, so that an
// upgrade ends none of them, and returns their builds. Boots that only wait in a Pool
// end. Unneeded builds are removed; see Options.Saved.
func (e *earlierHosts) takeUp(ctx context.Context) (running []string) {
	for _, build := range e.builds() {
		if build == e.own {
			continue
		}
		owned, err := e.ownedBoots(ctx, build)
		if err == nil && len(owned) > 0 {
			e.log.Warn("sandboxes of an earlier build run: its sentry host runs beside this build's", telemetry.KeyBuild, build, "boots", len(owned))
			running = append(running, build)
			err = e.keepOnly(ctx, build, owned)
		} else if err == nil {
			err = e.retire(ctx, build, e.saved)
		}
		if err != nil {
			e.log.Warn("keeping or retiring the files of an earlier build failed", telemetry.KeyBuild, build, telemetry.KeyError, err)
		}
	}
	return running
}

// keepOnly runs the sentry host of an earlier build with only its owned Boots.
func (e *earlierHosts) keepOnly(ctx context.Context, build string, owned []string) error {
	if err := e.startHost(ctx, build, e.SavedEarlier(build)); err != nil {
		return err
	}
	c, err := sentryhost.Dial(ctx, e.HostSocket(build), sentryhost.Events{})
	if err != nil {
		return err
	}
	defer c.Close()
	boots, err := c.List(ctx)
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, id := range owned {
		keep[id] = true
	}
	var errs []error
	for _, b := range boots {
		if !keep[b.ID] {
			errs = append(errs, c.Stop(ctx, b.ID))
		}
	}
	return errors.Join(errs...)
}

// serve accepts the server's requests for sentry hosts of earlier builds that are here, or
// that the server fetches, until ctx ends.
func (e *earlierHosts) serve(ctx context.Context, beside *sync.WaitGroup) error {
	left, _ := filepath.Glob(e.NeedSocket("*"))
	for _, path := range left {
		_ = os.Remove(path) // of removed builds; otherwise Listen fails with the reason
	}
	listening := map[string]<-chan struct{}{}
	if err := e.listen(ctx, listening, beside); err != nil {
		return err
	}
	beside.Go(func() { e.listenForFetched(ctx, listening, beside) })
	beside.Go(func() { e.keepSigned(ctx, e.log) })
	return nil
}

// lookEvery is how often the launcher looks for builds that the server has fetched.
const lookEvery = 500 * time.Millisecond

// listenForFetched listens for further builds as they appear, until ctx ends.
func (e *earlierHosts) listenForFetched(ctx context.Context, listening map[string]<-chan struct{}, beside *sync.WaitGroup) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	failed := ""
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		err := e.listen(ctx, listening, beside)
		if err != nil && err.Error() != failed {
			e.log.Error("listening for the need of a fetched build failed; will retry", telemetry.KeyError, err)
		}
		failed = fmt.Sprint(err)
	}
}

// listen accepts requests for the sentry hosts of the builds that are here and have no
// listener yet. The channels are closed when their listeners end.
func (e *earlierHosts) listen(ctx context.Context, listening map[string]<-chan struct{}, beside *sync.WaitGroup) error {
	for _, build := range e.builds() {
		if build == e.own || !e.unpacked(build) || isOpen(listening[build]) {
			continue
		}
		const ours = 0o600
		l, err := fdrpc.Listen(e.NeedSocket(build), ours)
		if err != nil {
			return fmt.Errorf("listen for the need of build %s: %w", build, err)
		}
		if err := os.Chown(e.NeedSocket(build), ServerUID, -1); err != nil {
			l.Close()
			return fmt.Errorf("give a socket to the server: %w", err)
		}
		ended := make(chan struct{})
		listening[build] = ended
		beside.Go(func() {
			defer close(ended)
			e.whenNeeded(ctx, build, l)
		})
	}
	return nil
}

// isOpen reports whether a channel exists and is not closed.
func isOpen(c <-chan struct{}) bool {
	if c == nil {
		return false
	}
	select {
	case <-c:
		return false
	default:
		return true
	}
}

// program is the sentry, and sentry host, of a build.
func (l Layout) program(build string) string {
	return filepath.Join(l.Binaries(), build, payload.Sentry)
}

// whenNeeded runs the sentry host of a build while a connection is open, one connection
// after the other. The open connection is the request; it carries no data.
func (e *earlierHosts) whenNeeded(ctx context.Context, build string, l *net.UnixListener) {
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return
		}
		e.whileNeeded(ctx, build, conn)
		if ctx.Err() != nil {
			return
		}
		// Finish the cleanup even if the server ends meanwhile.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), hostStart)
		err = e.retireUnneeded(undo, build)
		cancel()
		if err != nil {
			e.log.Warn("ending the sentry host of an earlier build failed", telemetry.KeyBuild, build, telemetry.KeyError, err)
		}
		if !e.unpacked(build) {
			_ = os.Remove(e.NeedSocket(build)) // nothing needs the build any more
			return
		}
	}
}

// whileNeeded starts the sentry host of a build, writes one byte once it answers, and
// restarts it whenever it ends, until the connection or ctx ends.
func (e *earlierHosts) whileNeeded(ctx context.Context, build string, conn net.Conn) {
	defer conn.Close()
	err := e.allowed(ctx, build)
	if err == nil {
		err = e.startHost(ctx, build, e.SavedEarlier(build))
	}
	if err != nil {
		e.log.Error("starting the sentry host of an earlier build failed", telemetry.KeyBuild, build, telemetry.KeyError, err)
		return
	}
	if _, err := conn.Write([]byte{sentryhost.Ready}); err != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	var keeping sync.WaitGroup
	defer keeping.Wait()
	defer cancel()
	keeping.Go(func() { e.keepHost(ctx, build, e.SavedEarlier(build), e.log) })
	_, _ = conn.Read(make([]byte, 1))
}

// allowed returns an error if the operator forbids starting a build's gVisor version. A
// build with Boots is always allowed: they run anyway.
func (e *earlierHosts) allowed(ctx context.Context, build string) error {
	if e.oldest == "" {
		return nil
	}
	if err := e.trust(ctx, build); err != nil {
		return err
	}
	version, err := e.gvisorOf(ctx, build)
	if err != nil || semver.Compare(version, e.oldest) >= 0 {
		return err
	}
	if boots, err := os.ReadDir(filepath.Join(e.Host(build), "boots")); err == nil && len(boots) > 0 {
		return nil
	}
	return fmt.Errorf("it has gVisor %s, and the oldest that may be used is %s", version, e.oldest)
}

// retireUnneeded ends the sentry host of an unneeded build, unless it has Boots, and removes the
// unneeded parts of the build.
func (e *earlierHosts) retireUnneeded(ctx context.Context, build string) error {
	boots, err := e.earlierBoots(ctx, build)
	if err != nil || len(boots) > 0 {
		return err
	}
	return e.retire(ctx, build, e.saved)
}

// Build is one build whose programs are in the data folder.
type Build struct {
	Name   string `json:"build"`
	GVisor string `json:"gvisor"` // its version; empty: unknown, because the build is refused
	// Refused is the reason why the build is not started: the key of the cluster has not
	// signed it. Empty: it is trusted.
	Refused string `json:"refused,omitempty"`
	Host    bool   `json:"running"` // its sentry host
	Boots   int    `json:"boots"`
}

// Builds lists the installed builds, by name, whether a server runs or not.
func (l Layout) Builds(ctx context.Context) ([]Build, error) {
	var all []Build
	for _, name := range l.builds() {
		if !l.unpacked(name) {
			continue // only records are left
		}
		b := Build{Name: name}
		err := l.trust(ctx, name)
		if err != nil {
			b.Refused = err.Error()
		} else if b.GVisor, err = l.gvisorOf(ctx, name); err != nil {
			return nil, err
		}
		boots, err := bootsOf(ctx, l.HostSocket(name))
		b.Host, b.Boots = err == nil, len(boots)
		all = append(all, b)
	}
	return all, nil
}

var versionLine = regexp.MustCompile(`(?m)^runsc version (\S+)$`)

// gvisorOf returns the version of gVisor of a trusted build.
func (l Layout) gvisorOf(ctx context.Context, build string) (string, error) {
	out, err := exec.CommandContext(ctx, l.program(build), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask build %s which gVisor it has: %w", build, err)
	}
	m := versionLine.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("build %s does not say which gVisor it has: %.80q", build, strings.TrimSpace(string(out)))
	}
	return string(m[1]), nil
}
