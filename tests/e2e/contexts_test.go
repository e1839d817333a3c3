package e2e

import (
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// An execution finds the state of earlier ones in its context. Other users and contexts
// do not see it.
func TestContexts(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "contexts")
	id := c.Create(t, rig.Body{"env": rig.Body{"OF_SESSION": "s"}}).ID
	run := func(code string, more rig.Body) rig.Result {
		t.Helper()
		return c.Run(t, id, "python", code, more)
	}
	if r := run("import os\nx = 40\nx + 2", nil); len(r.Results) != 1 || r.Results[0].Text != "42" || !r.Results[0].Main || r.ContextID != "python" || r.ContextRestarted {
		t.Fatalf("a value: %s %+v", r, r.Results)
	}
	if r := run("print(x, os.environ['OF_SESSION'], os.getcwd(), os.getuid())", nil); r.Stdout != "40 s /workspace 1000\n" {
		t.Errorf("what was left: %s", r)
	}
	if r := run("import getpass; getpass.getuser(), 'x' in globals()", rig.Body{"user": "root"}); r.Results[0].Text != "('root', False)" || r.ContextID != "python.root" {
		t.Errorf("another user: %s %+v", r, r.Results)
	}
	r := run("def f():\n    return 1 / 0\nf()", nil)
	if r.Status != "error" || r.Error.Name != "ZeroDivisionError" || !strings.Contains(r.Error.Traceback, "return 1 / 0") || r.Stderr != r.Error.Traceback {
		t.Errorf("an error: %s %+v", r, r.Error)
	}
	if r := run("print('begun'); __import__('time').sleep(60)", rig.Body{"timeout_seconds": 5}); r.Status != "timeout" || r.Stdout != "begun\n" || r.ContextEnded {
		t.Errorf("a timeout: %s", r)
	}
	if r := run("x", nil); r.ContextRestarted || len(r.Results) != 1 {
		t.Errorf("after a timeout: %s", r)
	}
	var other struct {
		ID    string `json:"context_id"`
		State string `json:"state"`
	}
	c.Must(t, "POST", "/api/v1/contexts", rig.Body{"sandbox_id": id, "language": "python", "cwd": "/tmp"}, &other)
	if r := run("import os; os.getcwd(), 'x' in globals()", rig.Body{"context_id": other.ID}); r.Results[0].Text != "('/tmp', False)" {
		t.Errorf("another context: %s %+v", r, r.Results)
	}
	for _, tt := range []struct {
		code, status string
		exit         int
	}{
		{"exit(3)", "error", 3},
		{"os._exit(0)", "ok", 0},
		{"os.kill(os.getpid(), 11)", "killed", 139},
		{"kept = []\nwhile True: kept.append(bytearray(1 << 20))", "oom", 137},
	} {
		if r := run("import os\nx = 1", nil); r.Status != "ok" {
			t.Errorf("before %s: %s", tt.code, r)
		}
		if r := run(tt.code, nil); r.Status != tt.status || r.ExitCode != tt.exit || !r.ContextEnded {
			t.Errorf("%s: %s", tt.code, r)
		}
		if r := run("'x' in globals()", nil); !r.ContextRestarted || r.Results[0].Text != "False" {
			t.Errorf("after %s: %s %+v", tt.code, r, r.Results)
		}
	}
	c.Must(t, "POST", "/api/v1/contexts/"+other.ID+"/restart", rig.Body{"sandbox_id": id}, &other)
	if other.State != "stopped" {
		t.Errorf("restarted, it is %s", other.State)
	}
	c.Must(t, "DELETE", "/api/v1/contexts/"+other.ID+"?sandbox_id="+id, nil, nil)
	if code, raw, _ := c.Do("POST", "/api/v1/execute", rig.Body{"sandbox_id": id, "context_id": other.ID, "code": "1"}); code != 404 {
		t.Errorf("a deleted context answers %d %s", code, raw)
	}
}

func TestInterrupt(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "interrupt")
	id := c.Acquire(t)
	c.Run(t, id, "python", "x = 1", nil)
	done := make(chan rig.Result, 1)
	go func() {
		r, _ := c.TryRun(id, "python", "open('begun', 'w').close()\nwhile True: pass", nil)
		done <- r
	}()
	rig.Within(t, rig.Patience, "the begin of an execution", func() bool {
		code, _, _ := c.Do("GET", rig.Files("/stat", id, "begun"), nil)
		return code == 200
	})
	var reply struct{ Interrupted bool }
	c.Must(t, "POST", "/api/v1/contexts/python/interrupt", rig.Body{"sandbox_id": id}, &reply)
	if r := <-done; !reply.Interrupted || r.Status != "error" || r.Error == nil || r.Error.Name != "KeyboardInterrupt" || r.ContextEnded {
		t.Errorf("%v: %s", reply, r)
	}
	if r := c.Run(t, id, "python", "x", nil); r.ContextRestarted || len(r.Results) != 1 {
		t.Errorf("after it: %s", r)
	}
}

// JavaScript and TypeScript share a context that keeps its state between executions.
func TestJavaScriptContexts(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "javascript")
	id := c.Acquire(t)
	for _, tt := range []struct{ language, code, value, stdout string }{
		{"javascript", "const x = 40; console.log(process.cwd(), process.getuid()); x + 2", "42", "/workspace 1000\n"},
		{"javascript", "const x = await Promise.resolve(41)", "", ""},
		{"js", "let x = 42; x", "42", ""},
		{"typescript", "interface P { a: number }\nconst p: P = { a: 1 }\np.a", "1", ""},
		{"ts", "p", "{ a: 1 }", ""},
		{"node", "typeof p", "'undefined'", ""},
	} {
		r := c.Run(t, id, tt.language, tt.code, nil)
		value := ""
		if len(r.Results) > 0 {
			value = r.Results[0].Text
		}
		if r.Status != "ok" || value != tt.value || r.Stdout != tt.stdout || r.ContextRestarted {
			t.Errorf("%s: %s %+v", tt.code, r, r.Results)
		}
	}
	r := c.Run(t, id, "javascript", "function f() {\n  return null.y\n}\nf()", nil)
	if r.Status != "error" || r.Error.Name != "TypeError" || !strings.Contains(r.Error.Traceback, "at f (cell-5:2:15)") {
		t.Errorf("an error: %s %+v", r, r.Error)
	}
	for _, code := range []string{"console.log('begun'); while (true);", "console.log('begun'); await new Promise(() => {})"} {
		if r := c.Run(t, id, "javascript", code, rig.Body{"timeout_seconds": 5}); r.Status != "timeout" || r.Stdout != "begun\n" || r.ContextEnded {
			t.Errorf("%s: %s", code, r)
		}
	}
	if r := c.Run(t, id, "javascript", "x", nil); r.ContextRestarted || len(r.Results) != 1 || r.Results[0].Text != "42" {
		t.Errorf("after timeouts: %s %+v", r, r.Results)
	}
	if r := c.Run(t, id, "javascript", "process.exit(3)", nil); r.ExitCode != 3 || !r.ContextEnded {
		t.Errorf("exit: %s", r)
	}
	if r := c.Run(t, id, "javascript", "typeof x", nil); !r.ContextRestarted || r.Results[0].Text != "'undefined'" {
		t.Errorf("after exit: %s %+v", r, r.Results)
	}
}

// Sandboxes from one Pool draw different random numbers in every language.
func TestRandomness(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "randomness")
	draws := map[string]string{
		"python":     "import random, os, uuid, secrets\n(random.random(), os.urandom(8).hex(), str(uuid.uuid4()), secrets.token_hex(8))",
		"javascript": "[Math.random(), crypto.randomUUID(), require('crypto').randomBytes(8).toString('hex')]",
		"bash":       "echo $RANDOM$RANDOM$RANDOM $SRANDOM; cat /proc/sys/kernel/random/uuid",
	}
	seen := map[string]bool{}
	for range 3 {
		id := c.Acquire(t)
		for language, code := range draws {
			r := c.Run(t, id, language, code, nil)
			text := r.Stdout
			if len(r.Results) > 0 {
				text = r.Results[0].Text
			}
			numbers := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune("()[],' \n", r) })
			if r.Status != "ok" || len(numbers) < 3 {
				t.Fatalf("%s: %s %q", language, r, text)
			}
			for _, n := range numbers {
				if seen[n] {
					t.Errorf("%s drew %s, which was drawn before", language, n)
				}
				seen[n] = true
			}
		}
	}
}

// Bash keeps its state in an explicit context only.
func TestBashContexts(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "bashcontexts")
	id := c.Create(t, rig.Body{}).ID
	var made struct {
		ID string `json:"context_id"`
	}
	c.Must(t, "POST", "/api/v1/contexts", rig.Body{"sandbox_id": id, "language": "bash", "cwd": "/tmp"}, &made)
	in := rig.Body{"context_id": made.ID}
	if r := c.Run(t, id, "bash", "x=1; f() { echo f$x; }; cd /usr", in); r.Status != "ok" || r.ContextID != made.ID {
		t.Errorf("a definition: %s", r)
	}
	if r := c.Run(t, id, "bash", "f; pwd; echo err >&2; (exit 3)", in); r.Stdout != "f1\n/usr\n" || r.Stderr != "err\n" || r.ExitCode != 3 || r.ContextEnded {
		t.Errorf("what was left: %s", r)
	}
	if r := c.Run(t, id, "bash", "while :; do sleep 60; done", rig.Body{"context_id": made.ID, "timeout_seconds": 0.3}); r.Status != "timeout" || r.ContextEnded {
		t.Errorf("a timeout: %s", r)
	}
	if r := c.Run(t, id, "bash", "f", in); r.Stdout != "f1\n" || r.ContextRestarted {
		t.Errorf("after it: %s", r)
	}
	if r := c.Run(t, id, "bash", "echo .$x", nil); r.Stdout != ".\n" || r.ContextID != "" {
		t.Errorf("without a context: %s", r)
	}
	if code, raw, _ := c.Do("POST", "/api/v1/contexts", rig.Body{"sandbox_id": id, "language": "go"}); code != 400 || !strings.Contains(string(raw), "bash") {
		t.Errorf("a context of Go: %d %s", code, raw)
	}
}

// Python code can use notebook features: shell escapes, magics and display.
func TestNotebook(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "notebook")
	id := c.Create(t, rig.Body{}).ID
	r := c.Run(t, id, "python", "word = 'two'\n!echo one {word}\nlines = !seq 3\n%cd /tmp\ndisplay(lines)\n%pwd", nil)
	if r.Status != "ok" || r.Stdout != "one two\n/tmp\n" || len(r.Results) != 2 || r.Results[0].Text != "['1', '2', '3']" || r.Results[1].Text != "'/tmp'" {
		t.Errorf("magics: %s %+v", r, r.Results)
	}
	if r := c.Run(t, id, "python", "%nope", nil); r.Error == nil || r.Error.Name != "UsageError" {
		t.Errorf("an unknown one: %s", r)
	}
	if r := c.Run(t, id, "python", "input()", nil); r.Error == nil || r.Error.Name != "StdinNotImplementedError" {
		t.Errorf("input: %s", r)
	}
	if r := c.Run(t, id, "python", "input() + 'b'", rig.Body{"stdin": "a\n"}); len(r.Results) != 1 || r.Results[0].Text != "'ab'" {
		t.Errorf("input with stdin: %s %+v", r, r.Results)
	}
}

// R and Java keep their state in explicit contexts, across a pause and in forks. Forks
// draw different random numbers. Code without a context runs as a program of its own.
func TestRAndJavaContexts(t *testing.T) {
	rig.NeedProgram(t, rig.RArchive)
	rig.NeedProgram(t, rig.JVMArchive)
	t.Parallel()
	c := shared.Server(t).Client(t, "r-and-java")
	id := c.Create(t, rig.Body{"resources": rig.Body{"memory_mb": 1024}, "env": rig.Body{"OF_SESSION": "s"}}).ID
	if code, raw, _ := c.Do("POST", "/api/v1/contexts", rig.Body{"sandbox_id": id, "language": "r"}); code != 400 || !strings.Contains(string(raw), "this sandbox has no r") {
		t.Errorf("where there is no R: %d %s", code, raw)
	}
	c.AddRAndJava(t, id)
	in := map[string]string{}
	for _, language := range []string{"r", "java"} {
		var made struct {
			ID string `json:"context_id"`
		}
		c.Must(t, "POST", "/api/v1/contexts", rig.Body{"sandbox_id": id, "language": language, "cwd": "/tmp"}, &made)
		in[language] = made.ID
	}
	run := func(id, language, code string, more rig.Body) rig.Result {
		t.Helper()
		body := rig.Body{"context_id": in[language], "timeout_seconds": 240}
		for k, v := range more {
			body[k] = v
		}
		return c.Run(t, id, language, code, body)
	}
	for _, tt := range []struct{ language, code, value, stdout string }{
		{"r", "x <- 40\ncat(getwd(), Sys.getenv('OF_SESSION'), Sys.info()[['user']], '\\n')\nx + 2", "[1] 42", "/tmp s user \n"},
		{"r", "set.seed(1); x", "[1] 40", ""},
		{"java", "int x = 40;\nSystem.out.println(System.getProperty(\"user.dir\") + System.getenv(\"OF_SESSION\") + System.getProperty(\"user.name\"));\nx + 2", "42", "/tmpsuser\n"},
		{"java", "int twice(int n) { return 2 * n; }\ntwice(x)", "80", ""},
	} {
		r := run(id, tt.language, tt.code, nil)
		if r.Status != "ok" || len(r.Results) != 1 || r.Results[0].Text != tt.value || r.Stdout != tt.stdout || r.ContextID != in[tt.language] {
			t.Fatalf("%s: %s %+v", tt.code, r, r.Results)
		}
	}
	const png = "iVBORw0KGgo" // base64 of a PNG's first bytes
	if r := run(id, "r", "plot(1:3)\nhist(c(1, 2, 2))\ndata.frame(a = 1)", nil); r.Status != "ok" || len(r.Results) != 3 ||
		!strings.HasPrefix(r.Results[0].PNG, png) || !strings.HasPrefix(r.Results[1].PNG, png) || !strings.Contains(r.Results[2].HTML, "<table>") {
		t.Errorf("plots: %s, %d results", r, len(r.Results))
	}
	for language, code := range map[string]string{"r": "stop('m')", "java": "throw new IllegalStateException(\"m\");"} {
		if r := run(id, language, code, nil); r.Status != "error" || r.Error.Message != "m" || r.ExitCode != 1 || r.ContextEnded {
			t.Errorf("%s: %s", code, r)
		}
	}
	for language, code := range map[string]string{"r": "cat('begun'); repeat {}", "java": "System.out.print(\"begun\"); while (true);"} {
		for limit := 4; ; limit *= 3 { // starting may take this long on a busy machine
			r := run(id, language, code, rig.Body{"timeout_seconds": limit})
			if r.Status != "timeout" || r.ContextEnded || limit > 100 {
				t.Errorf("%s: %s", code, r)
			}
			if r.Stdout == "begun" || limit > 100 {
				break
			}
		}
	}
	c.Must(t, "POST", "/api/v1/sessions/"+id+"/pause", nil, nil)
	c.Must(t, "POST", "/api/v1/sessions/"+id+"/resume", nil, nil)
	if r := run(id, "r", "x", nil); r.ContextRestarted || len(r.Results) != 1 || r.Results[0].Text != "[1] 40" {
		t.Errorf("R after a pause: %s %+v", r, r.Results)
	}
	if r := run(id, "java", "twice(x)", nil); r.ContextRestarted || len(r.Results) != 1 || r.Results[0].Text != "80" {
		t.Errorf("Java after a pause: %s %+v", r, r.Results)
	}
	var made struct{ Forks []rig.Sandbox }
	c.Must(t, "POST", "/api/v1/sessions/"+id+"/fork", rig.Body{"count": 1}, &made)
	t.Cleanup(func() { _ = c.Try("DELETE", "/api/v1/sessions/"+made.Forks[0].ID, nil, nil) })
	drawn := map[string]bool{}
	for _, of := range []string{id, made.Forks[0].ID} {
		for language, code := range map[string]string{"r": "runif(1) + x", "java": "Math.random() + x"} {
			r := run(of, language, code, nil)
			if r.Status != "ok" || r.ContextRestarted || len(r.Results) != 1 {
				t.Fatalf("a fork: %s", r)
			}
			drawn[r.Results[0].Text] = true
		}
	}
	if len(drawn) != 4 {
		t.Errorf("forks draw the same numbers: %v", drawn)
	}
	for language, code := range map[string]string{"r": "cat(exists('x'))", "java": "class Main { public static void main(String[] a) { System.out.print(\"FALSE\"); } }"} {
		if r := c.Run(t, id, language, code, rig.Body{"timeout_seconds": 240}); r.Status != "ok" || r.Stdout != "FALSE" || r.ContextID != "" {
			t.Errorf("%s as a program: %s", language, r)
		}
	}
}
