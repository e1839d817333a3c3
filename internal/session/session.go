// Package session is the session manager. It controls the life of every Sandbox, from its
// create to its TerminationRecord.
//
// Every change of a Sandbox is recorded before it is made, and every step is idempotent.
// Reconcile finishes or undoes changes that a crash interrupted.
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
	// startLimit bounds a create, including its wait in the queue.
	startLimit = 2 * time.Minute
	// stopLimit bounds the ending of a Sandbox once its end is recorded. It is finished
	// even if the client disconnects.
	stopLimit = 30 * time.Second
	// lastStops is how long shutdown waits for Boots that are being stopped.
	lastStops = 3 * time.Second
	// stopPatience is how long stopping the Boot of an ending Sandbox may fail before the
	// Sandbox is recorded as ended anyway. Reconciling continues to stop the Boot.
	stopPatience = 5 * time.Minute
	// parallelEnds bounds the concurrent ends of Sandboxes: of a Tenant by deadlines, and of all
	// by reconciling.
	parallelEnds = 8
	// parallelNodes bounds the Nodes that are asked at once, so that silent ones delay
	// the others only when there are many.
	parallelNodes = 64
)

// Config holds the operator's settings; the zero value works.
type Config struct {
	// Network is the default policy; empty: public.
	Network sandbox.NetworkPolicy
	// Engine is the Engine name in records, for example "gvisor".
	Engine string
	// AccessToken derives the token for the E2B services inside a Sandbox; nil: none. It
	// must always return the same token for an ID.
	AccessToken func(sandboxID string) string
	// OpenSecret opens a Tenant's Secret; NotFound for an unknown one. Nil: Secrets are
	// unsupported.
	OpenSecret func(ctx context.Context, tenant sandbox.TenantID, name string) (sandbox.OpenSecret, error)
	// Authority returns the certificate and key of the per-sandbox CA for a Sandbox with
	// Secrets, both in PEM; required with OpenSecret.
	Authority func(sandboxID string) (certificate, key string, err error)
	// StopGrace is how long the Guest may take to exit by itself; zero: it is killed at
	// once.
	StopGrace time.Duration
	// ReconcileEvery is the interval of reconciling; zero: 1 minute.
	ReconcileEvery time.Duration
	// NodeGrace is the time after the end of an unreachable Node's Lease from which its
	// Sandboxes count as lost; zero: 30 seconds.
	NodeGrace time.Duration
	// SuspensionsEvery is the interval of polling the Suspensions; zero: 1 second.
	SuspensionsEvery time.Duration
	// NodesEvery is the interval of checks for Nodes that drain or are away, and for
	// Sandboxes that are still on draining Nodes; zero: 1 second.
	NodesEvery time.Duration
	// LayerBytes bounds the total size of one Tenant's layers; zero: layers are
	// unsupported.
	LayerBytes int64
	// UsageLife is how long usage is kept; zero: for ever.
	UsageLife time.Duration
	// Created is called after every create, with whether the Boot came from a Pool, and
	// the result. It may be nil.
	Created func(pooled bool, err error, took time.Duration)
	// Ended is called for every Sandbox that ended. It may be nil.
	Ended func(ctx context.Context, sb sandbox.Sandbox)
	// OnPruned is called for every Snapshot that its Tenant's Retention deletes. It may be
	// nil.
	OnPruned func(ctx context.Context, snap sandbox.Snapshot)
	// Imported manages the images that come with Snapshots; nil: they are neither listed
	// nor bounded.
	Imported Imported
	// Survived is called with the cause when a Sandbox lost its Boot and returned to a
	// checkpoint. It may be nil.
	Survived func(cause sandbox.Cause)
	// OnTransition is called after every pause, resume, snapshot, fork, checkpoint and volume
	// create, with the result. It may be nil.
	OnTransition func(what string, err error, took time.Duration)
	// Event is called for every sandbox.Event that the Manager reports. It may be nil.
	Event func(e sandbox.Event)
	// Log may be nil.
	Log *slog.Logger
}

// Imported manages the Template images that come with imported Snapshots.
type Imported interface {
	// Admit is called before the import. It returns Exhausted when the Tenant's Quota has
	// no room for the image of version.
	Admit(ctx context.Context, tenant sandbox.TenantID, version string) error
	// Keep makes an imported image a version of the Tenant's Template. Exhausted when the
	// image exceeds the Quota, or there are too many names.
	Keep(ctx context.Context, tenant sandbox.TenantID, template, version string) error
	// Drop removes an image without names and users.
	Drop(ctx context.Context, version string) error
}

// store is the part of a Store that a Manager reads and writes.
type store interface {
	sandbox.SandboxStore
	sandbox.SnapshotStore
	sandbox.LeftStates
	sandbox.SnapshotMoves
	sandbox.VolumeStore
	leases
	// Of sandbox.QuotaStore and TenantStore.
	TenantQuota(ctx context.Context, tenant sandbox.TenantID) (sandbox.Quota, error)
	Suspensions(ctx context.Context) (sandbox.Suspensions, error)
	// Of sandbox.UsageStore.
	CountUsage(ctx context.Context, sandboxes []string, at time.Time) error
	CountTraffic(ctx context.Context, boots []sandbox.BootTraffic, at time.Time) error
	Usage(ctx context.Context, query sandbox.UsageQuery) (sandbox.UsagePage, error)
	TrimUsage(ctx context.Context, before sandbox.Day) (int, error)
}

// leases is the part of sandbox.NodeStore that a Manager reads and writes.
type leases interface {
	Nodes(ctx context.Context) ([]sandbox.NodeRecord, error)
	RetireNodes(ctx context.Context, away time.Duration) ([]string, error)
	SetLost(ctx context.Context, name string, epoch int64, lost bool) error
}

// nodes is the part of sandbox.Nodes that a Manager calls.
type nodes interface {
	sandbox.NodeBoots
	sandbox.NodeSaves
	sandbox.NodeChanges
	sandbox.NodeVolumes
	// Of sandbox.NodeReports.
	Stats(ctx context.Context, node string) (sandbox.NodeStats, error)
}

// Manager is the session manager. It implements sandbox.Sandboxes. Use New. Only one
// Manager at a time may use a Store.
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
	line        line
	copies      copies        // their map is guarded by mu
	leaves      chan struct{} // a semaphore of parallelDrains
	mendCh      chan struct{} // asks for reconciling soon, after a failure
	lostCh      chan struct{} // asks for reconciling at once: a Node is lost
	// sweepCh asks for a sweep of unneeded Snapshots and Volumes.
	sweepCh chan struct{}
	// retainCh says that the Tenants in grown have new Snapshots.
	retainCh chan struct{}
	guesses  guesses
	stopping sync.WaitGroup // running stops of Boots that no record names

	expiring expiring

	mu       sync.Mutex
	creating map[string]*creation     // by Sandbox ID
	moving   map[string]bool          // Sandboxes that pause, resume or are saved
	leaving  map[string]chan struct{} // by Sandbox ID; closed once the Boot of the paused Sandbox is gone
	carried  map[string]chan struct{} // Volumes that move to another Node, by ID; closed once they have
	held     map[string]int           // IDs of Snapshots being made or used, and of Volumes being made or deleted
	grown    map[sandbox.TenantID]bool
	known    map[string]sandbox.NodeRecord // Nodes by name, as watchNodes last saw them
	absent   map[absentBoot]time.Time      // when their Nodes first did not list them
}

var (
	_ sandbox.Sandboxes = (*Manager)(nil)
	_ sandbox.BootEnds  = (*Manager)(nil)
)

// New returns a Manager. It works without Run, which adds deadlines and reconciling.
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
	if cfg.NodesEvery <= 0 {
		cfg.NodesEvery = time.Second
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
	if cfg.OnPruned == nil {
		cfg.OnPruned = func(context.Context, sandbox.Snapshot) {}
	}
	if cfg.Event == nil {
		cfg.Event = func(sandbox.Event) {}
	}
	if cfg.Survived == nil {
		cfg.Survived = func(sandbox.Cause) {}
	}
	if cfg.OnTransition == nil {
		cfg.OnTransition = func(string, error, time.Duration) {}
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
		copies:      newCopies(),
		leaves:      make(chan struct{}, parallelDrains),
		guesses:     guesses{images: map[namedTemplate]string{}},
		mendCh:      make(chan struct{}, 1),
		lostCh:      make(chan struct{}, 1),
		sweepCh:     make(chan struct{}, 1),
		retainCh:    make(chan struct{}, 1),
		grown:       map[sandbox.TenantID]bool{},
		creating:    map[string]*creation{},
		moving:      map[string]bool{},
		leaving:     map[string]chan struct{}{},
		carried:     map[string]chan struct{}{},
		held:        map[string]int{},
		absent:      map[absentBoot]time.Time{},
	}
}

// Run does the background work until ctx ends. It reconciles, makes checkpoints, and
// counts traffic. It ends or pauses Sandboxes that are due, idle, or of suspended
// Tenants, and moves those on Nodes that drain. It deletes old TerminationRecords,
// unneeded Snapshots, and Snapshots beyond a Retention. It leaves Sandboxes running. If a
// paused Sandbox's Boot is still being stopped after lastStops, the next process stops it
// by Reconcile, because no record names it.
func (m *Manager) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.keepReconciled(ctx) })
	g.Go(func() error { return m.expire(ctx) })
	g.Go(func() error { return m.endIdle(ctx) })
	g.Go(func() error { return m.deleteTerminationRecords(ctx) })
	g.Go(func() error { return m.keepSwept(ctx) })
	g.Go(func() error { return m.keepRetained(ctx) })
	g.Go(func() error { return m.keepCheckpoints(ctx) })
	g.Go(func() error { return m.keepTraffic(ctx) })
	g.Go(func() error { return m.keepSuspended(ctx) })
	g.Go(func() error { return m.watchNodes(ctx) })
	g.Go(func() error { return m.keepDrained(ctx) })
	g.Go(func() error { return m.keepVolumesDrained(ctx) })
	g.Go(func() error { return m.keepSnapshotsDrained(ctx) })
	defer m.awaitStops()
	return g.Wait()
}

// awaitStops waits up to lastStops for the running stops of Boots that no record names.
// Stops that are cut off do not use the Store.
func (m *Manager) awaitStops() {
	stopped := make(chan struct{})
	go func() {
		m.stopping.Wait()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(lastStops):
		m.log.Warn("shutdown cut off the stops of boots without a sandbox; the next process continues them")
	}
}

// observe reports the result and duration of an operation that began at began.
func (m *Manager) observe(what string, err error, began time.Time) {
	m.cfg.OnTransition(what, err, time.Since(began))
}

func now() time.Time { return time.Now().UTC() }

// notFound is the error for an absent Sandbox and for another Tenant's.
func notFound() error { return sandbox.Errorf(sandbox.NotFound, "no such sandbox") }

// locks serializes changes of a Sandbox. The record's Version would detect races too, but
// then the loser would have to retry.
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
