package hostile

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// A tenant that saves many sandboxes continuously delays another tenant's pause by a few
// saves only, and not by all the saves in its queue.
func TestSavesOfManySandboxes(t *testing.T) {
	const (
		attackers = 9 // each has at most one save in the queue
		rounds    = 5
		// turns bounds the saves that end during a pause: those that run when it
		// arrives, and a few while it runs itself. A FIFO queue would let seven or more
		// end on two cores.
		turns = 4
	)
	s := rig.Own(t, rig.Options{Pool: 1})
	attacker, other := s.Client(t, "saver"), s.Client(t, "neighbour")
	near := other.Create(t, rig.Body{}).ID
	other.Sh(t, near, "true")
	var ids []string
	for range attackers {
		id := attacker.Create(t, rig.Body{}).ID
		attacker.Run(t, id, "python", "import os\nkept = os.urandom(64 << 20)", nil)
		ids = append(ids, id)
	}

	var saved atomic.Int64
	quit := make(chan struct{})
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() {
			for {
				select {
				case <-quit:
					return
				default:
				}
				var snap struct {
					ID string `json:"snapshot_id"`
				}
				if err := attacker.Try("POST", "/api/v1/sessions/"+id+"/snapshots", rig.Body{}, &snap); err != nil {
					t.Errorf("a snapshot: %v", err)
					return
				}
				saved.Add(1)
				if err := attacker.Try("DELETE", "/api/v1/snapshots/"+snap.ID, nil, nil); err != nil {
					t.Errorf("deleting a snapshot: %v", err)
					return
				}
			}
		})
	}
	stop := sync.OnceFunc(func() { close(quit); wg.Wait() })
	defer stop()
	rig.Within(t, rig.Patience, "snapshots of every sandbox", func() bool { return saved.Load() >= attackers })

	var during []int64
	var took []time.Duration
	for range rounds {
		before, began := saved.Load(), time.Now()
		other.Must(t, "POST", "/api/v1/sessions/"+near+"/pause", rig.Body{}, nil)
		during, took = append(during, saved.Load()-before), append(took, time.Since(began))
		other.Must(t, "POST", "/api/v1/sessions/"+near+"/resume", rig.Body{}, nil)
		other.Sh(t, near, "true")
		now := saved.Load() // the queue fills again
		rig.Within(t, rig.Patience, "more snapshots", func() bool { return saved.Load() >= now+2 })
	}
	stop()
	t.Logf("pauses took %v, while so many of the attacker's saves ended: %v", took, during)
	slices.Sort(during)
	if n := during[len(during)/2]; n > turns {
		t.Errorf("a pause of another tenant waited for %d saves", n)
	}
}
