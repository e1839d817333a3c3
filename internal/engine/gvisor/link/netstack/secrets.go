package netstack

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link/policy"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link/sniff"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sandboxca"
)

const (
	// maxOpened bounds the concurrent connections of a link with terminated TLS.
	// maxSharedOpened bounds such connections of all links of a shard. Each holds buffers
	// for TLS and HTTP, up to half a megabyte per direction.
	maxOpened, maxSharedOpened = 64, 1024
	// openedStreams and openedBuffer bound one HTTP/2 connection; streamBuffer one
	// stream.
	openedStreams = 100
	openedBuffer  = 512 << 10
	streamBuffer  = 128 << 10
	// openedDials bounds the connections to the host for one from the guest: several are
	// needed when only the guest's side speaks HTTP/2.
	openedDials = 8
	// handshakeTimeout bounds each TLS handshake.
	handshakeTimeout = 20 * time.Second
	// openedIdle ends an idle connection.
	openedIdle = 5 * time.Minute
)

// origin is a host and port whose requests get headers.
type origin struct {
	host string
	port uint16
}

// name is the origin in the form of a Host header.
func (s origin) name() string {
	if s.port == sandbox.HTTPSPort {
		return s.host
	}
	return fmt.Sprintf("%s:%d", s.host, s.port)
}

// secrets are the headers that a Link adds to requests. They are immutable.
type secrets struct {
	ca      *sandboxca.CA
	headers map[origin]http.Header // by host, or by "*." and a parent domain
}

// at returns the headers for a host. The most specific host wins, even if its headers are
// empty.
func (s *secrets) at(at origin) http.Header {
	if s == nil {
		return nil
	}
	headers, known := s.headers[at]
	for above := at.host; !known; {
		var below bool
		if _, above, below = strings.Cut(above, "."); !below {
			return nil
		}
		headers, known = s.headers[origin{"*." + above, at.port}]
	}
	return headers
}

func (s *secrets) has(at origin) bool { return len(s.at(at)) > 0 }

// atPort reports whether some origin has this port.
func (s *secrets) atPort(port uint16) bool {
	if s == nil {
		return false
	}
	for at := range s.headers {
		if at.port == port {
			return true
		}
	}
	return false
}

func compileSecrets(b sandbox.SecretBinding) (*secrets, error) {
	if len(b.Headers) == 0 {
		return nil, nil
	}
	made, err := sandboxca.Parse(b.Authority, string(b.Key))
	if err != nil {
		return nil, err
	}
	s := &secrets{ca: made, headers: map[origin]http.Header{}}
	for _, h := range b.Headers {
		at := origin{h.Host, h.Port}
		if s.headers[at] == nil {
			s.headers[at] = http.Header{}
		}
		if h.Header != "" {
			s.headers[at].Set(h.Header, string(h.Value))
		}
	}
	return s, nil
}

// SetSecrets changes the headers that are added to requests of the guest, at once, also
// on open connections. Connections to hosts that are added or removed are cut. On error
// nothing changes.
func (l *Link) SetSecrets(b sandbox.SecretBinding) error {
	next, err := compileSecrets(b)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.secrets
	l.secrets = next
	for f := range l.flows {
		switch {
		case f.opened != (origin{}):
			if !next.has(f.opened) {
				f.cancel()
			}
		case !f.target.UDP && slices.ContainsFunc(f.target.Names, func(name string) bool {
			at := origin{name, f.target.Port}
			return next.has(at) && !before.has(at)
		}):
			f.cancel()
		}
	}
	return nil
}

// mayOpen reports whether a flow's host may be one whose requests get headers.
func (l *Link) mayOpen(f *flow) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.secrets.atPort(f.target.Port)
}

// errCrowded means that no further connection may have its TLS terminated now.
var errCrowded = errors.New("too many connections get secrets at once")

// open marks a flow for TLS termination if requests to the host that it shows get
// headers, and returns a certificate for the host. Nil: they do not.
func (l *Link) open(f *flow, shown policy.Shown) (*tls.Certificate, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := origin{shown.Name, f.target.Port}
	if shown.Kind != policy.KindTLS || !l.secrets.has(at) {
		return nil, nil
	}
	count := 0
	for other := range l.flows {
		if other.opened != (origin{}) {
			count++
		}
	}
	if count >= maxOpened || !l.cfg.Shared.takeOpened() {
		return nil, errCrowded
	}
	leaf, err := l.secrets.ca.Leaf(at.host)
	if err != nil {
		l.cfg.Shared.giveOpened()
		return nil, err
	}
	f.opened = at
	return leaf, nil
}

// headersFor returns the current headers for requests to an origin; nil: none.
func (l *Link) headersFor(at origin) http.Header {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.secrets.at(at)
}

// carrySecrets serves a TLS connection to a host whose requests get headers. It
// terminates TLS with a certificate that programs inside trust, and makes a second TLS
// connection to the dialled address, whose certificate must be the host's. Each request
// is checked, rewritten and sent there.
func (l *Link) carrySecrets(life context.Context, f *flow, g guestConn, host *net.TCPConn, leaf *tls.Certificate) {
	defer l.cfg.Shared.giveOpened()
	raw := &webConn{TCPConn: gonet.NewTCPConn(g.wq, g.ep), g: g, closed: make(chan struct{})}
	conn := tls.Server(raw, &tls.Config{
		Certificates: []tls.Certificate{*leaf}, MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"}, SessionTicketsDisabled: true,
	})
	ctx, cancel := context.WithTimeout(life, handshakeTimeout)
	err := conn.HandshakeContext(ctx)
	cancel()
	state := conn.ConnectionState()
	if err != nil || !strings.EqualFold(strings.TrimSuffix(state.ServerName, "."), f.opened.host) {
		l.note(f.target, f.opened.host, policy.Decision{Verdict: policy.Refused, Reason: "the program rejected the certificate of the sandbox's own CA, so its requests get no secrets"})
		cut(g, host)
		return
	}
	first := make(chan net.Conn, 1)
	first <- l.wired(life, host)
	opened := &opened{link: l, flow: f, transport: l.secureTransport(life, f, first, state.NegotiatedProtocol == "h2")}
	opened.proxy = &httputil.ReverseProxy{
		Rewrite: opened.rewrite, Transport: opened.transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		ErrorHandler: opened.failed,
	}
	server := &http.Server{
		Handler: opened, BaseContext: func(net.Listener) context.Context { return life },
		MaxHeaderBytes: maxWebHeader, ReadHeaderTimeout: webHeaderTimeout, IdleTimeout: openedIdle,
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: openedStreams, MaxReceiveBufferPerConnection: openedBuffer, MaxReceiveBufferPerStream: streamBuffer},
		ErrorLog: log.New(io.Discard, "", 0),
	}
	serveOne(life, g, raw, conn, server, opened.transport, first)
}

// secureTransport speaks TLS to the address of a flow, over first and, if needed, further
// connections.
func (l *Link) secureTransport(life context.Context, f *flow, first chan net.Conn, http2 bool) *http.Transport {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			select {
			case conn := <-first:
				return conn, nil
			default:
				return l.dialWired(ctx, life, f)
			}
		},
		TLSClientConfig:     &tls.Config{ServerName: f.opened.host, RootCAs: l.cfg.Shared.rootPool(), MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: handshakeTimeout, ForceAttemptHTTP2: http2,
		DisableCompression: true, MaxConnsPerHost: openedDials, MaxIdleConnsPerHost: openedDials, IdleConnTimeout: openedIdle,
		MaxResponseHeaderBytes: maxWebHeader,
		HTTP2:                  &http.HTTP2Config{MaxReceiveBufferPerConnection: openedBuffer, MaxReceiveBufferPerStream: streamBuffer},
	}
	if !http2 { // permits WebSockets
		t.TLSClientConfig.NextProtos = []string{"http/1.1"}
	}
	return t
}

// opened is a connection whose requests get headers.
type opened struct {
	link      *Link
	flow      *flow
	transport *http.Transport
	proxy     *httputil.ReverseProxy
}

// ServeHTTP forwards a request if it is for the connection's host.
func (o *opened) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if reason, status := o.judge(r); reason != "" {
		o.link.note(o.flow.target, o.flow.opened.host, policy.Decision{Verdict: policy.Refused, Reason: reason})
		if r.ProtoMajor == 1 {
			w.Header().Set("Connection", "close")
		}
		http.Error(w, "cloud-sandbox: "+reason, status)
		return
	}
	// A server may ignore a request for an upgrade to another protocol than this.
	if up := r.Header.Get("Upgrade"); up != "" && !strings.EqualFold(up, "websocket") {
		r.Header.Del("Upgrade")
		r.Header.Del("Http2-Settings")
	}
	o.proxy.ServeHTTP(w, r)
}

// judge returns why a request is refused; empty: it is forwarded.
func (o *opened) judge(r *http.Request) (reason string, status int) {
	at := o.flow.opened
	switch {
	case len(o.link.headersFor(at)) == 0:
		return "requests to " + at.name() + " get no secrets any more: connect again", http.StatusMisdirectedRequest
	case r.Method == http.MethodConnect, r.Method == http.MethodTrace:
		return "the method is not passed on to a host that gets secrets", http.StatusMethodNotAllowed
	case r.URL.IsAbs() || r.URL.Host != "" || len(r.Header["Host"]) > 0:
		return "the request names its host twice", http.StatusBadRequest
	case !at.is(r.Host):
		return "the request is for another host than its connection", http.StatusMisdirectedRequest
	}
	return "", 0
}

// is reports whether a Host header names the origin.
func (s origin) is(hostport string) bool {
	name, port := hostport, ""
	if strings.Contains(hostport, ":") {
		var err error
		if name, port, err = net.SplitHostPort(hostport); err != nil {
			return false
		}
	}
	if port == "" && strings.HasSuffix(hostport, ":") || port != "" && port != fmt.Sprint(s.port) || port == "" && s.port != sandbox.HTTPSPort {
		return false
	}
	return sniff.HostName(name) == s.host
}

// rewrite builds the outgoing request. The headers are set last, so that the guest's
// request cannot remove them.
func (o *opened) rewrite(r *httputil.ProxyRequest) {
	r.Out.URL.Scheme, r.Out.URL.Host = "https", o.flow.addr().String()
	r.Out.URL.RawQuery = r.In.URL.RawQuery
	r.Out.Host = o.flow.opened.name()
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v := r.In.Header[name]; v != nil {
			r.Out.Header[name] = v
		}
	}
	for name, value := range o.link.headersFor(o.flow.opened) {
		r.Out.Header[name] = slices.Clone(value)
	}
}

// failed responds when the host fails. The response reveals nothing of the sent request.
func (o *opened) failed(w http.ResponseWriter, _ *http.Request, err error) {
	reason := "the host does not answer"
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	if errors.As(err, &unknown) || errors.As(err, &name) || errors.As(err, &invalid) {
		reason = "the host's certificate is not valid, so it gets no secrets"
		o.link.note(o.flow.target, o.flow.opened.host, policy.Decision{Verdict: policy.Refused, Reason: reason})
	}
	http.Error(w, "cloud-sandbox: "+reason, http.StatusBadGateway)
}
