package e2e

import (
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// A fork's interpreters see the fork's own ID and environment and keep the variables
// that code set before the fork. Their random numbers differ, including those in names
// of temporary files.
func TestForksKnowWhoTheyAre(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "copies")
	s := create(t, c, rig.Body{"env": rig.Body{"ROLE": "parent", "KEPT": "1"}})
	var shell struct {
		ID string `json:"context_id"`
	}
	c.Must(t, "POST", "/api/v1/contexts", rig.Body{"sandbox_id": s.ID, "language": "bash"}, &shell)
	say := map[string]func(id string) string{
		"python": func(id string) string {
			return output(t, c, id, "python", "print(os.environ['E2B_SANDBOX_ID'], os.environ['ROLE'], os.environ['KEPT'])")
		},
		"a program of python's": func(id string) string {
			return output(t, c, id, "python", "print(subprocess.run('echo $E2B_SANDBOX_ID $ROLE $KEPT', shell=True, capture_output=True, text=True).stdout, end='')")
		},
		"javascript": func(id string) string {
			return output(t, c, id, "javascript", "console.log(process.env.E2B_SANDBOX_ID, process.env.ROLE, process.env.KEPT)")
		},
		"bash": func(id string) string {
			r := c.Run(t, id, "bash", `echo $E2B_SANDBOX_ID $ROLE $KEPT; env | grep -c "^E2B_SANDBOX_ID=$E2B_SANDBOX_ID"`, rig.Body{"context_id": shell.ID})
			return strings.TrimSuffix(r.Stdout, "1\n")
		},
		"a new program": func(id string) string { return c.Sh(t, id, "echo $E2B_SANDBOX_ID $ROLE ${KEPT/1/2}") },
	}
	output(t, c, s.ID, "python", "import os, subprocess, tempfile, random\nos.environ['KEPT'] = '2'\ntempfile.mktemp()")
	output(t, c, s.ID, "javascript", "process.env.KEPT = '2'")
	c.Run(t, s.ID, "bash", "export KEPT=2", rig.Body{"context_id": shell.ID})

	var reply struct {
		Forks []session `json:"forks"`
	}
	c.Must(t, "POST", "/api/v1/sessions/"+s.ID+"/fork", rig.Body{"count": 2, "env": rig.Body{"ROLE": "child"}}, &reply)
	names := map[string]bool{}
	for i, id := range []string{s.ID, reply.Forks[0].ID, reply.Forks[1].ID} {
		role := "child"
		if i == 0 {
			role = "parent"
		} else {
			t.Cleanup(func() { _ = c.Try("DELETE", "/api/v1/sessions/"+id, nil, nil) })
		}
		for who, ask := range say {
			for range 2 { // the variables persist
				if got, want := ask(id), id+" "+role+" 2\n"; got != want {
					t.Errorf("%s of %s says %q, want %q", who, role, got, want)
				}
			}
		}
		names[output(t, c, id, "python", "print(tempfile.mktemp())")] = true
	}
	if len(names) != 3 {
		t.Errorf("names of temporary files: %v", names)
	}
	// A resume does not reset variables.
	output(t, c, s.ID, "python", "os.environ['ROLE'] = 'mine'")
	act(t, c, s.ID, "pause", rig.Body{})
	if got := output(t, c, s.ID, "python", "print(os.environ['ROLE'])"); got != "mine\n" {
		t.Errorf("after a resume a variable is %q", got)
	}
}

// A program that reseeds as the user guide says draws different numbers in each fork,
// including from OpenSSL.
func TestProgramsThatSeedAnew(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "seeders")
	s := create(t, c, rig.Body{})
	const program = `
import os, random, signal, ssl, sys, time

def restored(*_):
    seed = os.urandom(32)
    random.seed(seed)
    ssl.RAND_add(seed, 32.0)

signal.signal(signal.SIGURG, restored)
with open("/workspace/numbers", "w", buffering=1) as out:
    while True:
        out.write(ssl.RAND_bytes(8).hex() + " " + str(random.getrandbits(64)) + "\n")
        time.sleep(0.01)
`
	c.Must(t, "POST", "/api/v1/processes", rig.Body{"sandbox_id": s.ID, "background": true, "argv": []string{"python3", "-c", program}}, nil)
	numbers := func(id string) []string {
		return strings.Fields(c.Sh(t, id, "cat /workspace/numbers 2>/dev/null || true"))
	}
	rig.Within(t, rig.Patience, "numbers", func() bool { return len(numbers(s.ID)) > 20 })
	one, two := forked(t, c, s.ID), forked(t, c, s.ID)
	drawn := map[string]string{}
	first := len(numbers(s.ID))
	for _, id := range []string{s.ID, one, two} {
		var all []string
		rig.Within(t, rig.Patience, "further numbers", func() bool { all = numbers(id); return len(all) > first+200 })
		// Skip 100 numbers: the original may have drawn them before the last fork
		// started.
		for _, n := range all[first+100:] {
			if other, there := drawn[n]; there {
				t.Fatalf("%s and %s both drew %s", other, id, n)
			}
			drawn[n] = id
		}
	}
}
