package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// NetworkPolicy controls the outgoing connections of a Sandbox: NetworkPublic,
// NetworkNone, or NetworkRules in the form that NetworkRules.Policy writes. Every policy
// refuses private, link-local, metadata, loopback and host addresses unless the operator
// opened them. Equal policies are equal strings, Enforced or not.
type NetworkPolicy string

const (
	NetworkPublic NetworkPolicy = "public" // public addresses
	NetworkNone   NetworkPolicy = "none"   // nowhere; names do not resolve
)

const (
	// MaxNetworkRules bounds the rules of a policy, both lists together.
	MaxNetworkRules = 256
	// maxRuleLen bounds a rule: a name of 253 bytes, a wildcard and ports.
	maxRuleLen = 270
	// maxPolicyLen bounds the text of a policy, in bytes.
	maxPolicyLen = 32 << 10
)

// NetworkRules is a NetworkPolicy with exceptions. Mode is the default for targets
// without a rule. With NetworkPublic, Deny lists exceptions to the default, and Allow
// lists exceptions to Deny. With NetworkNone, Allow lists exceptions to the default, and
// Deny lists exceptions to Allow.
//
// A rule is TARGET or TARGET:PORTS. TARGET is a name, "*." and a name for all
// below it (not itself), an address, a CIDR, or "*" for any; an IPv6 one stands in
// brackets before PORTS, which is one port or FROM-TO.
type NetworkRules struct {
	Mode  NetworkPolicy `json:"mode"` // NetworkPublic or NetworkNone
	Allow []string      `json:"allow,omitempty"`
	Deny  []string      `json:"deny,omitempty"`
	// Internet is the internet switch of E2B clients as requested, kept to return it to
	// them. It has no effect: Mode, Allow and Deny already express it. Nil: not set.
	Internet *bool `json:"internet,omitempty"`
}

// A NetworkRule is one rule, parsed. Exactly one of Any, Domain and Prefix is
// set.
type NetworkRule struct {
	Any      bool
	Domain   string // lower case, without a dot at its end
	Below    bool   // names below Domain, not itself
	Prefix   netip.Prefix
	From, To uint16 // ports; 0 and 65535 when the rule names none
}

// NamesPorts reports whether the rule is limited to certain ports.
func (r NetworkRule) NamesPorts() bool { return r.From != 0 || r.To != math.MaxUint16 }

// String returns the rule in the syntax of ParseNetworkRule, the same for equal rules.
func (r NetworkRule) String() string {
	target := "*"
	switch {
	case r.Domain != "" && r.Below:
		target = "*." + r.Domain
	case r.Domain != "":
		target = r.Domain
	case !r.Any && r.Prefix.IsSingleIP():
		target = r.Prefix.Addr().String()
	case !r.Any:
		target = r.Prefix.String()
	}
	if !r.NamesPorts() {
		return target
	}
	if strings.Contains(target, ":") {
		target = "[" + target + "]"
	}
	if r.From == r.To {
		return fmt.Sprintf("%s:%d", target, r.From)
	}
	return fmt.Sprintf("%s:%d-%d", target, r.From, r.To)
}

// ParseNetworkRule parses one rule, or returns Invalid that says what is wrong.
func ParseNetworkRule(text string) (NetworkRule, error) {
	if len(text) > maxRuleLen {
		return NetworkRule{}, Errorf(Invalid, "a network rule has at most %d bytes", maxRuleLen)
	}
	target, ports, named := splitRule(text)
	r := NetworkRule{To: math.MaxUint16}
	if named {
		var err error
		if r.From, r.To, err = parsePorts(ports); err != nil {
			return r, Errorf(Invalid, "the network rule %q: %s", text, err)
		}
	}
	if target == "*" {
		r.Any = true
		return r, nil
	}
	if prefix, ok := parsePrefix(target); ok {
		if prefix != prefix.Masked() {
			return r, Errorf(Invalid, "the network rule %q: bits are set beyond the prefix; write %s", text, prefix.Masked())
		}
		r.Prefix = prefix
		return r, nil
	}
	name, below := strings.CutPrefix(target, "*.")
	domain, ok := NormalDomain(name)
	if !ok {
		return r, Errorf(Invalid, "the network rule %q: the target must be a name like example.com or *.example.com, an address, a CIDR or *, then perhaps :PORT or :FROM-TO; write names beyond ASCII as xn--", text)
	}
	r.Domain, r.Below = domain, below
	return r, nil
}

// splitRule splits a rule into target and ports. An IPv6 address without brackets has no
// ports.
func splitRule(text string) (target, ports string, named bool) {
	if rest, ok := strings.CutPrefix(text, "["); ok {
		target, ports, ok = strings.Cut(rest, "]")
		if !ok || !strings.Contains(target, ":") {
			return "", "", false
		}
		if ports == "" {
			return target, "", false
		}
		if ports, named = strings.CutPrefix(ports, ":"); !named {
			return "", "", false
		}
		return target, ports, true
	}
	if strings.Count(text, ":") > 1 {
		return text, "", false
	}
	return strings.Cut(text, ":")
}

func parsePorts(text string) (from, to uint16, err error) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(last, 10, 16)
	if errA != nil || errB != nil || a < 1 || b < a {
		return 0, 0, errors.New("ports are one number from 1 to 65535, or FROM-TO")
	}
	return uint16(a), uint16(b), nil
}

func parsePrefix(text string) (netip.Prefix, bool) {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return prefix, !prefix.Addr().Is4In6()
	}
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" || addr.Is4In6() {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(addr, addr.BitLen()), true
}

// NormalDomain returns name in lower case and without a trailing dot. It returns false
// unless name is a host name: labels of letters, digits, '-' and '_', where the last
// label does not begin with a digit.
func NormalDomain(name string) (string, bool) {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if name == "" || len(name) > 253 {
		return "", false
	}
	labels := strings.Split(name, ".")
	for _, l := range labels {
		if l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' {
			return "", false
		}
		for i := range len(l) {
			c := l[i]
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return "", false
			}
		}
	}
	// Some programs parse a name that ends in a number as an address: 1.2.3, 0x7f.1.
	last := labels[len(labels)-1]
	if c := last[0]; c >= '0' && c <= '9' {
		return "", false
	}
	return name, true
}

// Policy returns the rules as a policy, in canonical form and without duplicates, or
// Invalid that says what is wrong.
func (r NetworkRules) Policy() (NetworkPolicy, error) {
	if r.Mode != NetworkPublic && r.Mode != NetworkNone {
		return "", Errorf(Invalid, "network.mode must be %q or %q", NetworkPublic, NetworkNone)
	}
	if len(r.Allow)+len(r.Deny) > MaxNetworkRules {
		return "", Errorf(Invalid, "a network may have at most %d rules", MaxNetworkRules)
	}
	allow, err := normalRules(r.Allow)
	if err != nil {
		return "", err
	}
	deny, err := normalRules(r.Deny)
	if err != nil {
		return "", err
	}
	if len(allow) == 0 && len(deny) == 0 && r.Internet == nil {
		return r.Mode, nil
	}
	text, err := json.Marshal(NetworkRules{Mode: r.Mode, Allow: allow, Deny: deny, Internet: r.Internet})
	if err != nil {
		return "", err
	}
	if len(text) > maxPolicyLen {
		return "", Errorf(Invalid, "the rules of a network may have at most %d bytes in all", maxPolicyLen)
	}
	return NetworkPolicy(text), nil
}

func normalRules(texts []string) ([]string, error) {
	var out []string
	seen := map[string]bool{}
	for _, text := range texts {
		rule, err := ParseNetworkRule(text)
		if err != nil {
			return nil, err
		}
		if normal := rule.String(); !seen[normal] {
			seen[normal] = true
			out = append(out, normal)
		}
	}
	return out, nil
}

// ParseNetworkPolicy parses NetworkPublic, NetworkNone, or rules as JSON.
func ParseNetworkPolicy(text string) (NetworkPolicy, error) {
	if !strings.HasPrefix(text, "{") {
		p := NetworkPolicy(text)
		return p, p.check()
	}
	rules, err := parseRules(text)
	if err != nil {
		return "", err
	}
	if rules.Internet != nil {
		return "", errNoPolicy
	}
	return rules.Policy()
}

var errNoPolicy = Errorf(Invalid, "network must be %q, %q, or an object of mode, allow and deny, the last two lists of strings", NetworkPublic, NetworkNone)

func parseRules(text string) (NetworkRules, error) {
	var rules NetworkRules
	if len(text) > maxPolicyLen {
		return rules, Errorf(Invalid, "the rules of a network may have at most %d bytes in all", maxPolicyLen)
	}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&rules); err != nil {
		return rules, errNoPolicy
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return rules, Errorf(Invalid, "network has more text after its object")
	}
	return rules, nil
}

// Rules parses p; Invalid when it is not a policy.
func (p NetworkPolicy) Rules() (NetworkRules, error) {
	if p == NetworkPublic || p == NetworkNone {
		return NetworkRules{Mode: p}, nil
	}
	rules, err := parseRules(string(p))
	if err != nil {
		return NetworkRules{}, err
	}
	normal, err := rules.Policy()
	if err == nil && normal != p {
		err = Errorf(Invalid, "the network rules are not in canonical form")
	}
	return rules, err
}

// Enforced returns p without NetworkRules.Internet, which has no effect. An invalid
// policy is returned unchanged.
func (p NetworkPolicy) Enforced() NetworkPolicy {
	rules, err := p.Rules()
	if err != nil {
		return p
	}
	rules.Internet = nil
	plain, err := rules.Policy()
	if err != nil {
		return p
	}
	return plain
}

// Valid reports whether p is a policy.
func (p NetworkPolicy) Valid() bool {
	_, err := p.Rules()
	return err == nil
}

func (p NetworkPolicy) check() error {
	if p == NetworkPublic || p == NetworkNone {
		return nil
	}
	if !strings.HasPrefix(string(p), "{") {
		return Errorf(Invalid, "network must be %q, %q, or an object with mode, allow and deny", NetworkPublic, NetworkNone)
	}
	_, err := p.Rules()
	return err
}

// NetworkDecision is a decision of a Sandbox's policy, perhaps repeated.
type NetworkDecision struct {
	Seq      int64 // increases by one with each decision
	First    time.Time
	Last     time.Time
	Count    int64  // repetitions from First to Last
	Protocol string // "dns", "tcp" or "udp"
	Name     string // looked up or shown by the client; may be empty
	Addr     netip.Addr
	Port     uint16
	Allowed  bool
	Reason   string // human-readable
}

// NetworkLog holds the decisions about a Sandbox that its link shard still has: the
// latest MaxNetworkLog, oldest first.
type NetworkLog struct {
	Decisions        []NetworkDecision
	Allowed, Refused int64 // totals since the link was attached
}

// MaxNetworkLog bounds the decisions that are kept for a Boot.
const MaxNetworkLog = 256
