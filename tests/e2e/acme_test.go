package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/addrtest"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig/certs"
)

// authority is a Pebble ACME server that validates hosts as public authorities do. Every
// name resolves to this machine.
type authority struct {
	directory, certificate string // certificate is a world-readable file
	roots                  string // URL of its root certificate
	client                 *http.Client
	stop                   func()
}

// newAuthority starts an authority that validates hosts at the port of addr. Without
// CLOUD_SANDBOX_PEBBLE it skips the test.
func newAuthority(t *testing.T, addr string) *authority {
	t.Helper()
	programs := os.Getenv("CLOUD_SANDBOX_PEBBLE")
	if programs == "" {
		t.Skip("CLOUD_SANDBOX_PEBBLE names no authority to test with: scripts/pebble.sh builds one")
	}
	free := func() string {
		a, err := addrtest.Free()
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	directory, management, dns, unused := free(), free(), free(), free()
	dir, err := os.MkdirTemp("", "cs-authority-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	a := &authority{directory: "https://" + directory + "/dir", roots: "https://" + management + "/roots/0", certificate: filepath.Join(dir, "ca.pem")}
	own := certs.SelfSigned(t, "127.0.0.1")
	config, err := json.Marshal(map[string]any{"pebble": map[string]any{
		"listenAddress": directory, "managementListenAddress": management, "certificate": a.certificate, "privateKey": filepath.Join(dir, "key.pem"),
		"httpPort": portOf(t, unused), "tlsPort": portOf(t, addr), "retryAfter": map[string]int{"authz": 1, "order": 1},
	}})
	for _, err := range []error{
		err, os.Chmod(dir, 0o755), os.WriteFile(a.certificate, own.PEM(), 0o644), os.WriteFile(filepath.Join(dir, "key.pem"), own.KeyPEM(t), 0o600),
		os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	a.client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: own.Pool()}}}
	stopNames := started(t, nil, filepath.Join(programs, "pebble-challtestsrv"), "-defaultIPv4", "127.0.0.1", "-defaultIPv6", "", "-dnsserver", dns,
		"-management", unused, "-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "")
	stopPebble := started(t, []string{"PEBBLE_VA_NOSLEEP=1"}, filepath.Join(programs, "pebble"), "-config", filepath.Join(dir, "config.json"), "-dnsserver", dns)
	a.stop = func() { stopPebble(); stopNames() }
	rig.Within(t, time.Minute, "an authority that answers", func() bool { return a.root() != nil })
	return a
}

// root returns the authority's root certificates; nil when it does not answer.
func (a *authority) root() *x509.CertPool {
	resp, err := a.client.Get(a.roots)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	pool := x509.NewCertPool()
	if err != nil || !pool.AppendCertsFromPEM(text) {
		return nil
	}
	return pool
}

// started runs a program until the test ends or stop is called.
func started(t *testing.T, env []string, program string, args ...string) (stop func()) {
	t.Helper()
	var out bytes.Buffer
	cmd := rig.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("%s says %s", filepath.Base(program), out.Bytes())
		}
	}
	t.Cleanup(stop)
	return stop
}

func portOf(t *testing.T, addr string) int {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	n, numErr := strconv.Atoi(port)
	if err != nil || numErr != nil {
		t.Fatal(addr, err, numErr)
	}
	return n
}

// A server obtains its certificates over ACME on its own port, keeps them across a
// restart, and obtains none for other names.
func TestACME(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{Pool: 1})
	a := newAuthority(t, s.Addr)
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	const host, other = "box.example.com", "api.example.com"
	s.SetEnv(
		"CLOUD_SANDBOX_TLS_ACME="+host+","+other, "CLOUD_SANDBOX_TLS_ACME_EMAIL=ops@example.com",
		"CLOUD_SANDBOX_TLS_ACME_DIRECTORY="+a.directory, "SSL_CERT_FILE="+a.certificate,
	)
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	roots := a.root()
	// get requests /health under a server name and returns the presented certificate.
	get := func(name string) (*x509.Certificate, error) {
		client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: name}, ForceAttemptHTTP2: true}}
		defer client.CloseIdleConnections()
		resp, err := client.Get("https://" + s.Addr + "/health")
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
			t.Errorf("%s: %s %s", name, resp.Proto, resp.Status)
		}
		return resp.TLS.PeerCertificates[0], nil
	}
	serials := map[string]string{}
	for _, name := range []string{host, other} {
		var last error
		rig.Within(t, 2*time.Minute, "a certificate for "+name, func() bool {
			var c *x509.Certificate
			if c, last = get(name); last != nil {
				return false
			}
			serials[name] = c.SerialNumber.String()
			return c.VerifyHostname(name) == nil
		})
	}
	if c, err := get("evil.example.com"); err == nil {
		t.Errorf("for a name that is not the server's it has %v", c.DNSNames)
	}
	s.Client(t, "plain").Must(t, "GET", "/api/v1/sessions", nil, nil) // plain HTTP still works

	a.stop()
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	if c, err := get(host); err != nil || c.SerialNumber.String() != serials[host] {
		t.Errorf("after a restart without the authority: %v", err)
	}
}
