// Package policy decides where a Sandbox may connect to: by addresses that are refused to
// all, and by the Sandbox's own rules.
package policy

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// refused lists the addresses that no policy may allow: everything that is not a public
// unicast address, and the IPv6 ranges that embed an IPv4 address.
var refused = prefixes(
	"0.0.0.0/8",       // this network
	"10.0.0.0/8",      // private
	"100.64.0.0/10",   // carrier-grade NAT
	"127.0.0.0/8",     // loopback
	"169.254.0.0/16",  // link-local, metadata services
	"172.16.0.0/12",   // private
	"192.0.0.0/24",    // protocol assignments
	"192.0.2.0/24",    // documentation
	"192.88.99.0/24",  // 6to4 relays
	"192.168.0.0/16",  // private
	"198.18.0.0/15",   // benchmarking
	"198.51.100.0/24", // documentation
	"203.0.113.0/24",  // documentation
	"224.0.0.0/4",     // multicast
	"240.0.0.0/4",     // reserved, broadcast

	"2001::/23",     // protocol assignments, Teredo
	"2001:db8::/32", // documentation
	"2002::/16",     // 6to4: embeds an IPv4 address
	"3fff::/20",     // documentation
)

// global is the only part of IPv6 that is assigned as public unicast; the rest (loopback,
// mapped and translated IPv4, unique local, link-local, multicast) lies outside of it.
var global = netip.MustParsePrefix("2000::/3")

func prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(texts))
	for i, t := range texts {
		out[i] = netip.MustParsePrefix(t)
	}
	return out
}

// Public reports whether addr is a public unicast address. An IPv4 address in
// IPv6 form, and one with a zone, is not.
func Public(addr netip.Addr) bool {
	if !addr.IsValid() || addr.Zone() != "" {
		return false
	}
	if addr.Is6() && !global.Contains(addr) {
		return false
	}
	for _, p := range refused {
		if p.Contains(addr) {
			return false
		}
	}
	return true
}

// hostAddressesAge bounds the age of the list of the host's addresses.
const hostAddressesAge = 5 * time.Second

// HostAddresses caches the addresses of the host's own interfaces. The zero value is
// ready; methods are safe for concurrent use.
type HostAddresses struct {
	mu    sync.Mutex
	read  time.Time
	addrs map[netip.Addr]struct{} // nil if they could not be read
}

// Refuse reports whether addr must not be reached: it is not public, or it is one of the
// host's own. While the host's addresses cannot be read, everything is refused. The list
// is at most five seconds old.
func (h *HostAddresses) Refuse(addr netip.Addr) bool {
	if !Public(addr) {
		return true
	}
	own := h.current()
	if own == nil {
		return true
	}
	_, is := own[addr]
	return is
}

func (h *HostAddresses) current() map[netip.Addr]struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.addrs == nil || time.Since(h.read) > hostAddressesAge {
		h.addrs = interfaceAddresses()
		h.read = time.Now()
	}
	return h.addrs
}

func interfaceAddresses() map[netip.Addr]struct{} {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	out := make(map[netip.Addr]struct{}, len(list))
	for _, a := range list {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		if addr, ok := netip.AddrFromSlice(n.IP); ok {
			out[addr.Unmap()] = struct{}{}
		}
	}
	return out
}
