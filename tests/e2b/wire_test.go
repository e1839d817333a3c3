package e2b

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// wire sends the SDKs' requests without the SDKs.
type wire struct {
	t        *testing.T
	url, key string
	client   *http.Client
}

func newWire(t *testing.T) *wire {
	s := shared.Server(t)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &wire{t: t, url: s.URL, key: key(t, s, t.Name()), client: &http.Client{Transport: transport, Timeout: 3 * time.Minute}}
}

func (w *wire) send(req *http.Request) (*http.Response, string) {
	w.t.Helper()
	resp, err := w.client.Do(req)
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

// api sends a request to the control API.
func (w *wire) api(method, path, body string) (*http.Response, string) {
	w.t.Helper()
	req, err := http.NewRequest(method, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("X-API-KEY", w.key)
	req.Header.Set("Content-Type", "application/json")
	return w.send(req)
}

type created struct {
	SandboxID, EnvdAccessToken, EnvdVersion string

	TrafficAccessToken string // empty: the ports are not private
}

func (w *wire) create(path, body string) created {
	w.t.Helper()
	var sb created
	resp, text := w.api("POST", path, body)
	if resp.StatusCode != 201 || json.Unmarshal([]byte(text), &sb) != nil {
		w.t.Fatalf("create: %d %s", resp.StatusCode, text)
	}
	w.t.Cleanup(func() { w.api("DELETE", "/sandboxes/"+sb.SandboxID, "") })
	return sb
}

// inside returns a request to a port of a Sandbox.
func (w *wire) inside(sb created, port int, method, path string, body io.Reader, header ...string) *http.Request {
	w.t.Helper()
	req, err := http.NewRequest(method, w.url+path, body)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("E2b-Sandbox-Id", sb.SandboxID)
	req.Header.Set("E2b-Sandbox-Port", fmt.Sprint(port))
	req.Header.Set("X-Access-Token", sb.EnvdAccessToken)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return req
}

const envd = 49983

// Messages that programs send to the events address appear in the Sandbox's logs, and
// /me there returns the Sandbox's ID. The address cannot be reached from outside.
func TestWireEvents(t *testing.T) {
	w := newWire(t)
	sb := w.create("/v2/sandboxes", `{"templateID":"base","allow_internet_access":false}`)
	const script = `curl -sf http://events.e2b.local/me; curl -sf $E2B_EVENTS_ADDRESS/me
curl -sf http://events.e2b.local/logs -d '{"message":"from inside","level":"error","step":7}' && echo logged
curl -s -o /dev/null -w '%{http_code}' http://events.e2b.local/logs -d 'no JSON'
sudo python3 -m http.server -d /tmp 80 > /dev/null 2>&1 & until curl -so /dev/null http://127.0.0.1/; do sudo kill -0 $! || exit; done; echo free; sudo kill $!`
	_, messages := w.start(sb, `{"cmd":"/bin/bash","args":["-c",`+quoted(script)+`]}`)
	said := ""
	for _, m := range messages {
		var event struct {
			Event struct{ Data struct{ Stdout []byte } }
		}
		if err := json.Unmarshal([]byte(m), &event); err != nil {
			t.Fatal(err)
		}
		said += string(event.Event.Data.Stdout)
	}
	me := `{"sandboxID":"` + sb.SandboxID + "\"}\n"
	if want := me + me + "logged\n400free\n"; said != want {
		t.Errorf("inside: %q, want %q", said, want)
	}
	var told struct {
		Logs []struct {
			Message, Level string
			Fields         map[string]string
		}
	}
	resp, text := w.api("GET", "/v2/sandboxes/"+sb.SandboxID+"/logs?level=error", "")
	if resp.StatusCode != 200 || json.Unmarshal([]byte(text), &told) != nil || len(told.Logs) != 1 ||
		told.Logs[0].Message != "from inside" || told.Logs[0].Fields["step"] != "7" {
		t.Errorf("logs: %d %s", resp.StatusCode, text)
	}
	line := `{"level":"error","logger":"program","message":"from inside","sandboxID":"` + sb.SandboxID + `","step":"7"}`
	if resp, text := w.api("GET", "/sandboxes/"+sb.SandboxID+"/logs", ""); resp.StatusCode != 200 || !strings.Contains(text, quoted(line)) {
		t.Errorf("logs of the first generation: %d %s", resp.StatusCode, text)
	}
	const events = 49980
	if resp, text := w.send(w.inside(sb, events, "POST", "/logs", strings.NewReader(`{}`))); resp.StatusCode != 502 {
		t.Errorf("from outside: %d %s", resp.StatusCode, text)
	}
}

func quoted(text string) string {
	b, _ := json.Marshal(text) // cannot fail
	return string(b)
}

// Default lifetimes by generation of the API, and the format of errors.
func TestWireCreates(t *testing.T) {
	w := newWire(t)
	for path, seconds := range map[string]float64{"/sandboxes": 15, "/v2/sandboxes": 300} {
		began := time.Now()
		sb := w.create(path, `{"templateID":"base"}`)
		took := time.Since(began).Seconds()
		var info struct {
			State          string
			StartedAt, End time.Time
			EndAt          time.Time
			EnvdVersion    string
		}
		resp, text := w.api("GET", "/sandboxes/"+sb.SandboxID, "")
		if resp.StatusCode != 200 || json.Unmarshal([]byte(text), &info) != nil || info.State != "running" || info.EnvdVersion == "" {
			t.Errorf("info: %d %s", resp.StatusCode, text)
		}
		if lives := info.EndAt.Sub(info.StartedAt).Seconds(); lives < seconds || lives > seconds+1+took { // its time begins when it runs
			t.Errorf("%s: it lives for %v s", path, lives)
		}
		// It is usable at once.
		if resp, text := w.send(w.inside(sb, envd, "GET", "/health", nil)); resp.StatusCode != 204 {
			t.Errorf("health: %d %s", resp.StatusCode, text)
		}
	}
	for _, tt := range []struct {
		method, path, body string
		status             int
	}{
		{"POST", "/v2/sandboxes", `{"templateID":"no-such"}`, 404},
		{"POST", "/v2/sandboxes", `{}`, 400},
		{"GET", "/sandboxes/i00000000000000000000", "", 404},
		{"GET", "/sandboxes/what", "", 404},
		{"GET", "/v2/sandboxes?nextToken=x", "", 400},
	} {
		resp, text := w.api(tt.method, tt.path, tt.body)
		var told struct {
			Code    int
			Message string
		}
		if resp.StatusCode != tt.status || json.Unmarshal([]byte(text), &told) != nil || told.Code != tt.status || told.Message == "" ||
			resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: %d %s", tt.method, tt.path, resp.StatusCode, text)
		}
	}
}

// Sandboxes of the first API generation require no token unless secure is set.
func TestWireInsecure(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	for secure, open := range map[string]bool{``: true, `,"secure":false`: true, `,"secure":true`: false} {
		sb := w.create("/sandboxes", `{"templateID":"base","timeout":600`+secure+`}`)
		if (sb.EnvdAccessToken == "") != open {
			t.Errorf("%s: %+v", secure, sb)
		}
		sb.EnvdAccessToken = "" // as a client that only knows the ID
		want := map[bool]int{true: 200, false: 401}[open]
		check := func(when string) {
			t.Helper()
			for _, req := range []*http.Request{
				w.inside(sb, envd, "POST", "/process.Process/List", strings.NewReader(`{}`), "Content-Type", "application/json"),
				w.inside(sb, envd, "POST", "/files?path=a", strings.NewReader("b"), "Content-Type", "application/octet-stream"),
				w.inside(sb, envd, "GET", "/files?path=/etc/hostname", nil),
				w.inside(sb, 49999, "POST", "/execute", strings.NewReader(`{"code":"1"}`), "Content-Type", "application/json"),
			} {
				req.Header.Del("X-Access-Token")
				if resp, text := w.send(req); resp.StatusCode != want {
					t.Errorf("%s, %s: %s: %d %s, want %d", secure, when, req.URL.Path, resp.StatusCode, text, want)
				}
			}
		}
		check("at first")
		if resp, text := w.api("POST", "/sandboxes/"+sb.SandboxID+"/pause", ""); resp.StatusCode != 204 {
			t.Fatalf("pause: %d %s", resp.StatusCode, text)
		}
		if resp, text := w.api("POST", "/sandboxes/"+sb.SandboxID+"/connect", `{"timeout":600}`); resp.StatusCode != 201 || strings.Contains(text, "envdAccessToken") == open {
			t.Fatalf("connect: %d %s", resp.StatusCode, text)
		}
		check("after a pause")
	}
}

// If the operator forbids sandboxes without a token, clients of the first generation get
// a token that they did not request, and must use it.
func TestAllSecure(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{Pool: 1, Env: []string{"CLOUD_SANDBOX_E2B_SECURE=true"}})
	w := &wire{t: t, url: s.URL, key: key(t, s, t.Name()), client: &http.Client{Timeout: 3 * time.Minute}}
	t.Cleanup(w.client.CloseIdleConnections)
	sb := w.create("/sandboxes", `{"templateID":"base","timeout":600,"secure":false}`)
	if sb.EnvdAccessToken == "" {
		t.Fatalf("%+v", sb)
	}
	list := func() *http.Request {
		return w.inside(sb, envd, "POST", "/process.Process/List", strings.NewReader(`{}`), "Content-Type", "application/json")
	}
	if resp, text := w.send(list()); resp.StatusCode != 200 {
		t.Errorf("with the token: %d %s", resp.StatusCode, text)
	}
	stranger := list()
	stranger.Header.Del("X-Access-Token")
	if resp, text := w.send(stranger); resp.StatusCode != 401 {
		t.Errorf("by its ID alone: %d %s", resp.StatusCode, text)
	}
}

// A fork accepts its own token and not the original's, which was in the fork's memory.
func TestForksHaveTokensOfTheirOwn(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	sb := w.create("/v2/sandboxes", `{"templateID":"base","timeout":600}`)
	resp, text := w.api("POST", "/sandboxes/"+sb.SandboxID+"/fork", `{"timeout":600}`)
	var copies []struct{ Sandbox created }
	if err := json.Unmarshal([]byte(text), &copies); err != nil || resp.StatusCode != 201 || len(copies) != 1 {
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
	fork := copies[0].Sandbox
	t.Cleanup(func() { w.api("DELETE", "/sandboxes/"+fork.SandboxID, "") })
	if fork.SandboxID == sb.SandboxID || fork.EnvdAccessToken == "" || fork.EnvdAccessToken == sb.EnvdAccessToken {
		t.Fatalf("of %+v a copy is %+v", sb, fork)
	}
	for token, want := range map[string]int{fork.EnvdAccessToken: 200, sb.EnvdAccessToken: 401} {
		with := fork
		with.EnvdAccessToken = token
		if resp, text := w.send(w.inside(with, envd, "POST", "/process.Process/List", strings.NewReader(`{}`), "Content-Type", "application/json")); resp.StatusCode != want {
			t.Errorf("%d %s, want %d", resp.StatusCode, text, want)
		}
	}
}

// frame is one message of a Connect stream.
func frame(flags byte, message string) []byte {
	head := binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(message)))
	return append(head, message...)
}

// frames reads a whole Connect stream.
func frames(t *testing.T, body string) (flags []byte, messages []string) {
	t.Helper()
	for in := strings.NewReader(body); ; {
		var head [5]byte
		if _, err := io.ReadFull(in, head[:]); errors.Is(err, io.EOF) {
			return flags, messages
		} else if err != nil {
			t.Fatal(err)
		}
		message := make([]byte, binary.BigEndian.Uint32(head[1:]))
		if _, err := io.ReadFull(in, message); err != nil {
			t.Fatal(err)
		}
		flags, messages = append(flags, head[0]), append(messages, string(message))
	}
}

func (w *wire) start(sb created, process string, header ...string) ([]byte, []string) {
	w.t.Helper()
	req := w.inside(sb, envd, "POST", "/process.Process/Start", bytes.NewReader(frame(0, `{"process":`+process+`}`)),
		append([]string{"Content-Type", "application/connect+json", "Connect-Protocol-Version", "1"}, header...)...)
	resp, text := w.send(req)
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/connect+json" {
		w.t.Fatalf("start: %d %s %s", resp.StatusCode, resp.Header, text)
	}
	return frames(w.t, text)
}

func TestWireStreams(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	sb := w.create("/v2/sandboxes", `{"templateID":"base","timeout":600}`)
	flags, messages := w.start(sb, `{"cmd":"/bin/bash","args":["-l","-c","echo hi; exit 3"]}`)
	if n := len(messages); n < 4 || flags[n-1] != 2 || strings.TrimSpace(messages[n-1]) != "{}" ||
		!strings.Contains(messages[0], `"start"`) || !strings.Contains(messages[n-2], `"exitCode":3`) {
		t.Errorf("%v %q", flags, messages)
	}
	if !strings.Contains(strings.ReplaceAll(strings.Join(messages, ""), " ", ""), `"stdout":"aGkK"`) {
		t.Errorf("output is not base64: %q", messages)
	}
	_, messages = w.start(sb, `{"cmd":"sleep","args":["2.5"]}`, "Keepalive-Ping-Interval", "1")
	if all := strings.Join(messages, ""); strings.Count(all, `"keepalive"`) < 1 {
		t.Errorf("silence was not filled: %q", messages)
	}
	_, messages = w.start(sb, `{"cmd":"sleep","args":["60"]}`, "Connect-Timeout-Ms", "500")
	if all := strings.Join(messages, ""); !strings.Contains(all, "deadline_exceeded") && !strings.Contains(all, "signal: killed") {
		t.Errorf("the timeout: %q", messages)
	}
	flags, messages = w.start(sb, `{"cmd":"/no/such/program"}`)
	if len(flags) != 1 || flags[0] != 2 || !strings.Contains(messages[0], "invalid_argument") {
		t.Errorf("no program: %v %q", flags, messages)
	}
}

func TestWireFiles(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	sb := w.create("/v2/sandboxes", `{"templateID":"base","timeout":600}`)
	octets := []string{"Content-Type", "application/octet-stream"}
	for _, content := range []string{"", "x", strings.Repeat("y", 1<<20)} {
		resp, text := w.send(w.inside(sb, envd, "POST", "/files?path=f", strings.NewReader(content), octets...))
		var entries []struct{ Name, Path, Type string }
		if resp.StatusCode != 200 || json.Unmarshal([]byte(text), &entries) != nil || len(entries) != 1 || entries[0].Path != "/home/user/f" {
			t.Fatalf("write: %d %s", resp.StatusCode, text)
		}
		resp, text = w.send(w.inside(sb, envd, "GET", "/files?path=f", nil, "Accept-Encoding", "identity"))
		if resp.StatusCode != 200 || text != content || resp.Header.Get("Content-Length") != fmt.Sprint(len(content)) {
			t.Errorf("read: %d %d bytes %v", resp.StatusCode, len(text), resp.Header)
		}
	}
	for _, tt := range []struct {
		name   string
		req    *http.Request
		status int
	}{
		{"absent", w.inside(sb, envd, "GET", "/files?path=none", nil), 404},
		{"no token", w.inside(sb, envd, "GET", "/files?path=f", nil, "X-Access-Token", ""), 401},
		{"a wrong token", w.inside(sb, envd, "GET", "/files?path=f", nil, "X-Access-Token", "x"), 401},
		{"a directory", w.inside(sb, envd, "GET", "/files?path=/tmp", nil), 400},
		{"a wrong user", w.inside(sb, envd, "GET", "/files?path=f&username=none", nil), 401},
		{"another type", w.inside(sb, envd, "POST", "/files?path=f", strings.NewReader("x"), "Content-Type", "text/plain"), 400},
		{"an RPC without a token", w.inside(sb, envd, "POST", "/process.Process/List", strings.NewReader("{}"), "Content-Type", "application/json", "X-Access-Token", ""), 401},
		// Answered before the whole body was sent.
		{"an upload without a token", w.inside(sb, envd, "POST", "/files?path=f", io.LimitReader(zeros{}, 64<<20), append(octets, "X-Access-Token", "x")...), 401},
	} {
		resp, text := w.send(tt.req)
		var told struct {
			Code    int
			Message string
		}
		if resp.StatusCode != tt.status || json.Unmarshal([]byte(text), &told) != nil || told.Code != tt.status || told.Message == "" {
			t.Errorf("%s: %d %s", tt.name, resp.StatusCode, text)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// Answers for a port without a listener, and for a Sandbox that has ended.
func TestWireGone(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	sb := w.create("/v2/sandboxes", `{"templateID":"base","timeout":600}`)
	resp, text := w.send(w.inside(sb, 4000, "GET", "/", nil))
	if want := `{"sandboxId":"` + sb.SandboxID + `","message":"The sandbox is running but port is not open","port":4000,"code":502}`; resp.StatusCode != 502 || strings.TrimSpace(text) != want {
		t.Errorf("a closed port: %d %s", resp.StatusCode, text)
	}
	if resp, text := w.send(w.inside(sb, 49982, "GET", "/", nil)); resp.StatusCode != 502 {
		t.Errorf("the host's port: %d %s", resp.StatusCode, text)
	}
	if resp, text := w.send(w.inside(sb, envd, "POST", "/init", strings.NewReader("{}"))); resp.StatusCode != 404 || !strings.Contains(text, `"code":404`) {
		t.Errorf("init: %d %s", resp.StatusCode, text)
	}
	// A stream that is open when the Sandbox ends closes with an error.
	type ended struct {
		text []byte
		err  error
	}
	broken := make(chan ended, 1)
	req := w.inside(sb, envd, "POST", "/process.Process/Start", bytes.NewReader(frame(0, `{"process":{"cmd":"sleep","args":["60"]}}`)),
		"Content-Type", "application/connect+json", "Connect-Protocol-Version", "1")
	stream, err := w.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	go func() { text, err := io.ReadAll(stream.Body); broken <- ended{text, err} }()
	if resp, text := w.api("DELETE", "/sandboxes/"+sb.SandboxID, ""); resp.StatusCode != 204 || text != "" {
		t.Errorf("kill: %d %s", resp.StatusCode, text)
	}
	select {
	case end := <-broken:
		said := frame(2, `{"error":{"code":"unavailable","message":"the connection to sandbox `+sb.SandboxID+` ended before the stream completed"}}`)
		if end.err != nil || !bytes.HasSuffix(end.text, said) {
			t.Errorf("the stream ended with %v and %q", end.err, end.text)
		}
	case <-time.After(50 * time.Second): // the program would run for 60 s
		t.Error("the stream goes on")
	}
	resp, text = w.send(w.inside(sb, envd, "GET", "/health", nil))
	if want := `{"sandboxId":"` + sb.SandboxID + `","message":"The sandbox was not found","code":502}`; resp.StatusCode != 502 || strings.TrimSpace(text) != want {
		t.Errorf("health of what is gone: %d %s", resp.StatusCode, text)
	}
}

// echo starts a service on port 8000 that answers with the path and headers of a
// request.
func (w *wire) echo(sb created) {
	w.t.Helper()
	const echo = `import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write((self.path + chr(10) + str(self.headers)).encode())
http.server.HTTPServer(("127.0.0.1", 8000), H).serve_forever()`
	if resp, text := w.send(w.inside(sb, envd, "POST", "/files?path=echo.py", strings.NewReader(echo), "Content-Type", "application/octet-stream")); resp.StatusCode != 200 {
		w.t.Fatalf("%d %s", resp.StatusCode, text)
	}
	w.start(sb, `{"cmd":"/bin/bash","args":["-c","setsid python3 echo.py >/dev/null 2>&1 </dev/null &"]}`)
}

// A service is reached by host name, as browsers do, and sees none of our credentials.
func TestWirePorts(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	sb := w.create("/v2/sandboxes", `{"templateID":"base","timeout":600}`)
	w.echo(sb)
	var text string
	rig.Within(t, 2*time.Minute, "the service answered", func() bool {
		req, err := http.NewRequest("GET", w.url+"/v2/sandboxes/a%2Fb?q=%20", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "8000-" + sb.SandboxID + ".localhost"
		req.Header.Set("X-API-Key", w.key)
		req.Header.Set("X-Access-Token", sb.EnvdAccessToken)
		resp, body := w.send(req)
		text = body
		return resp.StatusCode == 200
	})
	if !strings.HasPrefix(text, "/v2/sandboxes/a%2Fb?q=%20\n") || strings.Contains(text, w.key) || strings.Contains(text, sb.EnvdAccessToken) {
		t.Errorf("it saw %s", text)
	}
}

// Private ports require their token, also after a pause. Signed links of our own API
// open them in browsers, and services see the configured host.
func TestWirePrivatePorts(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	const network = `"network":{"allowPublicTraffic":false,"maskRequestHost":"inside.test:${PORT}"}`
	sb := w.create("/v2/sandboxes", `{"templateID":"base","timeout":600,"autoPause":true,"autoResume":{"enabled":true},`+network+`}`)
	if sb.TrafficAccessToken == "" || sb.TrafficAccessToken == sb.EnvdAccessToken {
		t.Fatalf("its token is %q", sb.TrafficAccessToken)
	}
	w.echo(sb)
	const header = "E2b-Traffic-Access-Token"
	refused := func(req *http.Request) {
		t.Helper()
		want := "Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing"
		if req.Header.Get(header) != "" {
			want = "Sandbox is secured with traffic access token. Provided token in header 'e2b-traffic-access-token' is invalid"
		}
		toEnvd := req.Header.Get("E2b-Sandbox-Port") == fmt.Sprint(envd) // which has a token of its own
		resp, text := w.send(req)
		var told struct {
			SandboxID string
			Message   string
			Code      int
		}
		if json.Unmarshal([]byte(text), &told) != nil || resp.StatusCode != 403 || told.Code != 403 || told.SandboxID != sb.SandboxID || !toEnvd && told.Message != want {
			t.Errorf("without the token: %d %s", resp.StatusCode, text)
		}
	}
	seen := func(token string) string {
		t.Helper()
		var text string
		rig.Within(t, 2*time.Minute, "the service answered", func() bool {
			resp, body := w.send(w.inside(sb, 8000, "GET", "/page?a=b", nil, header, token))
			text = body
			return resp.StatusCode == 200
		})
		return text
	}
	if text := seen(sb.TrafficAccessToken); !strings.HasPrefix(text, "/page?a=b\n") || !strings.Contains(text, "Host: inside.test:8000") || strings.Contains(text, sb.TrafficAccessToken) {
		t.Errorf("it saw %s", text)
	}
	for _, port := range []int{8000, 4000, 49999} {
		refused(w.inside(sb, port, "GET", "/", nil))
		refused(w.inside(sb, port, "GET", "/", nil, header, "x"))
	}
	if resp, text := w.send(w.inside(sb, envd, "GET", "/health", nil)); resp.StatusCode != 204 {
		t.Errorf("envd: %d %s", resp.StatusCode, text)
	}
	if resp, text := w.send(w.inside(sb, 49999, "GET", "/health", nil, header, sb.TrafficAccessToken)); resp.StatusCode != 200 {
		t.Errorf("the interpreter: %d %s", resp.StatusCode, text)
	}
	if resp, text := w.api("POST", "/sandboxes/"+sb.SandboxID+"/pause", ""); resp.StatusCode != 204 {
		t.Fatalf("pause: %d %s", resp.StatusCode, text)
	}
	refused(w.inside(sb, 8000, "GET", "/", nil))
	refused(w.inside(sb, envd, "GET", "/health", nil, "X-Access-Token", "x"))
	if _, text := w.api("GET", "/sandboxes/"+sb.SandboxID, ""); !strings.Contains(text, `"state":"paused"`) || !strings.Contains(text, `"allowPublicTraffic":false`) {
		t.Errorf("a stranger woke it: %s", text)
	}
	seen(sb.TrafficAccessToken) // resumes the sandbox
	var link struct{ URL, Token string }
	if resp, text := w.api("POST", "/api/v1/sessions/"+sb.SandboxID+"/ports/8000/sign", ""); resp.StatusCode != 200 || json.Unmarshal([]byte(text), &link) != nil {
		t.Fatalf("sign: %d %s", resp.StatusCode, text)
	}
	seen(link.Token)
	if resp, _ := w.send(w.inside(sb, 4000, "GET", "/", nil, header, link.Token)); resp.StatusCode != 403 {
		t.Errorf("another port's link: %d", resp.StatusCode)
	}
	w.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	page := w.inside(sb, 8000, "GET", "/page?cloud_sandbox_port="+link.Token, nil, "Accept", "text/html")
	resp, _ := w.send(page)
	if cookies := resp.Cookies(); resp.StatusCode != 303 || resp.Header.Get("Location") != "/page" || len(cookies) != 1 {
		t.Fatalf("the link: %d %v", resp.StatusCode, resp.Header)
	}
	cookie := resp.Cookies()[0].String()
	if resp, text := w.send(w.inside(sb, 8000, "GET", "/page", nil, "Cookie", cookie)); resp.StatusCode != 200 || strings.Contains(text, link.Token) {
		t.Errorf("with the cookie: %d %s", resp.StatusCode, text)
	}
	refused(w.inside(sb, 8000, "GET", "/page", nil, "Cookie", cookie, "Origin", "https://elsewhere.test"))
}

// Traffic to a port does not resume a sandbox that was paused without memory. An
// explicit connect does.
func TestWireFilesOnly(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	sb := w.create("/v2/sandboxes", `{"templateID":"base","timeout":600,"autoPause":true,"autoResume":{"enabled":true}}`)
	for body, want := range map[string]int{`{"memory":false}`: 502, ``: 204} {
		if resp, text := w.api("POST", "/sandboxes/"+sb.SandboxID+"/pause", body); resp.StatusCode != 204 {
			t.Fatalf("pause %s: %d %s", body, resp.StatusCode, text)
		}
		if resp, text := w.send(w.inside(sb, envd, "GET", "/health", nil)); resp.StatusCode != want {
			t.Errorf("asked after pause %s: %d %s, want %d", body, resp.StatusCode, text, want)
		}
		if resp, text := w.api("POST", "/v2/sandboxes/"+sb.SandboxID+"/connect", ""); resp.StatusCode != 200 && resp.StatusCode != 201 {
			t.Errorf("connect after pause %s: %d %s", body, resp.StatusCode, text)
		}
		if resp, _ := w.send(w.inside(sb, envd, "GET", "/health", nil)); resp.StatusCode != 204 {
			t.Errorf("after connect: %d", resp.StatusCode)
		}
	}
}

// Traffic that resumes a sandbox resets its lifetime to the one at its creation, even if
// it was changed since.
func TestWireAutoResumeTime(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	sb := w.create("/v2/sandboxes", `{"templateID":"base","timeout":1200,"autoPause":true,"autoResume":{"enabled":true}}`)
	left := func() time.Duration {
		t.Helper()
		var shown struct{ EndAt time.Time }
		if resp, text := w.api("GET", "/sandboxes/"+sb.SandboxID, ""); resp.StatusCode != 200 || json.Unmarshal([]byte(text), &shown) != nil {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
		return time.Until(shown.EndAt)
	}
	for path, body := range map[string]string{"/timeout": `{"timeout":400}`, "/connect": `{"timeout":500}`} {
		if resp, text := w.api("POST", "/sandboxes/"+sb.SandboxID+path, body); resp.StatusCode/100 != 2 {
			t.Fatalf("%s: %d %s", path, resp.StatusCode, text)
		}
	}
	if d := left(); d > 510*time.Second {
		t.Errorf("it has %v", d)
	}
	if resp, text := w.api("POST", "/sandboxes/"+sb.SandboxID+"/pause", ""); resp.StatusCode != 204 {
		t.Fatalf("pause: %d %s", resp.StatusCode, text)
	}
	if resp, text := w.send(w.inside(sb, envd, "GET", "/health", nil)); resp.StatusCode != 204 {
		t.Fatalf("asked while it was paused: %d %s", resp.StatusCode, text)
	}
	if d := left(); d < 1100*time.Second || d > 1200*time.Second {
		t.Errorf("traffic woke it for %v", d)
	}
}

// A watch of a Volume requires allowNetworkMounts, because it does not report changes by
// other Sandboxes.
func TestWireWatchesOfVolumes(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	var v struct{ VolumeID string }
	if resp, text := w.api("POST", "/volumes", `{"name":"watched"}`); resp.StatusCode != 201 || json.Unmarshal([]byte(text), &v) != nil {
		t.Fatalf("volume: %d %s", resp.StatusCode, text)
	}
	t.Cleanup(func() { w.api("DELETE", "/volumes/"+v.VolumeID, "") })
	sb := w.create("/v2/sandboxes", `{"templateID":"base","timeout":600,"volumeMounts":[{"name":"watched","path":"/mnt/v"}]}`)
	for body, want := range map[string]int{
		`{"path":"/mnt/v"}`:                           400,
		`{"path":"/mnt/v","allowNetworkMounts":true}`: 200,
		`{"path":"/mnt"}`:                             200,
	} {
		resp, text := w.send(w.inside(sb, envd, "POST", "/filesystem.Filesystem/CreateWatcher", strings.NewReader(body), "Content-Type", "application/json"))
		if resp.StatusCode != want || want == 400 && !strings.Contains(text, `"invalid_argument"`) {
			t.Errorf("%s: %d %s, want %d", body, resp.StatusCode, text, want)
		}
	}
}

// Team metrics report the number of concurrent sandboxes over time.
func TestWireTeamMetrics(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	w.create("/v2/sandboxes", `{"templateID":"base","timeout":600}`)
	var teams []struct{ TeamID string }
	if resp, text := w.api("GET", "/teams", ""); resp.StatusCode != 200 || json.Unmarshal([]byte(text), &teams) != nil || len(teams) != 1 {
		t.Fatalf("teams: %d %s", resp.StatusCode, text)
	}
	var points []struct{ ConcurrentSandboxes int }
	path := fmt.Sprintf("/teams/%s/metrics?start=%d", teams[0].TeamID, time.Now().Add(-time.Hour).Unix())
	if resp, text := w.api("GET", path, ""); resp.StatusCode != 200 || json.Unmarshal([]byte(text), &points) != nil || len(points) < 100 || points[0].ConcurrentSandboxes != 0 {
		t.Errorf("metrics: %d %s", resp.StatusCode, text)
	}
	var most struct{ Value int }
	path = fmt.Sprintf("/teams/%s/metrics/max?metric=concurrent_sandboxes&start=%d", teams[0].TeamID, time.Now().Unix()+60) // a start in the future means now
	if resp, text := w.api("GET", path, ""); resp.StatusCode != 200 || json.Unmarshal([]byte(text), &most) != nil || most.Value != 1 {
		t.Errorf("most: %d %s", resp.StatusCode, text)
	}
}

// The tag "latest" is an ordinary tag besides "default", in builds and lists. A build
// can also be tagged by its ID.
func TestWireTags(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	must := func(status int, method, path, body string, reply any) {
		t.Helper()
		resp, text := w.api(method, path, body)
		if resp.StatusCode != status || reply != nil && json.Unmarshal([]byte(text), reply) != nil {
			t.Fatalf("%s %s: %d %s", method, path, resp.StatusCode, text)
		}
	}
	build := func(name string) string {
		t.Helper()
		var made struct{ TemplateID, BuildID string }
		must(202, "POST", "/v3/templates", `{"name":"`+name+`"}`, &made)
		path := "/templates/" + made.TemplateID + "/builds/" + made.BuildID
		must(202, "POST", "/v2"+path, `{"fromTemplate":"base","steps":[]}`, nil)
		rig.Within(t, 2*time.Minute, "the build was ready", func() bool {
			var told struct{ Status string }
			must(200, "GET", path+"/status", "", &told)
			if told.Status == "error" {
				t.Fatal("the build failed")
			}
			return told.Status == "ready"
		})
		return made.BuildID
	}
	tags := func() map[string]string {
		t.Helper()
		var all []struct{ Tag, BuildID string }
		must(200, "GET", "/templates/tagged/tags", "", &all)
		byTag := map[string]string{}
		for _, tag := range all {
			byTag[tag.Tag] = tag.BuildID
		}
		return byTag
	}
	first := build("tagged:latest")
	if got := tags(); len(got) != 1 || got["latest"] != first {
		t.Errorf("the tags are %v, want latest alone", got)
	}
	must(404, "POST", "/v2/sandboxes", `{"templateID":"tagged"}`, nil) // there is no default tag
	w.create("/v2/sandboxes", `{"templateID":"tagged:latest"}`)
	second := build("tagged")
	if got := tags(); len(got) != 2 || got["latest"] != first || got["default"] != second {
		t.Errorf("after another build the tags are %v", got)
	}
	var assigned struct{ BuildID string }
	must(201, "POST", "/templates/tags", `{"target":"tagged:`+first+`","tags":["by-id"]}`, &assigned)
	if got := tags(); got["by-id"] != first || assigned.BuildID != first {
		t.Errorf("a build was tagged: %+v, %v", assigned, got)
	}
	must(404, "POST", "/templates/tags", `{"target":"tagged:11111111-1111-1111-1111-111111111111","tags":["x"]}`, nil)
	w.create("/v2/sandboxes", `{"templateID":"base:latest"}`) // the form of our own tools
}
