package sandbox

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestNewSecretHosts(t *testing.T) {
	got, err := NewSecretHosts([]string{"b.example", "API.example.com:443", "*.Example.com:8443", "b.example."})
	if want := (SecretHosts{"*.example.com:8443", "api.example.com", "b.example"}); err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := NewSecretHosts(nil); err != nil || got != nil {
		t.Errorf("of none %q, %v", got, err)
	}
	for _, bad := range []string{"", "*", "*.", "a.*.b", "**.a", "127.0.0.1", "[::1]", "a:0", "a:x", "a:65536", "a/b", "a b", "\u00e4.example", strings.Repeat("a", 254)} {
		if got, err := NewSecretHosts([]string{bad}); !errors.Is(err, Invalid) {
			t.Errorf("%q is %q, %v", bad, got, err)
		}
	}
	if _, err := NewSecretHosts(slices.Repeat([]string{"a"}, MaxSecretHosts+1)); !errors.Is(err, Invalid) {
		t.Errorf("too many: %v", err)
	}
}

func TestSecretHostsAllow(t *testing.T) {
	hosts := SecretHosts{"api.example.com", "b.example:8443", "*.below.example"}
	for _, tt := range []struct {
		host string
		port uint16
		want bool
	}{
		{"api.example.com", 443, true},
		{"api.example.com", 8443, false},
		{"b.example", 8443, true},
		{"b.example", 443, false},
		{"a.below.example", 443, true},
		{"a.b.below.example", 443, true},
		{"below.example", 443, false},
		{"notbelow.example", 443, false},
		{"a.below.example", 80, false},
		{"example.com", 443, false},
		{"evil-api.example.com", 443, false},
		{"api.example.com.evil", 443, false},
	} {
		if got := hosts.Allow(tt.host, tt.port); got != tt.want {
			t.Errorf("%s:%d: %v", tt.host, tt.port, got)
		}
	}
	if !SecretHosts(nil).Allow("any.example", 1) {
		t.Error("no hosts are to be any")
	}
}
