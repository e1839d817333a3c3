package rig

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/addrtest"
)

// RoleNames lists the roles in start order.
var RoleNames = []string{"node", "scheduler", "session-manager", "gateway"}

// Roles is an installation in which each role is a process.
type Roles struct {
	*Server
	Addrs map[string]string // by role
	// Monitors has the monitoring addresses of roles that do not serve monitoring at
	// Addrs. Only has the environment of single roles, KEY=VALUE.
	Monitors map[string]string
	Only     map[string][]string
	parts    map[string]*rolePart
}

type rolePart struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
	err  error         // of cmd, once done
}

// OwnRoles starts the four roles for this test only.
func OwnRoles(t testing.TB, o Options) *Roles {
	t.Helper()
	r := PrepareRoles(t, o)
	for _, role := range RoleNames {
		r.Start(t, role)
	}
	r.Serves(t)
	return r
}

// PrepareRoles chooses ports and a data folder, without starting a role.
func PrepareRoles(t testing.TB, o Options) *Roles {
	t.Helper()
	OneMachine(t)
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	r := &Roles{Server: s, Addrs: map[string]string{}, parts: map[string]*rolePart{}}
	for _, role := range RoleNames {
		if _, err := os.Stat(r.program(role)); err != nil {
			t.Skipf("`make build-all` has not built the roles: %v", err)
		}
		if r.Addrs[role], err = addrtest.Free(); err != nil {
			t.Fatal(err)
		}
	}
	r.Addrs["gateway"] = s.Addr
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(r.Log())
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *Roles) program(role string) string { return filepath.Join(filepath.Dir(r.Bin), role) }

// Env is the environment of every role.
func (r *Roles) Env() []string {
	env := append(os.Environ(), "CLOUD_SANDBOX_DATA="+r.Data, "CLOUD_SANDBOX_DEV=true",
		fmt.Sprintf("POOL_MIN_SIZE=%d", r.opts.Pool), fmt.Sprintf("POOL_MAX_SIZE=%d", r.opts.Pool))
	for role, addr := range r.Addrs {
		name := "CLOUD_SANDBOX_ADDR"
		if role != "gateway" {
			name = "CLOUD_SANDBOX_" + strings.ToUpper(strings.ReplaceAll(role, "-", "_")) + "_ADDR"
		}
		env = append(env, name+"="+addr)
	}
	return append(env, r.opts.Env...)
}

// LogFile is the log file of the processes of s.
func (s *Server) LogFile() string { return s.log }

// OpenLog opens the log file for appending.
func (s *Server) OpenLog() (*os.File, error) {
	return os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
}

// Start starts a role, without waiting until it serves.
func (r *Roles) Start(t testing.TB, role string) {
	t.Helper()
	log, err := r.OpenLog()
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p := &rolePart{cmd: exec.Command(r.program(role)), done: make(chan struct{})}
	p.cmd.Env = append(r.Env(), r.Only[role]...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.err = p.cmd.Wait(); close(p.done) }()
	r.parts[role] = p
}

// Serves waits until every started role reports that it is ready.
func (r *Roles) Serves(t testing.TB) {
	t.Helper()
	for role, p := range r.parts {
		Within(t, 3*time.Minute, "the "+role+" is ready", func() bool {
			select {
			case <-p.done:
				t.Fatalf("the %s ended: %v", role, p.err)
			default:
			}
			code, _, err := r.Ask(role, "/ready")
			return err == nil && code == 200
		})
	}
}

// Ask sends a GET to a role without a token.
func (r *Roles) Ask(role, path string) (int, []byte, error) {
	c := &Client{URL: "http://" + cmp.Or(r.Monitors[role], r.Addrs[role]), HTTP: brief}
	return c.Do("GET", path, nil)
}

// Kill sends SIGKILL to the process that Start started, and waits for its end.
func (r *Roles) Kill(t testing.TB, role string) {
	t.Helper()
	p := r.parts[role]
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatalf("kill the %s: %v", role, err)
	}
	<-p.done
	delete(r.parts, role)
	if role == "node" {
		Within(t, Patience, "the end of the node's server after its launcher", func() bool {
			_, runs := r.nodeServer()
			return !runs
		})
	}
}

// Ended waits for the end of a role that was ended without Kill.
func (r *Roles) Ended(t testing.TB, role string) {
	t.Helper()
	select {
	case <-r.parts[role].done:
		delete(r.parts, role)
	case <-time.After(Patience):
		t.Fatalf("the %s goes on", role)
	}
}

// NodeServer returns the server process below the Node's launcher.
func (r *Roles) NodeServer(t testing.TB) Process {
	t.Helper()
	p, ok := r.nodeServer()
	if !ok {
		t.Fatal("the node's server does not run")
	}
	return p
}

// nodeServer finds the server process of the role node.
func (s *Server) nodeServer() (Process, bool) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscan(e.Name(), &pid); err != nil {
			continue
		}
		if p, ok := readProcess(pid); ok && p.Args[0] == filepath.Join(s.Data, "lib", "node") {
			return p, true
		}
	}
	return Process{}, false
}

// Close stops every role, ends leftovers, and removes the data folder.
func (r *Roles) Close() error {
	var errs []error
	order := slices.Collect(maps.Keys(r.parts))
	slices.SortFunc(order, func(a, b string) int { return slices.Index(RoleNames, b) - slices.Index(RoleNames, a) })
	for _, role := range order {
		p := r.parts[role]
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(Patience):
			_ = p.cmd.Process.Kill()
			<-p.done
			errs = append(errs, fmt.Errorf("the %s did not end within %v of SIGTERM", role, Patience))
		}
		if p.err != nil {
			errs = append(errs, fmt.Errorf("the %s: %w", role, p.err))
		}
	}
	return errors.Join(append(errs, r.Server.Close())...)
}

// Pid returns the ID of the process that Start started.
func (r *Roles) Pid(role string) int { return r.parts[role].cmd.Process.Pid }
