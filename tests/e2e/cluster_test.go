package e2e

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/addrtest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/cluster"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// wire is a proxy that records the bytes between two roles.
type wire struct {
	addr string

	mu    sync.Mutex
	bytes []byte
}

// newWire forwards to an address, until the end of the test.
func newWire(t *testing.T, to string) *wire {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	w := &wire{addr: ln.Addr().String()}
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go w.forward(conn, to)
		}
	}()
	return w
}

// forward proxies one connection and closes both ends after both directions have ended.
func (w *wire) forward(conn net.Conn, to string) {
	defer conn.Close()
	other, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer other.Close()
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{conn, other}, {other, conn}} {
		go func() {
			_, _ = io.Copy(io.MultiWriter(way[1], w), way[0])
			if half, ok := way[1].(*net.TCPConn); ok {
				_ = half.CloseWrite()
			}
			ended <- struct{}{}
		}()
	}
	<-ended
	<-ended
}

// Write records bytes of either direction.
func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bytes = append(w.bytes, p...)
	return len(p), nil
}

// holds reports whether text passed, and how many bytes passed in all.
func (w *wire) holds(text string) (bool, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return bytes.Contains(w.bytes, []byte(text)), len(w.bytes)
}

// wires returns a wire for each called role and makes the callers reach the role through
// it.
func wires(t *testing.T, r *rig.Roles, scheme string) map[string]*wire {
	t.Helper()
	all := map[string]*wire{}
	for _, role := range []string{"session-manager", "scheduler", "node"} {
		all[role] = newWire(t, r.Addrs[role])
	}
	url := func(role string) string {
		return "CLOUD_SANDBOX_" + strings.ToUpper(strings.ReplaceAll(role, "-", "_")) + "_URL=" + scheme + "://" + all[role].addr
	}
	r.Only = map[string][]string{
		"gateway":         {url("session-manager")},
		"session-manager": {url("scheduler")},
		"scheduler":       nil,
		"node":            {url("session-manager"), url("node")},
	}
	return all
}

// printed returns the `sudo` commands in a command's output, without "sudo".
func printed(t *testing.T, out string) []string {
	t.Helper()
	var all []string
	for line := range strings.Lines(out) {
		if command, ok := strings.CutPrefix(strings.TrimSpace(line), "sudo "); ok {
			all = append(all, command)
		}
	}
	if len(all) == 0 {
		t.Fatalf("no command is printed: %s", out)
	}
	return all
}

// printedCommand prepares a printed command of the program under test.
func printedCommand(r *rig.Roles, text string, more ...string) *exec.Cmd {
	args := strings.Fields(text)
	return rig.Command(r.Bin, append(args[1:], more...)...)
}

func said(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if e, ok := err.(*exec.ExitError); ok {
			exit = e
			t.Fatalf("%v: %v: %s", cmd.Args[1:], err, exit.Stderr)
		}
		t.Fatal(err)
	}
	return string(out)
}

// newCluster creates the identities of the roles by running the printed commands one
// after the other. It returns the authority's folder.
func newCluster(t *testing.T, r *rig.Roles) string {
	t.Helper()
	parent, err := os.MkdirTemp("/var/tmp", "cloud-sandbox-cluster-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(parent) })
	if err := os.Chmod(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(parent, "cluster")
	join, err := addrtest.Free()
	if err != nil {
		t.Fatal(err)
	}
	next := printed(t, said(t, rig.Command(r.Bin, "cluster", "init", "--dir", dir, "--name", "test", "--join", join, "--instance", "one")))
	if len(next) != 3 {
		t.Fatalf("init prints %q", next)
	}
	said(t, printedCommand(r, next[0]))
	log, err := r.OpenLog()
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	serve := printedCommand(r, next[1])
	serve.Stdout, serve.Stderr = log, log
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = serve.Process.Signal(syscall.SIGTERM)
		if err := serve.Wait(); err != nil {
			t.Errorf("cluster serve ends with %v", err)
		}
	})
	rig.Within(t, rig.Patience, "cluster serve answers", func() bool {
		c, err := net.Dial("tcp", join)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	token := printed(t, said(t, printedCommand(r, strings.Replace(next[2], "NODE", "node-1", 1))))
	joined := said(t, printedCommand(r, token[0], "--data", r.Data))
	if start := printed(t, joined)[0]; !strings.Contains(start, "CLOUD_SANDBOX_CLUSTER="+r.Data+"/cluster/node ") || !strings.Contains(start, " node --addr ") {
		t.Errorf("join prints %q", start)
	}
	if out, err := printedCommand(r, token[0], "--data", r.Data).CombinedOutput(); err == nil || !strings.Contains(string(out), "already used") {
		t.Errorf("a second join with the token: %v: %s", err, out)
	}
	return dir
}

// identified configures the roles' identities and monitoring addresses.
func identified(t *testing.T, r *rig.Roles, dir string) {
	t.Helper()
	r.Monitors = map[string]string{}
	for _, role := range rig.RoleNames {
		folder := filepath.Join(dir, role)
		if role == "node" {
			folder = filepath.Join(r.Data, "cluster", "node")
		}
		r.Only[role] = append(r.Only[role], "CLOUD_SANDBOX_CLUSTER="+folder)
		if role == "gateway" {
			continue
		}
		addr, err := addrtest.Free()
		if err != nil {
			t.Fatal(err)
		}
		r.Monitors[role] = addr
		r.Only[role] = append(r.Only[role], "CLOUD_SANDBOX_MONITOR_ADDR="+addr)
	}
}

const (
	codeMark   = "mark-of-the-tenants-code"
	outputMark = "mark-of-the-output"
	fileMark   = "mark-of-a-file"
)

// useAll starts the four roles with wires between them and uses every data path between
// roles: it creates a Sandbox with a secret, runs code, streams, and ends the Sandbox.
func useAll(t *testing.T, secured bool) (*rig.Roles, *rig.Client, map[string]*wire, string) {
	t.Helper()
	addr := rig.HostAddress(t)
	site := newSecretSite(t, addr)
	r := rig.PrepareRoles(t, rig.Options{Pool: 1, Env: []string{
		"CLOUD_SANDBOX_NAMESERVERS=" + rig.NameServer(t, addr),
		fmt.Sprintf("CLOUD_SANDBOX_EGRESS_OPEN=%s:%d", addr, site.Port),
		"CLOUD_SANDBOX_SECRETS_ROOTS=" + site.Roots,
	}})
	dir, scheme := "", "http"
	if secured {
		dir, scheme = newCluster(t, r), "https"
	}
	all := wires(t, r, scheme)
	if secured {
		identified(t, r, dir)
	}
	for _, role := range rig.RoleNames {
		r.Start(t, role)
	}
	r.Serves(t)
	c := r.Client(t, "tenant-of-the-cluster")
	c.Must(t, "POST", "/api/v1/secrets", rig.Body{"name": "API_KEY", "value": secretValue}, nil)
	id := c.Create(t, rig.Body{"secrets": []rig.Body{
		{"name": "API_KEY", "host": fmt.Sprintf("api.example:%d", site.Port), "header": "authorization", "format": "Bearer {value}"},
	}}).ID
	if got := output(t, c, id, "bash", fmt.Sprintf("curl -sS https://api.example:%d/", site.Port)); !strings.HasPrefix(got, "with api.example") {
		t.Errorf("a request with a secret: %q", got)
	}
	code := fmt.Sprintf("# %s\nprint(%q.replace('X', ''))", codeMark, strings.ReplaceAll(outputMark, "-", "X-"))
	if got := output(t, c, id, "python", code); got != outputMark+"\n" {
		t.Errorf("code: %q", got)
	}
	content := bytes.Repeat([]byte(fileMark+" "), 100_000)
	c.Must(t, "PUT", rig.Files("", id, "/workspace/large"), content, nil)
	if status, raw, err := c.Do("GET", rig.Files("", id, "/workspace/large"), nil); err != nil || status != 200 || !bytes.Equal(raw, content) {
		t.Errorf("a file: %d, %d bytes, %v", status, len(raw), err)
	}
	status, raw, err := c.Do("POST", "/api/v1/execute", rig.Body{"sandbox_id": id, "language": "bash", "stream": true, "code": "for i in 1 2 3; do echo line $i; sleep 0.2; done"})
	if err != nil || status != 200 || bytes.Count(raw, []byte("event: stdout")) < 2 || !bytes.Contains(raw, []byte("event: result")) {
		t.Errorf("a stream: %d %s %v", status, raw, err)
	}
	c.Must(t, "POST", "/api/v1/sessions/"+id+"/pause", rig.Body{}, nil)
	if got := output(t, c, id, "bash", "tail -c 15 /workspace/large"); got != fileMark+" " {
		t.Errorf("after a pause: %q", got)
	}
	c.Must(t, "POST", "/api/v1/sandbox/release", rig.Body{"sandbox_id": id}, nil)
	if got := c.Get(t, id).State; got != "ended" && got != "stopping" {
		t.Errorf("released: %s", got)
	}
	return r, c, all, dir
}

// inTheClear lists texts that must not pass between machines unencrypted: a secret, a
// tenant's code, output, files and name, an Authorization header, and the start of a
// token.
var inTheClear = []string{secretValue, codeMark, outputMark, fileMark, "tenant-of-the-cluster", "Authorization: Bearer", "eyJhbGciOi"}

// With cluster certificates the roles communicate over TLS, and no tenant data passes
// between them unencrypted.
func TestCluster(t *testing.T) {
	t.Parallel()
	r, c, all, dir := useAll(t, true)
	for role, w := range all {
		for _, text := range inTheClear {
			if found, n := w.holds(text); found || n < 1000 {
				t.Errorf("%q passed to the %s in the clear: %v; %d bytes did", text, role, found, n)
			}
		}
	}

	t.Run("plaintext is refused", func(t *testing.T) {
		for _, role := range []string{"session-manager", "scheduler", "node"} {
			anyone := &rig.Client{URL: "http://" + r.Addrs[role], HTTP: http.DefaultClient}
			if code, raw, err := anyone.Do("GET", "/metrics", nil); err != nil || code != 400 || bytes.Contains(raw, []byte("go_goroutines")) {
				t.Errorf("the %s answers plaintext with %d %.80s, %v", role, code, raw, err)
			}
		}
	})
	t.Run("a stolen node's certificate", func(t *testing.T) { stolenNode(t, r, c) })
	t.Run("settings", func(t *testing.T) { refusedSettings(t, r, dir) })
	t.Run("a restart", func(t *testing.T) {
		l := begin(t, c, nil)
		for _, role := range rig.RoleNames {
			r.Kill(t, role)
			r.Start(t, role)
		}
		r.Serves(t)
		l.goesOn(t)
	})
	t.Run("renewed while it runs", func(t *testing.T) {
		cert := filepath.Join(r.Data, "cluster", "node", "tls.crt")
		before := read(t, cert)
		said(t, rig.Command(r.Bin, "cluster", "renew", "--dir", filepath.Dir(cert)))
		if bytes.Equal(read(t, cert), before) {
			t.Fatal("the certificate is the same")
		}
		rig.Within(t, rig.Patience, "the node uses its new certificate", func() bool {
			return bytes.Contains(read(t, r.LogFile()), []byte("the identity of this role was replaced"))
		})
		works(t, c, c.Create(t, nil).ID)
	})
	t.Run("revoked", func(t *testing.T) {
		said(t, rig.Command(r.Bin, "cluster", "revoke", "node/node-1", "--dir", dir))
		rig.Within(t, 2*time.Minute, "the revoked node gets no sandbox", func() bool {
			return c.Try("POST", "/api/v1/sessions", rig.Body{}, nil) != nil
		})
	})
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// stolenNode uses the node's certificate as a thief would.
func stolenNode(t *testing.T, r *rig.Roles, c *rig.Client) {
	id := c.Create(t, nil).ID
	identity, err := cluster.Open(filepath.Join(r.Data, "cluster", "node"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	keys, err := rpc.NewKeys(bytes.Repeat([]byte("k"), 32))
	if err != nil {
		t.Fatal(err)
	}
	// It claims to be a gateway.
	self := rpc.Self{Role: rpc.Gateway, Name: "one", Keys: keys, Identity: identity}
	manager := rpc.NewSandboxes("https://"+r.Addrs["session-manager"], self)
	defer manager.Close()
	const tenant = "tenant-of-the-cluster"
	_, getErr := manager.Get(t.Context(), tenant, id)
	_, listErr := manager.List(t.Context(), tenant, sandbox.ListQuery{})
	_, endErr := manager.End(t.Context(), tenant, id, sandbox.CauseReleased)
	usedErr := manager.Used(t.Context(), []sandbox.Use{{SandboxID: id}})
	placement := rpc.NewPlacement("https://"+r.Addrs["scheduler"], self)
	defer placement.Close()
	_, placeErr := placement.Place(t.Context(), sandbox.BootNeeds{Shape: sandbox.DefaultShape()})
	for name, err := range map[string]error{"Get": getErr, "List": listErr, "End": endErr, "Used": usedErr, "Place": placeErr} {
		if sandbox.CodeOf(err) != sandbox.Denied {
			t.Errorf("%s by a node: %v", name, err)
		}
	}
	// The denied calls did not end the Sandbox.
	if got := c.Get(t, id); got.State != "running" {
		t.Errorf("the sandbox is %s", got.State)
	}
}

// refusedSettings checks that a role does not start with settings that contradict its
// certificate.
func refusedSettings(t *testing.T, r *rig.Roles, dir string) {
	for _, tt := range []struct {
		role string
		env  []string
		want []string
	}{
		{"scheduler", []string{"CLOUD_SANDBOX_CLUSTER=" + filepath.Join(dir, "gateway")}, []string{"gateway/one", "this is the scheduler"}},
		{"scheduler", []string{"CLOUD_SANDBOX_CLUSTER=" + dir}, []string{"CLOUD_SANDBOX_CLUSTER", "no such file"}},
		{"session-manager", []string{"CLOUD_SANDBOX_CLUSTER=" + filepath.Join(dir, "session-manager"), "CLOUD_SANDBOX_SCHEDULER_URL=http://127.0.0.1:1"}, []string{"CLOUD_SANDBOX_SCHEDULER_URL", "http:// is refused"}},
		{"session-manager", []string{"CLOUD_SANDBOX_SCHEDULER_URL=https://127.0.0.1:1"}, []string{"CLOUD_SANDBOX_SCHEDULER_URL", "CLOUD_SANDBOX_CLUSTER"}},
	} {
		data, err := os.MkdirTemp("/var/tmp", "cloud-sandbox-cluster-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(data) })
		if err := os.Chmod(data, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := rig.Command(filepath.Join(filepath.Dir(r.Bin), tt.role), "--addr", "127.0.0.1:0", "--data", data)
		cmd.Env = slices.Concat([]string{"PATH=" + os.Getenv("PATH")}, tt.env)
		kill := time.AfterFunc(rig.Patience, func() { _ = cmd.Process.Kill() })
		out, err := cmd.CombinedOutput()
		kill.Stop()
		for _, want := range tt.want {
			if err == nil || !strings.Contains(string(out), want) {
				t.Errorf("the %s with %q ends with %v and does not say %q:\n%s", tt.role, tt.env, err, want, out)
			}
		}
	}
}

// Without certificates the same texts pass unencrypted. This shows that the wires of
// TestCluster would detect them.
func TestWithoutACluster(t *testing.T) {
	t.Parallel()
	_, _, all, _ := useAll(t, false)
	for _, text := range inTheClear {
		found := false
		for _, w := range all {
			passed, _ := w.holds(text)
			found = found || passed
		}
		if !found {
			t.Errorf("%q did not pass in the clear between roles without certificates", text)
		}
	}
}
