package e2b

import (
	"os"
	"path/filepath"
	"testing"
)

// Templates that `cloud-sandbox template build` knows by name, as E2B's clients use them.
// They are too big to be built with every change: `make test-templates` builds them.
func TestKnownTemplates(t *testing.T) {
	if os.Getenv("TEMPLATES_E2E") == "" {
		t.Skip("TEMPLATES_E2E is not set: building claude, codex, desktop and code-interpreter-v1 takes some ten minutes and 4 GiB; make test-templates does it")
	}
	python := filepath.Join(sdks(t), "new/py/bin/python")
	s := shared.Server(t)
	env := []string{"E2B_API_URL=" + s.URL, "E2B_SANDBOX_URL=" + s.URL, "E2B_API_KEY=" + key(t, s, "known")}
	for _, name := range []string{"claude", "codex", "code_interpreter", "desktop"} {
		t.Run(name, func(t *testing.T) { run(t, env, python, "known.py", name) })
	}
}
