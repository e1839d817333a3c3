package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// counter starts a program that outlives the execution that started it.
const counter = `setsid bash -c 'i=0; while :; do i=$((i+1)); echo $i > /workspace/count.new; mv /workspace/count.new /workspace/count; sleep 0.02; done' </dev/null >/dev/null 2>&1 &
until [ -s /workspace/count ]; do sleep 0.02; done`

// life is a Sandbox with state that shows whether it kept running.
type life struct {
	c     *rig.Client
	id    string
	count int
	boot  string // start time of the guest
}

func begin(t *testing.T, c *rig.Client, body rig.Body) *life {
	t.Helper()
	l := &life{c: c, id: c.Create(t, body).ID}
	c.Sh(t, l.id, counter+"\necho kept > /workspace/file")
	l.boot = c.Sh(t, l.id, "cut -d' ' -f22 /proc/1/stat")
	l.count = l.read(t)
	return l
}

func (l *life) read(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(l.c.Sh(t, l.id, "cat /workspace/count")))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// goesOn checks that the Sandbox kept running since the last check, with the same guest,
// files and processes.
func (l *life) goesOn(t *testing.T) {
	t.Helper()
	if got := l.c.Get(t, l.id); got.State != "running" {
		t.Fatalf("the sandbox is %s: %s", got.State, got.Cause())
	}
	if got := l.c.Sh(t, l.id, "cat /workspace/file"); got != "kept\n" {
		t.Errorf("the file holds %q", got)
	}
	if got := l.c.Sh(t, l.id, "cut -d' ' -f22 /proc/1/stat"); got != l.boot {
		t.Errorf("the guest started at %q, before at %q", got, l.boot)
	}
	rig.Within(t, rig.Patience, "a background process that counts on", func() bool { return l.read(t) > l.count })
	l.count = l.read(t)
}

// noticed is the timeout for events that are detected at once: long enough for a busy
// machine, and shorter than the time until the next reconcile.
const noticed = 25 * time.Second

// works waits until code runs in a Sandbox.
func works(t *testing.T, c *rig.Client, id string) {
	t.Helper()
	rig.Within(t, noticed, "an execution", func() bool {
		r, err := c.TryRun(id, "bash", "echo works", rig.Body{"timeout_seconds": 10})
		return err == nil && r.Stdout == "works\n"
	})
}

// Sandboxes and their records survive kill -9 of any part of the server.
func TestKilledParts(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{})
	c := s.Client(t, "lives")
	l := begin(t, c, nil)
	for _, role := range []rig.Role{rig.ServerRole, rig.Launcher} {
		t.Run(string(role), func(t *testing.T) {
			dying := c.Create(t, rig.Body{"timeout_seconds": 3, "on_timeout": "end"})
			far := c.Create(t, rig.Body{"timeout_seconds": 600})
			rig.Kill(t, s.One(t, role))
			waitDone(t, s)
			if err := s.Launch(); err != nil {
				t.Fatal(err)
			}
			l.goesOn(t)
			if got := c.Get(t, far.ID); got.State != "running" || !got.Deadline.Equal(far.Deadline) {
				t.Errorf("the deadline was %v and is %v, %s", far.Deadline, got.Deadline, got.State)
			}
			works(t, c, far.ID)
			rig.Within(t, time.Until(dying.Deadline)+rig.Patience, "the end at a deadline from before the kill", func() bool {
				return c.Get(t, dying.ID).State == "ended"
			})
			got := c.Get(t, dying.ID)
			if got.Cause() != "deadline" {
				t.Errorf("the cause is %q", got.Cause())
			}
			s.PoolIdle(t)
		})
	}
	t.Run("link shard", func(t *testing.T) {
		rig.Kill(t, s.One(t, rig.LinkShard))
		works(t, c, l.id)
		l.goesOn(t)
		fresh := c.Create(t, nil)
		works(t, c, fresh.ID)
		s.PoolIdle(t)
		s.One(t, rig.LinkShard)
	})
	t.Run("sentry host", func(t *testing.T) {
		rig.Kill(t, s.One(t, rig.SentryHost))
		l.goesOn(t) // guests are reachable without it
		created := ""
		rig.Within(t, rig.Patience, "a new sandbox after the sentry host's end", func() bool {
			var made rig.Sandbox
			if c.Try("POST", "/api/v1/sessions", rig.Body{"resources": rig.Body{"disk_mb": 2048}}, &made) != nil {
				return false
			}
			created = made.ID
			return true
		})
		works(t, c, created)
		for _, id := range []string{created, l.id} { // one started and one adopted by the new sentry host
			if r := c.Run(t, id, "python", "kept = []\nwhile True: kept.append(bytearray(1 << 20))", rig.Body{"timeout_seconds": 120}); r.Status != "oom" {
				t.Errorf("a memory bomb ends with %s", r)
			}
		}
		works(t, c, created)
		if got := c.Get(t, l.id); got.State != "running" {
			t.Errorf("the sandbox is %s: %s", got.State, got.Cause())
		}
		c.Must(t, "POST", "/api/v1/sandbox/release", rig.Body{"sandbox_id": created}, nil)
		s.PoolIdle(t)
	})
	t.Run("sentry", func(t *testing.T) {
		victim, other := c.Create(t, nil), begin(t, c, nil)
		s.PoolIdle(t)
		rig.Kill(t, s.SentryOf(t, victim.ID))
		rig.Within(t, noticed, "the record of a lost sandbox", func() bool { return c.Get(t, victim.ID).State == "ended" })
		if cause := c.Get(t, victim.ID).Cause(); cause != "engine_lost" {
			t.Errorf("the cause is %q", cause)
		}
		other.goesOn(t)
	})
	t.Run("sentry of the pool", func(t *testing.T) {
		s.PoolIdle(t)
		owned := map[int]bool{s.SentryOf(t, l.id).Pid: true}
		for _, p := range s.Processes(rig.Sentry) {
			if !owned[p.Pid] && !bound(s, p) {
				rig.Kill(t, p)
				break
			}
		}
		works(t, c, c.Create(t, nil).ID)
		s.PoolIdle(t)
	})
	for _, roles := range [][]rig.Role{{rig.Launcher, rig.SentryHost}, {rig.Launcher, rig.LinkShard}} {
		t.Run(fmt.Sprint("at once ", roles), func(t *testing.T) {
			last := begin(t, c, nil)
			for _, role := range roles {
				rig.Kill(t, s.One(t, role))
			}
			waitDone(t, s)
			if err := s.Launch(); err != nil {
				t.Fatal(err)
			}
			works(t, c, last.id)
			last.goesOn(t)
			s.PoolIdle(t)
		})
	}
	t.Run("sentry host, then link shard", func(t *testing.T) {
		last := begin(t, c, nil)
		rig.Kill(t, s.One(t, rig.SentryHost))
		rig.Within(t, rig.Patience, "a new sentry host that starts sandboxes", func() bool {
			var made rig.Sandbox
			return c.Try("POST", "/api/v1/sessions", rig.Body{"timeout_seconds": 5, "resources": rig.Body{"disk_mb": 2048}}, &made) == nil
		})
		rig.Kill(t, s.One(t, rig.LinkShard))
		works(t, c, last.id)
		last.goesOn(t)
	})
	t.Run("sentry host, then server, then link shard", func(t *testing.T) {
		last := begin(t, c, nil)
		rig.Kill(t, s.One(t, rig.SentryHost))
		s.One(t, rig.SentryHost)
		s.PoolIdle(t)
		rig.Kill(t, s.One(t, rig.ServerRole))
		waitDone(t, s)
		if err := s.Launch(); err != nil {
			t.Fatal(err)
		}
		last.goesOn(t)
		rig.Kill(t, s.One(t, rig.LinkShard))
		works(t, c, last.id)
		last.goesOn(t)
	})
	t.Run("everything at once", func(t *testing.T) {
		// Without any process that holds its link, a Sandbox may be unreachable. Then
		// its record must say so. The server must still create Sandboxes.
		lost := c.Create(t, nil)
		for _, role := range []rig.Role{rig.Launcher, rig.SentryHost, rig.LinkShard} {
			for _, p := range s.Processes(role) {
				rig.Kill(t, p)
			}
		}
		waitDone(t, s)
		if err := s.Launch(); err != nil {
			t.Fatal(err)
		}
		rig.Within(t, noticed, "an answer or an end of a sandbox without a link", func() bool {
			if got := c.Get(t, lost.ID); got.State == "ended" {
				return got.Cause() == "engine_lost"
			}
			r, err := c.TryRun(lost.ID, "bash", "true", rig.Body{"timeout_seconds": 2})
			return err == nil && r.Status == "ok"
		})
		works(t, c, c.Create(t, nil).ID)
	})
}

func bound(s *rig.Server, p rig.Process) bool {
	_, err := os.Stat(s.Data + "/server/node/boots/" + s.BootOf(p) + ".json")
	return err == nil
}

// waitDone waits until a launcher and the server below it have ended.
func waitDone(t *testing.T, s *rig.Server) {
	t.Helper()
	select {
	case <-s.Done():
	case <-time.After(rig.Patience):
		t.Fatal("the launcher did not end")
	}
	rig.Within(t, rig.Patience, "the end of the server", func() bool { return len(s.Processes(rig.ServerRole)) == 0 })
}

// SIGTERM keeps Sandboxes running. `down` ends them and leaves no process and no control
// group.
func TestStopAndDown(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{})
	c := s.Client(t, "stop")
	l := begin(t, c, nil)
	host := s.One(t, rig.SentryHost)
	running := make(chan error, 1)
	go func() { // SIGTERM lets a request finish
		// Long enough to be observed in flight, and shorter than the drain timeout.
		r, err := c.TryRun(l.id, "bash", "sleep 4; echo drained", nil)
		if err == nil && r.Stdout != "drained\n" {
			err = errors.New(r.String())
		}
		running <- err
	}()
	rig.Within(t, rig.Patience, "an execution under way", func() bool { return s.Metric("cloud_sandbox_http_requests_in_flight") >= 2 }) // the metrics request counts too
	if err := s.Stop(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	if err := <-running; err != nil {
		t.Errorf("an execution was not drained: %v", err)
	}
	s.One(t, rig.SentryHost)
	if len(s.Processes(rig.Sentry)) == 0 {
		t.Error("SIGTERM to the server ended sandboxes")
	}
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	l.goesOn(t)
	if err := s.Down(); err == nil || !strings.Contains(err.Error(), "still runs") {
		t.Errorf("down beside a running server says %v", err)
	}
	l.goesOn(t)
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if err := s.Down(); err != nil {
		t.Error(err)
	}
	if left := s.Left(); len(left) != 0 {
		t.Errorf("still running after down: %v", left)
	}
	if left := rig.Groups(host); len(left) != 0 {
		t.Errorf("control groups after down: %v", left)
	}
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	rig.Within(t, rig.Patience, "the record of a sandbox that down ended", func() bool { return c.Get(t, l.id).State == "ended" })
	if cause := c.Get(t, l.id).Cause(); cause != "operator" {
		t.Errorf("the cause is %q, want operator", cause)
	}
}

// SIGTERM during a start by the Pool still drains.
func TestStopDuringStarts(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{Pool: 2})
	for i := range 4 {
		c := s.Client(t, "stopper")
		c.Acquire(t)
		time.Sleep(time.Duration(i) * 20 * time.Millisecond) // hits another step of the start
		if err := s.Stop(); err != nil {
			t.Errorf("the server ended with %v", err)
		}
		if err := s.Launch(); err != nil {
			t.Fatal(err)
		}
	}
	// The drain ended before its timeout.
	if log, err := os.ReadFile(s.LogFile()); err != nil || bytes.Contains(log, []byte("the drain timed out")) {
		t.Errorf("%v: %s", err, s.Log())
	}
}

// 300 Sandboxes leak no resources of the server.
func TestNothingIsLeftOver(t *testing.T) {
	s := rig.Own(t, rig.Options{Pool: 3})
	c := s.Client(t, "rounds")
	const warm, rounds, workers = 10, 300, 4
	cycle := func(n int) {
		jobs, failed := make(chan int), make(chan error, n)
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for i := range jobs {
					if err := round(c, i); err != nil {
						failed <- fmt.Errorf("round %d: %w", i, err)
					}
				}
			})
		}
		for i := range n {
			jobs <- i
		}
		close(jobs)
		wg.Wait()
		close(failed)
		for err := range failed {
			t.Error(err)
		}
		c.HTTP.CloseIdleConnections()
		s.PoolIdle(t)
		rig.Within(t, rig.Patience, "sentries that wait for the next starts", func() bool { return len(s.Processes(rig.Spare)) == 2 })
	}
	cycle(warm)
	before := s.Holdings()
	began := time.Now()
	cycle(rounds)
	t.Logf("%d rounds in %v; before: %v", rounds, time.Since(began).Round(time.Millisecond), before)
	// The numbers of idle connections and timers vary, and the garbage collector closes
	// handles of gVisor's processes late. Together they stay far below the number of
	// rounds.
	const slack = 64
	var more []string
	for end := time.Now().Add(rig.Patience); ; time.Sleep(100 * time.Millisecond) {
		if more = s.Holdings().Beyond(before, slack); len(more) == 0 || time.Now().After(end) {
			break
		}
	}
	if len(more) > 0 {
		t.Errorf("left over after %d rounds:\n%s", rounds, strings.Join(more, "\n"))
	}
}

// round creates a Sandbox, uses it and gives it back.
func round(c *rig.Client, i int) error {
	var s rig.Sandbox
	if err := c.Try("POST", "/api/v1/sandbox/acquire", rig.Body{}, &s); err != nil {
		return err
	}
	var err error
	if i%3 == 0 { // the other rounds run no code
		var r rig.Result
		if r, err = c.TryRun(s.ID, "bash", "echo x > file; sleep 100 & cat file", nil); err == nil && r.Stdout != "x\n" {
			err = errors.New(r.String())
		}
	}
	return errors.Join(err, c.Try("POST", "/api/v1/sandbox/release", rig.Body{"sandbox_id": s.ID}, nil))
}
