// Package cluster is the identity of the roles of one installation on many machines. An
// authority of the operator's, a CA, gives each instance of a role one certificate, which
// names it. Roles prove to each other by TLS with certificates on both sides which
// instance they are.
//
// An Authority issues certificates for one-time join tokens, and renews them. An Identity
// is the certificate of this process, read from files and read again when they are
// replaced. The files may also come from elsewhere, such as a Secret of Kubernetes.
package cluster

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Roles that have an identity.
const (
	Gateway        = "gateway"
	SessionManager = "session-manager"
	Scheduler      = "scheduler"
	Node           = "node"
	// authorityRole is the role of the process that answers joins. No certificate with it
	// is issued to others.
	authorityRole = "authority"
)

// Roles lists the roles that may join, in the order of a first start.
func Roles() []string { return []string{SessionManager, Scheduler, Gateway, Node} }

// ID identifies one instance of a role.
type ID struct {
	Cluster string // name of the cluster
	Role    string
	Name    string // of the instance; for a node, its name in records
}

const scheme = "spiffe"

// String returns the ID as certificates have it, spiffe://CLUSTER/ROLE/NAME.
func (id ID) String() string { return scheme + "://" + id.Cluster + "/" + id.Short() }

// Short returns ROLE/NAME.
func (id ID) Short() string { return id.Role + "/" + id.Name }

var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)

// CheckName accepts the name of a cluster or an instance.
func CheckName(name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("the name %.80q must be 1 to 63 of a-z, 0-9, '.' and '-', and begin and end with a letter or digit", name)
	}
	return nil
}

// Check returns an error unless id may join a cluster.
func (id ID) Check() error {
	if !slices.Contains(Roles(), id.Role) {
		return fmt.Errorf("the role %.40q is none of %s", id.Role, strings.Join(Roles(), ", "))
	}
	return errors.Join(CheckName(id.Cluster), CheckName(id.Name))
}

// ParseShort parses ROLE/NAME.
func ParseShort(cluster, text string) (ID, error) {
	role, name, _ := strings.Cut(text, "/")
	id := ID{Cluster: cluster, Role: role, Name: name}
	if err := id.Check(); err != nil {
		return ID{}, fmt.Errorf("%.80q is not ROLE/NAME: %w", text, err)
	}
	return id, nil
}

// idOf returns the identity in a certificate: its only URI.
func idOf(cert *x509.Certificate) (ID, error) {
	if len(cert.URIs) != 1 {
		return ID{}, fmt.Errorf("the certificate has %d URIs, and an identity is exactly one", len(cert.URIs))
	}
	id, ok := parse(cert.URIs[0])
	if !ok {
		return ID{}, fmt.Errorf("the URI %.120q of the certificate is not spiffe://CLUSTER/ROLE/NAME", cert.URIs[0])
	}
	return id, nil
}

func parse(u *url.URL) (ID, bool) {
	role, name, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	id := ID{Cluster: u.Host, Role: role, Name: name}
	known := role == authorityRole || slices.Contains(Roles(), role)
	// The comparison refuses each other spelling: user, port, query, escapes.
	return id, known && namePattern.MatchString(id.Cluster) && namePattern.MatchString(name) && id.String() == u.String()
}

func (id ID) url() *url.URL {
	return &url.URL{Scheme: scheme, Host: id.Cluster, Path: "/" + id.Short()}
}
