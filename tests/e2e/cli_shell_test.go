package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// window is a terminal with a command in it.
type window struct {
	cmd  *exec.Cmd
	tty  *os.File
	read chan struct{} // closed when the terminal's output has ended

	mu    sync.Mutex
	shown bytes.Buffer
}

func openWindow(t *testing.T, sh *shell, args ...string) *window {
	t.Helper()
	w := &window{cmd: sh.command(args...), read: make(chan struct{})}
	var err error
	if w.tty, err = pty.StartWithSize(w.cmd, &pty.Winsize{Rows: 30, Cols: 100}); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(w.read)
		_, _ = io.Copy(w, w.tty)
	}()
	t.Cleanup(func() {
		_ = w.cmd.Process.Kill()
		w.tty.Close()
		<-w.read
	})
	return w
}

// Write implements io.Writer for the terminal's output.
func (w *window) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.shown.Write(p)
}

func (w *window) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.shown.String()
}

// sees waits until text is shown, and discards the output up to the end of the match.
func (w *window) sees(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		w.mu.Lock()
		if _, after, ok := bytes.Cut(w.shown.Bytes(), []byte(text)); ok {
			after = bytes.Clone(after)
			w.shown.Reset()
			w.shown.Write(after)
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		if time.Now().After(end) {
			t.Fatalf("the terminal shows %q, want %q", w.text(), text)
		}
	}
}

func (w *window) types(t *testing.T, keys string) {
	t.Helper()
	if _, err := io.WriteString(w.tty, keys); err != nil {
		t.Fatal(err)
	}
}

// ends waits for the command's end and returns its exit code.
func (w *window) ends(t *testing.T) int {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- w.cmd.Wait() }()
	select {
	case err := <-done:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatalf("the command does not end; shown is %q", w.text())
	}
	return w.cmd.ProcessState.ExitCode()
}

// running returns the names of the processes that run in a sandbox.
func (sh *shell) running(t *testing.T, box string) string {
	t.Helper()
	var list []struct{ Name, State, Command string }
	if err := json.Unmarshal([]byte(sh.must(t, "ps", box, "--json")), &list); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range list {
		if p.State == "running" {
			names = append(names, p.Name)
		}
	}
	return strings.Join(names, " ")
}

func TestCommandShell(t *testing.T) {
	t.Parallel()
	sh := newShell(t, "command-shell")
	sh.must(t, "create", "box")

	w := openWindow(t, sh, "shell", "--cwd", "/tmp", "-e", "MINE=m", "box")
	w.types(t, "echo at=$PWD mine=$MINE size=$(stty size) term=$TERM\r")
	w.sees(t, "at=/tmp mine=m size=30 100 term=")
	if err := pty.Setsize(w.tty, &pty.Winsize{Rows: 20, Cols: 70}); err != nil {
		t.Fatal(err)
	}
	w.types(t, "until [ \"$(stty size)\" = '20 70' ]; do sleep 0.1; done; echo resi''zed\r")
	w.sees(t, "resized")
	w.types(t, "bash -c 'echo sle\"\"eps; sleep 1234'\r") // the printing process is already in the foreground
	w.sees(t, "sleeps")
	w.types(t, "\x03") // Ctrl-C interrupts the foreground program in the sandbox
	w.types(t, "echo co''de $?\r")
	w.sees(t, "code 130")
	w.types(t, "exit 7\r")
	if code := w.ends(t); code != 7 {
		t.Errorf("the exit code is %d", code)
	}

	for _, tt := range []struct {
		stdin string
		args  []string
		want  told
	}{
		{"", []string{"shell", "box", "--", "bash", "-c", "echo one; exit 3"}, told{"one\r\n", "", 3}},
		{"", []string{"shell", "box", "bash", "-c", "kill -9 $$"}, told{"", "cloud-sandbox: signal 9", 137}},
		{"", []string{"shell", "box", "no-such-program"}, told{"", "is not in PATH", 125}},
		{"", []string{"shell", "none"}, told{"", "no sandbox", 125}},
		{"", []string{"shell"}, told{"", "name a SANDBOX", 125}},
		{"", []string{"shell", "--attach", "none", "box"}, told{"", "no such process", 125}},
		{"", []string{"shell", "--attach", "x", "--keep", "box"}, told{"", "leave out --keep", 125}},
		{"", []string{"shell", "--attach", "x", "box", "bash"}, told{"", "leave out the program", 125}},
	} {
		got := sh.try(t, tt.stdin, tt.args...)
		if got.out != tt.want.out || got.code != tt.want.code || !strings.Contains(got.err, tt.want.err) || tt.want.err == "" && got.err != "" {
			t.Errorf("%q: got %+v, want %+v", tt.args, got, tt.want)
		}
	}
	if got := sh.try(t, "echo $((6 * 7))\n", "shell", "box", "bash", "--norc"); got.code != 0 || !strings.Contains(got.out, "\r42\r\n") {
		t.Errorf("stdin from a pipe: %+v", got)
	}
}

// exec -it connects a program to the local terminal; exec -t alone gives it no input.
func TestCommandExecTerminal(t *testing.T) {
	t.Parallel()
	sh := newShell(t, "command-exec-terminal")
	sh.must(t, "create", "box")
	w := openWindow(t, sh, "exec", "-it", "--cwd", "/tmp", "-e", "MINE=m", "box", "bash", "--norc")
	w.types(t, "echo at=$PWD mine=$MINE size=$(stty size) term=$TERM\r")
	w.sees(t, "at=/tmp mine=m size=30 100 term=")
	if err := pty.Setsize(w.tty, &pty.Winsize{Rows: 20, Cols: 70}); err != nil {
		t.Fatal(err)
	}
	w.types(t, "until [ \"$(stty size)\" = '20 70' ]; do sleep 0.1; done; echo resi''zed\r")
	w.sees(t, "resized")
	w.types(t, "bash -c 'echo sle\"\"eps; sleep 1234'\r")
	w.sees(t, "sleeps")
	w.types(t, "\x03")
	w.types(t, "echo co''de $?\r")
	w.sees(t, "code 130")
	w.types(t, "exit 7\r")
	if code := w.ends(t); code != 7 {
		t.Errorf("the exit code is %d", code)
	}

	w = openWindow(t, sh, "exec", "-t", "box", "bash", "-c", "test -t 1 && echo be''gun; sleep 1234")
	w.sees(t, "begun")
	w.types(t, "\x03") // interrupts the local command: the local terminal is not in raw mode
	if code := w.ends(t); code != 130 || sh.running(t, "box") != "" {
		t.Errorf("ended with %d, and %q runs", code, sh.running(t, "box"))
	}
	sh.must(t, "exec", "-dt", "--name", "later", "box", "bash", "--norc")
	w = openWindow(t, sh, "shell", "--attach", "later", "box")
	w.types(t, "exit 5\r")
	if code := w.ends(t); code != 5 {
		t.Errorf("a terminal that was started by exec -dt: %d", code)
	}
	for _, tt := range []struct {
		args []string
		want told
	}{
		{[]string{"exec", "-t", "box", "bash", "-c", "test -t 0 && echo one; exit 3"}, told{"one\r\n", "", 3}},
		{[]string{"exec", "-t", "box", "no-such-program"}, told{"", "", 127}},
		{[]string{"exec", "-t", "--timeout", "0.5", "box", "sleep", "1234"}, told{"", "it ran longer than", 124}},
		{[]string{"exec", "-it", "--json", "box", "true"}, told{"", "leave one out", 125}},
	} {
		if got := sh.try(t, "", tt.args...); got.code != tt.want.code || !strings.Contains(got.out, tt.want.out) || !strings.Contains(got.err, tt.want.err) {
			t.Errorf("%q: got %+v, want %+v", tt.args, got, tt.want)
		}
	}
}

func TestCommandShellStays(t *testing.T) {
	t.Parallel()
	sh := newShell(t, "command-stays")
	sh.must(t, "create", "box")

	w := openWindow(t, sh, "shell", "--keep", "--name", "work", "box")
	w.types(t, "x=4''2; echo begu''n\r")
	w.sees(t, "begun")
	w.types(t, "\x1d")
	if code := w.ends(t); code != 0 || sh.running(t, "box") != "work" {
		t.Errorf("left with %d, and %q runs", code, sh.running(t, "box"))
	}
	first, second := openWindow(t, sh, "shell", "--attach", "work", "box"), openWindow(t, sh, "shell", "--attach", "work", "box")
	first.sees(t, "begun") // earlier output is replayed
	second.sees(t, "begun")
	first.types(t, "echo still $x\r")
	second.sees(t, "still 42")
	second.types(t, "exit 4\r")
	if a, b := first.ends(t), second.ends(t); a != 4 || b != 4 {
		t.Errorf("the exit codes are %d and %d", a, b)
	}

	// Closing the terminal ends the program in it.
	w = openWindow(t, sh, "shell", "--name", "gone", "box")
	w.types(t, "echo begu''n\r")
	w.sees(t, "begun")
	if err := w.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if code := w.ends(t); code != 130 || sh.running(t, "box") != "" {
		t.Errorf("ended with %d, and %q runs", code, sh.running(t, "box"))
	}
}

// A shell and `logs -f` reconnect after a restart of the server.
func TestCommandSurvivesServer(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{Pool: 1})
	sh := &shell{server: s, user: "command-survives", folder: t.TempDir()}
	sh.must(t, "create", "box")
	sh.must(t, "exec", "-d", "--name", "count", "box", "bash", "-c", "echo first; until [ -e go ]; do sleep 0.1; done; echo second")
	logs := openWindow(t, sh, "logs", "-f", "box", "count")
	logs.sees(t, "first")
	w := openWindow(t, sh, "shell", "box")
	w.types(t, "x=4''2; echo begu''n\r")
	w.sees(t, "begun")
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	w.sees(t, "[the connection is lost, trying again]")
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	w.types(t, "echo still $x; touch go\r")
	w.sees(t, "still 42")
	w.types(t, "exit 6\r")
	logs.sees(t, "second")
	if a, b := w.ends(t), logs.ends(t); a != 6 || b != 0 {
		t.Errorf("the exit codes are %d and %d", a, b)
	}
}

func TestCommandProcesses(t *testing.T) {
	t.Parallel()
	sh := newShell(t, "command-processes")
	id := strings.TrimSpace(sh.must(t, "create", "box"))
	process := strings.TrimSpace(sh.must(t, "exec", "-d", "--name", "job", "box", "bash", "-c", "echo out; until [ -e /tmp/out ]; do sleep 0.05; done; echo err >&2; until [ -e /tmp/err ]; do sleep 0.05; done; printf '%s' $0", "arg"))
	// The program continues only after its last output has been read, because two pipes
	// may be read in either order.
	for i, read := range []told{{"out\n", "", 0}, {"out\n", "err\n", 0}} {
		rig.Within(t, rig.Patience, "the process's output", func() bool { return sh.try(t, "", "logs", "box", "job") == read })
		sh.must(t, "exec", "box", "touch", []string{"/tmp/out", "/tmp/err"}[i])
	}
	if got := sh.try(t, "", "logs", "-f", "box", "job"); got != (told{"out\narg", "err\n", 0}) {
		t.Errorf("the logs are %+v", got)
	}
	for _, tt := range []struct {
		args []string
		want told
	}{
		{[]string{"logs", "box", process, "--stream", "stdout"}, told{"out\narg", "", 0}},
		{[]string{"logs", "box", "job", "--from", "4"}, told{"arg", "err\n", 0}},
		{[]string{"logs", "box", "job", "--tail", "3"}, told{"arg", "", 0}},
		{[]string{"logs", "box"}, told{"out\narg", process + ": bash -c", 0}},
		{[]string{"logs", "box", "none"}, told{"", "no such process", 1}},
		{[]string{"logs", "box", "job", "--from", "1", "--tail", "1"}, told{"", "leave one out", 2}},
		{[]string{"logs", "box", "job", "--from", "-1"}, told{"", "0 or more", 2}},
		{[]string{"logs", "box", "job", "--stream", "both"}, told{"", "stdout or stderr", 2}},
		{[]string{"kill", "box", "job"}, told{process + "\n", "", 0}}, // no effect: it has already ended
		{[]string{"kill", "box", "none"}, told{"", "none: no such process", 1}},
		{[]string{"kill", "box"}, told{"", "one PROCESS or more", 2}},
		{[]string{"exec", "--name", "x", "box", "true"}, told{"", "--name needs --detach", 125}},
		{[]string{"exec", "-d", "box", "no-such-program"}, told{"", "is not in PATH", 125}},
	} {
		got := sh.try(t, "", tt.args...)
		if got.out != tt.want.out || got.code != tt.want.code || !strings.Contains(got.err, tt.want.err) || tt.want.err == "" && tt.args[0] != "logs" && got.err != "" {
			t.Errorf("%q: got %+v, want %+v", tt.args, got, tt.want)
		}
	}
	sh.must(t, "exec", "-d", "--name", "sleeper", "box", "sleep", "1234")
	if got := sh.must(t, "__complete", "kill", "box", "sl"); !strings.HasPrefix(got, "sleeper\t") {
		t.Errorf("completed is %q", got)
	}
	sh.must(t, "kill", "--signal", "TERM", "box", "sleeper")
	if got := sh.try(t, "", "logs", "-f", "box", "sleeper"); got.code != 0 {
		t.Errorf("its logs end with %+v", got)
	}
	if got := sh.must(t, "ps", "box"); !strings.Contains(got, "ended (killed, 143)") || sh.running(t, "box") != "" {
		t.Errorf("the list is\n%s", got)
	}
	sh.must(t, "rm", "box")
	if got := sh.try(t, "", "logs", id); got.code != 0 || !strings.Contains(got.err, "(released)") {
		t.Errorf("of a sandbox that has ended: %+v", got)
	}
}
