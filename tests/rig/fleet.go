package rig

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Machine is one role with a data folder of its own, as on another host.
type Machine struct {
	*Server
	Name string
	role string
}

// Fleet is an installation whose roles share nothing but a database, secrets in their
// environment, and addresses.
type Fleet struct {
	machines map[string]*Machine
	env      []string
}

// Names of the Machines of a Fleet.
const (
	FleetGatewayA  = "gateway-a"
	FleetGatewayB  = "gateway-b"
	FleetManager   = "manager"
	FleetScheduler = "scheduler"
	FleetHome      = "node-a" // keeps the Templates
	FleetNode      = "node-b"
)

var fleetRoles = []struct{ name, role string }{
	{FleetHome, "node"},
	{FleetNode, "node"},
	{FleetScheduler, "scheduler"},
	{FleetManager, "session-manager"},
	{FleetGatewayA, "gateway"},
	{FleetGatewayB, "gateway"},
}

// NewFleet prepares a Fleet without starting its Machines. env is the environment of all
// of them.
func NewFleet(t testing.TB, env ...string) *Fleet {
	t.Helper()
	Need(t)
	f := &Fleet{machines: map[string]*Machine{}}
	for _, r := range fleetRoles {
		s, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		if r.name != FleetHome { // it has nothing that it does not get from the others
			if err := os.RemoveAll(filepath.Join(s.Data, "templates")); err != nil {
				t.Fatal(err)
			}
		}
		log, err := s.OpenLog() // also of one that is never started
		if err != nil {
			t.Fatal(err)
		}
		log.Close()
		m := &Machine{Server: s, Name: r.name, role: r.role}
		if _, err := os.Stat(m.program()); err != nil {
			t.Skipf("`make build-all` has not built the roles: %v", err)
		}
		f.machines[r.name] = m
		t.Cleanup(func() {
			if t.Failed() {
				t.Log(m.Name, m.Log())
			}
			if err := errors.Join(m.stop(), m.Close()); err != nil {
				t.Errorf("%s: %v", m.Name, err)
			}
		})
	}
	at := func(name string) string { return f.machines[name].URL }
	f.env = append([]string{
		"CLOUD_SANDBOX_DEV=true", "POOL_MIN_SIZE=1", "POOL_MAX_SIZE=1", "SPARE_SENTRIES=0",
		"JWT_SECRET=" + strings.Repeat("j", 40), "CLOUD_SANDBOX_GUEST_SEED=" + strings.Repeat("g", 40),
		"CLOUD_SANDBOX_SERVICE_SECRET=" + strings.Repeat("s", 40), "CLOUD_SANDBOX_SECRETS_KEY=" + strings.Repeat("ab", 32),
		"CLOUD_SANDBOX_SESSION_MANAGER_URL=" + at(FleetManager), "CLOUD_SANDBOX_SCHEDULER_URL=" + at(FleetScheduler),
		"CLOUD_SANDBOX_TEMPLATES_URL=" + at(FleetHome),
	}, env...)
	return f
}

// Machine returns a Machine by its name.
func (f *Fleet) Machine(name string) *Machine { return f.machines[name] }

// StartAll starts all Machines and waits until they are ready.
func (f *Fleet) StartAll(t testing.TB) {
	t.Helper()
	for _, r := range fleetRoles {
		f.Start(t, r.name)
	}
	for _, r := range fleetRoles {
		f.Serves(t, r.name)
	}
}

func (m *Machine) program() string { return filepath.Join(filepath.Dir(m.Bin), m.role) }

// Start starts a Machine, without waiting until it serves. env is added to the Fleet's.
func (f *Fleet) Start(t testing.TB, name string, env ...string) {
	t.Helper()
	m := f.machines[name]
	m.hangUp()
	log, err := m.OpenLog()
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	address := "CLOUD_SANDBOX_ADDR"
	if m.role != "gateway" {
		address = "CLOUD_SANDBOX_" + strings.ToUpper(strings.ReplaceAll(m.role, "-", "_")) + "_ADDR"
	}
	m.cmd = exec.Command(m.program(), "--data", m.Data)
	m.cmd.Env = append(append(os.Environ(), f.env...), address+"="+m.Addr)
	if m.role == "node" {
		m.cmd.Env = append(m.cmd.Env, "CLOUD_SANDBOX_NODE="+m.Name, "CLOUD_SANDBOX_NODE_URL="+m.URL)
	}
	m.cmd.Env = append(m.cmd.Env, env...)
	m.cmd.Stdout, m.cmd.Stderr = log, log
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	m.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) { m.err = cmd.Wait(); close(done) }(m.cmd, m.done)
}

// Serves waits until a Machine reports that it is ready.
func (f *Fleet) Serves(t testing.TB, name string) {
	t.Helper()
	if err := f.machines[name].Ready(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// Kill ends a Machine's process, as it was started, with SIGKILL.
func (f *Fleet) Kill(t testing.TB, name string) {
	t.Helper()
	m := f.machines[name]
	if err := m.cmd.Process.Kill(); err != nil {
		t.Fatalf("kill %s: %v", name, err)
	}
	<-m.done
	m.cmd = nil
	if m.role == "node" {
		Within(t, Patience, "the end of the node's server after its launcher", func() bool {
			_, runs := m.nodeServer()
			return !runs
		})
	}
}

// Forget forgets a Machine's process that has ended with an error.
func (f *Fleet) Forget(name string) { f.machines[name].cmd = nil }

// stop ends a Machine with SIGTERM.
func (m *Machine) stop() error {
	if m.cmd == nil {
		return nil
	}
	_ = m.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-m.done:
	case <-time.After(Patience):
		_ = m.cmd.Process.Kill()
		<-m.done
		return fmt.Errorf("it did not end within %v of SIGTERM", Patience)
	}
	m.cmd = nil
	return m.err
}
