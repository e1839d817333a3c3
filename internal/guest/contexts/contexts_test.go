package contexts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// theReaper is the test process's own: there is one waiter a process.
var theReaper = sync.OnceValue(func() *server.Reaper {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	return server.NewReaper()
})

// newContexts are those of a Guest on this machine whose user is root.
func newContexts(t *testing.T, program string) *Contexts {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("the guest runs as root")
	}
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("there is no %s on this machine", program)
	}
	accounts := server.Accounts{Etc: fstest.MapFS{"passwd": {Data: []byte("root:x:0:0:root:/root:/bin/bash\n")}}}
	g := server.New(accounts, theReaper())
	if err := g.Bind(server.Owner{SandboxID: "i", BootNumber: 1, User: "root", Cwd: t.TempDir(), Env: map[string]string{"PATH": os.Getenv("PATH")}}, 0, nil); err != nil {
		t.Fatal(err)
	}
	s := New(g)
	t.Cleanup(func() {
		for _, i := range s.List() {
			_ = s.Delete(i.ID)
		}
	})
	return s
}

// runHere runs a program of this machine, and reports what it printed and whether it
// succeeded. Its end is waited for by the reaper, which would take it from os/exec.
func runHere(t *testing.T, argv ...string) (string, bool) {
	t.Helper()
	path, err := exec.LookPath(argv[0])
	if err != nil {
		t.Fatal(err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	child, err := theReaper().Start(path, argv, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{os.Stdin.Fd(), write.Fd(), os.Stderr.Fd()},
	})
	write.Close()
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(read)
	if err != nil {
		t.Error(err)
	}
	return string(out), <-child.Exited == 0
}

// told is what an execution told.
type told struct {
	mu      sync.Mutex
	started Started
	all     []string // in order
	out     [2]string
	results []map[string]string
	errs    [][3]string
	on      func(out string) error
}

func (r *told) Started(s Started) error { r.started = s; return nil }

func (r *told) Output(stderr bool, data []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := 0
	if stderr {
		i = 1
	}
	r.out[i] += string(data)
	r.all = append(r.all, string(data))
	if r.on != nil {
		return r.on(r.out[0])
	}
	return nil
}

func (r *told) Result(main bool, data map[string]string) error {
	r.results = append(r.results, data)
	r.all = append(r.all, fmt.Sprintf("<%s %v>", data["text/plain"], main))
	return nil
}

func (r *told) Error(name, value, traceback string) error {
	r.errs = append(r.errs, [3]string{name, value, traceback})
	return nil
}

func python(code string) Request { return Request{Code: code, Timeout: time.Minute} }

func execute(t *testing.T, s *Contexts, language string, req Request) (Result, *told) {
	t.Helper()
	var r told
	got, err := s.Execute(t.Context(), Target{Language: language}, req, &r)
	if err != nil {
		t.Fatal(err)
	}
	return got, &r
}

// Cells of one context, one after the other.
func TestPython(t *testing.T) {
	s := newContexts(t, "python3")
	for _, tt := range []struct {
		name, code string
		want       string // everything in order
		err        string
		exit       int
	}{
		{"a value", "x = 20\nx + 22", "<42 true>", "", 0},
		{"what was left", "print(x)", "20\n", "", 0},
		{"no value for None", "None", "", "", 0},
		{"no value after a semicolon", "x;", "", "", 0},
		{"in order", "print('a')\ndisplay(1)\nprint('b')\ndisplay(2)\nprint('c')\n3", "a\n<1 false>b\n<2 false>c\n<3 true>", "", 0},
		{"children print in order", "import os\nprint('a')\nos.system('echo b')\nprint('c')", "a\nb\nc\n", "", 0},
		{"await", "import asyncio\nasync def f(): return 7\nawait f()", "<7 true>", "", 0},
		{"an error", "1/0", "", "ZeroDivisionError: division by zero", 1},
		{"a syntax error", "def", "", "SyntaxError", 1},
		{"sys.exit keeps the state", "import sys; sys.exit(3)", "", "", 3},
		{"still there", "x", "<20 true>", "", 0},
		{"a function of an earlier cell", "def g(): raise ValueError('v')", "", "", 0},
		{"fails here", "g()", "", "ValueError: v", 1},
		{"shell", "!echo hi", "hi\n", "", 0},
		{"name", "__name__", "<'__main__' true>", "", 0},
		{"pickle", "class P: pass\nimport pickle; type(pickle.loads(pickle.dumps(P()))) is P", "<True true>", "", 0},
		{"html", "class H:\n  def _repr_html_(self): return '<b>'\nH.__repr__ = lambda s: 'H'\nH()", "<H true>", "", 0},
		{"a fork ends with the cell", "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint('parent' if pid else 'child')", "child\nparent\n", "", 0},
		{"last value", "1+1", "<2 true>", "", 0},
		{"underscore", "_ + 1", "<3 true>", "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, r := execute(t, s, "python", python(tt.code))
			if all := strings.Join(r.all, ""); all != tt.want || got.ExitCode != tt.exit || got.Status != server.StatusOK {
				t.Errorf("got %q, %+v %+v, want %q", all, got, r.errs, tt.want)
			}
			err := ""
			if len(r.errs) > 0 {
				err = r.errs[0][0] + ": " + r.errs[0][1]
			}
			if !strings.HasPrefix(err, tt.err) || (tt.err == "") != (err == "") {
				t.Errorf("the error is %q, want %q", err, tt.err)
			}
		})
	}
	_, r := execute(t, s, "python", python("g()"))
	want := "Traceback (most recent call last):\n  File \"<cell 21>\", line 1, in <module>\n    g()\n  File \"<cell 12>\", line 1, in g\n    def g(): raise ValueError('v')\n"
	if !strings.HasPrefix(r.errs[0][2], want) {
		t.Errorf("the traceback is\n%s\nwant\n%s", r.errs[0][2], want)
	}
}

func TestTimeoutLeavesTheState(t *testing.T) {
	s := newContexts(t, "python3")
	execute(t, s, "python", python("x = 1"))
	req := python("print('begun')\nwhile True: pass")
	for req.Timeout = 200 * time.Millisecond; ; req.Timeout *= 4 { // a busy machine may take that long to begin
		got, r := execute(t, s, "python", req)
		if got.Status != server.StatusTimeout || got.Lost {
			t.Errorf("%+v %+v", got, r)
		}
		if r.out[0] == "begun\n" {
			break
		}
		if r.out[0] != "" || req.Timeout > 10*time.Second {
			t.Fatalf("after %v: %q", req.Timeout, r.out[0])
		}
	}
	req.Timeout = 200 * time.Millisecond
	req.Code = "import os\nwhile True: os.system('sleep 60')"
	got, _ := execute(t, s, "python", req)
	if got.Status != server.StatusTimeout || got.Lost || got.Duration > 30*time.Second {
		t.Errorf("%+v", got)
	}
	_, r := execute(t, s, "python", python("x"))
	if r.started.Restarted || len(r.results) != 1 {
		t.Errorf("%+v", r)
	}
	req.Code = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass"
	if got, _ = execute(t, s, "python", req); got.Status != server.StatusTimeout || !got.Lost {
		t.Errorf("deaf: %+v", got)
	}
	if _, r = execute(t, s, "python", python("x")); !r.started.Restarted || len(r.errs) != 1 {
		t.Errorf("after it: %+v", r)
	}
}

func TestEndsOfAWorker(t *testing.T) {
	s := newContexts(t, "python3")
	for _, tt := range []struct {
		code string
		want server.RunResult
	}{
		{"exit()", server.RunResult{Status: server.StatusOK}},
		{"quit(4)", server.RunResult{Status: server.StatusOK, ExitCode: 4}},
		{"import os; os._exit(5)", server.RunResult{Status: server.StatusOK, ExitCode: 5}},
		{"import os; os.kill(os.getpid(), 9)", server.RunResult{Status: server.StatusKilled, ExitCode: -1, Signal: 9}},
		{"import os; os.write(4, b'x' * 100)", server.RunResult{Status: server.StatusKilled, ExitCode: -1, Signal: 9}},
	} {
		execute(t, s, "python", python("x = 1"))
		got, _ := execute(t, s, "python", python(tt.code))
		lost := got.Lost
		got.Duration = 0
		if got.RunResult != tt.want || !lost {
			t.Errorf("%s: %+v", tt.code, got)
		}
		if _, r := execute(t, s, "python", python("'x' in globals()")); !r.started.Restarted || r.results[0]["text/plain"] != "False" {
			t.Errorf("after %s: %+v", tt.code, r)
		}
	}
}

func TestStdinEnvAndFolder(t *testing.T) {
	s := newContexts(t, "python3")
	req := python("import os\nprint(input(), input(), os.environ['A'], os.getcwd())\nprint(os.popen('cat').read())")
	req.Stdin, req.Env, req.Cwd = []byte("one\ntwo\nrest"), map[string]string{"A": "b"}, "/usr"
	if _, r := execute(t, s, "python", req); r.out[0] != "one two b /usr\n\n" && r.out[0] != "one two b /usr\nrest\n" {
		t.Errorf("%+v", r)
	}
	_, r := execute(t, s, "python", python("import sys\nprint('A' in os.environ, os.getcwd() != '/usr', repr(sys.stdin.read()))\ninput()"))
	if r.out[0] != "False True ''\n" || r.errs[0][0] != "StdinNotImplementedError" {
		t.Errorf("%+v", r)
	}
	req = python("os.popen('cat').read()")
	req.Stdin = []byte("for a child")
	if _, r = execute(t, s, "python", req); r.results[0]["text/plain"] != "'for a child'" {
		t.Errorf("%+v", r)
	}
}

func TestInterruptAndRestart(t *testing.T) {
	s := newContexts(t, "python3")
	execute(t, s, "python", python("x = 1"))
	begun := make(chan struct{}, 1)
	run := func(code string) (Result, *told) {
		r := told{on: func(string) error { begun <- struct{}{}; return nil }}
		got, err := s.Execute(t.Context(), Target{Language: "python"}, python(code), &r)
		if err != nil {
			t.Error(err)
		}
		return got, &r
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		got, r := run("print(1)\nwhile True: pass")
		if !got.Interrupted || got.Lost || got.Status != server.StatusOK || got.ExitCode != 130 || r.errs[0][0] != "KeyboardInterrupt" {
			t.Errorf("%+v %+v", got, r)
		}
	}()
	<-begun
	if ok, err := s.Interrupt("python"); !ok || err != nil {
		t.Errorf("Interrupt = %v, %v", ok, err)
	}
	<-done
	if ok, err := s.Interrupt("python"); ok || err != nil {
		t.Errorf("Interrupt of nothing = %v, %v", ok, err)
	}
	done = make(chan struct{})
	go func() {
		defer close(done)
		if got, _ := run("print(x)\nwhile True: pass"); got.Status != server.StatusKilled || !got.Lost || got.Message == "" {
			t.Errorf("%+v", got)
		}
	}()
	<-begun
	if _, err := s.Restart("python"); err != nil {
		t.Error(err)
	}
	<-done
	for _, f := range []func(string) error{s.Delete, func(id string) error { _, err := s.Restart(id); return err }} {
		if err := f("nothing"); !errors.Is(err, ErrUnknown) {
			t.Errorf("of nothing: %v", err)
		}
	}
}

func TestClientThatLeaves(t *testing.T) {
	s := newContexts(t, "python3")
	execute(t, s, "python", python("x = 1"))
	ctx, cancel := context.WithCancel(t.Context())
	r := told{on: func(string) error { cancel(); return nil }}
	if _, err := s.Execute(ctx, Target{Language: "python"}, python("print(1)\nwhile True: pass"), &r); err != nil {
		t.Error(err)
	}
	r = told{on: func(string) error { return errors.New("gone") }}
	if _, err := s.Execute(t.Context(), Target{Language: "python"}, python("while True: print(1)"), &r); err == nil {
		t.Error("no error")
	}
	if _, r := execute(t, s, "python", python("x")); r.started.Restarted {
		t.Error("it was restarted")
	}
}

// The next owner of a copied Sandbox draws other numbers than the copy.
func TestReseed(t *testing.T) {
	s := newContexts(t, "python3")
	execute(t, s, "python", python("import random; random.seed(1)"))
	_, before := execute(t, s, "python", python("random.seed(1); random.random()"))
	execute(t, s, "python", python("random.seed(1)"))
	s.byID("python").worker.owner.boot++
	_, after := execute(t, s, "python", python("random.random()"))
	if before.results[0]["text/plain"] == after.results[0]["text/plain"] {
		t.Error("the numbers go on as they would have")
	}
}

// What runs while a copy is made draws other numbers than the copy: the signal
// that tells of it comes before the copy goes on.
func TestReseedWhileItRuns(t *testing.T) {
	s := newContexts(t, "python3")
	_, r := execute(t, s, "python", python(`import random, os, signal
def draw(told):
    random.seed(1)
    if told: os.kill(os.getpid(), signal.SIGURG)
    return random.random()
len({draw(False), draw(False), draw(True), draw(True)})`))
	if len(r.results) != 1 || r.results[0]["text/plain"] != "3" {
		t.Errorf("%+v", r)
	}
}
