package config

import (
	"errors"
	"fmt"
	"net"
	"net/mail"
	"net/url"
	"slices"
	"strings"
)

// maxACMEHosts bounds the certificates to request.
const maxACMEHosts = 20

// ACME configures automatic certificates. Without Hosts, the server requests none.
type ACME struct {
	Hosts     []string
	Email     string // contact for the authority; may be empty
	Directory string // URL of the authority; empty: Let's Encrypt
}

// parseACMEHosts reads host names separated by commas.
func parseACMEHosts(v string) ([]string, error) {
	var out []string
	for host := range strings.SplitSeq(v, ",") {
		host = strings.ToLower(strings.TrimSpace(host))
		if strings.HasPrefix(host, "*.") {
			return nil, fmt.Errorf("%q: a wildcard certificate needs a DNS challenge, which this server does not support: get one with another ACME client and set CLOUD_SANDBOX_TLS_CERT", host)
		}
		_, err := parseDomain(host)
		if err != nil || !strings.Contains(host, ".") || strings.Contains(host, ":") || net.ParseIP(host) != nil {
			return nil, fmt.Errorf("%q is not a public host name such as box.example.com", host)
		}
		if slices.Contains(out, host) {
			return nil, fmt.Errorf("%q is listed twice", host)
		}
		out = append(out, host)
	}
	if len(out) > maxACMEHosts {
		return nil, fmt.Errorf("there may be at most %d hosts", maxACMEHosts)
	}
	return out, nil
}

func checkEmail(v string) error {
	if a, err := mail.ParseAddress(v); err != nil || a.Address != v {
		return errors.New("it is not an address such as ops@example.com")
	}
	return nil
}

func checkDirectory(v string) error {
	if u, err := url.Parse(v); err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Fragment != "" {
		return errors.New("it is not https://HOST/PATH")
	}
	return nil
}

func (a ACME) check(files bool) error {
	switch {
	case len(a.Hosts) > 0 && files:
		return errors.New("CLOUD_SANDBOX_TLS_ACME and CLOUD_SANDBOX_TLS_CERT are both set: set the first to get certificates by ACME, or the second to use your own")
	case len(a.Hosts) == 0 && (a.Email != "" || a.Directory != ""):
		return errors.New("CLOUD_SANDBOX_TLS_ACME_EMAIL or CLOUD_SANDBOX_TLS_ACME_DIRECTORY is set without CLOUD_SANDBOX_TLS_ACME: set that to the host names of the certificates")
	}
	return nil
}
