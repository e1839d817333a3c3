package session_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
)

// A process loses leadership at any step of an operation and carries on. The Manager of
// the next leader finishes or undoes the operation.
func TestTakeoverAtEveryStep(t *testing.T) {
	for _, op := range changes {
		for _, pool := range []bool{false, true} {
			if pool && (op.name == "resume" || op.name == "reboot") {
				continue // no Boot of a Pool serves
			}
			t.Run(fmt.Sprintf("%s, pool %v", op.name, pool), func(t *testing.T) {
				t.Parallel()
				for step := 1; ; step++ {
					if step > 100 {
						t.Fatal("the operation does not end")
					}
					if !takeoverAt(t, step, pool, op.name, op.do) {
						break
					}
				}
			})
		}
	}
}

// takeoverAt changes the leader at one step. It reports whether the operation has that
// step.
func takeoverAt(t *testing.T, step int, pool bool, name string, do func(*session.Manager, sandbox.Sandbox) error) bool {
	over := false
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		w.nodes.pool = pool
		neighbour, sb := w.create("t", sandbox.CreateRequest{}), w.create("t", sandbox.CreateRequest{CheckpointEvery: time.Minute})
		if name == "boot ended" || name == "reconcile of a lost boot" {
			w.nodes.lose(local, sb.Boot.ID, sandbox.CauseOOM)
		}
		sb = w.ready(name, sb)
		if name == "loss of one with a checkpoint" {
			w.nodes.lose(local, sb.Boot.ID, sandbox.CauseEngineLost)
		}
		claim := sandbox.LeaderClaim{Role: "session-manager", Holder: "former"}
		term, err := w.store.Lead(t.Context(), claim, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		under := w.store.Under(term, nil)
		m := &mortal{Store: under, ports: w.nodes, left: step, takeover: func() {
			over = true
			if err := w.store.Resign(t.Context(), claim.Role, claim.Holder); err != nil {
				t.Error(err)
			}
			w.m = w.manager(w.store, w.nodes)
			if err := w.m.Reconcile(t.Context()); err != nil {
				t.Errorf("step %d: Reconcile at the takeover: %v", step, err)
			}
		}}
		former := w.manager(mortalStore{under, m}, mortalNodes{w.nodes, m})
		err = do(former, sb)
		synctest.Wait() // for the former leader's work after its answer
		if !over {
			return
		}
		if err := w.m.Reconcile(t.Context()); err != nil {
			t.Errorf("step %d: Reconcile: %v", step, err)
		}
		w.consistent()
		w.fillsQuota(step)
		w.remembers(name, step, sb, err == nil)
		if r := w.record(neighbour.ID); r.State != sandbox.Running || r.Version != neighbour.Version {
			t.Errorf("step %d: the neighbour became %+v", step, r)
		}
		if name == "create" { // its name must be free, or its Sandbox whole
			if _, err := w.m.End(t.Context(), "t", "new", sandbox.CauseReleased); err != nil && !errors.Is(err, sandbox.NotFound) {
				t.Errorf("step %d: End: %v", step, err)
			}
			w.create("t", sandbox.CreateRequest{Name: "new"})
		}
	})
	return over
}
