// Package rpc carries the ports of the root package between two processes of one
// installation: Connect over HTTP, by a Unix socket that checks the peer's user, or by
// TCP. rules says which roles may make each call, for a Tenant or for none.
//
// Between machines a call goes through TLS with certificates on both sides, from which
// each end knows the other. Its token names the Tenant and the process that it is for, and
// is signed with the key of the caller's certificate. On a socket, and by TCP where the
// roles have no certificates, the token also says who calls, and is signed with a secret
// that the roles share.
//
// A client implements a port and a handler serves one. An error arrives as it was
// returned at the other end. A port's user cannot see whether it is remote.
package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/node/v1/nodev1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/cluster"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// startWait is how long a call waits for a process that does not listen: a process
	// that was killed restarts sooner. Nothing has been sent yet, so any call may wait.
	startWait  = time.Second
	startPause = 20 * time.Millisecond
	// reachLimit bounds making a connection, with its TLS handshake: a host that takes
	// longer is off, or cut off.
	reachLimit = time.Second
	// maxMessage bounds one message between our own processes, in bytes.
	maxMessage = 64 << 20
	// maxIdle bounds the idle connections to one process.
	maxIdle   = 64
	idleLimit = 90 * time.Second
	// awayAdvice is the RetryAfter for a process that does not answer.
	awayAdvice = time.Second
)

const (
	unixPrefix   = "unix:"
	plainPrefix  = "http://"
	securePrefix = "https://"
)

// startUnheard bounds how long the request to start a Sandbox may stay unacknowledged by
// the Node's kernel: another Node can take it. The request is short, so a process that is
// slow to read it does not matter.
const startUnheard = 800 * time.Millisecond

// keepAlive finds a connection whose other machine has gone within half a minute.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// CheckAddress accepts "unix:PATH" with an absolute path, "https://HOST:PORT" and
// "http://HOST:PORT". Other addresses are Invalid.
func CheckAddress(address string) error {
	if path, ok := strings.CutPrefix(address, unixPrefix); ok {
		if strings.HasPrefix(path, "/") {
			return nil
		}
	} else if u, err := url.Parse(address); err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Port() != "" && u.Path == "" && u.User == nil {
		return nil
	}
	return sandbox.Errorf(sandbox.Invalid, "%q is neither unix:/PATH nor https://HOST:PORT nor http://HOST:PORT", address)
}

// UnixAddress is the address of a socket file.
func UnixAddress(path string) string { return unixPrefix + path }

// IsUnix reports whether an address names a socket file.
func IsUnix(address string) bool { return strings.HasPrefix(address, unixPrefix) }

// A peer is another process with the credentials to call it.
type peer struct {
	role    Role
	name    string // of the Node, for the role node
	address string
	self    Self
	http    *http.Client
	base    string                          // URL without a path
	node    nodev1connect.NodeServiceClient // of the role Node only
	tokens  signedTokens
}

// Self identifies the caller: a role of this installation, with its keys.
type Self struct {
	Role Role
	Name string // of the Node, for the role node
	Keys *Keys
	// Epoch is the term of a leader, which Nodes compare; zero: the caller does not lead.
	Epoch int64
	// Identity is for calls to https:// addresses. With one, http:// addresses are
	// refused. Nil: the roles have no certificates.
	Identity *cluster.Identity

	reach time.Duration // limit of making a connection; zero: reachLimit
	// unheard ends a TCP connection when sent data has not been acknowledged by the other
	// kernel for so long (RFC 5482), or could not be sent to a full buffer; zero: never.
	unheard time.Duration
}

// newPeer returns the peer of a role at an address that CheckAddress accepts; name is the
// Node's, for the role node.
func newPeer(role Role, name, address string, self Self) *peer {
	p := &peer{role: role, name: name, address: address, self: self, base: address}
	if IsUnix(address) {
		p.base = plainPrefix + string(role)
	}
	p.http = &http.Client{
		Transport:     &transports{peer: p},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return p
}

// connect dials the process. It waits up to startWait for a process that does not
// listen, and reachLimit for a host that does not answer. pair is for a secure address.
func (p *peer) connect(ctx context.Context, pair *cluster.Pair) (net.Conn, error) {
	for began := time.Now(); ; {
		conn, err := p.connectOnce(ctx, pair)
		absent := errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT)
		if err == nil || !absent || time.Since(began) >= startWait {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(startPause):
		}
	}
}

func (p *peer) connectOnce(ctx context.Context, pair *cluster.Pair) (net.Conn, error) {
	network, address := p.endpoint()
	if err := p.mayReach(); err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(p.self.reach, reachLimit))
	defer cancel()
	d := net.Dialer{KeepAliveConfig: keepAlive}
	if p.self.unheard > 0 && network == "tcp" {
		d.Control = func(_, _ string, raw syscall.RawConn) error {
			var err error
			if failed := raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(p.self.unheard.Milliseconds()))
			}); failed != nil {
				return failed
			}
			return err
		}
	}
	conn, err := d.DialContext(ctx, network, address)
	if err != nil || !p.secure() {
		return conn, err
	}
	return p.handshake(ctx, conn, pair)
}

// endpoint is the address for a dial.
func (p *peer) endpoint() (network, address string) {
	if path, ok := strings.CutPrefix(p.address, unixPrefix); ok {
		return "unix", path
	}
	return "tcp", strings.TrimPrefix(strings.TrimPrefix(p.address, plainPrefix), securePrefix)
}

// options are the options of every client of a service.
func (p *peer) options() []connect.ClientOption {
	return []connect.ClientOption{
		connect.WithReadMaxBytes(maxMessage),
		connect.WithAcceptCompression("gzip", nil, nil), // on one machine bytes are cheaper than compression
	}
}

func (p *peer) close() { p.http.CloseIdleConnections() }

// sign adds the token of a call for tenant, which may be empty, and the ID of the
// client's request, if any. The call must be made with the returned context.
func (p *peer) sign(ctx context.Context, h http.Header, tenant sandbox.TenantID) (context.Context, error) {
	pair, err := p.pair()
	if err != nil {
		return nil, err
	}
	return withPair(ctx, pair), p.signWith(ctx, pair, h, tenant)
}

// signWith is sign with a certificate; nil: with the secret that the roles share.
func (p *peer) signWith(ctx context.Context, pair *cluster.Pair, h http.Header, tenant sandbox.TenantID) error {
	var token string
	var err error
	if pair != nil {
		token, err = p.tokens.sign(pair, tenant, audience(p.role, p.name))
	} else {
		token, err = p.self.Keys.sign(Caller{Role: p.self.Role, Name: p.self.Name, Tenant: tenant}, p.role)
	}
	if err != nil {
		return err
	}
	h.Set("Authorization", "Bearer "+token)
	if p.self.Epoch > 0 {
		h.Set(epochHeader, strconv.FormatInt(p.self.Epoch, 10))
	}
	if id := telemetry.RequestOf(ctx); id != "" {
		h.Set(telemetry.RequestHeader, id)
	}
	return nil
}

// call makes one call for tenant.
func call[Req, Res any](
	ctx context.Context, p *peer, tenant sandbox.TenantID,
	method func(context.Context, *connect.Request[Req]) (*connect.Response[Res], error), msg *Req,
) (*Res, error) {
	req := connect.NewRequest(msg)
	signed, err := p.sign(ctx, req.Header(), tenant)
	if err != nil {
		return nil, err
	}
	res, err := method(signed, req)
	if err != nil {
		return nil, refused(p.restore(ctx, err))
	}
	return res.Msg, nil
}

// away is the error for a process that does not answer.
func (p *peer) away(cause error) *sandbox.Error {
	return &sandbox.Error{
		Code: sandbox.Unavailable, Detail: fmt.Sprintf("the %s does not answer", p.role),
		RetryAfter: awayAdvice, Cause: cause,
	}
}

// alive reads the /health of a process; the error is Unavailable.
func (p *peer) alive(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base+"/health", nil)
	if err != nil {
		return err
	}
	res, err := p.http.Do(req)
	if err != nil {
		return p.away(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return p.away(fmt.Errorf("health answers %s", res.Status))
	}
	if _, err := io.Copy(io.Discard, io.LimitReader(res.Body, maxHealth)); err != nil { // the connection is kept for the next one
		return p.away(err)
	}
	return nil
}

// peers keeps one peer for each address of a Node.
type peers struct {
	self Self

	mu    sync.Mutex
	known map[nodeAt]*peer
}

func newPeers(self Self) peers { return peers{self: self, known: map[nodeAt]*peer{}} }

// nodeAt is a Node at an address: over TLS, no other Node is accepted there.
type nodeAt struct{ name, address string }

func (s *peers) at(name, address string) *peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := nodeAt{name, address}
	p := s.known[at]
	if p == nil {
		p = newPeer(Node, name, address, s.self)
		p.node = nodev1connect.NewNodeServiceClient(p.http, p.base, p.options()...)
		s.known[at] = p
	}
	return p
}

func (s *peers) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.known {
		p.close()
	}
}
