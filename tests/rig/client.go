package rig

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// Body is a JSON object.
type Body = map[string]any

// Client is one Tenant's view of a Server.
type Client struct {
	URL, Token string
	HTTP       *http.Client

	turns []string // see Server
	next  *atomic.Int64
}

// Sandbox is the record of a Sandbox.
type Sandbox struct{ v1.Sandbox }

// Cause returns the cause of its end; empty before the end.
func (s Sandbox) Cause() string {
	if s.Ended == nil {
		return ""
	}
	return string(s.Ended.Cause)
}

// Result is the result of an execution.
type Result struct{ v1.ExecuteResult }

// UnmarshalJSON gives the result of a language without contexts an empty Cell, so that
// tests can read its fields.
func (r *Result) UnmarshalJSON(raw []byte) error {
	r.Cell = &v1.Cell{}
	return json.Unmarshal(raw, &r.ExecuteResult)
}

func (r Result) String() string {
	problem := ""
	if r.Error != nil {
		problem = r.Error.Name + ": " + r.Error.Message
	}
	return fmt.Sprintf("status %s, exit code %d, after %.0f ms, stdout %q, stderr %q, %s",
		r.Status, r.ExitCode, r.DurationMS, tail(r.Stdout, 300), tail(r.Stderr, 300), problem)
}

// brief is for requests that should be answered quickly.
var brief = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// Client returns a client of a Tenant named user.
func (s *Server) Client(t testing.TB, user string) *Client {
	t.Helper()
	return s.clientAs(t, user, "user")
}

// Operator returns a client of an operator.
func (s *Server) Operator(t testing.TB) *Client {
	t.Helper()
	return s.clientAs(t, "ops", "operator")
}

// clientAs is Client in a role.
func (s *Server) clientAs(t testing.TB, user, role string) *Client {
	t.Helper()
	c := s.Anyone(t)
	if c.Token = s.keyAs(t, user, role); c.Token != "" {
		return c
	}
	var reply struct {
		Token string `json:"access_token"`
	}
	c.Must(t, "POST", "/api/v1/auth/token", Body{"user_id": user, "role": role}, &reply)
	c.Token = reply.Token
	return c
}

// Tenant returns the Tenant ID of a client of user.
func (s *Server) Tenant(user string) string {
	if s.secret == "" {
		return "dev:" + user
	}
	return user
}

// Key returns a token of a Tenant named user for a server outside dev mode; empty in dev
// mode.
func (s *Server) Key(t testing.TB, user string) string {
	t.Helper()
	return s.keyAs(t, user, "user")
}

// keyAs is Key in a role.
func (s *Server) keyAs(t testing.TB, user, role string) string {
	t.Helper()
	if s.secret == "" {
		return ""
	}
	cmd := Command(s.Bin, "token", "create", "--data", s.Data, "--tenant", user, "--user", user, "--role", role)
	cmd.Env = append(os.Environ(), "JWT_SECRET="+s.secret)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("token create: %v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// Anyone returns a client without a token. An answer that violates the contract fails
// the test.
func (s *Server) Anyone(t testing.TB) *Client {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 8}
	t.Cleanup(transport.CloseIdleConnections)
	s.mu.Lock()
	s.transports = append(s.transports, transport)
	s.mu.Unlock()
	return &Client{
		URL: s.URL, HTTP: &http.Client{Transport: checked{transport, t}, Timeout: 10 * time.Minute},
		turns: s.turns, next: &atomic.Int64{},
	}
}

// Below returns the path and query of a URL of the server that the client uses.
func (c *Client) Below(t testing.TB, url string) string {
	t.Helper()
	for _, base := range append([]string{c.URL}, c.turns...) {
		if path, ours := strings.CutPrefix(url, base); ours {
			return path
		}
	}
	t.Fatalf("%s is not below %s", url, c.URL)
	return ""
}

// base is the URL for the next request.
func (c *Client) base() string {
	if len(c.turns) == 0 {
		return c.URL
	}
	return c.turns[int(c.next.Add(1))%len(c.turns)]
}

// Do sends a request; body is sent as it is when it is a reader or bytes, and
// as JSON otherwise.
func (c *Client) Do(method, path string, body any) (status int, raw []byte, err error) {
	var r io.Reader
	kind := "application/json"
	switch b := body.(type) {
	case nil:
	case []byte:
		r, kind = bytes.NewReader(b), "application/octet-stream"
	case io.Reader:
		r, kind = b, "application/octet-stream"
	default:
		j, err := json.Marshal(b)
		if err != nil {
			return 0, nil, err
		}
		r = bytes.NewReader(j)
	}
	req, err := c.NewRequest(method, path, r)
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", kind)
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	raw, err = io.ReadAll(resp.Body)
	return resp.StatusCode, raw, err
}

// Request prepares a request with the client's token.
func (c *Client) Request(t testing.TB, method, path string, body io.Reader) *http.Request {
	t.Helper()
	req, err := c.NewRequest(method, path, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// NewRequest is Request that returns its error.
func (c *Client) NewRequest(method, path string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequest(method, c.base()+path, body)
	if err == nil && c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	return req, err
}

// Try sends a request and decodes an answer below 300 into reply, which may be
// nil.
func (c *Client) Try(method, path string, body, reply any) error {
	status, raw, err := c.Do(method, path, body)
	if err != nil {
		return err
	}
	if status >= 300 {
		return fmt.Errorf("%s %s answered %d: %s", method, path, status, tail(string(raw), 500))
	}
	if reply == nil {
		return nil
	}
	if err := json.Unmarshal(raw, reply); err != nil {
		return fmt.Errorf("%s %s answered %s: %w", method, path, tail(string(raw), 500), err)
	}
	return nil
}

// Must is Try that fails the test on an error.
func (c *Client) Must(t testing.TB, method, path string, body, reply any) {
	t.Helper()
	if err := c.Try(method, path, body, reply); err != nil {
		t.Fatal(err)
	}
}

// Acquire takes a Sandbox from the Pool until the test's end.
func (c *Client) Acquire(t testing.TB) string {
	t.Helper()
	var s Sandbox
	c.Must(t, "POST", "/api/v1/sandbox/acquire", Body{}, &s)
	c.release(t, s.ID)
	return s.ID
}

// Create makes a session until the test's end; a nil body sets no field.
func (c *Client) Create(t testing.TB, body Body) Sandbox {
	t.Helper()
	if body == nil {
		body = Body{}
	}
	var s Sandbox
	c.Must(t, "POST", "/api/v1/sessions", body, &s)
	c.release(t, s.ID)
	return s
}

func (c *Client) release(t testing.TB, id string) {
	t.Cleanup(func() { _, _, _ = c.Do("POST", "/api/v1/sandbox/release", Body{"sandbox_id": id}) })
}

// Get returns the record of a Sandbox.
func (c *Client) Get(t testing.TB, id string) Sandbox {
	t.Helper()
	var s Sandbox
	c.Must(t, "GET", "/api/v1/sessions/"+id, nil, &s)
	return s
}

// Run executes code; more, which may be nil, is added to the request.
func (c *Client) Run(t testing.TB, id, language, code string, more Body) Result {
	t.Helper()
	r, err := c.TryRun(id, language, code, more)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TryRun is Run that returns its error.
func (c *Client) TryRun(id, language, code string, more Body) (Result, error) {
	body := Body{"language": language, "code": code}
	if id != "" {
		body["sandbox_id"] = id
	}
	for k, v := range more {
		body[k] = v
	}
	var r Result
	err := c.Try("POST", "/api/v1/execute", body, &r)
	return r, err
}

// Sh runs bash code that must succeed and returns its stdout.
func (c *Client) Sh(t testing.TB, id, code string) string {
	t.Helper()
	r := c.Run(t, id, "bash", code, nil)
	if r.Status != "ok" {
		t.Fatalf("%s: %s", code, r)
	}
	return r.Stdout
}

// Files returns the path of a files call.
func Files(call, id, path string) string {
	return "/api/v1/files" + call + "?" + url.Values{"sandbox_id": {id}, "path": {path}}.Encode()
}
