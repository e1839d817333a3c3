package serve

import (
	"crypto/tls"
	"net"
	"strings"
	"sync"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sandboxca"
)

// devAuthorityName is the authority's name in key derivation from the seed. No Sandbox
// has such an ID.
const devAuthorityName = "dev mode"

// devTLS serves TLS in dev mode with a certificate for each name below localhost and
// below domain, if set, which may have a port. Each name has its own: clients do not
// accept *.localhost. The authority, whose certificate is returned in PEM, is the same at
// each start.
func devTLS(seed []byte, domain string) (*tls.Config, string, error) {
	certificate, key, err := sandboxca.New(seed, devAuthorityName)
	if err != nil {
		return nil, "", err
	}
	a, err := sandboxca.Parse(certificate, key)
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

// devHost is the name of the certificate for a client that asks for name.
func devHost(name, domain string) string {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	for _, own := range []string{"localhost", domain} {
		if own != "" && (name == own || strings.HasSuffix(name, "."+own)) {
			return name
		}
	}
	return "localhost"
}
