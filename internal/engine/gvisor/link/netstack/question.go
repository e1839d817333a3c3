package netstack

import (
	"errors"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link/policy"
)

// Kinds of records without a name in dnsmessage (RFC 9460).
const (
	typeSVCB  dnsmessage.Type = 64
	typeHTTPS dnsmessage.Type = 65
)

// maxAliases bounds the chain of aliases in an answer.
const maxAliases = 16

// dnsQuestion is the question of a guest's query. Its name is in lower case without a
// trailing dot; empty: the root.
type dnsQuestion struct {
	id    uint16
	name  string
	kind  dnsmessage.Type
	class dnsmessage.Class
}

// readQuestion reads a query with exactly one question.
func readQuestion(query []byte) (dnsQuestion, error) {
	var p dnsmessage.Parser
	h, err := p.Start(query)
	if err != nil {
		return dnsQuestion{}, err
	}
	all, err := p.AllQuestions()
	if err != nil {
		return dnsQuestion{}, err
	}
	if len(all) != 1 {
		return dnsQuestion{}, errors.New("not one question")
	}
	return dnsQuestion{h.ID, normalName(all[0].Name), all[0].Type, all[0].Class}, nil
}

func normalName(n dnsmessage.Name) string {
	return strings.ToLower(strings.TrimSuffix(n.String(), "."))
}

// judge refuses, under rules about names, queries that could carry a name past the rules,
// or more data than names do.
func (q dnsQuestion) judge(d policy.Decision) policy.Decision {
	if q.class != dnsmessage.ClassINET {
		return policy.Decision{Verdict: policy.Refused, Reason: "only DNS queries of class IN are allowed while rules match host names"}
	}
	if q.hides() {
		return policy.Decision{Verdict: policy.Refused, Reason: "DNS records for encrypted host names are withheld while rules match host names"}
	}
	switch q.kind {
	case dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeCNAME, dnsmessage.TypeMX, dnsmessage.TypeNS,
		dnsmessage.TypePTR, dnsmessage.TypeSOA, dnsmessage.TypeSRV, dnsmessage.TypeTXT:
		return d
	}
	return policy.Decision{Verdict: policy.Refused, Reason: "DNS records of this type are withheld while rules match host names"}
}

// hides reports whether the answer could contain keys that encrypt names (ECH).
func (q dnsQuestion) hides() bool { return q.kind == typeHTTPS || q.kind == typeSVCB }

// rebuilt writes the query with only the guest's name and kind: without options, flags or
// letter cases that could carry anything else.
func (q dnsQuestion) rebuilt() []byte {
	name, err := dnsmessage.NewName(q.name + ".")
	if err != nil {
		return nil // impossible: it was parsed from a message
	}
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: q.id, RecursionDesired: true})
	_ = b.StartQuestions()
	_ = b.Question(dnsmessage.Question{Name: name, Type: q.kind, Class: q.class})
	out, err := b.Finish()
	if err != nil {
		return nil
	}
	return out
}

// readAddresses calls hold for every address in an answer for the name of q, directly or
// through its aliases.
func readAddresses(a []byte, q dnsQuestion, hold func(netip.Addr, time.Duration)) error {
	var p dnsmessage.Parser
	if _, err := p.Start(a); err != nil {
		return err
	}
	asked, err := p.AllQuestions()
	if err != nil {
		return err
	}
	if len(asked) != 1 || normalName(asked[0].Name) != q.name || asked[0].Type != q.kind {
		return errors.New("the answer to another question")
	}
	known := map[string]bool{q.name: true}
	for {
		h, err := p.AnswerHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return nil
		}
		if err != nil {
			return err
		}
		if !known[normalName(h.Name)] {
			if err := p.SkipAnswer(); err != nil {
				return err
			}
			continue
		}
		ttl := time.Duration(h.TTL) * time.Second
		switch h.Type {
		case dnsmessage.TypeCNAME:
			r, err := p.CNAMEResource()
			if err != nil {
				return err
			}
			if len(known) < maxAliases {
				known[normalName(r.CNAME)] = true
			}
		case dnsmessage.TypeA:
			r, err := p.AResource()
			if err != nil {
				return err
			}
			hold(netip.AddrFrom4(r.A), ttl)
		default: // links carry no IPv6
			if err := p.SkipAnswer(); err != nil {
				return err
			}
		}
	}
}
