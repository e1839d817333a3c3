package shard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link/netstack/netstacktest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/fdrpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a shard and returns a client of it, and a function that ends both.
func start(t testing.TB) (*link.Client, func()) {
	t.Helper()
	c, _, end := startAt(t)
	return c, end
}

// startAt is start, and returns the path of the shard's socket.
func startAt(t testing.TB) (c *link.Client, path string, end func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "link.sock")
	l, err := fdrpc.Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var served sync.WaitGroup
	served.Go(func() {
		s := New(Config{Refuse: func(netip.Addr) bool { return false }})
		if err := s.Serve(ctx, l); !errors.Is(err, context.Canceled) {
			t.Errorf("Serve = %v", err)
		}
	})
	c, err = link.Dial(context.Background(), path, link.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	end = func() {
		once.Do(func() {
			cancel()
			served.Wait()
			c.Close()
		})
	}
	t.Cleanup(end)
	return c, path, end
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// newLink makes a link whose guest has an echo server on port 7.
func newLink(t testing.TB) (host *os.File, guest *stack.Stack) {
	t.Helper()
	host, end, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	guest = netstacktest.Guest(t, end)
	serveEcho(t, guest, 7)
	return host, guest
}

func serveEcho(t testing.TB, guest *stack.Stack, port uint16) {
	t.Helper()
	l, err := gonet.ListenTCP(guest, tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFrom4(link.GuestAddress.As4()), Port: port}, ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() { l.Shutdown(); l.Close(); guest.Destroy(); wg.Wait() })
}

func roundTrip(t testing.TB, c net.Conn) {
	t.Helper()
	if err := tryRoundTrip(c); err != nil {
		t.Fatal(err)
	}
}

func tryRoundTrip(c net.Conn) error {
	var b [4]byte
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := c.Write([]byte("ping")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, b[:])
	return err
}

func TestLinkThroughItsLife(t *testing.T) {
	c, _ := start(t)
	ctx := testContext(t)
	host, _ := newLink(t)
	id := sandbox.NewBootID()
	if err := c.Add(ctx, id, host, sandbox.NetworkNone); err != nil {
		t.Fatal(err)
	}
	if err := c.Add(ctx, id, host, sandbox.NetworkNone); !errors.Is(err, sandbox.Conflict) {
		t.Errorf("a second Add = %v, want Conflict", err)
	}
	conn, err := c.DialGuest(ctx, id, 7)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	roundTrip(t, conn)
	if err := c.SetPolicy(ctx, id, sandbox.NetworkPublic); err != nil {
		t.Fatal(err)
	}
	links, err := c.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(links) != 1 || links[0].BootID != id || links[0].Policy != sandbox.NetworkPublic ||
		links[0].Connections != 1 || links[0].BytesIn == 0 || links[0].BytesOut == 0 {
		t.Errorf("List = %+v", links)
	}
	if stats, err := c.Stats(ctx); err != nil || stats.Links != 1 || stats.Threads == 0 {
		t.Errorf("Stats = %+v, %v", stats, err)
	}
	if _, err := c.Remove(ctx, id); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Errorf("the stream of a removed link ends with %v", err)
	}
	if links, _ := c.List(ctx); len(links) != 0 {
		t.Errorf("List after Remove = %+v", links)
	}
	if _, err := c.Remove(ctx, id); err != nil {
		t.Errorf("a second Remove = %v", err)
	}
}

func TestErrorsNameTheirCode(t *testing.T) {
	c, _ := start(t)
	ctx := testContext(t)
	host, _ := newLink(t)
	id, absent := sandbox.NewBootID(), sandbox.NewBootID()
	if err := c.Add(ctx, id, host, sandbox.NetworkNone); err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for name, tt := range map[string]struct {
		call func() error
		want sandbox.Code
	}{
		"dial closed port":      {func() error { _, err := c.DialGuest(ctx, id, 9); return err }, sandbox.Unavailable},
		"dial absent link":      {func() error { _, err := c.DialGuest(ctx, absent, 7); return err }, sandbox.NotFound},
		"fetch absent link":     {func() error { _, err := c.Fetch(ctx, absent); return err }, sandbox.NotFound},
		"policy of absent link": {func() error { return c.SetPolicy(ctx, absent, sandbox.NetworkNone) }, sandbox.NotFound},
		"unknown policy":        {func() error { return c.SetPolicy(ctx, id, "all") }, sandbox.Invalid},
		"bad boot ID":           {func() error { return c.Add(ctx, "../x", host, sandbox.NetworkNone) }, sandbox.Invalid},
		"bad policy":            {func() error { return c.Add(ctx, absent, host, "") }, sandbox.Invalid},
		"not a link":            {func() error { return c.Add(ctx, absent, null, sandbox.NetworkNone) }, sandbox.Invalid},
	} {
		if err := tt.call(); !errors.Is(err, tt.want) {
			t.Errorf("%s = %v, want %s", name, err, tt.want)
		}
	}
	// No call broke the connection or left anything behind.
	if links, err := c.List(ctx); err != nil || len(links) != 1 {
		t.Errorf("List = %+v, %v", links, err)
	}
}

func TestAnotherShardTakesALinkOver(t *testing.T) {
	host, _ := newLink(t)
	id := sandbox.NewBootID()
	ctx := testContext(t)
	first, endFirst := start(t)
	if err := first.Add(ctx, id, host, sandbox.NetworkPublic); err != nil {
		t.Fatal(err)
	}
	old, err := first.DialGuest(ctx, id, 7)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	roundTrip(t, old)
	endFirst()
	if err := tryRoundTrip(old); err == nil {
		t.Error("a connection outlived its shard")
	}
	if _, err := first.List(ctx); !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("a call to the ended shard = %v, want Unavailable", err)
	}

	second, _ := start(t)
	if links, err := second.List(ctx); err != nil || len(links) != 0 {
		t.Fatalf("a new shard has %+v, %v", links, err)
	}
	if err := second.Add(ctx, id, host, sandbox.NetworkPublic); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		conn, err := second.DialGuest(ctx, id, 7)
		if err != nil {
			t.Fatal(err)
		}
		roundTrip(t, conn)
		conn.Close()
	}
}

func TestFetchedEndWorksInAnotherShard(t *testing.T) {
	host, _ := newLink(t)
	id := sandbox.NewBootID()
	ctx := testContext(t)
	first, endFirst := start(t)
	if err := first.Add(ctx, id, host, sandbox.NetworkNone); err != nil {
		t.Fatal(err)
	}
	host.Close() // as if the node had crashed
	fetched, err := first.Fetch(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	defer fetched.Close()
	endFirst()
	second, _ := start(t)
	if err := second.Add(ctx, id, fetched, sandbox.NetworkNone); err != nil {
		t.Fatal(err)
	}
	conn, err := second.DialGuest(ctx, id, 7)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	roundTrip(t, conn)
}

func TestLostGuestIsListed(t *testing.T) {
	c, _ := start(t)
	ctx := testContext(t)
	host, end, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	id := sandbox.NewBootID()
	if err := c.Add(ctx, id, host, sandbox.NetworkNone); err != nil {
		t.Fatal(err)
	}
	end.Close()
	for {
		links, err := c.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if links[0].Lost {
			break
		}
	}
	if _, err := c.DialGuest(ctx, id, 7); err == nil {
		t.Error("dialled a guest that is gone")
	}
}

func TestShardIsFullAt256(t *testing.T) {
	c, _ := start(t)
	ctx := testContext(t)
	for i := range link.MaxLinks + 1 {
		host, end, err := link.Pair()
		if err != nil {
			t.Fatal(err)
		}
		err = c.Add(ctx, sandbox.NewBootID(), host, sandbox.NetworkNone)
		host.Close()
		defer end.Close()
		switch {
		case i < link.MaxLinks && err != nil:
			t.Fatalf("link %d: %v", i, err)
		case i == link.MaxLinks && !errors.Is(err, sandbox.Exhausted):
			t.Errorf("link %d = %v, want Exhausted", i, err)
		}
	}
}

func TestConcurrentCalls(t *testing.T) {
	c, _ := start(t)
	ctx := testContext(t)
	var wg sync.WaitGroup
	for i := range 8 {
		host, _ := newLink(t)
		id := sandbox.NewBootID()
		wg.Go(func() {
			if err := cycle(ctx, c, id, host); err != nil {
				t.Errorf("link %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if links, err := c.List(ctx); err != nil || len(links) != 0 {
		t.Errorf("List = %+v, %v", links, err)
	}
}

func cycle(ctx context.Context, c *link.Client, id string, host *os.File) error {
	// The guest's stack stays and only ours is recreated, as when a link is attached
	// again.
	for range 5 {
		if err := c.Add(ctx, id, host, sandbox.NetworkNone); err != nil {
			return fmt.Errorf("add: %w", err)
		}
		for range 10 {
			conn, err := c.DialGuest(ctx, id, 7)
			if err != nil {
				return fmt.Errorf("dial: %w", err)
			}
			err = tryRoundTrip(conn)
			conn.Close()
			if err != nil {
				return fmt.Errorf("round trip: %w", err)
			}
		}
		if _, err := c.Remove(ctx, id); err != nil {
			return fmt.Errorf("remove: %w", err)
		}
	}
	return nil
}

// A shard refuses a client whose settings it cannot apply.
func TestProxyThatIsNone(t *testing.T) {
	_, path, _ := startAt(t)
	c, err := link.Dial(testContext(t), path, link.Settings{Proxy: "https://ann:hush@proxy.example"})
	if err == nil {
		c.Close()
	}
	if !errors.Is(err, sandbox.Invalid) || !strings.Contains(err.Error(), "upstream proxy") || strings.Contains(err.Error(), "hush") {
		t.Errorf("a proxy that is reached by TLS: %v", err)
	}
}
