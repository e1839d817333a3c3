package sandbox

import (
	"errors"
	"strings"
	"testing"
)

func TestParseNetworkRule(t *testing.T) {
	for text, want := range map[string]string{
		"example.com":           "example.com",
		"Example.COM.":          "example.com",
		"*.example.com":         "*.example.com",
		"*.example.com:443":     "*.example.com:443",
		"example.com:80-90":     "example.com:80-90",
		"example.com:1-65535":   "example.com:1-65535",
		"xn--bcher-kva.example": "xn--bcher-kva.example",
		"_dmarc.example.com":    "_dmarc.example.com",
		"localhost":             "localhost",
		"*":                     "*",
		"*:25":                  "*:25",
		"1.2.3.4":               "1.2.3.4",
		"1.2.3.4/32:53":         "1.2.3.4:53",
		"1.2.3.0/24":            "1.2.3.0/24",
		"0.0.0.0/0":             "0.0.0.0/0",
		"2606:4700::1111":       "2606:4700::1111",
		"2606:4700::/32":        "2606:4700::/32",
		"[2606:4700::/32]:443":  "[2606:4700::/32]:443",
		"[2606:4700::1]":        "2606:4700::1",

		"": "", ":443": "", "example.com:": "", "example.com:0": "", "example.com:65536": "", "example.com:9-8": "",
		"example.com:a": "", "example.com:1-": "", "example.com:+1": "", "*example.com": "", "a.*.example.com": "", "**": "",
		"exa mple.com": "", "bücher.example": "", "-a.example": "", "a-.example": "", "a..example": "", ".example": "",
		"1.2.3": "", "0x7f.1": "", "1.2.3.4.5": "", "1.2.3.4/33": "", "1.2.3.4/24": "", "::ffff:1.2.3.4": "", "fe80::1%eth0": "",
		"http://example.com": "", "example.com/path": "", "[example.com]:80": "", "[2606::1": "", "[2606::1]80": "", "a\x00b": "",
		strings.Repeat("a", 64) + ".example": "", strings.Repeat("a.", 130) + "example": "",
	} {
		rule, err := ParseNetworkRule(text)
		switch {
		case want == "" && !errors.Is(err, Invalid):
			t.Errorf("%q is the rule %q", text, rule)
		case want != "" && err != nil:
			t.Errorf("%q: %v", text, err)
		case want != "" && rule.String() != want:
			t.Errorf("%q is %q, want %q", text, rule, want)
		}
	}
}

func FuzzParseNetworkRule(f *testing.F) {
	for _, s := range []string{"*.example.com:443", "[2606::/32]:1-2", "1.2.3.4/32", "*"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rule, err := ParseNetworkRule(text)
		if err != nil {
			return
		}
		again, err := ParseNetworkRule(rule.String())
		if err != nil || again != rule {
			t.Errorf("%q is %q, which is %+v, %v", text, rule, again, err)
		}
	})
}

func TestParseNetworkPolicy(t *testing.T) {
	many := `{"mode":"none","allow":[` + strings.Repeat(`"a.example",`, MaxNetworkRules) + `"b.example"]}`
	for text, want := range map[string]string{
		"public":          "public",
		"none":            "none",
		`{"mode":"none"}`: "none",
		`{"mode":"public","allow":[],"deny":null}`:                               "public",
		`{"deny":["Bad.Example"],"mode":"public"}`:                               `{"mode":"public","deny":["bad.example"]}`,
		`{"mode":"none","allow":["a.example:443","a.example:443","1.2.3.4/32"]}`: `{"mode":"none","allow":["a.example:443","1.2.3.4"]}`,

		"": "", "all": "", "{}": "", `{"mode":"open"}`: "", `{"mode":"none","allow":"a.example"}`: "", `{"mode":"none","extra":1}`: "",
		`{"mode":"public","internet":true}`: "", // which only E2B's clients have
		`{"mode":"none"} x`:                 "", `{"mode":"none","allow":[""]}`: "", `{"mode":"none","allow":[1]}`: "", many: "",
		`{"mode":"none","allow":["` + strings.Repeat("a", maxPolicyLen) + `"]}`: "",
	} {
		p, err := ParseNetworkPolicy(text)
		switch {
		case want == "" && !errors.Is(err, Invalid):
			t.Errorf("%.80q is the policy %q", text, p)
		case want != "" && (err != nil || string(p) != want):
			t.Errorf("%q is %q, %v, want %q", text, p, err, want)
		case want != "" && !p.Valid():
			t.Errorf("%q is not valid", p)
		}
	}
	if NetworkPolicy(`{"mode":"none","allow":["A.example"]}`).Valid() {
		t.Error("a policy that is not in canonical form is valid")
	}
}

// The internet flag of E2B's clients is kept beside the rules, and does not change them.
func TestEnforcedPolicy(t *testing.T) {
	for p, want := range map[NetworkPolicy]NetworkPolicy{
		"public": "public", "none": "none", "": "", "other": "other",
		`{"mode":"none","allow":["a.example"]}`: `{"mode":"none","allow":["a.example"]}`,

		`{"mode":"public","internet":true}`:                                   "public",
		`{"mode":"public","allow":["1.1.1.1"],"deny":["*"],"internet":false}`: `{"mode":"public","allow":["1.1.1.1"],"deny":["*"]}`,
	} {
		if got := p.Enforced(); got != want {
			t.Errorf("%s is enforced as %s, want %s", p, got, want)
		}
	}
}
