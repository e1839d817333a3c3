package sandbox

import (
	"fmt"
	"slices"
	"strings"
)

// MaxSecretHosts bounds the SecretHosts of a Secret.
const MaxSecretHosts = 64

// SecretHosts lists the hosts to which a Secret may be sent. Each is a name, or "*." and
// a name for all names below it, perhaps with :PORT; the default port is HTTPSPort.
// Empty: any host.
type SecretHosts []string

// NewSecretHosts checks hosts and returns them in canonical form, sorted.
func NewSecretHosts(hosts []string) (SecretHosts, error) {
	if len(hosts) > MaxSecretHosts {
		return nil, Errorf(Invalid, "hosts: a secret has at most %d", MaxSecretHosts)
	}
	var normal SecretHosts
	for _, text := range hosts {
		host, port, ok := parseSites(text)
		if !ok {
			return nil, Errorf(Invalid, "hosts: %.64q is not a name like api.example.com or *.example.com, perhaps with :PORT; write names beyond ASCII as xn--", text)
		}
		normal = append(normal, siteText(host, port))
	}
	slices.Sort(normal)
	return slices.Compact(normal), nil
}

// Allow reports whether a Secret may be sent to a host, as returned by SecretUse.Site.
// For "*." and a name, it must be allowed for all names below it.
func (h SecretHosts) Allow(host string, port uint16) bool {
	if len(h) == 0 {
		return true
	}
	site := siteText(host, port)
	return slices.ContainsFunc(h, func(allowed string) bool {
		if above, is := strings.CutPrefix(allowed, "*."); is {
			return strings.HasSuffix(site, "."+above)
		}
		return site == allowed
	})
}

// siteText formats a host and port in canonical form.
func siteText(host string, port uint16) string {
	if port == HTTPSPort {
		return host
	}
	return fmt.Sprintf("%s:%d", host, port)
}
