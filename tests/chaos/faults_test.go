package chaos

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// errNothing says that there is no process of a role to kill.
var errNothing = errors.New("no such process runs at this moment")

// machine returns the Machine of a name of a plan.
func (s *site) machine(t *testing.T, name string) *rig.Machine {
	t.Helper()
	switch name {
	case leader, standby:
		lead, other := s.Lead(t)
		if name == leader {
			return lead
		}
		return other
	}
	return s.Machine(name)
}

// begin makes a fault, and returns what ends it. The error says why it cannot be made.
func (s *site) begin(t *testing.T, f Fault) (end func(), err error) {
	t.Helper()
	var m *rig.Machine
	if f.Target != "" {
		m = s.machine(t, f.Target)
	}
	switch f.Name {
	case "kill -9 of a gateway", "kill -9 of a session-manager", "kill -9 of a scheduler", "kill -9 of a node's launcher":
		s.Kill(t, m.Name)
		return func() { s.Revive(t, m.Name) }, nil
	case "kill -9 of a node's server":
		rig.Kill(t, m.One(t, rig.ServerRole))
		return func() { s.Revive(t, m.Name) }, nil
	case "kill -9 of a sentry host":
		return s.killOne(t, f, m.Processes(rig.SentryHost))
	case "kill -9 of a link shard":
		return s.killOne(t, f, m.Processes(rig.LinkShard))
	case "kill -9 of a sentry":
		used := s.sentries(m)
		if len(used) == 0 { // after a loss all may be on the other node
			used = append(s.sentries(s.node(0)), s.sentries(s.node(1))...)
		}
		return s.killOne(t, f, used)
	case "kill -9 of all of a node's processes":
		s.Lose(t, m.Name)
		return func() { s.Revive(t, m.Name) }, nil
	case "kill -9 of PostgreSQL":
		s.db.Crash(t)
		return func() { s.db.Run(t) }, nil
	case "PostgreSQL is away":
		s.db.Stop(t)
		return func() { s.db.Run(t) }, nil
	case "PostgreSQL is silent":
		s.db.Freeze(t, true)
		return func() { s.db.Freeze(t, false) }, nil
	case "Redis is away":
		s.redis.Kill(t)
		return func() { s.redis.Run(t) }, nil
	case "S3 is away":
		s.s3.Stop()
		return func() {
			if err := s.s3.Up(); err != nil {
				t.Error(err)
			}
		}, nil
	case "partition", "partition of a node from all session-managers":
		s.part(t, m, f.From)
		return func() { m.Net.Mend(t) }, nil
	case "partition of a node from everything":
		m.Net.Cut(t)
		return func() { m.Net.Mend(t) }, nil
	case "a full disk":
		return s.disk.Fill(t), nil
	case "a slow disk":
		return s.disk.Slow(t, slowDisk)
	case "a jumping clock":
		clock, err := rig.ClockOf(m.Serving(t))
		if err != nil {
			return nil, err
		}
		if err := clock.Set(f.Jump); err != nil {
			return nil, err
		}
		return func() {
			if err := clock.Close(); err != nil {
				t.Error(err)
			}
		}, nil
	case "a sleeping node":
		return m.Sleep(t), nil
	}
	t.Fatalf("nobody knows how to make the fault %q", f.Name)
	return nil, nil
}

// slowDisk is the speed of a slow disk in bytes per second.
const slowDisk = 1 << 20

// sentries are the sentries of a node that clients use, and none of the pool.
func (s *site) sentries(m *rig.Machine) (used []rig.Process) {
	for _, id := range s.live() {
		if p, here := m.Runs(id); here {
			used = append(used, p)
		}
	}
	return used
}

// killOne kills one of some processes. Others start it again.
func (s *site) killOne(t *testing.T, f Fault, all []rig.Process) (end func(), err error) {
	t.Helper()
	if len(all) == 0 {
		return nil, errNothing
	}
	rig.Kill(t, all[f.Pick%uint64(len(all))])
	return func() {}, nil
}

// part cuts a Machine off from others.
func (s *site) part(t *testing.T, m *rig.Machine, from string) {
	t.Helper()
	var names []string
	switch from {
	case postgreSQL:
		m.Net.CutFrom(t, s.network.Host, s.db.Port())
	case redis:
		ip, port := hostOf(t, s.redis.Address.HostPort)
		m.Net.CutFrom(t, ip, port)
	case s3:
		ip, port := hostOf(t, s.s3.Address())
		m.Net.CutFrom(t, ip, port)
	case outside:
		ip, port := hostOf(t, s.beats.address)
		m.Net.CutFrom(t, ip, port)
	case managers:
		names = []string{rig.FleetManager, rig.FleetManagerB}
	case schedulers:
		names = schedulerNames
	case nodes:
		names = nodeNames
	default: // the leader or the standby
		names = []string{s.machine(t, from).Name}
	}
	for _, name := range slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == m.Name }) {
		m.Net.CutFrom(t, s.Machine(name).Net.IP, 0)
	}
}

// asleep has a node sleep, and wakes it while it reaches no session-manager: it does not
// learn that others run its Sandboxes.
func (s *site) asleep(t *testing.T, m *rig.Machine) (wake func()) {
	t.Helper()
	goOn := m.Sleep(t)
	return func() {
		s.part(t, m, managers)
		goOn()
	}
}

// settleLimit bounds the time from the end of a fault until all Sandboxes answer, and other
// waits for a machine that is busy.
const settleLimit = 4 * time.Minute
