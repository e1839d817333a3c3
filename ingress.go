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

// Ingress is who reaches the ports of a Sandbox from outside, and how, as
// IngressRules.Ingress writes it; empty: whoever knows its ID, and requests
// arrive as they were sent. Equal ones are equal strings.
type Ingress string

const (
	// MaxTLSPorts is how many ports of a Sandbox may speak TLS.
	MaxTLSPorts = 32
	// MaxPortExceptions is how many ports of a Sandbox may be open to others than the
	// rest.
	MaxPortExceptions = 32
	// portPlace is where Host has the number of the port.
	portPlace = "${PORT}"
	// maxHostMask bounds IngressRules.Host, in bytes, and what it becomes.
	maxHostMask = 255
	// maxIngressLen bounds the text of an Ingress, in bytes.
	maxIngressLen = 2 << 10
)

// IngressRules is an Ingress, parsed. It does not concern the ports of the
// Guest's own services but for InterpreterPort, which is private with the others,
// and by OpenServices.
type IngressRules struct {
	// Private asks who reaches a port for the Sandbox's traffic token, or for one
	// that was made for that port.
	Private bool `json:"private,omitempty"`
	// Exceptions are the ports for which the opposite of Private holds.
	Exceptions []uint16 `json:"exceptions,omitempty"`
	// Host is what services see as the host of requests, HOST or HOST:PORT with
	// "${PORT}" for the number of the port; empty: what the client wrote.
	Host string `json:"host,omitempty"`
	// TLSPorts are those that speak TLS inside. Their certificates are not
	// verified: the way there is ours.
	TLSPorts []uint16 `json:"tls_ports,omitempty"`
	// OpenServices has the Guest's services for E2B's clients answer whoever knows the
	// Sandbox's ID; else they ask for its access token. It is said when a Sandbox is
	// made and then stays.
	OpenServices bool `json:"open_services,omitempty"`
}

// Ingress returns the rules in their one form. Invalid says what is wrong.
func (r IngressRules) Ingress() (Ingress, error) {
	if r.Host != "" && !validHostMask(r.Host) {
		return "", Errorf(Invalid, "the host that services see must be HOST or HOST:PORT in ASCII, where %s stands for the number of the port, not %.64q", portPlace, r.Host)
	}
	r.TLSPorts, r.Exceptions = sortedPorts(r.TLSPorts), sortedPorts(r.Exceptions)
	if len(r.TLSPorts) > MaxTLSPorts {
		return "", Errorf(Invalid, "at most %d ports of a sandbox may speak TLS", MaxTLSPorts)
	}
	if len(r.Exceptions) > MaxPortExceptions {
		return "", Errorf(Invalid, "at most %d ports of a sandbox may be public where the others are private, or private where they are public", MaxPortExceptions)
	}
	for _, p := range r.TLSPorts {
		if p == 0 || AgentPort(p) {
			return "", Errorf(Invalid, "the port %d does not speak TLS: name ports of your own services, from 1 to 65535", p)
		}
	}
	for _, p := range r.Exceptions {
		if p == 0 || AgentPort(p) {
			return "", Errorf(Invalid, "the port %d is not made public or private by itself: name ports of your own services, from 1 to 65535", p)
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

// PortRules are the rules about ports that a request names; Invalid for numbers that
// are no ports.
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

// sortedPorts is ports in order, each once.
func sortedPorts(ports []uint16) []uint16 {
	ports = slices.Clone(ports)
	slices.Sort(ports)
	return slices.Compact(ports)
}

// Rules returns what i stands for; Invalid when it is not in its one form.
func (i Ingress) Rules() (IngressRules, error) {
	var r IngressRules
	if i == "" {
		return r, nil
	}
	bad := Errorf(Invalid, "the rules about ports are not in their one form")
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

// RulesOrClosed is Rules; what cannot be read opens nothing.
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

// HostAt is what a service on a port sees as the host of requests; empty: what
// the client wrote.
func (r IngressRules) HostAt(port uint16) string {
	return strings.ReplaceAll(r.Host, portPlace, strconv.Itoa(int(port)))
}

// PrivateAt reports whether who reaches a port is asked for a token.
func (r IngressRules) PrivateAt(port uint16) bool {
	return r.Private != slices.Contains(r.Exceptions, port)
}

// after is i in the place of before: what is said once stays as it was said.
func (i Ingress) after(before Ingress) (Ingress, error) {
	was := before.RulesOrClosed()
	r, err := i.Rules()
	if err != nil || r.OpenServices == was.OpenServices {
		return i, err
	}
	r.OpenServices = was.OpenServices
	return r.Ingress()
}

// PortChange is what becomes different about one port of a Sandbox. Nil fields
// stay.
type PortChange struct {
	Port    uint16
	Private *bool
	TLS     *bool
}

// apply returns i as c makes it, or Invalid.
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

// with is ports with p among them, or without it.
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
			return false // an IPv6 address needs its brackets, and nothing else has any
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
