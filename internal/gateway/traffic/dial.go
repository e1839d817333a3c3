package traffic

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// dialTime bounds one connect to a port inside.
const dialTime = 10 * time.Second

// again are the waits between attempts to connect to a closed port: a server that was
// just started needs a moment.
var again = []time.Duration{50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond}

// route is the destination of a request.
type route struct {
	target  Target
	sandbox sandbox.Sandbox
	rules   sandbox.IngressRules
}

// host distinguishes the port of one Boot from every other, so that no other request
// reuses its connections.
func (rt route) host() string {
	return fmt.Sprintf("%s-%d:%d", rt.sandbox.Boot.ID, rt.sandbox.Boot.Number, rt.target.Port)
}

func (rt route) ref() sandbox.BootRef {
	b := rt.sandbox.Boot
	return sandbox.BootRef{BootID: b.ID, SandboxID: rt.sandbox.ID, Number: b.Number, Tenant: rt.sandbox.Tenant}
}

type routeKey struct{}

func withRoute(ctx context.Context, rt route) context.Context {
	return context.WithValue(ctx, routeKey{}, rt)
}

func routeOf(ctx context.Context) (route, bool) {
	rt, ok := ctx.Value(routeKey{}).(route)
	return rt, ok
}

func (p *Proxy) transport() *http.Transport {
	return &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return p.dial(ctx) },
		TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, // it leads to the Sandbox itself
		DisableCompression:     true,
		MaxIdleConns:           1024,
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        time.Minute,
		MaxResponseHeaderBytes: maxHead,
	}
}

// errClosed reports that nothing listens on a port of a running Sandbox.
var errClosed = errors.New("the port is not open")

// Dial connects to a TCP port of a running Sandbox, also to one that listens only on
// its loopback. It returns Conflict when nothing listens on the port, Exhausted when
// too many requests are in progress, and Invalid for the ports of the agent inside,
// some of whose calls are not for clients.
func (p *Proxy) Dial(ctx context.Context, sb sandbox.Sandbox, port uint16) (net.Conn, error) {
	if sandbox.AgentPort(port) {
		return nil, sandbox.Errorf(sandbox.Invalid, "port %d belongs to the agent in the sandbox, which takes HTTP requests only", port)
	}
	if !p.begin(sb.ID) {
		return nil, sandbox.Errorf(sandbox.Exhausted, "too many requests to this sandbox are in progress: wait until one has ended")
	}
	conn, err := p.dial(withRoute(ctx, route{target: Target{SandboxID: sb.ID, Port: port}, sandbox: sb}))
	if err == nil {
		return &counted{Conn: conn, end: sync.OnceFunc(func() { p.end(sb.ID) })}, nil
	}
	p.end(sb.ID)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, errClosed):
		return nil, sandbox.Errorf(sandbox.Conflict, "nothing listens on port %d of the sandbox", port)
	}
	return nil, sandbox.Errorf(sandbox.Unavailable, "the sandbox does not answer").WithCause(err)
}

// counted is a connection that counts as a request in progress until it is closed.
type counted struct {
	net.Conn
	end func()
}

func (c *counted) Close() error {
	defer c.end()
	return c.Conn.Close()
}

// CloseWrite closes the connection for writing.
func (c *counted) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// dial connects to the destination of the request of ctx. It returns errClosed when
// nothing listens on the port.
func (p *Proxy) dial(ctx context.Context) (net.Conn, error) {
	rt, ok := routeOf(ctx)
	if !ok {
		return nil, errors.New("a connection without a route")
	}
	for i := 0; ; i++ {
		conn, err := p.connect(ctx, rt, rt.target.Port)
		if err == nil || !errors.Is(err, sandbox.Unavailable) {
			return conn, err
		}
		if conn, err = p.forward(ctx, rt); !errors.Is(err, errClosed) {
			return conn, err
		}
		if i == len(again) {
			return nil, err
		}
		select {
		case <-time.After(again[i]):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (p *Proxy) connect(ctx context.Context, rt route, port uint16) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	return p.Nodes.Dial(ctx, rt.sandbox.Boot.Node, rt.ref(), port)
}

// forward connects to a service that listens on loopback inside. It returns errClosed
// when none does, and another error when the Sandbox is gone.
func (p *Proxy) forward(ctx context.Context, rt route) (net.Conn, error) {
	guest, err := p.connect(ctx, rt, sandbox.GuestPort)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	conn, err := p.Forward(ctx, guest, rt.target.Port)
	if errors.Is(err, sandbox.Unavailable) {
		err = errClosed
	}
	return conn, err
}
