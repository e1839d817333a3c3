//go:build !linux || client

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/cli"
)

// A command that works on a data folder says that it needs the server's machine.
func TestClientAlone(t *testing.T) {
	t.Setenv("CLOUD_SANDBOX_URL", "")
	t.Setenv("CLOUD_SANDBOX_API_KEY", "")
	lines := []string{"key ls --data x", "template ls --data x", "tenant ls --data x", "audit export --data x", "audit verify --data x"}
	for _, name := range onServer {
		lines = append(lines, name+" --data x")
	}
	for _, line := range lines {
		var said bytes.Buffer
		cmd := root()
		cmd.SetArgs(strings.Fields(line))
		cmd.SetOut(&said)
		cmd.SetErr(&said)
		chosen, err := cmd.ExecuteContextC(t.Context())
		if code := cli.Report(chosen, err); code != 1 || !strings.Contains(said.String(), "run it on the server's Linux machine") {
			t.Errorf("%q ends with %d and says %q", line, code, said.String())
		}
	}
}
