// Package git works on repositories inside a Sandbox, with the git of its Template. It
// runs one program after another through a Guest. The Guest's answers are hostile input:
// counted, bounded and checked.
package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/spool"
)

const (
	// localTime bounds calls without network access.
	localTime = 2 * time.Minute
	// maxOutput bounds the output that is read from one program, in bytes.
	maxOutput = 8 << 20
	// maxReason bounds the git error text that is passed on, in bytes.
	maxReason = 400
	// maxName bounds a name in git's output, in bytes.
	maxName = 4096
)

// Runner is the part of a Guest that this package needs.
type Runner interface {
	Run(ctx context.Context, req execution.RunRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error)
	// Programs returns the subset of names that can be started.
	Programs(ctx context.Context, names []string) ([]string, error)
	Stat(ctx context.Context, path string) (execution.Entry, error)
}

// Repo is a directory within a repository, and the acting user. Its methods return
// Invalid, NotFound, Denied, Conflict, Exhausted, Timeout, Unavailable, and Unsupported
// when git is missing.
type Repo struct {
	Guest Runner
	Path  string // absolute and clean
	User  string // empty: the Sandbox's default
}

// environment disables git's prompts and sets its language to English.
var environment = map[string]string{
	"LC_ALL": "C", "LANGUAGE": "", "GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "", "SSH_ASKPASS": "", "GIT_EDITOR": "true",
	"GIT_TRACE_REDACT": "1", "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
}

// call is one run of git.
type call struct {
	args    []string // without "git"
	env     map[string]string
	stdin   string
	cwd     string // empty: the Repo's path
	timeout time.Duration
	secret  *Credentials // for one host; nil: none
	limit   int64        // of its output; 0: maxOutput
}

// output is the result of one run.
type output struct {
	stdout []byte
	stderr string
	exit   int
	cut    bool // stdout is incomplete
}

// failure is a run of git with a nonzero exit code.
type failure struct{ output }

func (f *failure) Error() string {
	return fmt.Sprintf("git ended with exit code %d: %s", f.exit, reason(f.output))
}

// git runs git to its end. A *failure is an error that git itself reported.
func (r Repo) git(ctx context.Context, c call) (output, error) {
	req := execution.RunRequest{
		Args: append([]string{"git", "-c", "core.askPass="}, c.args...), Env: maps.Clone(environment), Cwd: c.cwd, User: r.User,
		Stdin: []byte(c.stdin), Timeout: c.timeout, MaxOutput: c.limit,
	}
	maps.Copy(req.Env, c.env)
	if req.Cwd == "" {
		req.Cwd = r.Path
	}
	if req.Timeout == 0 {
		req.Timeout = localTime
	}
	if req.MaxOutput == 0 {
		req.MaxOutput = maxOutput
	}
	if c.secret != nil {
		c.secret.attach(&req, c.args)
	}
	var stdout, stderr bytes.Buffer
	memory := spool.Gather{Most: req.MaxOutput}
	end, err := r.Guest.Run(ctx, req, func(e execution.RunEvent) error {
		if int64(stdout.Len()+len(e.Stdout)) <= req.MaxOutput && int64(stderr.Len()+len(e.Stderr)) <= req.MaxOutput {
			stdout.Write(e.Stdout)
			stderr.Write(e.Stderr)
			return memory.Add(ctx, len(e.Stdout)+len(e.Stderr))
		}
		return nil
	})
	if err != nil {
		return output{}, sandbox.Begun(r.explain(ctx, err, req.Cwd))
	}
	out := output{stdout.Bytes(), c.secret.hide(stderr.String()), end.ExitCode, end.StdoutDropped > 0}
	switch {
	case end.Status == execution.StatusOK && end.ExitCode == 0:
		return out, nil
	case end.Status == execution.StatusOK:
		out.stdout = []byte(c.secret.hide(string(out.stdout))) // the reason may quote it
		return out, &failure{out}
	case end.Status == execution.StatusTimeout:
		return out, sandbox.Errorf(sandbox.Timeout, "git did not end within %s", req.Timeout)
	case end.Status == execution.StatusDiskFull:
		return out, sandbox.Errorf(sandbox.TooLarge, "it does not fit: the disk of the sandbox is full")
	case end.Status == execution.StatusError && end.Message != "":
		return out, sandbox.Errorf(sandbox.Invalid, "%s", end.Message)
	}
	return out, sandbox.Errorf(sandbox.Unavailable, "git was ended: %s", end.Status)
}

// explain replaces err if git or the directory is missing.
func (r Repo) explain(ctx context.Context, err error, cwd string) error {
	if !errors.Is(err, sandbox.Invalid) {
		return err
	}
	if there, failed := r.Guest.Programs(ctx, []string{"git"}); failed == nil && !slices.Contains(there, "git") {
		return sandbox.Errorf(sandbox.Unsupported, "the template of this sandbox has no git; install it, or take a template that has it").WithCause(err)
	}
	if _, failed := r.Guest.Stat(ctx, cwd); errors.Is(failed, sandbox.NotFound) {
		return sandbox.Errorf(sandbox.NotFound, "%s does not exist", cwd).WithCause(err)
	}
	return err
}

// reasons map git's error messages to Codes, because git has none of its own. The first
// match decides.
var reasons = []struct {
	words string
	code  sandbox.Code
}{
	{"not a git repository", sandbox.NotFound},
	{"invalid reference:", sandbox.NotFound},
	{"unknown revision", sandbox.NotFound},
	{"couldn't find remote ref", sandbox.NotFound},
	{"is not a commit and a branch", sandbox.NotFound},
	{"No such remote", sandbox.NotFound},
	{"does not appear to be a git repository", sandbox.NotFound},
	{"Remote branch", sandbox.NotFound},
	{"did not match any file", sandbox.NotFound},
	{"repository '", sandbox.NotFound}, // ... not found; ... does not exist
	{"does not match any", sandbox.NotFound},
	{"dubious ownership", sandbox.Denied},
	{"could not read Username", sandbox.Denied},
	{"could not read Password", sandbox.Denied},
	{"Authentication failed", sandbox.Denied},
	{"returned error: 401", sandbox.Denied},
	{"returned error: 403", sandbox.Denied},
	{"Permission denied", sandbox.Denied},
	{"could not create work tree dir", sandbox.Denied},
	{"Host key verification failed", sandbox.Denied},
	{"No space left on device", sandbox.TooLarge},
	{"Could not resolve host", sandbox.Unavailable},
	{"Failed to connect", sandbox.Unavailable},
	{"Couldn't connect to server", sandbox.Unavailable},
	{"unable to access", sandbox.Unavailable},
	{"early EOF", sandbox.Unavailable},
	{"RPC failed", sandbox.Unavailable},
	{"hung up unexpectedly", sandbox.Unavailable},
	{"is not a valid branch name", sandbox.Invalid},
	{"empty ident name", sandbox.Invalid},
	{"tell me who you are", sandbox.Invalid},
	{"auto-detection is disabled", sandbox.Invalid},
	{"already exists", sandbox.Conflict},
	{"index.lock", sandbox.Conflict},
}

// coded converts a *failure to an error with the Code of the first matching reason, or
// with fallback.
func coded(err error, fallback sandbox.Code, what string) error {
	var f *failure
	if !errors.As(err, &f) {
		return err
	}
	code := fallback
	for _, known := range reasons {
		if strings.Contains(f.stderr, known.words) {
			code = known.code
			break
		}
	}
	return sandbox.Errorf(code, "%s: %s", what, reason(f.output))
}

// reason returns git's error lines joined in one line, or else its last two lines.
func reason(o output) string {
	var said []string
	lines := strings.FieldsFunc(o.stderr+"\n"+string(o.stdout[:min(len(o.stdout), 4*maxReason)]), func(c rune) bool { return c == '\n' || c == '\r' })
	for _, line := range lines {
		if text, bad := strings.CutPrefix(line, "fatal: "); bad {
			said = append(said, text)
		} else if text, bad := strings.CutPrefix(line, "error: "); bad {
			said = append(said, text)
		}
	}
	if len(said) == 0 && len(lines) > 0 {
		said = lines[max(0, len(lines)-2):]
	}
	text := tame(strings.Join(said, "; "))
	if text == "" {
		return fmt.Sprintf("git ended with exit code %d", o.exit)
	}
	return text
}

// tame sanitizes git's output for display.
func tame(s string) string {
	s = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(s, "\ufffd"))
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "") + "..."
	}
	return strings.TrimSpace(s)
}

// checkRevision rejects strings that git would take for an option, or cannot take for a
// revision.
func checkRevision(name, s string) error {
	const most = 1024
	switch {
	case s == "":
		return sandbox.Errorf(sandbox.Invalid, "%s is missing", name)
	case len(s) > most:
		return sandbox.Errorf(sandbox.Invalid, "%s has more than %d bytes", name, most)
	case s[0] == '-':
		return sandbox.Errorf(sandbox.Invalid, "%s must not begin with -", name)
	case strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c == 0x7f || c == '\ufffd' }):
		return sandbox.Errorf(sandbox.Invalid, "%s must not hold spaces or control characters", name)
	}
	return nil
}

// checkBranch rejects invalid branch names, as git-check-ref-format(1) does.
func checkBranch(name, s string) error {
	if err := checkRevision(name, s); err != nil {
		return err
	}
	if strings.ContainsAny(s, `~^:?*[\`) || strings.Contains(s, "..") || strings.Contains(s, "@{") || strings.Contains(s, "//") ||
		strings.HasPrefix(s, "/") || strings.HasSuffix(s, "/") || strings.HasSuffix(s, ".") || strings.HasSuffix(s, ".lock") || s == "@" {
		return sandbox.Errorf(sandbox.Invalid, "%s %.64q is not the name of a branch", name, s)
	}
	return nil
}
