package contexts

import (
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

func TestBash(t *testing.T) {
	s := newContexts(t, "bash")
	for _, tt := range []struct {
		name, code, out, err string
		exit                 int
		set                  func(*Request)
	}{
		{name: "output", code: "echo one; echo two >&2", out: "one\n", err: "two\n"},
		{name: "a variable and a function", code: "x=5; f() { echo \"f $1 $x\"; }; cd /"},
		{name: "they are kept", code: "f 1; pwd", out: "f 1 5\n/\n"},
		{name: "status", code: "(exit 3)", exit: 3},
		{name: "syntax", code: "if", exit: 2, err: "syntax error"},
		{name: "it lives on", code: "echo $x", out: "5\n"},
		{name: "a return ends the cell", code: "return 4; echo no", exit: 4},
		{name: "variables of one cell", code: "echo $A$B; bash -c 'echo $A'", out: "12\n1\n", set: func(r *Request) { r.Env = map[string]string{"A": "1", "B": "2"} }},
		{name: "are gone after it", code: "echo $A.", out: ".\n"},
		{name: "a folder for one cell", code: "pwd", out: "/tmp\n", set: func(r *Request) { r.Cwd = "/tmp" }},
		{name: "is left after it", code: "pwd", out: "/\n"},
		{name: "no such folder", code: "pwd", exit: 1, err: "no-such", set: func(r *Request) { r.Cwd = "/no-such" }},
		{name: "input", code: "read a; read b; echo $b$a", out: "21\n", set: func(r *Request) { r.Stdin = []byte("1\n2\n") }},
		{name: "none", code: "read a || echo none", out: "none\n"},
		{name: "no descriptor of ours", code: "bash -c 'for i in 3 4 5 6; do { true <&$i; } 2>/dev/null && echo $i; done'; true"},
		{name: "long code", code: "echo " + strings.Repeat("a", 200_000) + " | wc -c", out: "200001\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := Request{Code: tt.code, Timeout: time.Minute}
			if tt.set != nil {
				tt.set(&req)
			}
			result, r := execute(t, s, "bash", req)
			if result.Status != server.StatusOK || result.ExitCode != tt.exit || result.Lost {
				t.Errorf("ended with %+v, want exit code %d", result, tt.exit)
			}
			if r.out[0] != tt.out || !strings.Contains(r.out[1], tt.err) || tt.err == "" && r.out[1] != "" {
				t.Errorf("printed %.200q and %q, want %q and %q", r.out[0], r.out[1], tt.out, tt.err)
			}
		})
	}
}

// An interrupt ends what runs, in however many functions, and leaves the state.
func TestBashInterrupt(t *testing.T) {
	for name, code := range map[string]string{
		"a program":  "echo go; sleep 1000; echo no",
		"a loop":     "echo go; while :; do :; done; echo no",
		"functions":  "f() { while :; do g; done; echo no; }; g() { sleep 1000; }; echo go; f; echo no",
		"a pipeline": "echo go; sleep 1000 | cat; echo no",
	} {
		t.Run(name, func(t *testing.T) {
			s := newContexts(t, "bash")
			if result, _ := execute(t, s, "bash", Request{Code: "kept=1", Timeout: time.Minute}); result.ExitCode != 0 {
				t.Fatalf("ended with %+v", result)
			}
			r := &told{}
			r.on = func(out string) error {
				if out == "go\n" {
					_, err := s.Interrupt("bash")
					return err
				}
				return nil
			}
			result, err := s.Execute(t.Context(), Target{Language: "bash"}, Request{Code: code, Timeout: time.Minute}, r)
			if err != nil || !result.Interrupted || result.Lost || strings.Contains(r.out[0], "no") {
				t.Errorf("ended with %+v, %v and printed %q", result, err, r.out)
			}
			if _, r := execute(t, s, "bash", Request{Code: "echo $kept", Timeout: time.Minute}); r.out[0] != "1\n" {
				t.Errorf("afterwards it printed %q", r.out)
			}
		})
	}
}

// A shell that exits ends with its code, and the next cell has a new one.
func TestBashExit(t *testing.T) {
	s := newContexts(t, "bash")
	result, _ := execute(t, s, "bash", Request{Code: "x=1; exit 7", Timeout: time.Minute})
	if result.Status != server.StatusOK || result.ExitCode != 7 || !result.Lost {
		t.Errorf("ended with %+v", result)
	}
	if _, r := execute(t, s, "bash", Request{Code: "echo .$x", Timeout: time.Minute}); r.out[0] != ".\n" || !r.started.Restarted {
		t.Errorf("afterwards it printed %q, %+v", r.out, r.started)
	}
}
