package execution

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// launcher is the part of a Guest that starts executions.
type launcher interface {
	Runner
	// Of Interpreters.
	Execute(ctx context.Context, req CellRequest, handle func(RunEvent) error) (RunEnd, error)
	Programs(ctx context.Context, names []string) ([]string, error)
}

// launch runs code as its language requires: in a context, as the argument of a program,
// or from a file.
func launch(ctx context.Context, guest launcher, lang language, req Request, as RunAs, maxOutput int64, handle func(RunEvent) error) (RunEnd, error) {
	var end RunEnd
	var err error
	switch {
	case as.Attach:
		return guest.Run(ctx, RunRequest{MaxOutput: maxOutput, As: &as}, handle)
	case lang.kept:
		end, err = launchKept(ctx, guest, lang, req, as, maxOutput, handle)
	case lang.file != "":
		return launchFile(ctx, guest, lang, req, as, maxOutput, handle)
	default:
		end, err = guest.Run(ctx, runRequest(req, lang.args(req.Code), as, maxOutput), handle)
	}
	if sandbox.CodeOf(err) == sandbox.Invalid && lang.name != "" {
		if _, absent := programOf(ctx, guest, lang); absent != nil {
			return RunEnd{}, absent
		}
	}
	return end, err
}

func launchKept(ctx context.Context, guest launcher, lang language, req Request, as RunAs, maxOutput int64, handle func(RunEvent) error) (RunEnd, error) {
	if req.Context != "" {
		if err := checkContextID(req.Context); err != nil {
			return RunEnd{}, err
		}
	}
	return guest.Execute(ctx, CellRequest{
		Context: req.Context, Language: lang.name, User: req.User, Code: req.Code, Stdin: []byte(req.Stdin),
		Env: req.Env, Cwd: req.Cwd, Timeout: req.Timeout, MaxOutput: maxOutput, As: &as,
	}, handle)
}

func runRequest(req Request, args []string, as RunAs, maxOutput int64) RunRequest {
	return RunRequest{
		Args: args, Env: req.Env, Cwd: req.Cwd, User: req.User, Stdin: []byte(req.Stdin), Timeout: req.Timeout, MaxOutput: maxOutput, As: &as,
	}
}

// launchFile makes the Guest write code to its own folder, compile it there if the
// language requires that, and run it, all within the Request's timeout.
func launchFile(ctx context.Context, guest launcher, lang language, req Request, as RunAs, maxOutput int64, handle func(RunEvent) error) (RunEnd, error) {
	program, err := programOf(ctx, guest, lang)
	if err != nil {
		return RunEnd{}, err
	}
	folder := "/tmp/.execute-" + strings.ToLower(rand.Text())
	compile, run := lang.steps(program, folder)
	as.Source = &Source{Folder: folder, File: lang.file, Code: req.Code, Compile: compile}
	return guest.Run(ctx, runRequest(req, run, as, maxOutput), handle)
}

// programOf returns the first of a language's programs that the Sandbox has. Otherwise it
// returns Invalid with the languages that the Sandbox can run.
func programOf(ctx context.Context, guest launcher, lang language) (string, error) {
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
