package processes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/contexts"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// theReaper is the test process's own: there is one waiter a process.
var theReaper = sync.OnceValue(func() *server.Reaper {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	return server.NewReaper()
})

// newRegistry is that of a Guest on this machine whose user is root.
func newRegistry(t *testing.T) *Registry {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("the guest runs as root")
	}
	// Not the home of who runs the tests: login shells would read what is there.
	accounts := server.Accounts{Etc: fstest.MapFS{"passwd": {Data: []byte("root:x:0:0:root:" + t.TempDir() + ":/bin/bash\n")}}}
	g := server.New(accounts, theReaper())
	if err := g.Bind(server.Owner{SandboxID: "i", BootNumber: 1, User: "root", Cwd: t.TempDir()}, 0, nil); err != nil {
		t.Fatal(err)
	}
	r := New(g, contexts.New(g))
	t.Cleanup(func() {
		for _, p := range r.All() {
			p.End()
			<-p.ended
		}
	})
	return r
}

func start(t *testing.T, r *Registry, spec Spec) *Process {
	t.Helper()
	p, _, err := r.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// ended waits for the end and returns what was written in all.
func ended(t *testing.T, p *Process) (server.RunResult, string) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		t.Fatalf("%q does not end", p.Text)
	}
	result, _ := p.Result()
	return result, written(t, p)
}

func written(t *testing.T, p *Process) string {
	t.Helper()
	pieces, _, err := p.output.read(0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, piece := range pieces {
		all.Write(piece.data)
	}
	return all.String()
}

// logs waits until a line of the output matches.
func logs(t *testing.T, p *Process, re string) Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	o := p.Wait(ctx, Condition{Log: regexp.MustCompile(re)})
	if !o.Met {
		t.Fatalf("%q never came, but %q", re, written(t, p))
	}
	return o
}

func TestProcessEnds(t *testing.T) {
	r := newRegistry(t)
	for _, tt := range []struct {
		line    string
		timeout time.Duration
		status  server.Status
		code    int
		signal  syscall.Signal
		output  string
	}{
		{"echo a", 0, server.StatusOK, 0, 0, "a\n"},
		{"echo a; exit 4", 0, server.StatusOK, 4, 0, "a\n"},
		{"-no-option", 0, server.StatusOK, 127, 0, "bash: line 1: -no-option: command not found\n"},
		{"kill -KILL $$", 0, server.StatusKilled, -1, syscall.SIGKILL, ""},
		{"cat", 0, server.StatusOK, 0, 0, ""}, // it has no input
		{"sleep 1000 & echo a", 0, server.StatusOK, 0, 0, "a\n"},
	} {
		p := start(t, r, Spec{Line: tt.line, Timeout: tt.timeout})
		result, output := ended(t, p)
		if result.Status != tt.status || result.ExitCode != tt.code || result.Signal != int(tt.signal) || output != tt.output {
			t.Errorf("%s: %+v, %q", tt.line, result, output)
		}
		_ = p.job.Signal(syscall.SIGKILL) // what it left
	}
}

// What was said before the time was over is kept.
func TestProcessTimesOut(t *testing.T) {
	r := newRegistry(t)
	for timeout := 300 * time.Millisecond; ; timeout *= 4 { // a busy machine may take that long to say anything
		result, output := ended(t, start(t, r, Spec{Line: "echo a; sleep 1000", Timeout: timeout}))
		if result.Status != server.StatusTimeout || result.ExitCode != -1 || result.Signal != int(syscall.SIGTERM) {
			t.Errorf("after %v: %+v", timeout, result)
		}
		if output == "a\n" {
			return
		}
		if output != "" || timeout > 10*time.Second {
			t.Fatalf("after %v: %q", timeout, output)
		}
	}
}

// First input is written however late it is read, and before what comes later.
func TestFirstInput(t *testing.T) {
	r := newRegistry(t)
	p := start(t, r, Spec{Line: "read x; echo $x; cat | tr -d x | wc -c", Stdin: []byte("first\n" + strings.Repeat("x", 1<<20)), Keep: true})
	if n, err := p.Write(t.Context(), Input{Data: []byte("second"), EOF: true}); n != 6 || err != nil {
		t.Errorf("%d %v", n, err)
	}
	if _, output := ended(t, p); output != "first\n6\n" {
		t.Errorf("it wrote %q", output)
	}
	if _, err := p.Write(t.Context(), Input{EOF: true}); !errors.Is(err, errEnded) {
		t.Errorf("after its end: %v", err)
	}
}

// Input that is given again from its offset on is read once.
func TestInputGivenAgain(t *testing.T) {
	r := newRegistry(t)
	p := start(t, r, Spec{Line: "cat; echo; sleep 1000", Stdin: []byte("-"), Keep: true})
	for _, tt := range []struct {
		text string
		from int64
		eof  bool
		n    int
		err  error
	}{
		{"abc", 0, false, 3, nil},
		{"abc", 0, false, 3, nil},
		{"bcde", 1, false, 4, nil},
		{"x", 6, false, 0, errGap},
		{"x", -1, false, 0, errGap},
		{"", 5, false, 0, nil},
		{"ef", 4, true, 2, nil},
		{"f", 5, true, 1, nil},
		{"", 6, true, 0, nil},
		{"g", 6, true, 0, errInput},
	} {
		if n, err := p.Write(t.Context(), Input{Data: []byte(tt.text), From: &tt.from, EOF: tt.eof}); n != tt.n || !errors.Is(err, tt.err) {
			t.Errorf("%q from %d: %d, %v", tt.text, tt.from, n, err)
		}
	}
	logs(t, p, "^-abcdef$")
	p.End()
}

// A writer that leaves does not keep the next one waiting.
func TestInputThatIsNotRead(t *testing.T) {
	r := newRegistry(t)
	p := start(t, r, Spec{Line: "until [ -e go ]; do sleep 0.02; done; cat | wc -c", Keep: true})
	ctx, leave := context.WithCancel(t.Context())
	begun := make(chan int)
	go func() {
		n, err := p.Write(ctx, Input{Data: make([]byte, 1<<20)})
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("it took %d: %v", n, err)
		}
		begun <- n
	}()
	for len(p.writing) == 0 {
		time.Sleep(time.Millisecond)
	}
	leave()
	took := <-begun
	if err := os.WriteFile(filepath.Join(p.Command.Cwd, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := p.Write(t.Context(), Input{Data: []byte("end"), EOF: true}); n != 3 || err != nil {
		t.Errorf("the next writer: %d %v", n, err)
	}
	if _, output := ended(t, p); output != fmt.Sprintln(took+3) {
		t.Errorf("it read %q, was given %d", output, took+3)
	}
}

func TestEndOfEverything(t *testing.T) {
	r := newRegistry(t)
	p := start(t, r, Spec{Line: "trap '' TERM; (trap '' TERM; setsid sleep 1000 & echo $!); echo ready; while :; do sleep 0.1; done"})
	o := logs(t, p, `^(\d+)$`)
	logs(t, p, "ready")
	p.End()
	if result, _ := ended(t, p); result.Status != server.StatusKilled {
		t.Errorf("%+v", result)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // it may still be ending
		cmdline, _ := os.ReadFile("/proc/" + o.Line + "/cmdline")
		if len(cmdline) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s lives: %q", o.Line, cmdline)
		}
	}
}

func TestNames(t *testing.T) {
	r := newRegistry(t)
	one := start(t, r, Spec{Line: "sleep 1000", Name: "n"})
	if _, _, err := r.Start(t.Context(), Spec{Line: "true", Name: "n"}); !errors.Is(err, errNameTaken) {
		t.Errorf("a name in use: %v", err)
	}
	one.End()
	ended(t, one)
	if r.Find("n") != one || r.Find(one.ID) != one {
		t.Error("the ended one is not found")
	}
	two := start(t, r, Spec{Line: "sleep 1000", Name: "n"})
	if r.Find("n") != two {
		t.Error("the name means the old one")
	}
	if r.Find("") != nil || r.Find("m") != nil {
		t.Error("something else is found")
	}
}

func TestEndedAreForgotten(t *testing.T) {
	r := newRegistry(t)
	lives := start(t, r, Spec{Line: "sleep 1000"})
	first := start(t, r, Spec{Args: []string{"true"}, Key: "k"})
	ended(t, first)
	for range maxEnded {
		ended(t, start(t, r, Spec{Args: []string{"true"}}))
	}
	start(t, r, Spec{Line: "sleep 1000"})
	if n := len(r.All()); n != maxEnded+2 || r.Find(lives.ID) != lives || r.Find(first.ID) != nil {
		t.Errorf("%d are kept", n)
	}
	if _, _, err := r.Start(t.Context(), Spec{Args: []string{"true"}, Key: "k"}); !errors.Is(err, errKeyOld) {
		t.Errorf("its key: %v", err)
	}
}

func TestKeys(t *testing.T) {
	r := newRegistry(t)
	spec := Spec{Line: "echo $$", Key: "k", Fingerprint: []byte("a")}
	p := start(t, r, spec)
	again, repeated, err := r.Start(t.Context(), spec)
	if again != p || !repeated || err != nil {
		t.Errorf("again: %v %v", repeated, err)
	}
	spec.Fingerprint = []byte("b")
	if _, _, err := r.Start(t.Context(), spec); !errors.Is(err, errKeyReused) {
		t.Errorf("another request: %v", err)
	}
	bad := Spec{Args: []string{"/no/such"}, Key: "bad"}
	if _, _, err := r.Start(t.Context(), bad); err == nil {
		t.Error("nothing was started")
	}
	if bad.Args[0] = "true"; start(t, r, bad) == nil {
		t.Error("the key of a failed start is taken")
	}
	for i := range maxKeys {
		r.mu.Lock()
		r.remember(fmt.Sprint(i), &keyed{})
		r.mu.Unlock()
	}
	if n := len(r.starts); n != maxKeys || len(r.keys) != maxKeys || r.starts["k"] != nil {
		t.Errorf("%d keys are remembered", n)
	}
}

func TestTerminalSize(t *testing.T) {
	r := newRegistry(t)
	p := start(t, r, Spec{Line: "trap 'stty size' WINCH; stty size; while :; do sleep 0.05; done", PTY: &Size{80, 24}})
	logs(t, p, "^24 80$")
	if err := p.Resize(Size{100, 40}); err != nil {
		t.Fatal(err)
	}
	logs(t, p, "^40 100$")
	p.End()
	ended(t, p)
	if err := p.Resize(Size{1, 1}); !errors.Is(err, errEnded) {
		t.Errorf("after its end: %v", err)
	}
	pipes := start(t, r, Spec{Line: "sleep 1000"})
	if err := pipes.Resize(Size{1, 1}); !errors.Is(err, errNoTerminal) {
		t.Errorf("without a terminal: %v", err)
	}
	if _, err := pipes.Write(t.Context(), Input{EOF: true}); !errors.Is(err, errInput) {
		t.Errorf("without input: %v", err)
	}
}

// The keyboard of a terminal interrupts what runs in the foreground.
func TestControlC(t *testing.T) {
	r := newRegistry(t)
	for name, interrupt := range map[string]func(p *Process) error{
		"typed": func(p *Process) error { _, err := p.Write(t.Context(), Input{Data: []byte{3}}); return err },
		"sent":  func(p *Process) error { return p.Signal(syscall.SIGINT) },
	} {
		p := start(t, r, Spec{Line: "echo ready; exec sleep 1000", PTY: &Size{80, 24}})
		logs(t, p, "ready")
		if err := interrupt(p); err != nil {
			t.Fatal(err)
		}
		if result, _ := ended(t, p); result.Signal != int(syscall.SIGINT) {
			t.Errorf("%s: %+v", name, result)
		}
	}
}

func TestShells(t *testing.T) {
	r := newRegistry(t)
	shell := "test-" + strings.ToLower(fmt.Sprint(time.Now().UnixNano()))
	t.Cleanup(func() { _ = os.Remove(stateFile(server.User{}, shell)) })
	for _, tt := range []struct{ line, want string }{
		{"cd /tmp; a='x  y'; export b=2; f() { echo f$1; }; set -u; shopt -s nullglob; declare -A m=([k]=v)", ""},
		{`pwd; echo "$a" $b; f 1; env | grep ^b=; echo ${m[k]}`, "/tmp\nx  y 2\nf1\nb=2\nv\n"},
		{"cd /; a=changed; exit 9", ""},
		{"pwd; echo $a", "/\nchanged\n"},
		{"trap 'echo bye' EXIT; a=again", "bye\n"},
		{"a=lost; kill -9 $$", ""},
		{"echo $a ${CLOUD_SANDBOX_RUN:+marked}", "again marked\n"},
		{"echo $1 $# $0", "0 bash\n"},
	} {
		if _, output := ended(t, start(t, r, Spec{Line: tt.line, Shell: shell})); output != tt.want {
			t.Errorf("%s: %q, want %q", tt.line, output, tt.want)
		}
	}
	busy := start(t, r, Spec{Line: "sleep 1000", Shell: shell})
	var b *busyError
	if _, _, err := r.Start(t.Context(), Spec{Line: "true", Shell: shell}); !errors.As(err, &b) {
		t.Errorf("a busy shell: %v", err)
	}
	busy.End()
	ended(t, busy)
	if _, output := ended(t, start(t, r, Spec{Line: `echo $a $v; pwd`, Shell: shell, Cwd: "/usr", Env: map[string]string{"v": "1 2"}})); output != "again 1 2\n/usr\n" {
		t.Errorf("with a directory and a variable: %q", output)
	}
}

func TestWaiting(t *testing.T) {
	r := newRegistry(t)
	p := start(t, r, Spec{Line: "printf 'no end\\r\\nprompt> '; sleep 1000"})
	for re, want := range map[string]Outcome{
		"^no end$": {Met: true, Line: "no end", Offset: 8},
		"prompt>":  {Met: true, Line: "prompt> ", Offset: 16},
	} {
		if o := logs(t, p, re); o != want {
			t.Errorf("%s: %+v", re, o)
		}
	}
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for name, c := range map[string]Condition{"log": {Log: regexp.MustCompile("never")}, "exit": {}, "port": {Port: 1}, "http": {HTTP: 1, Path: "/"}} {
		if o := p.Wait(soon, c); o.Met {
			t.Errorf("%s: %+v", name, o)
		}
	}
	p.End()
	ended(t, p)
	for name, c := range map[string]Condition{"log": {Log: regexp.MustCompile("never")}, "port": {Port: 1}, "http": {HTTP: 1, Path: "/"}} {
		if o := p.Wait(t.Context(), c); o.Met {
			t.Errorf("%s after the end: %+v", name, o)
		}
	}
}
