package mcp

import (
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

func connect(t *testing.T, over sdk.Transport) *sdk.ClientSession {
	t.Helper()
	session, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), over, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

// tool calls a tool and returns the text of its result.
func tool(t *testing.T, session *sdk.ClientSession, name string, arguments map[string]any) string {
	t.Helper()
	result, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: arguments})
	if err != nil {
		t.Fatal(err)
	}
	text, ok := result.Content[0].(*sdk.TextContent)
	if !ok || result.IsError {
		t.Fatalf("%s: %+v", name, result.Content[0])
	}
	return text.Text
}

// until waits for something to become true.
func until(t *testing.T, what string, true func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !true(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// If `cloud-sandbox mcp` ends during a call, the program of that call ends too. Unless
// it was killed with -9, it pauses the sandbox.
func TestStdioEnds(t *testing.T) {
	rig.Need(t)
	s := shared.Server(t)
	for name, tt := range map[string]struct {
		end    func(*exec.Cmd)
		pauses bool
	}{
		"SIGTERM": {func(cmd *exec.Cmd) { _ = cmd.Process.Signal(syscall.SIGTERM) }, true},
		"Ctrl-C":  {func(cmd *exec.Cmd) { _ = cmd.Process.Signal(os.Interrupt) }, true},
		"kill -9": {func(cmd *exec.Cmd) { _ = cmd.Process.Kill() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := s.Client(t, "mcp-ends-"+name)
			cmd := rig.Command(s.Bin, "mcp", "--session", "ends")
			cmd.Env = append(os.Environ(), "CLOUD_SANDBOX_URL="+s.URL, "CLOUD_SANDBOX_API_KEY="+key(t, s, "mcp-ends-"+name))
			session := connect(t, &sdk.CommandTransport{Command: cmd})
			tool(t, session, "run_command", map[string]any{"command": "true"})
			const looks = "pgrep -f 'sleep 543[2]' || echo none"
			go session.CallTool(context.WithoutCancel(t.Context()), &sdk.CallToolParams{Name: "run_command", Arguments: map[string]any{"command": "sleep 5432"}})
			until(t, "the program runs", func() bool { return c.Run(t, "ends", "bash", looks, nil).Stdout != "none\n" })
			tt.end(cmd)
			if tt.pauses {
				until(t, "the sandbox is paused", func() bool {
					var sb rig.Sandbox
					c.Must(t, "GET", "/api/v1/sessions/ends", nil, &sb)
					return sb.State == "paused"
				})
			}
			until(t, "the program has ended", func() bool { return c.Run(t, "ends", "bash", looks, nil).Stdout == "none\n" })
		})
	}
}

// withKey sends requests with an API key.
type withKey struct{ key string }

func (w withKey) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+w.key)
	return http.DefaultTransport.RoundTrip(r)
}

// A restart of the server ends its MCP sessions. A new session of the same name finds
// the sandbox with its variables.
func TestSessionsAfterARestart(t *testing.T) {
	rig.Need(t)
	s := rig.Own(t, rig.Options{Pool: 1})
	secret := key(t, s, "restart")
	over := func() sdk.Transport {
		return &sdk.StreamableClientTransport{Endpoint: s.URL + "/mcp?session=agent", HTTPClient: &http.Client{Transport: withKey{secret}}, DisableStandaloneSSE: true}
	}
	before := connect(t, over())
	tool(t, before, "run_code", map[string]any{"code": "x = 41"})
	if err := errors.Join(s.Stop(), s.Launch(), s.Ready()); err != nil {
		t.Fatal(err)
	}
	_, err := before.CallTool(t.Context(), &sdk.CallToolParams{Name: "run_code", Arguments: map[string]any{"code": "x"}})
	if !errors.Is(err, sdk.ErrSessionMissing) {
		t.Errorf("the session of before: %v", err)
	}
	if got := tool(t, connect(t, over()), "run_code", map[string]any{"code": "x + 1"}); strings.TrimSpace(got) != "42" {
		t.Errorf("x + 1 is %q", got)
	}
}
