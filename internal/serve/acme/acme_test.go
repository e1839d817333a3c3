package acme_test

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/serve/acme"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig/certs"
)

const host = "box.example.com"

// failing is an authority that answers nothing but 503, to come again after seconds,
// and counts who asks.
func failing(t *testing.T, after string) (directory string, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("Retry-After", after)
		http.Error(w, "not now", http.StatusServiceUnavailable)
	}))
	t.Cleanup(s.Close)
	return s.URL, asked
}

func open(t *testing.T, dir, directory string, log *slog.Logger) *acme.Certificates {
	t.Helper()
	c, err := acme.New(acme.Config{Hosts: []string{host, "api.example.com"}, Directory: directory, Dir: dir, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// hellos are what strangers say: each name, with what clients of today can, of long
// ago, and as an authority.
func hellos() (all []*tls.ClientHelloInfo) {
	for _, name := range []string{host, "BOX.example.com", "api.example.com", "evil.example.com", "a." + host, host + ".", "../" + host, "", "b\u00fccher.example"} {
		for _, protos := range [][]string{{"h2", "http/1.1"}, {"acme-tls/1"}, {"acme-tls/1", "h2"}} {
			for _, schemes := range [][]tls.SignatureScheme{{tls.ECDSAWithP256AndSHA256}, {tls.PSSWithSHA256}, nil} {
				all = append(all, &tls.ClientHelloInfo{
					ServerName: name, SupportedProtos: protos, SignatureSchemes: schemes, SupportedVersions: []uint16{tls.VersionTLS13, tls.VersionTLS12},
					CipherSuites: []uint16{tls.TLS_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256},
				})
			}
		}
	}
	return all
}

// refuse has strangers come by hundreds at once and none of them be served.
func refuse(t *testing.T, c *acme.Certificates) {
	t.Helper()
	get := c.TLS().GetCertificate
	var all sync.WaitGroup
	for range 8 {
		for _, hello := range hellos() {
			all.Go(func() {
				if pair, err := get(hello); err == nil {
					t.Errorf("%q with %q meets %v", hello.ServerName, hello.SupportedProtos, pair.Leaf.DNSNames)
				}
			})
		}
	}
	all.Wait()
}

// Whatever strangers say, and however often, the authority is asked by us alone, and
// one that fails only a few times until the next try.
func TestStrangersNeverAsk(t *testing.T) {
	t.Run("which has us come again at once", func(t *testing.T) { strangersNeverAsk(t, "0", 3) })
	t.Run("which has us come again in an hour", func(t *testing.T) { strangersNeverAsk(t, "3600", 1) })
}

func strangersNeverAsk(t *testing.T, after string, most int64) {
	directory, asked := failing(t, after)
	told := &lines{failed: make(chan struct{}, 2)}
	c := open(t, t.TempDir(), directory, slog.New(slog.NewTextHandler(told, nil)))
	refuse(t, c)
	if n := asked.Load(); n != 0 {
		t.Errorf("before it is asked for anything, strangers made it be asked %d times", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { _ = c.Run(ctx) })
	defer run.Wait()
	defer cancel()
	for range 2 { // hosts
		select {
		case <-told.failed:
		case <-time.After(time.Minute):
			t.Fatal("it is not said that there is no certificate")
		}
	}
	once := asked.Load()
	if once == 0 || once > 2*most {
		t.Errorf("a try for two hosts asks %d times", once)
	}
	refuse(t, c)
	if n := asked.Load(); n != once {
		t.Errorf("strangers made it be asked %d times more", n-once)
	}
}

// lines is a log that tells of each failed try.
type lines struct{ failed chan struct{} }

func (l *lines) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "obtaining a TLS certificate failed") {
		l.failed <- struct{}{}
	}
	return len(p), nil
}

// A certificate that is kept is met at once, by its name alone, without asking
// anybody; one that has run out is none.
func TestKeptCertificate(t *testing.T) {
	directory, asked := failing(t, "0")
	for _, tt := range []struct {
		what string
		of   string
		from time.Duration
		good bool
	}{
		{"a good one", host, -time.Hour, true},
		{"of before", host, -100 * time.Hour, false},
		{"of a time to come", host, time.Hour, false},
		{"of another host", "evil.example.com", -time.Hour, false},
	} {
		dir := t.TempDir()
		keep(t, filepath.Join(dir, host), tt.of, time.Now().Add(tt.from))
		c := open(t, dir, directory, slog.New(slog.DiscardHandler))
		for _, name := range []string{host, strings.ToUpper(host)} {
			pair, err := c.TLS().GetCertificate(&tls.ClientHelloInfo{ServerName: name, SupportedVersions: []uint16{tls.VersionTLS13}})
			if (err == nil) != tt.good || err == nil && pair.Leaf.VerifyHostname(host) != nil {
				t.Errorf("%s, as %s: %v", tt.what, name, err)
			}
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, host), []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	refuse(t, open(t, dir, directory, slog.New(slog.DiscardHandler)))
	if n := asked.Load(); n != 0 {
		t.Errorf("the authority was asked %d times", n)
	}
}

// keep writes a certificate for name and its key as they are kept, good for a day.
func keep(t *testing.T, path, name string, from time.Time) {
	t.Helper()
	c := certs.SelfSignedFrom(t, from, 24*time.Hour, name)
	if err := os.WriteFile(path, append(c.KeyPEM(t), c.PEM()...), 0o600); err != nil {
		t.Fatal(err)
	}
}
