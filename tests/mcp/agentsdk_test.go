package mcp

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// example puts an example of docs/agents beside the packages that it imports, with
// changes, and returns how it is run.
func example(t *testing.T, name string, changes ...string) (node, script string) {
	t.Helper()
	dir := clients(t)
	text, err := os.ReadFile(filepath.Join("agents", name))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(changes); i += 2 {
		if !strings.Contains(string(text), changes[i]) {
			t.Fatalf("%s has no %q", name, changes[i])
		}
	}
	folder := t.TempDir()
	script = filepath.Join(folder, name)
	if err := os.WriteFile(script, []byte(strings.NewReplacer(changes...).Replace(string(text))), 0o644); err != nil {
		t.Fatal(err)
	}
	sdk, err := rig.Command("../../scripts/typescript-env.sh").Output()
	if err != nil {
		t.Fatal(err)
	}
	modules := filepath.Join(folder, "node_modules")
	if err := os.Mkdir(modules, 0o755); err != nil {
		t.Fatal(err)
	}
	links := map[string]string{"cloud-sandbox": strings.TrimSpace(string(sdk))}
	all, err := os.ReadDir(filepath.Join(dir, "agents", "node_modules"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		links[e.Name()] = filepath.Join(dir, "agents", "node_modules", e.Name())
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(modules, name)); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "node"), script
}

// The Claude Agent SDK fixes the bug with tools in a sandbox, by their own names and by
// those of Claude Code, and whatever the prompt mentions or the model wants, no file of
// this machine is read or written.
func TestAgentSDKToolsInSandbox(t *testing.T) {
	clients(t)
	s := shared.Server(t)
	const secret = "content-of-this-machine"
	here := t.TempDir()
	canary := filepath.Join(here, "canary.txt")
	if err := os.WriteFile(canary, []byte(secret+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	written := filepath.Join(here, "written.txt")
	// A model that tries to reach this machine.
	reach := []step{
		{"Bash", map[string]any{"command": "cat " + canary + "; echo x >" + written}},
		{"Read", map[string]any{"file_path": canary}},
		{"Write", map[string]any{"file_path": written, "content": "x"}},
		{"Agent", map[string]any{"description": "read", "prompt": "Read " + canary, "subagent_type": "general-purpose"}},
		{"WebFetch", map[string]any{"url": "file://" + canary, "prompt": "read"}},
		{"NotebookEdit", map[string]any{"notebook_path": written, "new_source": "x"}},
	}
	const (
		none    = "tools: [],"
		denied  = `disallowedTools: [...BUILTIN_TOOL_NAMES, "Read(//**)", "Edit(//**)"],`
		hook    = "hooks: { PreToolUse: [{ hooks: [guard] }] },"
		aliases = "toolAliases: Object.fromEntries(\n"
		allowed = `allowedTools: ["mcp__sandbox"],`
	)
	// Without aliases, own tools are called; with these permissions they would work.
	open := []string{aliases, "ignored: Object.fromEntries(\n", allowed, `allowedTools: ["mcp__sandbox", "Bash", "Read", "Write", "Edit", "Agent"], additionalDirectories: [` + fmt.Sprintf("%q", here) + `],`}
	mention := "Look at @" + canary + " and at @" + here
	for name, tt := range map[string]struct {
		steps   []step
		prompt  string
		without []string // parts of the example that are changed
		reached bool     // a file of this machine
	}{
		"as shown":                    {steps: reach, prompt: mention},
		"no built-in tools alone":     {steps: reach, prompt: "go", without: append([]string{denied, "", hook, ""}, open...)},
		"denied tools alone":          {steps: reach, prompt: mention, without: append([]string{none, "", hook, ""}, open...)},
		"the guard alone":             {steps: reach, prompt: "go", without: append([]string{none, "", denied, ""}, open...)},
		"a mention without the rules": {prompt: mention, without: []string{`, "Read(//**)", "Edit(//**)"`, ""}, reached: true},
		"tools without protection":    {steps: reach, prompt: "go", without: append([]string{none, "", denied, "", hook, ""}, open...), reached: true},
	} {
		t.Run(name, func(t *testing.T) {
			defer os.Remove(written)
			m := newModel(t, tt.steps)
			user := "sdk-" + strings.ReplaceAll(name, " ", "-")
			said := runExample(t, m.URL, s, key(t, s, user), tt.prompt, tt.without...)
			m.mu.Lock()
			defer m.mu.Unlock()
			if len(m.results) < len(tt.steps) || !strings.Contains(said, "done") {
				t.Fatalf("%d of %d tools were called; it said %s", len(m.results), len(tt.steps), said)
			}
			_, err := os.Stat(written)
			if reached := err == nil || slices.ContainsFunc(m.bodies, func(b string) bool { return strings.Contains(b, secret) }); reached != tt.reached {
				t.Errorf("this machine was reached: %t; the model was told %q", reached, m.results)
			}
		})
	}

	t.Run("fixes the bug", func(t *testing.T) {
		c := s.Client(t, "sdk-outside")
		id := withRepository(t, c, "my-project")
		m := newModel(t, []step{
			{"Bash", map[string]any{"command": "cd repo && python3 test_calc.py"}},
			{"Read", map[string]any{"file_path": "/workspace/repo/calc.py"}},
			{"mcp__sandbox__edit", map[string]any{"file_path": "/workspace/repo/calc.py", "old_string": "(len(values) - 1)", "new_string": "len(values)"}},
			{"mcp__sandbox__bash", map[string]any{"command": "python3 test_calc.py"}},
		})
		m.fixed(t, c, id, runExample(t, m.URL, s, key(t, s, "sdk-outside"), "Fix the bug in repo."))
	})
}

func runExample(t *testing.T, model string, s *rig.Server, key, prompt string, changes ...string) string {
	t.Helper()
	node, script := example(t, "tools-in-sandbox.mjs", changes...)
	return run(t, []string{
		"ANTHROPIC_BASE_URL=" + model, "ANTHROPIC_API_KEY=sk-test", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "ENABLE_TOOL_SEARCH=false",
		"CLOUD_SANDBOX_URL=" + s.URL, "CLOUD_SANDBOX_API_KEY=" + key,
	}, node, script, prompt)
}

// The whole of Claude Code fixes the bug in a sandbox, driven by the SDK outside, and the
// key of the model's API is never inside.
func TestAgentSDKInSandbox(t *testing.T) {
	dir := clients(t)
	const secret = "sk-that-no-sandbox-sees"
	m := newModel(t, []step{
		{"Bash", map[string]any{"command": "cd repo && python3 test_calc.py"}},
		{"Read", map[string]any{"file_path": "/workspace/repo/calc.py"}},
		{"Edit", map[string]any{"file_path": "/workspace/repo/calc.py", "old_string": "(len(values) - 1)", "new_string": "len(values)"}},
		{"Bash", map[string]any{"command": "cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c " + secret + "; env | grep -c SECRET_OF_THE_HOST; echo $ANTHROPIC_API_KEY"}},
		{"Bash", map[string]any{"command": "cd repo && python3 test_calc.py"}},
	})
	var mu sync.Mutex
	keys := map[string]int{}
	addr := rig.HostAddress(t)
	site := rig.NewSite(t, addr, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		keys[r.Header.Get("X-Api-Key")]++
		mu.Unlock()
		m.Config.Handler.ServeHTTP(w, r)
	}))
	s := rig.Own(t, rig.Options{Pool: 1, Env: []string{
		"CLOUD_SANDBOX_NAMESERVERS=" + rig.NameServer(t, addr),
		fmt.Sprintf("CLOUD_SANDBOX_EGRESS_OPEN=%s:%d", addr, site.Port),
		"CLOUD_SANDBOX_SECRETS_ROOTS=" + site.Roots,
	}})
	cloud := []string{"CLOUD_SANDBOX_URL=" + s.URL, "CLOUD_SANDBOX_API_KEY=" + key(t, s, "sdk-inside")}

	context := t.TempDir()
	binaries, err := filepath.Glob(filepath.Join(dir, "agents/node_modules/@anthropic-ai/claude-agent-sdk-linux-*/claude"))
	if err != nil || len(binaries) == 0 {
		t.Fatal("the package has no program ", err)
	}
	if out, err := rig.Command("cp", binaries[0], filepath.Join(context, "claude")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dockerfile := "FROM base\nCOPY --chmod=755 claude /usr/local/bin/claude\n" // npm needs the Internet
	if err := os.WriteFile(filepath.Join(context, "Dockerfile"), []byte(dockerfile), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, cloud, s.Bin, "template", "build", "claude-code", "--dockerfile", filepath.Join(context, "Dockerfile"))

	node, script := example(t, "agent-in-sandbox.mjs")
	folder := filepath.Join(t.TempDir(), "repo")
	for path, content := range repository {
		at := filepath.Join(filepath.Dir(folder), path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	said := run(t, append(cloud, "SECRET_OF_THE_HOST=1", "ANTHROPIC_API_KEY="+secret, fmt.Sprintf("ANTHROPIC_BASE_URL=https://api.example:%d", site.Port)), node, script, folder, "Fix the bug in repo.")
	if !strings.HasPrefix(said, "done\n") || !strings.Contains(said, "-    return sum(values) / (len(values) - 1)\n+    return sum(values) / len(values)\n") {
		t.Errorf("it printed %s", said)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.results) != len(m.steps) {
		t.Fatalf("%d of %d tools were called: %q; asked %q", len(m.results), len(m.steps), m.results, m.asked)
	}
	if first, last := m.results[0], m.results[len(m.results)-1]; !strings.Contains(first, "FAILED") || !strings.Contains(last, "OK") || strings.Contains(last, "FAILED") {
		t.Errorf("the model was told %q", m.results)
	}
	if got := m.results[3]; got != `"0\n0\nplaceholder"` {
		t.Errorf("inside there is %s", got)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(keys) != 1 || keys[secret] == 0 {
		t.Errorf("the API got the keys %v", keys)
	}
	var left struct{ Sessions []rig.Sandbox }
	s.Client(t, "sdk-inside").Must(t, "GET", "/api/v1/sessions", nil, &left)
	if len(left.Sessions) != 0 {
		t.Errorf("left: %+v", left)
	}
}
