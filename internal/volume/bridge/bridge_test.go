package bridge_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume/bridge"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume/disk"
)

// records are the Volumes of Boots.
type records struct {
	mu    sync.Mutex
	boots map[sandbox.BootPlace][]sandbox.VolumeHome
	err   error // of every call; nil: none
}

func (r *records) VolumeHomes(_ context.Context, node string, of sandbox.BootPlace) ([]sandbox.VolumeHome, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return nil, r.err
	}
	homes, known := r.boots[of]
	if !known {
		return nil, sandbox.Errorf(sandbox.NotFound, "no such boot")
	}
	return slices.DeleteFunc(slices.Clone(homes), func(h sandbox.VolumeHome) bool { return node != of.Node && h.Node != node }), nil
}

func (r *records) set(of sandbox.BootPlace, homes ...sandbox.VolumeHome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.boots) // one Sandbox
	if len(homes) > 0 {
		r.boots[of] = homes
	}
}

func (r *records) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

// world has the Nodes "a" and "b", which store Volumes.
type world struct {
	t       *testing.T
	records *records
	disks   map[string]*disk.Disk
	homes   map[string]*bridge.Homes
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, records: &records{boots: map[sandbox.BootPlace][]sandbox.VolumeHome{}}, disks: map[string]*disk.Disk{}, homes: map[string]*bridge.Homes{}}
	for _, node := range []string{"a", "b"} {
		d, err := disk.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		w.disks[node] = d
		w.homes[node] = bridge.NewHomes(bridge.Config{Node: node, ForBoot: d.ForBoot, Records: w.records, Log: slog.New(slog.DiscardHandler)})
	}
	return w
}

// run keeps the homes of a Node until the test ends.
func (w *world) run(node string) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		_ = w.homes[node].Run(ctx)
		close(done)
	}()
	w.t.Cleanup(func() { cancel(); <-done })
}

// volume makes a Volume on a Node.
func (w *world) volume(node string) sandbox.VolumeHome {
	w.t.Helper()
	v := sandbox.VolumeHome{VolumeSpec: sandbox.VolumeSpec{ID: sandbox.NewVolumeID(), Tenant: "t", MaxBytes: 8 << 20}, Node: node}
	if err := w.disks[node].Create(v.VolumeSpec); err != nil {
		w.t.Fatal(err)
	}
	return v
}

// route is a Route to a Node that stores Volumes.
func (w *world) route(node string, to sandbox.BootPlace, ids ...string) bridge.Route {
	return bridge.Route{Volumes: ids, Connect: func(ctx context.Context) (net.Conn, error) { return w.dial(ctx, node, to) }}
}

func (w *world) dial(ctx context.Context, node string, to sandbox.BootPlace) (net.Conn, error) {
	serve, err := w.homes[node].Admit(ctx, to)
	if err != nil {
		return nil, err
	}
	ours, theirs := net.Pipe()
	go serve(theirs)
	return ours, nil
}

// guest is the volume server of a Boot.
type guest struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
	done chan error // of Serve
}

// boot connects a server to a new guest with these Volumes.
func boot(t *testing.T, server volume.Server, ids ...string) *guest {
	t.Helper()
	ours, theirs := net.Pipe()
	g := &guest{t, ours, bufio.NewReader(ours), make(chan error, 1)}
	go func() {
		g.done <- server.Serve(t.Context(), theirs)
		close(g.done)
	}()
	t.Cleanup(func() {
		ours.Close()
		<-g.done
	})
	g.send(volume.Request{Op: volume.OpHello, Size: volume.Version, Data: []byte(strings.Join(ids, " "))})
	if a := g.answer(); a.Err != 0 {
		t.Fatalf("the hello: %v", a.Err)
	}
	return g
}

func (g *guest) send(r volume.Request) {
	g.t.Helper()
	if _, err := g.conn.Write(volume.AppendRequest(nil, &r)); err != nil {
		g.t.Fatal(err)
	}
}

func (g *guest) answer() volume.Answer {
	g.t.Helper()
	a, err := volume.ReadAnswer(g.r, nil)
	if err != nil {
		g.t.Fatal(err)
	}
	return a
}

func (g *guest) ask(r volume.Request) volume.Answer {
	g.t.Helper()
	g.send(r)
	a := g.answer()
	if a.Tag != r.Tag {
		g.t.Fatalf("the answer to %d is to %d", r.Tag, a.Tag)
	}
	return a
}

// ended waits for the end of the connection.
func (g *guest) ended() {
	g.t.Helper()
	if _, err := g.r.ReadByte(); !errors.Is(err, io.EOF) {
		g.t.Fatalf("the connection goes on: %v", err)
	}
}

// A Boot uses Volumes of its own Node and of another one, with frames of every size.
func TestRoutes(t *testing.T) {
	w := newWorld(t)
	here, there, other := w.volume("a"), w.volume("b"), w.volume("b")
	place := sandbox.BootPlace{SandboxID: "s", Number: 1, Node: "a"}
	w.records.set(place, here, there)
	local := bridge.Local(w.disks["a"].ForBoot("t", []string{here.ID}), []string{here.ID})
	server := bridge.New(local, w.route("b", place, there.ID))
	t.Cleanup(server.Close)
	g := boot(t, server, there.ID, here.ID, other.ID)
	for mount, text := range [][]byte{bytes.Repeat([]byte("there"), volume.MaxData/5), []byte("here")} {
		tag := uint64(10 * mount)
		file := g.ask(volume.Request{Tag: tag + 1, Op: volume.OpCreate, Mount: uint8(mount), Node: volume.RootNode, Name: "f", Mode: 0o644})
		if file.Err != 0 {
			t.Fatalf("create in %d: %v", mount, file.Err)
		}
		if a := g.ask(volume.Request{Tag: tag + 2, Op: volume.OpWrite, Mount: uint8(mount), Node: file.Attr.Node, Data: text}); a.Err != 0 {
			t.Fatalf("write in %d: %v", mount, a.Err)
		}
		if a := g.ask(volume.Request{Tag: tag + 3, Op: volume.OpRead, Mount: uint8(mount), Node: file.Attr.Node, Size: volume.MaxData}); a.Err != 0 || !bytes.Equal(a.Data, text) {
			t.Fatalf("read in %d: %d bytes, %v", mount, len(a.Data), a.Err)
		}
	}
	for mount, want := range map[uint8]unix.Errno{2: unix.ESTALE, 3: unix.EINVAL} {
		if a := g.ask(volume.Request{Tag: 99, Op: volume.OpGetAttr, Mount: mount, Node: volume.RootNode}); a.Err != want {
			t.Errorf("the mount %d: %v, want %v", mount, a.Err, want)
		}
	}
	uses, err := w.disks["b"].List(t.Context())
	if err != nil || len(uses) != 2 || uses[0].Files+uses[1].Files != 1 {
		t.Errorf("the other node has %+v, %v", uses, err)
	}
}

// While one Node is away, Volumes of the others are served. Once it is back, the Boot
// connects again, and what it repeats is not done twice.
func TestAwayHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		here, there := w.volume("a"), w.volume("b")
		place := sandbox.BootPlace{SandboxID: "s", Number: 1, Node: "a"}
		w.records.set(place, here, there)
		var away sync.Mutex
		broken := false
		connect := w.route("b", place, there.ID)
		var last net.Conn
		remote := bridge.Route{Volumes: connect.Volumes, Connect: func(ctx context.Context) (conn net.Conn, err error) {
			away.Lock()
			defer away.Unlock()
			if broken {
				return nil, sandbox.Errorf(sandbox.Unavailable, "away")
			}
			last, err = connect.Connect(ctx)
			return last, err
		}}
		set := func(to bool) {
			away.Lock()
			defer away.Unlock()
			broken = to
			if to {
				last.Close()
			}
		}
		server := bridge.New(bridge.Local(w.disks["a"].ForBoot("t", []string{here.ID}), []string{here.ID}), remote)
		t.Cleanup(server.Close)
		g := boot(t, server, here.ID, there.ID)
		mkdir := volume.Request{Tag: 7, Op: volume.OpMkdir, Mount: 1, Node: volume.RootNode, Name: "d", Mode: 0o755}
		if a := g.ask(mkdir); a.Err != 0 {
			t.Fatal(a.Err)
		}
		set(true)
		g.ended() // a node broke
		if err := <-g.done; err == nil {
			t.Error("the server ended without an error")
		}
		g = boot(t, server, here.ID, there.ID)
		g.send(mkdir) // gets no answer
		if a := g.ask(volume.Request{Tag: 8, Op: volume.OpGetAttr, Mount: 0, Node: volume.RootNode}); a.Err != 0 {
			t.Errorf("the volume that is there: %v", a.Err)
		}
		time.Sleep(time.Minute)
		set(false)
		g.ended() // it is back
		g = boot(t, server, here.ID, there.ID)
		if a := g.ask(mkdir); a.Err != 0 {
			t.Errorf("the repeat: %v", a.Err)
		}
		g.conn.Close()
		<-g.done
		synctest.Wait()
	})
}

// Without any Node that answers, there is no connection.
func TestNoHome(t *testing.T) {
	w := newWorld(t)
	there := w.volume("b")
	server := bridge.New(w.route("b", sandbox.BootPlace{SandboxID: "s", Number: 1, Node: "a"}, there.ID))
	ours, theirs := net.Pipe()
	done := make(chan error, 1)
	go func() { done <- server.Serve(t.Context(), theirs) }()
	hello := volume.Request{Op: volume.OpHello, Size: volume.Version, Data: []byte(there.ID)}
	if _, err := ours.Write(volume.AppendRequest(nil, &hello)); err != nil {
		t.Fatal(err)
	}
	codetest.Want(t, "the server", <-done, sandbox.NotFound)
}

// A Boot that breaks the protocol loses its connection.
func TestHostileBoot(t *testing.T) {
	for name, frame := range map[string][]byte{
		"too long":  binary.LittleEndian.AppendUint32(nil, volume.Longest+1),
		"too short": append(binary.LittleEndian.AppendUint32(nil, volume.RouteBytes-1), make([]byte, 64)...),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			there := w.volume("b")
			place := sandbox.BootPlace{SandboxID: "s", Number: 1, Node: "a"}
			w.records.set(place, there)
			server := bridge.New(w.route("b", place, there.ID))
			t.Cleanup(server.Close)
			g := boot(t, server, there.ID)
			if _, err := g.conn.Write(append(frame, make([]byte, volume.RouteBytes)...)); err != nil && !errors.Is(err, io.ErrClosedPipe) {
				t.Fatal(err)
			}
			if err := <-g.done; err == nil || !strings.Contains(err.Error(), "frame") {
				t.Errorf("the server ended with %v", err)
			}
		})
	}
}

// Only the latest Boot of a Sandbox is served, and only the Volumes that the records say.
func TestAdmit(t *testing.T) {
	w := newWorld(t)
	v, other := w.volume("a"), w.volume("a")
	first := sandbox.BootPlace{SandboxID: "s", Number: 1, Node: "b"}
	_, err := w.homes["a"].Admit(t.Context(), first)
	codetest.Want(t, "a boot without a record", err, sandbox.NotFound)
	w.records.set(first, w.volume("b"))
	_, err = w.homes["a"].Admit(t.Context(), first)
	codetest.Want(t, "a boot without a volume of this node", err, sandbox.NotFound)

	w.records.set(first, v)
	older, err := w.dial(t.Context(), "a", first)
	if err != nil {
		t.Fatal(err)
	}
	g := &guest{t: t, conn: older, r: bufio.NewReader(older)}
	g.send(volume.Request{Op: volume.OpHello, Size: volume.Version, Data: []byte(v.ID + " " + other.ID)})
	g.answer()
	if a := g.ask(volume.Request{Tag: 1, Op: volume.OpGetAttr, Mount: 0, Node: volume.RootNode}); a.Err != 0 {
		t.Errorf("its volume: %v", a.Err)
	}
	if a := g.ask(volume.Request{Tag: 2, Op: volume.OpGetAttr, Mount: 1, Node: volume.RootNode}); a.Err != unix.ESTALE {
		t.Errorf("a volume of the tenant that it does not mount: %v", a.Err)
	}

	second := sandbox.BootPlace{SandboxID: "s", Number: 2, Node: "c"}
	w.records.set(second, v)
	newer, err := w.dial(t.Context(), "a", second)
	if err != nil {
		t.Fatal(err)
	}
	g.ended()
	w.records.set(first, v) // as a request that was on its way saw them
	_, err = w.homes["a"].Admit(t.Context(), first)
	codetest.Want(t, "the boot before", err, sandbox.Conflict)
	next := &guest{t: t, conn: newer, r: bufio.NewReader(newer)}
	next.send(volume.Request{Op: volume.OpHello, Size: volume.Version, Data: []byte(v.ID)})
	next.answer()

	w.homes["a"].Cut()
	next.ended()
}

// A Boot on another Node ends when the Node of the Volume serves a later Boot itself.
func TestReplace(t *testing.T) {
	w := newWorld(t)
	v := w.volume("a")
	place := sandbox.BootPlace{SandboxID: "s", Number: 2, Node: "b"}
	w.records.set(place, v)
	conn, err := w.dial(t.Context(), "a", place)
	if err != nil {
		t.Fatal(err)
	}
	g := &guest{t: t, conn: conn, r: bufio.NewReader(conn)}
	g.send(volume.Request{Op: volume.OpHello, Size: volume.Version, Data: []byte(v.ID)})
	g.answer()
	for _, by := range []sandbox.BootPlace{{SandboxID: "s", Number: 1, Node: "a"}, {SandboxID: "other", Number: 3, Node: "a"}} {
		w.homes["a"].Replace(by)
		if a := g.ask(volume.Request{Tag: 1, Op: volume.OpGetAttr, Node: volume.RootNode}); a.Err != 0 {
			t.Errorf("after %+v: %v", by, a.Err)
		}
	}
	w.homes["a"].Replace(sandbox.BootPlace{SandboxID: "s", Number: 3, Node: "a"})
	g.ended()
}

// A home that stops in the middle of an answer holds up the others for a while only.
func TestHomeStopsInAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		v := w.volume("a")
		ours, theirs := net.Pipe()
		defer theirs.Close()
		stops := bridge.Route{Volumes: []string{"x"}, Connect: func(context.Context) (net.Conn, error) { return ours, nil }}
		go func() {
			if _, err := volume.ReadFrame(bufio.NewReader(theirs), make([]byte, 1<<10)); err == nil {
				_, _ = theirs.Write(append(volume.AppendAnswer(nil, &volume.Answer{}), 64, 0, 0, 0))
			}
		}()
		server := bridge.New(bridge.Local(w.disks["a"].ForBoot("t", []string{v.ID}), []string{v.ID}), stops)
		t.Cleanup(server.Close)
		g := boot(t, server, v.ID, "x")
		began := time.Now()
		_, _ = io.Copy(io.Discard, g.r)
		if took := time.Since(began); took > time.Minute {
			t.Errorf("it holds up the others for %s", took)
		}
	})
}

// A Boot that has ended, by the records, loses its connection and what is kept for it. While
// the records are away, nothing changes.
func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.run("a")
		v := w.volume("a")
		place := sandbox.BootPlace{SandboxID: "s", Number: 1, Node: "b"}
		w.records.set(place, v)
		connect := func() *guest {
			t.Helper()
			conn, err := w.dial(t.Context(), "a", place)
			if err != nil {
				t.Fatal(err)
			}
			g := &guest{t: t, conn: conn, r: bufio.NewReader(conn)}
			g.send(volume.Request{Op: volume.OpHello, Size: volume.Version, Data: []byte(v.ID)})
			g.answer()
			return g
		}
		g := connect()
		file := g.ask(volume.Request{Tag: 1, Op: volume.OpCreate, Node: volume.RootNode, Name: "f", Mode: 0o644, Flags: volume.FlagHold})
		if a := g.ask(volume.Request{Tag: 2, Op: volume.OpUnlink, Node: volume.RootNode, Name: "f"}); file.Err != 0 || a.Err != 0 {
			t.Fatal(file.Err, a.Err)
		}
		w.records.fail(sandbox.Errorf(sandbox.Unavailable, "away"))
		time.Sleep(time.Hour)
		w.records.fail(nil)
		g.conn.Close()
		g = connect()
		if a := g.ask(volume.Request{Tag: 3, Op: volume.OpGetAttr, Node: file.Attr.Node}); a.Err != 0 {
			t.Errorf("the open file after a break: %v", a.Err)
		}
		w.records.set(place)
		began := time.Now()
		g.ended()
		if took := time.Since(began); took > time.Minute {
			t.Errorf("the connection of a boot that ended lasted %s", took)
		}
		synctest.Wait() // for the release of its open files
		w.records.set(place, v)
		if a := connect().ask(volume.Request{Tag: 4, Op: volume.OpGetAttr, Node: file.Attr.Node}); a.Err != unix.ESTALE {
			t.Errorf("the open file of the boot that ended: %v", a.Err)
		}
	})
}

// A server that answers a request to another one, or no request, ends the session: a Node
// that was taken must not speak for others.
func TestHostileHome(t *testing.T) {
	for name, tag := range map[string]uint64{"of another one": 7, "of none": 8} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			here, there := w.volume("a"), w.volume("b")
			hostile := make(chan net.Conn, 1)
			asked := make(chan struct{})
			silent := bridge.Route{Volumes: []string{here.ID}, Connect: func(context.Context) (net.Conn, error) {
				ours, theirs := net.Pipe()
				go func() {
					if answerHello(theirs) {
						_, _ = theirs.Read(make([]byte, 1024)) // the request, which it does not answer
						close(asked)
					}
				}()
				return ours, nil
			}}
			forging := bridge.Route{Volumes: []string{there.ID}, Connect: func(context.Context) (net.Conn, error) {
				ours, theirs := net.Pipe()
				go func() {
					if answerHello(theirs) {
						hostile <- theirs
					}
				}()
				return ours, nil
			}}
			g := boot(t, bridge.New(silent, forging), here.ID, there.ID)
			g.send(volume.Request{Tag: 7, Op: volume.OpGetAttr, Mount: 0, Node: volume.RootNode})
			<-asked
			go func() {
				conn := <-hostile
				_, _ = conn.Write(volume.AppendAnswer(nil, &volume.Answer{Tag: tag}))
			}()
			g.ended()
			if err := <-g.done; err == nil || !strings.Contains(err.Error(), "not asked") {
				t.Errorf("the session ended with %v", err)
			}
		})
	}
}

// answerHello reads a hello and answers it.
func answerHello(conn net.Conn) bool {
	frame, err := volume.ReadFrame(bufio.NewReader(conn), nil)
	if err != nil {
		return false
	}
	r, err := volume.DecodeRequest(frame)
	if err != nil {
		return false
	}
	_, err = conn.Write(volume.AppendAnswer(nil, &volume.Answer{Tag: r.Tag}))
	return err == nil
}

// A Boot that sends requests without end to a server that answers none is cut off.
func TestManyQuestions(t *testing.T) {
	w := newWorld(t)
	there := w.volume("b")
	silent := bridge.Route{Volumes: []string{there.ID}, Connect: func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			if answerHello(theirs) {
				_, _ = io.Copy(io.Discard, theirs)
			}
		}()
		return ours, nil
	}}
	g := boot(t, bridge.New(silent), there.ID)
	for tag := range uint64(10_000) {
		r := volume.Request{Tag: tag, Op: volume.OpGetAttr, Node: volume.RootNode}
		if _, err := g.conn.Write(volume.AppendRequest(nil, &r)); err != nil {
			break
		}
	}
	if err := <-g.done; err == nil || !strings.Contains(err.Error(), "without an answer") {
		t.Errorf("the session ended with %v", err)
	}
}
