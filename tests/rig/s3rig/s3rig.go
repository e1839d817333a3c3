// Package s3rig starts a real S3 server for tests and measurements.
package s3rig

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/addrtest"
)

// Credentials with full access to a Server, and its region.
const (
	AccessKey = "tester"
	SecretKey = "a-secret-of-tests"
	Region    = "us-east-1"
)

// Program is the variable that names the server's program, versitygw.
const Program = "CLOUD_SANDBOX_VERSITYGW"

// Server is one S3 server. Its buckets are folders below Dir, and objects files in
// them.
type Server struct {
	URL string
	Dir string

	program string
	addr    string
	cmd     *exec.Cmd
	exited  chan struct{}
	buckets atomic.Int64
}

// Start starts a server, or skips the test when no program is configured.
func Start(t testing.TB) *Server {
	t.Helper()
	return StartOn(t, "127.0.0.1")
}

// StartOn is Start for a server that listens on an IP address of this machine.
func StartOn(t testing.TB, host string) *Server {
	t.Helper()
	program := os.Getenv(Program)
	if program == "" {
		t.Skipf("%s names no S3 server to test with: scripts/versitygw.sh builds one", Program)
	}
	s, err := newOn(host, program, filepath.Join(t.TempDir(), "s3"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// New starts a server that keeps its objects in dir, which it makes.
func New(program, dir string) (*Server, error) { return newOn("127.0.0.1", program, dir) }

func newOn(host, program, dir string) (*Server, error) {
	port, err := addrtest.FreePort()
	if err != nil {
		return nil, err
	}
	addr := net.JoinHostPort(host, port)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	s := &Server{URL: "http://" + addr, Dir: dir, program: program, addr: addr}
	if err := s.Up(); err != nil {
		if s.cmd != nil {
			s.Stop()
		}
		return nil, err
	}
	return s, nil
}

// Up starts the server again, with its data.
func (s *Server) Up() error {
	cmd := exec.Command(s.program, "--port", s.addr, "--access", AccessKey, "--secret", SecretKey, "--region", Region, "--quiet", "posix", s.Dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", s.program, err)
	}
	exited := make(chan struct{})
	s.cmd, s.exited = cmd, exited
	go func() {
		_ = cmd.Wait() // it is killed
		close(exited)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	hasty := http.Client{Timeout: 5 * time.Second}
	for {
		if resp, err := hasty.Get(s.URL); err == nil {
			return resp.Body.Close()
		}
		select {
		case <-exited:
			return errors.New("the S3 server ended at once")
		case <-ctx.Done():
			return errors.New("the S3 server does not answer")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop ends the server and keeps its data.
func (s *Server) Stop() {
	_ = s.cmd.Process.Kill() // it may have ended
	<-s.exited
}

// Bucket makes a new bucket and returns its name.
func (s *Server) Bucket(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("bucket-%d", s.buckets.Add(1))
	if err := os.Mkdir(filepath.Join(s.Dir, name), 0o700); err != nil {
		t.Fatal(err)
	}
	return name
}

// Address returns HOST:PORT of the server.
func (s *Server) Address() string { return s.addr }

// Settings returns the settings of servers that keep copies of snapshots in a bucket, but not
// their key.
func (s *Server) Settings(bucket string) []string {
	return []string{
		"CLOUD_SANDBOX_BLOBS=s3://" + bucket + "/some/prefix", "CLOUD_SANDBOX_S3_ENDPOINT=" + s.URL, "CLOUD_SANDBOX_S3_REGION=" + Region,
		"CLOUD_SANDBOX_S3_ACCESS_KEY=" + AccessKey, "CLOUD_SANDBOX_S3_SECRET_KEY=" + SecretKey,
	}
}
