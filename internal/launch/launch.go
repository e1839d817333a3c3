package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/payload"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch/doctor"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// Environment variables that the launcher sets for the server.
const (
	EnvListeners = "CLOUD_SANDBOX_LAUNCH_LISTENERS" // number of listeners, from descriptor 5
	EnvHost      = "CLOUD_SANDBOX_LAUNCH_HOST"      // socket of the sentry host
	EnvEarlier   = "CLOUD_SANDBOX_LAUNCH_EARLIER"   // earlier builds with running Boots, separated by commas
)

// Descriptors that the server inherits.
const (
	fdLock     = 3 // the data folder's lock
	fdLauncher = 4 // socket that closes with the launcher, and takes a byte from a server that is ready
	fdListener = 5 // the first listener
)

// drain is how long the server may take to end after SIGTERM.
const drain = 15 * time.Second

// Options of a start.
type Options struct {
	Role  string // the process's only role; empty: all roles
	Addr  string // host:port; host "localhost" means every loopback address
	Data  string
	Args  []string // of the server process, beginning with the subcommand
	Log   *slog.Logger
	Build func(ctx context.Context) error // builds the base Template if it is missing; runs beside the server
	// Builder runs beside the server too, for Tenants' Templates, until ctx ends; nil:
	// none are built.
	Builder func(ctx context.Context) error
	// Saved reports whether any Snapshot needs the parts of a build, wherever its state
	// is kept; nil: only states on this disk are checked.
	Saved func(ctx context.Context, build string) (bool, error)
	// Signature returns the signature of a build from the cluster's authority, for a node
	// whose cluster has a key of builds; nil: only signatures in the data folder are used.
	Signature func(ctx context.Context, build string) ([]byte, error)
	// OldestGVisor is the oldest version of gVisor whose sentry host may be started for
	// saved states; empty: any.
	OldestGVisor string
}

// Run starts everything and waits for the server's end. It returns nil if ctx ended and
// the server drained in time. The error of a failed start names `cloud-sandbox doctor`,
// unless a check of the doctor has found the problem.
func Run(ctx context.Context, o Options) (err error) {
	layout := Layout{Root: o.Data, signature: o.Signature}
	if err := layout.Doctor(o.Addr).Start(); err != nil {
		return err
	}
	started := false
	defer func() {
		if err != nil && !started {
			err = fmt.Errorf("%w; %s", err, doctor.Advice)
		}
	}()
	unix.Umask(0o022) // other users run the unpacked programs
	if err := layout.Make(); err != nil {
		return err
	}
	locks, err := o.lock(layout)
	if err != nil {
		return err
	}
	defer closeAll(locks)
	listeners, err := Listen(o.Addr)
	if err != nil {
		return err
	}
	defer closeAll(listeners)
	if o.Role == "" {
		remove, err := layout.writeAddress(listeners)
		if err != nil {
			return err
		}
		defer remove()
	}
	unpacked, err := payload.Unpack(layout.Binaries())
	if err != nil {
		return err
	}
	if _, err := bootsOf(ctx, layout.HostSocket(unpacked.Build)); err != nil { // it will be started
		if err := layout.trust(ctx, unpacked.Build); err != nil {
			return err // before anything of an earlier build ends
		}
	}
	earlier := &earlierHosts{Layout: layout, own: unpacked.Build, saved: o.Saved, oldest: o.OldestGVisor, log: o.Log}
	running := earlier.takeUp(ctx)
	if err := layout.startHost(ctx, unpacked.Build, layout.Saved()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go layout.keepHost(ctx, unpacked.Build, layout.Saved(), o.Log)
	if o.Build != nil {
		go func() {
			if err := o.Build(ctx); err != nil && ctx.Err() == nil {
				o.Log.Error("building the template base failed", telemetry.KeyError, err)
			}
		}()
	}
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	if err := earlier.serve(ctx, &beside); err != nil {
		return err
	}
	if o.Builder != nil {
		beside.Go(func() { o.keepBuilder(ctx) })
	}
	env := []string{EnvHost + "=" + layout.HostSocket(unpacked.Build), EnvEarlier + "=" + strings.Join(running, ",")}
	cmd, server, err := startServer(o, layout, env, locks, listeners)
	if err != nil {
		return err
	}
	defer server.Close()
	go o.notifyReady(server)
	started = true
	return awaitServer(ctx, cmd)
}

// builderPause is the pause before a builder is restarted; it grows to builderPatience
// while builders end as soon as they start.
const (
	builderPause    = time.Second
	builderPatience = time.Minute
)

// keepBuilder restarts the builder whenever it ends, until ctx ends.
func (o Options) keepBuilder(ctx context.Context) {
	for pause := builderPause; ; pause = min(2*pause, builderPatience) {
		began := time.Now()
		err := o.Builder(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > builderPatience {
			pause = builderPause
		}
		o.Log.Error("the builder of templates ended; restarting it", telemetry.KeyError, err, "in", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// lock takes the locks of the process's role.
func (o Options) lock(layout Layout) ([]*os.File, error) {
	if o.Role != "" {
		return layout.LockRole(o.Role)
	}
	all, err := layout.Lock()
	if err != nil {
		return nil, err
	}
	return []*os.File{all}, nil
}

// Doctor describes this host, for a server of the data folder that listens on addr.
func (l Layout) Doctor(addr string) doctor.Host {
	return doctor.This(l.Root, addr, ServerUID, func(addr string) error {
		files, err := Listen(addr)
		closeAll(files)
		return err
	})
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// Listen opens addr. For the host "localhost" it opens each loopback address of the
// machine, because clients disagree on which one it means.
func Listen(addr string) ([]*os.File, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("--addr %q is not host:port", addr)
	}
	hosts := []string{host}
	if host == "localhost" {
		hosts = []string{"127.0.0.1", "::1"}
	}
	var files []*os.File
	for i, h := range hosts {
		l, err := listen(net.JoinHostPort(h, port))
		if err != nil {
			if i > 0 && !errors.Is(err, unix.EADDRINUSE) {
				continue // no IPv6 here
			}
			closeAll(files)
			return nil, listenError(addr, err)
		}
		_, port, _ = net.SplitHostPort(l.Addr().String()) // port 0 becomes a number
		f, err := l.(*net.TCPListener).File()
		l.Close()
		if err != nil {
			closeAll(files)
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// portWait is how long listen waits for a stopping server: its lock may be free before
// its port is.
const portWait = 500 * time.Millisecond

func listen(addr string) (net.Listener, error) {
	deadline := time.Now().Add(portWait)
	for {
		l, err := net.Listen("tcp", addr)
		if err == nil || !errors.Is(err, unix.EADDRINUSE) || time.Now().After(deadline) {
			return l, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func listenError(addr string, err error) error {
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("%s is in use by another program: stop it, or choose another address with --addr", addr)
	}
	return fmt.Errorf("cannot listen on %s: %w", addr, err)
}

// startServer starts the server process, without rights. The server ends when the
// returned socket is closed.
func startServer(o Options, layout Layout, env []string, locks, listeners []*os.File) (*exec.Cmd, *os.File, error) {
	exe, err := ownCopy(layout, o.Role)
	if err != nil {
		return nil, nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	own, servers := os.NewFile(uintptr(pair[0]), "server"), os.NewFile(uintptr(pair[1]), "launcher")
	defer servers.Close()
	cmd := exec.Command(exe, o.Args...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), EnvListeners+"="+strconv.Itoa(len(listeners)),
		"HOME="+layout.Server(), "CLOUD_SANDBOX_DATA="+layout.Root) // the default folder is root's, not the server's
	cmd.Env = append(cmd.Env, env...)
	cmd.ExtraFiles = append([]*os.File{locks[0], servers}, listeners...)
	cmd.ExtraFiles = append(cmd.ExtraFiles, locks[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: ServerUID, Gid: ServerUID},
		Setpgid:    true, // a terminal's Ctrl-C reaches the launcher, which passes it on
	}
	if err := cmd.Start(); err != nil {
		own.Close()
		return nil, nil, fmt.Errorf("start the server: %w", err)
	}
	closeAll(listeners) // only the server keeps them from now on
	return cmd, own, nil
}

// notifyReady reports to systemd that the server answers requests, once it says so. It
// returns when the socket of the server is closed.
func (o Options) notifyReady(server io.Reader) {
	if n, _ := server.Read(make([]byte, 1)); n == 1 {
		notifySystemd(o.Log)
	}
}

// notifySystemd ends the start of a unit of Type=notify. Without systemd it does
// nothing.
func notifySystemd(log *slog.Logger) {
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		log.Error("notifying systemd of readiness failed", telemetry.KeyError, err)
	}
}

// awaitServer waits until the server has ended. The end of ctx makes it drain.
func awaitServer(ctx context.Context, cmd *exec.Cmd) error {
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	select {
	case err := <-exited:
		return serverError(err)
	case <-ctx.Done():
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-exited:
		return serverError(err)
	case <-time.After(drain):
		_ = cmd.Process.Kill()
		<-exited
		return errors.New("the server did not drain in time and was killed; sandboxes keep running")
	}
}

// ErrServer says that the server ended with an error that it has printed itself.
var ErrServer = errors.New("the server ended with an error")

func serverError(err error) error {
	if err == nil {
		return nil
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return ErrServer
	}
	return fmt.Errorf("the server ended: %w", err)
}

// ownCopy copies this executable to where the server's user can reach it: the original
// may lie in a home folder.
func ownCopy(l Layout, role string) (string, error) {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", err
	}
	defer self.Close()
	name := cmp.Or(role, "cloud-sandbox")
	path := filepath.Join(l.Binaries(), name)
	// A child forked during this holds the copy open for writing until its exec, and a
	// file open for writing cannot be executed.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	tmp, err := os.CreateTemp(l.Binaries(), "."+name+"-")
	if err != nil {
		return "", fmt.Errorf("copy the server's binary: %w", err)
	}
	defer os.Remove(tmp.Name())
	_, err = io.Copy(tmp, self)
	if err = errors.Join(err, tmp.Chmod(0o755), tmp.Close()); err != nil {
		return "", fmt.Errorf("copy the server's binary: %w", err)
	}
	return path, os.Rename(tmp.Name(), path)
}

// Inherited holds the descriptors and values that the launcher passed to the server.
type Inherited struct {
	Listeners  []net.Listener
	HostSocket string
	Earlier    []string   // earlier builds with running Boots
	Locks      []*os.File // held until Close or the process's end
	launcher   *os.File   // nil: systemd or a shell has started this process
}

// Ready reports that this process answers requests. A start by systemd ends with it. A
// failure is logged: the process serves all the same.
func (in Inherited) Ready(log *slog.Logger) {
	if in.launcher == nil {
		notifySystemd(log)
		return
	}
	if _, err := in.launcher.Write([]byte{1}); err != nil {
		log.Error("notifying the launcher of readiness failed", telemetry.KeyError, err)
	}
}

// Close releases the locks. Otherwise they end with the process.
func (in Inherited) Close() { closeAll(in.Locks) }

// Inherit takes over the launcher's descriptors; false: the launcher did not start this
// process. When the launcher is killed, this process ends at once, as if killed itself,
// so that the address and the data folder are free for the next start.
func Inherit() (Inherited, bool, error) {
	count, err := strconv.Atoi(os.Getenv(EnvListeners))
	if err != nil {
		return Inherited{}, false, nil
	}
	in := Inherited{HostSocket: os.Getenv(EnvHost), Locks: []*os.File{os.NewFile(fdLock, "lock")}}
	if builds := os.Getenv(EnvEarlier); builds != "" {
		in.Earlier = strings.Split(builds, ",")
	}
	unix.CloseOnExec(fdLock)
	for i := range count {
		f := os.NewFile(uintptr(fdListener+i), "listener")
		l, err := net.FileListener(f)
		f.Close()
		if err != nil {
			return in, true, fmt.Errorf("take over a listener: %w", err)
		}
		in.Listeners = append(in.Listeners, l)
	}
	unix.CloseOnExec(fdListener + count) // the lock of a role, held as long as the process lives
	in.launcher = os.NewFile(fdLauncher, "launcher")
	unix.CloseOnExec(fdLauncher)
	go func() {
		_, _ = in.launcher.Read(make([]byte, 1)) // ends when the launcher does
		os.Exit(1)
	}()
	return in, true, nil
}

// Signals returns a context that ends with the first SIGINT or SIGTERM.
func Signals(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}
