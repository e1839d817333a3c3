package contexts

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// prepared are the contexts of a Guest that is bound to owner after an
// interpreter was started ahead, which it returns.
func prepared(t *testing.T, owner server.Owner) (*Contexts, *worker) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("the guest runs as root")
	}
	if _, err := exec.LookPath("/usr/bin/python3"); err != nil {
		t.Skip("there is no python3 of the system on this machine")
	}
	accounts := server.Accounts{Etc: fstest.MapFS{"passwd": {Data: []byte("user:x:0:0:user:/root:/bin/bash\nother:x:1:1:other:/:/bin/bash\n")}}}
	g := server.New(accounts, theReaper())
	s := New(g)
	s.Prepare()
	w := s.ahead
	if w == nil {
		t.Fatal("nothing was started ahead")
	}
	owner.SandboxID, owner.BootNumber = "i", 1
	if owner.Cwd == "" {
		owner.Cwd = "/usr"
	}
	if err := g.Bind(owner, 0, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, i := range s.List() {
			_ = s.Delete(i.ID)
		}
		<-w.ended
	})
	return s, w
}

// The first context has the interpreter that was started ahead, as if it had
// been started for it.
func TestAhead(t *testing.T) {
	s, w := prepared(t, server.Owner{Env: map[string]string{"NAME": "value", "EMPTY": ""}})
	_, r := execute(t, s, "python", python(`import os, subprocess
print(os.getpid(), os.getcwd(), os.environ["NAME"], os.environ["E2B_SANDBOX_ID"], repr(os.environ["EMPTY"]))
print(subprocess.check_output("echo $NAME; pwd", shell=True, text=True), "_" in globals(), __name__)`))
	pid := r.out[0][:strings.Index(r.out[0], " ")]
	if want := pid + " /usr value i ''\nvalue\n/usr\n False __main__\n"; r.out[0] != want || r.out[1] != "" {
		t.Errorf("it printed %q, want %q", r.out, want)
	}
	if got := s.byID("python").worker; got != w {
		t.Error("it was not the one that was started ahead")
	}
	if r.started.Count != 1 || r.started.Restarted {
		t.Errorf("it began as %+v", r.started)
	}
	if _, r := execute(t, s, "python", python("1/0")); len(r.errs) != 1 || !strings.Contains(r.errs[0][2], "<cell 2>") {
		t.Errorf("an error is %q", r.errs)
	}
	if _, err := s.Restart("python"); err != nil {
		t.Fatal(err)
	}
	if _, r := execute(t, s, "python", python("import os; print(os.environ['NAME'], os.getcwd())")); r.out[0] != "value /usr\n" {
		t.Errorf("a fresh one printed %q", r.out)
	}
}

// One that does not fit is ended, and another is started.
func TestAheadThatDoesNotFit(t *testing.T) {
	for _, tt := range []struct {
		name  string
		owner server.Owner
		code  string
		want  string
	}{
		{"a variable that Python reads when it starts", server.Owner{Env: map[string]string{"PYTHONPATH": "/nowhere"}}, "import sys; print('/nowhere' in sys.path)", "True\n"},
		{"a time zone", server.Owner{Env: map[string]string{"TZ": "Asia/Tokyo"}}, "import time; print(time.timezone)", "-32400\n"},
		{"another user", server.Owner{User: "other"}, "import os; print(os.getuid())", "1\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, w := prepared(t, tt.owner)
			if _, r := execute(t, s, "python", python(tt.code)); r.out[0] != tt.want {
				t.Errorf("it printed %q, want %q", r.out, tt.want)
			}
			<-w.ended
		})
	}
}

// One that has ended meanwhile is not missed.
func TestAheadThatEnded(t *testing.T) {
	s, w := prepared(t, server.Owner{})
	w.kill(0)
	<-w.ended
	if _, r := execute(t, s, "python", python("6 * 7")); len(r.results) != 1 || r.results[0]["text/plain"] != "42" {
		t.Errorf("it gave %v, %q", r.results, r.out)
	}
}

func TestChangesTo(t *testing.T) {
	command := func(env ...string) server.Command {
		return server.Command{Path: "/bin/x", Args: []string{"x"}, Env: env, Cwd: "/", User: server.User{Name: "user", UID: 1, GID: 1}}
	}
	other := func(change func(*server.Command)) server.Command {
		c := command()
		change(&c)
		return c
	}
	for _, tt := range []struct {
		name          string
		before, after server.Command
		want          string
		ok            bool
	}{
		{"nothing", command("A=1"), command("A=1"), "", true},
		{"another folder", command(), other(func(c *server.Command) { c.Cwd = "/tmp" }), "", true},
		{"more", command("A=1"), command("A=1", "B=2=3"), "B,2=3", true},
		{"another value", command("A=1"), command("A="), "A,", true},
		{"less", command("A=1", "B=2"), command("A=1"), "", false},
		{"what is read at the start", command("A=1"), command("A=1", "LD_PRELOAD=x"), "", false},
		{"the same of it", command("LD_PRELOAD=x"), command("LD_PRELOAD=x"), "", true},
		{"another program", command(), other(func(c *server.Command) { c.Path = "/x" }), "", false},
		{"other arguments", command(), other(func(c *server.Command) { c.Args = []string{"x", "y"} }), "", false},
		{"another user", command(), other(func(c *server.Command) { c.User.UID = 2 }), "", false},
		{"other groups", command(), other(func(c *server.Command) { c.User.Groups = []uint32{3} }), "", false},
	} {
		changes, ok := changesTo(tt.before, tt.after)
		if got := strings.Join(changes, ","); ok != tt.ok || ok && got != tt.want {
			t.Errorf("%s: %q, %v, want %q, %v", tt.name, got, ok, tt.want, tt.ok)
		}
	}
}
