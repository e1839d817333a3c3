package e2b

import (
	"net/http"
	"testing"
)

// Clients are always told a domain, and it is one that leads to this server from where
// they are.
func TestDomain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ configured, host, want string }{
		{"box.example:8443", "127.0.0.1:8080", "box.example:8443"},
		{"", "127.0.0.1:8080", "localhost:8080"},
		{"", "[::1]:8080", "localhost:8080"},
		{"", "localhost:8080", "localhost:8080"},
		{"", "localhost", "localhost"},
		{"", "box.example.com:8080", "box.example.com:8080"},
		{"", "api.box.example.com", "box.example.com"},
		{"", "192.0.2.7:8080", "set-cloud-sandbox-domain.invalid"},
		{"", "", "set-cloud-sandbox-domain.invalid"},
	} {
		a := API{Domain: tt.configured}
		if got := a.domain(&http.Request{Host: tt.host}); got != tt.want {
			t.Errorf("%q, reached by %q: %q, want %q", tt.configured, tt.host, got, tt.want)
		}
	}
}
