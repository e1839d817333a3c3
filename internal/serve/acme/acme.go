// Package acme gets certificates for TLS from an authority that speaks ACME
// (RFC 8555), and renews them. It proves a host by TLS-ALPN-01 (RFC 8737), on the
// port that serves clients.
package acme

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"

	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// firstPause and longestPause bound the backoff before a host's first certificate is
	// requested again: authorities rate-limit clients.
	firstPause   = time.Minute
	longestPause = time.Hour
	// askTime bounds one request to the authority.
	askTime = 30 * time.Second
	// again is how many times a failed request is retried at once.
	again = 2
	// longestAgain is the longest pause before such a retry.
	longestAgain = 30 * time.Second
)

// errNone is the error for a host whose certificate was not issued yet.
var errNone = errors.New("this host has no certificate yet")

// Config of Certificates. Hosts, Dir and Log are required.
type Config struct {
	Hosts     []string // with one certificate each
	Email     string   // contact for the authority; may be empty
	Directory string   // URL of the authority; empty: Let's Encrypt
	Dir       string   // keeps the account's key and the certificates
	Log       *slog.Logger
}

// Certificates manages certificates of an authority. Its methods are safe for concurrent
// use.
type Certificates struct {
	cfg     Config
	manager *autocert.Manager
	ready   map[string]*atomic.Bool // by host; whether it has, or had, a certificate
}

// New returns Certificates, with those in Dir. The authority's terms count as agreed to.
// It makes no request before Run.
func New(c Config) (*Certificates, error) {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("keep certificates: %w", err)
	}
	client := &acme.Client{DirectoryURL: c.Directory, UserAgent: "cloud-sandbox", HTTPClient: &http.Client{Timeout: askTime}, RetryBackoff: pauseOf}
	if c.Directory == "" {
		client.DirectoryURL = autocert.DefaultACMEDirectory
	}
	all := &Certificates{cfg: c, ready: map[string]*atomic.Bool{}, manager: &autocert.Manager{
		Prompt: autocert.AcceptTOS, Cache: autocert.DirCache(c.Dir), HostPolicy: autocert.HostWhitelist(c.Hosts...), Email: c.Email, Client: client,
	}}
	for _, host := range c.Hosts {
		all.ready[host] = new(atomic.Bool)
		all.ready[host].Store(all.kept(host))
	}
	return all, nil
}

// pauseOf is the pause before the n-th retry of a request, at least the authority's
// Retry-After; zero: no retry. Run retries whole attempts.
func pauseOf(n int, _ *http.Request, resp *http.Response) time.Duration {
	pause := time.Duration(n) * time.Second
	if resp != nil {
		pause = max(pause, retryAfter(resp.Header.Get("Retry-After")))
	}
	if n > again || pause > longestAgain {
		return 0
	}
	return pause
}

// retryAfter parses a Retry-After header, seconds or a date; zero if it is neither.
func retryAfter(text string) time.Duration {
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return time.Until(at)
	}
	return 0
}

// kept reports whether Dir has a valid certificate of host.
func (c *Certificates) kept(host string) bool {
	text, err := autocert.DirCache(c.cfg.Dir).Get(context.Background(), host)
	if err != nil {
		return false
	}
	pair, err := tls.X509KeyPair(text, text)
	return err == nil && pair.Leaf.VerifyHostname(host) == nil && time.Now().After(pair.Leaf.NotBefore) && time.Now().Before(pair.Leaf.NotAfter)
}

// TLS is a listener's configuration with the Certificates.
func (c *Certificates) TLS() *tls.Config {
	config := c.manager.TLSConfig()
	config.GetCertificate = c.of
	return config
}

// of returns the certificate for a client. Clients may send any name, as often as they
// like, so this never makes a request to the authority: only Run and renewals do.
func (c *Certificates) of(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	host := strings.ToLower(hello.ServerName)
	ready := c.ready[host]
	switch {
	case ready == nil:
		return nil, errors.New("this server has no such host")
	case slices.Equal(hello.SupportedProtos, []string{acme.ALPNProto}): // the authority's validation of the host
		return c.manager.GetCertificate(hello)
	case !ready.Load():
		return nil, errNone
	}
	return c.manager.GetCertificate(clientOf(host))
}

// clientOf returns a ClientHello that selects a host's ECDSA certificate, the only one
// that a host has. It offers a cipher suite of TLS 1.2, by which autocert decides:
// suites of TLS 1.3 do not name the key type, and autocert would choose RSA.
func clientOf(host string) *tls.ClientHelloInfo {
	return &tls.ClientHelloInfo{
		ServerName: host, SupportedVersions: []uint16{tls.VersionTLS13},
		SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256}, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256},
	}
}

// Run requests each host's first certificate, unless Dir has it, until all are issued or
// ctx ends. Clients neither wait for it nor trigger it. Renewals need no Run.
func (c *Certificates) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, host := range c.cfg.Hosts {
		all.Go(func() { c.get(ctx, host) })
	}
	all.Wait()
	return ctx.Err()
}

func (c *Certificates) get(ctx context.Context, host string) {
	for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, longestPause) {
		certificate, err := c.manager.GetCertificate(clientOf(host))
		if err == nil {
			c.ready[host].Store(true)
			c.cfg.Log.Info("obtained a TLS certificate", "host", host, "until", certificate.Leaf.NotAfter)
			return
		}
		c.cfg.Log.Warn("obtaining a TLS certificate failed; will retry", "host", host, telemetry.KeyError, err.Error())
		t := time.NewTimer(pause + rand.N(pause/4))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}
