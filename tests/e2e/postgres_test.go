package e2e

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/store/postgrestest"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// A server with PostgreSQL works like one with a database file, through its own death
// and an outage of the database. So do the commands on its data folder.
func TestServerInPostgres(t *testing.T) {
	rig.OneMachine(t)
	database := postgrestest.Start(t)
	address := database.Address(t)
	s := rig.Own(t, rig.Options{Env: []string{"CLOUD_SANDBOX_DATABASE=" + address}})
	c := s.Client(t, "postgres")
	if _, err := os.Stat(filepath.Join(s.Data, "server", "cloud-sandbox.db")); !os.IsNotExist(err) {
		t.Errorf("there is a database file: %v", err)
	}
	running := c.Create(t, rig.Body{"name": "web", "timeout_seconds": 600, "metadata": rig.Body{"app": "x"}})
	c.Run(t, running.ID, "python", "x = 41", nil)
	paused := c.Create(t, rig.Body{"timeout_seconds": 600})
	c.Run(t, paused.ID, "python", "y = 7", nil)
	c.Must(t, "POST", "/api/v1/sessions/"+paused.ID+"/pause", rig.Body{}, nil)
	c.Must(t, "POST", "/api/v1/sessions/"+running.ID+"/snapshots", rig.Body{"name": "first"}, nil)

	rig.Kill(t, s.One(t, rig.ServerRole))
	waitDone(t, s)
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	if got := c.Run(t, running.ID, "python", "print(x + 1)", nil); got.Stdout != "42\n" {
		t.Errorf("after the server's death: %+v", got)
	}
	c.Must(t, "POST", "/api/v1/sessions/"+paused.ID+"/resume", rig.Body{}, nil)
	if got := c.Run(t, paused.ID, "python", "print(y)", nil); got.Stdout != "7\n" {
		t.Errorf("after pause and resume: %+v", got)
	}
	var list struct {
		Sessions []session `json:"sessions"`
	}
	c.Must(t, "GET", "/api/v1/sessions?metadata[app]=x", nil, &list)
	if len(list.Sessions) != 1 || list.Sessions[0].ID != running.ID {
		t.Errorf("the list by metadata is %+v", list)
	}

	// A value that PostgreSQL cannot store is the caller's error and does not affect
	// other requests.
	for _, path := range []string{"/api/v1/sessions/%00", "/api/v1/sessions/%ff", "/api/v1/sessions?metadata[a]=%00"} {
		if status, raw, err := c.Do("GET", path, nil); err != nil || status != http.StatusBadRequest && status != http.StatusNotFound {
			t.Errorf("GET %s: %d %s %v", path, status, raw, err)
		}
	}
	if status, raw, err := c.Do("DELETE", "/api/v1/sessions/%00", nil); err != nil || status != http.StatusBadRequest && status != http.StatusNotFound {
		t.Errorf("DELETE: %d %s %v", status, raw, err)
	}
	c.Must(t, "PATCH", "/api/v1/sessions/"+running.ID, rig.Body{"metadata": rig.Body{"b": "2"}}, nil)

	database.Stop(t)
	if status, raw, err := c.Do("POST", "/api/v1/sessions", rig.Body{}); err != nil || status != http.StatusServiceUnavailable || !strings.Contains(string(raw), "database server") {
		t.Errorf("a create while the database is away: %d %s %v", status, raw, err)
	}
	rig.Within(t, rig.Patience, "the server is not ready", func() bool {
		status, _, err := c.Do("GET", "/ready", nil)
		return err == nil && status == http.StatusServiceUnavailable
	})
	database.Run(t)
	rig.Within(t, rig.Patience, "the server answers again", func() bool {
		status, _, err := c.Do("GET", "/api/v1/sessions/"+running.ID, nil)
		return err == nil && status == http.StatusOK
	})
	if got := c.Run(t, running.ID, "python", "print(x)", nil); got.Stdout != "41\n" {
		t.Errorf("after the database was away: %+v", got)
	}

	command := func(args ...string) (string, error) {
		out, err := rig.Command(s.Bin, append(args, "--data", s.Data)...).CombinedOutput()
		return string(out), err
	}
	if out, err := command("key", "create", "--tenant", "acme", "--name", "ci"); err != nil || !strings.Contains(out, "role user") {
		t.Errorf("key create: %v\n%s", err, out)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	s.SetEnv()
	if err := s.Launch(); err == nil || !strings.Contains(err.Error(), "CLOUD_SANDBOX_DATABASE is not set: set it as before") {
		t.Errorf("a start without the address: %v", err)
	}
	s.SetEnv("CLOUD_SANDBOX_DATABASE=" + database.Address(t))
	if err := s.Launch(); err == nil || !strings.Contains(err.Error(), "in another PostgreSQL database") {
		t.Errorf("a start with another database: %v", err)
	}
	s.SetEnv("CLOUD_SANDBOX_DATABASE=" + address)
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if out, err := command("down"); err != nil || !strings.Contains(out, "sandboxes ended: 2") {
		t.Errorf("down: %v\n%s", err, out)
	}
}

// PostgreSQL crashes while sessions are created. Some writes of a create do not wait for the
// disk, and every answered create is durable all the same.
func TestDatabaseCrashes(t *testing.T) {
	rig.OneMachine(t)
	t.Parallel()
	database := postgrestest.StartWith(t, postgrestest.Options{Durable: true})
	s := rig.Own(t, rig.Options{Env: []string{"CLOUD_SANDBOX_DATABASE=" + database.Address(t)}})
	c := s.Client(t, "crashes")
	createsSurvive(t, c, 40, "the crash of the database", func() {
		database.Crash(t)
		database.Run(t)
	})
}

// A second server on a database whose Sandboxes run elsewhere is refused, because it
// would declare them lost.
func TestSecondServerOnOnePostgres(t *testing.T) {
	rig.OneMachine(t)
	address := postgrestest.Start(t).Address(t)
	env := []string{"CLOUD_SANDBOX_DATABASE=" + address, "CLOUD_SANDBOX_GUEST_SEED=" + strings.Repeat("g", 40), "POOL_MIN_SIZE=0"}
	first := rig.Own(t, rig.Options{Env: env})
	c := first.Client(t, "first")
	sb := c.Create(t, rig.Body{"timeout_seconds": 600})
	second, err := rig.New(rig.Options{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close() //nolint:errcheck // it never ran
	if err := second.Launch(); err == nil || !strings.Contains(err.Error(), "another server with all roles, uses this database") {
		t.Errorf("a second server: %v", err)
	}
	if got := c.Get(t, sb.ID); got.State != "running" {
		t.Errorf("after the second one started it is %s", got.State)
	}
}

// PostgreSQL is frozen: its connections are open, and it answers nothing. Within seconds,
// each call is refused with 503, and with Retry-After if it changed nothing.
func TestFrozenPostgres(t *testing.T) {
	rig.OneMachine(t)
	database := postgrestest.Start(t)
	s := rig.Own(t, rig.Options{Env: []string{"CLOUD_SANDBOX_DATABASE=" + database.Address(t)}})
	c := s.Client(t, "frozen")
	running := c.Create(t, rig.Body{"timeout_seconds": 600})
	c.Run(t, running.ID, "python", "x = 41", nil)
	of := "/api/v1/sessions/" + running.ID
	database.Freeze(t, true)
	frozen := true
	t.Cleanup(func() {
		if frozen {
			database.Freeze(t, false)
		}
	})
	// The first call finds the database silent, the others know.
	limit := 30 * time.Second
	for _, call := range []struct{ method, path, body string }{
		{"POST", "/api/v1/sessions", `{}`},
		{"GET", "/api/v1/sessions", ``},
		{"GET", of, ``},
		{"GET", "/api/v1/usage", ``},
		{"GET", "/api/v1/secrets", ``},
		{"POST", "/api/v1/secrets", `{"name":"A","value":"b"}`},
		{"PATCH", of, `{"metadata":{"a":"b"}}`},
		{"POST", of + "/pause", `{}`},
		{"POST", "/api/v1/execute", `{"sandbox_id":"` + running.ID + `","code":"1","language":"python"}`},
		{"DELETE", of, ``},
	} {
		began := time.Now()
		req := c.Request(t, call.method, call.path, strings.NewReader(call.body))
		if call.body != "" {
			req.Header.Set("Content-Type", "application/json")
		}
		resp, err := c.HTTP.Do(req)
		if err != nil {
			t.Fatalf("%s %s after %v: %v", call.method, call.path, time.Since(began), err)
		}
		raw, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		took := time.Since(began)
		if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || took > limit {
			t.Errorf("%s %s: %s after %v, Retry-After %q: %s", call.method, call.path, resp.Status, took, resp.Header.Get("Retry-After"), raw)
		}
		limit = 15 * time.Second
	}
	database.Freeze(t, false)
	frozen = false
	rig.Within(t, rig.Patience, "sandboxes can be created again", func() bool {
		status, _, err := c.Do("POST", "/api/v1/sessions", rig.Body{})
		return err == nil && status == http.StatusCreated
	})
	if got := c.Run(t, running.ID, "python", "print(x)", nil); got.Stdout != "41\n" {
		t.Errorf("after the database was frozen: %+v", got)
	}
}
