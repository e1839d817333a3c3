package traffic_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/signing"
)

// private makes the ports of w private, and has one of them show what arrives.
func (w *world) private() (own, link string) {
	w.t.Helper()
	w.mu.Lock()
	w.rules = `{"private":true}`
	w.mu.Unlock()
	w.listen(3000, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(rw, "%s|%s|%s", r.RequestURI, r.Header.Get("Cookie"), r.Header.Get("E2b-Traffic-Access-Token"))
	}))
	tokens := signing.NewPorts(func(id string) string { return "traffic token of " + id }, nil)
	link, _, err := tokens.Sign(w.id, 3000, time.Hour)
	if err != nil {
		w.t.Fatal(err)
	}
	return tokens.Of(w.id), link
}

func header(pairs ...string) func(*http.Request) {
	return func(r *http.Request) {
		for i := 0; i < len(pairs); i += 2 {
			r.Header.Add(pairs[i], pairs[i+1])
		}
	}
}

func TestPrivatePorts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	own, link := w.private()
	const by, cookie = "E2B-Traffic-Access-Token", signing.PortParam + "="
	for _, tt := range []struct {
		name   string
		path   string
		change func(*http.Request)
		status int
		body   string // what arrives, of those that do
	}{
		{"without a token", "/", header(), 403, ""},
		{"a wrong one", "/", header(by, "x"), 403, ""},
		{"its own", "/a?b=c", header(by, own), 200, "/a?b=c||"},
		{"one for the port", "/", header(by, link), 200, "/||"},
		{"a link, not of a browser", "/a?x=%zz&" + cookie + link + "&y=1", header(), 200, "/a?x=%zz&y=1||"},
		{"a link's token, wrong", "/?" + cookie + link + "0", header(), 403, ""},
		{"a cookie", "/", header("Cookie", "a=b; "+cookie+link+"; c=d"), 200, "/|a=b; c=d|"},
		{"a cookie beside a wrong one", "/", header("Cookie", cookie+"x; "+cookie+own), 200, "/||"},
		{"a cookie, from its own page", "/", header("Cookie", cookie+link, "Origin", "http://3000-x.test"), 200, "/||"},
		{"a cookie, from another page", "/", header("Cookie", cookie+link, "Origin", "http://3001-x.test"), 403, ""},
		{"a cookie, from nowhere", "/", header("Cookie", cookie+link, "Origin", "null"), 403, ""},
		{"a cookie, an image of another page", "/", header("Cookie", cookie+link, "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors"), 403, ""},
		{"a cookie, somebody follows a link", "/", header("Cookie", cookie+link, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"), 200, "/||"},
	} {
		req := w.request("GET", tt.path, 3000, nil)
		req.Host = "3000-x.test" // not one that names the port: the headers do
		tt.change(req)
		resp, body := w.do(req)
		if resp.StatusCode != tt.status || tt.status == 200 && body != tt.body {
			t.Errorf("%s: %d %s", tt.name, resp.StatusCode, body)
		}
		if tt.status == 403 && (!strings.Contains(body, `"sandboxId":"`+w.id+`"`) || !strings.Contains(body, `"code":403`)) {
			t.Errorf("%s: %s", tt.name, body)
		}
	}
	w.listen(sandbox.EnvdPort, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(204) }))
	if resp, _ := w.do(w.request("GET", "/health", sandbox.EnvdPort, nil)); resp.StatusCode != 204 {
		t.Errorf("envd: %d", resp.StatusCode)
	}
	w.mu.Lock()
	w.state = sandbox.Paused
	w.mu.Unlock()
	for token, want := range map[string]int{"x": 0, link: 1} {
		w.wakes = 0
		req := w.request("GET", "/", 3000, nil)
		req.Header.Set(by, token)
		if w.do(req); w.wakes != want {
			t.Errorf("with %q it was woken %d times", token, w.wakes)
		}
	}
	w.rules = "what nobody can read"
	if resp, body := w.do(w.request("GET", "/", 3000, nil)); resp.StatusCode != 403 {
		t.Errorf("rules that cannot be read: %d %s", resp.StatusCode, body)
	}
}

// A browser follows a link once, and from then on has a cookie.
func TestLinkInABrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, link := w.private()
	req := w.request("GET", "//evil.test/page?a=1&"+signing.PortParam+"="+link, 3000, nil)
	browser(req)
	req.Header.Set("X-Forwarded-Proto", "https")
	resp, _ := w.do(req)
	cookies := resp.Cookies()
	if resp.StatusCode != 303 || resp.Header.Get("Location") != "/evil.test/page?a=1" || len(cookies) != 1 {
		t.Fatalf("%d %v", resp.StatusCode, resp.Header)
	}
	c := cookies[0]
	if c.Value != link || !c.HttpOnly || !c.Secure || c.Path != "/" || c.Domain != "" || c.SameSite != http.SameSiteLaxMode || time.Until(c.Expires) < 59*time.Minute {
		t.Errorf("the cookie: %+v", c)
	}
	req = w.request("GET", "/", 3000, nil)
	browser(req)
	if resp, body := w.do(req); resp.StatusCode != 403 || !strings.Contains(body, "<h1>Sandbox is secured with traffic access token. Token header &#39;e2b-traffic-access-token&#39; is missing") || !strings.Contains(body, "Ask its owner") {
		t.Errorf("the page: %d %s", resp.StatusCode, body)
	}
}

// A preflight brings no token: it is answered here, and nothing inside sees it.
func TestPreflightOfPrivatePorts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.private()
	req := w.request("OPTIONS", "/", 3000, nil)
	header("Origin", "https://app.example", "Access-Control-Request-Method", "PUT", "Access-Control-Request-Headers", "e2b-traffic-access-token")(req)
	resp, _ := w.do(req)
	h := resp.Header
	if resp.StatusCode != 204 || h.Get("Access-Control-Allow-Origin") != "*" || h.Get("Access-Control-Allow-Headers") != "e2b-traffic-access-token" ||
		!strings.Contains(h.Get("Access-Control-Allow-Methods"), "PUT") || h.Get("Access-Control-Allow-Credentials") != "" || w.dials != 0 {
		t.Errorf("%d %v, %d dials", resp.StatusCode, h, w.dials)
	}
	if resp, _ := w.do(w.request("OPTIONS", "/", 3000, nil)); resp.StatusCode != 403 {
		t.Errorf("another OPTIONS: %d", resp.StatusCode)
	}
}

// Services see the host that the owner wants, and those that speak TLS are spoken
// to so.
func TestHostAndTLSInside(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.rules = `{"host":"localhost:${PORT}","tls_ports":[8443]}`
	show := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(rw, "%s %s %v", r.Host, r.Header.Get("X-Forwarded-Host"), r.TLS != nil)
	})
	w.listen(3000, show)
	w.listen(sandbox.EnvdPort, show)
	secure := httptest.NewTLSServer(show)
	defer secure.Close()
	w.ports[8443] = secure.Listener.Addr().String()
	for port, want := range map[uint16]string{
		3000: "localhost:3000 mine.test false", 8443: "localhost:8443 mine.test true", sandbox.EnvdPort: "mine.test mine.test false",
	} {
		req := w.request("GET", "/", port, nil)
		req.Host = "mine.test"
		if _, body := w.do(req); body != want {
			t.Errorf("%d: %s", port, body)
		}
	}
}
