package sandboxca_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sandboxca"
)

func TestCA(t *testing.T) {
	seed := bytes.Repeat([]byte{7}, 32)
	cert, key, err := sandboxca.New(seed, "i4k2m9x0qa7c1z8w3e5r6")
	if err != nil {
		t.Fatal(err)
	}
	a, err := sandboxca.Parse(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := a.Leaf("api.example.com")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := a.Leaf("api.example.com"); err != nil || again != leaf {
		t.Errorf("a second leaf = %v, %v", again, err)
	}
	// A CA made again from the same seed has the same key, so clients that trust the first
	// one trust it too.
	second, sameKey, err := sandboxca.New(seed, "i4k2m9x0qa7c1z8w3e5r6")
	if err != nil || sameKey != key {
		t.Errorf("made anew: the key differs, %v", err)
	}
	for name, tt := range map[string]struct {
		trusted, host string
		ok            bool
	}{
		"trusted":              {cert, "api.example.com", true},
		"trusted, made anew":   {second, "api.example.com", true},
		"another host":         {cert, "www.example.com", false},
		"another sandbox's":    {other(t, seed, "i00000000000000000000"), "api.example.com", false},
		"another seed's":       {other(t, []byte("another"), "i4k2m9x0qa7c1z8w3e5r6"), "api.example.com", false},
		"below the host":       {cert, "a.api.example.com", false},
		"nobody is trusted":    {"", "api.example.com", false},
		"the host in capitals": {cert, "API.example.com", true},
	} {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM([]byte(tt.trusted))
		_, err := leaf.Leaf.Verify(x509.VerifyOptions{DNSName: tt.host, Roots: roots})
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	if leaf.Leaf.NotAfter.After(time.Now().Add(398 * 24 * time.Hour)) {
		t.Error("some clients refuse certificates that are valid for so long")
	}
}

func other(t *testing.T, seed []byte, id string) string {
	t.Helper()
	cert, _, err := sandboxca.New(seed, id)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestParseShowsNoKey(t *testing.T) {
	_, key, err := sandboxca.New([]byte("seed"), "i1")
	if err != nil {
		t.Fatal(err)
	}
	for _, cert := range []string{"", key, other(t, []byte("seed"), "i2")} {
		if _, err := sandboxca.Parse(cert, key); err == nil || strings.Contains(err.Error(), "PRIVATE") {
			t.Errorf("Parse = %v", err)
		}
	}
}

// The cache of leaf certificates is bounded.
func TestLeavesAreBounded(t *testing.T) {
	certificate, key, err := sandboxca.New(bytes.Repeat([]byte{7}, 32), "i4k2m9x0qa7c1z8w3e5r6")
	if err != nil {
		t.Fatal(err)
	}
	a, err := sandboxca.Parse(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf := func(host string) *tls.Certificate {
		t.Helper()
		l, err := a.Leaf(host)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	first := leaf("first.example.com")
	if leaf("first.example.com") != first {
		t.Error("one that was made is not kept")
	}
	for i := range 256 {
		leaf(fmt.Sprintf("n%d.example.com", i))
	}
	if leaf("first.example.com") == first {
		t.Error("after 256 others the first is kept still")
	}
}
