package netstack

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
)

// neighbour opens a good link beside a hostile one. worst returns its worst latency.
func neighbour(t *testing.T, shared *Shared) (worst func(rounds int) time.Duration) {
	t.Helper()
	l, g := pair(t, sandbox.NetworkPublic, Config{Refuse: allowAll, Shared: shared})
	ln := g.listen(t, 7)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return func(rounds int) time.Duration {
		t.Helper()
		var worst time.Duration
		for range rounds {
			began := time.Now()
			ours, theirs := streamPair(t)
			if err := l.Dial(testContext(t), 7, ours); err != nil {
				t.Fatal(err)
			}
			roundTrip(t, theirs)
			theirs.Close()
			worst = max(worst, time.Since(began))
		}
		return worst
	}
}

// patience is the limit of a dial and a round trip beside a hostile link, on a busy
// machine and with the race detector.
const patience = 2 * time.Second

// lives fails the test if a neighbour waits too long in each of three tries. A slow
// machine can fail one try; a hostile link would fail all.
func lives(t *testing.T, worst func(rounds int) time.Duration, rounds int) {
	t.Helper()
	var d time.Duration
	for range 3 {
		if d = worst(rounds); d <= patience {
			return
		}
	}
	t.Errorf("a neighbour waited %v", d)
}

// bare is a link whose guest's end is a bare socket.
func bare(t testing.TB, shared *Shared) (*Link, *os.File) {
	t.Helper()
	host, end, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end.Close() })
	l, err := Open(host, sandbox.NetworkPublic, Config{Refuse: allowAll, Shared: shared})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l, end
}

// send writes a frame. If the socket is full, the frame is lost.
func send(end *os.File, frame []byte) error {
	raw, err := end.SyscallConn()
	if err != nil {
		return err
	}
	var sendErr error
	err = raw.Control(func(fd uintptr) { sendErr = unix.Sendmsg(int(fd), frame, nil, nil, unix.MSG_DONTWAIT) })
	if errors.Is(sendErr, unix.EAGAIN) {
		runtime.Gosched()
		return nil
	}
	return errors.Join(err, sendErr)
}

func TestFloodsDoNotHurtNeighbours(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	garbage := func() []byte {
		b := make([]byte, rng.IntN(2000))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	for name, next := range map[string]func() []byte{
		"garbage":  garbage,
		"empty":    func() []byte { return nil },
		"short":    func() []byte { return make([]byte, rng.IntN(header.EthernetMinimumSize+1)) },
		"jumbo":    func() []byte { return make([]byte, 100_000+rng.IntN(50_000)) },
		"longest":  func() []byte { return make([]byte, maxFrame) },
		"headers":  func() []byte { return append(ping(guestAddr, gatewayAddr)[:header.EthernetMinimumSize], garbage()...) },
		"payloads": func() []byte { return append(ping(guestAddr, gatewayAddr), garbage()...) },
		"syn":      func() []byte { return segment(rng, header.TCPFlagSyn) },
		"ack":      func() []byte { return segment(rng, header.TCPFlagAck) },
		"pings":    func() []byte { return ping(guestAddr, gatewayAddr) }, // the answers are not read
	} {
		t.Run(name, func(t *testing.T) {
			shared := new(Shared)
			hostile, end := bare(t, shared)
			worst := neighbour(t, shared)
			stop := make(chan struct{})
			var flood sync.WaitGroup
			flood.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if err := send(end, next()); err != nil {
						t.Errorf("the link broke: %v", err)
						return
					}
				}
			})
			lives(t, worst, 20)
			close(stop)
			flood.Wait()
			if n := hostile.Usage().Connections; n > maxConnections {
				t.Errorf("%d connections are open", n)
			}
			select {
			case <-hostile.Lost():
				t.Error("the link is taken for lost")
			default:
			}
			began := time.Now()
			hostile.Close()
			if d := time.Since(began); d > 20*time.Second {
				t.Errorf("closing took %v", d)
			}
		})
	}
}

// segment returns a TCP segment of the guest from a random port to a random port of the
// loopback interface, mostly one without a listener.
func segment(rng *rand.Rand, flags header.TCPFlags) []byte {
	frame := make([]byte, header.EthernetMinimumSize+header.IPv4MinimumSize+header.TCPMinimumSize)
	header.Ethernet(frame).Encode(&header.EthernetFields{
		SrcAddr: tcpip.LinkAddress(link.GuestMAC[:]), DstAddr: tcpip.LinkAddress(link.GatewayMAC[:]), Type: header.IPv4ProtocolNumber,
	})
	ip := header.IPv4(frame[header.EthernetMinimumSize:])
	ip.Encode(&header.IPv4Fields{
		TotalLength: header.IPv4MinimumSize + header.TCPMinimumSize, TTL: 64, Protocol: uint8(header.TCPProtocolNumber),
		SrcAddr: guestAddr, DstAddr: tcpip.AddrFrom4([4]byte{127, 0, 0, 1}),
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	header.TCP(ip.Payload()).Encode(&header.TCPFields{
		SrcPort: uint16(rng.Uint32()), DstPort: uint16(rng.Uint32()) | 1, SeqNum: rng.Uint32(),
		DataOffset: header.TCPMinimumSize, Flags: flags, WindowSize: 65535,
	})
	return frame
}

func TestThousandsOfConnections(t *testing.T) {
	shared := new(Shared)
	l, g := pair(t, sandbox.NetworkPublic, Config{Refuse: allowAll, Shared: shared})
	worst := neighbour(t, shared)
	addr := server(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
	var opened []net.Conn
	refused := 0
	for i := range 4000 {
		c, err := g.dial(testContext(t), addr)
		if err != nil {
			refused++
		} else {
			opened = append(opened, c)
		}
		if i%1000 == 0 {
			lives(t, worst, 3)
		}
	}
	if len(opened) != maxConnections {
		t.Errorf("%d connections are open and %d were refused, want %d open", len(opened), refused, maxConnections)
	}
	sendSome(t, opened[0])
	for _, c := range opened {
		c.Close()
	}
	waitConnections(t, l, 0)
	c, err := g.dial(testContext(t), addr)
	if err != nil {
		t.Fatalf("after all are closed: %v", err)
	}
	c.Close()
}

func sendSome(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := c.Write(pattern(1 << 20)); err != nil {
		t.Errorf("one of many connections: %v", err)
	}
}

func TestSlowReadersHoldOnlyTheirOwn(t *testing.T) {
	shared := new(Shared)
	l, g := pair(t, sandbox.NetworkPublic, Config{Refuse: allowAll, Shared: shared})
	worst := neighbour(t, shared)
	flood := server(t, func(c *net.TCPConn) {
		data := make([]byte, 1<<20)
		for {
			if _, err := c.Write(data); err != nil {
				return
			}
		}
	})
	sink := server(t, func(c *net.TCPConn) { // reads one byte and then stalls
		buf := make([]byte, 1)
		_ = c.SetReadBuffer(4096)
		_, _ = c.Read(buf)
		<-t.Context().Done()
	})
	echoes := server(t, echo)
	const stuck = 20
	var conns []net.Conn
	for i := range stuck {
		addr := flood
		if i%2 == 0 {
			addr = sink
		}
		c, err := g.dial(testContext(t), addr)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		if addr == sink {
			go func() { _, _ = c.Write(make([]byte, 64<<20)) }() // ends with the link
		}
	}
	good, err := g.dial(testContext(t), echoes)
	if err != nil {
		t.Fatal(err)
	}
	defer good.Close()
	for range 20 {
		roundTrip(t, good)
	}
	lives(t, worst, 20)
	l.Close() // also with everything stuck
	for _, c := range conns {
		c.Close()
	}
}

func TestBufferShare(t *testing.T) {
	for _, tt := range []struct {
		n    int
		want int64
	}{
		{0, 4 << 20},
		{1, 4 << 20},
		{8, 4 << 20},
		{9, 2 << 20},
		{16, 2 << 20},
		{17, 1 << 20},
		{64, 512 << 10},
		{65, 256 << 10},
		{512, 64 << 10},
		{513, 32 << 10},
		{1024, 32 << 10},
	} {
		got := bufferShare(linkBuffers, tt.n)
		if got != tt.want {
			t.Errorf("bufferShare(%d) = %d, want %d", tt.n, got, tt.want)
		}
		if int64(tt.n)*2*got > linkBuffers {
			t.Errorf("%d connections may hold %d bytes", tt.n, int64(tt.n)*2*got)
		}
	}
	for n := range maxShared + link.MaxLinks*sureConnections {
		if got := bufferShare(shardBuffers, n) * 2 * int64(n); got > shardBuffers {
			t.Fatalf("%d connections may hold %d bytes", n, got)
		}
	}
	share := int64(maxBuffer)
	for n := range maxConnections + 1 {
		share = nextShare(share, linkBuffers, n)
		if int64(n)*2*share > linkBuffers {
			t.Fatalf("%d connections may hold %d bytes", n, int64(n)*2*share)
		}
	}
	for n := maxConnections; n >= 0; n-- {
		share = nextShare(share, linkBuffers, n)
		if int64(n)*2*share > linkBuffers {
			t.Fatalf("going down, %d connections may hold %d bytes", n, int64(n)*2*share)
		}
	}
	if share != maxBuffer {
		t.Errorf("after all are gone the share is %d", share)
	}
}

func TestSharedLeavesEachLinkItsSureConnections(t *testing.T) {
	var s Shared
	n := 0
	for {
		ok, _ := s.take(n % maxConnections)
		if !ok {
			break
		}
		n++
	}
	if s.open < maxShared {
		t.Errorf("it is full with %d connections, want %d", s.open, maxShared)
	}
	if ok, _ := s.take(sureConnections - 1); !ok {
		t.Error("a link with few connections gets no more")
	}
	if ok, _ := s.take(sureConnections); ok {
		t.Error("a full shard takes more than what is sure")
	}
	for s.open > 0 {
		s.give()
	}
	if s.cap() != maxBuffer {
		t.Errorf("an empty shard allows buffers of %d", s.cap())
	}
}

func FuzzFrames(f *testing.F) {
	rng := rand.New(rand.NewPCG(3, 4))
	f.Add(ping(guestAddr, gatewayAddr))
	f.Add(segment(rng, header.TCPFlagSyn))
	f.Add(segment(rng, header.TCPFlagAck|header.TCPFlagFin))
	f.Add(make([]byte, 60))
	fragment := ping(guestAddr, gatewayAddr)
	fragment[header.EthernetMinimumSize+6] = 0x20 // more follow
	f.Add(fragment)
	options := append(ping(guestAddr, gatewayAddr), make([]byte, 40)...)
	options[header.EthernetMinimumSize] = 0x4f // a header of 60 bytes
	f.Add(options)
	_, end := bare(f, nil)
	f.Fuzz(func(t *testing.T, frame []byte) {
		if err := send(end, frame); err != nil {
			t.Skip(err) // longer than the socket takes
		}
		if err := send(end, ping(guestAddr, gatewayAddr)); err != nil {
			t.Fatal(err)
		}
		_ = end.SetReadDeadline(time.Now().Add(answerTime))
		if _, err := end.Read(make([]byte, maxFrame)); err != nil {
			t.Fatalf("the link does not answer any more: %v", err)
		}
	})
}
