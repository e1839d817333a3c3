// Package acme gets certificates for TLS from an authority that speaks ACME
// (RFC 8555), and renews them. It proves a host by TLS-ALPN-01 (RFC 8737), on the
// port that serves clients.
package acme

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"
)

const (
	// firstPause and longestPause are between tries to get a host's first certificate:
	// authorities refuse who tries often.
	firstPause   = time.Minute
	longestPause = time.Hour
	// askTime bounds one request to the authority.
	askTime = 30 * time.Second
)

// Config is what Certificates are made of. Hosts, Dir and Log are required.
type Config struct {
	Hosts     []string // that there are certificates for, one each
	Email     string   // the authority may write to it; may be empty
	Directory string   // URL of the authority; empty: Let's Encrypt
	Dir       string   // keeps the account's key and the certificates
	Log       *slog.Logger
}

// Certificates are those of an authority. Its methods are safe for concurrent use.
type Certificates struct {
	cfg     Config
	manager *autocert.Manager
}

// New returns Certificates. Its terms count as agreed to. The authority is not asked
// before Run, or the first client.
func New(c Config) (*Certificates, error) {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("keep certificates: %w", err)
	}
	client := &acme.Client{DirectoryURL: c.Directory, UserAgent: "cloud-sandbox", HTTPClient: &http.Client{Timeout: askTime}}
	if c.Directory == "" {
		client.DirectoryURL = autocert.DefaultACMEDirectory
	}
	return &Certificates{cfg: c, manager: &autocert.Manager{
		Prompt: autocert.AcceptTOS, Cache: autocert.DirCache(c.Dir), HostPolicy: autocert.HostWhitelist(c.Hosts...), Email: c.Email, Client: client,
	}}, nil
}

// TLS is how a listener uses them.
func (c *Certificates) TLS() *tls.Config { return c.manager.TLSConfig() }

// Run gets the first certificate of each host, unless it is kept already, so that no
// client waits for it, until all are there or ctx ends. Renewals need no Run.
func (c *Certificates) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, host := range c.cfg.Hosts {
		all.Go(func() { c.get(ctx, host) })
	}
	all.Wait()
	return ctx.Err()
}

func (c *Certificates) get(ctx context.Context, host string) {
	// What a client of today says: it gets a certificate with an elliptic curve.
	hello := &tls.ClientHelloInfo{
		ServerName: host, SupportedVersions: []uint16{tls.VersionTLS13},
		SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256}, CipherSuites: []uint16{tls.TLS_AES_128_GCM_SHA256},
	}
	for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, longestPause) {
		certificate, err := c.manager.GetCertificate(hello)
		if err == nil {
			c.cfg.Log.Info("there is a certificate for TLS", "host", host, "until", certificate.Leaf.NotAfter)
			return
		}
		c.cfg.Log.Warn("there is no certificate for TLS yet", "host", host, "error", err.Error())
		t := time.NewTimer(pause + rand.N(pause/4))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}
