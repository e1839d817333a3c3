package gateway

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// fromClient is r with its client's address in RemoteAddr. For a request from a trusted
// proxy that is the address which the proxy reports, and otherwise the peer's. An
// untrusted peer's X-Forwarded-Proto is removed from r.
func (s *Server) fromClient(r *http.Request) *http.Request {
	peer, ok := hostAddr(r.RemoteAddr)
	if !ok || !s.trusts(peer) {
		r.Header.Del("X-Forwarded-Proto")
		return r
	}
	client := s.clientBehind(peer, r.Header)
	if client == peer {
		return r
	}
	told := r.WithContext(r.Context())
	told.RemoteAddr = netip.AddrPortFrom(client, 0).String()
	return told
}

// trusts reports whether an address is of a trusted proxy.
func (s *Server) trusts(a netip.Addr) bool {
	return slices.ContainsFunc(s.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(a) })
}

// clientBehind is the address of the client of the first trusted proxy that a request
// came through; peer is the last one. A proxy may write one of the two headers and pass
// the other on from a client: when they differ, neither is trusted.
func (s *Server) clientBehind(peer netip.Addr, h http.Header) netip.Addr {
	hops, ours := h.Values("X-Forwarded-For"), h.Values("Forwarded")
	switch {
	case len(ours) == 0:
		return s.walk(peer, hops, plainHop)
	case len(hops) == 0:
		return s.walk(peer, ours, forwardedHop)
	}
	if a := s.walk(peer, hops, plainHop); a == s.walk(peer, ours, forwardedHop) {
		return a
	}
	return peer
}

// walk follows a list of hops from the right, where the nearest proxies add theirs, up
// to the first untrusted address. A hop that does not parse ends the walk with the
// address of the proxy that wrote it.
func (s *Server) walk(at netip.Addr, values []string, parse func(string) (netip.Addr, bool)) netip.Addr {
	hops := strings.Split(strings.Join(values, ","), ",")
	for _, hop := range slices.Backward(hops) {
		a, ok := parse(strings.TrimSpace(hop))
		if !ok {
			return at
		}
		if at = a; !s.trusts(a) {
			return a
		}
	}
	return at
}

// plainHop is an element of X-Forwarded-For: an address, perhaps with a port.
func plainHop(hop string) (netip.Addr, bool) {
	if a, err := netip.ParseAddr(strings.Trim(hop, "[]")); err == nil {
		return a.Unmap().WithZone(""), true
	}
	return hostAddr(hop)
}

// forwardedHop is an element of Forwarded (RFC 7239), of which only "for" counts. No
// address has a quoted comma or semicolon, so splitting there is safe: the parts do not
// parse.
func forwardedHop(hop string) (netip.Addr, bool) {
	var found netip.Addr
	for pair := range strings.SplitSeq(hop, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
		if !strings.EqualFold(name, "for") {
			continue
		}
		a, ok := plainHop(strings.Trim(value, `"`))
		if !ok || found.IsValid() {
			return netip.Addr{}, false
		}
		found = a
	}
	return found, found.IsValid()
}

// hostAddr is the address of ADDRESS:PORT.
func hostAddr(hostport string) (netip.Addr, bool) {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(host)
	return a.Unmap().WithZone(""), err == nil
}

// addressOf is the key of an address's rate limit: the address itself, or for IPv6 its
// /64, which belongs to one subscriber.
func addressOf(r *http.Request) string {
	a, ok := hostAddr(r.RemoteAddr)
	if !ok {
		return r.RemoteAddr
	}
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.String()
		}
	}
	return a.String()
}
