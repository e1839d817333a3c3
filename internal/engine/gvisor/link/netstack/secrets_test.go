package netstack

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sandboxca"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig/certs"
)

const testSecret = "the-secret-value"

// vault is an HTTPS server with a certificate for some names. It records the requests that
// it gets.
type vault struct {
	port  uint16
	roots string // in PEM

	mu   sync.Mutex
	seen []sent
}

// sent is a received request.
type sent struct{ host, shown, secret, target string }

func newVault(t *testing.T, names ...string) *vault {
	t.Helper()
	v := &vault{}
	cert := certs.SelfSigned(t, names...)
	v.roots = string(cert.PEM())
	s := httptest.NewUnstartedServer(http.HandlerFunc(v.serve))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert.TLS()}}
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	s.Listener.Close()
	s.Listener = l
	s.StartTLS()
	t.Cleanup(s.Close)
	v.port = uint16(l.Addr().(*net.TCPAddr).Port)
	return v
}

func (v *vault) serve(w http.ResponseWriter, r *http.Request) {
	v.mu.Lock()
	v.seen = append(v.seen, sent{r.Host, r.TLS.ServerName, r.Header.Get("X-Key"), r.RequestURI})
	v.mu.Unlock()
	if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		c, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_, _ = io.Copy(c, rw)
		return
	}
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s %v %s %s", r.Method, r.RequestURI, r.Header.Get("X-Key") == testSecret, r.Header.Get("Upgrade"), body)
}

// told returns the requests with the secret, and the number of those without.
func (v *vault) told() (with []sent, without int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range v.seen {
		if strings.Contains(s.secret, testSecret) {
			with = append(with, s)
		} else {
			without++
		}
	}
	return with, without
}

// binding returns a binding that sets the secret on requests to good.example at a port.
// inside is the pool that its guest trusts.
func binding(t *testing.T, port uint16) (b sandbox.SecretBinding, inside *x509.CertPool) {
	t.Helper()
	cert, key, err := sandboxca.New([]byte("a seed of tests"), "i4k2m9x0qa7c1z8w3e5r6")
	if err != nil {
		t.Fatal(err)
	}
	inside = x509.NewCertPool()
	inside.AppendCertsFromPEM([]byte(cert))
	return sandbox.SecretBinding{
		Authority: cert, Key: sandbox.SecretValue(key),
		Headers: []sandbox.SecretHeader{{Host: "good.example", Port: port, Header: "X-Key", Value: testSecret}},
	}, inside
}

// keyed opens a link whose guest has a secret for good.example.
func keyed(t *testing.T, v *vault, policy sandbox.NetworkPolicy) (*Link, *guest, *x509.CertPool) {
	t.Helper()
	shared := new(Shared)
	shared.Trust(v.roots)
	l, g := pair(t, policy, Config{Refuse: allowAll, Resolver: zone(t, records), Shared: shared})
	b, inside := binding(t, v.port)
	if err := l.SetSecrets(b); err != nil {
		t.Fatal(err)
	}
	return l, g, inside
}

// secure connects to an address with TLS and trusts only roots; nil: no verification.
func (g *guest) secure(t *testing.T, to netip.AddrPort, name string, roots *x509.CertPool, protocols ...string) (*tls.Conn, error) {
	t.Helper()
	c, err := g.dial(testContext(t), to)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { c.Close() })
	conn := tls.Client(c, &tls.Config{ServerName: name, RootCAs: roots, InsecureSkipVerify: roots == nil, NextProtos: protocols})
	return conn, conn.HandshakeContext(testContext(t))
}

// exchange writes a request and returns the answer.
func exchange(t *testing.T, c net.Conn, r *bufio.Reader, text string) (int, string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		return 0, err.Error()
	}
	_ = c.SetReadDeadline(time.Now().Add(answerTime))
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		return 0, err.Error()
	}
	if res.StatusCode == http.StatusSwitchingProtocols {
		return res.StatusCode, ""
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(body)
}

func TestSecretsAreSetForTheirHost(t *testing.T) {
	v := newVault(t, "good.example", "other.example")
	l, g, inside := keyed(t, v, sandbox.NetworkPublic)
	at := netip.AddrPortFrom(atGood, v.port)
	host := fmt.Sprintf("good.example:%d", v.port)
	c, err := g.secure(t, at, "good.example", inside)
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	for _, tt := range []struct{ request, want string }{
		{"GET /one?a;b=%zz HTTP/1.1\r\nHost: " + host + "\r\n\r\n", "GET /one?a;b=%zz true  "},
		{"GET //two HTTP/1.1\r\nHost: GOOD.example:" + fmt.Sprint(v.port) + "\r\nX-Key: mine\r\nx-key: another\r\n\r\n", "GET //two true  "},
		{"POST /three HTTP/1.1\r\nHost: " + host + "\r\nConnection: X-Key\r\nContent-Length: 4\r\n\r\nbody", "POST /three true  body"},
		{"PUT /four HTTP/1.1\r\nHost: " + host + "\r\nTransfer-Encoding: chunked\r\nTrailer: X-Key\r\n\r\n1\r\nx\r\n0\r\nX-Key: late\r\n\r\n", "PUT /four true  x"},
		{"GET /five HTTP/1.1\r\nHost: " + host + "\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n", "GET /five true  "},
		{"GET /six HTTP/1.1\r\nHost: " + host + "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", ""},
	} {
		status, body := exchange(t, c, r, tt.request)
		if status != 200 && tt.want != "" || body != tt.want {
			t.Errorf("%q: %d %q, want %q", tt.request, status, body, tt.want)
		}
	}
	if !echoes(struct {
		io.Reader
		io.Writer
	}{r, c}) {
		t.Error("after an upgrade nothing passes")
	}
	if with, _ := v.told(); len(with) != 6 || with[5].secret != testSecret {
		t.Errorf("%d requests had the secret: %v", len(with), with)
	}

	// TLS to other hosts passes unchanged.
	if c, err = g.secure(t, at, "other.example", nil); err != nil || c.ConnectionState().PeerCertificates[0].DNSNames[0] != "good.example" || len(c.ConnectionState().PeerCertificates[0].DNSNames) != 2 {
		t.Errorf("another host is opened too: %v", err)
	}
	_ = l
}

func TestSecretsOverHTTP2(t *testing.T) {
	v := newVault(t, "good.example")
	l, g, inside := keyed(t, v, sandbox.NetworkPublic)
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return g.dial(ctx, netip.AddrPortFrom(atGood, v.port))
		},
		TLSClientConfig: &tls.Config{ServerName: "good.example", RootCAs: inside}, ForceAttemptHTTP2: true,
	}
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport}
	ask := func(host, method string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(testContext(t), method, fmt.Sprintf("https://good.example:%d/", v.port), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res, string(body)
	}
	var asking sync.WaitGroup
	for range 20 { // streams of one connection
		asking.Go(func() {
			if res, body := ask("", "GET"); res.ProtoMajor != 2 || body != "GET / true  " {
				t.Errorf("HTTP/%d, %q", res.ProtoMajor, body)
			}
		})
	}
	asking.Wait()
	for _, host := range []string{"evil.example", "good.example", "good.example:443", fmt.Sprintf("evil.example:%d", v.port)} {
		if res, body := ask(host, "GET"); res.StatusCode != http.StatusMisdirectedRequest {
			t.Errorf("the authority %s: %d %q", host, res.StatusCode, body)
		}
	}
	if res, _ := ask("", "TRACE"); res.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("TRACE: %d", res.StatusCode)
	}
	if with, without := v.told(); len(with) != 20 || without != 0 {
		t.Errorf("%d requests with the secret and %d without arrived", len(with), without)
	}
	if err := l.SetSecrets(sandbox.SecretBinding{}); err != nil {
		t.Fatal(err)
	}
	transport.CloseIdleConnections()
}

// An exact host takes precedence over wildcards, and the longest wildcard over shorter
// ones. A wildcard does not match its base name, another port, or a name that only ends
// alike.
func TestSecretsOfWildcards(t *testing.T) {
	b, _ := binding(t, 443)
	b.Headers = []sandbox.SecretHeader{
		{Host: "*.example", Port: 443, Header: "X-Key", Value: "all"},
		{Host: "*.deep.example", Port: 443, Header: "X-Key", Value: "deep"},
		{Host: "one.deep.example", Port: 443, Header: "X-Other", Value: "one"},
		{Host: "lost.deep.example", Port: 443}, // its secret was withdrawn
		{Host: "*.lost.example", Port: 443},
		{Host: "*.example", Port: 8443, Header: "X-Key", Value: "port"},
	}
	s, err := compileSecrets(b)
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]http.Header{
		"a.example": {"X-Key": {"all"}}, "a.b.example": {"X-Key": {"all"}}, "deep.example": {"X-Key": {"all"}}, "lost.example": {"X-Key": {"all"}},
		"a.deep.example": {"X-Key": {"deep"}}, "a.b.deep.example": {"X-Key": {"deep"}}, "one.deep.example": {"X-Other": {"one"}},
		"a.one.deep.example": {"X-Key": {"deep"}},
		"example":            nil, "aexample": nil, "example.com": nil, "": nil, ".example.": nil, "lost.deep.example": {}, "a.lost.example": {},
	} {
		at := origin{host, 443}
		if got := s.at(at); fmt.Sprint(got) != fmt.Sprint(want) || s.has(at) != (len(want) > 0) {
			t.Errorf("%q: %v, want %v", host, got, want)
		}
	}
	if got := s.at(origin{"a.deep.example", 8443}); got.Get("X-Key") != "port" {
		t.Errorf("at another port: %v", got)
	}
	if got := s.at(origin{"a.deep.example", 80}); got != nil {
		t.Errorf("at a port that nothing is said of: %v", got)
	}
}

// A host that matches a wildcard gets the secret only with a certificate for its own name.
func TestSecretsBelowAName(t *testing.T) {
	v := newVault(t, "good.example")
	l, g, inside := keyed(t, v, sandbox.NetworkPublic)
	b, _ := binding(t, v.port)
	b.Headers[0].Host = "*.example"
	if err := l.SetSecrets(b); err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]int{"good.example": http.StatusOK, "evil.example": http.StatusBadGateway} {
		c, err := g.secure(t, netip.AddrPortFrom(atGood, v.port), host, inside)
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("GET / HTTP/1.1\r\nHost: %s:%d\r\n\r\n", host, v.port)
		if status, body := exchange(t, c, bufio.NewReader(c), text); status != want || want == http.StatusOK && body != "GET / true  " {
			t.Errorf("%s: %d %q", host, status, body)
		}
	}
	if with, without := v.told(); len(with) != 1 || without != 0 {
		t.Errorf("%d requests with the secret and %d without arrived", len(with), without)
	}
}

func TestSecretsAreForNobodyElse(t *testing.T) {
	v := newVault(t, "good.example", "evil.example")
	_, g, inside := keyed(t, v, sandbox.NetworkPublic)
	at := netip.AddrPortFrom(atGood, v.port)
	host := fmt.Sprintf("good.example:%d", v.port)
	evil := fmt.Sprintf("evil.example:%d", v.port)
	for name, text := range map[string]string{
		"another host":                 "GET / HTTP/1.1\r\nHost: " + evil + "\r\n\r\n",
		"another port":                 "GET / HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"an empty port":                "GET / HTTP/1.1\r\nHost: good.example:\r\n\r\n",
		"no host":                      "GET / HTTP/1.1\r\n\r\n",
		"an address":                   "GET / HTTP/1.1\r\nHost: 127.7.0.1\r\n\r\n",
		"a user before the host":       "GET / HTTP/1.1\r\nHost: good.example@" + evil + "\r\n\r\n",
		"two hosts":                    "GET / HTTP/1.1\r\nHost: " + host + "\r\nHost: " + evil + "\r\n\r\n",
		"another host in the URL":      "GET https://" + evil + "/ HTTP/1.1\r\nHost: " + host + "\r\n\r\n",
		"the same host in the URL":     "GET https://" + host + "/ HTTP/1.1\r\nHost: " + evil + "\r\n\r\n",
		"a proxy's request to another": "CONNECT " + evil + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n",
		"a proxy's request":            "CONNECT " + host + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n",
		"a request to be sent back":    "TRACE / HTTP/1.1\r\nHost: " + host + "\r\n\r\n",
		"two lengths":                  "POST / HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"a length that is none":        "POST / HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: +1\r\n\r\na",
		"a host in a folded line":      "GET / HTTP/1.1\r\nX-A: b\r\n Host: " + evil + "\r\n\r\n",
		"a space before the colon":     "GET / HTTP/1.1\r\nHost : " + host + "\r\n\r\n",
		"HTTP/2 by knowing before":     "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		c, err := g.secure(t, at, "good.example", inside)
		if err != nil {
			t.Fatal(err)
		}
		if status, body := exchange(t, c, bufio.NewReader(c), text); status == 200 || strings.Contains(body, testSecret) {
			t.Errorf("%s: %d %q", name, status, body)
		}
	}
	if with, without := v.told(); len(with) > 0 || without > 0 {
		t.Errorf("something arrived: %v, and %d without the secret", with, without)
	}

	// A request inside a body is not a request, or is checked separately.
	c, err := g.secure(t, at, "good.example", inside)
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	within := "GET /smuggled HTTP/1.1\r\nHost: " + evil + "\r\n\r\n"
	both := fmt.Sprintf("POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n%s", host, len(within)+5, within)
	status, _ := exchange(t, c, r, both)
	if second, body := exchange(t, c, r, ""); second == 200 {
		t.Errorf("a request after one of two lengths (%d): %d %q", status, second, body)
	}
	with, _ := v.told()
	for _, s := range with {
		if s.host != host || s.shown != "good.example" || s.target == "/smuggled" {
			t.Errorf("the secret went with %+v", s)
		}
	}
}

// A server gets the secret only with a trusted certificate for the name in TLS, whatever
// the address.
func TestSecretsAreForTheRealHost(t *testing.T) {
	real := newVault(t, "good.example")
	for name, names := range map[string][]string{
		"a certificate of its own for the host": {"good.example"},
		"a certificate for another host":        {"evil.example"},
	} {
		t.Run(name, func(t *testing.T) {
			fake := newVault(t, names...)
			shared := new(Shared)
			shared.Trust(real.roots)
			if names[0] != "good.example" {
				shared.Trust(fake.roots)
			}
			l, g := pair(t, sandbox.NetworkPublic, Config{Refuse: allowAll, Resolver: zone(t, records), Shared: shared})
			b, inside := binding(t, fake.port)
			if err := l.SetSecrets(b); err != nil {
				t.Fatal(err)
			}
			c, err := g.secure(t, netip.AddrPortFrom(atOther, fake.port), "good.example", inside)
			if err != nil {
				t.Fatal(err)
			}
			status, body := exchange(t, c, bufio.NewReader(c), fmt.Sprintf("GET / HTTP/1.1\r\nHost: good.example:%d\r\n\r\n", fake.port))
			if status != http.StatusBadGateway || !strings.Contains(body, "certificate") || strings.Contains(body, testSecret) {
				t.Errorf("%d %q", status, body)
			}
			if with, without := fake.told(); len(with) > 0 || without > 0 {
				t.Errorf("the false host was sent %v, and %d without", with, without)
			}
		})
	}
}

// The policy applies to hosts with secrets as it does without secrets.
func TestSecretsUnderPolicies(t *testing.T) {
	v := newVault(t, "good.example")
	at := netip.AddrPortFrom(atGood, v.port)
	_, g, _ := keyed(t, v, sandbox.NetworkNone)
	if _, err := g.secure(t, at, "good.example", nil); err == nil {
		t.Error("a host with secrets is reached without a network")
	}
	for _, allowed := range []string{"good.example", "other.example"} {
		l, g, inside := keyed(t, v, ruled(t, sandbox.NetworkNone, []string{allowed}, nil))
		g.lookup(t, "good.example", dnsmessage.TypeA)
		c, err := g.secure(t, at, "good.example", inside)
		if (err == nil) != (allowed == "good.example") {
			t.Errorf("with %s allowed: %v", allowed, err)
		}
		if err != nil {
			continue
		}
		r := bufio.NewReader(c)
		request := fmt.Sprintf("GET / HTTP/1.1\r\nHost: good.example:%d\r\n\r\n", v.port)
		if status, body := exchange(t, c, r, request); status != 200 || body != "GET / true  " {
			t.Errorf("%d %q", status, body)
		}
		if err := l.SetPolicy(sandbox.NetworkNone); err != nil {
			t.Fatal(err)
		}
		if status, body := exchange(t, c, r, request); status == 200 {
			t.Errorf("after the policy changed: %q", body)
		}
	}
}

func TestSecretsChangeUnderOpenConnections(t *testing.T) {
	v := newVault(t, "good.example")
	l, g, inside := keyed(t, v, sandbox.NetworkPublic)
	at := netip.AddrPortFrom(atGood, v.port)
	request := fmt.Sprintf("GET / HTTP/1.1\r\nHost: good.example:%d\r\n\r\n", v.port)
	c, err := g.secure(t, at, "good.example", inside)
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	if _, body := exchange(t, c, r, request); body != "GET / true  " {
		t.Fatalf("at first: %q", body)
	}
	b, _ := binding(t, v.port)
	b.Headers[0].Value = "another"
	if err := l.SetSecrets(b); err != nil {
		t.Fatal(err)
	}
	if status, body := exchange(t, c, r, request); status != 200 || body != "GET / false  " {
		t.Errorf("after a change: %d %q", status, body)
	}
	for _, bad := range []sandbox.SecretBinding{{Headers: b.Headers}, {Headers: b.Headers, Authority: b.Authority, Key: "none"}} {
		if err := l.SetSecrets(bad); err == nil {
			t.Error("secrets without an authority were taken")
		}
	}
	if err := l.SetSecrets(sandbox.SecretBinding{}); err != nil {
		t.Fatal(err)
	}
	if status, body := exchange(t, c, r, request); status == 200 {
		t.Errorf("after they were taken away: %q", body)
	}

	// Without secrets TLS passes unchanged. The connection is cut when the host gets
	// secrets again, because its requests would not get them.
	g.lookup(t, "good.example", dnsmessage.TypeA)
	passing, err := g.secure(t, at, "good.example", nil)
	if err != nil {
		t.Fatal(err)
	}
	r = bufio.NewReader(passing)
	if _, body := exchange(t, passing, r, request); body != "GET / false  " {
		t.Errorf("without secrets: %q", body)
	}
	if b, _ = binding(t, v.port); l.SetSecrets(b) != nil {
		t.Fatal("the secrets were not taken")
	}
	if status, _ := exchange(t, passing, r, request); status == 200 {
		t.Error("a connection from before goes on without secrets")
	}
}

// If a program does not trust the sandbox's CA, the TLS handshake fails and the log says
// why.
func TestSecretsNeedTrust(t *testing.T) {
	v := newVault(t, "good.example")
	l, g, _ := keyed(t, v, sandbox.NetworkPublic)
	strangers := x509.NewCertPool()
	strangers.AppendCertsFromPEM([]byte(v.roots))
	if _, err := g.secure(t, netip.AddrPortFrom(atGood, v.port), "good.example", strangers); err == nil {
		t.Fatal("the server's own certificate came through")
	}
	l.Close()
	for _, d := range l.Log().Decisions {
		if !d.Allowed && strings.Contains(d.Reason, "own CA") {
			return
		}
	}
	t.Errorf("the log: %+v", l.Log().Decisions)
}
