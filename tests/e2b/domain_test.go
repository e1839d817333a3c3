package e2b

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig/certs"
)

// domain is the parent domain of the Sandboxes' ports.
const domain = "sandbox.test"

// nameserver is the address of a name server that resolves every name to this machine.
const nameserver = "127.0.0.83"

// The SDKs of a year ago send no headers and address Sandboxes by host names over TLS.
// The newest SDKs do so by default.
func TestSDKsByDomain(t *testing.T) {
	dir := sdks(t)
	byName := byDomain(t)
	for _, age := range []string{"old", "new"} {
		byName(age+" python", filepath.Join(dir, age, "py/bin/python"), "suite.py")
		byName(age+" javascript", filepath.Join(dir, "node"), script(t, filepath.Join(dir, age, "js"), "suite.mjs"))
	}
	byName("new javascript surface", filepath.Join(dir, "node"), script(t, filepath.Join(dir, "new/js"), "surface.mjs"))
	byName("new python volumes", filepath.Join(dir, "new/py/bin/python"), "volumes.py", "sync")
	byName("new javascript volumes", filepath.Join(dir, "node"), script(t, filepath.Join(dir, "new/js"), "volumes.mjs"))
	byName("old code interpreter", filepath.Join(dir, "old/py/bin/python"), "interpreter.py")
	byName("old python async", filepath.Join(dir, "old/py/bin/python"), "suite_async.py")
}

// If all sandboxes are secure, SDKs that request one without a token receive a token,
// and use it.
func TestInsecureSDKs(t *testing.T) {
	dir := sdks(t)
	byName := byDomain(t, "CLOUD_SANDBOX_E2B_SECURE=true")
	byName("python", filepath.Join(dir, "old/py/bin/python"), "insecure.py")
	byName("javascript", filepath.Join(dir, "node"), script(t, filepath.Join(dir, "old/js"), "insecure.mjs"))
}

// byDomain starts a server. It returns a function that runs a program in a subtest, with
// an environment and names that lead to the server.
func byDomain(t *testing.T, more ...string) func(name string, program ...string) {
	t.Helper()
	cert, key509 := certificate(t)
	s, err := rig.New(rig.Options{Pool: 4, Env: append(more, "CLOUD_SANDBOX_TLS_CERT="+cert, "CLOUD_SANDBOX_TLS_KEY="+key509)})
	if err == nil {
		err = s.Launch()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after all subtests have ended
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	withNames := answeringNames(t)
	_, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	return func(name string, program ...string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := []string{
				"E2B_DOMAIN=" + net.JoinHostPort(domain, port), "E2B_API_URL=https://" + net.JoinHostPort(domain, port), "E2B_API_KEY=" + key(t, s, name),
				"SSL_CERT_FILE=" + cert, "NODE_EXTRA_CA_CERTS=" + cert,
			}
			program = withNames(program...)
			run(t, env, program[0], program[1:]...)
		})
	}
}

// answeringNames runs a name server until the test ends. It returns a function that
// wraps a program's command, so that the program uses the name server in its own mount
// namespace.
func answeringNames(t *testing.T) func(program ...string) []string {
	t.Helper()
	answerNames(t)
	resolver, names := filepath.Join(t.TempDir(), "resolv.conf"), filepath.Join(t.TempDir(), "nsswitch.conf")
	for file, text := range map[string]string{resolver: "nameserver " + nameserver + "\n", names: "hosts: files dns\n"} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const bind = `mount --bind "$0" /etc/resolv.conf && mount --bind "$1" /etc/nsswitch.conf && shift && exec "$@"`
	return func(program ...string) []string {
		return append([]string{"unshare", "--mount", "sh", "-c", bind, resolver, names}, program...)
	}
}

// certificate creates a certificate for every port of every Sandbox, and its key, in
// files that the server can read.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cert-") // t.TempDir is only for its own user
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return certs.SelfSigned(t, domain).Issue(t, domain, "*."+domain).Write(t, dir, 0o644) // some clients reject a CA's own certificate
}

// answerNames resolves every name to this machine's IPv4 address until the test ends.
func answerNames(t *testing.T) {
	t.Helper()
	conn, err := net.ListenPacket("udp4", nameserver+":53")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { conn.Close(); <-done })
	go func() {
		defer close(done)
		buf := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if reply, err := loopbackAnswer(buf[:n]); err == nil {
				_, _ = conn.WriteTo(reply, from)
			}
		}
	}()
}

// loopbackAnswer is the reply to a DNS query of one question (RFC 1035, 4.1):
// 127.0.0.1 if an A record is wanted, and nothing for other types.
func loopbackAnswer(query []byte) ([]byte, error) {
	const head, typeA = 12, 1
	end := head
	for end < len(query) && query[end] != 0 {
		end += 1 + int(query[end])
	}
	if end += 5; end > len(query) {
		return nil, fmt.Errorf("a query of %d bytes", len(query))
	}
	reply := append([]byte{query[0], query[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, query[head:end]...)
	if query[end-4] == 0 && query[end-3] == typeA {
		reply[7] = 1
		reply = append(reply, 0xc0, head, 0, typeA, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1)
	}
	return reply, nil
}
