package netstack

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
)

// names is a name server of the host. It answers each question with the question itself
// and the answer flag.
type names struct {
	addr  netip.AddrPort
	asked atomic.Int64
	heard atomic.Int64 // bytes of questions by UDP
	size  atomic.Int64 // of UDP answers; zero: the question's
}

func newNames(t testing.TB) *names {
	t.Helper()
	socket, ln := bothProtocols(t)
	n := &names{addr: socket.LocalAddr().(*net.UDPAddr).AddrPort()}
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 8<<10)
		for {
			size, from, err := socket.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			n.asked.Add(1)
			n.heard.Add(int64(size))
			a := answerTo(buf[:size])
			if want := int(n.size.Load()); want > 0 {
				a = append(a, make([]byte, want-len(a))...)
			}
			_, _ = socket.WriteToUDPAddrPort(a, from)
		}
	})
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			n.asked.Add(1)
			buf := make([]byte, 2<<10)
			if size, err := readPrefixed(c, buf); err == nil {
				_ = writePrefixed(c, answerTo(buf[:size]))
			}
			c.Close()
		}
	})
	t.Cleanup(func() { socket.Close(); ln.Close(); wg.Wait() })
	return n
}

// bothProtocols listens on one port with UDP and TCP. The TCP port of a free UDP port may
// be taken.
func bothProtocols(t testing.TB) (*net.UDPConn, *net.TCPListener) {
	t.Helper()
	for range 100 {
		socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		ln, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(socket.LocalAddr().(*net.UDPAddr).AddrPort()))
		if err == nil {
			return socket, ln
		}
		socket.Close()
	}
	t.Fatal("no port is free for both protocols")
	return nil, nil
}

func answerTo(q []byte) []byte {
	a := append([]byte(nil), q...)
	a[2] |= flagResponse
	return a
}

func resolvConf(t testing.TB, servers ...netip.AddrPort) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "resolv.conf")
	writeConf(t, path, servers...)
	return path
}

func writeConf(t testing.TB, path string, servers ...netip.AddrPort) {
	t.Helper()
	text := "# made by a test\nsearch example.com\n"
	for _, s := range servers {
		text += "nameserver " + s.String() + "\n"
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func question(id uint16) []byte {
	q := make([]byte, headerLen)
	binary.BigEndian.PutUint16(q, id)
	q[5] = 1 // one question
	q = append(q, 7)
	q = append(q, "example"...)
	return append(q, 3, 'c', 'o', 'm', 0, 0, 1, 0, 1)
}

var gatewayDNS = netip.AddrPortFrom(link.GatewayAddress, dnsPort)

func (g *guest) dialUDP(t testing.TB, to netip.AddrPort) *gonet.UDPConn {
	t.Helper()
	addr := full(to)
	c, err := gonet.DialUDP(g.Stack, nil, &addr, ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// answerTime is the timeout of an answer that must come.
const answerTime = time.Minute

// askUDP asks over UDP; a nil answer is silence.
func askUDP(t testing.TB, c *gonet.UDPConn, q []byte, patience time.Duration) []byte {
	t.Helper()
	if _, err := c.Write(q); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	buf := make([]byte, maxDatagram)
	n, err := c.Read(buf)
	if err != nil {
		return nil
	}
	return buf[:n]
}

func TestNamesAreAskedOfTheHostsResolver(t *testing.T) {
	server := newNames(t)
	l, g := pair(t, sandbox.NetworkPublic, Config{Resolver: NewResolver(resolvConf(t, server.addr))})
	udp := g.dialUDP(t, gatewayDNS)
	a := askUDP(t, udp, question(7), answerTime)
	if string(a) != string(answerTo(question(7))) {
		t.Errorf("over UDP: %x", a)
	}

	c, err := g.dial(testContext(t), gatewayDNS)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for id := range uint16(3) { // one connection carries several
		if err := writePrefixed(c, question(id)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 1<<10)
		n, err := readPrefixed(c, buf)
		if err != nil || string(buf[:n]) != string(answerTo(question(id))) {
			t.Errorf("over TCP: %x, %v", buf[:n], err)
		}
	}
	if server.asked.Load() != 4 {
		t.Errorf("the server was asked %d times, want 4", server.asked.Load())
	}

	l.SetPolicy(sandbox.NetworkNone)
	a = askUDP(t, udp, question(8), answerTime)
	if len(a) != headerLen || a[3]&15 != rcodeRefused || a[1] != 8 {
		t.Errorf("with the policy none: %x, want refused", a)
	}
	if server.asked.Load() != 4 {
		t.Error("with the policy none the server was asked")
	}
}

func TestNameServerFailures(t *testing.T) {
	server := newNames(t)
	path := resolvConf(t)
	_, g := pair(t, sandbox.NetworkPublic, Config{Resolver: NewResolver(path)})
	udp := g.dialUDP(t, gatewayDNS)
	rcode := func(a []byte) int {
		if len(a) < headerLen {
			return -1
		}
		return int(a[3] & 15)
	}
	if got := rcode(askUDP(t, udp, question(1), answerTime)); got != rcodeServerFailure {
		t.Errorf("without a name server: %d, want %d", got, rcodeServerFailure)
	}

	// The file changes. It lists a missing name server before a working one.
	free, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	gone := free.LocalAddr().(*net.UDPAddr).AddrPort()
	free.Close()
	writeConf(t, path, gone, server.addr)
	later := time.Now().Add(time.Minute) // file times may be coarse
	if err := os.Chtimes(path, later, later); err != nil {
		t.Fatal(err)
	}
	if got := rcode(askUDP(t, udp, question(2), answerTime)); got != 0 {
		t.Errorf("after the file changed: %d, want an answer", got)
	}

	server.size.Store(maxAnswer)
	if a := askUDP(t, udp, question(3), answerTime); len(a) != maxAnswer {
		t.Errorf("the longest answer has %d bytes, want %d", len(a), maxAnswer)
	}
	server.size.Store(maxAnswer + 1)
	if got := rcode(askUDP(t, udp, question(4), answerTime)); got != rcodeServerFailure {
		t.Errorf("a longer answer: %d, want %d", got, rcodeServerFailure)
	}

	for name, q := range map[string][]byte{
		"short":     question(5)[:headerLen-1],
		"an answer": answerTo(question(5)),
	} {
		if a := askUDP(t, udp, q, 50*time.Millisecond); a != nil {
			t.Errorf("%s is answered with %x", name, a)
		}
	}
	notify := question(6)
	notify[2] |= 4 << 3
	if got := rcode(askUDP(t, udp, notify, answerTime)); got != rcodeRefused {
		t.Errorf("another opcode than a question: %d, want %d", got, rcodeRefused)
	}
}

func TestNameQuestionsAreLimited(t *testing.T) {
	server := newNames(t)
	l, g := pair(t, sandbox.NetworkPublic, Config{Resolver: NewResolver(resolvConf(t, server.addr))})
	udp := g.dialUDP(t, gatewayDNS)
	began := time.Now()
	for id := range uint16(2000) {
		if _, err := udp.Write(question(id)); err != nil {
			t.Fatal(err)
		}
	}
	for {
		_ = udp.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		_, err := udp.Read(make([]byte, 512))
		if err != nil && server.asked.Load() > 0 && logged(l, tooMany) {
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("the server was asked %d times, and the log does not tell of more: %+v", server.asked.Load(), l.Log())
		}
	}
	got := server.asked.Load() // read before the time, so that later questions do not count
	if most := queriesBurst + int64(time.Since(began).Seconds()*queriesPerSecond) + 1; got > most {
		t.Errorf("the server was asked %d times, want at most %d", got, most)
	}
}

// Name questions and answers are limited in bytes, whatever their content. Limited ones
// are logged and counted.
func TestTunnelsThroughNamesAreSlow(t *testing.T) {
	server := newNames(t)
	shared := new(Shared)
	l, g := pair(t, sandbox.NetworkPublic, Config{Resolver: NewResolver(resolvConf(t, server.addr)), Shared: shared})
	udp := g.dialUDP(t, gatewayDNS)
	drain := func() (got int64) {
		for {
			_ = udp.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			n, err := udp.Read(make([]byte, maxAnswer))
			if err != nil {
				return got
			}
			got += int64(n)
		}
	}
	began := time.Now()
	most := func(burst, perSecond int64) int64 {
		return burst + int64(time.Since(began).Seconds()*float64(perSecond)) + 1
	}
	long := append(question(1), make([]byte, maxQuery-len(question(1)))...)
	for range queriesBurst / 2 {
		if _, err := udp.Write(long); err != nil {
			t.Fatal(err)
		}
	}
	for drain(); server.heard.Load() < queryBytesBurst/2; drain() {
		if time.Since(began) > time.Minute {
			t.Fatalf("the server heard %d bytes, want at least %d", server.heard.Load(), queryBytesBurst/2)
		}
	}
	if got, most := server.heard.Load(), most(queryBytesBurst, queryBytesPerSecond); got > most {
		t.Errorf("the server heard %d bytes, want at most %d", got, most)
	}
	server.size.Store(maxAnswer)
	var told int64
	for shared.Limited() == 0 || !logged(l, tooManyAnswerBytes) {
		if time.Since(began) > time.Minute {
			t.Fatalf("after %d bytes of answers nothing is held back: %+v", told, l.Log())
		}
		for range 30 {
			if _, err := udp.Write(question(2)); err != nil {
				t.Fatal(err)
			}
		}
		told += drain()
	}
	if most := most(answerBytesBurst, answerBytesPerSecond); told > most {
		t.Errorf("%d bytes of answers came, want at most %d", told, most)
	}
	if !logged(l, tooManyQueryBytes) {
		t.Errorf("the log does not tell of the questions: %+v", l.Log())
	}
}

// logged reports whether the log of a link has a refusal with a reason.
func logged(l *Link, reason string) bool {
	for _, d := range l.Log().Decisions {
		if d.Reason == reason && !d.Allowed && d.Name == "" {
			return true
		}
	}
	return false
}

func TestNameservers(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "",
		"nameserver 1.1.1.1\n":                "1.1.1.1:53",
		"nameserver\t2606:4700::1111":         "[2606:4700::1111]:53",
		"nameserver fe80::1%eth0":             "[fe80::1%eth0]:53",
		"#nameserver 1.1.1.1\noptions x":      "",
		"nameserver example.com":              "",
		"nameserver 127.0.0.1:5353":           "127.0.0.1:5353",
		strings.Repeat("nameserver ::1\n", 5): "[::1]:53 [::1]:53 [::1]:53",
	} {
		path := filepath.Join(t.TempDir(), "resolv.conf")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := nameservers(path)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
}

func TestDatagramsGoBothWays(t *testing.T) {
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, maxDatagram)
		for {
			n, from, err := socket.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = socket.WriteToUDPAddrPort(buf[:n], from)
		}
	})
	defer wg.Wait()
	defer socket.Close()
	to := socket.LocalAddr().(*net.UDPAddr).AddrPort()

	l, g := pair(t, sandbox.NetworkPublic, Config{Refuse: allowAll})
	c := g.dialUDP(t, to)
	for _, size := range []int{1, 1400, 9000, 60000} {
		if a := askUDP(t, c, pattern(size), answerTime); string(a) != string(pattern(size)) {
			t.Errorf("of %d bytes %d came back", size, len(a))
		}
	}
	if n := l.Usage().Connections; n != 1 {
		t.Errorf("%d flows are counted, want 1", n)
	}
	l.SetPolicy(sandbox.NetworkNone)
	waitConnections(t, l, 0)
	if a := askUDP(t, c, []byte("x"), 100*time.Millisecond); a != nil {
		t.Error("datagrams pass with the policy none")
	}
}

func TestPingReachesOnlyTheGateway(t *testing.T) {
	host, end, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	l, err := Open(host, sandbox.NetworkPublic, Config{Refuse: allowAll})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	reply := func(frame []byte, patience time.Duration) bool {
		t.Helper()
		if _, err := end.Write(frame); err != nil {
			t.Fatal(err)
		}
		_ = end.SetReadDeadline(time.Now().Add(patience))
		_, err := end.Read(make([]byte, 256))
		return err == nil
	}
	const silence = 100 * time.Millisecond
	if reply(ping(guestAddr, tcpip.AddrFrom4([4]byte{8, 8, 8, 8})), silence) {
		t.Error("a ping to 8.8.8.8 is answered")
	}
	if reply(ping(tcpip.AddrFrom4([4]byte{10, 0, 0, 3}), gatewayAddr), silence) {
		t.Error("a ping from another address than the guest's is answered")
	}
	if !reply(ping(guestAddr, gatewayAddr), answerTime) {
		t.Error("a ping to the gateway is not answered")
	}
}
