package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig/certs"
)

var quiet = slog.New(slog.DiscardHandler)

func TestIDs(t *testing.T) {
	for text, want := range map[string]bool{
		"spiffe://prod/gateway/g1":                              true,
		"spiffe://prod.example/session-manager/a.b-c":           true,
		"spiffe://prod/scheduler/s":                             true,
		"spiffe://prod/node/n":                                  true,
		"spiffe://prod/authority/join":                          true,
		"spiffe://prod/root/n":                                  false,
		"spiffe://prod/node":                                    false,
		"spiffe://prod/node/":                                   false,
		"spiffe://prod/node/a/b":                                false,
		"spiffe://prod//node/a":                                 false,
		"spiffe://prod/node/A":                                  false,
		"spiffe://prod/node/%61":                                false,
		"spiffe://Prod/node/a":                                  false,
		"spiffe:///node/a":                                      false,
		"spiffe://prod:1/node/a":                                false,
		"spiffe://u@prod/node/a":                                false,
		"spiffe://prod/node/a?x":                                false,
		"spiffe://prod/node/a#x":                                false,
		"https://prod/node/a":                                   false,
		"spiffe://prod/node/" + strings.Repeat("a", 64):         false,
		"spiffe://" + strings.Repeat("a", 64) + "/gateway/name": false,
	} {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		id, ok := parse(u)
		if ok != want || ok && id.String() != text {
			t.Errorf("%q is an identity: %v, %v", text, ok, id)
		}
	}
	if id, err := ParseShort("prod", "node/n-1"); err != nil || id != (ID{"prod", Node, "n-1"}) {
		t.Errorf("%v, %v", id, err)
	}
	for _, text := range []string{"", "node", "node/", "authority/join", "node/a/b"} {
		if id, err := ParseShort("prod", text); err == nil {
			t.Errorf("%q is %v", text, id)
		}
	}
}

// folder writes an identity by an authority of tests.
func folder(t testing.TB, ca, c *certs.Certificate) string {
	t.Helper()
	dir := t.TempDir()
	c.WriteIdentity(t, dir, ca)
	return dir
}

func open(t testing.TB, dir string) *Identity {
	t.Helper()
	i, err := Open(dir, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// listen echoes one byte on each connection of a server. The address and the errors of its
// handshakes are returned.
func listen(t testing.TB, config *tls.Config) (address string, failed chan error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	failed = make(chan error, 100)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(time.Minute))
				s := tls.Server(conn, config)
				err := s.Handshake()
				failed <- err
				if err != nil {
					return
				}
				_, _ = io.CopyN(s, s, 1)
				_, _ = io.Copy(io.Discard, s) // until the client closes
			}()
		}
	}()
	return ln.Addr().String(), failed
}

// exchange sends a byte and reads it back. With TLS 1.3 a client learns only by reading
// that its certificate is refused.
func exchange(address string, config *tls.Config) (tls.ConnectionState, error) {
	raw, err := net.Dial("tcp", address)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer raw.Close()
	_ = raw.SetDeadline(time.Now().Add(time.Minute))
	c := tls.Client(raw, config)
	if _, err := c.Write([]byte("x")); err != nil {
		return tls.ConnectionState{}, err
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		return tls.ConnectionState{}, err
	}
	return c.ConnectionState(), nil
}

func TestHandshakes(t *testing.T) {
	ca, foreign := certs.SelfSigned(t), certs.SelfSigned(t)
	hour := time.Hour
	node := open(t, folder(t, ca, ca.Issue(t, "spiffe://prod/node/a")))
	address, failed := listen(t, node.Server())
	gateway := folder(t, ca, ca.Issue(t, "spiffe://prod/gateway/g"))
	// By hand: an Identity refuses to show such a certificate.
	showing := func(c *certs.Certificate) func(*tls.Config) {
		return func(config *tls.Config) { config.Certificates = []tls.Certificate{c.TLS()} }
	}
	for _, tt := range []struct {
		name       string
		role, to   string
		change     func(*tls.Config)
		here, peer string // errors at the client and at the server
	}{
		{name: "right", role: Node, to: "a"},
		{name: "any instance", role: Node},
		{name: "another name", role: Node, to: "b", here: "node/a answers instead of node/b"},
		{name: "another role", role: SessionManager, here: "node/a answers instead of session-manager/*"},
		{name: "a foreign authority", role: Node, to: "a", change: showing(foreign.Issue(t, "spiffe://prod/gateway/g")), peer: "unknown authority"},
		{name: "another cluster", role: Node, to: "a", change: showing(ca.Issue(t, "spiffe://test/gateway/g")), peer: `of the cluster "test"`},
		{name: "expired", role: Node, to: "a", change: showing(ca.IssueFrom(t, time.Now().Add(-2*hour), hour, "spiffe://prod/gateway/g")), peer: "expired"},
		{name: "not yet valid", role: Node, to: "a", change: showing(ca.IssueFrom(t, time.Now().Add(hour), hour, "spiffe://prod/gateway/g")), peer: "not yet valid"},
		{name: "a host, no identity", role: Node, to: "a", change: showing(ca.Issue(t, "gateway.example")), peer: "has 0 URIs"},
		{name: "two identities", role: Node, to: "a", change: showing(ca.Issue(t, "spiffe://prod/gateway/g", "spiffe://prod/node/a")), peer: "has 2 URIs"},
		{name: "another URI", role: Node, to: "a", change: showing(ca.Issue(t, "spiffe://prod/root/g")), peer: "not spiffe://"},
		{name: "no certificate", role: Node, to: "a", change: func(c *tls.Config) { c.Certificates = nil }, peer: "didn't provide a certificate"},
		{name: "TLS 1.2", role: Node, to: "a", change: func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }, here: "protocol version", peer: "unsupported versions"},
	} {
		config := open(t, gateway).Current().Client(tt.role, tt.to)
		if tt.change != nil {
			tt.change(config)
		}
		_, err := exchange(address, config)
		there := <-failed
		if tt.here == "" && tt.peer == "" {
			if err != nil || there != nil {
				t.Errorf("%s: %v, and at the server %v", tt.name, err, there)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tt.here) {
			t.Errorf("%s: the client has %v, want %q", tt.name, err, tt.here)
		}
		if there == nil || !strings.Contains(there.Error(), tt.peer) {
			t.Errorf("%s: the server has %v, want %q", tt.name, there, tt.peer)
		}
	}
}

// A client does not speak to a server whose certificate is not of the cluster.
func TestServersThatAreRefused(t *testing.T) {
	ca, foreign := certs.SelfSigned(t), certs.SelfSigned(t)
	client := open(t, folder(t, ca, ca.Issue(t, "spiffe://prod/gateway/g"))).Current()
	for want, c := range map[string]*certs.Certificate{
		"unknown authority":    foreign.Issue(t, "spiffe://prod/node/a"),
		"expired":              ca.IssueFrom(t, time.Now().Add(-2*time.Hour), time.Hour, "spiffe://prod/node/a"),
		`of the cluster "dev"`: ca.Issue(t, "spiffe://dev/node/a"),
		"has 0 URIs":           ca.Issue(t, "127.0.0.1"),
	} {
		address, _ := listen(t, &tls.Config{Certificates: []tls.Certificate{c.TLS()}})
		if _, err := exchange(address, client.Client(Node, "a")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	address, _ := listen(t, &tls.Config{Certificates: []tls.Certificate{ca.Issue(t, "spiffe://prod/node/a").TLS()}, MaxVersion: tls.VersionTLS12})
	if _, err := exchange(address, client.Client(Node, "a")); err == nil || !strings.Contains(err.Error(), "version") {
		t.Errorf("a server of TLS 1.2: %v", err)
	}
}

// Sessions are resumed, and a resumed one is checked as a new one is.
func TestResumption(t *testing.T) {
	ca := certs.SelfSigned(t)
	address, _ := listen(t, open(t, folder(t, ca, ca.Issue(t, "spiffe://prod/node/a"))).Server())
	client := open(t, folder(t, ca, ca.Issue(t, "spiffe://prod/gateway/g"))).Current()
	for again := range 3 {
		s, err := exchange(address, client.Client(Node, "a"))
		if err != nil || s.DidResume != (again > 0) || s.Version != tls.VersionTLS13 {
			t.Errorf("connection %d: %v, resumed: %v", again, err, s.DidResume)
		}
	}
	wrong := client.Client(Node, "b")
	wrong.ServerName = client.Client(Node, "a").ServerName // the session of a
	if _, err := exchange(address, wrong); err == nil || !strings.Contains(err.Error(), "instead of node/b") {
		t.Errorf("a resumed session of another node: %v", err)
	}
}

func TestReload(t *testing.T) {
	ca := certs.SelfSigned(t)
	dir := folder(t, ca, ca.Issue(t, "spiffe://prod/node/a"))
	i := open(t, dir)
	first := i.Current()
	if changed, err := i.Reload(); changed || err != nil {
		t.Errorf("unchanged files: %v, %v", changed, err)
	}
	next := ca.Issue(t, "spiffe://prod/node/a")
	if err := os.WriteFile(filepath.Join(dir, certFile), next.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := i.Reload(); err == nil || i.Current() != first {
		t.Errorf("a certificate without its key: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, keyFile), next.KeyPEM(t), 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := i.Reload(); !changed || err != nil || !i.Current().leaf().Equal(next.Certificate) || i.Current().Generation != 1 {
		t.Errorf("replaced files: %v, %v", changed, err)
	}
	// New connections use it at once.
	address, _ := listen(t, i.Server())
	gateway := open(t, folder(t, ca, ca.Issue(t, "spiffe://prod/gateway/g")))
	if s, err := exchange(address, gateway.Current().Client(Node, "a")); err != nil || !s.PeerCertificates[0].Equal(next.Certificate) {
		t.Errorf("a connection after the replacement: %v", err)
	}
	ca.Issue(t, "spiffe://prod/node/b").WriteIdentity(t, dir, ca)
	if _, err := i.Reload(); err == nil || !strings.Contains(err.Error(), "became spiffe://prod/node/b") || i.ID().Name != "a" {
		t.Errorf("another node's certificate: %v", err)
	}
}

func TestIdentitiesThatAreNone(t *testing.T) {
	ca, foreign := certs.SelfSigned(t), certs.SelfSigned(t)
	good := ca.Issue(t, "spiffe://prod/node/a")
	for want, dir := range map[string]string{
		"expired at":                         folder(t, ca, ca.IssueFrom(t, time.Now().Add(-2*time.Hour), time.Hour, "spiffe://prod/node/a")),
		"unknown authority":                  folder(t, foreign, good),
		"an identity is exactly one":         folder(t, ca, ca.Issue(t, "node.example")),
		"is not an authority's":              folder(t, good, good),
		"no such file":                       t.TempDir(),
		"ECDSA P-256 or Ed25519":             "",
		"no list of revoked certificates in": "",
	} {
		switch {
		case dir != "":
		case strings.HasPrefix(want, "no list"):
			dir = folder(t, ca, good)
			if err := os.WriteFile(filepath.Join(dir, crlFile), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		default:
			if _, err := algorithm(&struct{}{}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("a key of an unknown kind: %v", err)
			}
			continue
		}
		if _, err := Open(dir, quiet); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// A peer whose certificate expires during a connection is refused at its next call.
func TestPeersExpire(t *testing.T) {
	ca := certs.SelfSigned(t)
	p := open(t, folder(t, ca, ca.Issue(t, "spiffe://prod/node/a"))).Current()
	short := ca.IssueFrom(t, time.Now().Add(-time.Hour), time.Hour+time.Second, "spiffe://prod/gateway/g")
	chain := []*x509.Certificate{short.Certificate}
	if _, err := p.Peer(chain, x509.ExtKeyUsageClientAuth); err != nil {
		t.Skipf("this machine stood still: %v", err)
	}
	time.Sleep(time.Until(short.NotAfter) + 10*time.Millisecond)
	if _, err := p.Peer(chain, x509.ExtKeyUsageClientAuth); err == nil || !strings.Contains(err.Error(), "gateway/g expired") {
		t.Errorf("%v", err)
	}
}
