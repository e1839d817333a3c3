package netstack

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link/netstack/netstacktest"
)

// endpoints are two implementations of the host's end of a link under the same stack: ours
// and gVisor's.
var endpoints = []struct {
	name string
	open func(*os.File) (*stack.Stack, error)
}{
	{"netpoller", func(end *os.File) (*stack.Stack, error) {
		ep, err := NewEndpoint(end, link.GatewayMAC, link.GuestMAC)
		if err != nil {
			return nil, err
		}
		s, err := newStack(ep, link.GatewayAddress, link.GuestAddress, link.GuestMAC)
		if err == nil {
			ep.Start()
		}
		return s, err
	}},
	{"fdbased", func(end *os.File) (*stack.Stack, error) {
		s, err := netstacktest.Stack(end, fdbased.RecvMMsg, link.GatewayMAC, link.GatewayAddress, link.GuestMAC, link.GuestAddress)
		if err == nil {
			setOptions(s)
		}
		return s, err
	}},
}

const chunk = 1 << 20

// BenchmarkLinkThroughput moves bytes over one TCP connection between two stacks. The
// guest's stack uses gVisor's endpoint, as in a sentry.
func BenchmarkLinkThroughput(b *testing.B) {
	for _, e := range endpoints {
		b.Run(e.name+"/to-guest", func(b *testing.B) {
			host, g := benchPair(b, e.open)
			benchStream(b, host, g, false)
		})
		b.Run(e.name+"/from-guest", func(b *testing.B) {
			host, g := benchPair(b, e.open)
			benchStream(b, host, g, true)
		})
	}
}

func benchPair(b *testing.B, open func(*os.File) (*stack.Stack, error)) (host, guest *stack.Stack) {
	b.Helper()
	end, guestEnd, err := link.Pair()
	if err != nil {
		b.Fatal(err)
	}
	if host, err = open(end); err != nil {
		b.Fatal(err)
	}
	guest, err = netstacktest.Stack(guestEnd, fdbased.RecvMMsg, link.GuestMAC, link.GuestAddress, link.GatewayMAC, link.GatewayAddress)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		// gVisor's endpoint loops once the other end is closed, so it is stopped first.
		guest.Destroy()
		host.Destroy()
		guestEnd.Close()
		end.Close()
	})
	setOptions(guest)
	return host, guest
}

// benchStream dials the guest and moves b.N chunks one way.
func benchStream(b *testing.B, host, guest *stack.Stack, fromGuest bool) {
	ln, err := gonet.ListenTCP(guest, tcpip.FullAddress{NIC: nic, Addr: guestAddr, Port: 9}, ipv4.ProtocolNumber)
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			close(accepted)
			return
		}
		accepted <- c
	}()
	conn, err := gonet.DialContextTCP(testContext(b), host, tcpip.FullAddress{NIC: nic, Addr: guestAddr, Port: 9}, ipv4.ProtocolNumber)
	if err != nil {
		b.Fatal(err)
	}
	other, ok := <-accepted
	if !ok {
		b.Fatal("the guest accepted nothing")
	}
	if fromGuest {
		benchCopy(b, other, conn)
	} else {
		benchCopy(b, conn, other)
	}
}

// benchCopy writes b.N chunks to from, reads them at to, and closes both.
func benchCopy(b *testing.B, from, to net.Conn) {
	data := pattern(chunk)
	b.SetBytes(chunk)
	b.ResetTimer()
	done := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < b.N && err == nil; i++ {
			_, err = from.Write(data)
		}
		done <- err
	}()
	if _, err := io.CopyN(io.Discard, struct{ io.Reader }{to}, int64(b.N)*chunk); err != nil {
		b.Fatal(err)
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	from.Close()
	to.Close()
}

// BenchmarkProxiedThroughput covers the whole path: the guest's stack, link, our stack,
// splice, and a socket of the host.
func BenchmarkProxiedThroughput(b *testing.B) {
	run := func(name string, connect func(*testing.B, *Link, *guest) (guestSide, hostSide net.Conn)) {
		b.Run(name+"/from-guest", func(b *testing.B) {
			l, g := pair(b, sandbox.NetworkPublic, Config{Refuse: allowAll})
			setOptions(g.Stack)
			inside, outside := connect(b, l, g)
			benchCopy(b, inside, outside)
		})
		b.Run(name+"/to-guest", func(b *testing.B) {
			l, g := pair(b, sandbox.NetworkPublic, Config{Refuse: allowAll})
			setOptions(g.Stack)
			inside, outside := connect(b, l, g)
			benchCopy(b, outside, inside)
		})
	}
	run("outbound", func(b *testing.B, _ *Link, g *guest) (net.Conn, net.Conn) {
		ln, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer ln.Close()
		inside, err := g.dial(testContext(b), ln.Addr().(*net.TCPAddr).AddrPort())
		if err != nil {
			b.Fatal(err)
		}
		outside, err := ln.Accept()
		if err != nil {
			b.Fatal(err)
		}
		return inside, outside
	})
	run("dialled", func(b *testing.B, l *Link, g *guest) (net.Conn, net.Conn) {
		ln := g.listen(b, 9)
		ours, theirs := streamPair(b)
		if err := l.Dial(testContext(b), 9, ours); err != nil {
			b.Fatal(err)
		}
		inside, err := ln.Accept()
		if err != nil {
			b.Fatal(err)
		}
		return inside, theirs
	})
}

// BenchmarkIdleLinks reports the cost of a link, over 1,000 links that have carried one
// datagram each. The guests' ends are bare sockets. Each variant runs in its own process,
// so that none inherits memory and threads.
func BenchmarkIdleLinks(b *testing.B) {
	const name = "LINK_BENCH_ENDPOINT"
	if way := os.Getenv(name); way != "" {
		fmt.Println(idleLinks(b, way))
		return
	}
	for _, way := range []string{"netpoller", "fdbased", "whole"} {
		b.Run(way, func(b *testing.B) {
			cmd := exec.Command(os.Args[0], "-test.run=^$", "-test.bench=^BenchmarkIdleLinks$", "-test.benchtime=1x")
			cmd.Env = append(os.Environ(), name+"="+way)
			out, err := cmd.CombinedOutput()
			if err != nil {
				b.Fatalf("%v\n%s", err, out)
			}
			var kib, threads, goroutines float64
			for line := range strings.Lines(string(out)) {
				if n, _ := fmt.Sscanf(line, "idle %g KiB %g threads %g goroutines", &kib, &threads, &goroutines); n == 3 {
					b.ReportMetric(kib, "KiB/link")
					b.ReportMetric(threads, "threads")
					b.ReportMetric(goroutines, "goroutines/link")
				}
			}
		})
	}
}

// ping is the frame of a ping.
func ping(from, to tcpip.Address) []byte {
	const icmpLength = header.ICMPv4MinimumSize
	frame := make([]byte, header.EthernetMinimumSize+header.IPv4MinimumSize+icmpLength)
	header.Ethernet(frame).Encode(&header.EthernetFields{
		SrcAddr: tcpip.LinkAddress(link.GuestMAC[:]), DstAddr: tcpip.LinkAddress(link.GatewayMAC[:]), Type: header.IPv4ProtocolNumber,
	})
	ip := header.IPv4(frame[header.EthernetMinimumSize:])
	ip.Encode(&header.IPv4Fields{
		TotalLength: header.IPv4MinimumSize + icmpLength, TTL: 64, Protocol: uint8(header.ICMPv4ProtocolNumber), SrcAddr: from, DstAddr: to,
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	echo := header.ICMPv4(ip.Payload())
	echo.SetType(header.ICMPv4Echo)
	echo.SetChecksum(header.ICMPv4Checksum(echo, 0))
	return frame
}

func idleLinks(b *testing.B, way string) string {
	const links = 1000
	var ends []*os.File
	before := memory(b)
	goroutines := runtime.NumGoroutine()
	var close []func()
	for range links {
		host, end, err := link.Pair()
		if err != nil {
			b.Fatal(err)
		}
		ends = append(ends, end)
		closeLink, err := openIdle(way, host)
		if err != nil {
			b.Fatal(err)
		}
		close = append(close, closeLink)
	}
	for _, end := range ends {
		if _, err := end.Write(ping(guestAddr, gatewayAddr)); err != nil {
			b.Fatal(err)
		}
		if _, err := end.Read(make([]byte, 128)); err != nil {
			b.Fatal(err)
		}
	}
	debug.FreeOSMemory()
	result := fmt.Sprintf("idle %.1f KiB %d threads %.1f goroutines", float64(memory(b)-before)/links, status(b, "Threads:"),
		float64(runtime.NumGoroutine()-goroutines)/links)
	for i, f := range close {
		f()
		ends[i].Close()
	}
	return result
}

// openIdle opens the host's end: a stack on either endpoint, or a whole Link.
func openIdle(way string, host *os.File) (func(), error) {
	if way == "whole" {
		l, err := Open(host, sandbox.NetworkPublic, Config{Refuse: allowAll})
		if err != nil {
			return nil, err
		}
		return l.Close, nil
	}
	for _, e := range endpoints {
		if e.name == way {
			s, err := e.open(host)
			if err != nil {
				return nil, err
			}
			return func() { s.Destroy(); host.Close() }, nil
		}
	}
	return nil, fmt.Errorf("no endpoint %q", way)
}

// memory returns the resident memory of this process, in KiB.
func memory(b *testing.B) int { return status(b, "VmRSS:") }

func status(b *testing.B, key string) int {
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), key)
	n := 0
	_, _ = fmt.Sscan(rest, &n)
	return n
}
