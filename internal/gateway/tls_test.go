package gateway_test

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig/certs"
)

// selfSigned writes a certificate for *.box.example and its key.
func selfSigned(t *testing.T) (cert, key string, made *certs.Certificate) {
	t.Helper()
	made = certs.SelfSigned(t, "box.example", "*.box.example")
	cert, key = made.Write(t, t.TempDir(), 0o600)
	return cert, key, made
}

// One port speaks TLS, in both versions of HTTP, and plain HTTP.
func TestTLSOnTheSamePort(t *testing.T) {
	t.Parallel()
	cert, key, made := selfSigned(t)
	f := newFixture(t, func(c *gateway.Config) {
		certificate, err := gateway.NewCertificate(cert, key, c.Log)
		if err != nil {
			t.Fatal(err)
		}
		c.TLS = certificate.TLS()
	})
	addr, stop := f.Serve()
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
			Protocols: p, TLSClientConfig: &tls.Config{RootCAs: made.Pool(), ServerName: "3000-i0.box.example"},
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
	t.Parallel()
	cert, key, _ := selfSigned(t)
	_, otherKey, _ := selfSigned(t)
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
