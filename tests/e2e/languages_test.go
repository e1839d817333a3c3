package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// programs copy stdin to stdout, one in each language. bad does not compile.
var programs = map[string]struct{ good, bad string }{
	"go":   {"package main\nimport (\"fmt\"; \"os\"; \"io\")\nfunc main() { b, _ := io.ReadAll(os.Stdin); fmt.Print(string(b)) }", "package main\nfunc main() { x }"},
	"ruby": {"print STDIN.read", ""},
	"java": {"public class Any { public static void main(String[] a) throws Exception { System.in.transferTo(System.out); System.out.flush(); } }", ""},
	"r":    {"cat(readLines(file('stdin'), warn = FALSE))", ""},
	"c":    {"#include <stdio.h>\nint main(void) { int c; while ((c = getchar()) != EOF) putchar(c); return 0; }", "int main( {"},
	"cpp":  {"#include <iostream>\nint main() { std::cout << std::cin.rdbuf(); }", "int main( {"},
	"rust": {"fn main() { let mut s = String::new(); std::io::stdin().read_line(&mut s).unwrap(); print!(\"{s}\"); }", "fn main() { x }"},
}

// A language runs if its toolchain is installed. Otherwise it is refused with a list of
// the available languages. CLOUD_SANDBOX_E2E_LANGUAGES names a template with toolchains;
// base has none of these.
func TestLanguages(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "languages")
	template := os.Getenv("CLOUD_SANDBOX_E2E_LANGUAGES")
	if template == "" {
		template = "base"
	}
	id := c.Create(t, rig.Body{"template": template}).ID
	for language, p := range programs {
		r, err := c.TryRun(id, language, p.good, rig.Body{"stdin": "it reads", "timeout_seconds": 120})
		if err != nil {
			if !strings.Contains(err.Error(), "this sandbox has no "+language) || !strings.Contains(err.Error(), "it can run python, javascript, typescript, bash") {
				t.Errorf("%s: %v", language, err)
			}
			t.Logf("%s is not in %s: refused as it must be", language, template)
			continue
		}
		if r.Status != "ok" || r.Stdout != "it reads" {
			t.Errorf("%s: %s", language, r)
		}
		if p.bad == "" {
			continue
		}
		if r := c.Run(t, id, language, p.bad, rig.Body{"timeout_seconds": 120}); r.Status != "error" || r.Error.Name != "compile_error" || r.Stderr == "" {
			t.Errorf("%s that does not compile: %s", language, r)
		}
	}
}

// A compiler that a user installs is found and used, and leaves no temporary files.
func TestCompiling(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "compiling")
	id := c.Acquire(t)
	const compiler = `#!/bin/sh
grep -q refuse "$5" && { echo "it refuses" >&2; exit 4; }
echo "compiled"
{ echo '#!/bin/bash'; cat "$5"; } > "$4" && chmod +x "$4"
`
	script := "cat | sudo tee /usr/local/bin/rustc > /dev/null && sudo chmod 755 /usr/local/bin/rustc"
	if r := c.Run(t, id, "bash", script, rig.Body{"stdin": compiler}); r.Status != "ok" {
		t.Fatal(r)
	}
	if r := c.Run(t, id, "rust", "cat; pwd; exit 7", rig.Body{"stdin": "in:", "cwd": "/usr"}); r.ExitCode != 7 || r.Stdout != "in:/usr\n" || r.Stderr != "compiled\n" {
		t.Errorf("a program: %s", r)
	}
	if r := c.Run(t, id, "rust", "refuse", nil); r.ExitCode != 4 || r.Error.Name != "compile_error" || r.Stderr != "it refuses\n" {
		t.Errorf("no program: %s", r)
	}
	if r := c.Run(t, id, "rust", "kill -SEGV $$", nil); r.Status != "killed" || r.ExitCode != 139 {
		t.Errorf("a signal: %s", r)
	}
	if r := c.Run(t, id, "rust", "sleep 60", rig.Body{"timeout_seconds": 1}); r.Status != "timeout" {
		t.Errorf("a timeout: %s", r)
	}
	if r := c.Run(t, id, "bash", "ls -A /tmp | grep execute", nil); r.Stdout != "" {
		t.Errorf("it leaves %s", r)
	}
}
