package gateway

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// firstByte bounds the wait for a client's first byte, which distinguishes TLS from
	// HTTP.
	firstByte = headerTime
	// undecided is the limit of connections that wait for their first byte.
	undecided = 1024
	// certificateAge is the interval of checking a certificate's files for changes.
	certificateAge = 10 * time.Second
)

// Certificate is a certificate in two PEM files, which may be replaced while it is
// used.
type Certificate struct {
	cert, key string
	log       *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	looked  time.Time
	changed time.Time // the newer modification time of current's files
}

// NewCertificate reads a certificate and its key. The error says what to do.
func NewCertificate(cert, key string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{cert: cert, key: key, log: log}
	err := c.read()
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("%w: the server runs as user %d and must be allowed to read it", err, os.Geteuid())
	}
	return c, err
}

func (c *Certificate) read() error {
	changed, err := c.newest()
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return fmt.Errorf("the certificate for TLS: %w", err)
	}
	c.current, c.changed = &pair, changed
	return nil
}

func (c *Certificate) newest() (newest time.Time, err error) {
	for _, file := range []string{c.cert, c.key} {
		info, err := os.Stat(file)
		if err != nil {
			return newest, fmt.Errorf("the certificate for TLS: %w", err)
		}
		if info.ModTime().After(newest) {
			newest = info.ModTime()
		}
	}
	return newest, nil
}

// TLS is the configuration for a listener.
func (c *Certificate) TLS() *tls.Config { return &tls.Config{GetCertificate: c.get} }

// get returns the current certificate. If the files cannot be read, the previous one
// stays.
func (c *Certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.looked) > certificateAge {
		c.looked = now
		if changed, err := c.newest(); err != nil || !changed.Equal(c.changed) {
			if err == nil {
				err = c.read()
			}
			if err != nil {
				c.log.Warn("loading the new TLS certificate failed; the old one stays in use", telemetry.KeyError, err.Error())
			}
		}
	}
	return c.current, nil
}

// secured is a listener whose connections are TLS if their first byte is TLS's, and
// plain otherwise. Use secure.
type secured struct {
	net.Listener
	config *tls.Config
	ready  chan net.Conn
	done   chan struct{} // closed when the listener accepts no more connections
	failed error         // why, once done is closed
	work   sync.WaitGroup

	mu      sync.Mutex
	waiting map[net.Conn]struct{} // for their first byte; nil once closed
}

// secure makes a listener accept TLS beside plain connections.
func secure(l net.Listener, config *tls.Config) net.Listener {
	config = config.Clone()
	config.MinVersion = tls.VersionTLS12
	if len(config.NextProtos) == 0 {
		config.NextProtos = []string{"h2", "http/1.1"}
	}
	s := &secured{
		Listener: l, ready: make(chan net.Conn), done: make(chan struct{}), waiting: map[net.Conn]struct{}{},
		config: config,
	}
	s.work.Go(s.acceptAll)
	return s
}

func (s *secured) acceptAll() {
	defer close(s.done)
	for {
		conn, err := s.Listener.Accept()
		switch {
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ECONNABORTED):
			time.Sleep(10 * time.Millisecond) // until some connections are closed, as net/http does
		case err != nil:
			s.failed = err
			return
		case !s.wait(conn):
			conn.Close()
		default:
			s.work.Go(func() { s.decide(conn) })
		}
	}
}

// wait notes a connection without a first byte; false when there are too many.
func (s *secured) wait(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == nil || len(s.waiting) >= undecided {
		return false
	}
	s.waiting[conn] = struct{}{}
	return true
}

// decide hands a connection to Accept once its first byte has arrived.
func (s *secured) decide(conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(firstByte))
	begun := &begun{Conn: conn, head: bufio.NewReaderSize(conn, 16)}
	first, err := begun.head.Peek(1)
	s.mu.Lock()
	delete(s.waiting, conn)
	s.mu.Unlock()
	if err != nil || conn.SetReadDeadline(time.Time{}) != nil {
		conn.Close()
		return
	}
	var out net.Conn = begun
	const handshake = 0x16 // the first byte of a TLS connection, and of no HTTP request
	if first[0] == handshake {
		out = tls.Server(begun, s.config)
	}
	select {
	case s.ready <- out:
	case <-s.done:
		conn.Close()
	}
}

// Accept returns the next connection that has sent its first byte.
func (s *secured) Accept() (net.Conn, error) {
	select {
	case conn := <-s.ready:
		return conn, nil
	case <-s.done:
		return nil, s.failed
	}
}

// Close closes the listener and the connections without a first byte.
func (s *secured) Close() error {
	err := s.Listener.Close()
	s.mu.Lock()
	for conn := range s.waiting {
		conn.Close()
	}
	s.waiting = nil
	s.mu.Unlock()
	s.work.Wait()
	return err
}

// begun is a connection whose first bytes may be buffered in head.
type begun struct {
	net.Conn
	head *bufio.Reader
}

func (b *begun) Read(p []byte) (int, error) {
	if b.head.Buffered() > 0 {
		return b.head.Read(p)
	}
	return b.Conn.Read(p)
}
