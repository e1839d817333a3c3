package serve

import (
	"crypto/tls"
	"net"
	"strings"
	"sync"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/authority"
)

// devAuthorityName is the authority's among those that are derived from the seed. No
// Sandbox has such an ID.
const devAuthorityName = "dev mode"

// devTLS answers clients that speak TLS in dev mode with a certificate for each name
// below localhost and below domain, if there is one, perhaps with a port. Each name has
// one of its own: clients do not take *.localhost. The authority, whose certificate is
// returned in PEM, is the same at each start.
func devTLS(seed []byte, domain string) (*tls.Config, string, error) {
	certificate, key, err := authority.New(seed, devAuthorityName)
	if err != nil {
		return nil, "", err
	}
	a, err := authority.Parse(certificate, key)
	if err != nil {
		return nil, "", err
	}
	if host, _, err := net.SplitHostPort(domain); err == nil {
		domain = host
	}
	var mu sync.Mutex // of a
	return &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		mu.Lock()
		defer mu.Unlock()
		return a.Leaf(devHost(hello.ServerName, domain))
	}}, certificate, nil
}

// devHost is the name that a client which asks for name gets a certificate for.
func devHost(name, domain string) string {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	for _, own := range []string{"localhost", domain} {
		if own != "" && (name == own || strings.HasSuffix(name, "."+own)) {
			return name
		}
	}
	return "localhost"
}
