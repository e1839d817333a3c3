package disk

import (
	"testing"
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
	large := d.budgets.of[of.Tenant].large
	for limit := time.Now().Add(10 * time.Second); len(large) < maxLarge; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("the flood has %d large buffers", len(large))
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
	if n := len(d.budgets.of[of.Tenant].large); n != 0 {
		t.Errorf("%d large buffers are held", n)
	}
}
