package policy

import (
	"net/netip"
	"strings"
	"testing"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// compile parses "public", "none", or "MODE +RULE -RULE" to Rules: + allows, - denies.
func compile(t testing.TB, text string) *Rules {
	t.Helper()
	fields := strings.Fields(text)
	written := sandbox.NetworkRules{Mode: sandbox.NetworkPolicy(fields[0])}
	for _, f := range fields[1:] {
		if rule, ok := strings.CutPrefix(f, "+"); ok {
			written.Allow = append(written.Allow, rule)
		} else {
			written.Deny = append(written.Deny, strings.TrimPrefix(f, "-"))
		}
	}
	p, err := written.Policy()
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	r, err := Compile(p)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return r
}

// target parses "tcp:1.2.3.4:443 name name".
func target(t testing.TB, text string) Target {
	t.Helper()
	fields := strings.Fields(text)
	protocol, at, _ := strings.Cut(fields[0], ":")
	addr, err := netip.ParseAddrPort(at)
	if err != nil {
		t.Fatal(err)
	}
	return Target{UDP: protocol == "udp", Addr: addr.Addr(), Port: addr.Port(), Names: fields[1:]}
}

const (
	list  = "none +example.com +*.cdn.example -secret.cdn.example +db.example:5432 +9.9.9.0/24:443 +4.4.4.4"
	block = "public -bad.example -*.bad.example -6.6.6.0/24 -mail.example:25 +6.6.6.6 +good.bad.example"
	only  = "public -* +example.com" // as other services write an allow list
)

func TestNames(t *testing.T) {
	for _, tt := range []struct {
		rules, name string
		want        Verdict
	}{
		{"public", "example.com", Allowed},
		{"none", "example.com", Refused},
		{"none +1.2.3.4", "example.com", Refused},
		{"none +*:443", "example.com", Allowed},
		{"none +0.0.0.0/0", "example.com", Allowed},
		{list, "example.com", Allowed},
		{list, "www.example.com", Refused},
		{list, "example.com.evil.example", Refused},
		{list, "notexample.com", Refused},
		{list, "a.cdn.example", Allowed},
		{list, "a.b.cdn.example", Allowed},
		{list, "cdn.example", Refused},
		{list, "evilcdn.example", Refused},
		{list, "secret.cdn.example", Refused},
		{list, "db.example", Allowed},
		{block, "example.com", Allowed},
		{block, "bad.example", Refused},
		{block, "a.bad.example", Refused},
		{block, "good.bad.example", Allowed},
		{block, "mail.example", Allowed}, // one port only is refused
		{only, "example.com", Allowed},
		{only, "other.example", Refused},
		{"public -0.0.0.0/0 +example.com", "other.example", Refused},
	} {
		if d := compile(t, tt.rules).Name(tt.name); d.Verdict != tt.want || d.Reason == "" {
			t.Errorf("%s: %s is %v (%s), want %v", tt.rules, tt.name, d.Verdict, d.Reason, tt.want)
		}
	}
}

func TestConnect(t *testing.T) {
	for _, tt := range []struct {
		rules, target string
		want          Verdict
	}{
		{"public", "tcp:1.1.1.1:443", Allowed},
		{"public", "udp:1.1.1.1:443", Allowed},
		{"none", "tcp:1.1.1.1:443", Refused},
		{"none", "udp:1.1.1.1:53", Refused},
		{"none +1.1.1.0/24", "tcp:1.1.1.1:443", Allowed},
		{"none +1.1.1.0/24", "tcp:1.1.2.1:443", Refused},
		{"none +1.1.1.0/24:80-90", "tcp:1.1.1.1:79", Refused},
		{"none +1.1.1.0/24:80-90", "tcp:1.1.1.1:80", Allowed},
		{"none +1.1.1.0/24:80-90", "tcp:1.1.1.1:90", Allowed},
		{"none +1.1.1.0/24:80-90", "tcp:1.1.1.1:91", Refused},
		{"none +1.1.1.0/24 -1.1.1.1", "tcp:1.1.1.1:80", Refused},
		{"none +*:443", "tcp:1.1.1.1:443", Allowed},
		{"none +*:443", "tcp:1.1.1.1:80", Refused},
		{"public -1.1.1.0/24", "tcp:1.1.1.1:80", Refused},
		{"public -1.1.1.0/24 +1.1.1.1", "tcp:1.1.1.1:80", Allowed},
		{"public -*:25", "tcp:1.1.1.1:25", Refused},
		{"public -*:25", "tcp:1.1.1.1:26", Allowed},

		// Rules allow names: the address must come from our resolver, and the name must be
		// shown.
		{list, "tcp:1.1.1.1:443", Refused}, // an address typed in
		{list, "tcp:1.1.1.1:443 example.com", Undecided},
		{list, "tcp:1.1.1.1:443 other.example", Refused},
		{list, "tcp:1.1.1.1:443 other.example example.com", Undecided}, // several names share the address
		{list, "tcp:1.1.1.1:443 secret.cdn.example", Refused},
		{list, "tcp:9.9.9.9:443", Undecided}, // by its address, unless the name is refused
		{list, "tcp:9.9.9.9:80", Refused},
		{list, "tcp:1.1.1.1:443 db.example", Refused}, // another port
		{list, "tcp:1.1.1.1:5432 db.example", Undecided},
		{list, "tcp:1.1.1.1:53", Refused},
		{list, "udp:1.1.1.1:443 example.com", Refused}, // QUIC
		{list, "udp:1.1.1.1:123 example.com", Refused}, // the rule names no port
		{list, "udp:1.1.1.1:5432 db.example", Allowed},
		{list, "udp:4.4.4.4:53", Allowed}, // allowed by its address
		{"none +a.example:443", "udp:1.1.1.1:443 a.example", Refused},
		{"none +a.example:53", "udp:1.1.1.1:53 a.example", Refused},

		// Rules deny names.
		{block, "tcp:1.1.1.1:443", Undecided},
		{block, "tcp:1.1.1.1:443 bad.example", Refused},
		{block, "tcp:1.1.1.1:443 bad.example fine.example", Undecided},
		{block, "tcp:6.6.6.7:443", Refused},
		{block, "tcp:6.6.6.6:443", Allowed},
		{block, "tcp:1.1.1.1:53", Refused},
		{block, "tcp:1.1.1.1:853", Refused},
		{block, "udp:1.1.1.1:53", Refused},
		{block, "udp:1.1.1.1:443", Refused},
		{block, "udp:1.1.1.1:123", Allowed},
		{block, "udp:1.1.1.1:123 bad.example fine.example", Refused},
		{"public -mail.example:25", "tcp:1.1.1.1:443", Allowed},
		{"public -mail.example:25", "tcp:1.1.1.1:25", Undecided},
		{"public -mail.example:25", "tcp:1.1.1.1:25 mail.example", Refused},
		{"none +* -bad.example", "tcp:1.1.1.1:53", Refused},
		{"none +* -bad.example", "tcp:1.1.1.1:443", Undecided},

		{only, "tcp:1.1.1.1:443", Refused},
		{only, "tcp:1.1.1.1:443 example.com", Undecided},
		{only, "udp:1.1.1.1:443 example.com", Refused},
	} {
		if d := compile(t, tt.rules).Connect(target(t, tt.target)); d.Verdict != tt.want || d.Reason == "" {
			t.Errorf("%s: %s is %v (%s), want %v", tt.rules, tt.target, d.Verdict, d.Reason, tt.want)
		}
	}
}

func TestShow(t *testing.T) {
	const at = "tcp:1.1.1.1:443 example.com a.cdn.example"
	tls := func(name string) Shown { return Shown{Kind: KindTLS, Name: name} }
	web := func(name string) Shown { return Shown{Kind: KindHTTP, Name: name} }
	other := Shown{Kind: KindOther}
	for _, tt := range []struct {
		rules, target string
		shown         Shown
		want          Verdict
	}{
		{list, at, tls("example.com"), Allowed},
		{list, at, tls("a.cdn.example"), Allowed},
		{list, at, tls("b.cdn.example"), Refused}, // allowed, but not at this address
		{list, at, tls("evil.example"), Refused},
		{list, at, tls(""), Refused},
		{list, at, Shown{Kind: KindTLS, Name: "example.com", Hidden: true}, Refused},
		{list, at, other, Refused},
		{list, "tcp:1.1.1.1:80 example.com", web("example.com"), Allowed},
		{list, "tcp:1.1.1.1:80 example.com", web("evil.example"), Refused},
		{list, "tcp:1.1.1.1:80 example.com", web(""), Refused},
		{list, "tcp:1.1.1.1:80 example.com", other, Refused},
		{list, "tcp:1.1.1.1:8443 example.com", tls("example.com"), Allowed},
		{list, "tcp:1.1.1.1:8443 example.com", other, Refused},
		{list, "tcp:1.1.1.1:5432 db.example", other, Allowed}, // the rule names the port
		{list, "tcp:1.1.1.1:5432 db.example", tls("evil.example"), Refused},
		{list, "tcp:9.9.9.9:443", tls("whatever.example"), Allowed}, // by its address
		{list, "tcp:9.9.9.9:443", tls("secret.cdn.example"), Refused},
		{list, "tcp:9.9.9.9:443", tls(""), Refused},
		{list, "tcp:1.1.1.1:443", tls("example.com"), Refused},
		{"none +a.example:80", "tcp:1.1.1.1:80 a.example", other, Refused}, // a web port always shows

		{block, "tcp:1.1.1.1:443", tls("fine.example"), Allowed},
		{block, "tcp:1.1.1.1:443", tls("bad.example"), Refused},
		{block, "tcp:1.1.1.1:443", tls("a.bad.example"), Refused},
		{block, "tcp:1.1.1.1:443", tls("good.bad.example"), Allowed},
		{block, "tcp:1.1.1.1:443", tls(""), Refused},
		{block, "tcp:1.1.1.1:443 bad.example fine.example", tls("fine.example"), Allowed},
		{block, "tcp:1.1.1.1:22", other, Allowed},
		{block, "tcp:1.1.1.1:22 bad.example fine.example", other, Refused},
		{block, "tcp:1.1.1.1:80", other, Refused},
		{only, "tcp:1.1.1.1:443 example.com", tls("example.com"), Allowed},
		{only, "tcp:1.1.1.1:443 example.com", tls("other.example"), Refused},
	} {
		if d := compile(t, tt.rules).Show(target(t, tt.target), tt.shown); d.Verdict != tt.want || d.Reason == "" {
			t.Errorf("%s: %s showing %+v is %v (%s), want %v", tt.rules, tt.target, tt.shown, d.Verdict, d.Reason, tt.want)
		}
	}
}

func TestCompileRefusesWhatIsNoPolicy(t *testing.T) {
	for _, p := range []sandbox.NetworkPolicy{"", "all", "{}", `{"mode":"none","allow":["A.example"]}`} {
		if _, err := Compile(p); err == nil {
			t.Errorf("%q makes rules", p)
		}
	}
}
