// Package redistest runs a Redis server of its own for a test.
package redistest

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/cloud-sandbox/cloud-sandbox/internal/addrtest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit"
)

// Programs names the folder with redis-server, as scripts/redis.sh prints it.
const Programs = "CLOUD_SANDBOX_REDIS"

// Password is the password of each Server. It has characters that mean something in a URL
// and in RATE_LIMITS.
const Password = "a-secret, of tests@/?#%"

// A Server is a Redis server that keeps nothing on disk, and ends with
// the test.
type Server struct {
	Address ratelimit.Address
	// Client is for looking into the server.
	Client *goredis.Client

	program string
	folder  string
	running *exec.Cmd
	log     *bytes.Buffer
}

// Start runs an empty server. It skips the test, and says why, where Programs is not set.
func Start(t testing.TB) *Server {
	t.Helper()
	return StartOn(t, "127.0.0.1")
}

// StartOn is Start for a server that listens on an IP address of this machine.
func StartOn(t testing.TB, host string) *Server {
	t.Helper()
	programs := os.Getenv(Programs)
	if programs == "" {
		t.Skipf("%s names no Redis server to test with: scripts/redis.sh finds or installs one", Programs)
	}
	s := &Server{program: filepath.Join(programs, "redis-server"), folder: t.TempDir(), log: &bytes.Buffer{}}
	port, err := addrtest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	s.Address = ratelimit.Address{HostPort: net.JoinHostPort(host, port), Password: Password}
	s.Client = goredis.NewClient(&goredis.Options{Addr: s.Address.HostPort, Password: Password, MaxRetries: -1})
	s.Run(t)
	t.Cleanup(func() {
		_ = s.Client.Close() // nothing depends on it
		s.Kill(t)
	})
	return s
}

// URL returns the address for RATE_LIMITS.
func (s *Server) URL() string {
	return "redis://:" + escape(Password) + "@" + s.Address.HostPort + "/0"
}

// escape percent-encodes every byte of text except letters and digits.
func escape(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' {
			b.WriteByte(c)
			continue
		}
		const digits = "0123456789ABCDEF"
		b.Write([]byte{'%', digits[c>>4], digits[c&15]})
	}
	return b.String()
}

// Run starts the server, which does not run, and waits until it answers. It is empty.
func (s *Server) Run(t testing.TB) {
	t.Helper()
	host, port, _ := net.SplitHostPort(s.Address.HostPort)
	s.running = exec.Command(s.program, "--bind", host, "--port", port, "--requirepass", Password,
		"--save", "", "--appendonly", "no", "--dir", s.folder)
	s.running.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.running.Stdout, s.running.Stderr = s.log, s.log
	if err := s.running.Start(); err != nil {
		t.Fatalf("start Redis: %v", err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := s.Client.Ping(context.Background()).Err()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.Kill(t)
			t.Fatalf("Redis does not answer: %v\n%s", err, s.log)
		}
	}
}

// Kill ends the server at once, as a crash does.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	if s.running == nil {
		return
	}
	_ = s.running.Process.Kill()
	_ = s.running.Wait() // it was killed
	s.running = nil
}

// Freeze stops the server without ending it, or lets it run on.
func (s *Server) Freeze(t testing.TB, frozen bool) {
	t.Helper()
	signal := syscall.SIGCONT
	if frozen {
		signal = syscall.SIGSTOP
	}
	if err := s.running.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

// Now returns the time of the server.
func (s *Server) Now(t testing.TB) time.Time {
	t.Helper()
	now, err := s.Client.Time(context.Background()).Result()
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// Keys returns all keys of the server.
func (s *Server) Keys(t testing.TB) []string {
	t.Helper()
	keys, err := s.Client.Keys(context.Background(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}
