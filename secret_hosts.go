package sandbox

import (
	"fmt"
	"slices"
	"strings"
)

// MaxSecretHosts is how many SecretHosts a Secret may have.
const MaxSecretHosts = 64

// SecretHosts are the hosts that a Secret may be sent to: names, each perhaps
// after "*.", which stands for all below it, and with :PORT, without which it is
// HTTPSPort. None: any host.
type SecretHosts []string

// NewSecretHosts checks hosts and returns them in their one form, sorted.
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

// Allow reports whether a Secret may be sent to a host, as SecretUse.Site tells
// it: of one after "*.", to all below it.
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

// siteText is a host and port in their one form.
func siteText(host string, port uint16) string {
	if port == HTTPSPort {
		return host
	}
	return fmt.Sprintf("%s:%d", host, port)
}
