package template

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/upstream"
)

// Behind a proxy a guarded build reaches what it would without one: a name is
// resolved here, its address must be public, and the proxy hears no name.
func TestGuardBehindProxy(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var asked []string
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r, err := http.ReadRequest(bufio.NewReader(c))
			if err == nil {
				mu.Lock()
				asked = append(asked, r.Method+" "+r.RequestURI)
				mu.Unlock()
				answer := "HTTP/1.1 200 OK\r\n\r\nhello"
				if strings.HasPrefix(r.RequestURI, "1.2.3.5:") {
					answer = "HTTP/1.1 403 Forbidden\r\n\r\n"
				}
				_, _ = io.WriteString(c, answer)
			}
			c.Close()
		}
	})
	t.Cleanup(func() { l.Close(); serving.Wait() })
	proxy, err := upstream.Parse("http://ann:hush@" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	guard := &Guard{Proxy: proxy}
	for _, tt := range []struct {
		address, heard, asked string
		want                  error
	}{
		{"1.2.3.4:443", "hello", "CONNECT 1.2.3.4:443", nil},
		{"[::ffff:1.2.3.4]:https", "hello", "CONNECT 1.2.3.4:443", nil},
		{"10.0.0.1:443", "", "", errPrivateAddress},
		{"localhost:443", "", "", errPrivateAddress},
		{"169.254.169.254:80", "", "", errPrivateAddress},
	} {
		conn, err := guard.transport("registry.example").DialContext(t.Context(), "tcp", tt.address)
		heard := ""
		if err == nil {
			all, _ := io.ReadAll(conn)
			heard = string(all)
			conn.Close()
		}
		mu.Lock()
		got := strings.Join(asked, " ")
		asked = nil
		mu.Unlock()
		if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) || heard != tt.heard || got != tt.asked {
			t.Errorf("%s: %q, %v, the proxy is asked %q; want %+v", tt.address, heard, err, got, tt)
		}
	}
	_, err = (&Builder{Guard: guard}).findImage(t.Context(), "1.2.3.5/team/tool:1")
	if !errors.Is(err, sandbox.Unavailable) || !strings.Contains(err.Error(), "the upstream proxy refuses the connection (403 Forbidden)") || strings.Contains(err.Error(), "hush") {
		t.Errorf("a registry that the proxy refuses: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Contains(asked, "CONNECT 1.2.3.5:443") {
		t.Errorf("for the registry the proxy is asked %q", asked)
	}
}

// Requests of builds go the way that the environment names now, whatever was read of it
// before: the operator's proxy is exported after the start.
func TestTransportReadsTheEnvironment(t *testing.T) {
	r := &http.Request{URL: &url.URL{Scheme: "https", Host: "registry.example"}}
	_, _ = http.ProxyFromEnvironment(r) // which keeps what it finds
	for _, name := range []string{"HTTPS_PROXY", "NO_PROXY", "no_proxy"} {
		t.Setenv(name, "")
	}
	t.Setenv("https_proxy", "http://proxy.example:3128")
	var operator *Guard
	for name, transport := range map[string]*http.Transport{
		"the operator": operator.transport("registry.example"), "a registry of the operator's": (&Guard{Registries: []string{"registry.example"}}).transport("registry.example"),
	} {
		if way, err := transport.Proxy(r); err != nil || way == nil || way.Host != "proxy.example:3128" {
			t.Errorf("%s: %v, %v", name, way, err)
		}
	}
}
