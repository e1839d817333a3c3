package gateway_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
)

// selfSigned writes a certificate for *.box.example and its key.
func selfSigned(t *testing.T, serial int64) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "box.example"}, DNSNames: []string{"box.example", "*.box.example"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "EC PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool = x509.NewCertPool()
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool.AddCert(parsed)
	return cert, key, pool
}

// One port speaks TLS, in both versions of HTTP, and plain HTTP.
func TestTLSOnTheSamePort(t *testing.T) {
	cert, key, pool := selfSigned(t, 1)
	f := newFixture(t, func(c *gateway.Config) {
		certificate, err := gateway.NewCertificate(cert, key, c.Log)
		if err != nil {
			t.Fatal(err)
		}
		c.TLS = certificate.TLS()
	})
	addr, stop := f.serve()
	defer stop()
	silent, err := net.Dial("tcp", addr.String()) // one that never begins does not hold up the others, nor the end
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for name, tt := range map[string]struct {
		scheme string
		h2     bool
		proto  string
	}{
		"plain":   {"http", false, "HTTP/1.1"},
		"h2c":     {"http", true, "HTTP/2.0"},
		"TLS":     {"https", false, "HTTP/1.1"},
		"TLS, h2": {"https", true, "HTTP/2.0"},
	} {
		p := new(http.Protocols)
		p.SetHTTP1(!tt.h2)
		p.SetHTTP2(tt.h2)
		p.SetUnencryptedHTTP2(tt.h2)
		client := &http.Client{Transport: &http.Transport{
			Protocols: p, TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "3000-i0.box.example"},
		}}
		resp, err := client.Get(tt.scheme + "://" + addr.String() + "/health")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		client.CloseIdleConnections()
		if resp.StatusCode != 200 || resp.Proto != tt.proto || string(body) != `{"service":"gateway","status":"ok"}` {
			t.Errorf("%s: %d %s %s", name, resp.StatusCode, resp.Proto, body)
		}
	}
}

func TestBadCertificate(t *testing.T) {
	cert, key, _ := selfSigned(t, 1)
	_, otherKey, _ := selfSigned(t, 2)
	for name, files := range map[string][2]string{
		"none":      {cert + "x", key},
		"mixed up":  {key, cert},
		"unrelated": {cert, otherKey},
	} {
		if _, err := gateway.NewCertificate(files[0], files[1], nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
