package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// endOf waits until a session has ended or was restored to a checkpoint. It returns the
// cause; empty if restored.
func endOf(t *testing.T, c *rig.Client, id string) string {
	t.Helper()
	var s rig.Sandbox
	rig.Within(t, rig.Patience, "the end of "+id, func() bool {
		s = c.Get(t, id)
		return s.State == "ended" || s.State == "paused"
	})
	return s.Cause()
}

// If a user kills the Guest, the cause is guest_exit and never engine_lost, which alerts
// the operator. A checkpoint does not restore the session.
func TestEndOfTheGuest(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "ender")
	for _, how := range []struct {
		name, code string
		from       string // how its Boot began
	}{
		{name: "KILL", code: "sudo kill -KILL 1"},
		{name: "SEGV", code: "sudo kill -SEGV 1"},
		{name: "exit status 2, as of a crash", code: "sudo kill -QUIT 1"},
		{name: "TERM or KILL", code: "sudo kill -TERM 1; sudo kill -KILL 1"},
		{name: "after a resume", code: "sudo kill -KILL 1", from: "resume"},
		{name: "a fork", code: "sudo kill -KILL 1", from: "fork"},
		{name: "with a checkpoint", code: "sudo kill -KILL 1", from: "checkpoint"},
	} {
		t.Run(how.name, func(t *testing.T) {
			body := rig.Body{}
			if how.from == "checkpoint" {
				body["checkpoint_every_seconds"] = 3600
			}
			id := create(t, c, body).ID
			switch how.from {
			case "resume":
				act(t, c, id, "pause", rig.Body{})
				act(t, c, id, "resume", rig.Body{})
			case "fork":
				id = forked(t, c, id)
			case "checkpoint":
				c.Must(t, "POST", "/api/v1/sessions/"+id+"/snapshots", rig.Body{}, nil)
			}
			_, _ = c.TryRun(id, "bash", how.code, nil) // fails: the code ends the session
			if cause := endOf(t, c, id); cause != "guest_exit" {
				t.Errorf("the cause is %q", cause)
			}
		})
	}
}

// forked forks a session until the test's end and returns the fork's ID.
func forked(t *testing.T, c *rig.Client, id string) string {
	t.Helper()
	var reply struct {
		Forks []session `json:"forks"`
	}
	c.Must(t, "POST", "/api/v1/sessions/"+id+"/fork", rig.Body{}, &reply)
	if len(reply.Forks) != 1 || reply.Forks[0].ID == "" {
		t.Fatalf("forked %+v", reply)
	}
	t.Cleanup(func() { _ = c.Try("DELETE", "/api/v1/sessions/"+reply.Forks[0].ID, nil, nil) })
	return reply.Forks[0].ID
}

// A restarted sentry host is not the parent of the sentries that it adopted. It still
// distinguishes a Guest's exit from a sentry's death.
func TestEndsAfterTheSentryHost(t *testing.T) {
	t.Parallel()
	srv := rig.Own(t, rig.Options{})
	c := srv.Client(t, "ender")
	exits, lost := create(t, c, rig.Body{}), create(t, c, rig.Body{})
	rig.Kill(t, srv.One(t, rig.SentryHost))
	rig.Within(t, rig.Patience, "a new sandbox after the sentry host's end", func() bool {
		var made rig.Sandbox
		if c.Try("POST", "/api/v1/sessions", rig.Body{"resources": rig.Body{"disk_mb": 2048}}, &made) != nil {
			return false
		}
		return c.Try("DELETE", "/api/v1/sessions/"+made.ID, nil, nil) == nil
	})
	_, _ = c.TryRun(exits.ID, "bash", "sudo kill -KILL 1", nil)
	if cause := endOf(t, c, exits.ID); cause != "guest_exit" {
		t.Errorf("the cause of a guest's end is %q", cause)
	}
	rig.Kill(t, srv.SentryOf(t, lost.ID))
	if cause := endOf(t, c, lost.ID); cause != "engine_lost" {
		t.Errorf("the cause of a sentry's end is %q", cause)
	}
}

// Filling /dev/shm ends a session with oom, because killing programs does not free it.
// One system call writes all of it: after smaller writes, killing the program may free
// enough for the session to live on. If the program is killed in the middle of the call,
// what it wrote stays, and the next one writes more.
func TestEndForWantOfMemory(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "full")
	s := create(t, c, rig.Body{"resources": rig.Body{"memory_mb": 128}})
	const fill = `import os
os.writev(os.open("/dev/shm/x%d", os.O_CREAT | os.O_WRONLY), [os.urandom(1 << 20)] * 400)`
	for i := range 10 {
		r, err := c.TryRun(s.ID, "python", fmt.Sprintf(fill, i), rig.Body{"timeout_seconds": 120}) // fails: the code ends the session
		if c.Get(t, s.ID).State != "running" {
			break
		}
		t.Logf("the session lives on after %v, %v", r, err)
	}
	if cause := endOf(t, c, s.ID); cause != "oom" {
		t.Errorf("the cause is %q", cause)
	}
}

// An end that the owner requested is recorded with its cause. Later executions answer
// 409.
func TestCausesThatWereAskedFor(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "asker")
	for cause, body := range map[string]rig.Body{
		"released": {},
		"deadline": {"timeout_seconds": 1, "on_timeout": "end"},
		"idle":     {"idle_timeout_seconds": 1, "on_timeout": "end"},
	} {
		s := create(t, c, body)
		if cause == "released" {
			c.Must(t, "DELETE", "/api/v1/sessions/"+s.ID, nil, nil)
		}
		if got := endOf(t, c, s.ID); got != cause {
			t.Errorf("the cause is %q, want %q", got, cause)
		}
		status, raw, err := c.Do("POST", "/api/v1/execute", rig.Body{"sandbox_id": s.ID, "language": "bash", "code": "true"})
		var reply struct{ Error struct{ Message string } }
		if err != nil || status != 409 || json.Unmarshal(raw, &reply) != nil {
			t.Errorf("an execution after that: %d %s, %v", status, raw, err)
		}
	}
}

// A suspended tenant's sandbox that cannot be paused because the disk is full ends after
// some attempts, with the cause suspended.
func TestEndOfTheSuspended(t *testing.T) {
	s, fill := onSmallDisk(t, "saved")
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	mine, ops := s.Client(t, "mine"), s.Operator(t)
	id := create(t, mine, rig.Body{"on_timeout": "pause"}).ID
	fill(1)
	ops.Must(t, "PATCH", "/api/v1/tenants/dev:mine", rig.Body{"state": "suspended", "reason": "a test"}, nil)
	sentry := s.SentryOf(t, id)
	t.Parallel() // the attempts are a minute apart: other tests run meanwhile
	rig.Within(t, 5*time.Minute, "the end of its sandbox", func() bool {
		return !slices.ContainsFunc(s.Processes(rig.Sentry), func(p rig.Process) bool { return p.Pid == sentry.Pid })
	})
	ops.Must(t, "PATCH", "/api/v1/tenants/dev:mine", rig.Body{"state": "active"}, nil)
	if cause := endOf(t, mine, id); cause != "suspended" {
		t.Errorf("the cause is %q", cause)
	}
}

// If a node is away for longer than the maximum lifetime of a sandbox, its sandboxes end
// with node_lost. The node stops them when it returns.
func TestEndOfANode(t *testing.T) {
	t.Parallel()
	r := rig.OwnRoles(t, rig.Options{Pool: 1})
	c := r.Client(t, "ender")
	id := create(t, c, rig.Body{"timeout_seconds": 3600}).ID
	sentry := r.SentryOf(t, id)
	r.Kill(t, "node")
	r.Kill(t, "session-manager")
	db := database(t, r.Server)
	defer db.Close()
	if _, err := db.Exec("UPDATE nodes SET lease_until = ?", time.Now().AddDate(0, 0, -2).UnixMicro()); err != nil {
		t.Fatal(err)
	}
	r.Start(t, "session-manager")
	if cause := endOf(t, c, id); cause != "node_lost" {
		t.Errorf("the cause is %q", cause)
	}
	r.Start(t, "node")
	r.Serves(t)
	r.Kill(t, "session-manager") // the next one reconciles at its start
	r.Start(t, "session-manager")
	rig.Within(t, rig.Patience, "the end of what ran there", func() bool {
		return !slices.ContainsFunc(r.Processes(rig.Sentry), func(p rig.Process) bool { return p.Pid == sentry.Pid })
	})
	r.Serves(t)
	create(t, c, rig.Body{})
}
