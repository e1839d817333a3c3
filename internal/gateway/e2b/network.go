package e2b

import (
	"errors"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// allTraffic is E2B's notation for "every address", and anything is ours.
const (
	allTraffic = "0.0.0.0/0"
	anything   = "*"
)

// egressBody has the destinations that a Sandbox may connect to.
type egressBody struct {
	AllowOut    []string   `json:"allowOut"`
	DenyOut     []string   `json:"denyOut"`
	DNSServers  []string   `json:"dnsServers"`
	EgressProxy any        `json:"egressProxy"`
	Rules       transforms `json:"rules"`
}

// networkBody is the requested network of a Sandbox.
type networkBody struct {
	egressBody
	AllowPublicTraffic *bool   `json:"allowPublicTraffic"`
	MaskRequestHost    *string `json:"maskRequestHost"`
	HTTPSPorts         []int64 `json:"httpsPorts"`
}

// ingress are the access rules of the ports. open: anyone who knows the ID may use the
// services inside, too.
func (n *networkBody) ingress(open bool) (sandbox.Ingress, error) {
	rules := sandbox.IngressRules{Private: n.AllowPublicTraffic != nil && !*n.AllowPublicTraffic, OpenServices: open}
	if rules.Private && open {
		return "", sandbox.Errorf(sandbox.Invalid, "network.allowPublicTraffic false needs secure true")
	}
	if n.MaskRequestHost != nil {
		if rules.Host = *n.MaskRequestHost; rules.Host == "" {
			return "", sandbox.Errorf(sandbox.Invalid, "network.maskRequestHost is empty: leave it out, or name HOST or HOST:PORT")
		}
	}
	for _, p := range n.HTTPSPorts {
		if p < 1 || p > math.MaxUint16 {
			return "", sandbox.Errorf(sandbox.Invalid, "network.httpsPorts: %d is not a port, which is a number from 1 to 65535", p)
		}
		rules.TLSPorts = append(rules.TLSPorts, uint16(p))
	}
	if _, err := (sandbox.IngressRules{Host: rules.Host}).Ingress(); err != nil {
		return "", named("network.maskRequestHost", err)
	}
	ingress, err := rules.Ingress()
	return ingress, named("network.httpsPorts", err)
}

// named is err, which a client will see, with the name of its field.
func named(field string, err error) error {
	var told *sandbox.Error
	if !errors.As(err, &told) {
		return err
	}
	return sandbox.Errorf(told.Code, "%s: %s", field, told.Detail)
}

func (b *egressBody) refuse() error {
	switch {
	case len(b.DNSServers) > 0:
		return unsupported("network.dnsServers")
	case b.EgressProxy != nil:
		return unsupported("network.egressProxy")
	}
	return nil
}

// policy combines b and the switch for the Internet, which may be nil. Allow wins over
// deny.
func (b *egressBody) policy(internet *bool) (sandbox.NetworkPolicy, error) {
	if err := b.refuse(); err != nil {
		return "", err
	}
	rules := sandbox.NetworkRules{Mode: sandbox.NetworkPublic, Internet: internet}
	for _, target := range b.DenyOut {
		rule, ok := addressRule(target)
		if !ok {
			return "", sandbox.Errorf(sandbox.Invalid, "denyOut: %.64q is neither an address nor a CIDR", target)
		}
		rules.Deny = append(rules.Deny, rule)
	}
	if internet != nil && !*internet {
		rules.Deny = append(rules.Deny, anything)
	}
	for _, target := range b.AllowOut {
		rule, ok := addressRule(target)
		if !ok {
			if !slices.Contains(rules.Deny, anything) {
				return "", sandbox.Errorf(sandbox.Invalid, "allowOut: the domain %.64q needs ALL_TRAFFIC (%s) in denyOut", target, allTraffic)
			}
			if rule, ok = domainRule(target); !ok {
				return "", sandbox.Errorf(sandbox.Invalid, "allowOut: %.64q is neither an address, a CIDR nor a domain", target)
			}
		}
		rules.Allow = append(rules.Allow, rule)
	}
	if len(rules.Allow) == 0 && slices.Contains(rules.Deny, anything) {
		return sandbox.NetworkNone, nil
	}
	return rules.Policy()
}

// addressRule is the rule for an address or a CIDR; false for anything else.
func addressRule(target string) (string, bool) {
	if target == allTraffic {
		return anything, true
	}
	if addr, err := netip.ParseAddr(target); err == nil && addr.Zone() == "" {
		return addr.Unmap().String(), true
	}
	prefix, err := netip.ParsePrefix(target)
	return prefix.Masked().String(), err == nil
}

// domainRule is the rule for a domain without a port.
func domainRule(target string) (string, bool) {
	rule, err := sandbox.ParseNetworkRule(target)
	return target, err == nil && rule.Domain != "" && !strings.Contains(target, ":")
}

// networkView is a Sandbox's network for its owner.
type networkView struct {
	AllowPublicTraffic bool       `json:"allowPublicTraffic"`
	MaskRequestHost    string     `json:"maskRequestHost,omitempty"`
	HTTPSPorts         []uint16   `json:"httpsPorts,omitempty"`
	AllowOut           []string   `json:"allowOut,omitempty"`
	DenyOut            []string   `json:"denyOut,omitempty"`
	Rules              transforms `json:"rules,omitempty"`
}

// networkOf shows the rules for both directions, and the uses of secrets; without any,
// view is nil. internet is the requested switch for the Internet, false if nothing is
// allowed, and nil if it was never set.
func networkOf(sb sandbox.Sandbox) (view *networkView, internet *bool) {
	ports, err := sb.Ingress.Rules()
	seen := networkView{AllowPublicTraffic: err == nil && !ports.Private, MaskRequestHost: ports.Host, HTTPSPorts: ports.TLSPorts}
	ports.OpenServices = false // the missing token shows that
	if shown, _ := ports.Ingress(); err != nil || shown != "" || sb.Secrets != "" {
		view = &seen
		view.Rules = transformsOf(sb.Secrets)
	}
	rules, err := sb.Network.Rules()
	switch {
	case err != nil || sb.Network == sandbox.NetworkPublic:
		return view, nil
	case sb.Network == sandbox.NetworkNone:
		seen.DenyOut = []string{allTraffic}
		return &seen, new(false)
	case rules.Mode == sandbox.NetworkPublic && len(rules.Allow)+len(rules.Deny) == 0:
		return view, rules.Internet
	}
	view = &seen
	if rules.Mode == sandbox.NetworkNone {
		rules.Deny = append(rules.Deny, anything)
	}
	view.AllowOut, view.DenyOut = shown(rules.Allow), shown(rules.Deny)
	return view, rules.Internet
}

func shown(rules []string) []string {
	out := slices.Clone(rules)
	for i, r := range out {
		if r == anything {
			out[i] = allTraffic
		}
	}
	return out
}

// SetNetwork answers PUT /sandboxes/{id}/network: absent fields are cleared.
func (a *API) SetNetwork(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		egressBody
		AllowInternetAccess *bool `json:"allow_internet_access"`
	}
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	policy, err := body.policy(body.AllowInternetAccess)
	if err != nil {
		return err
	}
	uses, err := body.Rules.uses()
	if err != nil {
		return err
	}
	if uses, err = a.known(r.Context(), who, uses); err != nil {
		return err
	}
	sb, err := a.running(r, who)
	if err != nil {
		return err
	}
	if _, err := a.Updates.Update(r.Context(), who.Tenant, sb.ID, sandbox.Change{Network: &policy, Secrets: &uses}); err != nil {
		return absent(err, sb.ID)
	}
	return noContent(w)
}
