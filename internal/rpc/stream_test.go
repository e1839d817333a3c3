package rpc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// guests is a Node whose Boots all answer with serve on every port.
type guests struct {
	sandbox.Nodes
	connect func() (net.Conn, error)
	mu      sync.Mutex
	asked   []sandbox.BootRef
}

func (g *guests) Dial(_ context.Context, node string, to sandbox.BootRef, port uint16) (net.Conn, error) {
	g.mu.Lock()
	g.asked = append(g.asked, to)
	g.mu.Unlock()
	if node != "n" || port != 8000 {
		return nil, sandbox.Errorf(sandbox.Conflict, "not this one").WithCause(errors.New("why"))
	}
	return g.connect()
}

var anyBoot = sandbox.BootRef{BootID: "b1", SandboxID: "i1", Number: 7, Tenant: "tenant ü"}

// by runs a test over each transport of a dial.
func by(t testing.TB, serveGuest func(net.Conn), run func(t testing.TB, name string, dial func() net.Conn)) {
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "g"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := socket.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { defer c.Close(); serveGuest(c) })
		}
	})
	dialSocket := func() (net.Conn, error) { return net.Dial("unix", socket.Addr().String()) }
	// hidden is a connection whose descriptor cannot be passed.
	hidden := func() (net.Conn, error) {
		c, err := dialSocket()
		if err != nil {
			return nil, err
		}
		return struct{ halfCloser }{c.(*net.UnixConn)}, nil
	}
	for _, tt := range []struct {
		name    string
		connect func() (net.Conn, error)
		address func(*server) string
	}{
		{"descriptor", dialSocket, func(s *server) string { return s.unix }},
		{"unix", hidden, func(s *server) string { return s.unix }},
		{"tcp", dialSocket, func(s *server) string { return s.tcp }},
		{"tls", dialSocket, func(s *server) string { return s.tcp }},
	} {
		g := &guests{connect: tt.connect}
		s := prepare(t, Node, NodeService(g, nil))
		by := s.self(Gateway, "")
		if tt.name == "tls" {
			p := newPKI(t)
			s.identity, by.Identity = p.identity(t, Node, "n"), p.identity(t, Gateway, "g")
		}
		s.start(t)
		n := NewNodes(func(context.Context) ([]sandbox.NodeRecord, error) {
			return []sandbox.NodeRecord{{Name: "n", Address: tt.address(s)}}, nil
		}, by)
		run(t, tt.name, func() net.Conn {
			c, err := n.Dial(t.Context(), "n", anyBoot, 8000)
			if err != nil {
				t.Fatal(err)
			}
			return c
		})
		// The race detector sees no ordering in a descriptor that the kernel passes.
		g.mu.Lock()
		if g.asked[0] != anyBoot {
			t.Errorf("%s: asked for %+v", tt.name, g.asked[0])
		}
		g.mu.Unlock()
		n.Close()
		s.stop()
	}
	socket.Close()
	serving.Wait()
}

type halfCloser interface {
	net.Conn
	CloseWrite() error
}

func echo(c net.Conn) { _, _ = io.Copy(c, c) }

func TestStreams(t *testing.T) {
	by(t, echo, func(t testing.TB, name string, dial func() net.Conn) {
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				c := dial()
				defer c.Close()
				sent := make([]byte, 1+rand.IntN(3<<20))
				for i := range sent {
					sent[i] = byte(rand.Uint32())
				}
				all.Go(func() {
					if _, err := c.Write(sent); err != nil {
						t.Errorf("%s: write: %v", name, err)
					}
					if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
						t.Errorf("%s: close one direction: %v", name, err)
					}
				})
				got, err := io.ReadAll(c)
				if err != nil || sha256.Sum256(got) != sha256.Sum256(sent) {
					t.Errorf("%s: %d of %d bytes came back, %v", name, len(got), len(sent), err)
				}
			})
		}
		all.Wait()
	})
}

// Bytes that the guest sends with the answer to the dial are not lost.
func TestGuestSpeaksFirst(t *testing.T) {
	greeting := bytes.Repeat([]byte("hello "), 5000)
	by(t, func(c net.Conn) { _, _ = c.Write(greeting) }, func(t testing.TB, name string, dial func() net.Conn) {
		for range 50 {
			c := dial()
			got, err := io.ReadAll(c)
			if err != nil || !bytes.Equal(got, greeting) {
				t.Errorf("%s: %d of %d bytes, %v", name, len(got), len(greeting), err)
			}
			c.Close()
		}
	})
}

func TestStreamEndsWithTheOther(t *testing.T) {
	gone := make(chan error, 10)
	by(t, func(c net.Conn) {
		_, err := io.Copy(io.Discard, c)
		gone <- err
	}, func(t testing.TB, name string, dial func() net.Conn) {
		c := dial()
		if _, err := c.Write([]byte("x")); err != nil {
			t.Error(name, err)
		}
		c.Close()
		select {
		case <-gone:
		case <-time.After(time.Minute):
			t.Errorf("%s: the guest's end is not told", name)
		}
	})
}

func TestDialsThatFail(t *testing.T) {
	g := &guests{connect: func() (net.Conn, error) { return nil, sandbox.Errorf(sandbox.Unavailable, "nothing listens") }}
	s := serve(t, Node, NodeService(g, nil))
	for _, address := range []string{s.unix, s.tcp} {
		nodes := func(role Role) *Nodes {
			n := NewNodes(func(context.Context) ([]sandbox.NodeRecord, error) {
				return []sandbox.NodeRecord{{Name: "n", Address: address}, {Name: "nowhere"}}, nil
			}, s.self(role, ""))
			t.Cleanup(n.Close)
			return n
		}
		for _, tt := range []struct {
			name string
			role Role
			node string
			port uint16
			want sandbox.Code
		}{
			{"nothing listens", Gateway, "n", 8000, sandbox.Unavailable},
			{"refused", Gateway, "n", 1, sandbox.Conflict},
			{"not a gateway", Scheduler, "n", 8000, sandbox.Denied},
			{"no such node", Gateway, "m", 8000, sandbox.Unavailable},
			{"a node in another process", Gateway, "nowhere", 8000, sandbox.Unavailable},
		} {
			_, err := nodes(tt.role).Dial(t.Context(), tt.node, anyBoot, tt.port)
			if sandbox.CodeOf(err) != tt.want {
				t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := nodes(Gateway).Dial(ctx, "n", anyBoot, 8000); !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled dial: %v", err)
		}
	}
}

func BenchmarkStream(b *testing.B) {
	by(b, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, func(t testing.TB, name string, dial func() net.Conn) {
		b.Run(name, func(b *testing.B) {
			c := dial()
			defer c.Close()
			piece := make([]byte, 256<<10)
			b.SetBytes(int64(len(piece)))
			for b.Loop() {
				if _, err := c.Write(piece); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/dial", func(b *testing.B) {
			for b.Loop() {
				dial().Close()
			}
		})
	})
}

// faltering is a connection that takes some bytes of a message and then fails.
type faltering struct {
	net.Conn
	takes   int
	written []byte
}

func (c *faltering) WriteMsgUnix(b, _ []byte, _ *net.UnixAddr) (n, oobn int, err error) {
	n = min(c.takes, len(b))
	c.written = append(c.written, b[:n]...)
	if n < len(b) {
		err = errors.New("broken")
	}
	return n, 0, err
}

// A partly sent answer to a dial is not sent again. An answer of which nothing was sent
// can be given in another way.
func TestOneAnswerToADial(t *testing.T) {
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "g"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	guest, err := net.Dial("unix", socket.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer guest.Close()
	for takes, want := range map[int]bool{0: false, 1: true, 1 << 10: true} {
		if got := giveStream(&faltering{takes: takes}, guest); got != want {
			t.Errorf("an answer of which %d bytes were sent counts as given: %v", takes, got)
		}
	}
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	if c := (&faltering{takes: 1 << 10}); giveStream(c, theirs) || len(c.written) > 0 {
		t.Errorf("a guest without a descriptor was given, with %q", c.written)
	}
}
