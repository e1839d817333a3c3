package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

// execute runs r and shows what comes of it: as it comes, or with --json all of
// it at the end. Its error carries the exit code of the code.
func execute(cmd *cobra.Command, c *client.Client, r client.ExecuteRequest, rich *results) error {
	if wantsJSON(cmd) {
		result, err := c.Execute(cmd.Context(), r)
		if err != nil {
			return err
		}
		for i, v := range result.Results {
			if err := rich.save(cmd, i+1, v); err != nil {
				return err
			}
		}
		if err := printJSON(cmd, result.Raw); err != nil {
			return err
		}
		return ended(result)
	}
	r.MaxOutput = 1 // the events have all of it
	shown := 0
	result, err := c.Stream(cmd.Context(), r, func(e client.Event) error {
		switch e.Kind {
		case "stdout":
			_, err := io.WriteString(cmd.OutOrStdout(), e.Text)
			return err
		case "stderr":
			_, err := io.WriteString(cmd.ErrOrStderr(), e.Text)
			return err
		case "display":
			shown++
			return rich.show(cmd, shown, e.Value)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return explained(cmd, result)
}

// explained is ended, after a word on what the code's own output cannot tell.
func explained(cmd *cobra.Command, r client.ExecuteResult) error {
	if r.Error != nil && r.Status != "ok" && (r.Status != "error" || r.Error.Name == "not_started") {
		fmt.Fprintf(cmd.ErrOrStderr(), "cloud-sandbox: %s\n", clean(r.Error.Message))
	}
	return ended(r)
}

// ended passes an exit code through; never 0 for code that did not succeed.
func ended(r client.ExecuteResult) error {
	switch {
	case r.Status == "ok" && r.ExitCode == 0:
		return nil
	case r.ExitCode&0xff == 0:
		return &exitError{code: 1}
	}
	return &exitError{code: r.ExitCode & 0xff}
}

// quote writes arguments so that a shell reads them as they are.
func quote(argv []string) string {
	quoted := make([]string, len(argv))
	for i, arg := range argv {
		quoted[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}
