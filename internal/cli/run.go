package cli

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

// maxSource is the most code, or input, that the server accepts, in bytes.
const maxSource = 1 << 20

type runOptions struct {
	new       creation
	code      string
	language  string
	sandboxID string
	timeout   seconds
	env       pairs
	cwd, user string
	input     bool
	keep      bool
	results   results
}

func (a *app) runCommand() *cobra.Command {
	o := runOptions{env: pairs{getenv: a.getenv}}
	cmd := &cobra.Command{
		Use:   "run FILE | -c CODE | -- PROGRAM [ARGUMENT...]",
		Short: "Run code or a program, in a sandbox made for it",
		Long: `Run code and show its output while it runs.

The code is FILE, standard input for -, or the text of --code. Its language is
--language, or follows from the file's name, or is python. After -- comes a program
instead, which must exist in the sandbox. Without --sandbox the code runs in a new
sandbox, which is destroyed afterwards, or left with --keep. In an existing sandbox
Python finds the variables that earlier code left.

A lost connection is made again without loss of output, also after a restart of the
server. Output is shown byte by byte.

The exit code is the code's. Some codes have a meaning of their own: 124 when the code
ran longer than --timeout, 128 plus the number of the signal that ended it, 130 after
Ctrl-C, which ends the code too. 125 means that this command itself failed, for example
because no server answers.`,
		Example: `  cloud-sandbox run -c 'print(6 * 7)'
  cloud-sandbox run script.js --timeout 2m --env LOG=debug
  cloud-sandbox run --language bash - <<< 'echo $((6 * 7))'
  cloud-sandbox run -- git --version
  cloud-sandbox run analysis.py --sandbox my-agent --save-results out/
  cloud-sandbox run train.py --volume datasets:/data
  cloud-sandbox run untrusted.py --network none --memory-mb 256 --json`,
		Args:        cobra.ArbitraryArgs, // source reports wrong arguments
		Annotations: map[string]string{runsCode: "yes"},
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return o.run(cmd, c, args)
		}),
	}
	o.register(cmd)
	clientFlags(cmd)
	_ = cmd.RegisterFlagCompletionFunc("sandbox", a.sandboxes)
	_ = cmd.RegisterFlagCompletionFunc("volume", a.mounted)
	_ = cmd.RegisterFlagCompletionFunc("template", a.templates)
	_ = cmd.RegisterFlagCompletionFunc("language", cobra.FixedCompletions(languageNames(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (o *runOptions) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&o.code, "code", "c", "", "run this text")
	f.StringVarP(&o.language, "language", "l", "", "language of the code, for example python, javascript or bash")
	f.StringVarP(&o.sandboxID, "sandbox", "s", "", "run in this sandbox, by ID or name")
	f.Var(&o.timeout, "timeout", "end the code when it runs longer (default 60s)")
	f.VarP(&o.env, "env", "e", "set an environment variable; KEY alone copies the local variable")
	f.StringVar(&o.cwd, "cwd", "", "folder in the sandbox to run in")
	f.StringVar(&o.user, "user", "", "user in the sandbox to run as")
	f.BoolVarP(&o.input, "stdin", "i", false, "read standard input to its end and give it to the code, at most 1 MiB")
	f.BoolVar(&o.keep, "keep", false, "do not end the new sandbox afterwards; its ID goes to standard error")
	f.StringVar(&o.results.folder, "save-results", "", "folder to write rich results to, such as pictures")
	o.new.register(cmd)
}

func (o *runOptions) run(cmd *cobra.Command, c *client.Client, args []string) error {
	code, language, err := o.source(cmd, args)
	if err != nil {
		return err
	}
	r := client.ExecuteRequest{ExecuteRequest: v1.ExecuteRequest{
		Target: v1.Target{SandboxID: o.sandboxID}, Code: code, Language: language,
		Env: o.env.values, Cwd: o.cwd, User: o.user,
	}}
	if o.timeout > 0 {
		r.TimeoutSeconds = new(v1.SecondsOrNone(o.timeout.duration()))
	}
	if o.input {
		input, err := readAll(cmd.InOrStdin(), "standard input")
		if err != nil {
			return err
		}
		r.Stdin = v1.StdinOf(input)
	}
	create, err := o.creates(cmd)
	if err == nil {
		err = checkText(r) // before a sandbox is made
	}
	if err != nil {
		return err
	}
	if create == nil {
		return execute(cmd, c, r, &o.results)
	}
	s, err := c.Create(cmd.Context(), *create)
	if err != nil {
		return err
	}
	r.SandboxID = s.ID
	if !o.keep {
		defer end(cmd.Context(), c, s.ID, cmd.ErrOrStderr())
	} else {
		defer fmt.Fprintf(cmd.ErrOrStderr(), "kept sandbox %s until %s\n", clean(s.ID), s.Deadline.Local().Format(time.TimeOnly))
	}
	return execute(cmd, c, r, &o.results)
}

// creates returns the request for the new sandbox, or nil when --sandbox names an
// existing one.
func (o *runOptions) creates(cmd *cobra.Command) (*v1.CreateRequest, error) {
	create, asked := o.new.requested()
	switch {
	case o.sandboxID != "" && o.keep:
		return nil, usagef("--keep is for a new sandbox: the sandbox of --sandbox is kept anyway")
	case o.sandboxID != "" && asked:
		return nil, usagef("%s is for a new sandbox, and --sandbox names an existing one: leave one out", o.new.named(cmd)[0])
	case o.sandboxID != "":
		return nil, nil
	}
	if !o.keep { // in case this command dies before it can end the sandbox
		create.OnTimeout = sandbox.OnTimeoutEnd
		const defaultTimeout, margin = time.Minute, time.Minute
		create.TimeoutSeconds = v1.SecondsOf(min(max(o.timeout.duration(), defaultTimeout)+margin, sandbox.MaxTimeout))
	}
	return &create, nil
}

// source returns the code and its language.
func (o *runOptions) source(cmd *cobra.Command, args []string) (code, language string, err error) {
	given := cmd.Flags().Changed("code")
	language = o.language
	if cmd.ArgsLenAtDash() == 0 && len(args) > 0 {
		if given || language != "" {
			return "", "", usagef("after -- comes a program, and --code and --language are for code: leave one out")
		}
		return "exec -- " + quote(args), "bash", nil
	}
	switch {
	case len(args) > 1:
		return "", "", usagef("more than one FILE: write -- before a program with its arguments")
	case given && len(args) > 0:
		return "", "", usagef("both --code and %s are code: leave one of them out", args[0])
	case !given && len(args) == 0:
		return "", "", usagef("no code to run: name a FILE, - for standard input, --code TEXT, or a program after --")
	case given:
		code = o.code
	case args[0] == "-":
		if o.input {
			return "", "", usagef("standard input cannot be both the code (-) and its input (--stdin)")
		}
		code, err = readText(cmd.InOrStdin(), "standard input")
	default:
		if language == "" {
			if language, err = languageOf(args[0]); err != nil {
				return "", "", err
			}
		}
		var f *os.File
		if f, err = os.Open(args[0]); err != nil {
			return "", "", err
		}
		defer f.Close()
		code, err = readText(f, args[0])
	}
	if err == nil && strings.TrimSpace(code) == "" {
		err = usagef("the code is empty")
	}
	if language == "" {
		language = "python"
	}
	return code, language, err
}

func readAll(r io.Reader, what string) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(r, maxSource+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxSource {
		return nil, fmt.Errorf("%s has more than 1 MiB: copy it into a sandbox with `cloud-sandbox cp` and use it there", what)
	}
	return raw, nil
}

// readText is readAll for text that JSON can carry.
func readText(r io.Reader, what string) (string, error) {
	raw, err := readAll(r, what)
	if err == nil && !utf8.Valid(raw) {
		err = usagef("%s is not UTF-8 text: `cloud-sandbox cp` copies a file with any bytes into a sandbox", what)
	}
	return string(raw), err
}

// languages maps the end of a file's name to its language.
var languages = map[string]string{
	".py": "python", ".js": "javascript", ".mjs": "javascript", ".cjs": "javascript", ".sh": "bash", ".bash": "bash",
	".ts": "typescript", ".mts": "typescript", ".go": "go", ".rb": "ruby", ".java": "java", ".r": "r",
	".c": "c", ".cc": "cpp", ".cpp": "cpp", ".cxx": "cpp", ".rs": "rust",
}

func languageNames() []string { return slices.Compact(slices.Sorted(maps.Values(languages))) }

func languageOf(file string) (string, error) {
	end := filepath.Ext(file)
	if end == "" {
		return "python", nil
	}
	if l, ok := languages[strings.ToLower(end)]; ok {
		return l, nil
	}
	return "", usagef("the name of %s shows no known language: name the language with --language", file)
}
