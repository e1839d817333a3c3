package netstack

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// zone is a name server of the host that knows some addresses.
func zone(t testing.TB, records map[string]string) *Resolver {
	t.Helper()
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 4<<10)
		for {
			n, from, err := socket.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = socket.WriteToUDPAddrPort(zoneAnswer(buf[:n], records), from)
		}
	})
	t.Cleanup(func() { socket.Close(); wg.Wait() })
	return NewResolver(resolvConf(t, socket.LocalAddr().(*net.UDPAddr).AddrPort()))
}

func zoneAnswer(query []byte, records map[string]string) []byte {
	q, err := readQuestion(query)
	if err != nil {
		return nil
	}
	name, target := dnsmessage.MustNewName(q.name+"."), records[q.name]
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: q.id, Response: true})
	_ = b.StartQuestions()
	_ = b.Question(dnsmessage.Question{Name: name, Type: q.kind, Class: q.class})
	_ = b.StartAnswers()
	if alias, ok := strings.CutPrefix(target, "alias "); ok {
		to := dnsmessage.MustNewName(alias + ".")
		_ = b.CNAMEResource(dnsmessage.ResourceHeader{Name: name, Class: q.class, TTL: 1}, dnsmessage.CNAMEResource{CNAME: to})
		name, target = to, records[alias]
	}
	if addr, err := netip.ParseAddr(target); err == nil && q.kind == dnsmessage.TypeA {
		_ = b.AResource(dnsmessage.ResourceHeader{Name: name, Class: q.class, TTL: 1}, dnsmessage.AResource{A: addr.As4()})
	}
	out, err := b.Finish()
	if err != nil {
		panic(err)
	}
	return out
}

// lookup asks for a record as a guest, and returns the code and the addresses.
func (g *guest) lookup(t testing.TB, name string, kind dnsmessage.Type) (rcode int, addrs []netip.Addr) {
	t.Helper()
	q := dnsQuestion{id: 77, name: name, kind: kind, class: dnsmessage.ClassINET}
	a := askUDP(t, g.dialUDP(t, gatewayDNS), q.rebuilt(), answerTime)
	if a == nil {
		t.Fatalf("%s is not answered", name)
	}
	if a[3]&15 != 0 || len(a) == headerLen {
		return int(a[3] & 15), nil
	}
	var p dnsmessage.Parser
	if _, err := p.Start(a); err != nil {
		t.Fatal(err)
	}
	_ = p.SkipAllQuestions()
	all, err := p.AllAnswers()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		if body, ok := r.Body.(*dnsmessage.AResource); ok {
			addrs = append(addrs, netip.AddrFrom4(body.A))
		}
	}
	return 0, addrs
}

// site is a TLS and plain HTTP server on the loopback interface, which stands in for the
// Internet.
type site struct{ tls, web, greeter uint16 }

func newSite(t testing.TB) site {
	t.Helper()
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "echo" {
			c, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_, _ = io.Copy(c, rw)
			return
		}
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %s", r.Method, r.Host, r.URL.Path, body)
	})
	web := httptest.NewUnstartedServer(handler)
	listen := func() net.Listener {
		l, err := net.Listen("tcp4", "0.0.0.0:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	port := func(l net.Listener) uint16 { return uint16(l.Addr().(*net.TCPAddr).Port) }
	web.Listener.Close()
	web.Listener = listen()
	web.Start()
	t.Cleanup(web.Close)
	secure := httptest.NewUnstartedServer(handler)
	secure.Listener.Close()
	secure.Listener = listen()
	secure.StartTLS()
	t.Cleanup(secure.Close)
	greeter := listen()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := greeter.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_, _ = io.WriteString(c, "hello\n")
				_, _ = io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() { greeter.Close(); wg.Wait() })
	return site{tls: port(secure.Listener), web: port(web.Listener), greeter: port(greeter)}
}

func ruled(t testing.TB, mode sandbox.NetworkPolicy, allow, deny []string) sandbox.NetworkPolicy {
	t.Helper()
	p, err := sandbox.NetworkRules{Mode: mode, Allow: allow, Deny: deny}.Policy()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// speakTLS connects and shakes hands; the connection stays open.
func (g *guest) speakTLS(t testing.TB, to netip.AddrPort, name string) (net.Conn, error) {
	t.Helper()
	c, err := g.dial(testContext(t), to)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { c.Close() })
	secure := tls.Client(c, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	return secure, secure.HandshakeContext(testContext(t))
}

func echoes(c io.ReadWriter) bool {
	if _, err := io.WriteString(c, "\x00"); err != nil {
		return false
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err == nil
}

var (
	atGood  = netip.MustParseAddr("127.7.0.1")
	atOther = netip.MustParseAddr("127.7.0.2")
)

var records = map[string]string{
	"good.example": "127.7.0.1", "also.example": "127.7.0.1", "other.example": "127.7.0.2",
	"www.good.example": "alias other.example", "local.example": "127.9.0.1",
}

func TestAllowedNamesOnly(t *testing.T) {
	s := newSite(t)
	l, g := pair(t, ruled(t, sandbox.NetworkNone, []string{"good.example", "*.good.example"}, nil), Config{Refuse: allowAll, Resolver: zone(t, records)})
	secure := func(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, s.tls) }

	if _, err := g.speakTLS(t, secure(atGood), "good.example"); err == nil {
		t.Error("an address that was not asked for is reached")
	}
	if rcode, addrs := g.lookup(t, "good.example", dnsmessage.TypeA); rcode != 0 || len(addrs) != 1 || addrs[0] != atGood {
		t.Fatalf("good.example: %d, %v", rcode, addrs)
	}
	for name, kind := range map[string]dnsmessage.Type{
		"other.example": dnsmessage.TypeA, "x.other.example": dnsmessage.TypeTXT, "secret.good.example.evil.example": dnsmessage.TypeA,
	} {
		if rcode, _ := g.lookup(t, name, kind); rcode != rcodeRefused {
			t.Errorf("%s: %d, want refused", name, rcode)
		}
	}
	if rcode, _ := g.lookup(t, "good.example", dnsmessage.TypeALL); rcode != rcodeRefused {
		t.Errorf("all records of good.example: %d, want refused", rcode)
	}
	if rcode, addrs := g.lookup(t, "good.example", typeHTTPS); rcode != rcodeNone || addrs != nil {
		t.Errorf("keys of good.example: %d, want none", rcode)
	}
	if _, err := g.speakTLS(t, secure(atGood), "good.example"); err != nil {
		t.Errorf("good.example: %v", err)
	}
	for _, name := range []string{"also.example", "evil.example", "www.good.example", ""} {
		if _, err := g.speakTLS(t, secure(atGood), name); err == nil {
			t.Errorf("the name %q is let through to the address of good.example", name)
		}
	}
	if _, err := g.speakTLS(t, secure(atOther), "good.example"); err == nil {
		t.Error("an address that belongs to no allowed name is reached")
	}
	if _, addrs := g.lookup(t, "WWW.Good.Example", dnsmessage.TypeA); len(addrs) != 1 || addrs[0] != atOther {
		t.Errorf("by an alias: %v", addrs)
	}
	if _, err := g.speakTLS(t, secure(atOther), "www.good.example"); err != nil {
		t.Errorf("by an alias: %v", err)
	}

	c, err := g.dial(testContext(t), netip.AddrPortFrom(atGood, s.greeter))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if echoes(c) {
		t.Error("what is neither TLS nor HTTP passes without a rule for its port")
	}
	log := l.Log()
	if log.Allowed < 4 || log.Refused < 8 || len(log.Decisions) == 0 {
		t.Errorf("the log: %d allowed, %d refused, %d entries", log.Allowed, log.Refused, len(log.Decisions))
	}
	for _, d := range log.Decisions {
		if d.Reason == "" || d.Protocol == "" || d.Count < 1 {
			t.Errorf("in the log: %+v", d)
		}
	}
}

// request writes one request and returns the answer.
func request(t testing.TB, c *gonet.TCPConn, r *bufio.Reader, text string) (int, string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		return 0, err.Error()
	}
	_ = c.SetReadDeadline(time.Now().Add(answerTime))
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(body)
}

func TestEachRequestIsJudged(t *testing.T) {
	s := newSite(t)
	_, g := pair(t, ruled(t, sandbox.NetworkNone, []string{"good.example"}, nil), Config{Refuse: allowAll, Resolver: zone(t, records)})
	g.lookup(t, "good.example", dnsmessage.TypeA)
	open := func() (*gonet.TCPConn, *bufio.Reader) {
		c, err := g.dial(testContext(t), netip.AddrPortFrom(atGood, s.web))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c, bufio.NewReader(c)
	}
	c, r := open()
	for _, tt := range []struct {
		request string
		status  int
		body    string
	}{
		{"GET /one HTTP/1.1\r\nHost: good.example\r\n\r\n", 200, "GET good.example /one "},
		{"POST /two HTTP/1.1\r\nHost: Good.Example:80\r\nContent-Length: 4\r\n\r\nbody", 200, "POST Good.Example:80 /two body"},
		{"PUT /three HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", 200, "PUT good.example /three x"},
		{"GET /four HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403, ""},
	} {
		status, body := request(t, c, r, tt.request)
		if status != tt.status || tt.body != "" && body != tt.body {
			t.Errorf("%q: %d %q", tt.request, status, body)
		}
	}
	for name, text := range map[string]string{
		"another name in the URL":      "GET http://evil.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"two names":                    "GET / HTTP/1.1\r\nHost: good.example\r\nHost: evil.example\r\n\r\n",
		"no name":                      "GET / HTTP/1.1\r\n\r\n",
		"an address":                   "GET / HTTP/1.1\r\nHost: 127.7.0.1\r\n\r\n",
		"two lengths":                  "POST / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"an empty line first":          "\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"HTTP/2 without TLS":           "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"a proxy's request to another": "CONNECT evil.example:443 HTTP/1.1\r\nHost: good.example\r\n\r\n",
	} {
		c, r := open()
		if status, body := request(t, c, r, text); status == 200 || strings.Contains(body, "GET") {
			t.Errorf("%s: %d %q", name, status, body)
		}
	}

	c, r = open()
	if status, _ := request(t, c, r, "GET / HTTP/1.1\r\nHost: good.example\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"); status != 101 {
		t.Fatalf("an upgrade is answered with %d", status)
	}
	if !echoes(struct {
		io.Reader
		io.Writer
	}{r, c}) {
		t.Error("after an upgrade nothing passes")
	}
}

func TestRulesChangeUnderOpenConnections(t *testing.T) {
	s := newSite(t)
	l, g := pair(t, sandbox.NetworkPublic, Config{Refuse: allowAll, Resolver: zone(t, records)})
	g.lookup(t, "good.example", dnsmessage.TypeA)
	unseen, err := g.speakTLS(t, netip.AddrPortFrom(atGood, s.tls), "good.example")
	if err != nil {
		t.Fatal(err)
	}
	set := func(p sandbox.NetworkPolicy) {
		t.Helper()
		if err := l.SetPolicy(p); err != nil {
			t.Fatal(err)
		}
	}
	set(ruled(t, sandbox.NetworkNone, []string{"good.example"}, nil))
	waitConnections(t, l, 0)
	if _, err := unseen.Read(make([]byte, 1)); err == nil {
		t.Error("a connection that never showed a name is open")
	}

	seen, err := g.speakTLS(t, netip.AddrPortFrom(atGood, s.tls), "good.example")
	if err != nil {
		t.Fatal(err)
	}
	set(ruled(t, sandbox.NetworkNone, []string{"*.example", "also.example"}, []string{"also.example"}))
	if _, err := io.WriteString(seen, "GET / HTTP/1.1\r\nHost: good.example\r\n\r\n"); err != nil {
		t.Error(err)
	}
	if _, err := seen.Read(make([]byte, 1)); err != nil {
		t.Errorf("a connection that the new rules allow is cut: %v", err)
	}
	set(ruled(t, sandbox.NetworkPublic, nil, []string{"good.example"}))
	waitConnections(t, l, 0)

	set(ruled(t, sandbox.NetworkNone, []string{"also.example:1-65535"}, nil))
	g.lookup(t, "also.example", dnsmessage.TypeA)
	c, err := g.dial(testContext(t), netip.AddrPortFrom(atGood, s.greeter))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != "hello\n" {
		t.Errorf("a server that speaks first: %q, %v", line, err)
	}
	if !echoes(c) {
		t.Error("with a rule for its port another protocol does not pass")
	}
	silent, err := g.dial(testContext(t), netip.AddrPortFrom(atGood, s.web))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	set(sandbox.NetworkNone)
	waitConnections(t, l, 0)
	if l.SetPolicy("nonsense") == nil {
		t.Error("nonsense is a policy")
	}
}

func TestNamesOpenNothingPrivate(t *testing.T) {
	s := newSite(t)
	private := netip.MustParseAddr("127.9.0.1")
	refuse := func(a netip.Addr) bool { return a == private }
	rules := ruled(t, sandbox.NetworkNone, []string{"local.example"}, nil)
	dial := func(opened ...sandbox.NetworkRule) error {
		shared := new(Shared)
		shared.Open(opened)
		_, g := pair(t, rules, Config{Refuse: refuse, Shared: shared, Resolver: zone(t, records)})
		if _, addrs := g.lookup(t, "local.example", dnsmessage.TypeA); len(addrs) != 1 || addrs[0] != private {
			t.Fatalf("local.example: %v", addrs)
		}
		_, err := g.speakTLS(t, netip.AddrPortFrom(private, s.tls), "local.example")
		return err
	}
	rule := func(text string) sandbox.NetworkRule {
		r, err := sandbox.ParseNetworkRule(text)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if dial() == nil {
		t.Error("a name that leads to a private address reaches it")
	}
	if dial(rule("127.9.0.0/24:1-9"), rule("127.8.0.0/16"), rule("*"), rule("local.example")) == nil {
		t.Error("it is reached by what the operator opened of something else")
	}
	if err := dial(rule("127.9.0.0/24")); err != nil {
		t.Errorf("what the operator opened is not reached: %v", err)
	}
}

func TestDecisionsAreBounded(t *testing.T) {
	var l decisions
	for i := range 3 * sandbox.MaxNetworkLog {
		for range 2 {
			l.add(sandbox.NetworkDecision{Protocol: "tcp", Port: uint16(i), Allowed: i%2 == 0})
		}
	}
	log := l.read()
	if len(log.Decisions) != sandbox.MaxNetworkLog || log.Allowed != log.Refused || log.Allowed != 3*sandbox.MaxNetworkLog {
		t.Errorf("%d entries, %d and %d", len(log.Decisions), log.Allowed, log.Refused)
	}
	for i, d := range log.Decisions {
		if want := int64(2*sandbox.MaxNetworkLog + i + 1); d.Seq != want || d.Count != 2 {
			t.Fatalf("entry %d: %+v, want seq %d", i, d, want)
		}
	}
}

func TestAnswersAreHeldForATime(t *testing.T) {
	var a answers
	now := time.Now()
	a.hold("a.example", atGood, 0, now)
	a.hold("b.example", atGood, 1000*time.Hour, now)
	for after, want := range map[time.Duration]string{
		0: "a.example b.example", minHold - 1: "a.example b.example", minHold: "b.example", maxHold - 1: "b.example", maxHold: "",
	} {
		if got := strings.Join(a.names(atGood, now.Add(after)), " "); got != want {
			t.Errorf("after %v: %q, want %q", after, got, want)
		}
	}
	for i := range 3 * maxHeld {
		a.hold("c.example", netip.AddrFrom4([4]byte{1, byte(i >> 16), byte(i >> 8), byte(i)}), 0, now)
	}
	for i := range 3 * maxNames {
		a.hold(fmt.Sprint(i), atOther, 0, now)
	}
	if len(a.byAddr) > maxHeld || len(a.names(atOther, now)) != maxNames {
		t.Errorf("%d addresses, %d names of one", len(a.byAddr), len(a.names(atOther, now)))
	}
}

// Reading an arbitrary answer of a name server ends without a panic.
func FuzzAnswers(f *testing.F) {
	q := dnsQuestion{id: 1, name: "www.good.example", kind: dnsmessage.TypeA, class: dnsmessage.ClassINET}
	f.Add(zoneAnswer(q.rebuilt(), records))
	f.Add(q.rebuilt())
	f.Fuzz(func(_ *testing.T, b []byte) {
		if q, err := readQuestion(b); err == nil {
			_ = q.rebuilt()
			_ = readAddresses(b, q, func(netip.Addr, time.Duration) {})
		}
	})
}

func BenchmarkConnect(b *testing.B) {
	s := server(b, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
	for name, p := range map[string]sandbox.NetworkPolicy{
		"public":        sandbox.NetworkPublic,
		"64 addresses":  ruled(b, sandbox.NetworkNone, append(many("10.%d.0.0/16", 63), "127.0.0.1"), nil),
		"64 names, raw": ruled(b, sandbox.NetworkPublic, nil, many("a%d.example", 64)),
	} {
		b.Run(name, func(b *testing.B) {
			_, g := pair(b, p, Config{Refuse: allowAll})
			for b.Loop() {
				ctx, cancel := context.WithTimeout(b.Context(), 30*time.Second)
				c, err := g.dial(ctx, s)
				cancel()
				if err != nil {
					b.Fatal(err)
				}
				if !echoes(c) {
					b.Fatal("no echo")
				}
				c.Close()
			}
		})
	}
}

func many(format string, n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf(format, i))
	}
	return out
}
