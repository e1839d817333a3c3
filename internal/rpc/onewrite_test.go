package rpc

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// A countedConn counts writes.
type countedConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c countedConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

// Checks whether a process is alive share one connection.
func TestChecksKeepTheirConnection(t *testing.T) {
	s := serve(t, Scheduler, SchedulerService(placement(nil)))
	p := NewPlacement(s.tcp, s.self(SessionManager, ""))
	defer p.Close()
	dials := 0
	transport := p.peer.http.Transport.(*transports).with(nil)
	dial := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		dials++
		return dial(ctx, network, address)
	}
	for range 3 {
		if err := p.Alive(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if dials != 1 {
		t.Errorf("three checks made %d connections", dials)
	}
}

// The request of a unary call is one write: the other process wakes up once for it.
func TestUnaryCallsAreOneWrite(t *testing.T) {
	s := serve(t, Scheduler, SchedulerService(placement(func(context.Context) ([]string, error) { return []string{"n"}, nil })))
	p := NewPlacement(s.tcp, s.self(SessionManager, ""))
	defer p.Close()
	var writes atomic.Int64
	transport := p.peer.http.Transport.(*transports).with(nil)
	dial := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return countedConn{conn, &writes}, err
	}
	for _, tenant := range []string{"t", strings.Repeat("t", 2000)} {
		before := writes.Load()
		if _, err := p.Place(t.Context(), sandbox.BootNeeds{Tenant: sandbox.TenantID(tenant)}); err != nil {
			t.Fatal(err)
		}
		if n := writes.Load() - before; n != 1 {
			t.Errorf("a request with a tenant of %d bytes took %d writes", len(tenant), n)
		}
	}
}
