package netstack

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/upstream"
)

// upstreamProxy is an HTTP proxy. Its targets greet and echo, or serve HTTP on port 80. It
// refuses port 25.
type upstreamProxy struct {
	*upstream.Proxy
	mu    sync.Mutex
	asked []string
}

func newUpstream(t testing.TB) *upstreamProxy {
	t.Helper()
	p := new(upstreamProxy)
	at := server(t, func(c *net.TCPConn) {
		in := bufio.NewReader(c)
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		p.mu.Lock()
		p.asked = append(p.asked, r.Method+" "+r.RequestURI)
		p.mu.Unlock()
		switch {
		case strings.HasSuffix(r.RequestURI, ":25"):
			_, _ = io.WriteString(c, "HTTP/1.1 403 Forbidden\r\n\r\n")
		case strings.HasSuffix(r.RequestURI, ":80"):
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			if _, err := http.ReadRequest(in); err == nil {
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			}
		default:
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\nhello ")
			echo(c)
		}
	})
	var err error
	if p.Proxy, err = upstream.Parse("http://" + at.String()); err != nil {
		t.Fatal(err)
	}
	return p
}

// took returns the requests since the last call.
func (p *upstreamProxy) took() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	asked := p.asked
	p.asked = nil
	return asked
}

// refusals returns the logged reasons for refused traffic to a port.
func refusals(l *Link, port uint16) (reasons []string) {
	for _, d := range l.Log().Decisions {
		if d.Port == port && !d.Allowed {
			reasons = append(reasons, d.Protocol+": "+d.Reason)
		}
	}
	return reasons
}

func TestThroughUpstreamProxy(t *testing.T) {
	proxy, near := newUpstream(t), server(t, echo)
	shared := new(Shared)
	shared.Through(proxy.Proxy)
	open, err := sandbox.ParseNetworkRule(near.String())
	if err != nil {
		t.Fatal(err)
	}
	shared.Open([]sandbox.NetworkRule{open})
	l, g := pair(t, sandbox.NetworkPublic, Config{Shared: shared})
	talk := func(to netip.AddrPort) string {
		t.Helper()
		c, err := g.dial(testContext(t), to)
		if err != nil {
			return "refused"
		}
		defer c.Close()
		_, _ = io.WriteString(c, "guest")
		_ = c.CloseWrite()
		said, err := io.ReadAll(c)
		if err != nil {
			return err.Error()
		}
		return string(said)
	}

	for _, tt := range []struct{ to, said, asked string }{
		{"1.2.3.4:443", "hello guest", "CONNECT 1.2.3.4:443"},
		{"1.2.3.4:25", "refused", "CONNECT 1.2.3.4:25"},
		{"10.0.0.1:443", "refused", ""}, // refused by the policy, so the proxy is not asked
		{near.String(), "guest", ""},    // opened by the operator, so dialled directly
	} {
		said := talk(netip.MustParseAddrPort(tt.to))
		if asked := strings.Join(proxy.took(), " "); said != tt.said || asked != tt.asked {
			t.Errorf("%s: the guest hears %q, the proxy %q, want %q and %q", tt.to, said, asked, tt.said, tt.asked)
		}
	}
	if got := refusals(l, 25); !slices.Equal(got, []string{"tcp: the upstream proxy refuses the connection (403 Forbidden)"}) {
		t.Errorf("of the refusal the log tells %q", got)
	}

	// UDP works only to addresses that the operator opened.
	far := g.dialUDP(t, netip.MustParseAddrPort("1.2.3.4:123"))
	if _, err := far.Write([]byte("time?")); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); len(refusals(l, 123)) == 0 && time.Since(began) < answerTime; {
		time.Sleep(time.Millisecond)
	}
	if got := refusals(l, 123); len(got) != 1 || !strings.HasPrefix(got[0], "udp: ") || !strings.Contains(got[0], "upstream proxy, which carries no UDP") {
		t.Errorf("of a datagram the log tells %q", got)
	}
	socket, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(near.Addr(), near.Port())))
	if err != nil {
		t.Skipf("the port of a server has no UDP: %v", err)
	}
	defer socket.Close()
	_, _ = g.dialUDP(t, near).Write([]byte("near"))
	buf := make([]byte, 8)
	_ = socket.SetReadDeadline(time.Now().Add(answerTime))
	if n, _, err := socket.ReadFromUDPAddrPort(buf); err != nil || string(buf[:n]) != "near" {
		t.Errorf("a datagram to what is near: %q, %v", buf[:n], err)
	}
}

// Names are resolved here, and the proxy gets the address. A second connection of the same
// flow takes the same path.
func TestUpstreamProxyHearsNoName(t *testing.T) {
	proxy := newUpstream(t)
	shared := new(Shared)
	shared.Through(proxy.Proxy)
	resolver := zone(t, map[string]string{"good.example": "1.2.3.4"})
	_, g := pair(t, ruled(t, sandbox.NetworkNone, []string{"good.example"}, nil), Config{Shared: shared, Resolver: resolver})
	if rcode, addrs := g.lookup(t, "good.example", dnsmessage.TypeA); rcode != 0 || len(addrs) != 1 {
		t.Fatalf("good.example: %d, %v", rcode, addrs)
	}
	c, err := g.dial(testContext(t), netip.MustParseAddrPort("1.2.3.4:80"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in := bufio.NewReader(c)
	for i, want := range []int{http.StatusOK, http.StatusOK, http.StatusForbidden} {
		host := "good.example"
		if i == 2 {
			host = "evil.example"
		}
		if code, said := request(t, c, in, "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n"); code != want {
			t.Errorf("request %d: %d %q, want %d", i, code, said, want)
		}
	}
	if got := proxy.took(); !slices.Equal(got, []string{"CONNECT 1.2.3.4:80", "CONNECT 1.2.3.4:80"}) {
		t.Errorf("the proxy hears %q", got)
	}
}
