package e2e

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/store/postgrestest"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// takeover bounds the time from the death of the leader to the next successful create.
const takeover = 15 * time.Second

// managers are an installation with two session-managers over one database, the second
// with a data folder of its own.
type managers struct {
	*rig.Roles
	second *rig.Roles
	db     *sql.DB
}

func twoManagers(t *testing.T, env ...string) *managers {
	t.Helper()
	rig.OneMachine(t)
	address := postgrestest.Start(t).Address(t)
	env = append(env, "CLOUD_SANDBOX_DATABASE="+address)
	socket := func(r *rig.Roles, role string) string {
		return "unix:" + filepath.Join(r.Data, "server", "run", role+".sock")
	}
	first := rig.PrepareRoles(t, rig.Options{Env: env})
	second := rig.PrepareRoles(t, rig.Options{Env: append(env, "CLOUD_SANDBOX_SCHEDULER_URL="+socket(first, "scheduler"))})
	first.Only = map[string][]string{
		"node": {"CLOUD_SANDBOX_SESSION_MANAGER_URL=" + socket(first, "session-manager") + "," + socket(second, "session-manager")},
	}
	for _, role := range rig.RoleNames {
		first.Start(t, role)
	}
	first.Serves(t)
	own := filepath.Join(second.Data, "server")
	if err := os.Mkdir(own, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"guest-seed", "services", "secrets-key"} { // shared by the installation
		if out, err := rig.Command("cp", "-a", filepath.Join(first.Data, "server", secret), own).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	second.Start(t, "session-manager")
	second.Serves(t)
	db, err := sql.Open("pgx", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	m := &managers{first, second, db}
	m.becomes(t, first, "leader")
	m.becomes(t, second, "standby")
	return m
}

// lead returns what the session-manager of r reports, leader or standby; empty: it is not
// ready.
func (m *managers) lead(t *testing.T, r *rig.Roles) string {
	t.Helper()
	code, raw, err := r.Ask("session-manager", "/ready")
	var ready struct {
		Ready bool
		Lead  string
	}
	if err != nil || code != http.StatusOK || json.Unmarshal(raw, &ready) != nil || !ready.Ready {
		t.Logf("ready is %d %s %v", code, raw, err)
		return ""
	}
	return ready.Lead
}

func (m *managers) takesOver(t *testing.T, r *rig.Roles) {
	t.Helper()
	m.becomes(t, r, "leader")
}

// becomes waits until the session-manager of r reports lead.
func (m *managers) becomes(t *testing.T, r *rig.Roles, lead string) {
	t.Helper()
	rig.Within(t, rig.Patience, "a session-manager becomes "+lead, func() bool { return m.lead(t, r) == lead })
}

// row returns the leader's holder and epoch, and the remaining time of its lease.
func (m *managers) row(t *testing.T) (term string, left time.Duration) {
	t.Helper()
	var seconds float64
	if err := m.db.QueryRowContext(t.Context(), `SELECT holder || ' ' || epoch, until / 1e6 - EXTRACT(EPOCH FROM clock_timestamp()) FROM leaders WHERE role = 'session-manager'`).Scan(&term, &seconds); err != nil {
		t.Fatal(err)
	}
	return term, time.Duration(seconds * float64(time.Second))
}

// undelivered counts the events whose delivery is not recorded.
func (m *managers) undelivered(t *testing.T) (n int) {
	t.Helper()
	if err := m.db.QueryRowContext(t.Context(), "SELECT count(*) FROM outbox").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// littleSession is the body of a session with few resources.
func littleSession(name string) rig.Body {
	return rig.Body{"name": name, "network": "none", "timeout_seconds": 1800, "resources": rig.Body{"memory_mb": 128}}
}

// insist retries a create with an Idempotency-Key until it succeeds, for up to five
// minutes. began is the start of the last attempt.
func insist(c *rig.Client, key string, body rig.Body) (sb rig.Sandbox, began time.Time, err error) {
	raw, err := json.Marshal(body)
	for late := time.Now().Add(5 * time.Minute); err == nil; time.Sleep(200 * time.Millisecond) {
		began = time.Now()
		req, err := http.NewRequest("POST", c.URL+"/api/v1/sessions", bytes.NewReader(raw))
		if err != nil {
			return sb, began, err
		}
		req.Header.Set("Authorization", "Bearer "+c.Token)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", key)
		resp, err := c.HTTP.Do(req)
		if err != nil {
			return sb, began, err
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		switch status := resp.StatusCode; {
		case err != nil:
			return sb, began, err
		case status == http.StatusCreated:
			err := json.Unmarshal(text, &sb)
			return sb, began, err
		case status != http.StatusServiceUnavailable && status != http.StatusConflict && status != http.StatusTooManyRequests, time.Now().After(late):
			return sb, began, fmt.Errorf("%s: %d %s", key, status, text)
		}
	}
	return sb, began, err
}

// The leader dies while sessions are created. No session is created twice, every
// answered one runs, and creates soon succeed again.
func TestLeaderDies(t *testing.T) {
	t.Parallel()
	m := twoManagers(t)
	c := m.Client(t, "many")
	ids := createsSurvive(t, c, 52, "the death of the leader", func() { m.Kill(t, "session-manager") })
	m.takesOver(t, m.second)
	// The former leader restarts as a standby.
	m.Start(t, "session-manager")
	m.Serves(t)
	m.becomes(t, m.Roles, "standby")
	m.becomes(t, m.second, "leader") // it still is
	for _, id := range ids {
		c.Must(t, "DELETE", "/api/v1/sessions/"+id, nil, nil)
	}
}

// createsSurvive creates sessions, calls fail after a third of them, and checks that each
// is created once, and that an answered one runs. It returns the sessions' IDs.
func createsSurvive(t *testing.T, c *rig.Client, creates int, failure string, fail func()) []string {
	t.Helper()
	const workers = 4
	ids := make([]string, creates)
	var next, done atomic.Int64
	var killed atomic.Pointer[time.Time]
	var back sync.Once
	var gap time.Duration
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < creates; i = int(next.Add(1)) - 1 {
				sb, began, err := insist(c, fmt.Sprint("create-", i), littleSession(fmt.Sprint("s", i)))
				if err != nil {
					t.Error(err)
					continue
				}
				ids[i] = sb.ID
				if at := killed.Load(); at != nil && began.After(*at) {
					back.Do(func() { gap = time.Since(*at) })
				}
				done.Add(1)
			}
		})
	}
	rig.Within(t, 3*time.Minute, "a third of the creates", func() bool { return int(done.Load()) > creates/3 })
	fail()
	now := time.Now()
	killed.Store(&now)
	all.Wait()
	if gap == 0 || gap > takeover {
		t.Errorf("no create was answered within %v of %s", takeover, failure)
	}
	t.Logf("the first create after %s was answered after %v", failure, gap)
	seen := map[string]bool{}
	for i, id := range ids {
		if seen[id] {
			t.Errorf("%s was answered twice", id)
		}
		seen[id] = true
		if r, err := c.TryRun(id, "bash", fmt.Sprintf("echo %d", i), nil); err != nil || r.Stdout != fmt.Sprintln(i) {
			t.Errorf("the session %d: %v, %v", i, r, err)
		}
	}
	rig.Within(t, 3*time.Minute, "exactly the answered sessions", func() bool {
		open := map[string]bool{}
		for cursor := ""; ; {
			var page struct {
				Sessions []rig.Sandbox `json:"sessions"`
				Next     string        `json:"next_cursor"`
			}
			c.Must(t, "GET", "/api/v1/sessions?cursor="+cursor, nil, &page)
			for _, s := range page.Sessions {
				open[s.ID] = s.State == "starting" || s.State == "running"
				if !seen[s.ID] && s.State == "running" {
					t.Fatalf("%s runs, and no create was answered with it", s.ID)
				}
			}
			if cursor = page.Next; cursor == "" {
				n := 0
				for _, is := range open {
					if is {
						n++
					}
				}
				return n == creates
			}
		}
	})
	return ids
}

// A leader that is stopped until another one leads writes nothing when it continues. A
// due deadline takes effect once.
func TestStoppedLeaderWritesNothing(t *testing.T) {
	t.Parallel()
	d := &diary{t: t, open: true}
	receiver := httptest.NewServer(d)
	defer receiver.Close()
	m := twoManagers(t, "CLOUD_SANDBOX_WEBHOOKS="+receiver.URL, "CLOUD_SANDBOX_WEBHOOK_SECRET="+strings.Repeat("s3", 20), "CLOUD_SANDBOX_WEBHOOK_EVENTS=sandbox.*")
	c := m.Client(t, "still")
	due := c.Create(t, rig.Body{"network": "none", "timeout_seconds": 60, "on_timeout": "end"})
	other := c.Create(t, littleSession("other"))
	signal := func(r *rig.Roles, s syscall.Signal) {
		if err := syscall.Kill(r.Pid("session-manager"), s); err != nil {
			t.Fatal(err)
		}
	}
	rig.Within(t, rig.Patience, "the events of creates", func() bool {
		// The next leader delivers an event again unless its delivery is recorded.
		return d.times(due.ID, "sandbox.created")+d.times(other.ID, "sandbox.created") == 2 && m.undelivered(t) == 0
	})
	signal(m.Roles, syscall.SIGSTOP)
	defer func() { _ = syscall.Kill(m.Pid("session-manager"), syscall.SIGCONT) }()
	m.takesOver(t, m.second)
	c.Must(t, "POST", "/api/v1/sessions/"+other.ID+"/pause", rig.Body{}, nil)
	c.Must(t, "POST", "/api/v1/sessions/"+other.ID+"/resume", rig.Body{}, nil)
	if left := time.Until(due.Deadline); left < 2*time.Second {
		t.Skipf("the machine is too slow: the deadline is in %v", left)
	}

	// The deadline passes while the leader is briefly stopped and the former leader
	// continues.
	time.Sleep(time.Until(due.Deadline) - 500*time.Millisecond)
	signal(m.second, syscall.SIGSTOP)
	defer func() { _ = syscall.Kill(m.second.Pid("session-manager"), syscall.SIGCONT) }()
	before := m.dump(t)
	term, _ := m.row(t)
	time.Sleep(time.Until(due.Deadline) + 100*time.Millisecond)
	signal(m.Roles, syscall.SIGCONT)
	time.Sleep(2 * time.Second)
	after := m.dump(t)
	now, left := m.row(t)
	signal(m.second, syscall.SIGCONT)
	if left > 0 && (after != before || now != term) {
		t.Errorf("the former leader wrote: there was\n%s\nthere is\n%s\nthe terms are %s and %s", before, after, term, now)
	} else if left <= 0 {
		t.Logf("the machine stood still for too long to see")
	}
	rig.Within(t, rig.Patience, "the end at the deadline", func() bool { return c.Get(t, due.ID).State == "ended" })
	if got := c.Get(t, due.ID); got.Cause() != "deadline" {
		t.Errorf("the cause is %q", got.Cause())
	}
	m.becomes(t, m.Roles, "standby")
	rig.Within(t, rig.Patience, "the event of the end", func() bool { return d.times(due.ID, "sandbox.ended") > 0 })
	c.Must(t, "DELETE", "/api/v1/sessions/"+other.ID, nil, nil)
	rig.Within(t, rig.Patience, "the event of the other end", func() bool { return d.times(other.ID, "sandbox.ended") > 0 })
	for id, kinds := range map[string][]string{
		due.ID:   {"sandbox.created", "sandbox.ended"},
		other.ID: {"sandbox.created", "sandbox.paused", "sandbox.resumed", "sandbox.ended"},
	} {
		for _, kind := range kinds {
			if n := d.times(id, kind); n != 1 {
				t.Errorf("%s of %s came %d times", kind, id, n)
			}
		}
	}
}

// times counts the deliveries of a kind of event about a Sandbox.
func (d *diary) times(id, kind string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.took {
		if e["sandbox_id"] == id && e["type"] == kind {
			n++
		}
	}
	return n
}

// dump returns the tables that only session-managers write.
func (m *managers) dump(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, table := range []string{"sandboxes", "snapshots", "volumes", "usage_days", "usage_open", "traffic_boots"} {
		var text sql.NullString
		if err := m.db.QueryRowContext(t.Context(), "SELECT string_agg(CAST(x AS TEXT), E'\n' ORDER BY CAST(x AS TEXT)) FROM "+table+" AS x").Scan(&text); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "%s:\n%s\n", table, text.String)
	}
	return all.String()
}

// A terminated leader resigns. No request fails.
func TestLeaderResigns(t *testing.T) {
	t.Parallel()
	m := twoManagers(t)
	c := m.Client(t, "steady")
	stop := make(chan struct{})
	created := make(chan error, 1)
	var n atomic.Int64
	go func() {
		defer close(created)
		for {
			select {
			case <-stop:
				return
			default:
			}
			var sb rig.Sandbox
			if err := c.Try("POST", "/api/v1/sessions", littleSession(""), &sb); err != nil {
				created <- err
				return
			}
			if err := c.Try("DELETE", "/api/v1/sessions/"+sb.ID, nil, nil); err != nil {
				created <- err
				return
			}
			n.Add(1)
		}
	}()
	some := func() {
		t.Helper()
		before := n.Load()
		rig.Within(t, time.Minute, "some creates", func() bool { return n.Load() >= before+3 || len(created) > 0 })
	}
	some()
	for i, r := range []*rig.Roles{m.Roles, m.second} {
		if err := syscall.Kill(r.Pid("session-manager"), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		m.takesOver(t, []*rig.Roles{m.second, m.Roles}[i])
		t.Logf("the other one leads after %v", time.Since(began))
		some()
		r.Ended(t, "session-manager")
		r.Start(t, "session-manager")
		r.Serves(t)
	}
	close(stop)
	if err := <-created; err != nil {
		t.Error(err)
	}
}
