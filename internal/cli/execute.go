package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

// execute runs r in the sandbox that it names. It shows output as it arrives, or with
// --json the whole result at the end. It survives lost connections and server
// restarts, and ends the code if it ends itself. Its error carries the code's exit
// code.
func execute(cmd *cobra.Command, c *client.Client, r client.ExecuteRequest, rich *results) error {
	if err := checkText(r); err != nil {
		return err
	}
	r.Key = rand.Text()
	e := execution{cmd: cmd, c: c, request: r, rich: rich}
	run := e.stream
	if wantsJSON(cmd) {
		run = e.whole
	} else {
		e.request.MaxOutputBytes = new(1) // the events carry all of it
	}
	err := retry(cmd.Context(), run, func(int) {})
	switch {
	case err != nil && e.begun:
		return e.leave(err)
	case err != nil:
		return err
	case wantsJSON(cmd):
		return e.print()
	}
	return e.explained()
}

// checkText refuses text that JSON cannot carry unchanged.
func checkText(r client.ExecuteRequest) error {
	for what, text := range map[string]string{"the code": r.Code, "--cwd": r.Cwd, "--user": r.User} {
		if !utf8.ValidString(text) {
			return usagef("%s is not UTF-8 text: `cloud-sandbox cp` copies a file with any bytes into a sandbox", what)
		}
	}
	for key, value := range r.Env {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			return usagef("the variable %q is not UTF-8 text", key)
		}
	}
	return nil
}

// execution is code that runs, as this command follows it.
type execution struct {
	cmd     *cobra.Command
	c       *client.Client
	request client.ExecuteRequest
	rich    *results

	begun   bool   // the server may have begun it
	process string // that runs the code; empty: not known
	shown   int    // number of shown results
	lost    int64  // bytes of output that the server discarded
	result  v1.ExecuteResult
}

// came reports to retry whether the server began the execution by this try. If the
// answer was lost, it may have; the next try then finds that execution.
func (e *execution) came(err error) bool {
	first := !e.begun && client.Lost(err)
	if e.begun = e.begun || first; e.begun && e.request.Last == "" {
		e.request.Last = client.FromStart
	}
	return first
}

// whole waits for all of the result.
func (e *execution) whole() (came bool, err error) {
	e.result, err = e.c.Execute(e.cmd.Context(), e.request)
	return e.came(err), err
}

// stream shows the events that follow the ones shown already.
func (e *execution) stream() (came bool, err error) {
	e.result, err = e.c.Stream(e.cmd.Context(), e.request, func(event client.Event) error {
		e.begun, came = true, true
		if err := e.show(event); err != nil {
			return err
		}
		if event.ID != "" {
			e.request.Last = event.ID
		}
		return nil
	})
	return e.came(err) || came, err
}

func (e *execution) show(event client.Event) error {
	switch event.Kind {
	case "start":
		e.process = event.ProcessID
	case "stdout":
		_, err := e.cmd.OutOrStdout().Write(event.Output)
		return err
	case "stderr":
		_, err := e.cmd.ErrOrStderr().Write(event.Output)
		return err
	case "display":
		e.shown++
		return e.rich.show(e.cmd, e.shown, event.Value)
	case "dropped":
		e.lost += event.Dropped
	}
	return nil
}

// leave ends the code, since this command ends by err, which it returns. Code on a
// server that cannot be reached keeps running.
func (e *execution) leave(err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.cmd.Context()), cleanUp)
	defer cancel()
	failed := e.c.EndExecution(ctx, e.request.SandboxID, e.request.Key)
	if failed == nil || !errors.Is(err, sandbox.Unavailable) || e.process == "" {
		return err
	}
	return fmt.Errorf("%w; the code keeps running in the sandbox until its --timeout: `cloud-sandbox logs --follow %s %s`",
		err, clean(e.request.SandboxID), clean(e.process))
}

// print prints the result as JSON, and saves rich results.
func (e *execution) print() error {
	for i, v := range e.result.Results {
		if err := e.rich.save(e.cmd, i+1, v); err != nil {
			return err
		}
	}
	if err := printJSON(e.cmd, e.result); err != nil {
		return err
	}
	return ended(e.result)
}

// explained is ended, after a message about facts that the code's own output cannot
// show.
func (e *execution) explained() error {
	r := e.result
	if r.Error != nil && r.Status != "ok" && (r.Status != "error" || r.Error.Name == "not_started") {
		fmt.Fprintf(e.cmd.ErrOrStderr(), "cloud-sandbox: %s\n", clean(r.Error.Message))
	}
	if r.Status == "paused" && r.NextOffset != nil {
		fmt.Fprintf(e.cmd.ErrOrStderr(), "cloud-sandbox: `cloud-sandbox logs --follow --from %d %s %s` resumes the sandbox and shows the output\n",
			*r.NextOffset, clean(e.request.SandboxID), clean(r.ProcessID))
	}
	if e.lost > 0 {
		return sandbox.Errorf(sandbox.Exhausted, "%d bytes of output are lost: they were not read here in time, while the server was away", e.lost)
	}
	return ended(r)
}

// ended returns an error with the code's exit code; never 0 for code that failed.
func ended(r v1.ExecuteResult) error {
	switch {
	case r.Status == "ok" && r.ExitCode == 0:
		return nil
	case r.ExitCode&0xff == 0:
		return &exitError{code: 1}
	}
	return &exitError{code: r.ExitCode & 0xff}
}

// quote writes arguments so that bash reads them as they are, in text that is valid
// UTF-8.
func quote(argv []string) string {
	quoted := make([]string, len(argv))
	for i, arg := range argv {
		if quoted[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"; !utf8.ValidString(arg) {
			quoted[i] = quoteBytes(arg)
		}
	}
	return strings.Join(quoted, " ")
}

// quoteBytes writes an argument of any bytes.
func quoteBytes(arg string) string {
	var b strings.Builder
	b.WriteString("$'")
	for i := range len(arg) {
		fmt.Fprintf(&b, `\%03o`, arg[i])
	}
	b.WriteString("'")
	return b.String()
}
