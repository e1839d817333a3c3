package session_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// nodes is sandbox.Nodes in memory: what runs, and how it fails.
type nodes struct {
	mu    sync.Mutex
	boots map[string]map[string]sandbox.BoundBoot // by node, by Boot ID
	away  map[string]bool                         // nodes that do not answer
	pool  bool                                    // Boots come from a Pool, with names of their own

	// onStart and onStop run first; their error fails the call. bound runs
	// after a Boot is bound; its error loses the answer.
	onStart func(ctx context.Context, node string, req sandbox.StartRequest) error
	onBound func(req sandbox.StartRequest) error
	onStop  func(ctx context.Context, bootID string) error
}

func newNodes(names ...string) *nodes {
	n := &nodes{boots: map[string]map[string]sandbox.BoundBoot{}, away: map[string]bool{}}
	for _, name := range names {
		n.boots[name] = map[string]sandbox.BoundBoot{}
	}
	return n
}

func (n *nodes) reach(node string) error {
	if n.boots[node] == nil || n.away[node] {
		return sandbox.Errorf(sandbox.Unavailable, "node %s is silent", node)
	}
	return nil
}

func (n *nodes) setAway(node string, away bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.away[node] = away
}

func (n *nodes) Start(ctx context.Context, node string, req sandbox.StartRequest) (sandbox.Started, error) {
	if n.onStart != nil {
		if err := n.onStart(ctx, node, req); err != nil {
			return sandbox.Started{}, err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.reach(node); err != nil {
		return sandbox.Started{}, err
	}
	started := sandbox.Started{BootID: req.BootID, Pooled: n.pool}
	if n.pool {
		started.BootID = sandbox.NewBootID()
	}
	n.boots[node][started.BootID] = sandbox.BoundBoot{
		BootRef: sandbox.BootRef{BootID: started.BootID, SandboxID: req.Binding.SandboxID, Number: req.Binding.BootNumber},
		Tenant:  req.Binding.Tenant,
	}
	if n.onBound != nil {
		if err := n.onBound(req); err != nil {
			return sandbox.Started{}, err
		}
	}
	return started, ctx.Err()
}

func (n *nodes) Stop(ctx context.Context, node, bootID string, _ time.Duration) error {
	if n.onStop != nil {
		if err := n.onStop(ctx, bootID); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.reach(node); err != nil {
		return err
	}
	delete(n.boots[node], bootID)
	return ctx.Err()
}

func (n *nodes) Boots(_ context.Context, node string) ([]sandbox.BoundBoot, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.reach(node); err != nil {
		return nil, err
	}
	var all []sandbox.BoundBoot
	for _, b := range n.boots[node] {
		all = append(all, b)
	}
	return all, nil
}

// all returns every Boot that runs.
func (n *nodes) all() []sandbox.BoundBoot {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []sandbox.BoundBoot
	for _, boots := range n.boots {
		for _, b := range boots {
			all = append(all, b)
		}
	}
	return all
}

// lose removes a Boot that died and returns the report of it.
func (n *nodes) lose(node, bootID string, cause sandbox.Cause) sandbox.BootEnd {
	n.mu.Lock()
	defer n.mu.Unlock()
	b := n.boots[node][bootID]
	delete(n.boots[node], bootID)
	return sandbox.BootEnd{BootRef: b.BootRef, Cause: cause, At: time.Now()}
}

func (n *nodes) put(node string, b sandbox.BoundBoot) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.boots[node][b.BootID] = b
}

func (n *nodes) Dial(context.Context, string, sandbox.BootRef, uint16) (net.Conn, error) {
	return nil, sandbox.Errorf(sandbox.Unsupported, "nobody dials here")
}

func (n *nodes) Stats(context.Context, string) (sandbox.NodeStats, error) {
	return sandbox.NodeStats{}, nil
}

// placed is a Placement with a fixed answer.
type placed []string

func (p placed) Place(context.Context, string, sandbox.Shape) ([]string, error) {
	if len(p) == 0 {
		return nil, sandbox.Errorf(sandbox.Exhausted, "no node is there")
	}
	return slices.Clone(p), nil
}

type images struct{}

func (images) Resolve(_ context.Context, template string) (string, error) {
	if template != "base" {
		return "", sandbox.Errorf(sandbox.NotFound, "there is no such template")
	}
	return "sha256:base", nil
}

// checkedStore fails the test when a write makes a move that States forbid, and
// counts writes.
type checkedStore struct {
	sandbox.Store
	t      *testing.T
	writes atomic.Int64
}

func (s *checkedStore) InsertSandbox(ctx context.Context, sb sandbox.Sandbox) (sandbox.Sandbox, error) {
	s.writes.Add(1)
	if sb.State != sandbox.Starting || sb.Boot.Number != 1 || sb.Boot.ID == "" || sb.Boot.Node == "" {
		s.t.Errorf("inserted without the intent: %+v", sb)
	}
	return s.Store.InsertSandbox(ctx, sb)
}

func (s *checkedStore) UpdateSandbox(ctx context.Context, sb sandbox.Sandbox) (sandbox.Sandbox, error) {
	s.writes.Add(1)
	before, err := s.Store.SandboxByID(ctx, sb.ID)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	after, err := s.Store.UpdateSandbox(ctx, sb)
	if err != nil {
		return after, err
	}
	if err := before.To(sb.State); err != nil && before.State != sb.State {
		s.t.Errorf("a forbidden move: %v", err)
	}
	if sb.Boot.Number < before.Boot.Number {
		s.t.Errorf("the boot number fell from %d to %d", before.Boot.Number, sb.Boot.Number)
	}
	if (sb.Ended != nil) == sb.Live() {
		s.t.Errorf("a %s record with certificate %v", sb.State, sb.Ended)
	}
	return after, nil
}

// world is a Manager and what it stands on.
type world struct {
	t     *testing.T
	store *checkedStore
	nodes *nodes
	m     *session.Manager
	stop  func()
}

const local = "local"

// newWorld makes a Manager over an empty Store and the named Nodes; none: one
// called local.
func newWorld(t *testing.T, names ...string) *world {
	if len(names) == 0 {
		names = []string{local}
	}
	st, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "x.db"))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, store: &checkedStore{Store: st, t: t}, nodes: newNodes(names...), stop: func() {}}
	for _, name := range names {
		w.lease(name, 24*time.Hour*365)
	}
	w.m = w.manager(w.store, w.nodes)
	return w
}

func (w *world) lease(node string, d time.Duration) {
	if err := w.store.RenewLease(w.t.Context(), sandbox.NodeRecord{Name: node, Engine: "fake", LeaseUntil: time.Now().Add(d)}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) manager(store sandbox.Store, n sandbox.Nodes) *session.Manager {
	var names placed
	for name := range w.nodes.boots {
		names = append(names, name)
	}
	slices.Sort(names)
	return session.New(store, n, names, images{}, session.Config{
		Engine:      "fake",
		AccessToken: func(id string) string { return "token of " + id },
	})
}

// run runs the Manager until stop.
func (w *world) run() {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- w.m.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			w.t.Errorf("Run = %v", err)
		}
	})
}

func (w *world) close() {
	w.stop()
	if err := w.store.Close(); err != nil {
		w.t.Errorf("Close: %v", err)
	}
}

// in runs a test in a bubble of its own time.
func in(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		test(t, w)
		w.consistent()
	})
}

func (w *world) create(tenant sandbox.TenantID, req sandbox.CreateRequest) sandbox.Sandbox {
	w.t.Helper()
	sb, err := w.m.Create(w.t.Context(), tenant, req)
	if err != nil {
		w.t.Fatalf("Create: %v", err)
	}
	return sb
}

func (w *world) record(id string) sandbox.Sandbox {
	w.t.Helper()
	sb, err := w.store.SandboxByID(context.WithoutCancel(w.t.Context()), id)
	if err != nil {
		w.t.Fatalf("record %s: %v", id, err)
	}
	return sb
}

// consistent fails the test unless every Boot is that of a running record, and
// the other way round.
func (w *world) consistent() {
	w.t.Helper()
	records, err := w.store.SandboxesNotEnded(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	running := map[sandbox.BootRef]bool{}
	for _, sb := range records {
		if sb.State != sandbox.Running {
			w.t.Errorf("%s is still %s", sb.ID, sb.State)
		}
		running[sandbox.BootRef{BootID: sb.Boot.ID, SandboxID: sb.ID, Number: sb.Boot.Number}] = true
	}
	for _, b := range w.nodes.all() {
		if !running[b.BootRef] {
			w.t.Errorf("the boot %+v belongs to no record", b.BootRef)
		}
		delete(running, b.BootRef)
	}
	for ref := range running {
		w.t.Errorf("the record of %+v has no boot", ref)
	}
}

func want(t *testing.T, what string, err error, code sandbox.Code) {
	t.Helper()
	if !errors.Is(err, code) {
		t.Errorf("%s = %v, want %s", what, err, code)
	}
}
