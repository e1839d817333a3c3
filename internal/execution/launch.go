package execution

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// tidyTime is how long the removal of what was written to run code may take.
const tidyTime = 10 * time.Second

// writeScript makes a folder, writes its input to a file there and runs the rest
// of its arguments, if there are any, whose output is about the code, not of it.
const writeScript = `umask 077 && mkdir -- "$1" && cat > "$1/$2" || exit; shift 2; [ $# = 0 ] || exec "$@" >&2`

// launch runs code the way of its language: in a context, as the argument of a
// program, or from a file.
func launch(ctx context.Context, guest Guest, lang language, req Request, maxOutput int64, handle func(RunEvent) error) (RunEnd, error) {
	var end RunEnd
	var err error
	switch {
	case lang.kept:
		end, err = launchKept(ctx, guest, lang, req, maxOutput, handle)
	case lang.file != "":
		return launchFile(ctx, guest, lang, req, maxOutput, handle)
	default:
		end, err = guest.Run(ctx, runRequest(req, lang.args(req.Code), req.Timeout, maxOutput), handle)
	}
	if sandbox.CodeOf(err) == sandbox.Invalid && lang.name != "" {
		if _, absent := programOf(ctx, guest, lang); absent != nil {
			return RunEnd{}, absent
		}
	}
	return end, err
}

func launchKept(ctx context.Context, guest Guest, lang language, req Request, maxOutput int64, handle func(RunEvent) error) (RunEnd, error) {
	if req.Context != "" {
		if err := checkContextID(req.Context); err != nil {
			return RunEnd{}, err
		}
	}
	return guest.Execute(ctx, CellRequest{
		Context: req.Context, Language: lang.name, User: req.User, Code: req.Code, Stdin: []byte(req.Stdin),
		Env: req.Env, Cwd: req.Cwd, Timeout: req.Timeout, MaxOutput: maxOutput,
	}, handle)
}

func runRequest(req Request, args []string, timeout time.Duration, maxOutput int64) RunRequest {
	return RunRequest{
		Args: args, Env: req.Env, Cwd: req.Cwd, User: req.User, Stdin: []byte(req.Stdin), Timeout: timeout, MaxOutput: maxOutput,
	}
}

// launchFile writes code to a folder of its own, compiles it there if its
// language wants that, and runs it, all within the time of the Request.
func launchFile(ctx context.Context, guest Guest, lang language, req Request, maxOutput int64, handle func(RunEvent) error) (RunEnd, error) {
	program, err := programOf(ctx, guest, lang)
	if err != nil {
		return RunEnd{}, err
	}
	folder := "/tmp/.execute-" + strings.ToLower(rand.Text())
	defer tidy(ctx, guest, req, folder)
	compile, run := lang.steps(program, folder)
	write := runRequest(req, append([]string{"sh", "-c", writeScript, "sh", folder, lang.file}, compile...), req.Timeout, maxOutput)
	write.Stdin = []byte(req.Code)
	began := time.Now()
	made, err := guest.Run(ctx, write, handle)
	if err != nil {
		return RunEnd{}, err
	}
	made.Unmade = true
	if made.Status != StatusOK || exitCode(made) != 0 {
		return made, nil
	}
	left := req.Timeout - time.Since(began)
	if left <= 0 {
		return RunEnd{Status: StatusTimeout}, nil
	}
	end, err := guest.Run(ctx, runRequest(req, run, left, maxOutput), handle)
	end.StderrDropped = max(end.StderrDropped, 0) + max(made.StderrDropped, 0)
	return end, err
}

// tidy removes the folder of a launch, also when ctx has ended. What is left of
// it when the Guest cannot is the Sandbox's own.
func tidy(ctx context.Context, guest Guest, req Request, folder string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
	defer cancel()
	_, _ = guest.Run(ctx, RunRequest{Args: []string{"rm", "-rf", "--", folder}, User: req.User, Cwd: "/", Timeout: tidyTime, MaxOutput: 1},
		func(RunEvent) error { return nil })
}

// programOf returns the first of a language's programs that the Sandbox has.
// Invalid, with the languages that it can run, when it has none.
func programOf(ctx context.Context, guest Guest, lang language) (string, error) {
	var all []string
	for _, l := range languages {
		all = append(all, l.programs...)
	}
	there, err := guest.Programs(ctx, all)
	if err != nil {
		return "", err
	}
	for _, p := range lang.programs {
		if slices.Contains(there, p) {
			return p, nil
		}
	}
	var names []string
	for _, l := range languages {
		if slices.ContainsFunc(l.programs, func(p string) bool { return slices.Contains(there, p) }) {
			names = append(names, l.name)
		}
	}
	if len(names) == 0 {
		return "", sandbox.Errorf(sandbox.Invalid, "this sandbox has no %s, nor the programs of any other language", lang.name)
	}
	return "", sandbox.Errorf(sandbox.Invalid, "this sandbox has no %s (%s is not in its PATH); it can run %s",
		lang.name, strings.Join(lang.programs, " or "), strings.Join(names, ", "))
}
