package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// step is a tool call that the scripted model makes.
type step struct {
	tool  string
	input map[string]any
}

// model is a server that plays a model with a script. It answers each request of an
// agent with the next tool call, and at the end says that it is done.
type model struct {
	*httptest.Server
	t     *testing.T
	steps []step
	// subagents are the steps of subagents, by a text in their first message.
	subagents map[string][]step

	mu      sync.Mutex
	offered []string // the tools that the agent offered
	results []string // of the tools, as sent to the model
	bodies  []string // of requests
	asked   []string // paths
}

func newModel(t *testing.T, steps []step) *model {
	m := &model{t: t, steps: steps}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/messages", m.messages)
	mux.HandleFunc("POST /v1/responses", m.responses)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		m.mu.Lock()
		m.asked = append(m.asked, r.Method+" "+r.URL.Path)
		m.mu.Unlock()
		http.Error(w, `{"error":{"type":"not_found_error","message":"not here"}}`, http.StatusNotFound)
	})
	m.Server = httptest.NewServer(mux)
	t.Cleanup(m.Close)
	return m
}

// next returns the call that follows these results; nil: the script has ended.
func (m *model) next(offered, results []string) *step {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.offered = offered
	if len(results) >= len(m.results) {
		m.results = results
	}
	if len(results) >= len(m.steps) {
		return nil
	}
	return &m.steps[len(results)]
}

// nextOf is next, but takes the steps of a subagent for its conversation.
func (m *model) nextOf(begins json.RawMessage, offered, results []string) *step {
	for text, steps := range m.subagents {
		if strings.Contains(string(begins), text) {
			if len(results) >= len(steps) {
				return nil
			}
			return &steps[len(results)]
		}
	}
	return m.next(offered, results)
}

// events writes server-sent events, each named by its type.
func events(w http.ResponseWriter, all ...map[string]any) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, e := range all {
		data, _ := json.Marshal(e)
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", e["type"], data)
	}
}

// messages plays the Messages API, which Claude Code uses.
func (m *model) messages(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Model    string
		Tools    []struct{ Name string }
		Messages []struct{ Content json.RawMessage }
	}
	body, _ := io.ReadAll(r.Body)
	m.mu.Lock()
	m.bodies = append(m.bodies, string(body))
	m.mu.Unlock()
	if err := json.Unmarshal(body, &asked); err != nil {
		m.t.Errorf("the agent asked %v: %.300s", err, body)
	}
	var offered, results []string
	for _, tool := range asked.Tools {
		offered = append(offered, tool.Name)
	}
	for _, message := range asked.Messages {
		var blocks []struct {
			Type    string
			Content json.RawMessage
		}
		_ = json.Unmarshal(message.Content, &blocks) // or the content is a text
		for _, b := range blocks {
			if b.Type == "tool_result" {
				results = append(results, string(b.Content))
			}
		}
	}
	block, delta, stop := map[string]any{"type": "text", "text": ""}, map[string]any{"type": "text_delta", "text": "done"}, "end_turn"
	if len(offered) > 0 { // otherwise it is a side request, such as for a title
		if s := m.nextOf(asked.Messages[0].Content, offered, results); s != nil {
			input, _ := json.Marshal(s.input)
			block = map[string]any{"type": "tool_use", "id": fmt.Sprintf("toolu_%d", len(results)), "name": s.tool, "input": map[string]any{}}
			delta, stop = map[string]any{"type": "input_json_delta", "partial_json": string(input)}, "tool_use"
		}
	}
	events(w,
		map[string]any{"type": "message_start", "message": map[string]any{
			"id": "msg_1", "type": "message", "role": "assistant", "model": asked.Model, "content": []any{}, "stop_reason": nil, "stop_sequence": nil,
			"usage": map[string]int{"input_tokens": 1, "output_tokens": 1},
		}},
		map[string]any{"type": "content_block_start", "index": 0, "content_block": block},
		map[string]any{"type": "content_block_delta", "index": 0, "delta": delta},
		map[string]any{"type": "content_block_stop", "index": 0},
		map[string]any{"type": "message_delta", "delta": map[string]any{"stop_reason": stop, "stop_sequence": nil}, "usage": map[string]int{"output_tokens": 1}},
		map[string]any{"type": "message_stop"},
	)
}

// responses plays the Responses API, which Codex uses.
func (m *model) responses(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Tools []struct {
			Type, Name string
			Tools      []struct{ Name string }
		}
		Input []struct {
			Type   string
			Output json.RawMessage
		}
	}
	body, _ := io.ReadAll(r.Body)
	if err := json.Unmarshal(body, &asked); err != nil {
		m.t.Errorf("the agent asked %v: %.300s", err, body)
	}
	var offered, results []string
	for _, tool := range asked.Tools {
		offered = append(offered, tool.Name)
		for _, inner := range tool.Tools {
			offered = append(offered, tool.Name+inner.Name)
		}
	}
	for _, item := range asked.Input {
		if item.Type == "function_call_output" {
			results = append(results, string(item.Output))
		}
	}
	item := map[string]any{"type": "message", "role": "assistant", "id": "msg_1", "content": []any{map[string]any{"type": "output_text", "text": "done"}}}
	if s := m.next(offered, results); s != nil {
		input, _ := json.Marshal(s.input)
		item = map[string]any{"type": "function_call", "id": fmt.Sprintf("fc_%d", len(results)), "call_id": fmt.Sprintf("call_%d", len(results)), "name": s.tool, "arguments": string(input)}
		if namespace, name, ok := strings.Cut(s.tool, "/"); ok {
			item["namespace"], item["name"] = namespace, name
		}
	}
	events(w,
		map[string]any{"type": "response.created", "response": map[string]any{"id": "resp_1"}},
		map[string]any{"type": "response.output_item.done", "output_index": 0, "item": item},
		map[string]any{"type": "response.completed", "response": map[string]any{
			"id": "resp_1", "usage": map[string]any{"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
		}},
	)
}

// A small repository with a bug.
var repository = map[string]string{
	"repo/calc.py":      "def mean(values):\n    return sum(values) / (len(values) - 1)\n",
	"repo/test_calc.py": "import unittest\nfrom calc import mean\n\nclass Test(unittest.TestCase):\n    def test_mean(self):\n        self.assertEqual(mean([1, 2, 3]), 2)\n\nunittest.main()\n",
}

// withRepository creates the sandbox of a session, with the repository in it.
func withRepository(t *testing.T, c *rig.Client, session string) string {
	t.Helper()
	id := c.Create(t, rig.Body{"name": session}).ID
	for path, content := range repository {
		if code, raw, err := c.Do("PUT", "/api/v1/files?sandbox_id="+id+"&path="+path, strings.NewReader(content)); err != nil || code/100 != 2 {
			t.Fatalf("%d %s %v", code, raw, err)
		}
	}
	return id
}

// fixed checks that the bug is gone, and that the model saw the tests fail and then pass.
func (m *model) fixed(t *testing.T, c *rig.Client, id, said string) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.results) != len(m.steps) {
		t.Fatalf("%d of %d tools were called; it was offered %q, said %s, asked %q", len(m.results), len(m.steps), m.offered, said, m.asked)
	}
	if first, last := m.results[0], m.results[len(m.results)-1]; !strings.Contains(first, "FAILED") || !strings.Contains(last, "OK") || strings.Contains(last, "FAILED") {
		t.Errorf("the model was told %q", m.results)
	}
	if r := c.Run(t, id, "bash", "cd repo && python3 test_calc.py", nil); r.ExitCode != 0 {
		t.Errorf("the bug is still there: %s", r)
	}
}

func agent(t *testing.T, name string) (node, program string) {
	dir := clients(t)
	return filepath.Join(dir, "node"), filepath.Join(dir, "agents", "node_modules", ".bin", name)
}

// Claude Code fixes the bug with the tools of /mcp?tools=claude, and with those of
// `cloud-sandbox mcp`.
func TestClaudeCode(t *testing.T) {
	node, claude := agent(t, "claude")
	s := shared.Server(t)
	for way, server := range map[string]func(session, key string) map[string]any{
		"http": func(session, key string) map[string]any {
			return map[string]any{"type": "http", "url": s.URL + "/mcp?tools=claude&session=" + session, "headers": map[string]string{"Authorization": "Bearer " + key}}
		},
		"stdio": func(session, key string) map[string]any {
			return map[string]any{"command": s.Bin, "args": []string{"mcp", "--tools", "claude", "--session", session}, "env": map[string]string{"CLOUD_SANDBOX_URL": s.URL, "CLOUD_SANDBOX_API_KEY": key}}
		},
	} {
		t.Run(way, func(t *testing.T) {
			c := s.Client(t, "claude-"+way)
			id := withRepository(t, c, "claude")
			m := newModel(t, []step{
				{"mcp__sandbox__bash", map[string]any{"command": "cd repo && python3 test_calc.py"}},
				{"mcp__sandbox__read", map[string]any{"file_path": "/workspace/repo/calc.py"}},
				{"mcp__sandbox__edit", map[string]any{"file_path": "/workspace/repo/calc.py", "old_string": "(len(values) - 1)", "new_string": "len(values)"}},
				{"mcp__sandbox__bash", map[string]any{"command": "pwd && python3 test_calc.py"}},
			})
			config, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"sandbox": server("claude", key(t, s, "claude-"+way))}})
			if err != nil {
				t.Fatal(err)
			}
			home := t.TempDir()
			file := filepath.Join(home, "mcp.json")
			if err := os.WriteFile(file, config, 0o600); err != nil {
				t.Fatal(err)
			}
			said := run(t, []string{
				"HOME=" + home, "ANTHROPIC_BASE_URL=" + m.URL, "ANTHROPIC_API_KEY=sk-test", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1", "ENABLE_TOOL_SEARCH=false",
				"PATH=" + filepath.Dir(node) + ":" + os.Getenv("PATH"),
			}, claude, "-p", "Fix the bug in repo.", "--mcp-config", file, "--strict-mcp-config", "--tools", "", "--allowedTools", "mcp__sandbox")
			m.fixed(t, c, id, said)
			for _, tool := range []string{"bash", "read", "write", "edit", "glob", "grep"} {
				if !slices.Contains(m.offered, "mcp__sandbox__"+tool) {
					t.Errorf("the model was offered %q", m.offered)
				}
			}
			if last := m.results[len(m.results)-1]; !strings.Contains(last, "/workspace/repo") {
				t.Errorf("the folder was not kept: %s", last)
			}
		})
	}
}

// Codex fixes the bug with the tools of `cloud-sandbox mcp`, and with those of /mcp.
func TestCodex(t *testing.T) {
	node, codex := agent(t, "codex")
	s := shared.Server(t)
	for way, server := range map[string]func(key string) string{
		"stdio": func(key string) string {
			return fmt.Sprintf("command = %q\nargs = [\"mcp\", \"--session\", \"codex\"]\nenv = { CLOUD_SANDBOX_URL = %q, CLOUD_SANDBOX_API_KEY = %q }\n", s.Bin, s.URL, key)
		},
		"http": func(string) string {
			return fmt.Sprintf("url = %q\nbearer_token_env_var = \"CLOUD_SANDBOX_API_KEY\"\n", s.URL+"/mcp?session=codex")
		},
	} {
		t.Run(way, func(t *testing.T) {
			c := s.Client(t, "codex-"+way)
			id := withRepository(t, c, "codex")
			m := newModel(t, []step{
				{"mcp__sandbox/run_command", map[string]any{"command": "python3 test_calc.py", "cwd": "/workspace/repo"}},
				{"mcp__sandbox/read_file", map[string]any{"path": "repo/calc.py"}},
				{"mcp__sandbox/edit_file", map[string]any{"path": "repo/calc.py", "old_string": "(len(values) - 1)", "new_string": "len(values)"}},
				{"mcp__sandbox/run_command", map[string]any{"command": "python3 test_calc.py", "cwd": "/workspace/repo"}},
			})
			secret := key(t, s, "codex-"+way)
			home := t.TempDir()
			var config bytes.Buffer
			fmt.Fprintf(&config, "model = \"scripted\"\nmodel_provider = \"scripted\"\n[model_providers.scripted]\nname = \"scripted\"\nbase_url = %q\nwire_api = \"responses\"\n", m.URL+"/v1")
			fmt.Fprintf(&config, "[mcp_servers.sandbox]\n%s", server(secret))
			if err := os.WriteFile(filepath.Join(home, "config.toml"), config.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			said := run(t, []string{"CODEX_HOME=" + home, "CLOUD_SANDBOX_API_KEY=" + secret, "PATH=" + filepath.Dir(node) + ":" + os.Getenv("PATH")},
				node, codex, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-C", home, "Fix the bug in repo.")
			m.fixed(t, c, id, said)
		})
	}
}
