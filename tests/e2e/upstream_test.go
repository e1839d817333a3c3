package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// companyProxy is an HTTP proxy that requires a password and only connects to a web
// server at 1.2.3.4:80.
type companyProxy struct {
	at    string // URL with the password
	mu    sync.Mutex
	asked []string
}

const proxyPassword = "hu:sh@1"

func newCompanyProxy(t *testing.T) *companyProxy {
	t.Helper()
	p := new(companyProxy)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.asked = append(p.asked, r.Method+" "+r.RequestURI)
		p.mu.Unlock()
		r.Header.Set("Authorization", r.Header.Get("Proxy-Authorization"))
		switch user, password, _ := r.BasicAuth(); {
		case user != "ann" || password != proxyPassword:
			w.WriteHeader(http.StatusProxyAuthRequired)
		case r.Method != http.MethodConnect || r.RequestURI != "1.2.3.4:80":
			w.WriteHeader(http.StatusForbidden)
		default:
			conn, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 200 Connection established\r\n\r\n")
			if r, err := http.ReadRequest(rw.Reader); err == nil {
				body := "hello by the proxy, " + r.Host + "\n"
				fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			}
		}
	}))
	t.Cleanup(server.Close)
	p.at = "http://ann:hu%3Ash%401@" + strings.TrimPrefix(server.URL, "http://")
	return p
}

// heard reports whether the proxy received a request.
func (p *companyProxy) heard(request string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.asked, request)
}

// With an upstream proxy, sandboxes, builds and webhooks connect through it, and its
// refusals are reported.
func TestUpstreamProxy(t *testing.T) {
	t.Parallel()
	proxy, addr := newCompanyProxy(t), rig.HostAddress(t)
	port := webSite(t, addr, false)
	s := rig.Own(t, rig.Options{Pool: 1, Env: []string{
		"CLOUD_SANDBOX_UPSTREAM_PROXY=" + proxy.at,
		fmt.Sprintf("CLOUD_SANDBOX_EGRESS_OPEN=%s:%d", addr, port),
		"https_proxy=" + proxy.at, // for webhooks
		"CLOUD_SANDBOX_WEBHOOKS=https://1.2.3.6/hook", "CLOUD_SANDBOX_WEBHOOK_SECRET=" + strings.Repeat("s3", 20),
	}})
	c := s.Client(t, "company")
	id := c.Create(t, rig.Body{"name": "behind"}).ID

	near := fmt.Sprintf("%s:%d", addr, port)
	for ask, want := range map[string]string{
		"curl -sS http://1.2.3.4/":                       "hello by the proxy, 1.2.3.4\n",
		"curl -sS http://" + near:                        "hello " + near,
		"curl -sS http://1.2.3.5/ 2>/dev/null; echo $?":  "7\n", // no connection
		"curl -sS http://10.0.0.1/ 2>/dev/null; echo $?": "7\n",
		`python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(50)
s.connect(("1.2.3.4", 123))
s.send(b"time?")
try: s.recv(1)
except OSError as e: print(type(e).__name__)'`: "ConnectionRefusedError\n",
	} {
		if got := output(t, c, id, "bash", ask); got != want {
			t.Errorf("%s: %q, want %q", ask, got, want)
		}
	}
	if !proxy.heard("CONNECT 1.2.3.4:80") || !proxy.heard("CONNECT 1.2.3.5:80") || proxy.heard("CONNECT 10.0.0.1:80") || proxy.heard("CONNECT "+near) {
		t.Errorf("the proxy is asked %q", proxy.asked)
	}

	const forbidden = "the upstream proxy refuses the connection (403 Forbidden)"
	var log struct {
		Decisions []struct{ Protocol, Address, Verdict, Reason string }
	}
	c.Must(t, "GET", "/api/v1/sessions/"+id+"/network/log?verdict=refused", nil, &log)
	reasons := map[string]string{}
	for _, d := range log.Decisions {
		reasons[d.Protocol+" "+d.Address] = d.Reason
	}
	if reasons["tcp 1.2.3.5"] != forbidden || !strings.Contains(reasons["udp 1.2.3.4"], "carries no UDP") {
		t.Errorf("the log tells %+v", log)
	}
	cli := rig.Command(s.Bin, "network", "log", "behind")
	cli.Env = append(os.Environ(), "CLOUD_SANDBOX_URL="+s.URL, "CLOUD_SANDBOX_USER_ID=company", "CLOUD_SANDBOX_API_KEY=")
	if out, err := cli.CombinedOutput(); err != nil || !strings.Contains(string(out), forbidden) {
		t.Errorf("network log: %v\n%s", err, out)
	}

	rig.Within(t, rig.Patience, "a webhook by the proxy", func() bool { return proxy.heard("CONNECT 1.2.3.6:443") })
	checkProxiedBuilds(t, s, c, proxy)
	if log := s.Log(); strings.Contains(log, "hu%3Ash") || strings.Contains(log, proxyPassword) {
		t.Errorf("the password is in the log:\n%s", log)
	}
}

// checkProxiedBuilds checks that builds by a tenant and by the operator fail with the
// proxy's error if it refuses their registries.
func checkProxiedBuilds(t *testing.T, s *rig.Server, c *rig.Client, proxy *companyProxy) {
	t.Helper()
	var b templateBuild
	c.Must(t, "POST", "/api/v1/templates", rig.Body{"template": "x", "source": "oci:1.2.3.7/team/tool:1", "bare": true}, &b)
	_, b = follow(t, c, b.ID)
	if b.State != "failed" || b.Error == nil || !strings.Contains(b.Error.Message, "the upstream proxy refuses the connection (403 Forbidden)") || !proxy.heard("CONNECT 1.2.3.7:443") {
		t.Errorf("a tenant's build: %+v", b)
	}
	cmd := rig.Command(s.Bin, "template", "build", "x", "--source", "oci:1.2.3.8/team/tool:1", "--bare", "--data", s.Data)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.Contains(strings.ToLower(v), "_proxy=") })
	cmd.Env = append(cmd.Env, "CLOUD_SANDBOX_UPSTREAM_PROXY="+proxy.at)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err == nil || !strings.Contains(out.String(), "the registry 1.2.3.8 cannot be reached: the upstream proxy refuses the connection (403 Forbidden)") || strings.Contains(out.String(), "hu%3Ash") || !proxy.heard("CONNECT 1.2.3.8:443") {
		t.Errorf("the operator's build: %v\n%s", err, out.String())
	}
}
