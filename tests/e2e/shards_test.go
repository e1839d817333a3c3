package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// A link shard that is killed at any moment of a create, resume, fork, pause or rollback
// costs only connections. The operation succeeds, or is refused soon and succeeds on a
// retry.
func TestLinkShardKilledMeanwhile(t *testing.T) {
	t.Parallel()
	srv := rig.Own(t, rig.Options{Env: []string{"POOL_MIN_SIZE=0", "POOL_MAX_SIZE=0"}})
	c := srv.Client(t, "shards")
	one := create(t, c, rig.Body{}).ID
	output(t, c, one, "python", "x = 42")
	var snap saved
	c.Must(t, "POST", "/api/v1/sessions/"+one+"/snapshots", rig.Body{}, &snap)
	path := "/api/v1/sessions/" + one
	steps := map[string]func() error{
		"create": func() error {
			var s rig.Sandbox
			err := c.Try("POST", "/api/v1/sessions", rig.Body{}, &s)
			if err == nil {
				err = c.Try("DELETE", "/api/v1/sessions/"+s.ID, nil, nil)
			}
			return err
		},
		"pause":    func() error { return c.Try("POST", path+"/pause", rig.Body{}, nil) },
		"resume":   func() error { return c.Try("POST", path+"/resume", rig.Body{}, nil) },
		"rollback": func() error { return c.Try("POST", path+"/rollback", rig.Body{"snapshot_id": snap.ID}, nil) },
		"fork": func() error {
			var reply struct {
				Forks []struct {
					ID    string `json:"session_id"`
					Error *struct{ Code, Message string }
				} `json:"forks"`
			}
			err := c.Try("POST", path+"/fork", rig.Body{}, &reply)
			for _, f := range reply.Forks {
				if f.Error != nil {
					err = fmt.Errorf("a fork answered %d: %s", map[string]int{"unavailable": 503}[f.Error.Code], f.Error.Message)
				}
				_ = c.Try("DELETE", "/api/v1/sessions/"+f.ID, nil, nil)
			}
			return err
		},
	}
	holds := func(id string) {
		t.Helper()
		rig.Within(t, rig.Patience, "an answer of what was killed under", func() bool {
			r, err := c.TryRun(id, "python", "print(x)", nil)
			if err == nil && r.Stdout != "42\n" {
				t.Fatalf("it holds %s", r)
			}
			return err == nil // the kill may have cut the execution
		})
	}
	for range 4 {
		for _, name := range []string{"create", "fork", "pause", "resume", "rollback"} {
			asked := make(chan error, 1)
			go func() { asked <- steps[name]() }()
			time.Sleep(rand.N(250 * time.Millisecond)) // at a random moment
			for _, p := range srv.Processes(rig.LinkShard) {
				_ = syscall.Kill(p.Pid, syscall.SIGKILL)
			}
			err := <-asked
			if err != nil && (!strings.Contains(err.Error(), "answered 503") || strings.Contains(err.Error(), "within")) {
				t.Errorf("%s: %v", name, err)
			}
			if err != nil {
				rig.Within(t, rig.Patience, "another "+name, func() bool { return steps[name]() == nil })
			}
		}
		holds(one)
	}
}
