package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct{ address, url string }{
		"http://proxy.example":                  {"proxy.example:3128", "http://proxy.example:3128"},
		"HTTP://10.0.0.1:8080/":                 {"10.0.0.1:8080", "http://10.0.0.1:8080"},
		"http://ann:p%40ss%2F:w@proxy.example:": {"proxy.example:3128", "http://ann:p%40ss%2F%3Aw@proxy.example:3128"},
		"http://ann@[fd00::1]:80":               {"[fd00::1]:80", "http://ann@[fd00::1]:80"},
	} {
		p, err := Parse(text)
		if err != nil || p.String() != want.address || p.URL() != want.url || fmt.Sprint(p) != want.address {
			t.Errorf("%s: %v, %v, want %v", text, p, err, want)
		}
	}
	for text, says := range map[string]string{
		"":                                  "must begin with http://",
		"proxy.example:3128":                "must begin with http://",
		"10.0.0.1:3128":                     "must begin with http://",
		"https://u:hush@proxy.example":      "reached by TLS (https://) is not supported",
		"socks5://u:hush@proxy.example":     "only an HTTP proxy",
		"http://":                           "names no host",
		"http://u:hush@":                    "names no host",
		"http://u:hush@:3128":               "names no host",
		"http://u:hush@proxy.example:0":     "the port",
		"http://u:hush@proxy.example:99999": "the port",
		"http://u:hush@proxy.example/p":     "nothing may follow",
		"http://u:hush@proxy.example?a":     "nothing may follow",
		"http://u:hush@proxy.example#a":     "nothing may follow",
		"http://u:hu%zzsh@proxy.example":    "%40",
		"http://u:hush/x@proxy.example":     "%2F",
		"http://u:hu sh@proxy.example":      "%40",
		"http://u:hush@proxy.example:abc":   "%40",
		"http://u%3Av:hush@proxy.example":   "no colon",
	} {
		p, err := Parse(text)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v, %v, want %q", text, p, err, says)
		}
	}
}

// proxy serves each connection with handle, which gets the head of the request.
func proxy(t *testing.T, user string, handle func(head *http.Request, c net.Conn)) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					handle(r, c)
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	p, err := Parse("http://" + user + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var target = netip.MustParseAddrPort("1.2.3.4:443")

func TestDial(t *testing.T) {
	t.Parallel()
	asked := make(chan *http.Request, 1)
	answer := func(head string) func(*http.Request, net.Conn) {
		return func(r *http.Request, c net.Conn) {
			asked <- r
			_, _ = io.WriteString(c, head+"early ")
			_, _ = io.Copy(c, c)
		}
	}
	for name, head := range map[string]string{
		"usual":         "HTTP/1.1 200 Connection established\r\nVia: 1.1 proxy\r\n\r\n",
		"without words": "HTTP/1.0 200\r\n\r\n",
		"another 2xx":   "HTTP/1.1 204 No Content\r\nContent-Length: 100\r\n\r\n",
		"bare newlines": "HTTP/1.1 200 OK\nA: b\n\n",
		"the longest":   "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("a", maxHead-len("HTTP/1.1 200 OK\r\nA: \r\n\r\n")) + "\r\n\r\n",
	} {
		p := proxy(t, "ann:p%40ss%3Aword@", answer(head))
		conn, err := p.Dial(t.Context(), netip.AddrPortFrom(netip.MustParseAddr("::ffff:1.2.3.4"), 443))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		r := <-asked
		r.Header.Set("Authorization", r.Header.Get("Proxy-Authorization"))
		if user, password, ok := r.BasicAuth(); r.Method != "CONNECT" || r.RequestURI != "1.2.3.4:443" || r.Host != "1.2.3.4:443" || user != "ann" || password != "p@ss:word" || !ok {
			t.Errorf("%s: asked for %s %s (%s) as %q %q", name, r.Method, r.RequestURI, r.Host, user, password)
		}
		_, _ = io.WriteString(conn, "late")
		_ = conn.CloseWrite()
		if got, err := io.ReadAll(conn); string(got) != "early late" || err != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		conn.Close()
	}
	p := proxy(t, "", answer("HTTP/1.1 200 OK\r\n\r\n"))
	conn, err := p.Dial(t.Context(), netip.MustParseAddrPort("[2001:db8::1]:80"))
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if r := <-asked; r.RequestURI != "[2001:db8::1]:80" || r.Header.Get("Proxy-Authorization") != "" {
		t.Errorf("without a user: %s, %v", r.RequestURI, r.Header)
	}
}

func TestDialFails(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, user, answer string
		status             int
		says               string
	}{
		{"forbidden", "ann:hush@", "HTTP/1.1 403 ann:hush\r\n\r\n", 403, "refuses the connection (403 Forbidden)"},
		{"no user", "", "HTTP/1.1 407 No\r\n\r\n", 407, "the server has none for it (407"},
		{"a wrong password", "ann:hush@", "HTTP/1.1 407 No\r\n\r\n", 407, "does not accept the server's user and password (407"},
		{"nobody there", "ann:hush@", "HTTP/1.1 503 ann:hush\r\n\r\n", 503, "does not connect: 503 Service Unavailable"},
		{"elsewhere", "", "HTTP/1.1 302 Found\r\nLocation: http://login.example/\r\n\r\n", 302, "302 Found"},
		{"an odd status", "", "HTTP/1.1 999 Odd\r\n\r\n", 999, "does not connect: 999"},
		{"garbage", "ann:hush@", "SSH-2.0-ann:hush\r\n\r\n", 0, "does not answer as an HTTP proxy does"},
		{"an odd number", "", "HTTP/1.1 2000 OK\r\n\r\n", 0, "does not answer as an HTTP proxy does"},
		{"a head that is too long", "ann:hush@", "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("hush", maxHead/4) + "\r\n\r\n", 0, "more than 16 KiB"},
		{"half a head", "", "HTTP/1.1 200 OK\r\n", 0, "it ended the connection"},
		{"nothing", "", "", 0, "it ended the connection"},
	} {
		p := proxy(t, tt.user, func(_ *http.Request, c net.Conn) { _, _ = io.WriteString(c, tt.answer) })
		conn, err := p.Dial(t.Context(), target)
		var told *Error
		if conn != nil || !errors.As(err, &told) || told.Status != tt.status || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, %v, want %d %q", tt.name, conn, err, tt.status, tt.says)
			continue
		}
		if text := err.Error(); strings.Contains(text, "hush") || strings.Contains(text, "127.0.0.1") {
			t.Errorf("%s: it tells too much: %s", tt.name, text)
		}
	}
	closed, err := Parse("http://ann:hush@127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := closed.Dial(t.Context(), target); err == nil || err.Error() != "the upstream proxy cannot be reached: connection refused" {
		t.Errorf("nobody listens: %v", err)
	}
}

func TestDialEnds(t *testing.T) {
	t.Parallel()
	slow := proxy(t, "", func(_ *http.Request, c net.Conn) {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
		_, _ = io.Copy(io.Discard, c) // until the other side gives up
	})
	slow.timeout = 100 * time.Millisecond
	if _, err := slow.Dial(t.Context(), target); err == nil || !strings.Contains(err.Error(), "no answer in time") {
		t.Errorf("a proxy that is silent: %v", err)
	}
	slow.timeout = dialTimeout
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	began := time.Now()
	if _, err := slow.Dial(ctx, target); err == nil || time.Since(began) > dialTimeout/2 {
		t.Errorf("given up after %v: %v", time.Since(began), err)
	}
	// A tunnel that is there is not bounded.
	quick := proxy(t, "", func(_ *http.Request, c net.Conn) {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		time.Sleep(300 * time.Millisecond)
		_, _ = io.WriteString(c, "hello")
	})
	quick.timeout = 200 * time.Millisecond
	conn, err := quick.Dial(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got, err := io.ReadAll(conn); string(got) != "hello" || err != nil {
		t.Errorf("a slow far end: %q, %v", got, err)
	}
}
