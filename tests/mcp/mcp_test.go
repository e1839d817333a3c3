// Package mcp has the official clients of the Model Context Protocol use the built
// binary, over stdio and over HTTP.
//
// CLOUD_SANDBOX_MCP_CLIENTS names the folder that scripts/mcp-clients.sh prints.
package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

var shared = rig.Shared{Options: rig.Options{Pool: 3}}

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

// clients returns the folder of the clients. Without it, the test is skipped.
func clients(t *testing.T) string {
	t.Helper()
	rig.Need(t)
	dir := os.Getenv("CLOUD_SANDBOX_MCP_CLIENTS")
	if dir == "" {
		t.Skip("CLOUD_SANDBOX_MCP_CLIENTS does not name the folder that scripts/mcp-clients.sh prints")
	}
	return dir
}

// key makes an API key of a Tenant.
func key(t *testing.T, s *rig.Server, user string) string {
	t.Helper()
	var reply struct{ Key string }
	s.Client(t, user).Must(t, "POST", "/api/v1/keys", rig.Body{"name": "mcp"}, &reply)
	return reply.Key
}

// run runs a client with nothing but its environment and returns what it prints.
func run(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := rig.CommandContext(ctx, name, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%s: %v\n%s\n%s", strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return string(out)
}

// The official clients use every kind of tool, cancel a call, and reconnect to their
// sandbox, which was paused meanwhile.
func TestOfficialClients(t *testing.T) {
	dir := clients(t)
	s := shared.Server(t)
	script := filepath.Join(t.TempDir(), "client.mjs") // beside node_modules, where it looks for the SDK
	text, err := os.ReadFile("client.mjs")
	if err == nil {
		err = os.WriteFile(script, text, 0o644)
	}
	if err == nil {
		err = os.Symlink(filepath.Join(dir, "js", "node_modules"), filepath.Join(filepath.Dir(script), "node_modules"))
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, client := range map[string][]string{
		"typescript": {filepath.Join(dir, "node"), script},
		"python":     {filepath.Join(dir, "py", "bin", "python"), "client.py"},
	} {
		for way, server := range map[string]func(session, key string) []string{
			"stdio": func(session, _ string) []string { return []string{"stdio", s.Bin, "mcp", "--session", session} },
			"http":  func(session, key string) []string { return []string{"http", s.URL + "/mcp?session=" + session, key} },
		} {
			t.Run(name+" over "+way, func(t *testing.T) {
				t.Parallel()
				user, session := "mcp-"+name+"-"+way, "agent"
				secret := key(t, s, user)
				env := []string{"CLOUD_SANDBOX_URL=" + s.URL, "CLOUD_SANDBOX_API_KEY=" + secret}
				if out := run(t, env, client[0], append(client[1:len(client):len(client)], server(session, secret)...)...); out != "ok\n" {
					t.Errorf("it printed %q", out)
				}
				c := s.Client(t, user)
				for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
					var sb rig.Sandbox
					c.Must(t, "GET", "/api/v1/sessions/"+session, nil, &sb)
					if sb.State == "paused" {
						break
					}
					if time.Now().After(end) {
						t.Fatalf("the sandbox is %s after the client has left", sb.State)
					}
				}
			})
		}
	}
}

// The inspector's command line lists the tools and calls one.
func TestInspector(t *testing.T) {
	dir := clients(t)
	s := shared.Server(t)
	secret := key(t, s, "inspector")
	inspect := func(target []string, args ...string) string {
		all := append([]string{filepath.Join(dir, "js", "node_modules", ".bin", "mcp-inspector"), "--cli"}, target...)
		return run(t, nil, filepath.Join(dir, "node"), append(all, args...)...)
	}
	for name, target := range map[string][]string{
		"stdio": {"-e", "CLOUD_SANDBOX_URL=" + s.URL, "-e", "CLOUD_SANDBOX_API_KEY=" + secret, s.Bin, "mcp", "--session", "inspector"},
		"http":  {s.URL + "/mcp?tools=claude&session=inspector-http", "--transport", "http", "--header", "Authorization: Bearer " + secret},
	} {
		t.Run(name, func(t *testing.T) {
			var listed struct{ Tools []struct{ Name string } }
			out := inspect(target, "--method", "tools/list", "--strict") // checks that every model provider accepts the schemas
			if err := json.Unmarshal([]byte(out), &listed); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			tool := "run_command"
			if name == "http" {
				tool = "bash"
			}
			if !slices.ContainsFunc(listed.Tools, func(l struct{ Name string }) bool { return l.Name == tool }) {
				t.Errorf("%s is not among %v", tool, listed.Tools)
			}
			out = inspect(target, "--method", "tools/call", "--tool-name", tool, "--tool-arg", "command=echo $((6 * 7))")
			if !strings.Contains(out, `"text": "42\n"`) {
				t.Errorf("it answered %s", out)
			}
		})
	}
}
