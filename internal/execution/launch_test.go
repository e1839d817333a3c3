package execution

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// equipped is a Guest with some programs.
type equipped struct {
	scripted
	programs []string
}

func (e *equipped) Programs(context.Context, []string) ([]string, error) { return e.programs, nil }

func (e *equipped) Execute(context.Context, CellRequest, func(RunEvent) error) (RunEnd, error) {
	return RunEnd{}, sandbox.Errorf(sandbox.Invalid, "the program is not in PATH")
}

// Code of compiled languages is written and compiled, and run, by the Guest.
func TestLaunchFromAFile(t *testing.T) {
	for _, tt := range []struct {
		name, language string
		programs       []string
		end            RunEnd
		compile, run   string // F is the folder
		file           string
		status         Status
		problem        string
	}{
		{"compiled", "c", []string{"gcc", "clang"}, RunEnd{Status: StatusOK}, "gcc -O1 -o F/main F/main.c -lm -pthread", "F/main", "main.c", StatusOK, ""},
		{
			"does not compile", "rust",
			[]string{"rustc"},
			RunEnd{Status: StatusOK, ExitCode: 1, Unmade: true},
			"rustc --edition=2021 -O -o F/main F/main.rs", "F/main", "main.rs",
			StatusError, "compile_error",
		},
		{"compiles too long", "go", []string{"go"}, RunEnd{Status: StatusTimeout, Unmade: true}, "go build -o F/main F/main.go", "F/main", "main.go", StatusTimeout, "timeout"},
		{"not compiled", "ruby", []string{"ruby", "bash"}, RunEnd{Status: StatusOK, ExitCode: 3}, "", "ruby F/main.rb", "main.rb", StatusError, "exit_code"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var calls []RunRequest
			g := &equipped{programs: tt.programs}
			g.run = func(_ context.Context, r RunRequest, _ func(RunEvent) error) (RunEnd, error) {
				calls = append(calls, r)
				return tt.end, nil
			}
			req := someCode
			req.Language, req.Code, req.Stdin, req.Timeout = tt.language, "the code", "the input", time.Hour
			res, err := newService(newOne(), g).Run(t.Context(), "t", req, nil)
			if err != nil || res.Status != tt.status || (tt.problem == "") != (res.Problem == nil) || res.Problem != nil && res.Problem.Name != tt.problem {
				t.Errorf("%+v %+v, %v", res, res.Problem, err)
			}
			if len(calls) != 1 || calls[0].As == nil || calls[0].As.Source == nil {
				t.Fatalf("calls %+v", calls)
			}
			got, src := calls[0], *calls[0].As.Source
			named := func(args []string) string { return strings.ReplaceAll(strings.Join(args, " "), src.Folder, "F") }
			if named(src.Compile) != tt.compile || named(got.Args) != tt.run || src.File != tt.file || src.Code != "the code" ||
				string(got.Stdin) != "the input" || got.Timeout != time.Hour || !strings.HasPrefix(src.Folder, "/tmp/.") {
				t.Errorf("asked for %+v of %+v", got, src)
			}
		})
	}
}

// An error about a missing language lists the installed ones.
func TestAbsentLanguages(t *testing.T) {
	for _, tt := range []struct {
		language string
		programs []string
		want     string
	}{
		{"ruby", []string{"node", "bash"}, "this sandbox has no ruby (ruby is not in its PATH); it can run javascript, typescript, bash"},
		{"c", []string{"python3"}, "this sandbox has no c (cc or gcc or clang is not in its PATH); it can run python"},
		{"python", []string{"bash", "made up"}, "this sandbox has no python (python3 is not in its PATH); it can run bash"},
		{"java", nil, "this sandbox has no java, nor the programs of any other language"},
		{"bash", []string{"bash"}, "something else is wrong"},
	} {
		g := &equipped{programs: tt.programs}
		g.run = func(context.Context, RunRequest, func(RunEvent) error) (RunEnd, error) {
			return RunEnd{}, sandbox.Errorf(sandbox.Invalid, "something else is wrong")
		}
		req := someCode
		req.Language = tt.language
		if _, err := newService(newOne(), g).Run(t.Context(), "t", req, nil); !errors.Is(err, sandbox.Invalid) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.language, err, tt.want)
		}
	}
}
