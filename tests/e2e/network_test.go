package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// webSite starts a server at addr, with or without TLS, that says hello, and returns its
// port.
func webSite(t *testing.T, addr netip.Addr, secure bool) (port int) {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, "hello "+r.Host)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes are expected
	l, err := net.Listen("tcp4", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	s.Listener.Close()
	s.Listener = l
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return l.Addr().(*net.TCPAddr).Port
}

// reach defines Python functions that connect to a server; "no" is a refusal.
const reach = `
import http.client, socket, ssl
insecure = ssl.create_default_context()
insecure.check_hostname = False
insecure.verify_mode = ssl.CERT_NONE
def tls(host, port, name):
    s = socket.create_connection((host, port), timeout=50)
    return insecure.wrap_socket(s, server_hostname=name)
def ask(c, host):
    c.sendall(f'GET / HTTP/1.1\r\nHost: {host}\r\n\r\n'.encode())
    r = http.client.HTTPResponse(c)
    r.begin()
    return 'yes' if r.read().startswith(b'hello ') else 'no'
def attempt(f):
    try: return f()
    except (OSError, http.client.HTTPException): return 'no'
`

func TestNetworkRules(t *testing.T) {
	t.Parallel()
	addr := rig.HostAddress(t)
	secure, plain := webSite(t, addr, true), webSite(t, addr, false)
	s := rig.Own(t, rig.Options{Pool: 1, Env: []string{
		"CLOUD_SANDBOX_NAMESERVERS=" + rig.NameServer(t, addr),
		fmt.Sprintf("CLOUD_SANDBOX_EGRESS_OPEN=%s:%d,%s:%d", addr, secure, addr, plain),
	}})
	c := s.Client(t, "rules")
	var made struct {
		rig.Sandbox
		Network json.RawMessage `json:"network"`
	}
	rules := rig.Body{"mode": "none", "allow": []string{"good.example", "*.Good.example"}}
	c.Must(t, "POST", "/api/v1/sessions", rig.Body{"network": rules}, &made)
	if want := `{"mode":"none","allow":["good.example","*.good.example"]}`; string(made.Network) != want {
		t.Errorf("the network is %s, want %s", made.Network, want)
	}

	code := reach + fmt.Sprintf(`
host, secure, plain = %q, %d, %d
print('address', attempt(lambda: ask(tls(host, secure, 'good.example'), 'good.example')))
print('name', attempt(lambda: ask(tls('good.example', secure, 'good.example'), 'good.example')))
print('below', attempt(lambda: ask(tls('a.b.good.example', secure, 'a.b.good.example'), 'a.b.good.example')))
print('other', attempt(lambda: socket.getaddrinfo('evil.example', 80) and 'yes'))
print('false', attempt(lambda: ask(tls('good.example', secure, 'evil.example'), 'good.example')))
print('nameless', attempt(lambda: ask(tls('good.example', secure, None), 'good.example')))
web = socket.create_connection(('good.example', plain), timeout=50)
print('plain', attempt(lambda: ask(web, 'good.example')))
print('second', attempt(lambda: ask(web, 'evil.example')))
open_one = tls('good.example', secure, 'good.example')
`, addr, secure, plain)
	want := "address no\nname yes\nbelow yes\nother no\nfalse no\nnameless no\nplain yes\nsecond no\n"
	if got := output(t, c, made.ID, "python", code); got != want {
		t.Errorf("with names allowed:\n%swant\n%s", got, want)
	}

	c.Must(t, "PATCH", "/api/v1/sessions/"+made.ID, rig.Body{"network": rig.Body{"mode": "public", "deny": []string{"*.example"}}}, &made)
	const after = `
print('open', attempt(lambda: ask(open_one, 'good.example')))
print('name', attempt(lambda: ask(tls('good.example', secure, 'good.example'), 'good.example')))
print('false', attempt(lambda: ask(tls(host, secure, 'good.example'), 'good.example')))
print('not refused', attempt(lambda: ask(tls(host, secure, 'fine.test'), 'fine.test')))
`
	if got, want := output(t, c, made.ID, "python", after), "open no\nname no\nfalse no\nnot refused no\n"; got != want {
		t.Errorf("with names refused:\n%swant\n%s", got, want)
	}
	checkNetworkLog(t, s, c, made.ID)
	checkBandwidth(t, s, c, made.ID, fmt.Sprintf("http://%s:%d/", addr, plain))
}

// checkBandwidth uploads 1.5 MB at 1 MB/s and then without a limit, and checks the quota
// of bandwidth.
func checkBandwidth(t *testing.T, s *rig.Server, c *rig.Client, id, url string) {
	t.Helper()
	var now struct {
		Resources struct {
			Bandwidth int `json:"bandwidth_mbps"`
		} `json:"resources"`
	}
	upload := "head -c 1500000 /dev/zero | curl -s -o /dev/null -w '%{time_total}' --data-binary @- " + url
	bound := func(mbps int) (seconds float64) {
		t.Helper()
		now.Resources.Bandwidth = 0 // absent in the answer: no limit
		c.Must(t, "PATCH", "/api/v1/sessions/"+id, rig.Body{"network": "public", "resources": rig.Body{"bandwidth_mbps": mbps}}, &now)
		if now.Resources.Bandwidth != mbps {
			t.Errorf("asked for %d Mbit/s, got %+v", mbps, now)
		}
		if _, err := fmt.Sscan(c.Sh(t, id, upload), &seconds); err != nil {
			t.Error(err)
		}
		return seconds
	}
	if took := bound(8); took < 1 {
		t.Errorf("a megabyte and a half at 8 Mbit/s took %v seconds", took)
	}
	bound(0)
	tenant := "dev:rules"
	if out, err := command(s, "tenant", "quota", tenant, "bandwidth_mbps=10"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if status, raw, err := c.Do("PATCH", "/api/v1/sessions/"+id, rig.Body{"resources": rig.Body{"bandwidth_mbps": 11}}); err != nil || status != http.StatusTooManyRequests {
		t.Errorf("more than the quota: %d %s %v", status, raw, err)
	}
	if c.Must(t, "POST", "/api/v1/sessions", rig.Body{}, &now); now.Resources.Bandwidth != 10 {
		t.Errorf("by default a session has %+v", now)
	}
}

// checkNetworkLog checks that the owner can read the network decisions, that another
// tenant cannot, and that the metrics count refusals.
func checkNetworkLog(t *testing.T, s *rig.Server, c *rig.Client, id string) {
	t.Helper()
	var told struct {
		Decisions []struct {
			Protocol, Name, Verdict, Reason string
		}
		Allowed, Refused int
	}
	c.Must(t, "GET", "/api/v1/sessions/"+id+"/network/log", nil, &told)
	found := map[string]bool{}
	for _, d := range told.Decisions {
		found[d.Protocol+" "+d.Name+" "+d.Verdict] = true
	}
	for _, want := range []string{"dns good.example allowed", "dns evil.example refused", "tcp good.example allowed", "tcp evil.example refused"} {
		if !found[want] {
			t.Errorf("the log lacks %q: %+v", want, told)
		}
	}
	if told.Allowed < 4 || told.Refused < 5 {
		t.Errorf("%d allowed, %d refused", told.Allowed, told.Refused)
	}
	if status, _, err := s.Client(t, "stranger").Do("GET", "/api/v1/sessions/"+id+"/network/log", nil); err != nil || status != http.StatusNotFound {
		t.Errorf("a stranger hears %d, %v", status, err)
	}
	rig.Within(t, rig.Patience, "refusals in the metrics, which leave out what does not answer soon", func() bool {
		status, page, err := s.Anyone(t).Do("GET", "/metrics", nil)
		return err == nil && status == http.StatusOK && strings.Contains(string(page), `cloud_sandbox_network_decisions_total{node="local",verdict="refused"}`)
	})
}
