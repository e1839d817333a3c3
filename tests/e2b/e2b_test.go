// Package e2b runs unmodified E2B SDKs against the built binary, and checks on the wire
// details that the SDKs hide.
//
// CLOUD_SANDBOX_E2B_SDKS names the folder that scripts/e2b-sdks.sh prints.
package e2b

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// The machine may reach no registry: templates of other versions replace the base images
// of the SDKs' methods.
var shared = rig.Shared{Options: rig.Options{Pool: 4, Env: []string{"CLOUD_SANDBOX_INEXACT_IMAGES=true"}}}

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

// sdks returns the folder of the SDKs. It skips the test if the folder is not set.
func sdks(t *testing.T) string {
	t.Helper()
	rig.Need(t)
	dir := os.Getenv("CLOUD_SANDBOX_E2B_SDKS")
	if dir == "" {
		t.Skip("CLOUD_SANDBOX_E2B_SDKS does not name the folder that scripts/e2b-sdks.sh prints")
	}
	return dir
}

// key makes an API key of a Tenant.
func key(t *testing.T, s *rig.Server, user string) string {
	t.Helper()
	var reply struct{ Key string }
	s.Client(t, user).Must(t, "POST", "/api/v1/keys", rig.Body{"name": "e2b"}, &reply)
	return reply.Key
}

// toTheEnd runs a program of Python and ends the process with it. The newest SDK's
// HTTP client has threads that sometimes abort the process while the interpreter shuts
// down after the program
// (github.com/curioswitch/pyqwest, issue 164).
const toTheEnd = `import os, runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)`

// run runs a program that uses an SDK, configured only by environment variables.
func run(t *testing.T, env []string, name string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	if filepath.Base(name) == "python" {
		args = append([]string{"-c", toTheEnd}, args...)
	}
	cmd := rig.CommandContext(ctx, name, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
		return
	}
	t.Logf("%s", out)
}

// script copies a suite next to node_modules, where JavaScript finds the SDK.
func script(t *testing.T, sdk, name string) string {
	t.Helper()
	dir := t.TempDir()
	text, err := os.ReadFile(name)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
	}
	if err == nil {
		err = os.Symlink(filepath.Join(sdk, "node_modules"), filepath.Join(dir, "node_modules"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// The newest SDKs, which name the Sandbox in headers.
func TestNewestSDKs(t *testing.T) {
	dir := filepath.Join(sdks(t), "new")
	s := shared.Server(t)
	byHeaders := func(name string, program ...string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := []string{"E2B_API_URL=" + s.URL, "E2B_SANDBOX_URL=" + s.URL, "E2B_API_KEY=" + key(t, s, name)}
			run(t, env, program[0], program[1:]...)
		})
	}
	python := filepath.Join(dir, "py/bin/python")
	byHeaders("python", python, "suite.py")
	byHeaders("python async", python, "suite_async.py")
	byHeaders("python surface", python, "surface.py", "sync")
	byHeaders("python async surface", python, "surface.py", "async")
	for name, suite := range map[string]string{"javascript": "suite.mjs", "javascript surface": "surface.mjs"} {
		byHeaders(name, filepath.Join(sdks(t), "node"), script(t, filepath.Join(dir, "js"), suite))
	}
}

// E2B's own command line, which reads the logs of a Sandbox.
func TestCommandLine(t *testing.T) {
	dir := filepath.Join(sdks(t), "new")
	t.Parallel()
	w := newWire(t)
	sb := w.create("/v2/sandboxes", `{"templateID":"base","timeout":600}`)
	w.start(sb, `{"cmd":"curl","args":["-sf","http://events.e2b.local/logs","-d","{\"message\":\"from inside\",\"level\":\"error\"}"]}`)
	cli := func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := rig.CommandContext(ctx, filepath.Join(sdks(t), "node"), append([]string{filepath.Join(dir, "js/node_modules/.bin/e2b"), "sandbox"}, args...)...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "E2B_API_URL=" + w.url, "E2B_SANDBOX_URL=" + w.url, "E2B_API_KEY=" + w.key}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	told := cli("logs", "--format", "json", sb.SandboxID)
	for _, want := range []string{`"logger":"sandbox","message":"sandbox created"}`, `"logger":"program","message":"from inside"}`} {
		if !strings.Contains(told, want) {
			t.Errorf("the logs lack %s:\n%s", want, told)
		}
	}
	if told := cli("logs", "--level", "ERROR", sb.SandboxID); !strings.Contains(told, "from inside") || strings.Contains(told, "sandbox created") {
		t.Errorf("the errors are:\n%s", told)
	}
	if told := cli("list"); !strings.Contains(told, sb.SandboxID) {
		t.Errorf("the list lacks %s:\n%s", sb.SandboxID, told)
	}
}

// The newest SDKs of the code interpreter.
func TestCodeInterpreter(t *testing.T) {
	dir := filepath.Join(sdks(t), "new")
	s := shared.Server(t)
	env := []string{"E2B_API_URL=" + s.URL, "E2B_SANDBOX_URL=" + s.URL, "E2B_API_KEY=" + key(t, s, "interpreter")}
	t.Run("python", func(t *testing.T) { run(t, env, filepath.Join(dir, "py/bin/python"), "interpreter.py") })
	t.Run("javascript", func(t *testing.T) {
		run(t, env, filepath.Join(sdks(t), "node"), script(t, filepath.Join(dir, "js"), "interpreter.mjs"))
	})
}

// R and Java, where the Template has them.
func TestCodeInterpreterOfRAndJava(t *testing.T) {
	dir := filepath.Join(sdks(t), "new")
	rig.NeedProgram(t, rig.RArchive)
	rig.NeedProgram(t, rig.JVMArchive)
	s := shared.Server(t)
	c := s.Client(t, "kernels")
	id := c.Create(t, rig.Body{"resources": rig.Body{"memory_mb": 1024}}).ID
	c.AddRAndJava(t, id)
	c.Sh(t, id, "sudo install -d -o user /home/user")
	env := []string{"E2B_API_URL=" + s.URL, "E2B_SANDBOX_URL=" + s.URL, "E2B_API_KEY=" + key(t, s, "kernels"), "SANDBOX_ID=" + id}
	run(t, env, filepath.Join(sdks(t), "node"), script(t, filepath.Join(dir, "js"), "kernels.mjs"))
	run(t, env, filepath.Join(dir, "py/bin/python"), "kernels.py")
}

// The MCP gateway, which the SDKs start.
func TestMCPGateway(t *testing.T) {
	dir := filepath.Join(sdks(t), "new")
	s := shared.Server(t)
	env := []string{"E2B_API_URL=" + s.URL, "E2B_SANDBOX_URL=" + s.URL, "E2B_API_KEY=" + key(t, s, "mcp")}
	run(t, env, filepath.Join(sdks(t), "node"), script(t, filepath.Join(dir, "js"), "mcp_gateway.mjs"))
	run(t, env, filepath.Join(dir, "py/bin/python"), "mcp_gateway.py")
}

// Templates that the SDKs build.
func TestTemplates(t *testing.T) {
	dir := filepath.Join(sdks(t), "new")
	s := shared.Server(t)
	env := []string{"E2B_API_URL=" + s.URL, "E2B_SANDBOX_URL=" + s.URL, "E2B_API_KEY=" + key(t, s, "templates")}
	t.Run("python", func(t *testing.T) {
		t.Parallel()
		run(t, env, filepath.Join(dir, "py/bin/python"), "templates.py")
	})
	t.Run("javascript", func(t *testing.T) {
		t.Parallel()
		run(t, env, filepath.Join(sdks(t), "node"), script(t, filepath.Join(dir, "js"), "templates.mjs"))
	})
	t.Run("python methods", func(t *testing.T) {
		t.Parallel()
		run(t, env, filepath.Join(dir, "py/bin/python"), "methods.py")
	})
	t.Run("javascript methods", func(t *testing.T) {
		t.Parallel()
		run(t, env, filepath.Join(sdks(t), "node"), script(t, filepath.Join(dir, "js"), "methods.mjs"))
	})
}

// Files of Volumes are used from outside and mounted.
func TestVolumes(t *testing.T) {
	dir := filepath.Join(sdks(t), "new")
	s := shared.Server(t)
	python := filepath.Join(dir, "py/bin/python")
	for name, program := range map[string][]string{
		"python":       {python, "volumes.py", "sync"},
		"python async": {python, "volumes.py", "async"},
		"javascript":   {filepath.Join(sdks(t), "node"), script(t, filepath.Join(dir, "js"), "volumes.mjs")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := []string{"E2B_API_URL=" + s.URL, "E2B_SANDBOX_URL=" + s.URL, "E2B_VOLUME_API_URL=" + s.URL, "E2B_API_KEY=" + key(t, s, "volumes "+name)}
			run(t, env, program[0], program[1:]...)
		})
	}
}
