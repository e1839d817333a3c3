// Package cli holds the commands of cloud-sandbox that use a server. They use only
// its public REST API.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
)

// Exit codes. Commands that run code exit with the code's exit code. They report
// their own failures with one that programs seldom use.
const (
	exitFailed      = 1   // the command failed
	exitUsage       = 2   // the command line was wrong
	exitOwn         = 125 // either, of a command that runs code
	exitInterrupted = 130 // Ctrl-C
)

// GroupID is the group of these commands in the list of help.
const GroupID = "client"

// Commands returns the commands. getenv reads the environment.
func Commands(getenv func(string) string) []*cobra.Command {
	a := &app{getenv: getenv}
	commands := []*cobra.Command{
		a.createCommand(), a.runCommand(), a.execCommand(), a.shellCommand(), a.copyCommand(), a.listCommand(),
		a.removeCommand(), a.portsCommand(), a.networkCommand(), a.linkCommand(), a.processesCommand(), a.logsCommand(), a.killCommand(),
		a.pauseCommand(), a.resumeCommand(), a.forkCommand(), a.snapshotCommand(), a.rollbackCommand(), a.historyCommand(), a.usageCommand(), a.secretCommand(), a.volumeCommand(), a.userCommand(), a.loginCommand(), a.logoutCommand(), a.e2bCommand(), a.mcpCommand(),
	}
	for _, c := range commands {
		c.GroupID = GroupID
	}
	return commands
}

// busyPatience is the total time that a command retries while the server answers with
// Retry-After.
const busyPatience = 2 * time.Minute

// app holds the state that commands share.
type app struct {
	getenv func(string) string
}

// clientFlags are the flags of every command of this package.
func clientFlags(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.String(config.FlagURL, "", "address of the server (default "+config.DefaultURL+"; environment CLOUD_SANDBOX_URL)")
	f.String(config.FlagAPIKey, "", "API key or token; others on this machine can see it here, so better set CLOUD_SANDBOX_API_KEY")
	f.String(config.FlagUserID, "", "user of the token that a server in dev mode on this machine issues (default "+config.DefaultUserID+"; environment CLOUD_SANDBOX_USER_ID)")
	f.Bool("json", false, "print JSON")
}

// connect returns a Client for the settings from flags and environment.
func (a *app) connect(cmd *cobra.Command) (*client.Client, error) {
	cfg, err := a.settings(cmd)
	if err != nil {
		return nil, err
	}
	tokens, err := a.tokens(cfg)
	if err != nil {
		return nil, err
	}
	if tokens == nil {
		if err := cfg.CheckKey(); err != nil {
			return nil, usageError{err}
		}
	}
	c := client.NewWithTokens(cfg, tokens)
	c.Patience = busyPatience
	c.Waits = func(wait time.Duration) {
		fmt.Fprintf(cmd.ErrOrStderr(), "cloud-sandbox: the server is busy; trying again in %v\n", wait.Round(time.Second))
	}
	return c, nil
}

// with is a command's work that needs a Client.
func (a *app) with(work func(cmd *cobra.Command, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		return work(cmd, c, args)
	}
}

func wantsJSON(cmd *cobra.Command) bool {
	yes, err := cmd.Flags().GetBool("json")
	return err == nil && yes
}

// printJSON writes v, indented, to the command's output.
func printJSON(cmd *cobra.Command, v any) error {
	e := json.NewEncoder(cmd.OutOrStdout())
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// JSONFlag adds --json to a command that uses no server; see Print.
func JSONFlag(cmd *cobra.Command) { cmd.Flags().Bool("json", false, "print JSON") }

// Print writes a command's result: v as JSON with --json, or else text and a newline.
// An empty text prints nothing.
func Print(cmd *cobra.Command, v any, text string) error {
	if wantsJSON(cmd) {
		return printJSON(cmd, v)
	}
	if text == "" {
		return nil
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), text)
	return err
}

// printAll prints records as JSON, with the fields that this version knows.
func printAll[T any](cmd *cobra.Command, records []T) error {
	return printJSON(cmd, append([]T{}, records...)) // none is [], not null
}

// printMade prints the object that a command made or changed: its record with --json,
// or else its name.
func printMade(cmd *cobra.Command, record any, name string) error {
	if wantsJSON(cmd) {
		return printJSON(cmd, record)
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), clean(name))
	return err
}

// runsCode marks a command that exits with the exit code of the code it runs.
const runsCode = "runs-code"

// exitError ends the program with a code. Without err it prints nothing.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usageError is an error of the command line.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// FlagError makes a flag error one of the command line. A flag after a misspelled
// command is parsed as a flag of the group, so the error then names the command.
func FlagError(cmd *cobra.Command, err error) error {
	if given := cmd.Flags().Args(); cmd.HasAvailableSubCommands() && len(given) > 0 {
		return noCommand(cmd, given[0])
	}
	return usagef("%w%s", err, nearFlag(cmd, err))
}

// Strict turns wrong arguments and missing flags of root and all commands below it
// into errors of the command line. Command groups reject an unknown subcommand.
func Strict(root *cobra.Command) {
	for _, c := range root.Commands() {
		Strict(c)
	}
	if !root.Runnable() {
		root.Args, root.RunE = cobra.ArbitraryArgs, chosenBelow
		// RunE only reports an unknown subcommand. So the usage text omits the line for
		// running the group itself.
		root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), "{{if .Runnable}}", "{{if not .HasAvailableSubCommands}}", 1))
		return
	}
	check := root.Args
	if check == nil {
		check = cobra.ArbitraryArgs
	}
	root.Args = func(cmd *cobra.Command, given []string) error {
		err := check(cmd, given)
		if err == nil {
			err = cmd.ValidateRequiredFlags()
		}
		if usage := (usageError{}); err == nil || errors.As(err, &usage) {
			return err
		}
		return FlagError(cmd, err)
	}
}

// chosenBelow runs a command group for which no subcommand was chosen.
func chosenBelow(cmd *cobra.Command, given []string) error {
	if len(given) == 0 {
		return cmd.Help()
	}
	return noCommand(cmd, given[0])
}

// Report prints a command's error, if it has a text, to its error output and returns
// the program's exit code. cmd is the command that was chosen, err the error that it
// returned.
func Report(cmd *cobra.Command, err error) int {
	if err == nil {
		return 0
	}
	var exit *exitError
	if errors.As(err, &exit) {
		err = exit.err
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		printError(cmd, err)
	}
	var usage usageError
	switch {
	case exit != nil:
		return exit.code
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	case cmd.Annotations[runsCode] != "":
		return exitOwn
	case errors.As(err, &usage):
		return exitUsage
	}
	return exitFailed
}

func printError(cmd *cobra.Command, err error) {
	w := cmd.ErrOrStderr()
	if !wantsJSON(cmd) {
		fmt.Fprintln(w, "cloud-sandbox:", clean(sentence(err)))
		return
	}
	code, retry := sandbox.Code("failed"), 0
	var coded *sandbox.Error
	var usage usageError
	switch {
	case errors.As(err, &coded):
		code, retry = coded.Code, int(coded.RetryAfter.Seconds())
	case errors.As(err, &usage):
		code = sandbox.Invalid
	}
	body := map[string]any{"code": code, "message": sentence(err)}
	if retry > 0 {
		body["retry_after_seconds"] = retry
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"error": body})
}

// sentence returns err as a sentence for people.
func sentence(err error) string {
	var coded *sandbox.Error
	if !errors.As(err, &coded) {
		return err.Error()
	}
	text := strings.Replace(err.Error(), coded.Error(), coded.Detail, 1) // keeps the wrapping text
	if coded.RetryAfter > 0 {
		text += fmt.Sprintf("; try again in %v", coded.RetryAfter)
	}
	return text
}

// clean makes untrusted text harmless for a terminal by escaping unprintable
// characters. Line breaks stay.
func clean(s string) string {
	if strings.IndexFunc(s, unprintable) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unprintable(r) {
			fmt.Fprintf(&b, `\x%02x`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

func unprintable(r rune) bool {
	return r != '\n' && r != '\t' && (r < ' ' || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069)
}

// cleanUp is the timeout for ending the work of a command that was interrupted.
const cleanUp = 10 * time.Second

// end ends a Sandbox that a command made, also after Ctrl-C.
func end(ctx context.Context, c *client.Client, id string, stderr io.Writer) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	if _, err := c.End(ctx, id); err != nil && !errors.Is(err, sandbox.NotFound) {
		fmt.Fprintf(stderr, "cloud-sandbox: the sandbox %s was not ended: %s\n", clean(id), clean(sentence(err)))
	}
}
