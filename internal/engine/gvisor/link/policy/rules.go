package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// Ports with a special meaning under rules about names.
const (
	portDNS   = 53
	portHTTP  = 80
	portHTTPS = 443
	portDoT   = 853
)

// Rules decide where one Sandbox may connect to. They are a compiled
// sandbox.NetworkPolicy, and immutable. They do not cover addresses that are refused to
// all (see Public).
type Rules struct {
	open        bool // the default without a matching rule is to allow
	allow, deny []sandbox.NetworkRule
	names       bool // some rule is about names
}

// Compile compiles a policy; Invalid when it is malformed.
func Compile(p sandbox.NetworkPolicy) (*Rules, error) {
	written, err := p.Rules()
	if err != nil {
		return nil, err
	}
	r := &Rules{open: written.Mode == sandbox.NetworkPublic}
	if r.allow, err = parseAll(written.Allow); err != nil {
		return nil, err
	}
	if r.deny, err = parseAll(written.Deny); err != nil {
		return nil, err
	}
	r.names = slices.ContainsFunc(slices.Concat(r.allow, r.deny), func(n sandbox.NetworkRule) bool { return n.Domain != "" })
	return r, nil
}

func parseAll(texts []string) ([]sandbox.NetworkRule, error) {
	out := make([]sandbox.NetworkRule, 0, len(texts))
	for _, t := range texts {
		rule, err := sandbox.ParseNetworkRule(t)
		if err != nil {
			return nil, err
		}
		out = append(out, rule)
	}
	return out, nil
}

// MatchNames reports whether some rule matches host names, so that connections have to show
// their host name.
func (r *Rules) MatchNames() bool { return r.names }

// Verdict is the outcome of a decision.
type Verdict int

const (
	Refused Verdict = iota
	Allowed
	// Undecided: it depends on the first bytes of the connection.
	Undecided
)

// Decision is a Verdict and its reason, in words for a log.
type Decision struct {
	Verdict Verdict
	Reason  string
}

func refuse(format string, args ...any) Decision {
	return Decision{Refused, fmt.Sprintf(format, args...)}
}

func permit(format string, args ...any) Decision {
	return Decision{Allowed, fmt.Sprintf(format, args...)}
}

// Target is the destination of a connection.
type Target struct {
	UDP  bool
	Addr netip.Addr
	Port uint16
	// Names are the unexpired names for which our resolver returned Addr.
	Names []string
}

// Shown is the information in the first bytes of a TCP connection.
type Shown struct {
	Kind Kind
	Name string // lower case; empty: none, or an address
	// Hidden: the real name is encrypted, and Name does not show it.
	Hidden bool
}

// Kind is the protocol of a connection.
type Kind string

const (
	KindTLS   Kind = "tls"
	KindHTTP  Kind = "http"
	KindOther Kind = "other" // also: the other side spoke first
)

// Name decides on a DNS query for a name.
func (r *Rules) Name(name string) Decision {
	byName := func(n sandbox.NetworkRule) bool { return everything(n) || matchesName(n, name) }
	wholly := func(n sandbox.NetworkRule) bool { return !n.NamesPorts() && byName(n) }
	allow, isAllowed := find(r.allow, byName)
	deny, isDenied := find(r.deny, wholly)
	return r.weigh(allow, isAllowed, deny, isDenied)
}

// Connect decides on a connection before it is made. Asked is for TCP only: Show decides
// then.
func (r *Rules) Connect(t Target) Decision {
	d := r.byAddress(t)
	switch {
	case !r.names, r.final(t):
		return d
	case t.UDP:
		return r.datagrams(t, d)
	case d.Verdict == Refused:
		return r.anyName(t, d)
	case !r.deniesNames():
		return d
	case r.namesElsewhere(t):
		return refuse("only the sandbox's own resolver may be used while rules refuse host names")
	case !slices.ContainsFunc(r.deny, func(n sandbox.NetworkRule) bool { return n.Domain != "" && atPort(n, t.Port) }):
		return d
	}
	if only, all := r.onlyRefusedNames(t); all {
		return only
	}
	return Decision{Undecided, d.Reason}
}

// Show decides on a connection for which Connect returned Asked, by its first bytes.
func (r *Rules) Show(t Target, s Shown) Decision {
	d := r.Connect(t)
	if d.Verdict != Undecided {
		return d
	}
	switch {
	case s.Hidden:
		return refuse("the host name is encrypted (ECH), and the rules match host names")
	case s.Name != "":
		return r.shownName(t, s.Name)
	case s.Kind == KindTLS:
		return refuse("a TLS hello without a host name, and the rules match host names")
	case s.Kind == KindHTTP:
		return refuse("an HTTP request without a host name, and the rules match host names")
	}
	return r.nothingShown(t)
}

// byAddress decides by the rules about addresses.
func (r *Rules) byAddress(t Target) Decision {
	allow, isAllowed := find(r.allow, t.matches)
	deny, isDenied := find(r.deny, t.matches)
	return r.weigh(allow, isAllowed, deny, isDenied)
}

// final reports whether a rule about the address decides for every name.
func (r *Rules) final(t Target) bool {
	decisive := r.deny
	if r.open {
		decisive = r.allow
	}
	_, ok := find(decisive, t.matches)
	return ok
}

// weigh decides by the best matching rule of each list. In an open policy deny lists
// exceptions to the default and allow lists exceptions to deny; otherwise allow lists
// exceptions to the default and deny lists exceptions to allow.
func (r *Rules) weigh(allow sandbox.NetworkRule, isAllowed bool, deny sandbox.NetworkRule, isDenied bool) Decision {
	switch {
	case isAllowed && (r.open || !isDenied):
		return permit("allowed by %s", allow)
	case isDenied:
		return refuse("refused by %s", deny)
	case r.open:
		return permit("no rule refuses it")
	}
	return refuse("no rule allows it")
}

// anyName lets a connection to a refused address continue if a name could allow it.
func (r *Rules) anyName(t Target, byAddress Decision) Decision {
	if len(t.Names) == 0 {
		return refuse("%s, and no host name in the sandbox's DNS queries has this address", byAddress.Reason)
	}
	if only, all := r.onlyRefusedNames(t); all {
		return only
	}
	return Decision{Undecided, "the address of an allowed host name"}
}

// onlyRefusedNames returns a refusal, and true, when the address has names and all of
// them are refused.
func (r *Rules) onlyRefusedNames(t Target) (last Decision, all bool) {
	for _, name := range t.Names {
		if last = r.named(t, name); last.Verdict == Allowed {
			return last, false
		}
	}
	return last, len(t.Names) > 0
}

// deniedName returns a refusal, and true, when a rule about names refuses one of the
// address's names.
func (r *Rules) deniedName(t Target) (Decision, bool) {
	for _, name := range t.Names {
		_, named := find(r.deny, func(n sandbox.NetworkRule) bool { return atPort(n, t.Port) && matchesName(n, name) })
		if d := r.named(t, name); named && d.Verdict == Refused {
			return d, true
		}
	}
	return Decision{}, false
}

// namesElsewhere reports whether t is another name server that no rule allows explicitly.
func (r *Rules) namesElsewhere(t Target) bool {
	return (t.Port == portDNS || t.Port == portDoT) && !r.explicit(t)
}

// explicit reports whether a rule allows the address that does not cover all addresses.
func (r *Rules) explicit(t Target) bool {
	_, ok := find(r.allow, func(n sandbox.NetworkRule) bool { return !everything(n) && t.matches(n) })
	return ok
}

// datagrams decides on UDP under rules about names: datagrams are not inspected.
func (r *Rules) datagrams(t Target, byAddress Decision) Decision {
	if byAddress.Verdict == Refused {
		return r.unseen(t, "datagrams show no host name")
	}
	if !r.deniesNames() {
		return byAddress
	}
	if !r.explicit(t) && (t.Port == portHTTPS || r.namesElsewhere(t)) {
		return refuse("QUIC and other name servers hide host names, and the rules refuse host names")
	}
	if d, bad := r.deniedName(t); bad {
		return d
	}
	return byAddress
}

// shownName decides by the name that a connection showed. If only a rule about names
// allows it, our resolver must have returned this address for the name: otherwise a false
// name would reach any server.
func (r *Rules) shownName(t Target, name string) Decision {
	d := r.named(t, name)
	if d.Verdict == Refused || r.byAddress(t).Verdict == Allowed || slices.Contains(t.Names, name) {
		return d
	}
	return refuse("the DNS answer for %s did not contain this address", name)
}

// nothingShown decides on a connection that is neither TLS nor HTTP, or whose other side
// speaks first.
func (r *Rules) nothingShown(t Target) Decision {
	if t.Port == portHTTP || t.Port == portHTTPS {
		return refuse("neither TLS nor HTTP on port %d, and the rules match host names", t.Port)
	}
	d := r.byAddress(t)
	if d.Verdict == Refused {
		return r.unseen(t, "neither TLS nor HTTP")
	}
	if denied, bad := r.deniedName(t); bad {
		return denied
	}
	return d
}

// unseen decides on traffic without a name to an address that is not allowed. It allows
// an address that our resolver returned for a name which a rule allows with this very
// port; never on the ports of HTTP, HTTPS and DNS.
func (r *Rules) unseen(t Target, what string) Decision {
	if slices.Contains([]uint16{portHTTP, portHTTPS, portDNS, portDoT}, t.Port) {
		return refuse("%s: a rule must name the address for port %d", what, t.Port)
	}
	if d, bad := r.deniedName(t); bad {
		return d
	}
	for _, name := range t.Names {
		rule, ok := find(r.allow, func(n sandbox.NetworkRule) bool {
			return n.NamesPorts() && atPort(n, t.Port) && matchesName(n, name)
		})
		if ok {
			return permit("allowed by %s", rule)
		}
	}
	return refuse("%s: a rule must name the address, or the name with port %d", what, t.Port)
}

// named decides on a name at a target, by all rules.
func (r *Rules) named(t Target, name string) Decision {
	matches := func(n sandbox.NetworkRule) bool {
		return t.matches(n) || (atPort(n, t.Port) && matchesName(n, name))
	}
	allow, isAllowed := find(r.allow, matches)
	deny, isDenied := find(r.deny, matches)
	return r.weigh(allow, isAllowed, deny, isDenied)
}

func (r *Rules) deniesNames() bool {
	return slices.ContainsFunc(r.deny, func(n sandbox.NetworkRule) bool { return n.Domain != "" })
}

// matches reports whether n is a rule about addresses that covers t.
func (t Target) matches(n sandbox.NetworkRule) bool {
	return n.Domain == "" && atPort(n, t.Port) && (n.Any || n.Prefix.Contains(t.Addr))
}

// everything reports whether a rule covers all of IPv4.
func everything(n sandbox.NetworkRule) bool {
	return n.Any || (n.Prefix.IsValid() && n.Prefix.Bits() == 0 && n.Prefix.Addr().Is4())
}

func atPort(n sandbox.NetworkRule, port uint16) bool { return n.From <= port && port <= n.To }

func matchesName(n sandbox.NetworkRule, name string) bool {
	if n.Domain == "" {
		return false
	}
	if !n.Below {
		return name == n.Domain
	}
	below := len(name) - len(n.Domain) - 1
	return below > 0 && name[below] == '.' && name[below+1:] == n.Domain
}

// find returns the most specific matching rule: the longest name, or prefix.
func find(rules []sandbox.NetworkRule, matches func(sandbox.NetworkRule) bool) (best sandbox.NetworkRule, ok bool) {
	for _, n := range rules {
		if matches(n) && (!ok || weight(n) > weight(best)) {
			best, ok = n, true
		}
	}
	return best, ok
}

func weight(n sandbox.NetworkRule) int { return cmp.Or(len(n.Domain), n.Prefix.Bits()) }
