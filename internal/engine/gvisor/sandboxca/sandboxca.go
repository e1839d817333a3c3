// Package sandboxca is the certificate authority (CA) of one Sandbox: programs inside
// trust it, so that the Sandbox's link can terminate TLS for the hosts that get Secrets.
// Its key never enters the Sandbox.
package sandboxca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

const (
	// leafLife is how long a host's certificate is valid. leafEarly backdates it: clocks
	// inside may be behind.
	leafLife, leafEarly = 30 * 24 * time.Hour, 24 * time.Hour
	// leafRenew is the remaining validity at which a certificate is renewed.
	leafRenew = 7 * 24 * time.Hour
	// maxLeaves bounds the cached certificates.
	maxLeaves = 256
)

// New derives the CA of a Sandbox from a seed: the same name and key each time, so
// that a client which trusts one of its certificates trusts all. It returns the
// certificate and the key in PEM.
func New(seed []byte, sandboxID string) (certificate, key string, err error) {
	private, err := derive(seed, sandboxID)
	if err != nil {
		return "", "", err
	}
	t := &x509.Certificate{
		SerialNumber:          new(big.Int).SetBytes([]byte(sandboxID)[:min(len(sandboxID), 16)]),
		Subject:               pkix.Name{CommonName: "Cloud Sandbox " + sandboxID},
		NotBefore:             time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:              time.Date(2049, 12, 31, 0, 0, 0, 0, time.UTC),
		KeyUsage:              x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, private.Public(), private)
	if err != nil {
		return "", "", fmt.Errorf("make the CA: %w", err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return "", "", fmt.Errorf("make the CA: %w", err)
	}
	return block("CERTIFICATE", der), block("PRIVATE KEY", raw), nil
}

func block(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// derive derives a P-256 key, nearly uniformly: it reduces more bits than the order has.
func derive(seed []byte, sandboxID string) (*ecdsa.PrivateKey, error) {
	const wide, size = 48, 32
	raw, err := hkdf.Key(sha256.New, seed, nil, "cloud-sandbox authority 1 "+sandboxID, wide)
	if err != nil {
		return nil, fmt.Errorf("derive the key of the CA: %w", err)
	}
	most := new(big.Int).Sub(elliptic.P256().Params().N, big.NewInt(1))
	n := new(big.Int).SetBytes(raw)
	n.Add(n.Mod(n, most), big.NewInt(1))
	return ecdsa.ParseRawPrivateKey(elliptic.P256(), n.FillBytes(make([]byte, size)))
}

// CA issues certificates. It is not safe for concurrent use.
type CA struct {
	pair   tls.Certificate
	leaves map[string]*tls.Certificate
}

// Parse parses the result of New.
func Parse(certificate, key string) (*CA, error) {
	pair, err := tls.X509KeyPair([]byte(certificate), []byte(key))
	if err != nil {
		return nil, errors.New("the CA is not a certificate with its key") // the cause could leak part of the key
	}
	return &CA{pair: pair, leaves: map[string]*tls.Certificate{}}, nil
}

// Leaf returns a host's certificate and key, cached or new.
func (ca *CA) Leaf(host string) (*tls.Certificate, error) {
	now := time.Now()
	if leaf := ca.leaves[host]; leaf != nil && now.Before(leaf.Leaf.NotAfter.Add(-leafRenew)) {
		return leaf, nil
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	t := &x509.Certificate{
		SerialNumber: serial, DNSNames: []string{host},
		NotBefore: now.Add(-leafEarly), NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if len(host) <= 64 { // the limit of a common name
		t.Subject = pkix.Name{CommonName: host}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, ca.pair.Leaf, private.Public(), ca.pair.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}
	leaf := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}
	if leaf.Leaf, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	if len(ca.leaves) >= maxLeaves { // a client may name hosts without end
		clear(ca.leaves)
	}
	ca.leaves[host] = leaf
	return leaf, nil
}
