package gvisor

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/fdrpc"
)

const earlierBuild = "0123456789abcdef"

// hosts are a sentry host of this build, one of an earlier build, and a launcher. Neither
// sentry host can start anything.
type hosts struct {
	cfg Config
	// told receives true when the earlier host is needed, and false when it no longer is.
	told chan bool

	mu     sync.Mutex
	shared []string
	boots  []string       // left by starts
	fails  map[string]int // calls that fail without effect, by method
	late   map[string]int // calls that fail after their effect, by method
	lacks  bool           // the programs of the earlier build
	taken  [][]byte       // programs that it took
	loses  bool           // the programs that it took
	keys   chan installation.BuildKey
}

var errFails = sandbox.Errorf(sandbox.Unavailable, "it fails this time")

func newHosts(t *testing.T) *hosts {
	t.Helper()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	h := &hosts{told: make(chan bool, 8), fails: map[string]int{}, late: map[string]int{}}
	h.cfg = Config{
		Socket: at("own"),
		Earlier: Earlier{
			Socket: func(build string) string { return at(build) },
			Need:   func(build string) string { return at("need-" + build) },
		},
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	t.Cleanup(serving.Wait)
	t.Cleanup(cancel)
	for _, name := range []string{"own", earlierBuild} {
		l := listenAt(t, at(name))
		s := &fdrpc.Server{Handle: h.handle, Hello: sentryhost.MethodHello, Log: h.cfg.Log}
		serving.Go(func() { _ = s.Serve(ctx, l) })
	}
	l := listenAt(t, h.cfg.Earlier.Need(earlierBuild))
	context.AfterFunc(ctx, func() { l.Close() })
	serving.Go(func() { h.launch(ctx, l) })
	return h
}

func listenAt(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	const ours = 0o600
	l, err := fdrpc.Listen(path, ours)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// launch acts as the launcher while the earlier host is needed.
func (h *hosts) launch(ctx context.Context, l *net.UnixListener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		h.told <- true
		_, _ = conn.Write([]byte{sentryhost.Ready})
		_, _ = conn.Read(make([]byte, 1))
		stop()
		conn.Close()
		if ctx.Err() == nil {
			h.told <- false
		}
	}
}

// take reports whether this call of a method must fail, and counts it.
func take(of map[string]int, method string) bool {
	if of[method] == 0 {
		return false
	}
	of[method]--
	return true
}

func (h *hosts) handle(_ context.Context, r *fdrpc.Request) (any, []*os.File, error) {
	if r.Method == sentryhost.MethodBuild {
		return nil, nil, h.takeBuild(r)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if take(h.fails, r.Method) {
		return nil, nil, errFails
	}
	var body struct{ ID, Name string }
	if err := r.Decode(&body); err != nil {
		return nil, nil, err
	}
	isName := func(name string) bool { return name == body.Name }
	isID := func(id string) bool { return id == body.ID }
	var reply any
	switch r.Method {
	case sentryhost.MethodHello:
		reply = sentryhost.HelloReply{Version: sentryhost.Version}
	case sentryhost.MethodWatch:
	case sentryhost.MethodList, sentryhost.MethodShards, sentryhost.MethodSaved:
		reply = []string{}
	case sentryhost.MethodHome:
		reply = sentryhost.HomeReply{Build: earlierBuild}
		if h.lacks {
			reply = sentryhost.HomeReply{Lacks: earlierBuild}
		}
	case sentryhost.MethodBuildKey:
		var key installation.BuildKey
		if err := r.Decode(&key); err != nil {
			return nil, nil, err
		}
		h.keys <- key
	case sentryhost.MethodShareWithEarlier:
		h.shared = append(h.shared, body.Name)
	case sentryhost.MethodRevokeFromEarlier:
		h.shared = slices.DeleteFunc(h.shared, isName)
	case sentryhost.MethodStart:
		h.boots = append(h.boots, body.ID) // the answer is lost
		return nil, nil, errFails
	case sentryhost.MethodStop:
		h.boots = slices.DeleteFunc(h.boots, isID)
	default:
		return nil, nil, sandbox.Errorf(sandbox.Unsupported, "no %s here", r.Method)
	}
	if take(h.late, r.Method) {
		return nil, nil, errFails
	}
	return reply, nil, nil
}

// takeBuild takes the programs of the earlier build, or refuses them before it reads any.
func (h *hosts) takeBuild(r *fdrpc.Request) error {
	pipe, err := r.TakeFile(0)
	if err != nil {
		return err
	}
	defer pipe.Close()
	h.mu.Lock()
	refuses := take(h.fails, r.Method)
	h.mu.Unlock()
	if refuses {
		return errFails
	}
	content, err := io.ReadAll(pipe)
	if err != nil {
		return err
	}
	if !bytes.HasSuffix(content, []byte{sentryhost.ImportEnd}) {
		return sandbox.Errorf(sandbox.Conflict, "the sender gave up")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.taken, h.lacks = append(h.taken, content), h.loses
	return nil
}

// left waits until the earlier host is no longer needed, and returns the states and Boots
// left in it and the number of Boots in the engine.
func (h *hosts) left(t *testing.T, e *Engine) (shared, boots []string, known int) {
	t.Helper()
	for _, want := range []bool{true, false} {
		select {
		case got := <-h.told:
			if got != want {
				t.Fatalf("the launcher was told %t", got)
			}
		case <-time.After(time.Minute):
			t.Fatalf("the launcher was not told %t", want)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(h.shared), slices.Clone(h.boots), len(e.boots)
}

// A failed start in the sentry host of an earlier build leaves no state and no Boot there,
// and releases the host, also if the cleanup fails at first.
func TestFailedStartInAnEarlierBuild(t *testing.T) {
	const some = 3
	for _, tt := range []struct {
		name        string
		fails, late map[string]int
	}{
		{name: "the boot does not start"},
		{name: "it cannot be stopped at once", fails: map[string]int{sentryhost.MethodStop: some}},
		{name: "the state is not taken back at once", fails: map[string]int{sentryhost.MethodRevokeFromEarlier: some}},
		{name: "neither is done at once", fails: map[string]int{sentryhost.MethodStop: some, sentryhost.MethodRevokeFromEarlier: some}},
		{name: "the state is not shared", fails: map[string]int{sentryhost.MethodShareWithEarlier: 1}},
		{name: "nobody hears that it was", late: map[string]int{sentryhost.MethodShareWithEarlier: 1}},
		{name: "nor is it taken back at once", late: map[string]int{sentryhost.MethodShareWithEarlier: 1}, fails: map[string]int{sentryhost.MethodRevokeFromEarlier: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHosts(t)
			e, err := Open(t.Context(), h.cfg)
			if err != nil {
				t.Fatal(err)
			}
			h.mu.Lock()
			maps.Copy(h.fails, tt.fails)
			maps.Copy(h.late, tt.late)
			h.mu.Unlock()
			id := sandbox.NewBootID()
			spec := sandbox.BootSpec{Image: "i", Shape: sandbox.DefaultShape(), From: sandbox.NewSnapshotID()}
			if err := e.Start(t.Context(), id, spec); !errors.Is(err, sandbox.Unavailable) {
				t.Errorf("Start = %v", err)
			}
			if shared, boots, known := h.left(t, e); len(shared)+len(boots)+known > 0 {
				t.Errorf("left are the states %v, the boots %v, and %d in the engine", shared, boots, known)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A delayed revoke does not revoke a state that a later start needs by then.
func TestSharedAgain(t *testing.T) {
	h := newHosts(t)
	e, err := Open(t.Context(), h.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	name := sandbox.NewSnapshotID()
	share := func() (*host, func()) {
		t.Helper()
		to, revoke, err := e.hostFor(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return to, revoke
	}
	users := func(want int, of *host) bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return of.users == want
	}
	fail := func(times int) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.fails[sentryhost.MethodRevokeFromEarlier] = times
	}
	to, revoke := share()
	fail(math.MaxInt)
	revoke()
	if !users(2, to) {
		t.Error("a shared state does not hold the host")
	}
	_, revoke = share()
	fail(0)
	for deadline := time.Now().Add(time.Minute); !users(3, to); time.Sleep(time.Millisecond) { // two Boots, and the shared state
		if time.Now().After(deadline) {
			t.Fatal("the host is not let go")
		}
	}
	h.mu.Lock()
	if !slices.Contains(h.shared, name) {
		t.Error("it was taken back while a start needs it")
	}
	h.mu.Unlock()
	revoke()
	e.release(to)
	e.release(to) // like Boots that have ended
	if shared, _, _ := h.left(t, e); len(shared) > 0 {
		t.Errorf("%v is still there", shared)
	}
}

// A closed engine stops retrying its cleanup and leaves the rest to the next engine.
func TestCloseWhileUndoing(t *testing.T) {
	h := newHosts(t)
	e, err := Open(t.Context(), h.cfg)
	if err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	h.fails[sentryhost.MethodStop], h.fails[sentryhost.MethodRevokeFromEarlier] = math.MaxInt, math.MaxInt
	h.mu.Unlock()
	spec := sandbox.BootSpec{Image: "i", Shape: sandbox.DefaultShape(), From: sandbox.NewSnapshotID()}
	if err := e.Start(t.Context(), sandbox.NewBootID(), spec); err == nil {
		t.Error("it starts")
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if shared, boots, _ := h.left(t, e); len(shared) != 1 || len(boots) != 1 {
		t.Errorf("left are the states %v and the boots %v", shared, boots)
	}
}
