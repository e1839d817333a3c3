// Package rig starts the built binary for tests, as root and with real gVisor,
// and speaks to it as its users do: over HTTP and with signals.
//
// CLOUD_SANDBOX_E2E names the binary; CLOUD_SANDBOX_TEMPLATES, if set, a folder
// of built Templates to start with.
package rig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/addrtest"
)

// Why returns the reason why tests against the binary cannot run here; empty when
// they can.
func Why() string {
	switch {
	case os.Getenv("CLOUD_SANDBOX_E2E") == "":
		return "CLOUD_SANDBOX_E2E does not name a built cloud-sandbox binary"
	case os.Geteuid() != 0:
		return "only root may start sandboxes"
	}
	return ""
}

// Binary returns the absolute path of the binary under test. A relative
// CLOUD_SANDBOX_E2E is resolved from the module's root.
func Binary() (string, error) {
	path := os.Getenv("CLOUD_SANDBOX_E2E")
	if filepath.IsAbs(path) {
		return path, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, path), nil
		}
	}
	return "", fmt.Errorf("%s is relative and no module is around", path)
}

// Options of a Server. The zero value is dev mode with a Pool of two.
type Options struct {
	Env  []string // besides the Pool's size, KEY=VALUE
	Pool int      // minimum and maximum of idle Boots; zero: 2

	Strict bool // not dev mode

	Bin string // the program; empty: the one under test
}

// Server is one server with a data folder of its own.
type Server struct {
	Bin, Data, Addr, URL string

	opts Options
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
	err  error         // of cmd, once done

	turns  []string  // URLs that its clients use in turn; empty: its own
	secret string    // signs tokens for a server outside dev mode
	nodes  []*Server // where its Sandboxes run; empty: here

	disk *Disk // that holds Data; nil: the host's

	mu         sync.Mutex
	transports []*http.Transport // of clients
}

// New makes a data folder and chooses a port, without starting the server. Close ends
// and removes everything.
func New(o Options) (*Server, error) {
	bin := o.Bin
	if bin == "" {
		var err error
		if bin, err = Binary(); err != nil {
			return nil, err
		}
	}
	data, err := DataFolder()
	if err != nil {
		return nil, err
	}
	addr, err := addrtest.Free()
	if err != nil {
		return nil, err
	}
	if o.Pool == 0 {
		o.Pool = 2
	}
	return &Server{Bin: bin, Data: data, Addr: addr, URL: "http://" + addr, opts: o, log: data + ".log"}, nil
}

// DataFolder makes a data folder with the built Templates.
func DataFolder() (string, error) {
	data, err := os.MkdirTemp("/var/tmp", "cloud-sandbox-rig-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(data, 0o755); err != nil {
		return "", err
	}
	return data, shareTemplates(data)
}

func shareTemplates(data string) error {
	from := os.Getenv("CLOUD_SANDBOX_TEMPLATES")
	if from == "" {
		return nil
	}
	if _, err := os.Stat(filepath.Join(from, "templates")); err == nil {
		from = filepath.Join(from, "templates") // a data folder was given
	}
	for _, part := range []string{"images", "refs"} { // build results; locks and work stay apart
		if err := shareTree(filepath.Join(from, part), filepath.Join(data, "templates", part)); err != nil {
			return fmt.Errorf("share the templates: %w", err)
		}
	}
	return nil
}

func shareTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		if os.Link(path, target) == nil {
			return nil
		}
		out, err := Command("cp", "-a", path, target).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// PID is the process that Launch started.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// SetEnv replaces the environment of later launches, besides the Pool's size.
func (s *Server) SetEnv(env ...string) { s.opts.Env = env }

// Launch starts the server and waits until it is ready.
func (s *Server) Launch() error {
	s.hangUp()
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"serve", "--addr", s.Addr, "--data", s.Data}
	if !s.opts.Strict {
		args = append(args, "--dev")
	}
	s.cmd = exec.Command(s.Bin, args...)
	s.cmd.Env = append(os.Environ(), fmt.Sprintf("POOL_MIN_SIZE=%d", s.opts.Pool), fmt.Sprintf("POOL_MAX_SIZE=%d", s.opts.Pool))
	s.cmd.Env = append(s.cmd.Env, s.opts.Env...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) { s.err = cmd.Wait(); close(done) }(s.cmd, s.done)
	return s.Ready()
}

// hangUp closes idle client connections. A connection to a killed server may
// otherwise fail only once a request is lost on it.
func (s *Server) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.transports {
		t.CloseIdleConnections()
	}
}

// Ready waits until the server reports that it is ready.
func (s *Server) Ready() error {
	limit := 3 * time.Minute
	if os.Getenv("CLOUD_SANDBOX_TEMPLATES") == "" {
		limit = 8 * time.Minute // the Template is built first
	}
	client := http.Client{Timeout: 10 * time.Second}
	last := errors.New("not asked")
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		select {
		case <-s.done:
			return fmt.Errorf("the server ended: %w\n%s", s.err, s.Log())
		default:
		}
		resp, err := client.Get(s.URL + "/ready")
		if err != nil {
			last = err
			continue
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return nil
		}
		last = errors.New(string(body))
	}
	return fmt.Errorf("the server did not become ready: %w\n%s", last, s.Log())
}

// Done is closed when the launcher has ended.
func (s *Server) Done() <-chan struct{} { return s.done }

// Stop sends SIGTERM and waits for the end. Sandboxes keep running.
func (s *Server) Stop() error {
	if s.cmd == nil {
		return nil
	}
	select {
	case <-s.done:
	default:
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
	}
	select {
	case <-s.done:
	case <-time.After(Patience):
		_ = s.cmd.Process.Kill()
		<-s.done
		return fmt.Errorf("the server did not end within %v of SIGTERM", Patience)
	}
	s.cmd = nil
	return s.err
}

// Down runs the subcommand that ends the server's leftovers.
func (s *Server) Down() error {
	out, err := Command(s.Bin, "down", "--data", s.Data).CombinedOutput()
	if err != nil {
		return fmt.Errorf("down: %w: %s", err, out)
	}
	return nil
}

// Close ends everything and removes the data folder. It returns an error for
// leftovers and for an unclean end.
func (s *Server) Close() error {
	err := s.Stop()
	err = errors.Join(err, s.Down())
	if left := s.Left(); len(left) > 0 {
		for _, p := range left {
			err = errors.Join(err, fmt.Errorf("still runs after down: %s", p))
			_ = syscall.Kill(p.Pid, syscall.SIGKILL)
		}
	}
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, s.Log())
	}
	if s.disk != nil {
		err = errors.Join(err, s.disk.remove())
	}
	return errors.Join(err, os.RemoveAll(s.Data), os.Remove(s.log))
}

// Left lists the processes that run after Down. It waits for processes that are just
// ending.
func (s *Server) Left() (left []Process) {
	for end := time.Now().Add(Patience); ; time.Sleep(10 * time.Millisecond) {
		if left = s.Processes(""); len(left) == 0 || time.Now().After(end) {
			return left
		}
	}
}

// Log returns the end of the logs of the server, the sentry host and the link shards.
func (s *Server) Log() string {
	var b bytes.Buffer
	shards, _ := filepath.Glob(filepath.Join(s.Data, "hosts", "*", "shards", "*.log"))
	for _, path := range append([]string{s.log, filepath.Join(s.Data, "log", "sentry-host.log")}, shards...) {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		fmt.Fprintf(&b, "--- end of %s\n%s\n", path, tail(notable(raw), 12<<10))
	}
	return b.String()
}

// notable drops the log lines of routine successes.
func notable(log []byte) string {
	var b strings.Builder
	for line := range strings.Lines(string(log)) {
		routine := strings.Contains(line, `"msg":"request"`) && !strings.Contains(line, `"status":5`)
		if !routine && !strings.Contains(line, "gvisorbinaries.go") {
			b.WriteString(tail(line, 1000))
		}
	}
	return b.String()
}

// Patience is the longest wait for a brief operation: a machine may be slow, and busy
// with other tests.
const Patience = time.Minute

// Within polls until ok returns true, and fails the test if that takes longer than
// limit. what names the awaited event.
func Within(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// Shared is one Server for all tests of a package.
type Shared struct {
	Options Options
	// Cluster starts a cluster instead if ClusterTests is set, and returns its gateways.
	Cluster func(testing.TB) *Server

	server *Server
	err    error
}

// Main runs the tests of a package and ends their shared Server.
func (s *Shared) Main(m *testing.M) int {
	if why := Why(); why != "" {
		fmt.Println("every test against the binary is skipped:", why)
		return m.Run()
	}
	lasting := &Lasting{}
	s.err = lasting.try(func() { s.server = s.open(lasting) })
	code := m.Run()
	lasting.failed = lasting.failed || code != 0
	lasting.close()
	if lasting.failed {
		code = max(code, 1)
	}
	return code
}

func (s *Shared) open(t testing.TB) *Server {
	if IsCluster() {
		return s.Cluster(t)
	}
	return own(t, s.Options)
}

// Machine returns the shared server for a test that inspects the server's machine. It
// skips the test if a cluster is tested.
func (s *Shared) Machine(t testing.TB) *Server {
	t.Helper()
	OneMachine(t)
	return s.Server(t)
}

// Server returns the shared server, or skips the test.
func (s *Shared) Server(t testing.TB) *Server {
	t.Helper()
	Need(t)
	if errors.As(s.err, new(skipped)) {
		t.Skip(s.err)
	}
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.server
}

// Need skips a test that cannot run here, with the reason.
func Need(t testing.TB) {
	t.Helper()
	if why := Why(); why != "" {
		t.Skip(why)
	}
}

// Own starts a server for this test only.
func Own(t testing.TB, o Options) *Server {
	t.Helper()
	OneMachine(t)
	return own(t, o)
}

func own(t testing.TB, o Options) *Server {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.Log())
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	return s
}

// tail returns the end of s, so that messages stay readable.
func tail(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return "..." + strings.ToValidUTF8(s[len(s)-most:], "")
}
