package disk

import (
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

func TestLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l leases
		a, b := &mount{}, &mount{}
		began := time.Now()
		took := func(by *mount) time.Duration {
			at := time.Now()
			l.change(1, by)()
			return time.Since(at)
		}
		if d := took(a); d != 0 {
			t.Errorf("what nobody counts on is changed after %v", d)
		}
		first := l.grant(1, a)
		if d := took(a); d != 0 {
			t.Errorf("what the boot itself counts on is changed after %v", d)
		}
		changed := make(chan time.Duration)
		go func() { changed <- took(b) }()
		synctest.Wait()
		if id := l.grant(1, a); id != 0 {
			t.Error("a file is promised while a change waits")
		}
		if id := l.grant(2, a); id == 0 {
			t.Error("another file is not promised")
		}
		l.end(1, first+100, a)
		l.end(1, first, b)
		if d := <-changed; d != leaseTime || time.Since(began) < volume.LeaseTime {
			t.Errorf("another boot changes it after %v", d)
		}
		if id := l.grant(1, a); id != 0 {
			t.Error("a file that a change waited for in vain is promised at once")
		}
		time.Sleep(shunTime)
		id := l.grant(1, a)
		go func() { changed <- took(b) }()
		synctest.Wait()
		l.end(1, id, a)
		if d := <-changed; d != 0 {
			t.Errorf("what was given back is changed after %v", d)
		}
		one := l.grant(1, a)
		two := l.grant(1, b)
		l.end(1, one, a)
		l.end(1, two, b)
		if d := took(a); d != leaseTime {
			t.Errorf("what two boots count on is changed after %v", d)
		}
		for node := range uint64(2 * maxLeases) {
			l.grant(100+node, a)
		}
		if len(l.held) > maxLeases || len(l.changing) != 0 {
			t.Errorf("%d files are promised, %d are changed", len(l.held), len(l.changing))
		}
		time.Sleep(2 * leaseTime)
		if id := l.grant(1, b); id == 0 {
			t.Error("promises that ended leave no room")
		}
	})
}

// What another Boot, or its own, asks for changes the bytes of a file that was promised
// only when the promise is over.
func TestPromisedFile(t *testing.T) {
	d, of := fresh(t)
	a, b := connect(t, d.ForBoot(of.Tenant, []string{of.ID})), connect(t, d.ForBoot(of.Tenant, []string{of.ID}))
	a.hello(of.ID)
	b.hello(of.ID)
	tag := uint64(100)
	ask := func(g *guestEnd, r volume.Request) volume.Answer {
		tag++
		r.Tag = tag
		return g.ask(r)
	}
	file := ask(a, volume.Request{Op: volume.OpCreate, Node: volume.RootNode, Name: "f"}).Attr.Node
	ask(a, volume.Request{Op: volume.OpWrite, Node: file, Data: []byte("before")})
	for name, change := range map[string]volume.Request{
		"write":    {Op: volume.OpWrite, Node: file, Data: []byte("before")},
		"truncate": {Op: volume.OpSetAttr, Node: file, Set: volume.SetSize, Offset: 6},
		"allocate": {Op: volume.OpAllocate, Node: file, Offset: 6},
	} {
		began := time.Now()
		opened := ask(a, volume.Request{Op: volume.OpOpen, Node: file, Size: 100})
		for end := began.Add(time.Minute); opened.Count == 0 && time.Now().Before(end); { // the change before waited in vain
			began = time.Now()
			opened = ask(a, volume.Request{Op: volume.OpOpen, Node: file, Size: 100})
		}
		if opened.Err != 0 || opened.Count == 0 || string(opened.Data) != "before" || opened.Attr.Size != 6 {
			t.Fatalf("it is opened as %+v", opened)
		}
		again := volume.Request{Tag: tag, Op: volume.OpOpen, Node: file, Size: 100}
		if again := a.ask(again); again.Err != 0 || again.Count != 0 || len(again.Data) != 0 {
			t.Errorf("the same request again gives %+v", again)
		}
		if changed := ask(b, change); changed.Err != 0 || time.Since(began) < volume.LeaseTime {
			t.Errorf("%s by another boot ends with %v, %v after the opening", name, changed.Err, time.Since(began))
		}
	}
	if long := ask(a, volume.Request{Op: volume.OpOpen, Node: file, Size: 5}); long.Err != 0 || long.Count != 0 || len(long.Data) != 0 {
		t.Errorf("a longer one comes as %+v", long)
	}
	if folder := ask(a, volume.Request{Op: volume.OpOpen, Node: volume.RootNode, Size: 5}); folder.Count != 0 || len(folder.Data) != 0 {
		t.Errorf("a folder comes as %+v", folder)
	}
	if none := ask(a, volume.Request{Op: volume.OpOpen, Node: 12345, Size: 5}); none.Err != unix.ESTALE {
		t.Errorf("none ends with %v", none.Err)
	}
}
