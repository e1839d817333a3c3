package execution

import (
	"context"
	"errors"
	"slices"
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

// Code of compiled languages is written and compiled, run, and removed again.
func TestLaunchFromAFile(t *testing.T) {
	for _, tt := range []struct {
		name, language string
		programs       []string
		made, ran      RunEnd
		want           [][]string // what follows "sh -c SCRIPT sh", then the others; F is the folder
		status         Status
		problem        string
	}{
		{
			"compiled", "c",
			[]string{"gcc", "clang"},
			RunEnd{Status: StatusOK},
			RunEnd{Status: StatusOK},
			[][]string{{"F", "main.c", "gcc", "-O1", "-o", "F/main", "F/main.c", "-lm", "-pthread"}, {"F/main"}, {"rm", "-rf", "--", "F"}},
			StatusOK, "",
		},
		{
			"does not compile", "rust",
			[]string{"rustc"},
			RunEnd{Status: StatusOK, ExitCode: 1},
			RunEnd{},
			[][]string{{"F", "main.rs", "rustc", "--edition=2021", "-O", "-o", "F/main", "F/main.rs"}, {"rm", "-rf", "--", "F"}},
			StatusError, "compile_error",
		},
		{
			"compiles too long", "go",
			[]string{"go"},
			RunEnd{Status: StatusTimeout},
			RunEnd{},
			[][]string{{"F", "main.go", "go", "build", "-o", "F/main", "F/main.go"}, {"rm", "-rf", "--", "F"}},
			StatusTimeout, "timeout",
		},
		{
			"not compiled", "ruby",
			[]string{"ruby", "bash"},
			RunEnd{Status: StatusOK},
			RunEnd{Status: StatusOK, ExitCode: 3},
			[][]string{{"F", "main.rb"}, {"ruby", "F/main.rb"}, {"rm", "-rf", "--", "F"}},
			StatusError, "exit_code",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var calls []RunRequest
			g := &equipped{programs: tt.programs}
			g.run = func(_ context.Context, r RunRequest, _ func(RunEvent) error) (RunEnd, error) {
				calls = append(calls, r)
				if len(calls) == 1 {
					return tt.made, nil
				}
				return tt.ran, nil
			}
			req := someCode
			req.Language, req.Code, req.Stdin, req.Timeout = tt.language, "the code", "the input", time.Hour
			res, err := newService(newOne(), g).Run(t.Context(), "t", req, nil)
			if err != nil || res.Status != tt.status || (tt.problem == "") != (res.Problem == nil) || res.Problem != nil && res.Problem.Name != tt.problem {
				t.Errorf("%+v %+v, %v", res, res.Problem, err)
			}
			folder := calls[0].Args[4]
			for i, want := range tt.want {
				got := calls[i].Args
				if i == 0 {
					got = got[4:]
				}
				if named := strings.Fields(strings.ReplaceAll(strings.Join(got, " "), folder, "F")); !slices.Equal(named, want) {
					t.Errorf("call %d is %q, want %q", i, named, want)
				}
			}
			if len(calls) != len(tt.want) || string(calls[0].Stdin) != "the code" || len(calls) == 3 && string(calls[1].Stdin) != "the input" {
				t.Errorf("calls %+v", calls)
			}
		})
	}
}

// What the Sandbox lacks is an error with the list of what it has.
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
