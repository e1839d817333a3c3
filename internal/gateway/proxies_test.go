package gateway_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
)

func prefixes(text ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range text {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func TestAddressBehindProxies(t *testing.T) {
	t.Parallel()
	trusted := prefixes("10.0.0.0/8", "127.0.0.1/32", "2001:db8::/32")
	for _, tt := range []struct {
		name, peer string
		headers    []string // pairs
		want       string
	}{
		{"no proxy", "198.51.100.1:5", nil, "198.51.100.1:5"},
		{"a client that claims", "198.51.100.1:5", []string{"X-Forwarded-For", "203.0.113.1"}, "198.51.100.1:5"},
		{"a client that claims, by Forwarded", "198.51.100.1:5", []string{"Forwarded", "for=203.0.113.1"}, "198.51.100.1:5"},
		{"a proxy that says nothing", "10.1.1.1:5", nil, "10.1.1.1:5"},
		{"a proxy", "10.1.1.1:5", []string{"X-Forwarded-For", "203.0.113.1"}, "203.0.113.1:0"},
		{"a proxy by an IPv4-mapped address", "[::ffff:10.1.1.1]:5", []string{"X-Forwarded-For", "203.0.113.1"}, "203.0.113.1:0"},
		{"from the right", "10.1.1.1:5", []string{"X-Forwarded-For", "192.0.2.9, 203.0.113.1"}, "203.0.113.1:0"},
		{"two headers are one list", "10.1.1.1:5", []string{"X-Forwarded-For", "192.0.2.9", "X-Forwarded-For", "203.0.113.1"}, "203.0.113.1:0"},
		{"two proxies", "10.1.1.1:5", []string{"X-Forwarded-For", "192.0.2.9, 203.0.113.1, 10.2.2.2"}, "203.0.113.1:0"},
		{"proxies alone", "10.1.1.1:5", []string{"X-Forwarded-For", "10.3.3.3, 10.2.2.2"}, "10.3.3.3:0"},
		{"what is no address", "10.1.1.1:5", []string{"X-Forwarded-For", "203.0.113.1, unknown"}, "10.1.1.1:5"},
		{"what is no address, further away", "10.1.1.1:5", []string{"X-Forwarded-For", "203.0.113.1, , 10.2.2.2"}, "10.2.2.2:0"},
		{"with a port", "10.1.1.1:5", []string{"X-Forwarded-For", "203.0.113.1:4711"}, "203.0.113.1:0"},
		{"IPv6", "10.1.1.1:5", []string{"X-Forwarded-For", "2001:db9::7"}, "[2001:db9::7]:0"},
		{"IPv6 with a port", "10.1.1.1:5", []string{"X-Forwarded-For", "[2001:db9::7]:4711"}, "[2001:db9::7]:0"},
		{"IPv6 with a zone", "10.1.1.1:5", []string{"X-Forwarded-For", "fe80::1%x"}, "[fe80::1]:0"},
		{"an IPv6 proxy", "[2001:db8::1]:5", []string{"X-Forwarded-For", "203.0.113.1"}, "203.0.113.1:0"},
		{"Forwarded", "10.1.1.1:5", []string{"Forwarded", `for=192.0.2.9, For="203.0.113.1:80";proto=https;by=10.1.1.1`}, "203.0.113.1:0"},
		{"Forwarded, IPv6", "10.1.1.1:5", []string{"Forwarded", `proto=http; for="[2001:db9::7]:80"`}, "[2001:db9::7]:0"},
		{"Forwarded, hidden", "10.1.1.1:5", []string{"Forwarded", `for=203.0.113.1, for=_hidden`}, "10.1.1.1:5"},
		{"Forwarded, twice in one", "10.1.1.1:5", []string{"Forwarded", `for=203.0.113.1;for=203.0.113.2`}, "10.1.1.1:5"},
		{"Forwarded, a quoted comma", "10.1.1.1:5", []string{"Forwarded", `for=203.0.113.1;x=",for=192.0.2.9"`}, "192.0.2.9:0"}, // what a proxy of ours wrote
		{"both, the same", "10.1.1.1:5", []string{"Forwarded", "for=203.0.113.1", "X-Forwarded-For", "203.0.113.1"}, "203.0.113.1:0"},
		{"both, not the same", "10.1.1.1:5", []string{"Forwarded", "for=192.0.2.9", "X-Forwarded-For", "203.0.113.1"}, "10.1.1.1:5"},
	} {
		r := &http.Request{RemoteAddr: tt.peer, Header: http.Header{}}
		for i := 0; i < len(tt.headers); i += 2 {
			r.Header.Add(tt.headers[i], tt.headers[i+1])
		}
		if got := gateway.FromClient(trusted, r); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		if r.RemoteAddr != tt.peer {
			t.Errorf("%s: the request itself was changed", tt.name)
		}
		if got := gateway.FromClient(nil, r); got != tt.peer {
			t.Errorf("%s, where no proxy is trusted: %s", tt.name, got)
		}
	}
}

// Requests from an address do not count against the rate limit of a key that is used
// there. Requests with wrong credentials count against the limit of the address.
func TestTokenLimitIsTheKeys(t *testing.T) {
	t.Parallel()
	rules := ratelimit.Rules{ratelimit.Token: {PerSecond: 0.001, Burst: 5}}
	f := newFixture(t, func(c *gateway.Config) { c.Limits, c.Dev = rules, false })
	mint := func(headers ...string) int {
		return f.With("POST", "/api/v1/auth/token", `{"user_id":"a","role":"user"}`, headers...).Status
	}
	count := func(n int, headers ...string) string {
		all := map[int]int{}
		for range n {
			all[mint(headers...)]++
		}
		return fmt.Sprint(all)
	}
	if got := count(7); got != "map[403:5 429:2]" {
		t.Errorf("without a credential: %s", got)
	}
	admin := f.Key("acme", sandbox.RoleAdmin)
	if got := count(7, "X-API-Key", sandbox.NewKeySecret()); got != "map[429:7]" {
		t.Errorf("wrong keys: %s", got)
	}
	if got := count(6, "X-API-Key", admin); got != "map[200:5 429:1]" {
		t.Errorf("a key at that address: %s", got)
	}
	if got := count(6, "Authorization", "Bearer "+f.Key("acme", sandbox.RoleAdmin)); got != "map[200:5 429:1]" {
		t.Errorf("another key: %s", got)
	}
}

// Behind a proxy that is trusted each client has its own limit; a client that makes
// up where it comes from keeps its own.
func TestLimitsBehindAProxy(t *testing.T) {
	t.Parallel()
	rules := ratelimit.Rules{ratelimit.Token: {PerSecond: 0.001, Burst: 2}}
	wrong := func(f *fixture, from string) int {
		return f.With("GET", "/api/v1/sessions", "", "X-API-Key", sandbox.NewKeySecret(), "X-Forwarded-For", from).Status
	}
	f := newFixture(t, func(c *gateway.Config) { c.Limits, c.TrustedProxies = rules, prefixes("127.0.0.0/8", "::1/128") })
	for i, want := range []int{401, 401, 429} {
		if got := wrong(f, fmt.Sprintf("192.0.2.%d, 203.0.113.1", i)); got != want {
			t.Errorf("attempt %d: %d, want %d", i, got, want)
		}
	}
	if got := wrong(f, "203.0.113.2"); got != 401 {
		t.Errorf("another client: %d", got)
	}
	for i, want := range []int{401, 401, 429} {
		if got := wrong(f, fmt.Sprintf("2001:db8:1:2:%x::1", i)); got != want {
			t.Errorf("attempt %d of one /64: %d, want %d", i, got, want)
		}
	}
	if got := wrong(f, "2001:db8:1:3::1"); got != 401 {
		t.Errorf("another /64: %d", got)
	}
	if log := f.Audit(); len(log) != 6 || log[0].Remote != "203.0.113.1" || log[5].Remote != "2001:db8:1:3::1" {
		t.Errorf("the audit log has %+v", log)
	}
	f = newFixture(t, func(c *gateway.Config) { c.Limits = rules })
	for i, want := range []int{401, 401, 429} {
		if got := wrong(f, fmt.Sprintf("203.0.113.%d", i)); got != want {
			t.Errorf("attempt %d where no proxy is trusted: %d, want %d", i, got, want)
		}
	}
	for _, e := range f.Audit() {
		if e.Remote != "127.0.0.1" {
			t.Errorf("the audit log has %+v", e)
		}
	}
}

// Only a trusted proxy decides whether a client uses https. Links and cookies follow it.
func TestSchemeBehindProxies(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		trusted []netip.Prefix
		says    string
		want    string
	}{
		"a client that claims":         {nil, "https", "http://"},
		"one that is no trusted proxy": {prefixes("10.0.0.0/8"), "https", "http://"},
		"a proxy":                      {prefixes("127.0.0.0/8", "::1/128"), "https", "https://"},
		"a proxy that speaks http":     {prefixes("127.0.0.0/8", "::1/128"), "http", "http://"},
		"a proxy that says nothing":    {prefixes("127.0.0.0/8", "::1/128"), "", "http://"},
		"a proxy in large letters":     {prefixes("127.0.0.0/8", "::1/128"), "HTTPS", "https://"},
	} {
		f := newFixture(t, func(c *gateway.Config) { c.TrustedProxies = tt.trusted })
		var made struct {
			SandboxID string `json:"sandbox_id"`
		}
		headers := []string{"X-API-Key", f.Key("acme", sandbox.RoleDeveloper)}
		if tt.says != "" {
			headers = append(headers, "X-Forwarded-Proto", tt.says)
		}
		f.With("POST", "/api/v1/sessions", `{"ports":{"private":true}}`, headers...).Into(t, 201, &made)
		var signed, link struct {
			URL string `json:"url"`
		}
		f.With("POST", "/api/v1/files/sign", `{"sandbox_id":"`+made.SandboxID+`","path":"a","method":"GET"}`, headers...).Into(t, 200, &signed)
		f.With("POST", "/api/v1/sessions/"+made.SandboxID+"/ports/80/sign", `{}`, headers...).Into(t, 200, &link)
		if !strings.HasPrefix(signed.URL, tt.want) || !strings.HasPrefix(link.URL, tt.want) {
			t.Errorf("%s: %s and %s", name, signed.URL, link.URL)
		}
	}
}
