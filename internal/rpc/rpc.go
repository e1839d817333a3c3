// Package rpc carries the ports of the root package between two processes of
// one installation: Connect over HTTP, by a Unix socket whose other end is
// asked for its user, or by TCP. Every call carries a token, signed with a
// secret that the roles share, of who calls and for which Tenant.
//
// A client implements a port, a handler serves one, and an error comes out at
// one end as it went in at the other. Whoever holds a port cannot tell whether
// a process lies between.
package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/node/v1/nodev1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// startWait is how long a call waits for a process to listen that does not:
	// one that was killed is started again sooner. Nothing was sent, so any call
	// may wait.
	startWait  = time.Second
	startPause = 20 * time.Millisecond
	// maxMessage bounds one message between our own processes, in bytes.
	maxMessage = 64 << 20
	// maxIdle is how many idle connections are kept to one process.
	maxIdle   = 64
	idleLimit = 90 * time.Second
	// awayAdvice is when to try a part again that is away.
	awayAdvice = time.Second
)

const unixPrefix = "unix:"

// CheckAddress returns Invalid for what is neither "unix:PATH" with an absolute
// path nor "http://HOST:PORT".
func CheckAddress(address string) error {
	if path, ok := strings.CutPrefix(address, unixPrefix); ok {
		if strings.HasPrefix(path, "/") {
			return nil
		}
	} else if u, err := url.Parse(address); err == nil && u.Scheme == "http" && u.Port() != "" && u.Path == "" && u.User == nil {
		return nil
	}
	return sandbox.Errorf(sandbox.Invalid, "%q is neither unix:/PATH nor http://HOST:PORT", address)
}

// UnixAddress is the address of a socket in the file system.
func UnixAddress(path string) string { return unixPrefix + path }

// A peer is another process and the right to call it.
type peer struct {
	role    Role
	address string
	self    Self
	http    *http.Client
	base    string                          // URL without a path
	node    nodev1connect.NodeServiceClient // of the role Node only
}

// Self is who calls: a role of this installation, by its keys.
type Self struct {
	Role Role
	Name string // of the Node, for the role node
	Keys *Keys
}

// newPeer returns the process of a role at an address that CheckAddress accepts.
func newPeer(role Role, address string, self Self) *peer {
	p := &peer{role: role, address: address, self: self, base: address}
	if strings.HasPrefix(address, unixPrefix) {
		p.base = "http://" + string(role)
	}
	p.http = &http.Client{
		Transport: &http.Transport{
			DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return p.connect(ctx) },
			MaxIdleConnsPerHost: maxIdle,
			IdleConnTimeout:     idleLimit,
			DisableCompression:  true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return p
}

// connect dials the process. One that does not listen is waited for a little.
func (p *peer) connect(ctx context.Context) (net.Conn, error) {
	network, address := "unix", strings.TrimPrefix(p.address, unixPrefix)
	if address == p.address {
		network, address = "tcp", strings.TrimPrefix(p.address, "http://")
	}
	var d net.Dialer
	for began := time.Now(); ; {
		conn, err := d.DialContext(ctx, network, address)
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

// options are those of every client of a service.
func (p *peer) options() []connect.ClientOption {
	return []connect.ClientOption{
		connect.WithReadMaxBytes(maxMessage),
		connect.WithAcceptCompression("gzip", nil, nil), // on one machine bytes cost less than making them fewer
	}
}

func (p *peer) close() { p.http.CloseIdleConnections() }

// sign adds the token of a call for tenant, which may be empty, and the ID of the
// request that it is made for.
func (p *peer) sign(ctx context.Context, h http.Header, tenant sandbox.TenantID) error {
	token, err := p.self.Keys.sign(Caller{Role: p.self.Role, Name: p.self.Name, Tenant: tenant}, p.role)
	if err != nil {
		return err
	}
	h.Set("Authorization", "Bearer "+token)
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
	if err := p.sign(ctx, req.Header(), tenant); err != nil {
		return nil, err
	}
	res, err := method(ctx, req)
	if err != nil {
		return nil, p.restore(ctx, err)
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

// alive asks a process for its health; the error is Unavailable.
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
	return nil
}

// peers keeps one peer for each address of a Node.
type peers struct {
	self Self

	mu        sync.Mutex
	byAddress map[string]*peer
}

func (s *peers) at(address string) *peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.byAddress[address]
	if p == nil {
		p = newPeer(Node, address, s.self)
		p.node = nodev1connect.NewNodeServiceClient(p.http, p.base, p.options()...)
		s.byAddress[address] = p
	}
	return p
}

func (s *peers) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.byAddress {
		p.close()
	}
}
