package e2e

import (
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// What was started before it had an owner is its owner's, and of two from the
// pool neither draws what the other does.
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
