package rig

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Machine is one role with a data folder of its own, as on another host. Its URL serves
// /health and /ready without credentials.
type Machine struct {
	*Server
	Name string
	// Net is its network; nil: this host's.
	Net *Namespace

	role string
	addr string // HOST:PORT where other roles call it
}

// Fleet is an installation whose roles share nothing but a database, secrets in their
// environment, and addresses.
type Fleet struct {
	machines map[string]*Machine
	roles    []fleetRole
	env      []string
	secured  bool // with certificates of a cluster
}

// Names of the Machines of a Fleet.
const (
	FleetGatewayA   = "gateway-a"
	FleetGatewayB   = "gateway-b"
	FleetManager    = "manager"
	FleetManagerB   = "manager-b" // only in a Cluster
	FleetScheduler  = "scheduler"
	FleetSchedulerB = "scheduler-b" // only in a Cluster
	FleetHome       = "node-a"      // keeps the Templates
	FleetNode       = "node-b"
)

type fleetRole struct{ name, role string }

var fleetRoles = []fleetRole{
	{FleetHome, "node"},
	{FleetNode, "node"},
	{FleetScheduler, "scheduler"},
	{FleetManager, "session-manager"},
	{FleetGatewayA, "gateway"},
	{FleetGatewayB, "gateway"},
}

var clusterRoles = []fleetRole{
	{FleetHome, "node"},
	{FleetNode, "node"},
	{FleetScheduler, "scheduler"},
	{FleetSchedulerB, "scheduler"},
	{FleetManager, "session-manager"},
	{FleetManagerB, "session-manager"},
	{FleetGatewayA, "gateway"},
	{FleetGatewayB, "gateway"},
}

// NewFleet prepares a Fleet without starting its Machines. env is the environment of all
// of them.
func NewFleet(t testing.TB, env ...string) *Fleet {
	t.Helper()
	OneMachine(t)
	return newFleet(t, nil, fleetRoles, append([]string{"CLOUD_SANDBOX_DEV=true", "CLOUD_SANDBOX_SERVICE_SECRET=" + strings.Repeat("s", 40), "POOL_MIN_SIZE=1", "POOL_MAX_SIZE=1"}, env...))
}

// newFleet prepares Machines, on a network or, if that is nil, all on this host.
func newFleet(t testing.TB, network *Network, roles []fleetRole, env []string) *Fleet {
	t.Helper()
	Need(t)
	f := &Fleet{machines: map[string]*Machine{}, roles: roles, secured: network != nil}
	for _, r := range roles {
		f.machines[r.name] = newMachine(t, network, r)
	}
	scheme := "http://"
	if f.secured {
		scheme = "https://"
	}
	f.env = append([]string{
		"SPARE_SENTRIES=0", "JWT_SECRET=" + fleetSecret, "CLOUD_SANDBOX_GUEST_SEED=" + strings.Repeat("g", 40),
		"CLOUD_SANDBOX_SECRETS_KEY=" + strings.Repeat("ab", 32),
		"CLOUD_SANDBOX_TEMPLATES_URL=" + scheme + f.machines[FleetHome].addr,
	}, env...)
	if f.secured {
		f.env = append(f.env, "CLOUD_SANDBOX_TEMPLATES_NODE="+FleetHome)
	}
	return f
}

// newMachine prepares a Machine until the test's end.
func newMachine(t testing.TB, network *Network, r fleetRole) *Machine {
	t.Helper()
	s, err := New(Options{Bin: firstProgram()})
	if err != nil {
		t.Fatal(err)
	}
	m := &Machine{Server: s, Name: r.name, role: r.role, addr: s.Addr}
	if network != nil {
		m.Net = network.Add(t)
		m.addr = net.JoinHostPort(m.Net.IP.String(), strconv.Itoa(rolePorts[r.role]))
		m.URL, m.Addr = "http://"+m.addr, m.addr
		if r.role != "gateway" {
			m.URL = "http://" + m.monitor()
		}
	}
	if r.name != FleetHome { // other machines get templates only from this node
		if err := os.RemoveAll(filepath.Join(s.Data, "templates")); err != nil {
			t.Fatal(err)
		}
	}
	log, err := s.OpenLog() // so that the log exists even if the machine never starts
	if err != nil {
		t.Fatal(err)
	}
	log.Close()
	if _, err := os.Stat(m.program()); err != nil {
		t.Skipf("`make build-all` has not built the roles: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(m.Name, m.Log())
		}
		if err := errors.Join(m.stop(), m.Close()); err != nil {
			t.Errorf("%s: %v", m.Name, err)
		}
	})
	return m
}

// fleetSecret signs the tokens of clients.
var fleetSecret = strings.Repeat("j", 40)

// rolePorts are the ports of roles on machines of their own.
var rolePorts = map[string]int{"gateway": 8080, "scheduler": 9090, "session-manager": 9091, "node": 9092}

// monitor is the monitoring address of a role with a certificate.
func (m *Machine) monitor() string { return net.JoinHostPort(m.Net.IP.String(), "9100") }

// Machine returns a Machine by its name.
func (f *Fleet) Machine(name string) *Machine { return f.machines[name] }

// StartAll starts all Machines and waits until they are ready.
func (f *Fleet) StartAll(t testing.TB) {
	t.Helper()
	for _, r := range f.roles {
		f.Start(t, r.name)
	}
	for _, r := range f.roles {
		f.Serves(t, r.name)
	}
}

func (m *Machine) program() string { return filepath.Join(filepath.Dir(m.Bin), m.role) }

// envOf returns the environment of one Machine, in addition to the Fleet's.
func (f *Fleet) envOf(m *Machine) (env []string) {
	scheme := "http://"
	if f.secured {
		scheme = "https://"
		env = append(env, "CLOUD_SANDBOX_CLUSTER="+m.Identity())
		if m.role != "gateway" {
			env = append(env, "CLOUD_SANDBOX_MONITOR_ADDR="+m.monitor())
		}
	}
	address := "CLOUD_SANDBOX_ADDR"
	if m.role != "gateway" {
		address = "CLOUD_SANDBOX_" + strings.ToUpper(strings.ReplaceAll(m.role, "-", "_")) + "_ADDR"
	}
	env = append(env, address+"="+m.addr)
	switch {
	case m.role == "node" && m.IsEarlier(): // it finds the session-managers in the database
		env = append(env, "CLOUD_SANDBOX_NODE="+m.Name, "CLOUD_SANDBOX_NODE_URL="+scheme+m.addr)
	case m.role == "node":
		managers := scheme + f.machines[FleetManager].addr
		if b := f.machines[FleetManagerB]; b != nil {
			managers += "," + scheme + b.addr
		}
		env = append(env, "CLOUD_SANDBOX_NODE="+m.Name, "CLOUD_SANDBOX_NODE_URL="+scheme+m.addr, "CLOUD_SANDBOX_SESSION_MANAGER_URL="+managers)
	}
	if m.role == "session-manager" { // gateways find it in the database
		scheduler := f.machines[FleetScheduler]
		if (m.Name == FleetManagerB) != HasEarlier() { // each version asks the other one
			scheduler = f.machines[FleetSchedulerB]
		}
		env = append(env, "CLOUD_SANDBOX_SESSION_MANAGER_URL="+scheme+m.addr, "CLOUD_SANDBOX_SCHEDULER_URL="+scheme+scheduler.addr)
	}
	return env
}

// Identity is the folder of the Machine's certificate.
func (m *Machine) Identity() string { return filepath.Join(m.Data, "cluster", m.role) }

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
	m.cmd = exec.Command(m.program(), "--data", m.Data)
	m.cmd.Env = append(append(append(os.Environ(), f.env...), f.envOf(m)...), env...)
	if m.role == "node" && !m.IsEarlier() { // which has no access to the database
		m.cmd.Env = slices.DeleteFunc(m.cmd.Env, func(v string) bool { return strings.HasPrefix(v, "CLOUD_SANDBOX_DATABASE=") })
	}
	m.cmd.Stdout, m.cmd.Stderr = log, log
	if err := m.Net.start(m.cmd); err != nil {
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

// Kill sends SIGKILL to the process that Start started, and waits for its end.
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

// Role is the role of the Machine.
func (m *Machine) Role() string { return m.role }

// Serving returns the ID of the process that serves the Machine's role.
func (m *Machine) Serving(t testing.TB) int {
	t.Helper()
	if m.role == "node" {
		return m.One(t, ServerRole).Pid
	}
	return m.cmd.Process.Pid
}

// Revive starts a Machine again whose process has been killed.
func (f *Fleet) Revive(t testing.TB, name string) {
	t.Helper()
	m := f.machines[name]
	if m.cmd != nil {
		select {
		case <-m.done:
			m.cmd = nil // with an error
		case <-time.After(Patience):
			t.Fatalf("%s goes on", name)
		}
	}
	f.Start(t, name)
	f.Serves(t, name)
}

// Lose ends every process of a Machine with SIGKILL, also those that outlive Kill. The
// server is the first: it reports the end of none of them.
func (f *Fleet) Lose(t testing.TB, name string) {
	t.Helper()
	f.Kill(t, name)
	f.machines[name].killAll(t)
}

// Halt ends a Machine with SIGTERM.
func (f *Fleet) Halt(t testing.TB, name string) {
	t.Helper()
	if err := f.machines[name].stop(); err != nil {
		t.Fatalf("stop %s: %v", name, err)
	}
}

// Forget drops a process that has ended with an error, so that the cleanup does not
// report it.
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

// Sleep stops all processes of a Machine, as when its hypervisor stops it, until wake is
// called.
func (m *Machine) Sleep(t testing.TB) (wake func()) {
	t.Helper()
	asleep := map[int]bool{}
	for fresh := true; fresh; { // also those that were started meanwhile
		all := m.Processes("")
		if server, ok := m.nodeServer(); ok {
			all = append(all, server)
		}
		fresh = false
		for _, p := range append(all, Process{Pid: m.cmd.Process.Pid}) {
			if !asleep[p.Pid] && syscall.Kill(p.Pid, syscall.SIGSTOP) == nil {
				asleep[p.Pid], fresh = true, true
			}
		}
	}
	wake = sync.OnceFunc(func() {
		for pid := range asleep {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	})
	t.Cleanup(wake)
	return wake
}
