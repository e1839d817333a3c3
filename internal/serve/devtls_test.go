package serve

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
)

// Each name of this machine has a certificate that clients take, by the same authority
// after a restart; other names get none of theirs.
func TestDevTLS(t *testing.T) {
	_, certificate, err := devTLS([]byte("seed"), "box.test:8443")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(certificate)) {
		t.Fatal("the authority is no certificate")
	}
	again, _, err := devTLS([]byte("seed"), "box.test:8443")
	if err != nil {
		t.Fatal(err)
	}
	for name, valid := range map[string]bool{
		"localhost": true, "3000-x.localhost": true, "api.localhost": true, "3000-x.box.test": true, "box.test": true,
		"example.com": false, "evilbox.test": false, "": false,
	} {
		leaf, err := again.GetCertificate(&tls.ClientHelloInfo{ServerName: name})
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := x509.ParseCertificate(leaf.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		_, err = parsed.Verify(x509.VerifyOptions{Roots: roots})
		if err == nil {
			err = parsed.VerifyHostname(name)
		}
		if (err == nil) != valid {
			t.Errorf("%q: %v", name, err)
		}
	}
}
