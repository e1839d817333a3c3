package netstack

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
)

// Behind a closed fence nothing passes: neither on connections that are open, nor on new
// ones. Each case opens a way through the link, and reports whether a byte passes.
func TestFence(t *testing.T) {
	shared := new(Shared)
	l, g := pair(t, sandbox.NetworkPublic, Config{Refuse: allowAll, Shared: shared})
	at := server(t, echo)
	datagrams, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		buf := make([]byte, 64)
		for {
			n, from, err := datagrams.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = datagrams.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	defer datagrams.Close()
	inside := g.listen(t, 8080)
	go func() {
		for {
			c, err := inside.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
		}
	}()
	ways := map[string]func() (net.Conn, error){
		"a connection of the guest": func() (net.Conn, error) { return g.dial(testContext(t), at) },
		"datagrams of the guest": func() (net.Conn, error) {
			to := full(datagrams.LocalAddr().(*net.UDPAddr).AddrPort())
			return gonet.DialUDP(g.Stack, nil, &to, ipv4.ProtocolNumber)
		},
		"a connection to the guest": func() (net.Conn, error) {
			ours, theirs := streamPair(t)
			if err := l.Dial(testContext(t), 8080, ours); err != nil {
				theirs.Close()
				return nil, err
			}
			return theirs, nil
		},
	}
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			shared.CloseAt(link.SinceBoot()+time.Hour, false)
			before, err := open()
			if err != nil {
				t.Fatal(err)
			}
			defer before.Close()
			if !passes(t, before, time.Minute) {
				t.Fatal("nothing passes an open fence")
			}
			shared.CloseAt(link.SinceBoot(), false)
			const short = 200 * time.Millisecond // a byte that passes takes far less
			if passes(t, before, short) {
				t.Error("a byte passed on a connection that was open")
			}
			if after, err := open(); err == nil {
				if passes(t, after, short) {
					t.Error("a byte passed on a new connection")
				}
				after.Close()
			}
			shared.CloseAt(link.SinceBoot()+time.Hour, false)
			again, err := open()
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			if !passes(t, again, time.Minute) {
				t.Error("nothing passes after the fence was lifted")
			}
		})
	}
}

// passes reports whether a byte comes back on c.
func passes(t *testing.T, c net.Conn, patience time.Duration) bool {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return false
	}
	if _, err := c.Write([]byte("x")); err != nil {
		return false
	}
	n, err := c.Read(make([]byte, 1))
	return n == 1 && err == nil
}

// Behind a closed fence no name server is asked.
func TestFenceOfNames(t *testing.T) {
	shared := new(Shared)
	asked := make(chan struct{}, 16)
	names, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			n, from, err := names.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			asked <- struct{}{}
			_, _ = names.WriteToUDPAddrPort(failure(buf[:n], rcodeRefused), from)
		}
	}()
	defer func() { names.Close(); <-done }()
	resolver := NewResolver("/dev/null")
	if err := resolver.Use([]string{names.LocalAddr().String()}); err != nil {
		t.Fatal(err)
	}
	_, g := pair(t, sandbox.NetworkPublic, Config{Refuse: allowAll, Shared: shared, Resolver: resolver})
	query := []byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x04test\x00\x00\x01\x00\x01")
	ask := func(patience time.Duration) bool {
		to := full(netip.AddrPortFrom(link.GatewayAddress, dnsPort))
		c, err := gonet.DialUDP(g.Stack, nil, &to, ipv4.ProtocolNumber)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = c.Write(query)
		select {
		case <-asked:
			return true
		case <-time.After(patience):
			return false
		}
	}
	if !ask(time.Minute) {
		t.Fatal("the name server was not asked")
	}
	shared.CloseAt(link.SinceBoot(), false)
	if ask(200 * time.Millisecond) {
		t.Error("the name server was asked behind the fence")
	}
	shared.CloseAt(link.SinceBoot()+time.Hour, true) // the earlier time stays
	if ask(200 * time.Millisecond) {
		t.Error("the name server was asked behind the fence that was to be kept")
	}
	shared.CloseAt(0, false)
	if !ask(time.Minute) {
		t.Error("the name server was not asked after the fence was lifted")
	}
}
