package e2e

import (
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// Interpreters that started ahead in the Pool have their owner's environment. Sandboxes
// from the Pool draw different random numbers.
func TestStartedAhead(t *testing.T) {
	t.Parallel()
	srv := rig.Own(t, rig.Options{Pool: 3})
	srv.PoolIdle(t)
	c := srv.Client(t, "ahead")
	hits := srv.Metric("cloud_sandbox_pool_hits_total")
	first := create(t, c, rig.Body{"env": rig.Body{"WHOSE": "first"}})
	second := create(t, c, rig.Body{"env": rig.Body{"WHOSE": "second"}})
	third := create(t, c, rig.Body{"env": rig.Body{"PYTHONPATH": "/nowhere"}})
	if got := srv.Metric("cloud_sandbox_pool_hits_total"); got != hits+3 {
		t.Fatalf("%v of three came from the pool", got-hits)
	}
	who := "import os, subprocess\nprint(os.environ['WHOSE'], os.environ['E2B_SANDBOX_ID'], os.getcwd(), subprocess.getoutput('echo $WHOSE; id -un'))"
	if got, want := output(t, c, first.ID, "python", who), "first "+first.ID+" /workspace first\nuser\n"; got != want {
		t.Errorf("the first says %q, want %q", got, want)
	}
	if got, want := output(t, c, second.ID, "python", who), "second "+second.ID+" /workspace second\nuser\n"; got != want {
		t.Errorf("the second says %q, want %q", got, want)
	}
	if got := output(t, c, third.ID, "python", "import sys\nprint('/nowhere' in sys.path)"); got != "True\n" {
		t.Errorf("a variable that is read at the start is unknown: %q", got)
	}
	seen := map[string]bool{}
	for _, s := range []session{first, second, third} {
		drawn := output(t, c, s.ID, "python", "import random, uuid, ssl, hashlib, tempfile\n"+
			"print(random.random(), uuid.uuid4(), ssl.RAND_bytes(8).hex(), hash('a'), tempfile.mktemp())")
		drawn += output(t, c, s.ID, "javascript", "console.log(Math.random(), crypto.randomUUID(), require('crypto').randomBytes(8).toString('hex'))")
		for _, word := range strings.Fields(drawn) {
			if seen[word] {
				t.Errorf("two of them draw %s", word)
			}
			seen[word] = true
		}
	}
}

// waiting is Python code that waits for a pre-started bash and prints its process ID.
const waiting = `
import glob, time
def bashes():
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            if b"waits for a command" in open(path, "rb").read(): yield int(path.split("/")[2])
        except OSError: pass
late = time.monotonic() + 20
while not (found := list(bashes())) and time.monotonic() < late: time.sleep(0.005)
print(found[0] if found else "none waits")
`

// takenOver prints something if bash was started before its command was known: the
// command line is then padded with NULs.
const takenOver = `tr -d -c '\0' </proc/$$/cmdline | tail -c +5 | tr '\0' x`

// The first command of a Sandbox from the Pool, or of a fork, runs in the pre-started
// bash. No two of them draw the same random numbers.
func TestShellsStartedAhead(t *testing.T) {
	t.Parallel()
	srv := rig.Own(t, rig.Options{Pool: 2})
	srv.PoolIdle(t)
	c := srv.Client(t, "shells")
	seen := map[string]bool{}
	draw := func(id, whose string) {
		t.Helper()
		r := c.Run(t, id, "bash", `echo $RANDOM-$RANDOM-$RANDOM; echo $SRANDOM; echo "$WHOSE $E2B_SANDBOX_ID $PWD $(id -un) $0 $-"; `+takenOver, nil)
		lines := strings.Split(r.Stdout, "\n")
		if len(lines) != 4 || lines[2] != whose+" "+id+" /workspace user bash hBc" || r.ExitCode != 0 {
			t.Fatalf("it says %v", r)
		}
		if lines[3] == "" {
			t.Error("it was started when it was asked for")
		}
		for _, drawn := range lines[:2] {
			if seen[drawn] {
				t.Errorf("two draw %s", drawn)
			}
			seen[drawn] = true
		}
	}
	first := create(t, c, rig.Body{"env": rig.Body{"WHOSE": "it's the first's"}})
	second := create(t, c, rig.Body{"env": rig.Body{"WHOSE": "the second's"}})
	draw(first.ID, "it's the first's")
	draw(second.ID, "the second's")

	if got := output(t, c, first.ID, "python", waiting); strings.Contains(got, "none") {
		t.Fatal("the one that was used is not replaced")
	}
	var reply struct {
		Forks []session `json:"forks"`
	}
	c.Must(t, "POST", "/api/v1/sessions/"+first.ID+"/fork", rig.Body{"count": 2, "env": rig.Body{"WHOSE": "a copy's"}}, &reply)
	draw(first.ID, "it's the first's")
	for _, f := range reply.Forks {
		t.Cleanup(func() { _ = c.Try("DELETE", "/api/v1/sessions/"+f.ID, nil, nil) })
		draw(f.ID, "a copy's")
	}
}

// A command runs correctly even if a program in the Sandbox has killed or stopped the
// pre-started bash or replaced its folder, and if it runs as another user or in another
// folder.
func TestShellsThatDoNotWait(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "shells")
	s := create(t, c, rig.Body{})
	// Without this, the signal could end the command, which bash has become meanwhile.
	const ended = "\nimport time\nwhile os.path.exists(f'/proc/{pid}'): time.sleep(0.01)"
	const say = `echo "$(id -un) $PWD ${LC_ALL-}"; ` + takenOver
	c.Run(t, s.ID, "bash", "true", nil)
	for _, tt := range []struct {
		name   string
		before string // Python code; pid is the bash's process ID
		more   rig.Body
		want   string
	}{
		{"killed", "import os, signal; os.kill(pid, signal.SIGKILL)" + ended, nil, "user /workspace \n"},
		{"asked to end", "import os, signal; os.kill(pid, signal.SIGTERM)" + ended, nil, "user /workspace \n"},
		{"of another user", "", rig.Body{"user": "root"}, "root /workspace \n"},
		{"with a locale", "", rig.Body{"env": rig.Body{"LC_ALL": "C"}}, "user /workspace C\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			output(t, c, s.ID, "python", waiting+"\npid = found[0]\n"+tt.before)
			r := c.Run(t, s.ID, "bash", say, tt.more)
			if got, _, _ := strings.Cut(r.Stdout, "xx"); got != tt.want || r.Status != "ok" {
				t.Errorf("it says %v, want %q", r, tt.want)
			}
		})
	}
	t.Run("stopped", func(t *testing.T) {
		output(t, c, s.ID, "python", waiting+"\nimport os, signal; os.kill(found[0], signal.SIGSTOP)")
		if r := c.Run(t, s.ID, "bash", say, nil); !strings.HasPrefix(r.Stdout, "user /workspace \nxx") {
			t.Errorf("it says %v", r)
		}
	})
	t.Run("in a folder that is another", func(t *testing.T) {
		output(t, c, s.ID, "python", waiting+"\nimport subprocess\n"+
			"subprocess.check_call('sudo mv /workspace /before && sudo mkdir -m 777 /workspace && touch /workspace/new', shell=True)")
		if r := c.Run(t, s.ID, "bash", "ls; "+say, nil); !strings.HasPrefix(r.Stdout, "new\nuser /workspace \nxx") {
			t.Errorf("it says %v", r)
		}
	})
	t.Run("elsewhere", func(t *testing.T) {
		output(t, c, s.ID, "python", waiting)
		if r := c.Run(t, s.ID, "bash", say, rig.Body{"cwd": "/usr/bin"}); !strings.HasPrefix(r.Stdout, "user /usr/bin \nxx") {
			t.Errorf("it says %v", r)
		}
	})
	t.Run("where it may not go", func(t *testing.T) {
		c.Run(t, s.ID, "bash", "sudo mkdir -m 700 /shut", nil)
		output(t, c, s.ID, "python", waiting)
		_, err := c.TryRun(s.ID, "bash", "true", rig.Body{"cwd": "/shut"})
		if err == nil || !strings.Contains(err.Error(), `user may not run \"bash\" in \"/shut\"`) {
			t.Errorf("it gives %v", err)
		}
	})
}
