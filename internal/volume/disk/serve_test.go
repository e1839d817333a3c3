package disk

import (
	"bufio"
	"context"
	"encoding/binary"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

// guestEnd speaks to a Boot's server as its volume server does.
type guestEnd struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
	done chan error
}

func connect(t *testing.T, b volume.Server) *guestEnd {
	t.Helper()
	t.Cleanup(b.Close) // after the connection, which it waits for
	ours, theirs := net.Pipe()
	g := &guestEnd{t: t, conn: ours, r: bufio.NewReader(ours), done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { g.done <- b.Serve(ctx, theirs) }()
	t.Cleanup(func() {
		cancel()
		ours.Close()
	})
	return g
}

func (g *guestEnd) send(r volume.Request) {
	g.t.Helper()
	if _, err := g.conn.Write(volume.AppendRequest(nil, &r)); err != nil {
		g.t.Fatal(err)
	}
}

func (g *guestEnd) answer() volume.Answer {
	g.t.Helper()
	a, err := volume.ReadAnswer(g.r, nil)
	if err != nil {
		g.t.Fatal(err)
	}
	return a
}

func (g *guestEnd) ask(r volume.Request) volume.Answer {
	g.t.Helper()
	g.send(r)
	return g.answer()
}

func (g *guestEnd) hello(ids ...string) {
	g.t.Helper()
	if a := g.ask(volume.Request{Op: volume.OpHello, Size: volume.Version, Data: []byte(strings.Join(ids, " "))}); a.Err != 0 {
		g.t.Fatal(a.Err)
	}
}

// TestServe names Volumes that are the Boot's, another's, and nobody's.
func TestServe(t *testing.T) {
	d, of := fresh(t)
	foreign := sandbox.VolumeSpec{ID: sandbox.NewVolumeID(), Tenant: of.Tenant, MaxBytes: someBytes}
	other := sandbox.VolumeSpec{ID: sandbox.NewVolumeID(), Tenant: "bob", MaxBytes: someBytes}
	for _, s := range []sandbox.VolumeSpec{foreign, other} {
		if err := d.Create(s); err != nil {
			t.Fatal(err)
		}
	}
	b := d.ForBoot(of.Tenant, []string{of.ID, other.ID})
	g := connect(t, b)
	g.hello(of.ID, foreign.ID, other.ID, "../../etc")
	lookup := volume.Request{Op: volume.OpGetAttr, Node: volume.RootNode}
	for mount, want := range []error{nil, unix.ESTALE, unix.ESTALE, unix.ESTALE, unix.EINVAL} {
		lookup.Mount, lookup.Tag = uint8(mount), uint64(mount)
		a := g.ask(lookup)
		if a.Tag != uint64(mount) || a.Err != 0 != (want != nil) || want != nil && a.Err != want {
			t.Errorf("volume %d: %v, want %v", mount, a.Err, want)
		}
	}
}

// TestRepeat sends a request once more over another connection: it is done once.
func TestRepeat(t *testing.T) {
	d, of := fresh(t)
	b := d.ForBoot(of.Tenant, []string{of.ID})
	g := connect(t, b)
	g.hello(of.ID)
	mkdir := volume.Request{Tag: 77, Op: volume.OpMkdir, Node: volume.RootNode, Name: "d", Mode: 0o700}
	first := g.ask(mkdir)
	hold := g.ask(volume.Request{Tag: 78, Op: volume.OpCreate, Node: volume.RootNode, Name: "f", Flags: volume.FlagHold | volume.FlagExclusive})
	g.conn.Close()
	<-g.done
	g = connect(t, b)
	g.hello(of.ID)
	if again := g.ask(mkdir); again.Err != 0 || again.Attr != first.Attr {
		t.Errorf("the repeat ends with %v, %+v", again.Err, again.Attr)
	}
	mkdir.Tag++
	mkdir.Tag++
	if a := g.ask(mkdir); a.Err != unix.EEXIST {
		t.Errorf("another request ends with %v", a.Err)
	}
	// What was held before is still.
	g.ask(volume.Request{Tag: 90, Op: volume.OpUnlink, Node: volume.RootNode, Name: "f"})
	if a := g.ask(volume.Request{Tag: 91, Op: volume.OpGetAttr, Node: hold.Attr.Node}); a.Err != 0 {
		t.Errorf("a file that was open before: %v", a.Err)
	}
}

// TestServeRefuses ends a connection over which something else comes.
func TestServeRefuses(t *testing.T) {
	d, of := fresh(t)
	hello := volume.AppendRequest(nil, &volume.Request{Op: volume.OpHello, Size: volume.Version, Data: []byte(of.ID)})
	frame := func(r volume.Request) []byte { return volume.AppendRequest(nil, &r) }
	for name, tt := range map[string]struct {
		first, then []byte
	}{
		"HTTP":              {first: []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")},
		"no hello":          {first: frame(volume.Request{Op: volume.OpGetAttr, Node: 1})},
		"another version":   {first: frame(volume.Request{Op: volume.OpHello, Size: 99})},
		"too many volumes":  {first: frame(volume.Request{Op: volume.OpHello, Size: volume.Version, Data: []byte(strings.Repeat("v ", 9))})},
		"a huge frame":      {first: hello, then: binary.LittleEndian.AppendUint32(nil, 1<<30)},
		"a short frame":     {first: hello, then: []byte{3, 0, 0, 0, 1, 2, 3}},
		"another operation": {first: hello, then: frame(volume.Request{Op: 200})},
	} {
		t.Run(name, func(t *testing.T) {
			b := d.ForBoot(of.Tenant, []string{of.ID})
			g := connect(t, b)
			go func() {
				_, _ = g.conn.Write(tt.first)
				_, _ = g.conn.Write(tt.then)
			}()
			if tt.then != nil {
				g.answer()
			}
			if err := <-g.done; err == nil {
				t.Error("the connection ended without an error")
			}
		})
	}
}

// TestMany asks for much at once: each is answered.
func TestMany(t *testing.T) {
	d, of := fresh(t)
	b := d.ForBoot(of.Tenant, []string{of.ID})
	g := connect(t, b)
	g.hello(of.ID)
	const many = 20 * volume.Parallel
	go func() {
		for i := range uint64(many) {
			_, _ = g.conn.Write(volume.AppendRequest(nil, &volume.Request{Tag: i, Op: volume.OpStatFS}))
		}
	}()
	seen := map[uint64]bool{}
	for range many {
		a := g.answer()
		if a.Err != 0 || a.Count != someBytes {
			t.Errorf("request %d: %v, %d bytes", a.Tag, a.Err, a.Count)
		}
		seen[a.Tag] = true
	}
	if len(seen) != many {
		t.Errorf("%d of %d requests were answered", len(seen), many)
	}
}
