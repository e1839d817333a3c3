package server

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// searchPath is where programs are looked up, and the PATH of every Process.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Defaults of a Boot that Bind says nothing about.
const (
	defaultUser = "user"
	defaultCwd  = "/workspace"
)

// Guest is the agent of one Boot: whom it belongs to and what runs in it.
type Guest struct {
	Accounts Accounts
	Reaper   *Reaper

	runs atomic.Uint64 // names runs within this Boot

	mu     sync.Mutex
	owner  Owner
	bound  bool
	active map[int]*run // by the leader's PID
	host   string       // hostname that was applied last
}

// Owner is what Bind said.
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
}

// New returns a Guest that belongs to nobody.
func New(accounts Accounts, reaper *Reaper) *Guest {
	return &Guest{Accounts: accounts, Reaper: reaper, active: map[int]*run{}}
}

func (g *Guest) pidsLimit() int64 {
	owner, _ := g.Owner()
	return owner.PidsLimit
}

// ErrBound says that the Boot has another owner.
var ErrBound = errors.New("this boot belongs to another sandbox")

// ErrNotBound says that nothing may run before Bind.
var ErrNotBound = errors.New("this boot belongs to nobody yet")

// Owner returns whom the Boot belongs to.
func (g *Guest) Owner() (Owner, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.owner, g.bound
}

// Bind opens the Boot's life under an owner. A repeat for the same Sandbox and
// number takes the newer values.
func (g *Guest) Bind(o Owner, clock int64, entropy []byte) error {
	if o.User == "" {
		o.User = defaultUser
	}
	if o.Cwd == "" {
		o.Cwd = defaultCwd
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.bound && (g.owner.SandboxID != o.SandboxID || g.owner.BootNumber != o.BootNumber) {
		return ErrBound
	}
	if _, err := g.Accounts.User(o.User); err != nil {
		return err
	}
	g.applyIdentity(o.Hostname)
	stir(entropy)
	setClock(clock)
	if o.PidsLimit > 0 && os.Getpid() == 1 {
		// Ours is what children inherit; it binds those without rights, us not.
		limit := unix.Rlimit{Cur: uint64(o.PidsLimit), Max: uint64(o.PidsLimit)}
		if err := unix.Setrlimit(unix.RLIMIT_NPROC, &limit); err != nil {
			return fmt.Errorf("limit processes: %w", err)
		}
	}
	g.owner, g.bound = o, true
	return nil
}

// Prepare does ahead of Bind what is the same for most owners: each file that
// Bind need not write is a millisecond that nobody waits for.
func (g *Guest) Prepare(hostname string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.applyIdentity(hostname)
}

// applyIdentity sets the hostname and makes it resolve. A failure leaves the
// old name, which does no harm. The caller holds g.mu.
func (g *Guest) applyIdentity(hostname string) {
	if hostname == "" || hostname == g.host {
		return
	}
	g.host = hostname
	_ = unix.Sethostname([]byte(hostname))
	_ = os.WriteFile("/etc/hostname", []byte(hostname+"\n"), 0o644)
	_ = os.WriteFile("/etc/hosts", []byte("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n10.0.0.2\t"+hostname+"\n"), 0o644)
}

// stir mixes the host's entropy into the kernel's.
func stir(entropy []byte) {
	if len(entropy) > 0 {
		_ = os.WriteFile("/dev/urandom", entropy, 0)
	}
}

// setClock steps the clock when it is off by more than a second. gVisor follows
// the host's clock and refuses, which is as good.
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

// Command is a program to start, resolved: nothing of it can be wrong any more
// but the program itself.
type Command struct {
	Path string
	Args []string
	Env  []string
	Cwd  string
	User User
}

// InvalidError is a request that cannot be started as it is.
type InvalidError struct{ Reason string }

func (e *InvalidError) Error() string { return e.Reason }

func invalid(format string, args ...any) error { return &InvalidError{fmt.Sprintf(format, args...)} }

// Command resolves a request against the owner's defaults. cwd may be absolute,
// relative to the home folder, or begin with "~"; empty is the default.
func (g *Guest) Command(args []string, env map[string]string, cwd, user string) (Command, error) {
	owner, bound := g.Owner()
	if !bound {
		return Command{}, ErrNotBound
	}
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
	c := Command{Args: args, User: u, Env: environment(owner, u, env)}
	if c.Cwd, err = workingDir(cwd, owner.Cwd, u); err != nil {
		return Command{}, err
	}
	c.Path, err = lookPath(args[0], pathOf(c.Env), c.Cwd)
	return c, err
}

// environment is what a Process sees: the user's, the Sandbox's, then the
// request's, later ones first in effect.
func environment(owner Owner, u User, request map[string]string) []string {
	env := map[string]string{
		"PATH": searchPath, "HOME": u.Home, "USER": u.Name, "LOGNAME": u.Name, "SHELL": u.Shell, "LANG": "C.UTF-8",
	}
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
	env := map[string]string{"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": owner.SandboxID, "E2B_TEMPLATE_ID": owner.Template}
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

func workingDir(cwd, fallback string, u User) (string, error) {
	switch {
	case cwd == "":
		cwd = fallback
	case cwd == "~" || strings.HasPrefix(cwd, "~/"):
		cwd = filepath.Join(u.Home, cwd[1:])
	case !filepath.IsAbs(cwd):
		cwd = filepath.Join(u.Home, cwd)
	}
	info, err := os.Stat(cwd)
	if err != nil || !info.IsDir() {
		return "", invalid("the working directory %q does not exist", cwd)
	}
	return cwd, nil
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

// Start starts a resolved command in a session of its own, with these files as
// its descriptors from 0 on.
func (g *Guest) Start(c Command, files []*os.File, terminal bool) (*Child, error) {
	fds := make([]uintptr, len(files))
	for i, f := range files {
		fds[i] = f.Fd() // also makes it blocking, as a program expects
	}
	attr := &syscall.ProcAttr{
		Dir: c.Cwd, Env: c.Env, Files: fds,
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
	case errors.Is(err, syscall.E2BIG):
		return invalid("arguments and environment are too long together")
	}
	return fmt.Errorf("start %s: %w", c.Args[0], err)
}
