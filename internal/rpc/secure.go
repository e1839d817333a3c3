package rpc

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/cluster"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// secure reports whether calls to p go through TLS.
func (p *peer) secure() bool { return strings.HasPrefix(p.address, securePrefix) }

var (
	errPlain      = errors.New("the address is http://, which is refused because this role has a certificate of a cluster: use https://HOST:PORT or unix:/PATH")
	errNoIdentity = errors.New("the address is https://, and this role has no certificate of a cluster: set CLOUD_SANDBOX_CLUSTER")
)

// mayReach returns an error if calls to p's address are refused.
func (p *peer) mayReach() error {
	switch {
	case p.secure() && p.self.Identity == nil:
		return errNoIdentity
	case p.self.Identity != nil && strings.HasPrefix(p.address, plainPrefix):
		return errPlain
	}
	return nil
}

// pair returns the certificate for a call now; nil for an address without TLS.
func (p *peer) pair() (*cluster.Pair, error) {
	if err := p.mayReach(); err != nil {
		return nil, p.away(err)
	}
	if !p.secure() {
		return nil, nil
	}
	pair := p.self.Identity.Current()
	if pair.Expired(time.Now()) {
		return nil, p.away(fmt.Errorf("the certificate of this role, %s, expired at %s", pair.ID.Short(), pair.NotAfter().UTC().Format(time.RFC3339)))
	}
	return pair, nil
}

// handshake makes conn a TLS connection to p, and closes it on an error. Such an error is
// one of the dial: nothing has been sent.
func (p *peer) handshake(ctx context.Context, conn net.Conn, pair *cluster.Pair) (net.Conn, error) {
	secured := tls.Client(conn, pair.Client(string(p.role), p.name))
	if err := secured.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: conn.RemoteAddr(), Err: fmt.Errorf("TLS: %w", err)}
	}
	return secured, nil
}

type pairKey struct{}

// withPair notes the certificate that signed a call: its connection must have the same
// one.
func withPair(ctx context.Context, pair *cluster.Pair) context.Context {
	if pair == nil {
		return ctx
	}
	return context.WithValue(ctx, pairKey{}, pair)
}

// transports is the RoundTripper of a peer. When the certificate of this process is
// replaced, calls move to new connections.
type transports struct {
	peer *peer

	mu      sync.Mutex
	pair    *cluster.Pair
	current *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (t *transports) RoundTrip(r *http.Request) (*http.Response, error) {
	pair, _ := r.Context().Value(pairKey{}).(*cluster.Pair)
	if pair == nil {
		var err error
		if pair, err = t.peer.pair(); err != nil {
			return nil, err
		}
	}
	r, err := inOneWrite(r)
	if err != nil {
		return nil, err
	}
	return t.with(pair).RoundTrip(r)
}

// maxOneWrite bounds the body of a request that is sent in one write with its headers.
const maxOneWrite = 64 << 10

// inOneWrite returns r, the request of a unary call, with a body that net/http knows to be
// in memory. Otherwise it sends the headers alone first, and the other process wakes up for
// them only to wait for the body.
func inOneWrite(r *http.Request) (*http.Request, error) {
	if r.Body == nil || r.Header.Get("Content-Type") != unaryContent || r.ContentLength <= 0 || r.ContentLength > maxOneWrite {
		return r, nil
	}
	b := make([]byte, r.ContentLength)
	_, err := io.ReadFull(r.Body, b)
	if err = errors.Join(err, r.Body.Close()); err != nil {
		return nil, err
	}
	whole := *r
	whole.Body = io.NopCloser(bytes.NewReader(b))
	return &whole, nil
}

// unaryContent is the content type of the request and the answer of a unary call.
const unaryContent = "application/proto"

// with returns the transport of a certificate; nil: of connections without TLS.
func (t *transports) with(pair *cluster.Pair) *http.Transport {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current != nil && t.pair == pair {
		return t.current
	}
	made := t.make(pair)
	if t.current != nil {
		if pair.Generation < t.pair.Generation {
			made.DisableKeepAlives = true // of a call that began before the replacement
			return made
		}
		t.current.CloseIdleConnections()
	}
	t.pair, t.current = pair, made
	return made
}

func (t *transports) make(pair *cluster.Pair) *http.Transport {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return t.peer.connect(ctx, pair) }
	return &http.Transport{
		DialContext: dial, DialTLSContext: dial,
		MaxIdleConnsPerHost: maxIdle,
		IdleConnTimeout:     idleLimit,
		DisableCompression:  true,
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{}, // a stream needs HTTP/1.1
	}
}

// CloseIdleConnections is for http.Client.
func (t *transports) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current != nil {
		t.current.CloseIdleConnections()
	}
}

// Secured is a listener for other roles: TLS with certificates on both sides.
func Secured(ln net.Listener, identity *cluster.Identity) net.Listener {
	return securedListener{tls.NewListener(kept{ln}, identity.Server()), ln}
}

// securedListener is a listener whose connections are TLS.
type securedListener struct {
	net.Listener
	socket net.Listener
}

// SyscallConn returns the socket, as of a net.TCPListener.
func (s securedListener) SyscallConn() (syscall.RawConn, error) {
	of, ok := s.socket.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return of.SyscallConn()
}

// kept is a listener whose connections find out that the other machine has gone.
type kept struct{ net.Listener }

func (k kept) Accept() (net.Conn, error) {
	conn, err := k.Listener.Accept()
	if tcp, ok := conn.(*net.TCPConn); ok && err == nil {
		_ = tcp.SetKeepAliveConfig(keepAlive) // the system's own remains
	}
	return conn, err
}

type connKey struct{}

// connection is the connection of a request.
type connection struct {
	tls  *tls.ConnectionState // nil: without TLS
	unix bool
}

// withConnection notes a request's connection in its context.
func withConnection(r *http.Request) *http.Request {
	addr, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	of := connection{tls: r.TLS, unix: addr != nil && addr.Network() == "unix"}
	return r.WithContext(context.WithValue(r.Context(), connKey{}, of))
}

func connectionOf(ctx context.Context) connection {
	c, _ := ctx.Value(connKey{}).(connection)
	return c
}

// handshakePause is the pause between two log lines at level warn about handshakes: anyone
// who reaches the port can make one fail.
const handshakePause = time.Second

// serverErrors returns the logger of an http.Server: failed handshakes are warnings, and
// the rest is for debugging.
func serverErrors(to *slog.Logger) *log.Logger { return log.New(&handshakes{log: to}, "", 0) }

type handshakes struct {
	log *slog.Logger

	mu   sync.Mutex
	last time.Time
}

func (h *handshakes) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	_, failure, handshake := strings.Cut(text, "TLS handshake error from ")
	switch {
	case !handshake || strings.HasSuffix(text, "EOF"): // also of a probe that only connects
		h.log.Debug("a connection failed", telemetry.KeyError, text)
	case h.pass():
		h.log.Warn("refused a connection without a valid certificate of the cluster", telemetry.KeyError, failure)
	}
	return len(line), nil
}

func (h *handshakes) pass() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.last) < handshakePause {
		return false
	}
	h.last = time.Now()
	return true
}
