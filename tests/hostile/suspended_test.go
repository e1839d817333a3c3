package hostile

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// A suspended tenant loses its terminals, its streams, its connections into its sandbox,
// and its running programs. This also holds if the operator's command suspends it next
// to a running server.
func TestSuspendedTenantHoldsNothing(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{Pool: 1})
	mine, other := s.Client(t, "miner"), s.Client(t, "neighbour")
	id, theirs := mine.Acquire(t), other.Acquire(t)
	held := map[string]<-chan error{
		"a terminal":          holdTerminal(t, mine, id),
		"output as events":    holdStream(t, mine, "/api/v1/execute", rig.Body{"sandbox_id": id, "language": "bash", "code": "while :; do echo x; sleep 0.1; done", "stream": true, "timeout_seconds": 600}, nil),
		"a stream of a port":  holdPort(t, mine, id),
		"a watch":             holdWatch(t, mine, id),
		"a socket of changes": holdSocket(t, mine, "/api/v1/files/watch?path=/workspace&sandbox_id="+id),
	}
	rig.Within(t, time.Minute, "the tenant's record", func() bool { // it is created soon after the first use
		out, err := rig.Command(s.Bin, "tenant", "ls", "--data", s.Data).Output()
		return err == nil && strings.Contains(string(out), "dev:miner ")
	})
	if out, err := rig.Command(s.Bin, "tenant", "suspend", "dev:miner", "--reason", "a test", "--data", s.Data).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	limit := time.After(time.Minute)
	for what, ended := range held {
		select {
		case err := <-ended:
			t.Logf("%s ended: %v", what, err)
		case <-limit:
			t.Fatalf("%s goes on after the tenant was suspended", what)
		}
	}
	// The session-manager may pause the sandbox before the gateway sees the suspension.
	for _, path := range []string{"/api/v1/sessions", "/api/v1/quota"} {
		rig.Within(t, time.Minute, path+" to be refused", func() bool {
			status, raw, err := mine.Do("GET", path, nil)
			return err == nil && status == http.StatusForbidden && strings.Contains(string(raw), "suspended")
		})
	}
	// A request to a port does not resume the sandbox.
	if status, body := askPort(t, s, id); status != http.StatusForbidden || !strings.Contains(body, "suspended") {
		t.Errorf("a port: %d %s", status, body)
	}
	rig.Within(t, time.Minute, "its sandbox to stand still", func() bool {
		return s.Metric(`cloud_sandbox_sandboxes{state="paused"}`) == 1
	})
	other.Run(t, theirs, "bash", "true", nil)
}

// ends returns the error with which reading from r ends.
func ends(r io.Reader) <-chan error {
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, r)
		ended <- err
	}()
	return ended
}

// holdStream starts a streaming answer and returns the error that ends it.
func holdStream(t *testing.T, c *rig.Client, path string, body rig.Body, change func(*http.Request)) <-chan error {
	t.Helper()
	method, encoded := "GET", io.Reader(http.NoBody)
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		method, encoded = "POST", bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, c.URL+path, encoded)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.Token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	if change != nil {
		change(req)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s: %d %s", path, resp.StatusCode, text)
	}
	first := bufio.NewReader(resp.Body)
	if _, err := first.ReadByte(); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return ends(first)
}

func holdWatch(t *testing.T, c *rig.Client, id string) <-chan error {
	return holdStream(t, c, "/api/v1/files/watch?path=/workspace&sandbox_id="+id, nil, nil)
}

// holdSocket opens a WebSocket and returns the error that ends it.
func holdSocket(t *testing.T, c *rig.Client, path string) <-chan error {
	t.Helper()
	conn, resp, err := websocket.Dial(t.Context(), c.URL+path, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + c.Token}}})
	if err != nil {
		t.Fatalf("%s: %v, %+v", path, err, resp)
	}
	conn.SetReadLimit(1 << 20)
	t.Cleanup(func() { conn.CloseNow() })
	ended := make(chan error, 1)
	go func() {
		for {
			if _, _, err := conn.Read(context.WithoutCancel(t.Context())); err != nil {
				ended <- err
				return
			}
		}
	}()
	return ended
}

func holdTerminal(t *testing.T, c *rig.Client, id string) <-chan error {
	t.Helper()
	var p struct {
		ID string `json:"process_id"`
	}
	c.Must(t, "POST", "/api/v1/processes", rig.Body{"sandbox_id": id, "command": "cat", "background": true, "pty": rig.Body{"rows": 24, "cols": 80}}, &p)
	return holdSocket(t, c, "/api/v1/processes/"+url.PathEscape(p.ID)+"/attach?sandbox_id="+id)
}

// server streams bytes to a client without end.
const server = `
import http.server, time
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        while True:
            self.wfile.write(b'x'); self.wfile.flush(); time.sleep(0.1)
http.server.HTTPServer(('', 8000), H).serve_forever()
`

func holdPort(t *testing.T, c *rig.Client, id string) <-chan error {
	t.Helper()
	c.Must(t, "POST", "/api/v1/processes", rig.Body{"sandbox_id": id, "argv": []string{"python3", "-c", server}, "background": true}, &struct{}{})
	rig.Within(t, time.Minute, "the port to open", func() bool {
		var told struct{ Ports []struct{ Port int } }
		return c.Try("GET", "/api/v1/sessions/"+id+"/ports", nil, &told) == nil && len(told.Ports) > 0
	})
	return holdStream(t, c, "/", nil, func(r *http.Request) { ofPort(r, id) })
}

func ofPort(r *http.Request, id string) {
	r.Header.Set("E2b-Sandbox-Id", id)
	r.Header.Set("E2b-Sandbox-Port", "8000")
}

func askPort(t *testing.T, s *rig.Server, id string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", s.URL+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	ofPort(req, id)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, string(text)
}
