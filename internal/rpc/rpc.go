// Package rpc carries the ports of the root package between two processes of one
// installation: Connect over HTTP, by a Unix socket that checks the peer's user, or by
// TCP. Every call carries a token with the caller and the Tenant, signed with a secret
// that the roles share.
//
// A client implements a port and a handler serves one. An error arrives as it was
// returned at the other end. A port's user cannot see whether it is remote.
package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
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
	// startWait is how long a call waits for a process that does not listen: a process
	// that was killed restarts sooner. Nothing has been sent yet, so any call may wait.
	startWait  = time.Second
	startPause = 20 * time.Millisecond
	// reachLimit bounds making a connection: a host that takes longer is off, or cut off.
	reachLimit = time.Second
	// maxMessage bounds one message between our own processes, in bytes.
	maxMessage = 64 << 20
	// maxIdle bounds the idle connections to one process.
	maxIdle   = 64
	idleLimit = 90 * time.Second
	// awayAdvice is the RetryAfter for a process that does not answer.
	awayAdvice = time.Second
)

const unixPrefix = "unix:"

// CheckAddress accepts "unix:PATH" with an absolute path and "http://HOST:PORT". Other
// addresses are Invalid.
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

// UnixAddress is the address of a socket file.
func UnixAddress(path string) string { return unixPrefix + path }

// A peer is another process with the credentials to call it.
type peer struct {
	role    Role
	address string
	self    Self
	http    *http.Client
	base    string                          // URL without a path
	node    nodev1connect.NodeServiceClient // of the role Node only
}

// Self identifies the caller: a role of this installation, with its keys.
type Self struct {
	Role Role
	Name string // of the Node, for the role node
	Keys *Keys
	// Epoch is the term of a leader, which Nodes compare; zero: the caller does not lead.
	Epoch int64
}

// newPeer returns the peer of a role at an address that CheckAddress accepts.
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

// connect dials the process. It waits up to startWait for a process that does not
// listen, and reachLimit for a host that does not answer.
func (p *peer) connect(ctx context.Context) (net.Conn, error) {
	network, address := "unix", strings.TrimPrefix(p.address, unixPrefix)
	if address == p.address {
		network, address = "tcp", strings.TrimPrefix(p.address, "http://")
	}
	d := net.Dialer{Timeout: reachLimit}
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

// options are the options of every client of a service.
func (p *peer) options() []connect.ClientOption {
	return []connect.ClientOption{
		connect.WithReadMaxBytes(maxMessage),
		connect.WithAcceptCompression("gzip", nil, nil), // on one machine bytes are cheaper than compression
	}
}

func (p *peer) close() { p.http.CloseIdleConnections() }

// sign adds the token of a call for tenant, which may be empty, and the ID of the
// client's request, if any.
func (p *peer) sign(ctx context.Context, h http.Header, tenant sandbox.TenantID) error {
	token, err := p.self.Keys.sign(Caller{Role: p.self.Role, Name: p.self.Name, Tenant: tenant}, p.role)
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
