package rig

import (
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig/certs"
)

// HostAddress returns a non-loopback IPv4 address of this machine.
func HostAddress(t *testing.T) netip.Addr {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(n.IP.To4()); ok && addr.IsGlobalUnicast() {
				return addr
			}
		}
	}
	t.Skip("this machine has no address but those of the loopback interface")
	return netip.Addr{}
}

// NameServer resolves every name below .example to addr, and returns its own address.
func NameServer(t *testing.T, addr netip.Addr) string {
	t.Helper()
	socket, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := socket.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Additionals = true, nil
			q := m.Questions[0]
			if q.Type == dnsmessage.TypeA && strings.HasSuffix(q.Name.String(), ".example.") {
				head := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 60}
				m.Answers = []dnsmessage.Resource{{Header: head, Body: &dnsmessage.AResource{A: addr.As4()}}}
			}
			if out, err := m.Pack(); err == nil {
				_, _ = socket.WriteTo(out, from)
			}
		}
	})
	t.Cleanup(func() { socket.Close(); serving.Wait() })
	return socket.LocalAddr().String()
}

// Site is an HTTPS server for names below .example, with a CA of its own.
type Site struct {
	Port  int
	Roots string // PEM file of the CA, which the server's user can read
}

// NewSite serves HTTPS at addr.
func NewSite(t *testing.T, addr netip.Addr, handler http.Handler) Site {
	t.Helper()
	ca := certs.SelfSigned(t)
	s := httptest.NewUnstartedServer(handler)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Issue(t, "*.example", "api.example").TLS()}}
	l, err := net.Listen("tcp4", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	s.Listener.Close()
	s.Listener = l
	s.StartTLS()
	t.Cleanup(s.Close)
	dir, err := os.MkdirTemp("", "roots-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	roots := filepath.Join(dir, "roots.pem")
	if err := os.WriteFile(roots, ca.PEM(), 0o644); err != nil {
		t.Fatal(err)
	}
	return Site{l.Addr().(*net.TCPAddr).Port, roots}
}
