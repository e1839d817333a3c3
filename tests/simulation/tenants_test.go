package simulation

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// One Tenant's burst fills the queues of all Nodes. Another Tenant's create waits for the
// end of a start and for one turn of the burst. The burst itself goes where its own starts
// wait least, so a slow Node does not delay its end.
func TestABurstDelaysNoOtherTenant(t *testing.T) {
	const nodes, slots, starts, burst = 5, 2, 200 * time.Millisecond, 500
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, nodes, machine{memory: 1 << 40, slots: slots, starts: starts}, session.Config{})
		defer c.close()
		c.hosts["node-0"].starts.Store(int64(4 * starts))
		for range 100 { // the Nodes learn how long their starts take
			if _, err := c.manager.Create(t.Context(), "many", sandbox.CreateRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(3 * time.Second)
		began := time.Now()
		var all sync.WaitGroup
		var mu sync.Mutex
		var last time.Duration
		for range burst {
			all.Go(func() {
				if _, err := c.manager.Create(t.Context(), "many", sandbox.CreateRequest{}); err != nil {
					t.Errorf("a create of the burst: %v", err)
				}
				mu.Lock()
				defer mu.Unlock()
				last = max(last, time.Since(began))
			})
		}
		var took []time.Duration
		for range 20 {
			time.Sleep(300 * time.Millisecond)
			asked := time.Now()
			if _, err := c.manager.Create(t.Context(), "one", sandbox.CreateRequest{}); err != nil {
				t.Errorf("a create beside the burst: %v", err)
			}
			took = append(took, time.Since(asked))
		}
		all.Wait()
		t.Logf("beside the burst: %v at most; the burst took %v", slices.Max(took), last)
		if most := slices.Max(took); most > 3*starts {
			t.Errorf("a create beside the burst took %s, want at most %s", most, 3*starts)
		}
		// The slow Node is worth a quarter of another one.
		if best := 4 * burst * starts / (slots * (4*nodes - 3)); last > best*5/4 {
			t.Errorf("the burst took %s, want at most a quarter more than %s", last, best)
		}
	})
}

// In a full cluster, Tenants get the room that becomes free by turns, however often each of
// them asks.
func TestTenantsShareFreedRoom(t *testing.T) {
	const gib = 1 << 30
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, machine{memory: 16 * gib, slots: 2, starts: 200 * time.Millisecond}, session.Config{})
		defer c.close()
		req := sandbox.CreateRequest{Shape: sandbox.DefaultShape()}
		req.Shape.MemoryBytes = gib
		var running []string
		for {
			sb, err := c.manager.Create(t.Context(), "many", req)
			if errors.Is(err, sandbox.Exhausted) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			running = append(running, sb.ID)
		}
		if len(running) < 40 {
			t.Fatalf("the cluster was full after %d sandboxes", len(running))
		}
		var clients sync.WaitGroup
		var mu sync.Mutex
		got := map[sandbox.TenantID][]time.Duration{}
		until := time.Now().Add(time.Minute)
		client := func(tenant sandbox.TenantID) {
			for asked := time.Now(); time.Now().Before(until); {
				_, err := c.manager.Create(t.Context(), tenant, req)
				if err == nil {
					mu.Lock()
					got[tenant] = append(got[tenant], time.Since(asked))
					mu.Unlock()
					return
				}
				var refused *sandbox.Error
				if !errors.As(err, &refused) || refused.Code != sandbox.Exhausted || refused.RetryAfter <= 0 {
					t.Errorf("a create in a full cluster: %v", err)
					return
				}
				time.Sleep(refused.RetryAfter)
			}
		}
		for range 200 {
			clients.Go(func() { client("many") })
			time.Sleep(25 * time.Millisecond)
		}
		for i := range 3 {
			clients.Go(func() { client(sandbox.TenantID(fmt.Sprint("one-", i))) })
		}
		// Creates look for room at multiples of 25 ms. If one looked in the same instant in
		// which room becomes free, which Tenant sees the room would be chance.
		time.Sleep(7 * time.Millisecond)
		const freed = 20
		for range freed { // every second there is room for one more
			time.Sleep(time.Second)
			if _, err := c.manager.End(t.Context(), "many", running[0], sandbox.CauseReleased); err != nil {
				t.Error(err)
			}
			running = running[1:]
		}
		clients.Wait()
		t.Logf("got room: %v", got)
		for i := range 3 {
			waits := got[sandbox.TenantID(fmt.Sprint("one-", i))]
			if len(waits) != 1 || waits[0] > 5*time.Second {
				t.Errorf("a tenant with one create got room after %v, want one wait of at most five seconds", waits)
			}
		}
		if n := len(got["many"]); n < freed-3 {
			t.Errorf("the tenant with many creates got room %d times, want all %d that were left", n, freed-3)
		}
	})
}
