package template

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"syscall"
	"time"

	"golang.org/x/net/http/httpproxy"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link/policy"
	"github.com/cloud-sandbox/cloud-sandbox/internal/upstream"
)

// guardedTreeBytes is the default of Guard.MaxTreeBytes.
const guardedTreeBytes = 8 << 30

// errPrivateAddress is returned when a guarded build dials a private address.
var errPrivateAddress = errors.New("the address is not public")

// Check returns Denied for builds reserved for the operator: sources on this machine, and
// a foreign image whose programs would run as root during the build. A nil Guard denies
// nothing. content means that an archive was sent.
func (g *Guard) Check(r Recipe, content bool) error {
	switch {
	case g == nil:
	case r.Source.Local() && !content, r.Source.kind == kindBase:
		return sandbox.Errorf(sandbox.Denied, "only the server's operator builds from %s: send an archive, or name oci:REF or debian:SUITE", r.Source)
	case len(r.NPM) > 0:
		return sandbox.Errorf(sandbox.Denied, "only the server's operator installs packages of npm while a template is built: install them in a sandbox, or by a step of E2B's builder")
	case r.Source.kind == kindOCI && !r.Bare:
		return sandbox.Errorf(sandbox.Denied, "only the server's operator adds packages to an image: leave them out, and send bare")
	}
	return nil
}

// treeBytes bounds the root filesystem.
func (g *Guard) treeBytes() int64 {
	if g == nil {
		return maxTreeBytes
	}
	return cmp.Or(g.MaxTreeBytes, guardedTreeBytes)
}

// transport returns the HTTP transport for a registry, with short timeouts for an
// unreachable one. With a Guard it reaches only public addresses, also after redirects,
// unless the registry is one of the operator's.
func (g *Guard) transport(registry string) *http.Transport {
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.Proxy = proxyFromEnvironment
	t.TLSHandshakeTimeout = 5 * time.Second
	t.ResponseHeaderTimeout = 30 * time.Second
	t.DialContext = dialer.DialContext
	t.OnProxyConnectResponse = func(_ context.Context, proxy *url.URL, _ *http.Request, answer *http.Response) error {
		return upstream.CheckStatus(proxy.User, answer.StatusCode)
	}
	if g != nil && !slices.Contains(g.Registries, registry) {
		t.Proxy = nil // a proxy would resolve names itself, without the address check
		dialer.Control = onlyPublic
		if g.Proxy != nil {
			t.DialContext = g.dialThrough
		}
	}
	return t
}

// proxyFromEnvironment is http.ProxyFromEnvironment without its cache, so that it
// follows changes of the environment. The cache keeps the variables of the first call,
// which a linked package may make before main.
func proxyFromEnvironment(r *http.Request) (*url.URL, error) {
	return httpproxy.FromEnvironment().ProxyFunc()(r.URL)
}

// dialThrough resolves a name locally, and makes the proxy connect to its public
// addresses in turn.
func (g *Guard) dialThrough(ctx context.Context, _, address string) (net.Conn, error) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(found, func(a, b netip.Addr) int { // the proxy may lack IPv6
		return cmp.Compare(a.Unmap().BitLen(), b.Unmap().BitLen())
	})
	failed := errPrivateAddress
	for _, addr := range found {
		if !policy.Public(addr.Unmap()) {
			continue
		}
		conn, err := g.Proxy.Dial(ctx, netip.AddrPortFrom(addr.Unmap(), uint16(port)))
		if err == nil {
			return conn, nil
		}
		if errors.Is(failed, errPrivateAddress) {
			failed = err
		}
	}
	return nil, failed
}

// onlyPublic checks the resolved address before connecting.
func onlyPublic(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !policy.Public(at.Addr().Unmap()) {
		return errPrivateAddress
	}
	return nil
}
