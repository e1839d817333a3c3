package rig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// ClusterTests is the environment variable that makes the shared Server of a package a
// cluster. Tests that inspect a machine or start their own server are skipped then.
const ClusterTests = "CLUSTER_E2E"

// IsCluster reports whether the shared Server is a cluster.
func IsCluster() bool { return os.Getenv(ClusterTests) != "" }

// EarlierPrograms is the environment variable that names a folder with the programs of an
// earlier version. The Machines of a cluster start with them, and Fleet.Upgrade replaces
// them.
const EarlierPrograms = "CLUSTER_E2E_EARLIER"

// HasEarlier reports whether a part of the cluster runs an earlier version.
func HasEarlier() bool { return IsCluster() && os.Getenv(EarlierPrograms) != "" }

// LacksEarlier skips a test of behavior that the earlier version of a cluster does not
// have.
func LacksEarlier(t testing.TB, why string) {
	t.Helper()
	if HasEarlier() {
		t.Skip("half of the cluster runs an earlier version: " + why)
	}
}

// firstProgram is the program with which the Machines of a cluster start; empty: the one
// under test.
func firstProgram() string {
	if !HasEarlier() {
		return ""
	}
	return filepath.Join(os.Getenv(EarlierPrograms), "cloud-sandbox")
}

// IsEarlier reports whether the Machine runs the earlier version.
func (m *Machine) IsEarlier() bool { return m.Bin == firstProgram() }

// Upgrade ends a Machine of the earlier version and starts the present one on the same
// data folder.
func (f *Fleet) Upgrade(t testing.TB, name string) {
	t.Helper()
	f.Halt(t, name)
	m := f.machines[name]
	bin, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	m.Bin = bin
	if m.role == "node" { // its address of the database, which nodes no longer have
		if err := os.RemoveAll(filepath.Join(m.Data, "server", "database")); err != nil {
			t.Fatal(err)
		}
	}
	f.Start(t, name)
	f.Serves(t, name)
}

// OneMachine skips a test that cannot run here, and a test of a single machine if a cluster is
// tested. Own, PrepareRoles and NewFleet call it: a test calls it before a costly preparation.
func OneMachine(t testing.TB) {
	t.Helper()
	Need(t)
	if IsCluster() {
		t.Skip("it is about one machine, and a cluster is tested")
	}
}

// joinPort is the port at which machines join a cluster.
const joinPort = "9094"

// NewCluster prepares two Machines of each role on a network. Each joins the cluster for
// its certificate, as users' machines do. env is the environment of all of them.
func NewCluster(t testing.TB, network *Network, env ...string) *Fleet {
	t.Helper()
	f := newFleet(t, network, clusterRoles, env)
	ca := f.machines[FleetManager]
	dir := ca.authority()
	join := net.JoinHostPort(ca.Net.IP.String(), joinPort)
	ca.says(t, nil, "cluster", "init", "--dir", dir, "--name", "test", "--join", join, "--instance", "unused")
	if !HasEarlier() { // which signs no builds
		f.SignBuild(t)
	}

	log, err := ca.OpenLog()
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	serve := Command(ca.Bin, "cluster", "serve", "--dir", dir, "--addr", ":"+joinPort)
	serve.Stdout, serve.Stderr = log, log
	if err := ca.Net.start(serve); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = serve.Process.Signal(syscall.SIGTERM)
		if err := serve.Wait(); err != nil {
			t.Errorf("cluster serve ends with %v", err)
		}
	})
	Within(t, Patience, "cluster serve answers", func() bool {
		c, err := net.DialTimeout("tcp", join, time.Second)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	for _, r := range f.roles {
		var token struct{ Token string }
		ca.says(t, &token, "cluster", "token", "--dir", dir, "--role", r.role, "--name", r.name)
		f.machines[r.name].says(t, nil, "cluster", "join", "--token", token.Token, "--data", f.machines[r.name].Data)
	}
	return f
}

// authority is the folder of the cluster's CA, on the Machine that has it.
func (m *Machine) authority() string { return filepath.Join(m.Data, "authority") }

// SignBuild signs a build where the cluster's CA is, and uploads it if the Fleet has a blob
// store. args say which build; none: the one under test.
func (f *Fleet) SignBuild(t testing.TB, args ...string) {
	t.Helper()
	ca := f.machines[FleetManager]
	ca.saysIn(t, f.env, nil, append([]string{"cluster", "sign-build", "--dir", ca.authority()}, args...)...)
}

// ReplaceBuildKey replaces the key that signs the cluster's builds, and returns the new one.
func (f *Fleet) ReplaceBuildKey(t testing.TB) string {
	t.Helper()
	ca := f.machines[FleetManager]
	var made struct{ Key string }
	ca.saysIn(t, f.env, &made, "cluster", "build-key", "--dir", ca.authority(), "--replace")
	return made.Key
}

// says runs a command of the program under test on the Machine, and decodes its JSON
// output into reply, which may be nil.
func (m *Machine) says(t testing.TB, reply any, args ...string) {
	t.Helper()
	m.saysIn(t, nil, reply, args...)
}

// saysIn is says with further environment variables.
func (m *Machine) saysIn(t testing.TB, env []string, reply any, args ...string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := Command(m.Bin, append(args, "--json")...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := m.Net.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err == nil && reply != nil {
		err = json.Unmarshal(stdout.Bytes(), reply)
	}
	if err != nil {
		t.Fatalf("%s: %s: %v: %s%s", m.Name, args[:2], err, stdout.Bytes(), stderr.Bytes())
	}
}

// Gateways returns a Server whose clients alternate between both gateways.
func (f *Fleet) Gateways() *Server {
	a, b := f.machines[FleetGatewayA].Server, f.machines[FleetGatewayB].Server
	s := a
	if HasEarlier() { // its commands know the schema
		s = b
	}
	s.turns = []string{a.URL, b.URL}
	s.secret = fleetSecret
	s.nodes = []*Server{f.machines[FleetHome].Server, f.machines[FleetNode].Server}
	return s
}

// Lead waits until a session-manager leads, and returns its Machine and the standby's.
func (f *Fleet) Lead(t testing.TB) (leader, standby *Machine) {
	t.Helper()
	both := []*Machine{f.machines[FleetManager], f.machines[FleetManagerB]}
	Within(t, Patience, "one session-manager leads", func() bool {
		for i, m := range both {
			if m.leads() {
				leader, standby = m, both[1-i]
				return true
			}
		}
		return false
	})
	return leader, standby
}

// leads reports whether the Machine's session-manager leads.
func (m *Machine) leads() bool {
	var ready struct{ Lead string }
	c := &Client{URL: m.URL, HTTP: brief}
	return c.Try("GET", "/ready", nil, &ready) == nil && ready.Lead == "leader"
}

// HandOver stops the leader's process until the standby leads, and returns the Machine that
// leads then.
func (f *Fleet) HandOver(t testing.TB) *Machine {
	t.Helper()
	leader, standby := f.Lead(t)
	signal := func(s syscall.Signal) {
		if err := leader.cmd.Process.Signal(s); err != nil {
			t.Fatalf("signal %s: %v", leader.Name, err)
		}
	}
	signal(syscall.SIGSTOP)
	defer signal(syscall.SIGCONT)
	Within(t, Patience, standby.Name+" leads", standby.leads)
	return standby
}

// Lasting is a testing.TB for resources that all tests of a package share. It supports
// the methods that rigs call.
type Lasting struct {
	testing.TB // nil: a method that is missing here panics
	failed     bool
	cleanups   []func()
	folders    int
	root       string
}

// stopped is the panic value of Fatal, and skipped that of Skip.
type (
	stopped string
	skipped string
)

func (s stopped) Error() string { return string(s) }
func (s skipped) Error() string { return string(s) }

func (l *Lasting) Helper()          {}
func (l *Lasting) Failed() bool     { return l.failed }
func (l *Lasting) Cleanup(f func()) { l.cleanups = append(l.cleanups, f) }

func (l *Lasting) Log(args ...any) { fmt.Println(args...) }

func (l *Lasting) Logf(format string, args ...any) { fmt.Printf(format+"\n", args...) }

func (l *Lasting) Error(args ...any) {
	l.failed = true
	fmt.Println(append([]any{"FAIL:"}, args...)...)
}

func (l *Lasting) Errorf(format string, args ...any) { l.Error(fmt.Sprintf(format, args...)) }
func (l *Lasting) Fatal(args ...any)                 { panic(stopped(fmt.Sprint(args...))) }
func (l *Lasting) Fatalf(format string, args ...any) { panic(stopped(fmt.Sprintf(format, args...))) }
func (l *Lasting) Skip(args ...any)                  { panic(skipped(fmt.Sprint(args...))) }
func (l *Lasting) Skipf(format string, args ...any)  { panic(skipped(fmt.Sprintf(format, args...))) }

// TempDir implements testing.TB.
func (l *Lasting) TempDir() string {
	if l.root == "" {
		var err error
		if l.root, err = os.MkdirTemp("/var/tmp", "cloud-sandbox-lasting-"); err != nil {
			l.Fatal(err)
		}
		root := l.root
		l.cleanups = append([]func(){func() { os.RemoveAll(root) }}, l.cleanups...)
	}
	l.folders++
	dir := filepath.Join(l.root, fmt.Sprint(l.folders))
	if err := os.Mkdir(dir, 0o755); err != nil {
		l.Fatal(err)
	}
	return dir
}

// Outside calls f with a Lasting, outside of a test. It returns the reason of a Fatal or
// Skip, or an error if something failed.
func Outside(f func(testing.TB)) error {
	l := &Lasting{}
	err := l.try(func() { f(l) })
	l.close()
	if err == nil && l.failed {
		err = errors.New("something failed: see above")
	}
	return err
}

// try calls f, and returns the reason of a Fatal or Skip in it.
func (l *Lasting) try(f func()) (err error) {
	defer func() {
		switch why := recover().(type) {
		case nil:
		case stopped:
			err = why
		case skipped:
			err = why
		default:
			panic(why)
		}
	}()
	f()
	return nil
}

// close runs the Cleanup functions, the last first.
func (l *Lasting) close() {
	for len(l.cleanups) > 0 {
		last := l.cleanups[len(l.cleanups)-1]
		l.cleanups = l.cleanups[:len(l.cleanups)-1]
		if err := l.try(last); err != nil {
			l.Error(err)
		}
	}
}
