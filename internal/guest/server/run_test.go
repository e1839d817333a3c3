package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"
)

// theReaper is the test process's own: there is one waiter a process.
var theReaper = sync.OnceValue(func() *Reaper {
	// Orphans come to us, as they come to PID 1.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	return NewReaper()
})

// newGuest is a Guest on this machine whose user is root: any machine has one.
func newGuest(t *testing.T) *Guest {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("the guest runs as root")
	}
	accounts := Accounts{Etc: fstest.MapFS{"passwd": {Data: []byte("root:x:0:0:root:/root:/bin/bash\n")}}}
	g := New(accounts, theReaper())
	if err := g.Bind(Owner{SandboxID: "i", BootNumber: 1, User: "root", Cwd: "/"}, 0, nil); err != nil {
		t.Fatal(err)
	}
	return g
}

// record keeps what a run tells.
type record struct {
	mu    sync.Mutex
	pid   int
	out   [2]bytes.Buffer
	after int // bytes of output after which Output fails; 0: never
}

func (r *record) Started(pid int) error { r.pid = pid; return nil }

func (r *record) Output(stderr bool, data []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := 0
	if stderr {
		i = 1
	}
	r.out[i].Write(data)
	if r.after > 0 && r.out[i].Len() > r.after {
		return errors.New("the client left")
	}
	return nil
}

func bash(code string) RunRequest {
	return RunRequest{Args: []string{"bash", "-c", code}, Timeout: 20 * time.Second}
}

// soon is long before what would come if nothing had been done: the time-out of
// bash, or the end of what holds the pipes.
const soon = 15 * time.Second

func TestRun(t *testing.T) {
	g := newGuest(t)
	timed := func(r RunRequest, d time.Duration) RunRequest { r.Timeout = d; return r }
	limited := func(r RunRequest, n int64) RunRequest { r.StdoutLimit = n; return r }
	for _, tt := range []struct {
		name    string
		req     RunRequest
		want    RunResult
		out     string
		slowest time.Duration
	}{
		{"output of both streams", bash("echo a; echo b >&2"), RunResult{Status: StatusOK}, "a\n", soon},
		{"exit code", bash("exit 7"), RunResult{Status: StatusOK, ExitCode: 7}, "", soon},
		{"input", RunRequest{Args: []string{"cat"}, Stdin: []byte("in")}, RunResult{Status: StatusOK}, "in", soon},
		{"input that nobody reads", RunRequest{Args: []string{"true"}, Stdin: make([]byte, 1<<20)}, RunResult{Status: StatusOK}, "", soon},
		{"killed by a signal", bash("kill -9 $$"), RunResult{Status: StatusKilled, ExitCode: -1, Signal: 9}, "", soon},
		{"output beyond the limit", limited(bash("head -c 3000000 /dev/zero | tr '\\0' x"), 5), RunResult{Status: StatusOK, StdoutDropped: 2999995}, "xxxxx", soon},
		{"endless loop", timed(bash("while :; do :; done"), 300*time.Millisecond), RunResult{Status: StatusTimeout, ExitCode: -1, Signal: 15}, "", soon},
		{"ignores SIGTERM", timed(bash("trap '' TERM; while :; do sleep 0.1; done"), 3*time.Second), RunResult{Status: StatusTimeout, ExitCode: -1, Signal: 9}, "", soon},
		{"a daemon holds the pipes", bash("sleep 30 & echo done"), RunResult{Status: StatusOK}, "done\n", soon},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var r record
			began := time.Now()
			got, err := g.Run(t.Context(), tt.req, &r)
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > tt.slowest {
				t.Errorf("it took %v", took)
			}
			got.Duration = 0
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if out := r.out[0].String(); out != tt.out {
				t.Errorf("stdout = %q, want %q", out, tt.out)
			}
		})
	}
}

// What ends a run ends everything that it started, wherever it went.
func TestRunEndsItsFamily(t *testing.T) {
	g := newGuest(t)
	const code = `
		setsid sleep 301 &
		(setsid bash -c 'sleep 302 & sleep 302' &) &
		env -i setsid sleep 303 &
		(env -i setsid bash -c 'sleep 303 & sleep 303' &) &
		sleep 304`
	for _, tt := range []struct {
		name string
		end  func(cancel context.CancelFunc) time.Duration
	}{
		{"timeout", func(context.CancelFunc) time.Duration { return 500 * time.Millisecond }},
		{"the client leaves", func(cancel context.CancelFunc) time.Duration {
			time.AfterFunc(500*time.Millisecond, cancel)
			return 0
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req := bash(code)
			req.Timeout = tt.end(cancel)
			if _, err := g.Run(ctx, req, &record{}); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(time.Minute); ; { // what was killed may still be ending
				left, _ := exec.Command("pgrep", "-af", "^sleep 30[1-4]$").Output()
				if len(left) == 0 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("still there:\n%s", left)
				}
			}
		})
	}
}

func TestRunWhenTheClientFails(t *testing.T) {
	g := newGuest(t)
	began := time.Now()
	_, err := g.Run(t.Context(), bash("yes"), &record{after: 1000})
	if err == nil || time.Since(began) > soon {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
}

func TestRunRefuses(t *testing.T) {
	g := newGuest(t)
	for _, tt := range []struct {
		name string
		req  RunRequest
		want string
	}{
		{"nothing", RunRequest{}, "no program is named"},
		{"unknown program", RunRequest{Args: []string{"no-such"}}, `the program "no-such" is not in PATH`},
		{"unknown user", RunRequest{Args: []string{"true"}, User: "nobody-here"}, `no user "nobody-here"`},
		{"missing folder", RunRequest{Args: []string{"true"}, Cwd: "/no/such"}, `the working directory "/no/such" does not exist`},
		{"a folder", RunRequest{Args: []string{"/etc"}}, `"/etc" is not a program`},
		{"zero byte", RunRequest{Args: []string{"true", "a\x00b"}}, "an argument holds a zero byte"},
	} {
		_, err := g.Run(t.Context(), tt.req, &record{})
		var bad *InvalidError
		if !errors.As(err, &bad) || bad.Reason != tt.want {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	blank := New(g.Accounts, g.Reaper)
	if _, err := blank.Run(t.Context(), bash("true"), &record{}); !errors.Is(err, ErrNotBound) {
		t.Errorf("before Bind: %v", err)
	}
}

func TestBind(t *testing.T) {
	g := newGuest(t)
	if err := g.Bind(Owner{SandboxID: "i", BootNumber: 1, User: "root", Cwd: "/", Env: map[string]string{"A": "1"}}, 0, nil); err != nil {
		t.Errorf("a repeat: %v", err)
	}
	for _, o := range []Owner{{SandboxID: "i", BootNumber: 2, User: "root"}, {SandboxID: "j", BootNumber: 1, User: "root"}} {
		if err := g.Bind(o, 0, nil); !errors.Is(err, ErrBound) {
			t.Errorf("another owner %+v: %v", o, err)
		}
	}
	var r record
	if _, err := g.Run(t.Context(), bash("echo $A $E2B_SANDBOX $HOME $USER; pwd"), &r); err != nil {
		t.Fatal(err)
	}
	if got := strings.Fields(r.out[0].String()); strings.Join(got, " ") != "1 true /root root /" {
		t.Errorf("environment: %q", got)
	}
}

// A Bind to nobody, by which the host rehearses, leaves the Boot to its first owner.
func TestBindToNobody(t *testing.T) {
	g := newGuest(t)
	blank := New(g.Accounts, g.Reaper)
	var bad *InvalidError
	if err := blank.Bind(Owner{User: "root"}, 0, make([]byte, 64)); !errors.As(err, &bad) {
		t.Errorf("a bind to nobody: %v", err)
	}
	if o, bound := blank.Owner(); bound || o.User != "" {
		t.Errorf("it belongs to %+v", o)
	}
	if _, err := blank.Run(t.Context(), bash("true"), &record{}); !errors.Is(err, ErrNotBound) {
		t.Errorf("after it: %v", err)
	}
	if err := blank.Bind(Owner{SandboxID: "i", BootNumber: 1, User: "root", Cwd: "/"}, 0, nil); err != nil {
		t.Errorf("its first owner: %v", err)
	}
}

func TestKillBiggestBlamesTheRun(t *testing.T) {
	g := newGuest(t)
	const code = `python3 -c "
import time
x = bytearray(200 * 1024 * 1024)
print('full', flush=True)
time.sleep(60)"`
	done := make(chan RunResult, 1)
	full := &signalled{at: "full", ch: make(chan struct{})}
	go func() {
		result, _ := g.Run(t.Context(), bash("exec "+code), full)
		done <- result
	}()
	<-full.ch
	// Other programs of this machine may be bigger; in a sandbox there are none.
	g.blame(full.pid)
	_ = unix.Kill(full.pid, unix.SIGKILL)
	if got := <-done; got.Status != StatusOOM {
		t.Errorf("status %v, want oom", got.Status)
	}
}

// signalled closes ch when text arrives.
type signalled struct {
	record
	at   string
	ch   chan struct{}
	once sync.Once
}

func (s *signalled) Output(stderr bool, data []byte) error {
	err := s.record.Output(stderr, data)
	if strings.Contains(s.out[0].String(), s.at) {
		s.once.Do(func() { close(s.ch) })
	}
	return err
}

// The first owner of a restored Boot takes it over, whatever was there before;
// the next one must be the same again.
func TestBindOfARestoredBoot(t *testing.T) {
	g := newGuest(t)
	ours, theirs := net.Pipe()
	defer theirs.Close()
	g.Watch(ours, http.StateIdle)
	restored := Owner{SandboxID: "j", BootNumber: 7, User: "nobody-here", Cwd: "/", Restored: true}
	if err := g.Bind(restored, 0, nil); err != nil {
		t.Fatalf("Bind: %v", err)
	}
	if owner, bound := g.Owner(); !bound || owner.SandboxID != "j" || owner.BootNumber != 7 {
		t.Errorf("the owner is %+v", owner)
	}
	if _, err := ours.Write([]byte{0}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a connection from before is still open: %v", err)
	}
	if err := g.Bind(Owner{SandboxID: "i", BootNumber: 1, User: "root", Cwd: "/"}, 0, nil); !errors.Is(err, ErrBound) {
		t.Errorf("the owner from before: %v", err)
	}
	if err := g.Bind(Owner{SandboxID: "j", BootNumber: 7, User: "root", Cwd: "/"}, 0, nil); err != nil {
		t.Errorf("a change: %v", err)
	}
}

// A relative folder is below the owner's, and that one below the default.
func TestWorkingDir(t *testing.T) {
	home, base := t.TempDir(), t.TempDir()
	for _, d := range []string{home + "/src", base + "/src"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ cwd, base, want string }{
		{"", base, base},
		{"src", base, base + "/src"},
		{"./src/..", base, base},
		{"/", base, "/"},
		{"~", base, home},
		{"~/src", base, home + "/src"},
		{"", "~/src", home + "/src"},
		{"..", "~/src", home},
		{"none", base, ""},
		{"", "none", ""},
		{"~none", base, ""},
	} {
		got, err := workingDir(tt.cwd, tt.base, User{Home: home})
		var refused *InvalidError
		if got != tt.want || (tt.want == "") != errors.As(err, &refused) {
			t.Errorf("%q from %q = %q, %v; want %q", tt.cwd, tt.base, got, err, tt.want)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("the guest runs as root")
	}
	for cwd, want := range map[string]string{"": "/workspace", "src": "/workspace/src", "/srv": "/srv", "~/src": "~/src", "~": "~"} {
		g := New(Accounts{Etc: fstest.MapFS{"passwd": {Data: []byte("root:x:0:0:root:/root:/bin/bash\n")}}}, theReaper())
		if err := g.Bind(Owner{SandboxID: "i", BootNumber: 1, User: "root", Cwd: cwd}, 0, nil); err != nil {
			t.Fatal(err)
		}
		if owner, _ := g.Owner(); owner.Cwd != want {
			t.Errorf("bound with %q it starts in %q, want %q", cwd, owner.Cwd, want)
		}
	}
}
