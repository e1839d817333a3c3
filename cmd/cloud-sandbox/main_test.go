//go:build linux && !client

package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/cli"
)

// leaves calls visit with every command that does something of its own.
func leaves(cmd *cobra.Command, visit func(*cobra.Command)) {
	if cmd.Hidden {
		return
	}
	for _, c := range cmd.Commands() {
		leaves(c, visit)
	}
	if !cmd.HasSubCommands() {
		visit(cmd)
	}
}

// Every command has an example, and prints JSON when asked unless it has nothing
// to tell but what it did.
func TestCommandsShowHowTheyAreUsed(t *testing.T) {
	silent := []string{"serve", "down", "audit export", "trust add", "trust rm", "cluster serve"}
	leaves(root(), func(cmd *cobra.Command) {
		name := strings.TrimPrefix(cmd.CommandPath(), "cloud-sandbox ")
		if cmd.Short == "" || !strings.Contains(cmd.Example, "cloud-sandbox "+name) {
			t.Errorf("%s: %q is no example of it", name, cmd.Example)
		}
		if cmd.Flag("json") == nil && cmd.InheritedFlags().Lookup("json") == nil && !slices.Contains(silent, name) {
			t.Errorf("%s has no --json", name)
		}
	})
}

// A command line that cannot be right ends with 2 and says what would be, whatever
// the command; bare groups show their help.
func TestWrongCommandLines(t *testing.T) {
	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{"", 0, "Use sandboxes"},
		{"key", 0, "Available Commands"},
		{"tmplate", 2, "no command \"tmplate\"; did you mean \"template\"? See `cloud-sandbox --help`"},
		{"zzzzzz", 2, "no command \"zzzzzz\"; see `cloud-sandbox --help`"},
		{"key creat", 2, "no command \"key creat\"; did you mean \"key create\"? See `cloud-sandbox key --help`"},
		{"rn -c x", 2, "no command \"rn\"; did you mean \"run\"? See"},
		{"exce --json box ls", 2, "did you mean \"exec\"?"},
		{"snapshot lst", 2, "did you mean \"snapshot list\" or \"snapshot ls\"?"},
		{"create --timout 5", 2, "unknown flag: --timout; did you mean --timeout? See `cloud-sandbox create --help`"},
		{"create --idletimeout=5", 2, "did you mean --idle-timeout?"},
		{"exec --tyt box ls", 125, "did you mean --tty?"},
		{"key ls --no", 2, "unknown flag: --no; see `cloud-sandbox key ls --help`"},
		{"ls a b", 2, "see `cloud-sandbox ls --help`"},
		{"template path", 2, "cloud-sandbox template path takes one TEMPLATE; see `cloud-sandbox template path --help`"},
		{"trust add", 2, "takes one KEY or more"},
		{"audit verify a b", 2, "takes one FILE or none"},
		{"down now", 2, "see `cloud-sandbox down --help`"},
		{"token create", 2, "\"tenant\" not set; see `cloud-sandbox token create --help`"},
		{"token create --tenant a --role boss --dev", 2, `--role: role must be "viewer", "user"`},
	} {
		var said bytes.Buffer
		cmd := root()
		cmd.SetArgs(strings.Fields(tt.args))
		cmd.SetOut(&said)
		cmd.SetErr(&said)
		chosen, err := cmd.ExecuteContextC(t.Context())
		code := cli.Report(chosen, err)
		if code != tt.code || !strings.Contains(said.String(), tt.want) {
			t.Errorf("%q ends with %d and says %q; want %d and %q", tt.args, code, said.String(), tt.code, tt.want)
		}
	}
}
