package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// key creates an API key as the operator.
func key(t *testing.T, s *rig.Server, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := rig.Command(s.Bin, append([]string{"key", "create", "--data", s.Data}, args...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("key create: %v: %s", err, stderr.Bytes())
	}
	return strings.TrimSpace(stdout.String())
}

// send sends a request with an additional header. It returns the response and the
// decoded Sandbox.
func send(t *testing.T, c *rig.Client, method, path, body, name, value string) (*http.Response, rig.Sandbox) {
	t.Helper()
	req, err := http.NewRequest(method, c.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.Token)
	req.Header.Set(name, value)
	resp, err := c.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var s rig.Sandbox
	if resp.StatusCode < 300 {
		if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
			t.Fatal(err)
		}
	}
	return resp, s
}

// If the server does not know a client's call, the error names both versions.
func TestVersions(t *testing.T) {
	t.Parallel()
	rig.LacksEarlier(t, "the gateways name different versions")
	c := shared.Server(t).Client(t, "versions")
	version, err := rig.Command(shared.Server(t).Bin, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	own := strings.TrimPrefix(strings.TrimSpace(strings.TrimPrefix(string(version), "cloud-sandbox version ")), "v")
	plain := &http.Client{Timeout: rig.Patience} // c checks a contract that has no Connect calls
	const later = "cloud-sandbox-python/99.0.0"
	both := "the client has version 99.0.0 and the server version " + own + ": update the older one"
	for name, tt := range map[string]struct{ method, path, body, agent, want string }{
		"REST":                       {"GET", "/api/v1/later", "", later, both},
		"Connect":                    {"POST", "/cloudsandbox.sandbox.v1.SandboxService/Later", "{}", later, both},
		"Connect, by a field":        {"POST", "/cloudsandbox.sandbox.v1.SandboxService/Get", `{"later":1}`, later, both},
		"Connect, without a version": {"POST", "/cloudsandbox.sandbox.v1.SandboxService/Get", `{"later":1}`, "connect-es/2", "the server has version " + own},
		"MCP":                        {"POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`, "t/1", `"version":"` + own + `"`},
	} {
		req, err := http.NewRequest(tt.method, c.URL+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		for header, value := range map[string]string{"User-Agent": tt.agent, "Authorization": "Bearer " + c.Token, "Content-Type": "application/json", "Accept": "application/json, text/event-stream"} {
			req.Header.Set(header, value)
		}
		resp, err := plain.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !strings.Contains(string(body), tt.want) {
			t.Errorf("%s: %s, %v, want %q", name, body, err, tt.want)
		}
	}
}

// Outside dev mode an admin key from the operator grants access and mints tokens. Rate
// limits apply per caller, and a revoked key is refused.
func TestDoors(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{
		Env: []string{"JWT_SECRET=0123456789abcdef0123456789abcdef", "RATE_LIMITS=execute=0.001:3"}, Strict: true, Pool: 1,
	})
	for _, command := range []string{"key", "token"} { // a slash is where a key vouches for its users
		out, err := rig.Command(s.Bin, command, "create", "--tenant", "default/alice", "--data", s.Data).CombinedOutput()
		if err == nil || !bytes.Contains(out, []byte("no slash")) {
			t.Errorf("%s create of a tenant with a slash: %v: %s", command, err, out)
		}
	}
	admin, reader := s.Anyone(t), s.Anyone(t)
	admin.Token = key(t, s, "--admin", "--name", "first")
	reader.Token = key(t, s, "--scope", "read", "--expires-in", "1h")

	if code, raw, _ := reader.Do("POST", "/api/v1/sandbox/acquire", nil); code != 403 || !bytes.Contains(raw, []byte("write")) {
		t.Errorf("a reader acquires: %d %s", code, raw)
	}
	user := s.Anyone(t)
	var token struct {
		Token string `json:"access_token"`
	}
	admin.Must(t, "POST", "/api/v1/auth/token", rig.Body{"user_id": "alice", "role": "user"}, &token)
	user.Token = token.Token
	mine := admin.Acquire(t)
	if code, raw, _ := user.Do("GET", "/api/v1/sessions/"+mine, nil); code != 404 {
		t.Errorf("a user sees what is the admin's: %d %s", code, raw)
	}
	if got := reader.Get(t, mine); got.State != "running" {
		t.Errorf("a reader of the same tenant sees %+v", got)
	}
	for range 3 {
		if got := admin.Sh(t, mine, "echo in"); got != "in\n" {
			t.Errorf("%q", got)
		}
	}
	resp, _ := send(t, admin, "POST", "/api/v1/execute", `{"language":"bash","code":"true"}`, "X-Request-Id", "mine-1")
	if resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" || resp.Header.Get("X-Request-Id") != "mine-1" ||
		!strings.HasPrefix(resp.Header.Get("RateLimit"), `"execute";r=0;t=`) {
		t.Errorf("beyond the limit: %d %v", resp.StatusCode, resp.Header)
	}
	if got := user.Run(t, "", "bash", "echo $((6*7))", nil); got.Stdout != "42\n" {
		t.Errorf("another caller is limited: %s", got)
	}

	var made struct {
		ID  string `json:"key_id"`
		Key string `json:"key"`
	}
	admin.Must(t, "POST", "/api/v1/keys", rig.Body{"name": "brief", "scopes": []string{"read"}}, &made)
	brief := s.Anyone(t)
	brief.Token = made.Key
	brief.Must(t, "GET", "/api/v1/sessions", nil, nil)
	rotateKeys(t, s, admin, made.ID, brief)
	if out, err := rig.Command(s.Bin, "key", "revoke", made.ID, "--data", s.Data).CombinedOutput(); err != nil {
		t.Fatalf("revoke: %v: %s", err, out)
	}
	rig.Within(t, rig.Patience, "the refusal of a revoked key", func() bool {
		code, _, _ := brief.Do("GET", "/api/v1/sessions", nil)
		return code == 401
	})
	if log := s.Log(); strings.Contains(log, made.Key) || strings.Contains(log, admin.Token) {
		t.Error("a key is in the log")
	}
}

// rotateKeys rotates the key of c twice: as an admin with an overlap, in which both
// secrets are valid, and as the operator without one. c gets the last secret.
func rotateKeys(t *testing.T, s *rig.Server, admin *rig.Client, id string, c *rig.Client) {
	t.Helper()
	var rotated struct {
		Key      string `json:"key"`
		Previous struct {
			ValidUntil time.Time `json:"valid_until"`
		} `json:"previous"`
	}
	admin.Must(t, "POST", "/api/v1/keys/"+id+"/rotate", rig.Body{"overlap_seconds": 3600}, &rotated)
	next := s.Anyone(t)
	next.Token = rotated.Key
	if !rotated.Previous.ValidUntil.After(time.Now()) {
		t.Errorf("rotated %+v", rotated)
	}
	for _, either := range []*rig.Client{c, next} {
		either.Must(t, "GET", "/api/v1/sessions", nil, nil)
	}
	out, err := rig.Command(s.Bin, "key", "rotate", id, "--overlap", "0", "--data", s.Data).Output()
	if err != nil {
		t.Fatalf("rotate: %v", err)
	}
	for _, old := range []*rig.Client{c, next} {
		rig.Within(t, rig.Patience, "the refusal of an earlier secret", func() bool {
			code, _, _ := old.Do("GET", "/api/v1/sessions", nil)
			return code == 401
		})
	}
	c.Token = strings.TrimSpace(string(out))
	c.Must(t, "GET", "/api/v1/sessions", nil, nil)
}

// A create retried with its Idempotency-Key after kill -9 of the server returns the same
// session.
func TestIdempotencyAcrossAKill(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{Pool: 1})
	c := s.Client(t, "once")
	create := func() (*http.Response, rig.Sandbox) {
		return send(t, c, "POST", "/api/v1/sessions", `{"name":"one"}`, "Idempotency-Key", "first")
	}
	resp, first := create()
	if resp.StatusCode != 201 {
		t.Fatal(resp.Status)
	}
	rig.Kill(t, s.One(t, rig.ServerRole))
	waitDone(t, s)
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	resp, again := create()
	if resp.StatusCode != 201 || again.ID != first.ID || resp.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("%s %+v, want %s", resp.Status, again, first.ID)
	}
	if resp, _ := send(t, c, "POST", "/api/v1/sessions", `{"name":"two"}`, "Idempotency-Key", "first"); resp.StatusCode != 409 {
		t.Errorf("another request with the key: %s", resp.Status)
	}
}
