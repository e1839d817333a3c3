package hostile

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// echo is a server that answers each request with the exact bytes of the request.
const echo = `
import socket, threading
def serve(c):
    got = b''
    while b'\r\n\r\n' not in got:
        more = c.recv(65536)
        if not more: return
        got += more
    if b'chunked' in got.lower():
        while not got.split(b'\r\n\r\n', 1)[1].endswith(b'\r\n\r\n'):
            more = c.recv(65536)
            if not more: return
            got += more
    c.sendall(b'HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: %d\r\n\r\n' % len(got) + got)
    c.close()
s = socket.create_server(('0.0.0.0', 8000), backlog=64)
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
`

// A raw request for a port of a Sandbox.
type raw struct {
	method, target string   // empty: GET, /
	lines          []string // header lines after the required ones
	trailers       []string // announced in lines
}

// ask sends a request over a new connection and returns the bytes that arrived inside.
func (r raw) ask(t *testing.T, addr, host, token string) string {
	t.Helper()
	status, body := r.send(t, addr, host, token)
	if status != http.StatusOK {
		t.Fatalf("%+v: %d: %s", r, status, body)
	}
	return body
}

// send sends a request over a new connection and returns the answer.
func (r raw) send(t *testing.T, addr, host, token string) (status int, body string) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(rig.Patience))
	if r.method == "" {
		r.method = "GET"
	}
	if r.target == "" {
		r.target = "/"
	}
	head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nE2B-Traffic-Access-Token: %s\r\n", r.method, r.target, host, token)
	for _, line := range r.lines {
		head += line + "\r\n"
	}
	if r.trailers != nil {
		head += "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n" + strings.Join(r.trailers, "\r\n") + "\r\n"
	}
	if _, err := io.WriteString(conn, head+"\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%+v: %v", r, err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%+v: %s, %v: %s", r, resp.Status, err, got)
	}
	return resp.StatusCode, string(got)
}

// everyEscape is text with each character as %XX.
func everyEscape(text string) string {
	var out strings.Builder
	for _, c := range []byte(text) {
		fmt.Fprintf(&out, "%%%02x", c)
	}
	return out.String()
}

// formsOf returns the ways to send a credential.
func formsOf(secret string) map[string]raw {
	basic := func(user, password string) string {
		return base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	}
	header := func(lines ...string) raw { return raw{lines: lines} }
	forms := map[string]raw{
		"a bearer":                 header("Authorization: Bearer " + secret),
		"small letters":            header("authorization: bearer " + secret),
		"two spaces":               header("Authorization: Bearer  " + secret),
		"a tab":                    header("Authorization: Bearer\t" + secret),
		"quotes":                   header(`Authorization: Bearer "` + secret + `"`),
		"no scheme":                header("Authorization: " + secret),
		"another scheme":           header("Authorization: Token token=" + secret),
		"a second header":          header("Authorization: Bearer mine", "Authorization: Bearer "+secret),
		"a list":                   header("Authorization: Bearer mine, Bearer " + secret),
		"Basic, as the user":       header("Authorization: Basic " + basic(secret, "")),
		"Basic, as the password":   header("Authorization: Basic " + basic("x", secret)),
		"Basic, for a proxy":       header("Proxy-Authorization: Basic " + basic("x", secret)),
		"for a proxy":              header("Proxy-Authorization: Bearer " + secret),
		"an API key":               header("X-API-Key: " + secret),
		"a second API key":         header("X-API-Key: mine", "x-api-key: "+secret),
		"a third":                  header("X-API-Key: mine", "X-Api-Key: mine", "X-API-KEY: "+secret),
		"escaped":                  header("X-API-Key: " + everyEscape(secret)),
		"escaped twice":            header("X-API-Key: " + everyEscape(everyEscape(secret))),
		"an access token":          header("X-Access-Token: mine", "X-Access-Token: "+secret),
		"for traffic":              header("E2B-Traffic-Access-Token: " + secret),
		"for traffic, once more":   header("E2B-Traffic-Access-Token: mine", "e2b-traffic-access-token: "+secret),
		"another header of E2B":    header("E2B-Api-Key: " + secret),
		"a header of one's own":    header("X-Forwarded-Authorization: Bearer " + secret),
		"with underscores":         header("X_API_Key: " + secret),
		"a page that led here":     header("Referer: http://box.example/?cloud_sandbox_port=" + secret),
		"a protocol":               header("Sec-WebSocket-Protocol: bearer." + secret),
		"a protocol beside others": header("Sec-WebSocket-Protocol: chat, bearer." + secret + ",other"),
		"a second list of them":    header("Sec-WebSocket-Protocol: chat", "Sec-WebSocket-Protocol: cloud-sandbox,bearer."+secret),
		"a WebSocket": header("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
			"Sec-WebSocket-Protocol: cloud-sandbox, bearer."+secret),
		"a cookie":               header("Cookie: cloud_sandbox_port=" + secret),
		"a cookie beside others": header("Cookie: a=b;cloud_sandbox_port="+secret+"; c=d", "Cookie: e=f; key=\""+secret+"\""),
		"a parameter":            {target: "/?cloud_sandbox_port=" + secret},
		"an escaped name":        {target: "/?a=b&cloud%5fsandbox_port=" + secret},
		"an escaped value":       {target: "/?token=" + everyEscape(secret) + "&c=d"},
		"a parameter's name":     {target: "/?" + secret + "&c=d"},
		"trailers": {
			method: "POST", lines: []string{"Trailer: X-API-Key, Authorization, X-Mine, Cookie, E2B-Traffic-Access-Token"},
			trailers: []string{"X-API-Key: " + secret, "Authorization: Bearer  " + secret, "X-Mine: " + secret, "Cookie: cloud_sandbox_port=" + secret, "E2B-Traffic-Access-Token: " + secret},
		},
		"a trailer that was not announced": {method: "POST", lines: []string{"Trailer: X-Mine"}, trailers: []string{"X-API-Key: " + secret}},
	}
	if strings.ToLower(secret) == secret { // header names lose their capitals, which would change the secret
		forms["a header's name"] = header(secret + ": x")
	}
	return forms
}

// askE2B sends a request to E2B's control API with an API key.
func askE2B(t *testing.T, s *rig.Server, key, method, path string, body rig.Body, into any) {
	t.Helper()
	var sent []byte
	if body != nil {
		sent, _ = json.Marshal(body) // cannot fail
	}
	req, err := http.NewRequest(method, s.URL+path, bytes.NewReader(sent))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-Key", key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 || into != nil && json.Unmarshal(got, into) != nil {
		t.Fatalf("%s %s: %s, %v: %s", method, path, resp.Status, err, got)
	}
}

// No form of any credential of this installation reaches a service inside. Credentials of
// the service itself do.
func TestCredentialsStayOutside(t *testing.T) {
	t.Parallel()
	s := shared.Server(t)
	c := s.Client(t, "carrier")
	var key struct {
		Key string `json:"key"`
	}
	c.Must(t, "POST", "/api/v1/keys", rig.Body{"name": "carried"}, &key)
	var sb struct {
		ID      string `json:"sandboxID"`
		Traffic string `json:"trafficAccessToken"`
		Access  string `json:"envdAccessToken"`
	}
	askE2B(t, s, key.Key, "POST", "/sandboxes", rig.Body{"templateID": "base", "secure": true, "network": rig.Body{"allowPublicTraffic": false}}, &sb)
	t.Cleanup(func() { askE2B(t, s, key.Key, "DELETE", "/sandboxes/"+sb.ID, nil, nil) })
	var volume struct {
		ID    string `json:"volumeID"`
		Token string `json:"token"`
	}
	askE2B(t, s, key.Key, "POST", "/volumes", rig.Body{"name": "carried"}, &volume)
	t.Cleanup(func() { askE2B(t, s, key.Key, "DELETE", "/volumes/"+volume.ID, nil, nil) })
	link := func(id string, port int) string {
		var made struct {
			Token string `json:"token"`
		}
		c.Must(t, "POST", fmt.Sprintf("/api/v1/sessions/%s/ports/%d/sign", id, port), rig.Body{}, &made)
		return made.Token
	}
	other := c.Create(t, rig.Body{})
	secrets := map[string]string{
		"an API key": key.Key, "a token": c.Token, "a volume's token": volume.Token, "the sandbox's traffic token": sb.Traffic, "its access token": sb.Access,
		"a link's token": link(sb.ID, 8000), "a link's token, of another port": link(sb.ID, 9), "a link's token, of another sandbox": link(other.ID, 8000),
	}
	c.Must(t, "POST", "/api/v1/processes", rig.Body{"sandbox_id": sb.ID, "background": true, "command": "python3 - <<'END'\n" + echo + "END\n"}, nil)
	host := "8000-" + sb.ID + ".localhost"
	ask := func(r raw) string { return r.ask(t, s.Addr, host, sb.Traffic) }
	c.Sh(t, sb.ID, "until (echo > /dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.1; done")
	for what, secret := range secrets {
		if len(secret) < 16 {
			t.Fatalf("%s is %q", what, secret)
		}
		shown := []string{secret, everyEscape(secret), everyEscape(everyEscape(secret))}
		for _, pair := range [][2]string{{secret, ""}, {"x", secret}} {
			shown = append(shown, base64.StdEncoding.EncodeToString([]byte(pair[0]+":"+pair[1])))
		}
		for form, r := range formsOf(secret) {
			got := strings.ToLower(ask(r))
			for _, text := range shown {
				if strings.Contains(got, strings.ToLower(text)) {
					t.Errorf("%s, %s, got in:\n%s", what, form, got)
				}
			}
		}
		for _, target := range []string{"/" + secret, "/a/" + everyEscape(secret) + "/b?c=d", "/a/" + everyEscape(everyEscape(secret)), "/b/" + base64.StdEncoding.EncodeToString([]byte("x:"+secret)), "http://" + host + "/" + secret, "x:" + secret} {
			status, body := raw{target: target}.send(t, s.Addr, host, sb.Traffic)
			if status != http.StatusBadRequest || !strings.Contains(body, "leave it out of the path") || strings.Contains(body, secret) {
				t.Errorf("%s, as %s: %d %s", what, target, status, body)
			}
		}
	}
	var beside struct {
		ID     string `json:"sandboxID"`
		Access string `json:"envdAccessToken"`
	}
	askE2B(t, s, key.Key, "POST", "/sandboxes", rig.Body{"templateID": "base", "secure": true}, &beside)
	t.Cleanup(func() { askE2B(t, s, key.Key, "DELETE", "/sandboxes/"+beside.ID, nil, nil) })
	if got := ask(raw{lines: []string{"X-Access-Token: " + beside.Access}}); beside.Access == "" || strings.Contains(got, beside.Access) {
		t.Errorf("another sandbox's access token %q got in:\n%s", beside.Access, got)
	}
	theirs := "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIiwiaWF0IjoxNTE2MjM5MDIyfQ.SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c"
	hash := strings.Repeat("0123456789abcdef", 4)
	got := ask(raw{target: "/a%2Fb?x=%zz&token=" + theirs + "&y", method: "POST", lines: []string{
		"Authorization: Bearer " + theirs, "Authorization: Bearer " + c.Token, "X-API-Key: theirs, and  more", "X-Access-Token: " + hash[1:], "Cookie: a=b; session=" + theirs,
		"Cookie: key=" + key.Key + "; c=\"d\"", "Sec-WebSocket-Protocol: chat, bearer." + key.Key, "Proxied-Basic: Basic " + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("user:password", 9))),
		"Trailer: X-Sum, X-API-Key",
	}, trailers: []string{"X-Sum: " + hash, "X-API-Key: theirs"}})
	for _, want := range []string{
		"POST /a%2Fb?x=%zz&token=" + theirs + "&y HTTP/1.1\r\n", "Authorization: Bearer " + theirs + "\r\n", "X-Api-Key: theirs, and  more\r\n", "X-Access-Token: " + hash[1:] + "\r\n",
		"Cookie: a=b; session=" + theirs + "\r\n", "Cookie: c=\"d\"\r\n", "Sec-Websocket-Protocol: chat\r\n", "Proxied-Basic: Basic ", "X-Sum: " + hash + "\r\n", "\r\nX-Api-Key: theirs\r\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("what is theirs did not arrive: %q in\n%s", want, got)
		}
	}
}
