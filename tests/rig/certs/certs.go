// Package certs makes the TLS certificates of tests.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A Certificate has its key, and the certificates of its issuers.
type Certificate struct {
	*x509.Certificate
	key     *ecdsa.PrivateKey
	issuers [][]byte // in DER, the nearest first
}

// SelfSigned makes a certificate for names, which are hosts, IP addresses or URIs. It is
// valid for an hour, and may issue others.
func SelfSigned(t testing.TB, names ...string) *Certificate {
	t.Helper()
	return SelfSignedFrom(t, time.Now().Add(-time.Hour), 2*time.Hour, names...)
}

// SelfSignedFrom is SelfSigned with a start and length of its validity.
func SelfSignedFrom(t testing.TB, from time.Time, valid time.Duration, names ...string) *Certificate {
	t.Helper()
	c := template(t, from, valid, names)
	c.Subject = pkix.Name{CommonName: "authority of tests"}
	c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature
	key := newKey(t)
	return sign(t, c, key, &Certificate{Certificate: c, key: key})
}

// Issue makes a certificate for names, signed by c. It may issue none itself.
func (c *Certificate) Issue(t testing.TB, names ...string) *Certificate {
	t.Helper()
	return c.IssueFrom(t, c.NotBefore, c.NotAfter.Sub(c.NotBefore), names...)
}

// IssueFrom is Issue with a start and length of its validity.
func (c *Certificate) IssueFrom(t testing.TB, from time.Time, valid time.Duration, names ...string) *Certificate {
	t.Helper()
	leaf := template(t, from, valid, names)
	leaf.KeyUsage = x509.KeyUsageDigitalSignature
	issued := sign(t, leaf, newKey(t), c)
	issued.issuers = append([][]byte{c.Raw}, c.issuers...)
	return issued
}

// template returns the fields common to all certificates. Each has a serial number of
// its own.
func template(t testing.TB, from time.Time, valid time.Duration, names []string) *x509.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: serial, NotBefore: from, NotAfter: from.Add(valid),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, name := range names {
		if strings.Contains(name, "://") {
			u, err := url.Parse(name)
			if err != nil {
				t.Fatal(err)
			}
			c.URIs = append(c.URIs, u)
		} else if ip := net.ParseIP(name); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, name)
		}
	}
	return c
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t testing.TB, c *x509.Certificate, key *ecdsa.PrivateKey, by *Certificate) *Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, by.Certificate, key.Public(), by.key)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &Certificate{Certificate: signed, key: key}
}

// chain returns c and its issuers, in DER.
func (c *Certificate) chain() [][]byte { return append([][]byte{c.Raw}, c.issuers...) }

// PEM returns c and its issuers.
func (c *Certificate) PEM() []byte {
	var all []byte
	for _, der := range c.chain() {
		all = append(all, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return all
}

// KeyPEM returns the key of c.
func (c *Certificate) KeyPEM(t testing.TB) []byte {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(c.key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

// TLS returns c for a server.
func (c *Certificate) TLS() tls.Certificate {
	return tls.Certificate{Certificate: c.chain(), PrivateKey: c.key}
}

// Pool returns a pool for clients that trust c.
func (c *Certificate) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(c.Certificate)
	return pool
}

// WriteIdentity writes c with its key and the certificate of its issuer into dir, as a
// Secret of Kubernetes has them.
func (c *Certificate) WriteIdentity(t testing.TB, dir string, issuer *Certificate) {
	t.Helper()
	for name, text := range map[string][]byte{"ca.crt": issuer.PEM(), "tls.crt": c.PEM(), "tls.key": c.KeyPEM(t)} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Write writes c and its key into two files in dir, of that mode.
func (c *Certificate) Write(t testing.TB, dir string, mode os.FileMode) (cert, key string) {
	t.Helper()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, text := range map[string][]byte{cert: c.PEM(), key: c.KeyPEM(t)} {
		if err := os.WriteFile(file, text, mode); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}
