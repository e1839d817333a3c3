package mcp

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// example copies an example of the folder agents next to the packages that it imports,
// with replacements in pairs. It returns Node.js and the script.
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

// way is a way from Claude Code to a file of this machine. Each way has files of its
// own, so that the checks are independent.
type way struct {
	steps  []step // calls of the model; nil: the prompt mentions a file
	prompt string
	// reached reports, from the requests to the model, whether the way led to this
	// machine.
	reached func(bodies []string) bool
}

// ways returns all ways into a folder of this machine, and the steps of subagents.
func ways(t *testing.T, here string) (all map[string]way, subagents map[string][]step) {
	t.Helper()
	// file creates a file. It returns its path and a check whether a request has its
	// content.
	file := func(name string) (string, func([]string) bool) {
		path, content := filepath.Join(here, name), "content-of-"+name
		if err := os.WriteFile(path, []byte(content+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return path, func(bodies []string) bool {
			return slices.ContainsFunc(bodies, func(b string) bool { return strings.Contains(b, content) })
		}
	}
	// changed returns a check whether a file has changed since this call.
	changed := func(path string) func([]string) bool {
		before, _ := os.ReadFile(path) // it may not exist
		return func([]string) bool {
			now, _ := os.ReadFile(path)
			return string(now) != string(before)
		}
	}
	shown, shownRead := file("bash.txt")
	read, readRead := file("read.txt")
	edited, _ := file("edit.txt")
	sub, subRead := file("subagent.txt")
	mentioned, mentionedRead := file("mention.txt")
	folder := filepath.Join(here, "folder")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "name-in-a-folder"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	notebook := filepath.Join(here, "notebook.ipynb")
	if err := os.WriteFile(notebook, []byte(`{"cells":[{"cell_type":"code","id":"one","execution_count":null,"metadata":{},"outputs":[],"source":["1"]}],"metadata":{},"nbformat":4,"nbformat_minor":5}`), 0o644); err != nil {
		t.Fatal(err)
	}
	written, byBash := filepath.Join(here, "written.txt"), filepath.Join(here, "bash-written.txt")
	const task = "Tell what the file of the subagent says"
	return map[string]way{
		"Bash that reads":     {steps: []step{{"Bash", map[string]any{"command": "cat " + shown}}}, reached: shownRead},
		"Bash that writes":    {steps: []step{{"Bash", map[string]any{"command": "echo x >" + byBash}}}, reached: changed(byBash)},
		"Read":                {steps: []step{{"Read", map[string]any{"file_path": read}}}, reached: readRead},
		"Write":               {steps: []step{{"Write", map[string]any{"file_path": written, "content": "x"}}}, reached: changed(written)},
		"Edit":                {steps: []step{{"Read", map[string]any{"file_path": edited}}, {"Edit", map[string]any{"file_path": edited, "old_string": "content", "new_string": "edited"}}}, reached: changed(edited)},
		"NotebookEdit":        {steps: []step{{"Read", map[string]any{"file_path": notebook}}, {"NotebookEdit", map[string]any{"notebook_path": notebook, "cell_id": "one", "new_source": "2"}}}, reached: changed(notebook)},
		"a subagent":          {steps: []step{{"Agent", map[string]any{"description": "read", "prompt": task, "subagent_type": "general-purpose"}}}, reached: subRead},
		"a mention of a file": {prompt: "Look at @" + mentioned, reached: mentionedRead},
		"a mention of folders": {prompt: "Look at @" + folder, reached: func(bodies []string) bool {
			return slices.ContainsFunc(bodies, func(b string) bool { return strings.Contains(b, "name-in-a-folder") })
		}},
	}, map[string][]step{task: {{"Read", map[string]any{"file_path": sub}}}}
}

// The Claude Agent SDK fixes the bug with tools in a sandbox, under their own names and
// the names of Claude Code's tools. No prompt and no tool call reads or writes a file
// of this machine. Without the protection, every way reaches its file.
func TestAgentSDKToolsInSandbox(t *testing.T) {
	clients(t)
	s := shared.Server(t)
	const (
		none    = "tools: [],"
		denied  = `disallowedTools: [...BUILTIN_TOOL_NAMES, "Read(//**)", "Edit(//**)"],`
		rules   = `, "Read(//**)", "Edit(//**)"`
		hook    = "hooks: { PreToolUse: [{ hooks: [guard] }] },"
		aliases = "toolAliases: Object.fromEntries(\n"
		allowed = `allowedTools: ["mcp__sandbox"],`
	)
	for name, tt := range map[string]struct {
		without  []string // replacements in the example, in pairs
		open     bool     // Claude Code's own tools are called and allowed
		mentions bool     // the prompt mentions files
		reached  func(w way) bool
	}{
		"as shown":                    {mentions: true, reached: func(way) bool { return false }},
		"no built-in tools alone":     {without: []string{denied, "", hook, ""}, open: true, reached: func(way) bool { return false }},
		"denied tools alone":          {without: []string{none, "", hook, ""}, open: true, mentions: true, reached: func(way) bool { return false }},
		"the guard alone":             {without: []string{none, "", denied, ""}, open: true, reached: func(way) bool { return false }},
		"a mention without the rules": {without: []string{rules, ""}, mentions: true, reached: func(w way) bool { return w.steps == nil }},
		"tools without protection":    {without: []string{none, "", denied, "", hook, ""}, open: true, mentions: true, reached: func(way) bool { return true }},
	} {
		t.Run(name, func(t *testing.T) {
			here := t.TempDir()
			all, subagents := ways(t, here)
			prompt := "go"
			var steps []step
			for _, name := range slices.Sorted(maps.Keys(all)) {
				steps = append(steps, all[name].steps...)
				if tt.mentions && all[name].prompt != "" {
					prompt += ". " + all[name].prompt
				}
			}
			without := tt.without
			if tt.open {
				without = append(slices.Clone(without), aliases, "ignored: Object.fromEntries(\n", allowed,
					fmt.Sprintf(`allowedTools: ["mcp__sandbox", "Bash", "Read", "Write", "Edit", "NotebookEdit", "Agent"], additionalDirectories: [%q],`, here))
			}
			m := newModel(t, steps)
			m.subagents = subagents
			user := "sdk-" + strings.ReplaceAll(name, " ", "-")
			said := runExample(t, m.URL, s, key(t, s, user), prompt, without...)
			m.mu.Lock()
			defer m.mu.Unlock()
			if len(m.results) < len(steps) || !strings.Contains(said, "done") {
				t.Fatalf("%d of %d tools were called; it said %s", len(m.results), len(steps), said)
			}
			for name, w := range all {
				if w.prompt != "" && !tt.mentions {
					continue
				}
				if reached := w.reached(m.bodies); reached != tt.reached(w) {
					t.Errorf("%s reached this machine: %t; the tool results were %q", name, reached, m.results)
				}
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

// Claude Code runs in a sandbox and fixes the bug, driven by the SDK outside. The key of
// the model's API is never inside.
func TestAgentSDKInSandbox(t *testing.T) {
	dir := clients(t)
	const secret = "sk-that-no-sandbox-sees"
	m := newModel(t, nil)
	var mu sync.Mutex
	keys := map[string]int{}
	addr := rig.HostAddress(t)
	site := rig.NewSite(t, addr, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost { // a request of Claude Code, and no connectivity check
			mu.Lock()
			keys[r.Header.Get("X-Api-Key")]++
			mu.Unlock()
		}
		m.Config.Handler.ServeHTTP(w, r)
	}))
	s := rig.Own(t, rig.Options{Pool: 1, Env: []string{
		"CLOUD_SANDBOX_NAMESERVERS=" + rig.NameServer(t, addr),
		fmt.Sprintf("CLOUD_SANDBOX_EGRESS_OPEN=%s:%d", addr, site.Port),
		"CLOUD_SANDBOX_SECRETS_ROOTS=" + site.Roots,
	}})
	cloud := []string{"CLOUD_SANDBOX_URL=" + s.URL, "CLOUD_SANDBOX_API_KEY=" + key(t, s, "sdk-inside")}
	// Each check for an absent value is repeated with a present one.
	const environment = `count() { cat /proc/*/environ 2>/dev/null | tr '\0' '\n' | grep -c "$1"; }; ` +
		"count " + secret + "; (($(count =placeholder) > 0)) && echo more; env | grep -c SECRET_OF_THE_HOST; env | grep -c ANTHROPIC_BASE_URL=; echo $ANTHROPIC_API_KEY"
	reach := fmt.Sprintf(`reach() { curl -sk -m 20 -o /dev/null -w '%%{http_code}\n' https://$1:%d/ || echo unreachable; }; `, site.Port)
	m.steps = []step{
		{"Bash", map[string]any{"command": "cd repo && python3 test_calc.py"}},
		{"Read", map[string]any{"file_path": "/workspace/repo/calc.py"}},
		{"Edit", map[string]any{"file_path": "/workspace/repo/calc.py", "old_string": "(len(values) - 1)", "new_string": "len(values)"}},
		{"Bash", map[string]any{"command": environment}},
		{"Bash", map[string]any{"command": reach + "reach api.example; reach other.example"}},
		{"Bash", map[string]any{"command": "cd repo && python3 test_calc.py"}},
	}

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
		t.Errorf("the tool results were %q", m.results)
	}
	if got := m.results[3]; got != `"0\nmore\n0\n1\nplaceholder"` {
		t.Errorf("the sandbox's environment check printed %s", got)
	}
	if got := m.results[4]; got != `"404\n000\nunreachable"` {
		t.Errorf("inside, the API and another host are %s", got)
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
