package disk

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

// Boots that ask for much and read nothing take a bounded part of the memory, and are in
// nobody else's way.
func TestFlood(t *testing.T) {
	d, of := fresh(t)
	other := sandbox.VolumeRef{ID: sandbox.NewVolumeID(), Tenant: "bob"}
	if err := d.Create(sandbox.VolumeSpec{ID: other.ID, Tenant: other.Tenant, MaxBytes: someBytes}); err != nil {
		t.Fatal(err)
	}
	read := func(g *guestEnd, node uint64) volume.Answer {
		return g.ask(volume.Request{Op: volume.OpRead, Node: node, Size: volume.MaxData})
	}
	create := func(g *guestEnd) uint64 {
		return g.ask(volume.Request{Tag: 1, Op: volume.OpCreate, Node: volume.RootNode, Name: "f"}).Attr.Node
	}
	good := connect(t, d.ForBoot(other.Tenant, []string{other.ID}))
	good.hello(other.ID)
	its := create(good)
	var floods []*guestEnd
	for range maxLarge/volume.Parallel + 1 {
		g := connect(t, d.ForBoot(of.Tenant, []string{of.ID}))
		g.hello(of.ID)
		node := create(g)
		for i := range uint64(volume.Parallel) {
			g.send(volume.Request{Tag: 10 + i, Op: volume.OpRead, Node: node, Size: volume.MaxData})
		}
		floods = append(floods, g)
	}
	for limit := time.Now().Add(10 * time.Second); largeOf(d, of.Tenant) < maxLarge; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("the flood has %d large buffers", largeOf(d, of.Tenant))
		}
	}
	if a := read(good, its); a.Err != 0 {
		t.Errorf("another tenant's boot reads: %v", a.Err)
	}
	// When they read they are answered, all of them.
	for _, g := range floods {
		for range volume.Parallel {
			g.answer()
		}
	}
}

// A long request that writes nothing ends the connection: it would hold one large buffer
// while it waits for another, until all of a Tenant's are held so.
func TestLongRequest(t *testing.T) {
	d, of := fresh(t)
	g := connect(t, d.ForBoot(of.Tenant, []string{of.ID}))
	g.hello(of.ID)
	g.send(volume.Request{Tag: 1, Op: volume.OpRead, Node: volume.RootNode, Size: volume.MaxData, Data: make([]byte, volume.MaxData)})
	if err := <-g.done; err == nil {
		t.Error("it is served")
	}
	if n := largeOf(d, of.Tenant); n != 0 {
		t.Errorf("%d large buffers are held", n)
	}
}

// largeOf is how many large buffers a Tenant has.
func largeOf(d *Disk, tenant sandbox.TenantID) int {
	d.budgets.mu.Lock()
	defer d.budgets.mu.Unlock()
	return d.budgets.of[tenant].held
}

// However many Tenants flood, all have no more than there is, none has more than its
// own, and who comes has some at once. Those that give back come to have equal shares.
func TestBudgets(t *testing.T) {
	for _, tt := range []struct {
		floods int // Tenants that come one after the other and take what they get
		comes  int // that one more gets at once, while none gives any back
		share  int // that each has when they give back and take again
	}{
		{0, maxLarge, 0},
		{1, maxLarge, maxLarge},
		{4, 25, maxLarge},
		{7, 12, 23},
		{15, 2, 13},
		{24, 1, 9},
	} {
		synctest.Test(t, func(t *testing.T) {
			var b budgets
			var wg sync.WaitGroup
			take := func(its *budget, n int) {
				for range n {
					wg.Go(func() { b.take(its) })
				}
				synctest.Wait()
				if b.held > maxLargeAll || its.held > maxLarge {
					t.Errorf("one of %d floods has %d, all have %d", tt.floods, its.held, b.held)
				}
			}
			var all []*budget
			for i := range tt.floods {
				all = append(all, b.use(sandbox.TenantID(fmt.Sprint("flood", i))))
				take(all[i], 2*maxLarge)
			}
			comes := b.use("comes")
			take(comes, maxLarge)
			if comes.held < tt.comes {
				t.Errorf("beside %d floods who comes gets %d, want %d at least", tt.floods, comes.held, tt.comes)
			}
			for range comes.held + len(comes.waiting) {
				b.giveBack(comes)
			}
			for range 2 * maxLarge {
				for _, its := range all {
					b.giveBack(its)
					take(its, 1)
				}
			}
			for i, its := range all {
				if its.held < tt.share-1 || its.held > tt.share+1 {
					t.Errorf("of %d floods number %d has %d, want %d", tt.floods, i, its.held, tt.share)
				}
			}
			for b.held > 0 {
				for _, its := range all {
					for range its.held {
						b.giveBack(its)
					}
				}
			}
			wg.Wait()
			if len(b.line) != 0 {
				t.Errorf("%d still wait", len(b.line))
			}
		})
	}
}

// One that has some lets those have theirs first that have none.
func TestBudgetsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b budgets
		full := b.use("full")
		full.held, b.held = maxLargeAll, maxLargeAll
		first, second := b.use("first"), b.use("second")
		for _, its := range []*budget{first, first, second} {
			go b.take(its)
			synctest.Wait()
		}
		for freed := range 2 + 2*largeShare {
			want := [2]int{1, min(freed, 1)}
			if freed == 1+2*largeShare { // beside two that were passed on, there are enough for a second one
				want[0] = 2
			}
			b.giveBack(full)
			if got := [2]int{first.held, second.held}; got != want {
				t.Errorf("after %d were given back they have %v, want %v", freed+1, got, want)
			}
		}
	})
}
