package netstack

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link/netstack/netstacktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// guest is the stack at the guest's end of a link, as in a sentry.
type guest struct{ *stack.Stack }

func newGuest(t testing.TB, end *os.File) *guest { return &guest{netstacktest.Guest(t, end)} }

func full(addr netip.AddrPort) tcpip.FullAddress {
	return tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFrom4(addr.Addr().As4()), Port: addr.Port()}
}

func (g *guest) dial(ctx context.Context, addr netip.AddrPort) (*gonet.TCPConn, error) {
	return gonet.DialContextTCP(ctx, g.Stack, full(addr), ipv4.ProtocolNumber)
}

func (g *guest) listen(t testing.TB, port uint16) *gonet.TCPListener {
	t.Helper()
	l, err := gonet.ListenTCP(g.Stack, tcpip.FullAddress{NIC: nic, Addr: guestAddr, Port: port}, ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Shutdown(); l.Close() })
	return l
}

// allowAll lets tests dial the loopback interface.
func allowAll(netip.Addr) bool { return false }

// atOnce fails the test unless one of five tries takes less than a second, because a busy
// machine can delay some.
func atOnce(t testing.TB, what string, try func()) {
	t.Helper()
	var took time.Duration
	for range 5 {
		began := time.Now()
		try()
		if took = time.Since(began); took < time.Second {
			return
		}
	}
	t.Errorf("%s took %v", what, took)
}

// pair opens a link with a stack on both ends.
func pair(t testing.TB, policy sandbox.NetworkPolicy, cfg Config) (*Link, *guest) {
	t.Helper()
	host, guestEnd, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	l, err := Open(host, policy, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l, newGuest(t, guestEnd)
}

// server listens on the loopback interface and serves connections with handle.
func server(t testing.TB, handle func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			wg.Go(func() { defer c.Close(); handle(c) })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func echo(c *net.TCPConn) {
	_, _ = io.Copy(c, c)
	_ = c.CloseWrite()
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// streamPair makes a stream, like the shard for a dial.
func streamPair(t testing.TB) (ours, theirs *net.UnixConn) {
	t.Helper()
	a, b, err := link.Stream()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.FileConn(b)
	b.Close()
	if err != nil {
		t.Fatal(err)
	}
	return a, conn.(*net.UnixConn)
}

func pattern(n int) []byte {
	b := make([]byte, n)
	x := uint32(1)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

func TestOutboundEchoesWholeStreamWithHalfClose(t *testing.T) {
	_, g := pair(t, sandbox.NetworkPublic, Config{Refuse: allowAll})
	addr := server(t, func(c *net.TCPConn) {
		b, err := io.ReadAll(c) // answers only after the guest's end
		if err != nil {
			t.Error(err)
		}
		_, _ = c.Write(b)
	})
	c, err := g.dial(testContext(t), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	data := pattern(20 << 20)
	go func() {
		_, _ = c.Write(data)
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, data) {
		t.Errorf("%d bytes came back, sha256 %x, want %d, %x", len(got), sha256.Sum256(got), len(data), sha256.Sum256(data))
	}
}

func TestDialReachesTheGuest(t *testing.T) {
	l, g := pair(t, sandbox.NetworkNone, Config{})
	ln := g.listen(t, 8080)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		b, _ := io.ReadAll(c)
		_, _ = c.Write(b)
		c.Close()
	}()
	ours, theirs := streamPair(t)
	defer theirs.Close()
	if err := l.Dial(testContext(t), 8080, ours); err != nil {
		t.Fatal(err)
	}
	data := pattern(5 << 20)
	go func() {
		_, _ = theirs.Write(data)
		_ = theirs.CloseWrite()
	}()
	got, err := io.ReadAll(theirs)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d bytes came back, %v, want %d", len(got), err, len(data))
	}
	waitConnections(t, l, 0)
}

func waitConnections(t testing.TB, l *Link, want int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		got := l.Usage().Connections
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are open, want %d", got, want)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestDialToClosedPortIsUnavailableAtOnce(t *testing.T) {
	l, _ := pair(t, sandbox.NetworkNone, Config{})
	atOnce(t, "a dial to a closed port", func() {
		ours, theirs := streamPair(t)
		defer theirs.Close()
		if err := l.Dial(testContext(t), 81, ours); !errors.Is(err, sandbox.Unavailable) {
			t.Errorf("Dial = %v, want Unavailable", err)
		}
	})
}

func TestDialToSilentGuestTimesOut(t *testing.T) {
	host, guestEnd, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer guestEnd.Close()
	l, err := Open(host, sandbox.NetworkNone, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	ours, theirs := streamPair(t)
	defer theirs.Close()
	if err := l.Dial(ctx, 80, ours); !errors.Is(err, sandbox.Timeout) {
		t.Errorf("Dial = %v, want Timeout", err)
	}
}

func TestPolicyRefusesBeforeDialling(t *testing.T) {
	dialled := make(chan struct{}, 1)
	addr := server(t, func(*net.TCPConn) { dialled <- struct{}{} })
	for _, tt := range []struct {
		name   string
		policy sandbox.NetworkPolicy
		refuse func(netip.Addr) bool // nil: production's
		dst    netip.AddrPort
	}{
		{"none", sandbox.NetworkNone, allowAll, addr},
		{"loopback", sandbox.NetworkPublic, nil, addr},
		{"metadata", sandbox.NetworkPublic, nil, netip.MustParseAddrPort("169.254.169.254:80")},
		{"gateway", sandbox.NetworkPublic, nil, netip.MustParseAddrPort("10.0.0.1:80")},
		{"private", sandbox.NetworkPublic, nil, netip.MustParseAddrPort("192.168.0.1:80")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, g := pair(t, tt.policy, Config{Refuse: tt.refuse})
			atOnce(t, "a refusal, which should be a reset,", func() {
				if c, err := g.dial(testContext(t), tt.dst); err == nil {
					c.Close()
					t.Fatal("connected")
				}
			})
		})
	}
	select {
	case <-dialled:
		t.Error("the host was dialled")
	default:
	}
}

// The events address leads back into the guest, whatever the policy says.
func TestEventsComeBackToTheGuest(t *testing.T) {
	l, g := pair(t, sandbox.NetworkNone, Config{})
	events := netip.AddrPortFrom(link.EventsAddress, eventsPort)
	atOnce(t, "a refusal where nothing listens", func() {
		if c, err := g.dial(testContext(t), events); err == nil {
			c.Close()
			t.Fatal("connected")
		}
	})
	ln := g.listen(t, sandbox.EventsPort)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if from := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(); from != link.GatewayAddress {
				t.Errorf("a connection comes from %s", from)
			}
			_, _ = io.Copy(c, c)
			c.Close()
		}
	}()
	c, err := g.dial(testContext(t), events)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("asked")); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || string(got) != "asked" {
		t.Errorf("got %q, %v", got, err)
	}
	c.Close()
	waitConnections(t, l, 0)
	for _, other := range []netip.AddrPort{netip.AddrPortFrom(link.EventsAddress, 81), netip.AddrPortFrom(link.GatewayAddress, eventsPort)} {
		atOnce(t, "a refusal", func() {
			if c, err := g.dial(testContext(t), other); err == nil {
				c.Close()
				t.Errorf("connected to %s", other)
			}
		})
	}
}

// A guest's open events connection does not delay closing the link.
func TestEventsEndWithTheLink(t *testing.T) {
	l, g := pair(t, sandbox.NetworkNone, Config{})
	g.listen(t, sandbox.EventsPort)
	c, err := g.dial(testContext(t), netip.AddrPortFrom(link.EventsAddress, eventsPort))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	waitConnections(t, l, 2)
	l.Close()
}

func TestSetPolicyCutsOpenConnections(t *testing.T) {
	l, g := pair(t, sandbox.NetworkPublic, Config{Refuse: allowAll})
	hostSide := make(chan error, 1)
	addr := server(t, func(c *net.TCPConn) {
		_, err := io.Copy(c, c)
		hostSide <- err
	})
	ln := g.listen(t, 7)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		_, _ = io.Copy(c, c)
		c.Close()
	}()
	ours, inbound := streamPair(t)
	defer inbound.Close()
	if err := l.Dial(testContext(t), 7, ours); err != nil {
		t.Fatal(err)
	}
	c, err := g.dial(testContext(t), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	roundTrip(t, c)
	l.SetPolicy(sandbox.NetworkNone)
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the guest's connection goes on")
	}
	if err := <-hostSide; err == nil {
		t.Error("the host's side ended as if nothing had happened, want a reset")
	}
	roundTrip(t, inbound) // connections that the host dialled stay open
	if c, err := g.dial(testContext(t), addr); err == nil {
		c.Close()
		t.Error("a new connection is accepted")
	}
	l.SetPolicy(sandbox.NetworkPublic)
	again, err := g.dial(testContext(t), addr)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	inbound.Close()
	waitConnections(t, l, 0)
}

func roundTrip(t testing.TB, c net.Conn) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(answerTime))
	var b [4]byte
	if _, err := c.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, b[:]); err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Time{})
}

// boundOnly returns an address that is bound but has no listener.
func boundOnly(t testing.TB) netip.AddrPort {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(at.(*unix.SockaddrInet4).Port))
}

func TestRefusedHostIsReset(t *testing.T) {
	_, g := pair(t, sandbox.NetworkPublic, Config{Refuse: allowAll})
	addr := boundOnly(t)
	atOnce(t, "a refusal", func() {
		if c, err := g.dial(testContext(t), addr); err == nil {
			c.Close()
			t.Error("connected to a port that nobody listens on")
		}
	})
}
