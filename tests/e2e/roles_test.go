package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// Each role serves its name, its readiness and its metrics.
func TestRolesTellWhoTheyAre(t *testing.T) {
	t.Parallel()
	r := rig.OwnRoles(t, rig.Options{})
	for _, role := range rig.RoleNames {
		if code, raw, err := r.Ask(role, "/health"); err != nil || code != 200 || string(raw) != fmt.Sprintf(`{"service":%q,"status":"ok"}`, role) {
			t.Errorf("%s: health is %d %s %v", role, code, raw, err)
		}
		code, raw, err := r.Ask(role, "/ready")
		var ready struct {
			Ready   bool
			Reasons []string
		}
		if err != nil || code != 200 || json.Unmarshal(raw, &ready) != nil || !ready.Ready || ready.Reasons == nil {
			t.Errorf("%s: ready is %d %s %v", role, code, raw, err)
		}
		anyone := &rig.Client{URL: "http://" + r.Addrs[role], HTTP: http.DefaultClient}
		if code, raw, err := anyone.Do("POST", "/grpc.health.v1.Health/Check", rig.Body{}); err != nil || code != 200 || !bytes.Contains(raw, []byte(`"SERVING"`)) {
			t.Errorf("%s: gRPC's health is %d %s %v", role, code, raw, err)
		}
		if code, raw, err := r.Ask(role, "/metrics"); err != nil || code != 200 || !bytes.Contains(raw, []byte("go_goroutines")) || !bytes.Contains(raw, []byte("process_open_fds")) {
			t.Errorf("%s: metrics are %d %.200s %v", role, code, raw, err)
		}
	}
	for _, role := range []string{"gateway", "session-manager", "scheduler"} {
		for k, v := range map[string]string{"Uid": "61740", "Gid": "61740", "Groups": "", "CapEff": "0000000000000000", "CapPrm": "0000000000000000"} {
			if got := rig.Status(t, r.Pid(role))[k]; !strings.HasPrefix(got, v) || v == "" && got != "" {
				t.Errorf("%s runs with %s %q", role, k, got)
			}
		}
	}
	cli := rig.Command(r.Bin, "--data", r.Data, "ls") // finds the gateway's address in the data folder
	if out, err := cli.CombinedOutput(); err != nil {
		t.Errorf("%s: %v", out, err)
	}
	c := r.Client(t, "counts")
	if res := c.Run(t, "", "python", "print(6*7)", nil); res.Stdout != "42\n" {
		t.Error(res)
	}
	create(t, c, rig.Body{})
	if got := depthsOf(t, c); got != (depths{Active: 1}) {
		t.Errorf("the session-manager tells of %+v", got)
	}
	for role, patterns := range map[string][]string{
		"gateway":         {`http_request_duration_seconds_count\{method="POST",route="/api/v1/execute",status="200"\} [1-9]`, `execution_duration_seconds_count\{language="python",status="ok"\} [1-9]`},
		"session-manager": {`create_duration_seconds_count\{code="ok",start="warm"\} [1-9]`, `ended_total\{cause="released"\} [1-9]`, `sandboxes\{state="running"\} \d`},
		"scheduler":       {`rpc_duration_seconds_count\{code="ok",method="/cloudsandbox.scheduler.v1.SchedulerService/Place"\} [1-9]`},
		"node": {
			`rpc_duration_seconds_count\{code="ok",method="/cloudsandbox.node.v1.NodeService/Start"\} [1-9]`,
			`boot_duration_seconds_count\{code="ok",step="start"\} [1-9]`, `boot_duration_seconds_count\{code="ok",step="bind"\} [1-9]`,
			`pool_idle\{[^}]*template="base"\} \d`, `node_memory_free_bytes\{[^}]*\} \d`, `node_disk_free_bytes\{[^}]*\} \d`,
		},
	} {
		for _, pattern := range patterns { // metrics may change after the answer
			counted := regexp.MustCompile(`(?m)^cloud_sandbox_` + pattern)
			rig.Within(t, rig.Patience, "the "+role+" counts "+pattern, func() bool {
				_, raw, _ := r.Ask(role, "/metrics")
				return counted.Match(raw)
			})
		}
	}
}

// A request can be followed through every role by its ID.
func TestRequestsLeaveATrace(t *testing.T) {
	t.Parallel()
	r := rig.OwnRoles(t, rig.Options{})
	c := r.Client(t, "traced")
	const id = "follow.me-1"
	req, err := http.NewRequest("POST", c.URL+"/api/v1/execute", strings.NewReader(`{"language": "bash", "code": "true"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.Token)
	req.Header.Set("X-Request-Id", id)
	resp, err := c.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 || resp.Header.Get("X-Request-Id") != id {
		t.Fatalf("%d, %q", resp.StatusCode, resp.Header.Get("X-Request-Id"))
	}
	for _, want := range []string{
		"gateway: request POST", "session-manager: call Create", "session-manager: a sandbox runs .", "scheduler: call Place", "node: call Start",
		"session-manager: call End", "session-manager: a sandbox ended .", "node: call Stop",
	} { // a line may be written after the answer
		rig.Within(t, rig.Patience, want+" in the log", func() bool { return loggedOf(t, r, id)[want] })
	}
}

// loggedOf returns what the roles logged about a request, as "ROLE: MESSAGE METHOD".
func loggedOf(t *testing.T, r *rig.Roles, id string) map[string]bool {
	t.Helper()
	log, err := os.ReadFile(r.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for line := range bytes.Lines(log) {
		var l struct {
			Role, Msg, Method string
			Request           string `json:"request_id"`
		}
		if json.Unmarshal(line, &l) == nil && l.Request == id {
			found[l.Role+": "+l.Msg+" "+path.Base(l.Method)] = true
		}
	}
	return found
}

// Sandboxes, their files and their records survive kill -9 of any role, and the role
// works again after a restart.
func TestKilledRoles(t *testing.T) {
	t.Parallel()
	r := rig.OwnRoles(t, rig.Options{})
	c := r.Client(t, "lives")
	l := begin(t, c, nil)
	for _, role := range rig.RoleNames {
		t.Run(role, func(t *testing.T) {
			dying := c.Create(t, rig.Body{"timeout_seconds": 3, "on_timeout": "end"})
			r.Kill(t, role)
			switch role {
			case "scheduler", "session-manager":
				reachable(t, l)
				refusesCreates(t, c)
			case "node":
				c.Get(t, l.id)
			}
			r.Start(t, role)
			r.Serves(t)
			l.goesOn(t)
			works(t, c, c.Create(t, nil).ID)
			rig.Within(t, time.Until(dying.Deadline)+rig.Patience, "the end at a deadline from before the kill", func() bool {
				return c.Get(t, dying.ID).State == "ended"
			})
			if got := c.Get(t, dying.ID); got.Cause() != "deadline" {
				t.Errorf("the cause is %q", got.Cause())
			}
		})
	}
	t.Run("the node's server", func(t *testing.T) {
		rig.Kill(t, r.NodeServer(t))
		r.Ended(t, "node")
		r.Start(t, "node")
		r.Serves(t)
		l.goesOn(t)
	})
	t.Run("session-manager and scheduler", func(t *testing.T) {
		r.Kill(t, "session-manager")
		r.Kill(t, "scheduler")
		reachable(t, l)
		r.Start(t, "session-manager")
		r.Start(t, "scheduler")
		r.Serves(t)
		l.goesOn(t)
	})
	t.Run("all", func(t *testing.T) {
		for _, role := range rig.RoleNames {
			r.Kill(t, role)
		}
		for i := range rig.RoleNames { // in reverse order: no role needs another to start
			r.Start(t, rig.RoleNames[len(rig.RoleNames)-1-i])
		}
		r.Serves(t)
		l.goesOn(t)
		works(t, c, c.Create(t, nil).ID)
	})
	if got := c.Get(t, l.id); got.State != "running" {
		t.Errorf("the sandbox is %s: %s", got.State, got.Cause())
	}
}

// reachable checks that a running Sandbox can be used and listed at once.
func reachable(t *testing.T, l *life) {
	t.Helper()
	l.goesOn(t)
	content := bytes.Repeat([]byte("content "), 1<<17)
	if code, raw, err := l.c.Do("PUT", rig.Files("", l.id, "/workspace/large"), content); err != nil || code >= 300 {
		t.Errorf("an upload: %d %s %v", code, raw, err)
	}
	if code, raw, err := l.c.Do("GET", rig.Files("", l.id, "/workspace/large"), nil); err != nil || code != 200 || !bytes.Equal(raw, content) {
		t.Errorf("a download: %d, %d bytes, %v", code, len(raw), err)
	}
	var page struct {
		Sessions []rig.Sandbox `json:"sessions"`
	}
	l.c.Must(t, "GET", "/api/v1/sessions", nil, &page)
	if len(page.Sessions) == 0 {
		t.Error("the list is empty")
	}
}

// refusesCreates checks that a create is soon refused with 503 and Retry-After.
func refusesCreates(t *testing.T, c *rig.Client) {
	t.Helper()
	req, err := http.NewRequest("POST", c.URL+"/api/v1/sessions", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.Token)
	began := time.Now()
	resp, err := c.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" || time.Since(began) > noticed {
		t.Errorf("a create answers %d, Retry-After %q, after %v", resp.StatusCode, resp.Header.Get("Retry-After"), time.Since(began))
	}
}

// A process that cannot start reports the reason in one line and does not disturb the
// running roles.
func TestRolesThatCannotStart(t *testing.T) {
	t.Parallel()
	r := rig.OwnRoles(t, rig.Options{})
	bin := func(name string) string { return filepath.Join(filepath.Dir(r.Bin), name) }
	for _, tt := range []struct {
		name string
		args []string
		want []string
	}{
		{"a second scheduler", []string{bin("scheduler"), "--addr", "127.0.0.1:0", "--data", r.Data}, []string{"another scheduler", r.Data}},
		{"a second node", []string{bin("node"), "--addr", "127.0.0.1:0", "--data", r.Data}, []string{"another node", r.Data}},
		{"all in one", []string{r.Bin, "serve", "--dev", "--addr", "127.0.0.1:0", "--data", r.Data}, []string{"another", r.Data}},
		{"down", []string{r.Bin, "down", "--data", r.Data}, []string{"still runs"}},
		{"port in use", []string{bin("scheduler"), "--addr", r.Addrs["gateway"], "--data", filepath.Dir(public(t, bin("scheduler")))}, []string{r.Addrs["gateway"], "in use"}},
		{"gateway without a secret", []string{bin("gateway"), "--addr", "127.0.0.1:0", "--data", r.Data}, []string{"JWT_SECRET"}},
		{"node, not root", []string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", public(t, bin("node")), "--data", r.Data}, []string{"root"}},
		{"another user's scheduler", []string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", public(t, bin("scheduler")), "--addr", "127.0.0.1:0", "--data", r.Data}, []string{"61740"}},
		{"a misspelled setting of the gateway", []string{"env", "CLOUD_SANDBOX_EGRES=none", bin("gateway"), "--dev", "--addr", "127.0.0.1:0", "--data", r.Data}, []string{"the nearest is CLOUD_SANDBOX_EGRESS."}},
		{"of the session-manager", []string{"env", "CLOUD_SANDBOX_EGRES=none", bin("session-manager"), "--addr", "127.0.0.1:0", "--data", r.Data}, []string{"the nearest is CLOUD_SANDBOX_EGRESS."}},
		{"of the scheduler", []string{"env", "CLOUD_SANDBOX_EGRES=none", bin("scheduler"), "--addr", "127.0.0.1:0", "--data", r.Data}, []string{"the nearest is CLOUD_SANDBOX_EGRESS."}},
		{"of the node", []string{"env", "CLOUD_SANDBOX_EGRES=none", bin("node"), "--addr", "127.0.0.1:0", "--data", r.Data}, []string{"the nearest is CLOUD_SANDBOX_EGRESS."}},
		{"a bad URL", []string{"env", "CLOUD_SANDBOX_SCHEDULER_URL=ftp://x", bin("session-manager"), "--addr", "127.0.0.1:0", "--data", r.Data}, []string{"CLOUD_SANDBOX_SCHEDULER_URL", "unix:/PATH"}},
	} {
		cmd := rig.Command(tt.args[0], tt.args[1:]...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "POOL_MIN_SIZE=0", "POOL_MAX_SIZE=0"}
		cmd.Dir = "/"
		kill := time.AfterFunc(rig.Patience, func() { _ = cmd.Process.Kill() })
		out, err := cmd.CombinedOutput()
		kill.Stop()
		text := strings.TrimSpace(string(out))
		if err == nil || strings.Count(text, "\n") > 0 {
			t.Errorf("%s ends with %v and says:\n%s", tt.name, err, text)
		}
		for _, w := range tt.want {
			if !strings.Contains(text, w) {
				t.Errorf("%s does not say %q: %s", tt.name, w, text)
			}
		}
	}
	c := r.Client(t, "undisturbed")
	if res := c.Run(t, "", "bash", "echo ok", nil); res.Stdout != "ok\n" {
		t.Error(res)
	}
}

// public copies a program to a folder that every user can reach, and returns its path.
func public(t *testing.T, program string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "cloud-sandbox-roles-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	to := filepath.Join(dir, filepath.Base(program))
	if out, err := rig.Command("install", "-m", "755", program, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return to
}

// `make run-all` restarts a role that dies, reports it, and stops all roles at its own
// end.
func TestRunAll(t *testing.T) {
	t.Parallel()
	r := rig.PrepareRoles(t, rig.Options{})
	cmd := rig.Command("../../scripts/run-all.sh")
	cmd.Env = append(r.Env(), "BIN="+filepath.Dir(r.Bin), "DATA="+r.Data, "ADDR="+r.Addr)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	log, err := r.OpenLog()
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			fmt.Fprintln(log, s.Text())
			lines <- s.Text()
		}
	}()
	says := func(what string) {
		t.Helper()
		late := time.After(2 * time.Minute)
		for {
			select {
			case line, ok := <-lines:
				if !ok {
					t.Fatalf("it ended and has not said %q", what)
				}
				if strings.Contains(line, what) {
					return
				}
			case <-late:
				t.Fatalf("it has not said %q", what)
			}
		}
	}
	says("ready at " + r.URL)
	c := r.Client(t, "all")
	l := begin(t, c, nil)
	for _, role := range rig.RoleNames {
		pid := childOf(t, cmd.Process.Pid, role)
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		says("the " + role + " ended with status ")
		rig.Within(t, rig.Patience, "the "+role+" serves again", func() bool {
			code, _, err := r.Ask(role, "/ready")
			return err == nil && code == 200
		})
		works(t, c, l.id)
		l.goesOn(t)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	says("all four have ended")
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ends with %v", err)
	}
}

// It also stops all roles when it is terminated while they start.
func TestRunAllEndsEarly(t *testing.T) {
	t.Parallel()
	r := rig.PrepareRoles(t, rig.Options{})
	log, err := r.OpenLog()
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := rig.Command("../../scripts/run-all.sh")
	cmd.Env = append(r.Env(), "BIN="+filepath.Dir(r.Bin), "DATA="+r.Data, "ADDR="+r.Addr)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }) // kills leftovers
	last := childOf(t, cmd.Process.Pid, "gateway")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	if said, readErr := os.ReadFile(r.LogFile()); err != nil || readErr != nil || !bytes.Contains(said, []byte("all four have ended")) {
		t.Errorf("it ends with %v, %v: %s", err, readErr, said)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", last)); err == nil {
		t.Error("the gateway goes on")
	}
}

// A Node that is killed while its sentry host starts leaves a sentry host that cannot be
// reached. The next Node ends it, and so does `down`.
func TestKilledWhileTheSentryHostStarts(t *testing.T) {
	t.Parallel()
	r := rig.PrepareRoles(t, rig.Options{})
	killed := func() rig.Process {
		t.Helper()
		r.Start(t, "node")
		host := r.One(t, rig.SentryHost)
		r.Kill(t, "node")
		// It listens a moment later. Removing its socket restores the state before that.
		rig.Within(t, rig.Patience, "the socket of the sentry host", func() bool {
			sockets, err := filepath.Glob(filepath.Join(r.Data, "run", "sentry-host-*.sock"))
			return err == nil && len(sockets) == 1 && os.Remove(sockets[0]) == nil
		})
		return host
	}
	first := killed()
	others := []string{"scheduler", "session-manager"} // without which a Node is not ready
	for _, role := range append(others, "node") {
		r.Start(t, role)
	}
	r.Serves(t)
	if next := r.One(t, rig.SentryHost); next.Pid == first.Pid {
		t.Errorf("the sentry host %d cannot be reached and still runs", next.Pid)
	}
	for _, role := range append(others, "node") {
		r.Kill(t, role)
	}
	if err := r.Down(); err != nil {
		t.Fatal(err)
	}
	killed()
	if err := r.Down(); err != nil {
		t.Fatal(err)
	}
	if left := r.Left(); len(left) > 0 {
		t.Fatalf("still runs after down: %v", left)
	}
}

// childOf finds the child that runs a role's program.
func childOf(t *testing.T, parent int, role string) int {
	t.Helper()
	found := 0
	rig.Within(t, rig.Patience, "a child that runs "+role, func() bool {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", parent, parent))
		if err != nil {
			t.Fatal(err)
		}
		for _, field := range strings.Fields(string(raw)) {
			exe, err := os.Readlink("/proc/" + field + "/exe")
			if err == nil && filepath.Base(exe) == role {
				found, err = strconv.Atoi(field)
				return err == nil
			}
		}
		return false
	})
	return found
}
