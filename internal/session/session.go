// Package session is the session manager: the life of every Sandbox, from its
// create to its certificate.
//
// Every change of a Sandbox is recorded before it is made, and every step can
// be repeated; Reconcile finishes or undoes what a crash left.
package session

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const (
	// startLimit bounds a create, the wait for its turn included.
	startLimit = 2 * time.Minute
	// stopLimit bounds the ending of a Sandbox once it is decided. The client
	// may have left: what is begun is finished.
	stopLimit = 30 * time.Second
	// parallelEnds bounds how many Sandboxes end at a time because of a
	// deadline or a reconcile.
	parallelEnds = 8
	// attempts is how often a write that lost a race is tried with the record
	// read anew.
	attempts = 5
)

// Config is what an operator may decide; the zero value works.
type Config struct {
	// Network is the policy of a Sandbox that asks for none; empty: public.
	Network sandbox.NetworkPolicy
	// Engine is the name that records carry, for example "gvisor".
	Engine string
	// AccessToken derives the token for the E2B services inside a Sandbox; nil:
	// none. It must return the same for an ID for ever.
	AccessToken func(sandboxID string) string
	// StopGrace is how long the Guest may take to end by itself; zero: it is
	// not asked.
	StopGrace time.Duration
	// ReconcileEvery is the time between comparisons of the records with what
	// the Nodes run; zero: a minute.
	ReconcileEvery time.Duration
	// NodeGrace is how long after the end of its Lease an unreachable Node's
	// Sandboxes are given up; zero: 30 seconds.
	NodeGrace time.Duration
	// Log may be nil.
	Log *slog.Logger
}

// Manager is the session manager. It implements sandbox.Sandboxes. Use New.
// One Manager at a time works on a Store.
type Manager struct {
	store     sandbox.Store
	nodes     sandbox.Nodes
	placement sandbox.Placement
	images    sandbox.Images
	cfg       Config
	log       *slog.Logger

	locks  locks
	alarm  alarm
	mendCh chan struct{} // a Sandbox could not be ended: reconcile soon

	mu       sync.Mutex
	creating map[string]*creation // by Sandbox ID
}

var _ sandbox.Sandboxes = (*Manager)(nil)

// New returns a Manager. It works at once; Run adds deadlines and reconciling.
func New(store sandbox.Store, nodes sandbox.Nodes, placement sandbox.Placement, images sandbox.Images, cfg Config) *Manager {
	if cfg.Network == "" {
		cfg.Network = sandbox.NetworkPublic
	}
	if cfg.AccessToken == nil {
		cfg.AccessToken = func(string) string { return "" }
	}
	if cfg.ReconcileEvery <= 0 {
		cfg.ReconcileEvery = time.Minute
	}
	if cfg.NodeGrace <= 0 {
		cfg.NodeGrace = 30 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Manager{
		store: store, nodes: nodes, placement: placement, images: images,
		cfg: cfg, log: cfg.Log,
		locks:    locks{held: map[string]*lock{}},
		alarm:    newAlarm(),
		mendCh:   make(chan struct{}, 1),
		creating: map[string]*creation{},
	}
}

// Run reconciles, ends Sandboxes at their deadlines and deletes old
// Certificates until ctx ends. It leaves Sandboxes running.
func (m *Manager) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.keepReconciled(ctx) })
	g.Go(func() error { return m.expire(ctx) })
	g.Go(func() error { return m.deleteCertificates(ctx) })
	return g.Wait()
}

func now() time.Time { return time.Now().UTC() }

// notFound is the answer for an absent Sandbox and for another Tenant's.
func notFound() error { return sandbox.Errorf(sandbox.NotFound, "there is no such sandbox") }

// locks lets one caller at a time change a Sandbox. The version of a record
// would keep them apart too, but then the loser would have to try again.
type locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	turn  chan struct{} // holds one token while locked
	users int           // holders and waiters
}

// acquire waits for the lock of id; the error is ctx's.
func (l *locks) acquire(ctx context.Context, id string) (release func(), err error) {
	l.mu.Lock()
	k := l.held[id]
	if k == nil {
		k = &lock{turn: make(chan struct{}, 1)}
		l.held[id] = k
	}
	k.users++
	l.mu.Unlock()

	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(l.held, id)
		}
	}
	select {
	case k.turn <- struct{}{}:
		return func() { <-k.turn; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// sleep waits for d or until ctx ends, and then returns ctx's error.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func isConflict(err error) bool { return errors.Is(err, sandbox.Conflict) }
