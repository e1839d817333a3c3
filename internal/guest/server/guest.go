package server

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
)

// searchPath is where programs are looked up, and the PATH of every Process.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Defaults for values that Bind leaves empty.
const (
	defaultUser = "user"
	defaultCwd  = "/workspace"
)

// Guest is the agent of one Boot: its owner and its running programs.
type Guest struct {
	Accounts Accounts
	Reaper   *Reaper

	runs atomic.Uint64 // names runs within this Boot

	mu     sync.Mutex
	owner  Owner
	bound  bool
	active map[int]*run // by the leader's PID
	host   string       // hostname that was applied last
	pids   int64        // limit of processes and threads that was applied last; zero: none
	ready  bool         // the default user exists
	random int          // descriptor of the kernel's randomness, to be written; -1: not open
	idle   map[net.Conn]struct{}

	away            time.Duration            // time between saves and restores, in total
	rebound         chan struct{}            // closed by the Bind of a restored Boot; nil: no waiter
	savedAt         func() (time.Time, bool) // when the Boot was saved, if it was restored and is not bound yet; zero: see reportedSavedAt
	reportedSavedAt time.Time                // when the Boot was saved, for a Boot that cannot know

	mounted mounted // Volumes
	shells  shells

	template   guest.Template // read from the image
	begun      bool           // the Template's start command was started
	startChild *Child         // that command's process; nil: none
}

// Owner holds the values of Bind.
type Owner struct {
	SandboxID   string
	BootNumber  int64
	AccessToken string
	Template    string
	Hostname    string
	Env         map[string]string
	User        string
	Cwd         string
	Timeline    int64
	PidsLimit   int64
	Volumes     []VolumeMount
	Authority   string // certificates in PEM to trust; empty: none
	Restored    bool   // the Boot started from a saved state, and this is its first owner
}

// New returns a Guest without an owner.
func New(accounts Accounts, reaper *Reaper) *Guest {
	return &Guest{Accounts: accounts, Reaper: reaper, active: map[int]*run{}, idle: map[net.Conn]struct{}{}, random: -1, savedAt: savedAt}
}

func (g *Guest) pidsLimit() int64 {
	owner, _ := g.Owner()
	return owner.PidsLimit
}

// ErrBound says that the Boot has another owner.
var ErrBound = errors.New("this boot belongs to another sandbox")

// errNobody says that a Bind names no Sandbox.
var errNobody = &InvalidError{"a boot is bound to a sandbox: name its ID"}

// ErrNotBound says that nothing may run before Bind.
var ErrNotBound = errors.New("this boot has no owner yet")

// Owner returns the owner of the Boot; false: it has none yet.
func (g *Guest) Owner() (Owner, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.owner, g.bound
}

// Bind gives the Boot its owner. A repeat for the same Sandbox and number takes the
// newer values. In a restored Boot, everything else stands still until Bind has
// returned.
func (g *Guest) Bind(o Owner, clock int64, entropy []byte) error {
	if o.User == "" {
		o.User = defaultUser
	}
	o.Cwd = folder(o.Cwd, defaultCwd, "~")
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.bound && g.owner.SandboxID == o.SandboxID && g.owner.BootNumber == o.BootNumber {
		o.Restored = false // an earlier Bind did that, and its answer was lost
	}
	if o.Restored {
		g.forget(clock)
	} else {
		if g.bound && (g.owner.SandboxID != o.SandboxID || g.owner.BootNumber != o.BootNumber) {
			return ErrBound
		}
		if o.User != defaultUser || !g.ready {
			if _, err := g.Accounts.User(o.User); err != nil {
				return err
			}
		}
	}
	g.applyIdentity(o.Hostname)
	g.stir(entropy)
	setClock(clock)
	if err := g.limitProcesses(o.PidsLimit, o.Restored); err != nil {
		return err
	}
	if o.Authority != "" && o.Authority != g.owner.Authority {
		// The user may have changed these files since; that must not fail the Bind.
		if err := trust("/", o.Authority); err != nil && !g.bound && !o.Restored {
			return err
		}
	}
	if o.SandboxID == "" { // not earlier: Rehearse runs up to here
		return errNobody
	}
	if !g.bound || o.Restored { // a repeat leaves Volumes as they are
		if err := g.mountVolumes(o.Volumes); err != nil {
			return err
		}
	}
	g.owner, g.bound = o, true
	if o.Restored {
		g.tellRestored()
	}
	g.shells.mu.Lock()
	defer g.shells.mu.Unlock()
	g.shells.expire()
	return nil
}

// limitProcesses limits the user's processes and threads if the limit differs from
// the last one or again is set. Children inherit our limit, which binds only
// unprivileged processes and so not us. Running processes have their own copies,
// which are set too; a process that starts just now and is missed keeps the old
// limit. The caller holds g.mu.
func (g *Guest) limitProcesses(n int64, again bool) error {
	if n <= 0 || n == g.pids && !again || os.Getpid() != 1 {
		return nil
	}
	limit := unix.Rlimit{Cur: uint64(n), Max: uint64(n)}
	if err := unix.Setrlimit(unix.RLIMIT_NPROC, &limit); err != nil {
		return fmt.Errorf("limit processes: %w", err)
	}
	for _, t := range tasks() {
		_ = unix.Prlimit(t.pid, unix.RLIMIT_NPROC, &limit, nil) // it may have ended
	}
	g.pids = n
	return nil
}

// Prepare does the part of Bind that is the same for most owners ahead of it: each
// file that Bind need not write saves a millisecond.
func (g *Guest) Prepare(hostname string) {
	_, err := g.Accounts.User(defaultUser) // which reads the accounts
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ready = err == nil
	g.applyIdentity(hostname)
	if fd, err := unix.Open("/dev/urandom", unix.O_WRONLY|unix.O_CLOEXEC, 0); err == nil {
		g.random = fd
	}
}

// Limit sets the limit of processes ahead of Bind, before any process is started.
func (g *Guest) Limit(pids int64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limitProcesses(pids, false)
}

// Park starts a bash that waits for its owner's first command, before the Boot has
// an owner. It first runs another bash: that looks up the files that every command
// reads, and makes the kernel's first address space for a Process, which is kept
// for the next one. Then Park collects the garbage of this and of the start, so
// that Bind need not.
func (g *Guest) Park() {
	g.PrepareShell()
	runtime.GC()
}

// eventsAddress is link.EventsAddress, which the link routes to the Guest.
const eventsAddress = "192.0.2.1"

// applyIdentity sets the hostname and makes it resolve. A failure leaves the
// old name, which does no harm. The caller holds g.mu.
func (g *Guest) applyIdentity(hostname string) {
	if hostname == "" || hostname == g.host {
		return
	}
	g.host = hostname
	_ = unix.Sethostname([]byte(hostname))
	_ = os.WriteFile("/etc/hostname", []byte(hostname+"\n"), 0o644)
	_ = os.WriteFile("/etc/hosts", []byte("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n10.0.0.2\t"+hostname+"\n"+eventsAddress+"\t"+guest.EventsName+"\n"), 0o644)
}

// stir mixes the host's entropy into the kernel's. The caller holds g.mu.
func (g *Guest) stir(entropy []byte) {
	if len(entropy) > 0 && g.random >= 0 {
		_, _ = unix.Write(g.random, entropy)
	}
}

// setClock steps the clock when it is off by more than a second. gVisor follows the
// host's clock and refuses the step, which is as good.
func setClock(nanos int64) {
	if nanos <= 0 {
		return
	}
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_REALTIME, &now) != nil {
		return
	}
	if off := now.Nano() - nanos; off < -1e9 || off > 1e9 {
		ts := unix.NsecToTimespec(nanos)
		_ = unix.ClockSettime(unix.CLOCK_REALTIME, &ts)
	}
}

// Command is a program to start, resolved and checked: only the program itself can
// still fail.
type Command struct {
	Path string
	Args []string
	Env  []string
	Cwd  string
	User User
}

// InvalidError says that a request cannot be started as given.
type InvalidError struct{ Reason string }

func (e *InvalidError) Error() string { return e.Reason }

func invalid(format string, args ...any) error { return &InvalidError{fmt.Sprintf(format, args...)} }

// Command resolves a request against the owner's defaults. cwd may be absolute,
// relative to the owner's, or begin with "~"; empty is the owner's.
func (g *Guest) Command(args []string, env map[string]string, cwd, user string) (Command, error) {
	owner, bound := g.Owner()
	if !bound {
		return Command{}, ErrNotBound
	}
	return g.resolve(owner, args, env, cwd, user)
}

// CommandAhead is Command for a program that starts before the Boot has an owner:
// as the default user, in the root folder.
func (g *Guest) CommandAhead(args []string) (Command, error) {
	return g.resolve(Owner{User: defaultUser, Cwd: "/"}, args, nil, "", "")
}

func (g *Guest) resolve(owner Owner, args []string, env map[string]string, cwd, user string) (Command, error) {
	if len(args) == 0 || args[0] == "" {
		return Command{}, invalid("no program is named")
	}
	for _, a := range args {
		if strings.ContainsRune(a, 0) {
			return Command{}, invalid("an argument holds a zero byte")
		}
	}
	if user == "" {
		user = owner.User
	}
	u, err := g.Accounts.User(user)
	if err != nil {
		return Command{}, invalid("%v", err)
	}
	c := Command{Args: args, User: u, Env: environment(g.templateEnv(), owner, u, env)}
	if c.Cwd, err = workingDir(cwd, owner.Cwd, u); err != nil {
		return Command{}, err
	}
	c.Path, err = lookPath(args[0], pathOf(c.Env), c.Cwd)
	return c, err
}

// environment merges the variables of a Process: the Template's, the user's, the
// Sandbox's and the request's. Later ones override earlier ones.
func environment(template map[string]string, owner Owner, u User, request map[string]string) []string {
	env := map[string]string{
		"PATH": searchPath,
		// Not LANG: it has every program open eleven more files, all as in C.
		"LC_CTYPE": "C.UTF-8",
	}
	maps.Copy(env, template)
	maps.Copy(env, map[string]string{"HOME": u.Home, "USER": u.Name, "LOGNAME": u.Name, "SHELL": u.Shell})
	maps.Copy(env, SandboxEnv(owner))
	maps.Copy(env, request)
	out := make([]string, 0, len(env))
	for k, v := range env {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return out
}

// SandboxEnv is the Sandbox's own part of the environment.
func SandboxEnv(owner Owner) map[string]string {
	env := map[string]string{
		"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": owner.SandboxID, "E2B_TEMPLATE_ID": owner.Template,
		"E2B_EVENTS_ADDRESS": "http://" + eventsAddress,
	}
	if owner.Authority != "" {
		maps.Copy(env, trustEnv())
	}
	maps.Copy(env, owner.Env)
	return env
}

func pathOf(env []string) string {
	for _, v := range env {
		if p, ok := strings.CutPrefix(v, "PATH="); ok {
			return p
		}
	}
	return searchPath
}

func workingDir(cwd, base string, u User) (string, error) {
	cwd = folder(cwd, folder(base, defaultCwd, u.Home), u.Home)
	info, err := os.Stat(cwd)
	if err != nil || !info.IsDir() {
		return "", invalid("the working directory %q does not exist", cwd)
	}
	return cwd, nil
}

// folder makes a path absolute. The path is absolute already, begins with "~", or
// is relative to base; empty is base.
func folder(path, base, home string) string {
	switch {
	case path == "~" || strings.HasPrefix(path, "~/"):
		return filepath.Join(home, path[1:])
	case filepath.IsAbs(path):
		return path
	}
	return filepath.Join(base, path)
}

// lookPath finds a program as a shell does: a name with a slash is a path.
func lookPath(name, path, cwd string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(cwd, name)
		}
		return name, executable(name)
	}
	for dir := range strings.SplitSeq(path, ":") {
		if dir == "" {
			continue
		}
		if p := filepath.Join(dir, name); executable(p) == nil {
			return p, nil
		}
	}
	return "", invalid("the program %q is not in PATH", name)
}

func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return invalid("the program %q does not exist", path)
	}
	if info.IsDir() || info.Mode()&0o111 == 0 {
		return invalid("%q is not a program", path)
	}
	return nil
}

// Start starts a resolved command in a session of its own, with fds as its
// descriptors from 0 on. The caller still has to close fds.
func (g *Guest) Start(c Command, fds []int, terminal bool) (*Child, error) {
	files := make([]uintptr, len(fds))
	for i, fd := range fds {
		files[i] = uintptr(fd)
	}
	attr := &syscall.ProcAttr{
		Dir: c.Cwd, Env: c.Env, Files: files,
		Sys: &syscall.SysProcAttr{
			Setsid: true, Setctty: terminal,
			Credential: &syscall.Credential{Uid: c.User.UID, Gid: c.User.GID, Groups: c.User.Groups},
		},
	}
	child, err := g.Reaper.Start(c.Path, c.Args, attr)
	if err != nil {
		return nil, startError(c, err)
	}
	return child, nil
}

// startError says what to do about a program that cannot be started.
func startError(c Command, err error) error {
	switch {
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return invalid("%s may not run %q in %q", c.User.Name, c.Args[0], c.Cwd)
	case errors.Is(err, syscall.ENOEXEC):
		return invalid("%q is not a program: has it a #! line?", c.Path)
	case errors.Is(err, syscall.ENOENT):
		return invalid("%q or its interpreter does not exist", c.Path)
	case errors.Is(err, syscall.E2BIG), errors.Is(err, syscall.ENAMETOOLONG): // gVisor returns the latter for one long argument
		return invalid("argument list too long: one argument or variable may have up to 128 KiB, and all together up to 2 MiB; write more to a file, or send it by stdin")
	}
	return fmt.Errorf("start %s: %w", c.Args[0], err)
}
