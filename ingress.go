package sandbox

import (
	"bytes"
	"encoding/json"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Ingress controls access to the ports of a Sandbox from outside, in the form that
// IngressRules.Ingress writes. Empty: every client that knows the Sandbox's ID has
// access, and requests are forwarded unchanged. Equal rules are equal strings.
type Ingress string

const (
	// MaxTLSPorts bounds the ports of a Sandbox that speak TLS.
	MaxTLSPorts = 32
	// MaxPortExceptions bounds IngressRules.Exceptions.
	MaxPortExceptions = 32
	// portPlace is the placeholder of the port number in Host.
	portPlace = "${PORT}"
	// maxHostMask bounds IngressRules.Host before and after expansion, in bytes.
	maxHostMask = 255
	// maxIngressLen bounds the text of an Ingress, in bytes.
	maxIngressLen = 2 << 10
)

// IngressRules is an Ingress, parsed. It does not apply to the ports of the Guest's own
// services, with two exceptions: Private also covers InterpreterPort, and OpenServices is
// about these services.
type IngressRules struct {
	// Private requires the Sandbox's traffic token, or a token for the port.
	Private bool `json:"private,omitempty"`
	// Exceptions lists the ports with the opposite of Private.
	Exceptions []uint16 `json:"exceptions,omitempty"`
	// Host replaces the host of requests that services see: HOST or HOST:PORT, with
	// "${PORT}" for the port number. Empty: the client's host.
	Host string `json:"host,omitempty"`
	// TLSPorts lists the ports that speak TLS inside. Their certificates are not
	// verified, because the connection stays within this installation.
	TLSPorts []uint16 `json:"tls_ports,omitempty"`
	// OpenServices opens the Guest's services for E2B clients to every client that
	// knows the Sandbox's ID. Otherwise they require the Sandbox's access token. It is
	// set when a Sandbox is created and never changes.
	OpenServices bool `json:"open_services,omitempty"`
}

// Ingress returns the rules in canonical form, or Invalid that says what is wrong.
func (r IngressRules) Ingress() (Ingress, error) {
	if r.Host != "" && !validHostMask(r.Host) {
		return "", Errorf(Invalid, "the host that services see must be HOST or HOST:PORT in ASCII, where %s stands for the number of the port, not %.64q", portPlace, r.Host)
	}
	r.TLSPorts, r.Exceptions = sortedPorts(r.TLSPorts), sortedPorts(r.Exceptions)
	if len(r.TLSPorts) > MaxTLSPorts {
		return "", Errorf(Invalid, "at most %d ports of a sandbox may speak TLS", MaxTLSPorts)
	}
	if len(r.Exceptions) > MaxPortExceptions {
		return "", Errorf(Invalid, "at most %d ports of a sandbox may be exceptions: public while its other ports are private, or the reverse", MaxPortExceptions)
	}
	for _, p := range r.TLSPorts {
		if p == 0 || AgentPort(p) {
			return "", Errorf(Invalid, "the port %d cannot speak TLS, because the agent uses it: name ports of your own services, from 1 to 65535", p)
		}
	}
	for _, p := range r.Exceptions {
		if p == 0 || AgentPort(p) {
			return "", Errorf(Invalid, "the port %d cannot be made public or private: name ports of your own services, from 1 to 65535", p)
		}
	}
	if r.Private && r.OpenServices {
		return "", Errorf(Invalid, "the ports of a sandbox cannot be private while its own services are open to all")
	}
	if !r.Private && !r.OpenServices && r.Host == "" && len(r.TLSPorts) == 0 && len(r.Exceptions) == 0 {
		return "", nil
	}
	text, err := json.Marshal(r)
	return Ingress(text), err
}

// PortRules returns the Ingress for the port rules of a request; Invalid for numbers that
// are not ports.
func PortRules(private bool, exceptions []int64, host string, tls []int64) (Ingress, error) {
	rules := IngressRules{Private: private, Host: host}
	for _, list := range []struct {
		from []int64
		to   *[]uint16
	}{{tls, &rules.TLSPorts}, {exceptions, &rules.Exceptions}} {
		for _, n := range list.from {
			if n < 1 || n > math.MaxUint16 {
				return "", Errorf(Invalid, `"%d" is not a port: it must be a number from 1 to 65535`, n)
			}
			*list.to = append(*list.to, uint16(n))
		}
	}
	return rules.Ingress()
}

// sortedPorts returns ports sorted, without duplicates.
func sortedPorts(ports []uint16) []uint16 {
	ports = slices.Clone(ports)
	slices.Sort(ports)
	return slices.Compact(ports)
}

// Rules parses i; Invalid when it is not in canonical form.
func (i Ingress) Rules() (IngressRules, error) {
	var r IngressRules
	if i == "" {
		return r, nil
	}
	bad := Errorf(Invalid, "the port rules are not in canonical form")
	d := json.NewDecoder(bytes.NewReader([]byte(i)))
	d.DisallowUnknownFields()
	if len(i) > maxIngressLen || d.Decode(&r) != nil {
		return IngressRules{}, bad
	}
	if normal, err := r.Ingress(); err != nil || normal != i {
		return IngressRules{}, bad
	}
	return r, nil
}

// RulesOrClosed is Rules, but returns private rules when i cannot be parsed.
func (i Ingress) RulesOrClosed() IngressRules {
	r, err := i.Rules()
	if err != nil {
		return IngressRules{Private: true}
	}
	return r
}

func (i Ingress) check() error {
	_, err := i.Rules()
	return err
}

// HostAt returns the host of requests that a service on a port sees; empty: the client's
// host.
func (r IngressRules) HostAt(port uint16) string {
	return strings.ReplaceAll(r.Host, portPlace, strconv.Itoa(int(port)))
}

// PrivateAt reports whether a port requires a token.
func (r IngressRules) PrivateAt(port uint16) bool {
	return r.Private != slices.Contains(r.Exceptions, port)
}

// after returns i as the replacement of before. It keeps OpenServices, which never
// changes.
func (i Ingress) after(before Ingress) (Ingress, error) {
	was := before.RulesOrClosed()
	r, err := i.Rules()
	if err != nil || r.OpenServices == was.OpenServices {
		return i, err
	}
	r.OpenServices = was.OpenServices
	return r.Ingress()
}

// PortChange updates the rules of one port of a Sandbox. Nil fields stay unchanged.
type PortChange struct {
	Port    uint16
	Private *bool
	TLS     *bool
}

// apply returns i with c applied, or Invalid.
func (c PortChange) apply(i Ingress) (Ingress, error) {
	r, err := i.Rules()
	if err != nil {
		return i, err
	}
	if c.Private != nil {
		r.Exceptions = with(r.Exceptions, c.Port, *c.Private != r.Private)
	}
	if c.TLS != nil {
		r.TLSPorts = with(r.TLSPorts, c.Port, *c.TLS)
	}
	return r.Ingress()
}

// with returns ports with p added if in, else removed.
func with(ports []uint16, p uint16, in bool) []uint16 {
	ports = slices.DeleteFunc(slices.Clone(ports), func(other uint16) bool { return other == p })
	if in {
		ports = append(ports, p)
	}
	return ports
}

// TLSAt reports whether a port speaks TLS inside.
func (r IngressRules) TLSAt(port uint16) bool { return slices.Contains(r.TLSPorts, port) }

// validHostMask reports whether mask is HOST or HOST:PORT for any port.
func validHostMask(mask string) bool {
	full := IngressRules{Host: mask}.HostAt(65535)
	if len(mask) > maxHostMask || len(full) > maxHostMask {
		return false
	}
	host, port := full, "1"
	if strings.Count(full, ":") == 1 || strings.HasPrefix(full, "[") && !strings.HasSuffix(full, "]") {
		var err error
		if host, port, err = net.SplitHostPort(full); err != nil {
			return false
		}
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(full, "["), "]")
		if (host != full) != strings.Contains(host, ":") {
			return false // IPv6 addresses need brackets; other hosts must not have them
		}
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return false
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Zone() == ""
	}
	_, ok := NormalDomain(host)
	return ok
}
