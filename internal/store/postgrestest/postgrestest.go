// Package postgrestest runs a PostgreSQL server of its own for the tests of a package.
package postgrestest

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver

	"github.com/cloud-sandbox/cloud-sandbox/internal/addrtest"
)

// Programs names the folder with initdb and postgres, as scripts/postgres.sh prints it.
const Programs = "CLOUD_SANDBOX_POSTGRES"

const loopback = "127.0.0.1"

// A Server is a PostgreSQL server that ends with the test.
type Server struct {
	host     string // where it listens
	durable  bool
	port     int
	folder   string
	programs string
	as       *syscall.Credential // nil: the user of the test
	running  *exec.Cmd
	log      *bytes.Buffer
	schemas  atomic.Int64
}

// Start runs a server with an empty database. It skips the test, and says why, where
// Programs is not set. The server waits for no disk: tests do not crash the machine.
func Start(t testing.TB) *Server {
	t.Helper()
	return StartWith(t, Options{})
}

// Options of a Server.
type Options struct {
	// Host is the IP address of this machine where it listens, and trusts who reaches it;
	// empty: loopback.
	Host string
	// Durable has it wait for the disk, as servers do that are not for tests.
	Durable bool
}

// StartWith is Start with Options.
func StartWith(t testing.TB, o Options) *Server {
	t.Helper()
	programs := os.Getenv(Programs)
	if programs == "" {
		t.Skipf("%s names no PostgreSQL server to test with: scripts/postgres.sh finds or installs one", Programs)
	}
	s := &Server{host: cmp.Or(o.Host, loopback), durable: o.Durable, programs: programs, log: &bytes.Buffer{}}
	s.folder = tempFolder(t)
	if os.Geteuid() == 0 { // the server refuses to run as root
		s.as = credential(t)
		if err := os.Chown(s.folder, int(s.as.Uid), int(s.as.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	initdb := s.command("initdb", "--pgdata", s.data(), "--auth", "trust", "--username", "postgres", "--no-sync", "--encoding", "UTF8", "--locale", "C.UTF-8")
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	if s.host != loopback {
		trust := "host all all " + s.host + "/24 trust\n"
		if err := os.WriteFile(filepath.Join(s.data(), "pg_hba.conf"), []byte(trust), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	port, err := addrtest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	if s.port, err = strconv.Atoi(port); err != nil {
		t.Fatal(err)
	}
	s.Run(t)
	t.Cleanup(func() { s.Stop(t) })
	return s
}

func (s *Server) data() string { return filepath.Join(s.folder, "data") }

func (s *Server) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.programs, program), args...)
	cmd.Dir = s.folder
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.as, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// Run starts the server, which does not run, and waits until it answers.
func (s *Server) Run(t testing.TB) {
	t.Helper()
	settings := []string{"-D", s.data(), "-c", "listen_addresses=" + s.host, "-p", strconv.Itoa(s.port), "-c", "unix_socket_directories="}
	if !s.durable {
		settings = append(settings, "-c", "fsync=off", "-c", "full_page_writes=off")
	}
	s.running = s.command("postgres", settings...)
	s.running.Stdout, s.running.Stderr = s.log, s.log
	if err := s.running.Start(); err != nil {
		t.Fatalf("start PostgreSQL: %v", err)
	}
	db := s.open(t)
	defer db.Close()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := db.PingContext(context.Background())
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("PostgreSQL does not answer: %v", err)
		}
	}
}

// Stop ends the server and all its connections.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if s.running == nil {
		return
	}
	_ = s.running.Process.Signal(syscall.SIGINT) // a fast shutdown
	if err := s.running.Wait(); err != nil {
		t.Logf("PostgreSQL ended with %v:\n%s", err, s.log)
	}
	s.running = nil
}

// Crash ends the server at once. Commits that have not reached its log are lost, and Run
// recovers the others.
func (s *Server) Crash(t testing.TB) {
	t.Helper()
	if err := s.running.Process.Signal(syscall.SIGQUIT); err != nil { // an immediate shutdown
		t.Fatal(err)
	}
	_ = s.running.Wait() // with an error
	s.running = nil
}

// Freeze stops all processes of the server without ending them, or lets them run on.
func (s *Server) Freeze(t testing.TB, frozen bool) {
	t.Helper()
	signal := syscall.SIGCONT
	if frozen {
		signal = syscall.SIGSTOP
	}
	if err := syscall.Kill(s.running.Process.Pid, signal); err != nil { // first: it starts the others
		t.Fatal(err)
	}
	pid := strconv.Itoa(s.running.Process.Pid)
	children, err := os.ReadFile(filepath.Join("/proc", pid, "task", pid, "children"))
	if err != nil {
		t.Fatal(err)
	}
	for process := range strings.FieldsSeq(string(children)) {
		n, err := strconv.Atoi(process)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(n, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
	}
}

// Port returns the port of the server.
func (s *Server) Port() int { return s.port }

// Address returns the address of a new and empty database.
func (s *Server) Address(t testing.TB) string {
	t.Helper()
	db := s.open(t)
	defer db.Close()
	name := fmt.Sprintf("test%d", s.schemas.Add(1))
	if _, err := db.ExecContext(context.Background(), "CREATE SCHEMA "+name); err != nil {
		t.Fatal(err)
	}
	return s.address(url.Values{"search_path": {name}})
}

func (s *Server) open(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", s.address(nil))
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func (s *Server) address(options url.Values) string {
	if options == nil {
		options = url.Values{}
	}
	options.Set("sslmode", "disable")
	where := url.URL{Scheme: "postgres", User: url.User("postgres"), Host: net.JoinHostPort(s.host, strconv.Itoa(s.port)), Path: "/postgres", RawQuery: options.Encode()}
	return where.String()
}

// tempFolder is a folder that another user may enter.
func tempFolder(t testing.TB) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "postgres")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	return folder
}

// credential is a user that is not root.
func credential(t testing.TB) *syscall.Credential {
	t.Helper()
	var errs []error
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		gid, groupErr := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err, groupErr); err != nil {
			t.Fatal(err)
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	t.Fatalf("PostgreSQL runs as no root, and there is no other user: %v", errors.Join(errs...))
	return nil
}
