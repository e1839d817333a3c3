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
	// lastStops is how long the end of the process waits for Boots that are being
	// stopped.
	lastStops = 3 * time.Second
	// stopPatience is how long the Boot of a Sandbox that ends may resist before
	// its record is closed all the same. Reconciling goes on to stop the Boot.
	stopPatience = 5 * time.Minute
	// parallelEnds bounds how many Sandboxes end at a time because of a
	// deadline or a reconcile.
	parallelEnds = 8
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
	// OpenSecret opens a Tenant's Secret, NotFound for one that is not there; nil:
	// there are none.
	OpenSecret func(ctx context.Context, tenant sandbox.TenantID, name string) (sandbox.OpenSecret, error)
	// Authority returns the certificate that a Sandbox with Secrets trusts, and its
	// key, both in PEM; required with OpenSecret.
	Authority func(sandboxID string) (certificate, key string, err error)
	// StopGrace is how long the Guest may take to end by itself; zero: it is
	// not asked.
	StopGrace time.Duration
	// ReconcileEvery is the time between comparisons of the records with what
	// the Nodes run; zero: a minute.
	ReconcileEvery time.Duration
	// NodeGrace is how long after the end of its Lease an unreachable Node's
	// Sandboxes are given up; zero: 30 seconds.
	NodeGrace time.Duration
	// SuspensionsEvery is the time between questions who is suspended; zero: a second.
	SuspensionsEvery time.Duration
	// LayerBytes is how much the layers of one Tenant may have together; zero: none
	// are taken.
	LayerBytes int64
	// UsageLife is how long what Sandboxes used can be asked for; zero: for ever.
	UsageLife time.Duration
	// Created is told of every create that ended: whether the Boot came from a
	// Pool, and how it went; nil: nobody is.
	Created func(pooled bool, err error, took time.Duration)
	// Ended is told of every Sandbox that ended; nil: nobody is.
	Ended func(ctx context.Context, sb sandbox.Sandbox)
	// LetGo is told of every Snapshot that the Retention of its Tenant lets go; nil:
	// nobody is.
	LetGo func(ctx context.Context, snap sandbox.Snapshot)
	// Imported has the images that come with Snapshots; nil: nobody lists or bounds them.
	Imported Imported
	// Survived is told of every Sandbox that lost its Boot and goes on from a
	// checkpoint, and why; nil: nobody is.
	Survived func(cause sandbox.Cause)
	// Moved is told of every pause, resume, snapshot, fork, checkpoint and making of
	// a volume, and how it went; nil: nobody is.
	Moved func(what string, err error, took time.Duration)
	// Event is told what the operator may want to know of; nil: nobody is.
	Event func(e sandbox.Event)
	// Log may be nil.
	Log *slog.Logger
}

// Imported has the images of Templates that come with imported Snapshots.
type Imported interface {
	// Admit returns Exhausted, before the image of a version comes, when the Tenant's
	// Quota has no room for it.
	Admit(ctx context.Context, tenant sandbox.TenantID, version string) error
	// Keep makes an image that came a version of the Tenant's Template. Exhausted
	// when the image is beyond the Quota, or there are too many names.
	Keep(ctx context.Context, tenant sandbox.TenantID, template, version string) error
	// Drop removes an image that nobody names and nothing stands on.
	Drop(ctx context.Context, version string) error
}

// store is the part of a Store that a Manager reads and writes.
type store interface {
	sandbox.SandboxStore
	sandbox.SnapshotStore
	sandbox.VolumeStore
	// Of sandbox.NodeStore, QuotaStore and TenantStore.
	Nodes(ctx context.Context) ([]sandbox.NodeRecord, error)
	TenantQuota(ctx context.Context, tenant sandbox.TenantID) (sandbox.Quota, error)
	Suspensions(ctx context.Context) (sandbox.Suspensions, error)
	// Of sandbox.UsageStore.
	CountUsage(ctx context.Context, sandboxes []string, at time.Time) error
	CountTraffic(ctx context.Context, boots []sandbox.BootTraffic, at time.Time) error
	Usage(ctx context.Context, query sandbox.UsageQuery) (sandbox.UsagePage, error)
	TrimUsage(ctx context.Context, before sandbox.Day) (int, error)
}

// nodes is the part of sandbox.Nodes that a Manager calls.
type nodes interface {
	sandbox.NodeBoots
	sandbox.NodeSaves
	sandbox.NodeVolumes
}

// Manager is the session manager. It implements sandbox.Sandboxes. Use New.
// One Manager at a time works on a Store.
type Manager struct {
	Records
	store     store
	nodes     nodes
	placement sandbox.Placement
	images    sandbox.Images
	cfg       Config
	log       *slog.Logger

	locks       locks
	alarm       alarm
	idle        idle
	tails       tails
	checkpoints checkpoints
	suspended   suspended
	mendCh      chan struct{} // a Sandbox could not be ended: reconcile soon
	// sweepCh: there may be Snapshots and Volumes that nobody needs.
	sweepCh chan struct{}
	// retainCh: Tenants have new Snapshots, those in grown.
	retainCh chan struct{}
	stopping sync.WaitGroup // Boots that no record names

	mu       sync.Mutex
	creating map[string]*creation     // by Sandbox ID
	moving   map[string]bool          // Sandboxes that pause, resume or are saved
	leaving  map[string]chan struct{} // closed once the Boot of what was paused is gone
	held     map[string]int           // Snapshots in the making, or started from, and Volumes in the making or going
	grown    map[sandbox.TenantID]bool
}

var (
	_ sandbox.Sandboxes = (*Manager)(nil)
	_ sandbox.BootEnds  = (*Manager)(nil)
)

// New returns a Manager. It works at once; Run adds deadlines and reconciling.
func New(store store, nodes nodes, placement sandbox.Placement, images sandbox.Images, cfg Config) *Manager {
	if cfg.Network == "" {
		cfg.Network = sandbox.NetworkPublic
	}
	if cfg.AccessToken == nil {
		cfg.AccessToken = func(string) string { return "" }
	}
	if cfg.ReconcileEvery <= 0 {
		cfg.ReconcileEvery = time.Minute
	}
	if cfg.SuspensionsEvery <= 0 {
		cfg.SuspensionsEvery = time.Second
	}
	if cfg.NodeGrace <= 0 {
		cfg.NodeGrace = 30 * time.Second
	}
	if cfg.Created == nil {
		cfg.Created = func(bool, error, time.Duration) {}
	}
	if cfg.Ended == nil {
		cfg.Ended = func(context.Context, sandbox.Sandbox) {}
	}
	if cfg.LetGo == nil {
		cfg.LetGo = func(context.Context, sandbox.Snapshot) {}
	}
	if cfg.Event == nil {
		cfg.Event = func(sandbox.Event) {}
	}
	if cfg.Survived == nil {
		cfg.Survived = func(sandbox.Cause) {}
	}
	if cfg.Moved == nil {
		cfg.Moved = func(string, error, time.Duration) {}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Manager{
		Records: Records{Store: store},
		store:   store, nodes: nodes, placement: placement, images: images,
		cfg: cfg, log: cfg.Log,
		locks:       locks{held: map[string]*lock{}},
		alarm:       newAlarm(),
		idle:        newIdle(),
		tails:       newTails(),
		checkpoints: newCheckpoints(),
		mendCh:      make(chan struct{}, 1),
		sweepCh:     make(chan struct{}, 1),
		retainCh:    make(chan struct{}, 1),
		grown:       map[sandbox.TenantID]bool{},
		creating:    map[string]*creation{},
		moving:      map[string]bool{},
		leaving:     map[string]chan struct{}{},
		held:        map[string]int{},
	}
}

// Run reconciles, ends or pauses Sandboxes at their deadlines and idle ones, makes
// checkpoints, and deletes old Certificates, and Snapshots that nobody needs or that
// a Retention lets go, and pauses what runs of suspended Tenants, until ctx ends. It
// leaves Sandboxes running. A Boot of what was paused that is still being stopped
// after lastStops is left to the next process: no record names it, so Reconcile stops
// it.
func (m *Manager) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.keepReconciled(ctx) })
	g.Go(func() error { return m.expire(ctx) })
	g.Go(func() error { return m.endIdle(ctx) })
	g.Go(func() error { return m.deleteCertificates(ctx) })
	g.Go(func() error { return m.keepSwept(ctx) })
	g.Go(func() error { return m.keepRetained(ctx) })
	g.Go(func() error { return m.keepCheckpoints(ctx) })
	g.Go(func() error { return m.keepTraffic(ctx) })
	g.Go(func() error { return m.keepSuspended(ctx) })
	defer m.awaitStops()
	return g.Wait()
}

// awaitStops waits until no Boot that no record names is being stopped, at most for
// lastStops. What is left behind then asks the Store for nothing.
func (m *Manager) awaitStops() {
	stopped := make(chan struct{})
	go func() {
		m.stopping.Wait()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(lastStops):
		m.log.Warn("shutdown cut off the stops of boots without a sandbox; the next process goes on with them")
	}
}

// observe tells how what began at a time went.
func (m *Manager) observe(what string, err error, began time.Time) {
	m.cfg.Moved(what, err, time.Since(began))
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
