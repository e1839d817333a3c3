package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestSecretValue(t *testing.T) {
	a := &app{getenv: func(name string) string { return map[string]string{"KEY": "from the environment\n"}[name] }}
	for _, tt := range []struct{ name, stdin, variable, want, bad string }{
		{"a line", "value\n", "", "value", ""},
		{"no line", "value", "", "value", ""},
		{"a line of Windows", "value\r\n", "", "value", ""},
		{"what else is there stays", " a\n\n", "", " a\n", ""},
		{"a variable as it is", "ignored", "KEY", "from the environment\n", ""},
		{"no variable", "", "NONE", "", "NONE is not set"},
		{"nothing", "\n", "", "", "standard input is empty"},
		{"too much", strings.Repeat("x", maxSource+1), "", "", "more than 1 MiB"},
	} {
		cmd := &cobra.Command{}
		cmd.SetIn(strings.NewReader(tt.stdin))
		got, err := a.secretValue(cmd, tt.variable)
		if tt.bad != "" {
			if err == nil || !strings.Contains(err.Error(), tt.bad) {
				t.Errorf("%s: the error is %v, want one with %q", tt.name, err, tt.bad)
			}
		} else if err != nil || got != tt.want {
			t.Errorf("%s: %q, %v", tt.name, got, err)
		}
	}
}
