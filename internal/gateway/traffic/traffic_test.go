package traffic_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/traffic"
	internalrpc "github.com/cloud-sandbox/cloud-sandbox/internal/rpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/signing"
)

// world is one Sandbox whose ports are handlers of the test, behind a Proxy.
type world struct {
	t     *testing.T
	id    string
	url   string
	mu    sync.Mutex
	state sandbox.State
	boot  int64 // number of the present Boot
	rules sandbox.Ingress
	wakes int
	full  bool              // nothing more may run
	ports map[uint16]string // addresses that answer
	opens func()            // called before a client gets the answer that nothing listens; may be nil
	dials int
	held  bool  // its Tenant is suspended
	away  error // of its records; may be nil

	loopback map[uint16]string // addresses of ports that the link does not lead to
}

const (
	ourKey   = "e2b_0123456789012345678901234567890123456789"
	ourJWT   = "eyJhbGciOiJIUzI1NiJ9.eyJ0ZW5hbnQiOiJvdXJzIn0.c2lnbmF0dXJlIG9mIG91cnM"
	theirJWT = "eyJhbGciOiJIUzI1NiJ9.eyJ0ZW5hbnQiOiJ0aGVpcnMifQ.c2lnbmF0dXJlIG9mIHRoZWlycw"
)

// wake resumes what is paused.
func (w *world) wake(_ context.Context, sb sandbox.Sandbox) (sandbox.Sandbox, error) {
	w.mu.Lock()
	w.wakes++
	full := w.full
	w.mu.Unlock()
	if full {
		return sb, sandbox.Errorf(sandbox.Exhausted, "no more may run")
	}
	if sb.State != sandbox.Paused {
		return sb, sandbox.Errorf(sandbox.Conflict, "it is %s", sb.State)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state == sandbox.Paused {
		w.boot++
		w.state = sandbox.Running
	}
	sb.State, sb.Boot.Number = sandbox.Running, w.boot
	return sb, nil
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, id: sandbox.NewSandboxID(), state: sandbox.Running, boot: 1, ports: map[uint16]string{}}
	w.listen(sandbox.GuestPort, http.NotFoundHandler())
	proxy := traffic.New(traffic.Config{
		Records: w, Nodes: w, Enter: w.enter, Use: func(context.Context, string) {}, Wake: w.wake,
		Forward: func(_ context.Context, conn net.Conn, port uint16) (net.Conn, error) {
			conn.Close()
			if addr, ok := w.loopback[port]; ok {
				return net.Dial("tcp", addr)
			}
			return nil, sandbox.Errorf(sandbox.Unavailable, "nobody listens")
		},
		AccessToken: func(id string) string { return "token of " + id },
		Tokens:      signing.NewPorts(func(id string) string { return "traffic token of " + id }, nil),
		OwnToken:    func(token string) bool { return token == ourJWT },
		Log:         slog.New(slog.DiscardHandler),
	})
	t.Cleanup(proxy.Close)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		to, ok, err := traffic.TargetOf(r, nobodys)
		if !ok {
			http.Error(rw, "not for a port", http.StatusTeapot)
			return
		}
		proxy.Serve(rw, r, to, err)
	}))
	srv.Config.Protocols = internalrpc.Protocols()
	srv.Start()
	t.Cleanup(srv.Close)
	w.url = srv.URL
	return w
}

// enter lets requests in whose Tenant is not suspended.
func (w *world) enter(ctx context.Context, _ sandbox.TenantID) (context.Context, func(), error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held {
		return nil, nil, sandbox.ErrSuspended
	}
	ctx, cancel := context.WithCancel(ctx)
	return ctx, cancel, nil
}

// listen has h answer at a port of the Sandbox.
func (w *world) listen(port uint16, h http.Handler) {
	srv := httptest.NewUnstartedServer(h)
	srv.Config.Protocols = internalrpc.Protocols()
	srv.Start()
	w.t.Cleanup(srv.Close)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ports[port] = srv.Listener.Addr().String()
}

func (w *world) SandboxByID(_ context.Context, id string) (sandbox.Sandbox, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.away != nil {
		return sandbox.Sandbox{}, w.away
	}
	if id != w.id {
		return sandbox.Sandbox{}, sandbox.NotFound
	}
	return sandbox.Sandbox{ID: id, Tenant: "t", State: w.state, Ingress: w.rules, Boot: sandbox.Boot{ID: "b", Number: w.boot, Node: "n"}}, nil
}

func (w *world) SandboxesByID(ctx context.Context, ids []string) (all []sandbox.Sandbox, err error) {
	for _, id := range ids {
		sb, err := w.SandboxByID(ctx, id)
		if errors.Is(err, sandbox.Unavailable) {
			return nil, err
		}
		if err == nil {
			all = append(all, sb)
		}
	}
	return all, nil
}

func (w *world) Dial(ctx context.Context, node string, to sandbox.BootRef, port uint16) (net.Conn, error) {
	w.mu.Lock()
	addr, ok := w.ports[port]
	w.dials++
	number, state := w.boot, w.state
	w.mu.Unlock()
	if state != sandbox.Running {
		return nil, sandbox.Errorf(sandbox.NotFound, "no such boot")
	}
	if node != "n" || to != (sandbox.BootRef{BootID: "b", SandboxID: w.id, Number: number, Tenant: "t"}) {
		return nil, errors.New("somewhere else")
	}
	if !ok {
		if w.opens != nil {
			w.opens()
		}
		return nil, sandbox.Errorf(sandbox.Unavailable, "nothing answers")
	}
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}

// request is one for a port, by headers.
func (w *world) request(method, path string, port uint16, body io.Reader) *http.Request {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, body)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("E2b-Sandbox-Id", w.id)
	req.Header.Set("E2b-Sandbox-Port", fmt.Sprint(port))
	return req
}

func (w *world) do(req *http.Request) (*http.Response, string) {
	w.t.Helper()
	resp, err := http.DefaultTransport.RoundTrip(req) // which follows nothing
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp, string(body)
}

// nobodys is the argument of TargetOf for an installation without requests of its own.
func nobodys(*http.Request) bool { return false }

// A request whose headers name envd may be the installation's own; one that names
// another port, or whose host names a port, is not.
func TestTargetOfOwn(t *testing.T) {
	t.Parallel()
	id := "i0123456789abcdefghij"
	for _, tt := range []struct {
		host, port string
		ok         bool
	}{
		{"api.example.com", "49983", false}, {"localhost", "49983", false}, {"localhost", "49999", true}, {"49983-" + id + ".example.com", "49983", true},
	} {
		r := &http.Request{Host: tt.host, Header: http.Header{"E2b-Sandbox-Id": {id}, "E2b-Sandbox-Port": {tt.port}}}
		if _, ok, err := traffic.TargetOf(r, func(*http.Request) bool { return true }); ok != tt.ok || err != nil {
			t.Errorf("%s, %s: %v, %v", tt.host, tt.port, ok, err)
		}
	}
}

func TestTargetOf(t *testing.T) {
	t.Parallel()
	id := "i0123456789abcdefghij"
	for _, tt := range []struct {
		host, id, port string
		want           traffic.Target
		ok, bad        bool
	}{
		{host: "localhost:8080"},
		{host: "3000-name.example.com"}, // of a workspace, say
		{host: "3000-" + id},            // no domain
		{host: "3000-" + id + ".localhost:8080", want: traffic.Target{SandboxID: id, Port: 3000}, ok: true},
		{host: "3000-" + strings.ToUpper(id) + ".BOX.Example", want: traffic.Target{SandboxID: id, Port: 3000}, ok: true},
		{host: "49983-" + id + "-6532622b.e2b.example", want: traffic.Target{SandboxID: id, Port: 49983}, ok: true},
		{host: "0-" + id + ".localhost", ok: true, bad: true},
		{host: "65536-" + id + ".localhost", ok: true, bad: true},
		{host: "3000-" + id + ".localhost", id: "other", port: "1", want: traffic.Target{SandboxID: id, Port: 3000}, ok: true},
		{host: "127.0.0.1", id: id, port: "49983", want: traffic.Target{SandboxID: id, Port: 49983}, ok: true},
		{host: "box.example", id: id + "-client", port: "1", want: traffic.Target{SandboxID: id, Port: 1}, ok: true},
		{host: "localhost", id: id, ok: true, bad: true},
		{host: "localhost", port: "1", ok: true, bad: true},
		{host: "localhost", id: "../x", port: "1", ok: true, bad: true},
		{host: "localhost", id: id, port: "x", ok: true, bad: true},
		{host: "localhost", id: id, port: "65536", ok: true, bad: true},
		{host: "localhost", id: id, port: "0", ok: true, bad: true},
		{host: "localhost", id: id, port: "-1", ok: true, bad: true},
	} {
		r := &http.Request{Host: tt.host, Header: http.Header{}}
		if tt.id != "" {
			r.Header.Set("E2b-Sandbox-Id", tt.id)
		}
		if tt.port != "" {
			r.Header.Set("E2b-Sandbox-Port", tt.port)
		}
		got, ok, err := traffic.TargetOf(r, nobodys)
		if ok != tt.ok || (err != nil) != tt.bad || err == nil && got != tt.want {
			t.Errorf("%+v: %+v, %v, %v", tt, got, ok, err)
		}
	}
}

// A request arrives as it was sent, and so does its answer.
func TestPassesThrough(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.listen(3000, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		rw.Header().Set("X-Said", r.Method+" "+r.RequestURI+" "+r.Header.Get("X-Own")+" "+r.Trailer.Get("X-Last")+" "+r.Host)
		rw.Header().Add("Set-Cookie", "a=b")
		rw.Header().Add("Set-Cookie", "c=d")
		rw.Header().Set("Trailer", "X-Sum")
		rw.WriteHeader(http.StatusTeapot)
		rw.Write(body)
		rw.Header().Set("X-Sum", "done")
	}))
	req := w.request("PATCH", "/api/v1/sessions/../a%2Fb//c?x=%zz&;y", 3000, io.NopCloser(strings.NewReader("body")))
	req.URL.RawPath, req.URL.Path = "/api/v1/sessions/../a%2Fb//c", "/api/v1/sessions/../a/b//c"
	req.Host = "localhost"
	req.Header.Set("X-Own", "mine")
	req.Trailer = http.Header{"X-Last": {"end"}}
	resp, body := w.do(req)
	if got, want := resp.Header.Get("X-Said"), "PATCH /api/v1/sessions/../a%2Fb//c?x=%zz&;y mine end localhost"; got != want {
		t.Errorf("it arrived as %q, want %q", got, want)
	}
	if resp.StatusCode != http.StatusTeapot || body != "body" || len(resp.Cookies()) != 2 || resp.Trailer.Get("X-Sum") != "done" {
		t.Errorf("the answer: %v %q %v", resp, body, resp.Trailer)
	}
	if n := resp.Header["X-Content-Type-Options"]; n != nil {
		t.Errorf("something was added: %v", resp.Header)
	}
}

// Services inside see no credential of this installation, and all of their own. All forms
// of real credentials are tried in tests/hostile.
func TestCredentialsStayOutside(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	show := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for _, h := range []http.Header{r.Header, r.Trailer} {
			for _, name := range []string{"X-Api-Key", "Authorization", "X-Access-Token", "Sec-Websocket-Protocol", "Cookie"} {
				fmt.Fprintf(rw, "%s|", strings.Join(h[name], "+"))
			}
		}
		fmt.Fprint(rw, r.URL.RawQuery)
	})
	for _, port := range []uint16{3000, sandbox.EnvdPort, sandbox.InterpreterPort} {
		w.listen(port, show)
	}
	token, own := "token of "+w.id, "traffic token of "+w.id
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+ourKey))
	for _, tt := range []struct {
		name   string
		port   uint16
		query  string
		header []string // pairs
		want   string   // of the head
	}{
		{"ours", 3000, "", []string{"X-Api-Key", ourKey, "Authorization", "Bearer " + ourJWT, "X-Access-Token", token}, "|||||"},
		{"theirs", 3000, "a=%zz&&b", []string{"X-Api-Key", "their own", "Authorization", "Bearer theirs", "X-Access-Token", "theirs", "Cookie", "a=b;c=d"}, "their own|Bearer theirs|theirs||a=b;c=d|"},
		{"somebody's JWT", 3000, "t=" + theirJWT, []string{"Authorization", "Bearer " + theirJWT, "Sec-WebSocket-Protocol", "a, bearer." + theirJWT}, "|Bearer " + theirJWT + "||a, bearer." + theirJWT + "||"},
		{"Basic", 3000, "", []string{"Authorization", "Basic dXNlcjo=", "Authorization", basic}, "|Basic dXNlcjo=||||"},
		{"the second one", 3000, "", []string{"X-Api-Key", "mine", "X-Api-Key", strings.ToUpper(ourKey)}, "mine|||||"},
		{"a JWT that something stands before", 3000, "", []string{"Authorization", "Bearer key-" + ourJWT}, "|||||"},
		{"in a protocol", 3000, "", []string{"Sec-WebSocket-Protocol", "chat, bearer." + ourJWT, "Sec-WebSocket-Protocol", "bearer." + ourJWT}, "|||chat||"},
		{"in cookies", 3000, "", []string{"Cookie", "a=b; k=" + ourKey, "Cookie", signing.PortParam + "=x"}, "||||a=b|"},
		{"in the query", 3000, "a=1&k=" + ourKey + "&cloud%5Fsandbox_port=x&b=%2", nil, "|||||"},
		{"envd's token, for envd", sandbox.EnvdPort, "", []string{"X-Api-Key", ourKey, "Authorization", "Basic dXNlcjo=", "X-Access-Token", token}, "|Basic dXNlcjo=|" + token + "|||"},
		{"envd's token, for the interpreter", sandbox.InterpreterPort, "", []string{"X-Access-Token", token}, "||" + token + "|||"},
		{"another sandbox's access token", 3000, "", []string{"X-Access-Token", strings.Repeat("0a", 32)}, "|||||"},
		{"the same in words", 3000, "", []string{"X-Access-Token", "Bearer " + strings.Repeat("0A", 32)}, "|||||"},
		{"another sandbox's access token, for envd", sandbox.EnvdPort, "", []string{"X-Access-Token", strings.Repeat("0a", 32)}, "||unknown|||"},
		{"the traffic token, for envd", sandbox.EnvdPort, "", []string{"X-Access-Token", own}, "|||||"},
		{"trailers", 3000, "", []string{"trailers", ""}, "|||||"},
	} {
		req := w.request("POST", "/?"+tt.query, tt.port, strings.NewReader("x"))
		for i := 0; i < len(tt.header); i += 2 {
			req.Header.Add(tt.header[i], tt.header[i+1])
		}
		trailers := "|||||"
		if tt.name == "trailers" {
			req.ContentLength = -1
			req.Trailer = http.Header{"X-Api-Key": {ourKey}, "Authorization": {"Bearer " + theirJWT, "Bearer  " + ourJWT}, "Cookie": {"a=b; k=" + ourKey}}
			trailers = "|Bearer " + theirJWT + "|||a=b|"
		}
		query := strings.NewReplacer("k="+ourKey+"&", "", "cloud%5Fsandbox_port=x&", "").Replace(tt.query)
		if _, body := w.do(req); body != tt.want+trailers+query {
			t.Errorf("%s: %q, want %q", tt.name, body, tt.want+trailers+query)
		}
	}
}

// A path is never changed. A path that contains a credential of this installation is
// refused.
func TestCredentialsInPaths(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.listen(3000, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, r.URL.EscapedPath()) }))
	basic := base64.StdEncoding.EncodeToString([]byte("user:" + ourKey))
	escaped := strings.ReplaceAll(url.PathEscape(ourKey), "e", "%65")
	for path, status := range map[string]int{
		"/keys/" + ourKey:                               400,
		"/" + strings.ToUpper(ourKey) + "/x":            400,
		"/" + escaped:                                   400,
		"/" + strings.ReplaceAll(escaped, "%", "%25"):   400,
		"/t/" + ourJWT + "/x":                           400,
		"/auth=" + basic:                                400,
		"/a/b/" + basic + "/c":                          400,
		"/p1.1893456000." + strings.Repeat("A", 43):     400,
		"/x/token of " + w.id:                           400,
		"/t/" + theirJWT:                                200,
		"/e2b_0123/" + strings.Repeat("0a", 32) + "%2F": 200,
		"/plain": 200,
	} {
		req := w.request("GET", "/", 3000, nil)
		req.URL.Opaque = strings.ReplaceAll(path, " ", "%20")
		resp, body := w.do(req)
		if resp.StatusCode != status || status == 400 && !strings.Contains(body, "leave it out of the path") || status == 200 && body != path {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
	}
}

// The search for credentials is fast for any input.
func TestCredentialsAreLookedForQuickly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.listen(3000, http.NotFoundHandler())
	for _, part := range []string{"ey", "eyaaaaaaaaaa.", "e2b_", "%25", ".", "p1.1.", "vol1.", "A", "%", "ey.ey.ey."} {
		req := w.request("GET", "/?"+strings.Repeat(part, 4000/len(part)), 3000, nil)
		req.Header.Set("X-Long", strings.Repeat(part, 40_000/len(part)))
		began := time.Now()
		if resp, _ := w.do(req); resp.StatusCode != http.StatusNotFound || time.Since(began) > 20*time.Second {
			t.Errorf("%q: %s after %v", part, resp.Status, time.Since(began))
		}
	}
}

func TestNotThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.listen(sandbox.EnvdPort, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(204) }))
	ask := func(method, path string, change func(*http.Request)) (int, string) {
		req := w.request(method, path, sandbox.EnvdPort, nil)
		if change != nil {
			change(req)
		}
		resp, body := w.do(req)
		return resp.StatusCode, body
	}
	port := func(n string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("E2b-Sandbox-Port", n) }
	}
	gone := `{"sandboxId":"` + w.id + `","message":"The sandbox was not found","code":502}` + "\n"
	for _, tt := range []struct {
		name, method, path string
		change             func(*http.Request)
		status             int
		body               string
	}{
		{"envd", "GET", "/health", nil, 204, ""},
		{"a closed port", "GET", "/", port("4000"), 502, `{"sandboxId":"` + w.id + `","message":"The sandbox is running but port is not open","port":4000,"code":502}` + "\n"},
		{"the host's port", "GET", "/", port("49982"), 502, `{"sandboxId":"` + w.id + `","message":"The sandbox is running but port is not open","port":49982,"code":502}` + "\n"},
		{"the control plane's path", "POST", "/init", nil, 404, `{"message":"this path is not for clients","path":"/init","code":404}` + "\n"},
		{"the same in disguise", "POST", "//x/../init", nil, 404, `{"message":"this path is not for clients","path":"//x/../init","code":404}` + "\n"},
		{"nobody's", "GET", "/", func(r *http.Request) { r.Header.Set("E2b-Sandbox-Id", "nobody") }, 502, `{"sandboxId":"nobody","message":"The sandbox was not found","code":502}` + "\n"},
		{"half a target", "GET", "/", func(r *http.Request) { r.Header.Del("E2b-Sandbox-Port") }, 400, `{"message":"Missing header: E2b-Sandbox-Port","code":400}` + "\n"},
	} {
		if status, body := ask(tt.method, tt.path, tt.change); status != tt.status || body != tt.body {
			t.Errorf("%s: %d %s", tt.name, status, body)
		}
	}
	w.mu.Lock()
	w.state = sandbox.Paused
	w.mu.Unlock()
	if status, body := ask("GET", "/health", nil); status != 403 || !strings.Contains(body, `"code":403`) {
		t.Errorf("a paused one, without the token: %d %s", status, body)
	}
	withToken := func(r *http.Request) { r.Header.Set("X-Access-Token", "token of "+w.id) }
	w.mu.Lock()
	w.full = true
	w.mu.Unlock()
	if status, body := ask("GET", "/health", withToken); status != 429 || body != `{"sandboxId":"`+w.id+`","message":"no more may run","code":429}`+"\n" {
		t.Errorf("a paused one, when no more may run: %d %s", status, body)
	}
	w.mu.Lock()
	w.full, w.wakes = false, 0
	w.mu.Unlock()
	if status, body := ask("GET", "/health", withToken); status != 204 || w.wakes != 1 {
		t.Errorf("a paused one, which wakes: %d %s", status, body)
	}
	w.mu.Lock()
	w.state, w.rules = sandbox.Paused, `{"open_services":true}`
	w.mu.Unlock()
	if status, body := ask("GET", "/health", func(r *http.Request) { r.Header.Del("X-Access-Token") }); status != 204 || w.wakes != 2 {
		t.Errorf("a paused one whose services are open: %d %s", status, body)
	}
	for _, state := range []sandbox.State{sandbox.Starting, sandbox.Stopping, sandbox.Ended} {
		w.mu.Lock()
		w.state = state
		w.mu.Unlock()
		if status, body := ask("GET", "/health", withToken); status != 502 || body != gone {
			t.Errorf("%s: %d %s", state, status, body)
		}
	}
	for agent, kind := range map[string]string{
		"Mozilla/5.0 (X11) Firefox/140": "text/html; charset=utf-8", "Links Chrome": "text/html; charset=utf-8", "e2b-js-sdk/2.51.0": "application/json; charset=utf-8", "": "application/json; charset=utf-8",
	} {
		req := w.request("GET", "/", sandbox.EnvdPort, nil)
		req.Header.Set("User-Agent", agent) // alone: a browser's fetch asks for no page
		resp, body := w.do(req)
		page := strings.Contains(body, "<h1>The sandbox was not found")
		if resp.StatusCode != 502 || resp.Header.Get("Content-Type") != kind || page != strings.HasPrefix(kind, "text/html") {
			t.Errorf("%q: %d %s %s", agent, resp.StatusCode, resp.Header.Get("Content-Type"), body)
		}
	}
}

// browser makes a request one that a browser sends for a page.
func browser(r *http.Request) {
	r.Header.Set("User-Agent", "Mozilla/5.0")
	r.Header.Set("Accept", "text/html,*/*")
}

// A service that listens on loopback alone is reached through the Guest.
func TestLoopback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "within") }))
	defer srv.Close()
	w.loopback = map[uint16]string{5000: srv.Listener.Addr().String()}
	if resp, body := w.do(w.request("GET", "/", 5000, nil)); resp.StatusCode != 200 || body != "within" {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// A server that was just started may need a moment.
func TestPortThatOpensSoon(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.opens = sync.OnceFunc(func() {
		w.listen(3000, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "here") }))
	})
	if _, body := w.do(w.request("GET", "/", 3000, nil)); body != "here" || w.dials < 2 {
		t.Errorf("%s after %d attempts", body, w.dials)
	}
}

// Each piece goes on as it comes, both ways at once, in HTTP/1.1 and HTTP/2.
func TestStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.listen(3000, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		flow := http.NewResponseController(rw)
		_ = flow.EnableFullDuplex()
		rw.WriteHeader(200)
		_ = flow.Flush()
		for lines := bufio.NewScanner(r.Body); lines.Scan(); {
			fmt.Fprintln(rw, "got "+lines.Text())
			_ = flow.Flush()
		}
	}))
	for _, version := range []string{"HTTP/1.1", "HTTP/2"} {
		t.Run(version, func(t *testing.T) {
			p := new(http.Protocols)
			p.SetHTTP1(version == "HTTP/1.1")
			p.SetUnencryptedHTTP2(version == "HTTP/2")
			client := &http.Client{Transport: &http.Transport{Protocols: p}}
			defer client.CloseIdleConnections()
			in, out := io.Pipe()
			req := w.request("POST", "/", 3000, in)
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if !strings.HasPrefix(resp.Proto, version) {
				t.Errorf("by %s", resp.Proto)
			}
			answers := bufio.NewReader(resp.Body)
			for i := range 3 {
				fmt.Fprintf(out, "%d\n", i)
				if line, err := answers.ReadString('\n'); line != fmt.Sprintf("got %d\n", i) {
					t.Fatalf("%q, %v", line, err)
				}
			}
			out.Close()
			if rest, err := io.ReadAll(answers); len(rest) != 0 || err != nil {
				t.Errorf("the end: %q, %v", rest, err)
			}
		})
	}
}

// An answer comes through although the upload that it is to has not ended.
func TestEarlyAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.listen(3000, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Connection", "close")
		http.Error(rw, "no room", http.StatusInsufficientStorage)
	}))
	in, out := io.Pipe()
	defer out.Close()
	go func() {
		piece := bytes.Repeat([]byte("x"), 1<<16)
		for {
			if _, err := out.Write(piece); err != nil {
				return
			}
		}
	}()
	resp, body := w.do(w.request("POST", "/", 3000, in))
	if resp.StatusCode != http.StatusInsufficientStorage || body != "no room\n" {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// The body of an upload that was answered early is never taken for the next request.
func TestEarlyAnswerEndsTheConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	paths := make(chan string, 2)
	w.listen(3000, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		paths <- r.URL.Path
		rw.Header().Set("Connection", "close")
	}))
	for _, size := range []string{"Transfer-Encoding: chunked", "Content-Length: 1000000"} {
		t.Run(size, func(t *testing.T) {
			conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			head := fmt.Sprintf("Host: %s\r\nE2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: 3000\r\n", strings.TrimPrefix(w.url, "http://"), w.id)
			fmt.Fprintf(conn, "POST /first HTTP/1.1\r\n%s%s\r\n\r\n", head, size)
			answers := bufio.NewReader(conn)
			resp, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, err = io.Copy(io.Discard, resp.Body)
			if got := <-paths; resp.StatusCode != http.StatusOK || err != nil || got != "/first" {
				t.Fatalf("%s, %v, to %s", resp.Status, err, got)
			}
			fmt.Fprint(conn, "no chunk\r\n\r\n") // nor a request, which as the next one would be refused
			if rest, _ := io.ReadAll(answers); len(rest) != 0 {
				t.Errorf("what follows is answered %q", rest)
			}
		})
	}
}

func TestWebSocket(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.listen(3000, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(rw, r, &websocket.AcceptOptions{Subprotocols: []string{"chat"}, InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, data, err := c.Read(r.Context())
			if err != nil {
				return
			}
			_ = c.Write(r.Context(), kind, append([]byte("echo "), data...))
		}
	}))
	header := http.Header{"E2b-Sandbox-Id": {w.id}, "E2b-Sandbox-Port": {"3000"}}
	c, _, err := websocket.Dial(t.Context(), w.url+"/ws", &websocket.DialOptions{HTTPHeader: header, Subprotocols: []string{"chat"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	for _, text := range []string{"a", strings.Repeat("b", 10_000)} {
		if err := c.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(t.Context()); string(got) != "echo "+text {
			t.Fatalf("%.40q, %v", got, err)
		}
	}
	if c.Subprotocol() != "chat" {
		t.Errorf("the protocol is %q", c.Subprotocol())
	}
	if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
}

// A gRPC call is HTTP/2 on both sides, with its trailers.
func TestGRPC(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.listen(3000, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "application/grpc")
		rw.Header().Set("Trailer", "Grpc-Status")
		fmt.Fprint(rw, r.Proto)
		rw.Header().Set("Grpc-Status", "0")
	}))
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: p}}
	defer client.CloseIdleConnections()
	req := w.request("POST", "/a.B/C", 3000, strings.NewReader("x"))
	req.Header.Set("Content-Type", "application/grpc+proto")
	req.Header.Set("Te", "trailers")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if string(body) != "HTTP/2.0" || resp.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("%s, %v", body, resp.Trailer)
	}
}

// Two requests in one, as one of the two servers would read it, are refused
// before anything inside sees them.
func TestSmuggling(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var mu sync.Mutex
	var seen []string
	w.listen(3000, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, r.URL.Path)
	}))
	head := "POST /first HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: " + w.id + "\r\nE2b-Sandbox-Port: 3000\r\nConnection: close\r\n"
	for _, rest := range []string{
		"Content-Length: 5\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\nGET /second HTTP/1.1\r\nHost: x\r\n\r\n",
		"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
		"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
		"Content-Length: 5, 5x\r\n\r\nabcde",
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(conn, head+rest)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode < 400 {
			t.Errorf("%q: %v, %v", rest, resp, err)
		}
		conn.Close()
	}
	mu.Lock()
	defer mu.Unlock()
	if len(seen) != 0 {
		t.Errorf("inside were seen: %v", seen)
	}
}

// A request that a pause overtakes is sent again where it cannot have had an effect,
// and is told of the pause where it may have.
func TestOvertakenByAPause(t *testing.T) {
	t.Parallel()
	pause := func(w *world) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.state = sandbox.Paused
	}
	for _, tt := range []struct {
		method, body string
		never        bool // the pause comes before there is a connection
		status, told int
	}{
		{"GET", "", false, 200, 2},
		{"HEAD", "", false, 200, 2},
		{"GET", "with a body", false, 502, 1},
		{"POST", "", false, 502, 1},
		{"POST", "once", false, 502, 1},
		{"GET", "", true, 200, 1},
		{"POST", "", true, 200, 1},
		{"POST", "whole", true, 200, 1},
	} {
		w := newWorld(t)
		var told []string
		w.listen(3000, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			w.mu.Lock()
			told = append(told, string(body))
			first := w.boot == 1
			w.mu.Unlock()
			if first {
				pause(w)
				panic(http.ErrAbortHandler)
			}
		}))
		if tt.never { // it is paused by whoever is first to ask for a connection
			w.mu.Lock()
			address := w.ports[3000]
			delete(w.ports, 3000)
			w.opens = func() {
				w.mu.Lock()
				w.ports[3000] = address
				w.mu.Unlock()
				pause(w)
			}
			w.mu.Unlock()
		}
		resp, text := w.do(w.request(tt.method, "/", 3000, strings.NewReader(tt.body)))
		w.mu.Lock()
		if resp.StatusCode != tt.status || len(told) != tt.told || told[len(told)-1] != tt.body {
			t.Errorf("%s %q: %d %s, and it was told %q", tt.method, tt.body, resp.StatusCode, text, told)
		}
		w.mu.Unlock()
		if tt.status == 502 && !strings.Contains(text, "paused before it answered") {
			t.Errorf("%s %q: %s", tt.method, tt.body, text)
		}
	}
}

// While the records cannot be read, a port that was used of late answers, and others say
// that it will pass.
func TestPortsWithoutRecords(t *testing.T) {
	w := newWorld(t)
	w.listen(8000, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, "inside") }))
	get := func(id string) (int, string, string) {
		t.Helper()
		req, err := http.NewRequest("GET", w.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "8000-" + id + ".localhost"
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body), resp.Header.Get("Retry-After")
	}
	gone := sandbox.Errorf(sandbox.Unavailable, "no store")
	if code, body, _ := get(w.id); code != 200 || body != "inside" {
		t.Errorf("%d %s", code, body)
	}
	w.mu.Lock()
	w.away = gone
	w.mu.Unlock()
	if code, body, _ := get(w.id); code != 200 || body != "inside" {
		t.Errorf("without records: %d %s", code, body)
	}
	if code, body, after := get(sandbox.NewSandboxID()); code != 503 || !strings.Contains(body, "cannot be read now") || after != "1" {
		t.Errorf("one without requests before: %d %s %q", code, body, after)
	}
	w.mu.Lock()
	w.away, w.state = nil, sandbox.Ended
	w.mu.Unlock()
	if code, _, _ := get(w.id); code != 502 {
		t.Errorf("ended: %d", code)
	}
	w.mu.Lock()
	w.away = gone
	w.mu.Unlock()
	if code, _, _ := get(w.id); code != 503 {
		t.Errorf("one that had ended before: %d", code)
	}
}
