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
	// firstPause and longestPause are between tries to get a host's first certificate:
	// authorities refuse who tries often.
	firstPause   = time.Minute
	longestPause = time.Hour
	// askTime bounds one request to the authority.
	askTime = 30 * time.Second
	// again is how often at most a request is made again at once that the authority
	// could not take.
	again = 2
	// longestAgain is how long at most such a request waits for that.
	longestAgain = 30 * time.Second
)

// errNone is met by clients of a host whose certificate is not there yet.
var errNone = errors.New("there is no certificate for this host yet")

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
	ready   map[string]*atomic.Bool // by host; whether it has, or had, a certificate
}

// New returns Certificates, with those that are kept already. The authority's terms
// count as agreed to. It is not asked before Run.
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

// pauseOf is how long to wait before a request that failed is made for the n-th time
// again, at least as long as the authority asks for; zero: it is not made. A whole try
// that failed is made again by Run.
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

// retryAfter reads the header of that name, which is seconds or a date; zero when it
// is neither.
func retryAfter(text string) time.Duration {
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return time.Until(at)
	}
	return 0
}

// kept reports whether there is a certificate of host from before that is good.
func (c *Certificates) kept(host string) bool {
	text, err := autocert.DirCache(c.cfg.Dir).Get(context.Background(), host)
	if err != nil {
		return false
	}
	pair, err := tls.X509KeyPair(text, text)
	return err == nil && pair.Leaf.VerifyHostname(host) == nil && time.Now().After(pair.Leaf.NotBefore) && time.Now().Before(pair.Leaf.NotAfter)
}

// TLS is how a listener uses them.
func (c *Certificates) TLS() *tls.Config {
	config := c.manager.TLSConfig()
	config.GetCertificate = c.of
	return config
}

// of returns the certificate that a client meets. Whoever connects may say any name,
// as often as they like, so that never has the authority be asked: Run and renewals
// do that, in their own time.
func (c *Certificates) of(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	host := strings.ToLower(hello.ServerName)
	ready := c.ready[host]
	switch {
	case ready == nil:
		return nil, errors.New("there is no such host here")
	case slices.Equal(hello.SupportedProtos, []string{acme.ALPNProto}): // the authority, which proves the host
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

// Run gets the first certificate of each host, unless it is kept already, until all
// are there or ctx ends: no client waits for it, or makes it ask sooner. Renewals need
// no Run.
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
