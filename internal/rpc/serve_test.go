package rpc

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/cluster"
)

// server is a Server on a Unix socket and a TCP port.
type server struct {
	keys      *Keys
	role      Role
	unix, tcp string // addresses
	path      string
	services  []Service
	log       *slog.Logger
	stop      func()
	identity  *cluster.Identity // nil: none
}

func testKeys(t testing.TB) *Keys {
	t.Helper()
	keys, err := NewKeys([]byte(strings.Repeat("k", minSecret)))
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func prepare(t testing.TB, role Role, services ...Service) *server {
	path := filepath.Join(t.TempDir(), "s")
	return &server{keys: testKeys(t), role: role, path: path, unix: UnixAddress(path), services: services, log: slog.New(slog.DiscardHandler)}
}

func serve(t testing.TB, role Role, service Service) *server {
	s := prepare(t, role, service)
	s.start(t)
	return s
}

// self is a caller without a certificate. On a busy machine a connection may take long.
func (s *server) self(role Role, name string) Self {
	return Self{Role: role, Name: name, Keys: s.keys, reach: time.Minute}
}

func (s *server) start(t testing.TB) {
	t.Helper()
	local, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.tcp = "http://" + port.Addr().String()
	if s.identity != nil {
		s.tcp = "https://" + port.Addr().String()
		port = Secured(port, s.identity)
	}
	log := s.log
	srv := &Server{
		Role: s.role, Keys: s.keys, Identity: s.identity, Services: s.services, Log: log, Registry: prometheus.NewRegistry(),
		Ready: func(context.Context) []string { return nil },
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(ctx, OwnUser(local, log), port) }()
	s.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		s.stop = func() {}
	}
	t.Cleanup(func() { s.stop() })
}
