package server

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// shellGuests are two Guests that differ in whether a bash is started ahead.
func shellGuests(t *testing.T) (ahead, fresh *Guest) {
	t.Helper()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("there is no bash on this machine")
	}
	ahead, fresh = newGuest(t), newGuest(t)
	fresh.shells.unfit = true
	t.Cleanup(func() {
		ahead.shells.mu.Lock()
		ahead.shells.unfit = true // no more is started
		if ahead.shells.next != nil {
			ahead.shells.next.Stop()
		}
		ahead.shells.mu.Unlock()
		if w := ahead.shells.take(); w != nil {
			w.end()
		}
	})
	return ahead, fresh
}

// waits starts a bash ahead, and returns it.
func waits(t *testing.T, g *Guest) *waitingShell {
	t.Helper()
	for range 100 { // one may be on its way
		g.PrepareShell()
		g.shells.mu.Lock()
		w, unfit := g.shells.waiting, g.shells.unfit
		g.shells.mu.Unlock()
		switch {
		case w != nil:
			return w
		case unfit:
			t.Fatal("a bash that was started ahead does not run what it is given")
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("no bash was started ahead")
	return nil
}

// command is bash running code as the server has it run.
func command(code string) RunRequest {
	return RunRequest{Args: []string{"bash", "-c", "--", code}, Timeout: 20 * time.Second}
}

// runShell runs a request and returns what it printed and how it ended.
func runShell(t *testing.T, g *Guest, req RunRequest) (RunResult, [2]string, int) {
	t.Helper()
	var rec record
	res, err := g.Run(t.Context(), req, &rec)
	if err != nil {
		t.Fatal(err)
	}
	res.Duration = 0
	return res, [2]string{rec.out[0].String(), rec.out[1].String()}, rec.pid
}

// What differs from one bash to the next; and, in a list of all variables that
// nobody has asked for yet, what a startup file has set.
var differs = regexp.MustCompile(`(?m)^(declare -[^ ]+ )?(CLOUD_SANDBOX_RUN|BASH_ARGC|PIPESTATUS|PPID|RANDOM|SECONDS)(=.*)?\n`)

// A bash that was started ahead cannot be told from one that was started for its
// command.
func TestShellAheadIsAsFresh(t *testing.T) {
	ahead, fresh := shellGuests(t)
	folder := t.TempDir()
	real, err := os.MkdirTemp(folder, "real")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(real, folder+"/link"); err != nil {
		t.Fatal(err)
	}
	env := func(r RunRequest, env map[string]string) RunRequest { r.Env = env; return r }
	in := func(r RunRequest, cwd string) RunRequest { r.Cwd = cwd; return r }
	fed := func(r RunRequest, text string) RunRequest { r.Stdin = []byte(text); return r }
	for name, req := range map[string]RunRequest{
		"nothing":                      command("true"),
		"parameters":                   command(`printf '<%s>' "$0" "$#" "$@" "$-" "$_" "$SHLVL" "$?" "$!" "$BASH_SUBSHELL" "$((SECONDS < 60))" "$LINENO"`),
		"its own code":                 command("# it's \"$code\"\n" + `echo "$BASH_EXECUTION_STRING"; tr '\0' '\n' </proc/$$/cmdline | grep .`),
		"variables":                    command("declare -p"),
		"variables and functions":      command("set"),
		"options":                      command("set -o; shopt; trap; alias; hash; jobs; dirs; declare -F; bind -p | head -1"),
		"limits":                       command("ulimit -a; umask"),
		"environment":                  command("env | grep -v CLOUD_SANDBOX_RUN | sort"),
		"variables of the request":     env(command(`printf '<%s>' "$A" "$B" "$C"; env | grep -c '^[ABC]='; declare -p A B C`), map[string]string{"A": "it's\n$(date) `x` \\ \"", "B": "", "C": "ü=1"}),
		"another PATH":                 env(command("echo $PATH; type cat"), map[string]string{"PATH": "/usr/bin:/nowhere"}),
		"another folder":               in(command(`pwd; echo "$PWD:$OLDPWD"; declare -p PWD OLDPWD; cd -; /bin/pwd`), "/usr"),
		"a folder behind a link":       in(command(`pwd; echo "$PWD:${OLDPWD-none}"; /bin/pwd`), folder+"/link"),
		"descriptors":                  command(`for i in {0..300}; do [ -e /proc/self/fd/$i ] && echo $i; done; [ /dev/null -ef /proc/self/fd/0 ] && [ -p /proc/self/fd/1 ] && [ -p /proc/self/fd/2 ] && echo good`),
		"signals":                      command("while read -r l; do [[ $l == Sig[BIC]* || $l == *Pnd* ]] && echo $l; done </proc/self/status; grep -E '^Sig[BIC]' /proc/self/status"),
		"its place":                    command(`read -r _ _ _ parent group session terminal _ </proc/$$/stat; echo $((group == $$)) $((session == $$)) $((parent == PPID)) $terminal`),
		"a program in its place":       command(`sh -c 'exit 3'; echo $?`),
		"one program in its place":     command(`sh -c 'kill -9 $$'`),
		"an end by a signal":           command("kill -TERM $$; echo no"),
		"an exit code":                 command("exit 7"),
		"a trap":                       command("trap 'echo end $?' EXIT; false"),
		"an unknown program":           command("true\n\nnothing-of-that-name 1"),
		"a syntax error":               command("echo before\nif then\n"),
		"a syntax error in a function": command("f() {\n  echo )\n}\n"),
		"an unbound variable":          command("set -u\necho $nothing_of_that_name"),
		"an error in a function":       command("f() {\n cd /nothing/there\n}\nf\ncaller\necho ${FUNCNAME[*]} ${BASH_SOURCE[*]} ${BASH_LINENO[*]}"),
		"a return":                     command("return 3"),
		"a trace":                      command("set -x; a=1; echo $a"),
		"history":                      command("history; echo $HISTCMD; echo hi !!"),
		"job control":                  command("sleep 5 & kill %1; wait %1; echo $?; set -m; sleep 1 & fg"),
		"no input":                     command("cat; readlink /proc/$$/fd/0; read x; echo $?"),
		"input":                        fed(command("[ -p /dev/stdin ] && cat; read x; echo $?"), "one\ntwo"),
		"input that is not read":       fed(command("true"), "one\ntwo"),
		"long code":                    command("# " + strings.Repeat("x", shellRoom-20) + "\necho end"),
		"code with an option's look":   command("-x"),
		"only a comment":               command("# nothing"),
	} {
		t.Run(name, func(t *testing.T) {
			w := waits(t, ahead)
			got, out, pid := runShell(t, ahead, req)
			if pid != w.piped.PID() {
				t.Error("it was not the one that was started ahead")
			}
			want, wantOut, _ := runShell(t, fresh, req)
			if got != want {
				t.Errorf("it ended as %+v, want %+v", got, want)
			}
			for i := range out {
				out[i], wantOut[i] = differs.ReplaceAllString(out[i], ""), differs.ReplaceAllString(wantOut[i], "")
				if out[i] != wantOut[i] {
					t.Errorf("it printed on %d\n%s\nwant\n%s", i+1, out[i], wantOut[i])
				}
			}
		})
	}
}

// Where one that was started ahead would differ, a fresh one runs, and the other
// one ends.
func TestShellAheadThatDoesNotFit(t *testing.T) {
	ahead, fresh := shellGuests(t)
	env := func(name, value string) func() RunRequest {
		return func() RunRequest {
			r := command(`declare -p ` + name + `; echo $0`)
			r.Env = map[string]string{name: value}
			return r
		}
	}
	changed := func(t *testing.T, w *waitingShell) { // another file is there meanwhile
		t.Helper()
		w.program.ino++
	}
	for name, tt := range map[string]struct {
		before func(t *testing.T, w *waitingShell)
		req    func() RunRequest
	}{
		"BASH_ENV":            {nil, env("BASH_ENV", "/dev/null")},
		"SHLVL":               {nil, env("SHLVL", "5")},
		"a locale":            {nil, env("LC_ALL", "C")},
		"a name that is none": {nil, func() RunRequest { r := command("env | grep ^a.b="); r.Env = map[string]string{"a.b": "1"}; return r }},
		"too long":            {nil, func() RunRequest { return command("# " + strings.Repeat("x", shellRoom) + "\necho end") }},
		"another user":        {func(t *testing.T, w *waitingShell) { t.Helper(); w.command.User.UID = 1 }, func() RunRequest { return command("id -u") }},
		"another program":     {changed, func() RunRequest { return command("echo $0") }},
		"killed": {func(t *testing.T, w *waitingShell) {
			t.Helper()
			if err := unix.Kill(w.piped.PID(), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			for unix.Kill(w.piped.PID(), 0) == nil { // until it is reaped
				time.Sleep(time.Millisecond)
			}
		}, func() RunRequest { return command("echo $0") }},
	} {
		t.Run(name, func(t *testing.T) {
			w := waits(t, ahead)
			if tt.before != nil {
				tt.before(t, w)
			}
			got, out, pid := runShell(t, ahead, tt.req())
			want, wantOut, _ := runShell(t, fresh, tt.req())
			if got != want || out != wantOut {
				t.Errorf("it gave %+v, %q, want %+v, %q", got, out, want, wantOut)
			}
			if pid == w.piped.PID() {
				t.Error("it was the one that was started ahead")
			}
			if err := unix.Kill(w.piped.PID(), 0); !errors.Is(err, unix.ESRCH) {
				t.Errorf("the one that was started ahead is still there: %v", err)
			}
		})
	}
}

// One that somebody stopped goes on.
func TestShellAheadThatWasStopped(t *testing.T) {
	ahead, _ := shellGuests(t)
	w := waits(t, ahead)
	if err := unix.Kill(w.piped.PID(), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if res, out, pid := runShell(t, ahead, command("echo $((6 * 7))")); out[0] != "42\n" || res.Status != StatusOK || pid != w.piped.PID() {
		t.Errorf("it gave %+v, %q", res, out)
	}
}

// Each that was used is replaced once nothing begins or ends any more, and no two
// draw the same numbers.
func TestShellAheadIsReplaced(t *testing.T) {
	ahead, _ := shellGuests(t)
	waits(t, ahead)
	seen := map[string]bool{}
	for range 5 {
		ahead.shells.mu.Lock()
		w := ahead.shells.waiting
		ahead.shells.mu.Unlock()
		_, out, pid := runShell(t, ahead, command("echo $RANDOM-$RANDOM-$RANDOM"))
		if w == nil || pid != w.piped.PID() {
			t.Fatal("it was not the one that was started ahead")
		}
		if seen[out[0]] {
			t.Errorf("two drew %s", out[0])
		}
		seen[out[0]] = true
		for late := time.Now().Add(soon); ; time.Sleep(time.Millisecond) {
			ahead.shells.mu.Lock()
			next := ahead.shells.waiting
			ahead.shells.mu.Unlock()
			if next != nil {
				break
			}
			if time.Now().After(late) {
				t.Fatal("no other one was started")
			}
		}
	}
	if len(seen) != 5 {
		t.Errorf("they drew %v", slices.Collect(maps.Keys(seen)))
	}
}

// One that nobody wants any more ends; one that was used meanwhile goes on.
func TestShellAheadIsDropped(t *testing.T) {
	ahead, _ := shellGuests(t)
	w := waits(t, ahead)
	ahead.shells.drop(w)
	if err := unix.Kill(w.piped.PID(), 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("it is still there: %v", err)
	}
	used := waits(t, ahead)
	started := func() error { ahead.shells.drop(used); return nil }
	var rec record
	res, err := ahead.Run(t.Context(), command("echo on"), begun{&rec, started})
	if err != nil || res.Status != StatusOK || rec.out[0].String() != "on\n" || rec.pid != used.piped.PID() {
		t.Errorf("it gave %+v, %q, %v", res, rec.out[0].String(), err)
	}
}

// begun is a record that calls a function when the program has started.
type begun struct {
	*record
	call func() error
}

func (b begun) Started(pid int) error {
	_ = b.record.Started(pid)
	return b.call()
}

func TestStartupOf(t *testing.T) {
	before := []string{"A=1", "GONE=1", "SAME=x"}
	for _, tt := range []struct {
		name        string
		env         []string
		move, input bool
		want        string // beside what is always there
		ok          bool
	}{
		{"nothing", []string{"A=1", "GONE=1", "SAME=x"}, false, false, "exec 3<&- 4<&-\nunset -v BASH_ENV\n", true},
		{"input", []string{"A=1", "GONE=1", "SAME=x"}, false, true, "exec 0<&4 3<&- 4<&-\nunset -v BASH_ENV\n", true},
		{"variables", []string{"A=it's", "SAME=x"}, false, false, "exec 3<&- 4<&-\nunset -v BASH_ENV GONE\nexport -- A='it'\\''s'\n", true},
		{"a folder", []string{"A=1", "GONE=1", "SAME=x"}, true, false, "exec 3<&- 4<&-\ncd -P -- '/a b' || exit 125\nunset -v OLDPWD\ndeclare -x OLDPWD\nunset -v BASH_ENV\n", true},
		{"bash's own", []string{"A=1", "GONE=1", "SAME=x", "PS4=+"}, false, false, "", false},
		{"a name that is none", []string{"A=1", "GONE=1", "SAME=x", "x;y=1"}, false, false, "", false},
	} {
		got, ok := startupOf(before, Command{Env: tt.env, Cwd: "/a b"}, "echo 'x'", tt.move, tt.input)
		rest := regexp.MustCompile(`RANDOM=\d+ `).ReplaceAllString(got, "")
		want := tt.want + "BASH_EXECUTION_STRING='echo '\\''x'\\'''\nSECONDS=0\n: bash\n"
		if ok != tt.ok || ok && rest != want {
			t.Errorf("%s: %q, %v, want %q, %v", tt.name, rest, ok, want, tt.ok)
		}
	}
	for _, name := range []string{"PSQL", "OPTIONS", "HOME", "PATH", "NODE_ENV", "PWD2", "UIDS"} {
		if shellOwn(name) {
			t.Errorf("%s would be bash's own", name)
		}
	}
}

// No bash waits where the environment has a say in how one starts: it would not be what
// a fresh one is.
func TestShellStartup(t *testing.T) {
	for text, want := range map[string]bool{
		"BASH_ENV=~/.bashrc": true, "BASH_FUNC_cd%%=() { :; }": true, "SHELLOPTS=xtrace": true, "POSIXLY_CORRECT=": true,
		"BASH_ENVY=1": false, "HOME=/root": false, "A=BASH_ENV=1": false,
	} {
		if got := shellStartup.MatchString(text); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}
