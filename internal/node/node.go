// Package node makes one host match the session manager's wishes: it claims Boots from
// Pools or starts them cold, binds them to Sandboxes, remembers their owners, and reports
// Boots that die.
//
// Boots live outside this process. A restarted Node recovers them from a journal, one
// small file per bound Boot, and the Engine's own list.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume/bridge"
)

const (
	// undoLimit bounds the removal of a Boot that is not wanted.
	undoLimit = 30 * time.Second
	// healthLimit bounds asking a Guest for its owner.
	healthLimit = 3 * time.Second
	// saveWait bounds the expected wait before a save: a pause has five minutes in all.
	saveWait = 4 * time.Minute
	// parallel bounds concurrent work on many Boots.
	parallel = 8
	// retryAfter is the Retry-After of a refusal that may pass soon.
	retryAfter = 2 * time.Second
)

// GuestControl is the Node's client of the Guest inside one Boot. The Guest's answers are
// hostile input. Methods are safe for concurrent use and return soon after ctx ends.
type GuestControl interface {
	// Health returns the owner that the Guest reports; an empty ID for a blank one.
	Health(ctx context.Context) (sandboxID string, number int64, err error)
	// Park readies a blank Boot to wait in a Pool; pids is the process limit that most
	// owners will have.
	Park(ctx context.Context, pids int64) error
	// Bind starts the Boot's life under an owner; waits: Ready must follow. Invalid
	// blames the Binding, not the Boot.
	Bind(ctx context.Context, b sandbox.Binding) (waits bool, err error)
	// Ready waits at most limit until the Template's services are up.
	Ready(ctx context.Context, limit time.Duration) error
	// KillBiggest kills the Process that uses most memory.
	KillBiggest(ctx context.Context) error
	// Close frees idle connections.
	Close()
}

// Dial connects to a TCP port of one Boot.
type Dial func(ctx context.Context, port uint16) (net.Conn, error)

// PoolConfig describes one Pool.
type PoolConfig struct {
	Template string
	Shape    sandbox.Shape // zero: sandbox.DefaultShape
	Min      int           // idle Boots that are always kept
	Max      int           // idle Boots at most; 0 parks nothing
}

// Config of a Node. Name, Dir, Volumes, Engine, Store, Images and Guest are required.
type Config struct {
	Name string // of the Node; Leases and records carry it
	// Address is where other processes reach the Node; see sandbox.NodeRecord.
	Address string
	Version string  // of the program; see sandbox.NodeRecord
	Dir     string  // the Node's own folder; made when absent
	Volumes volumes // keeps the files of Volumes
	Homes   Homes   // of Volumes on other Nodes; nil: no other Node stores any
	Engine  sandbox.Engine
	Leases  Leases
	Images  sandbox.Images // of the Pools' Templates
	// Held returns the digests of the images on this host. Nil: not known.
	Held func() ([]string, error)
	// Carrier brings images to this host; nil: all are here.
	Carrier Carrier
	// Guest makes the client of one Boot's Guest. It must not connect yet.
	Guest func(dial Dial) GuestControl
	Pools []PoolConfig
	// OnEnd receives each bound Boot that ended by itself, and is retried until it
	// returns nil. It is called only while Run runs. Nil: ends are dropped.
	OnEnd func(ctx context.Context, e sandbox.BootEnd) error

	// ColdStarts is how many Boots start or are restored at a time; zero: one per core.
	ColdStarts int
	// FenceAfter is how long after its last renewal of the Lease the Node has its Fencer cut
	// all Boots off, and freezes them; zero: never. The Fencer is closed when the Node opens;
	// nil: the Node has no fence, and FenceAfter does not count.
	FenceAfter time.Duration
	Fencer     sandbox.Fencer
	// Saves is how many Boots are saved at a time; zero: one per core, at least two. One
	// more slot is reserved for Tenants without a save in progress.
	Saves int
	// Waiting caps the turns ahead of a queued request, and MaxWait the expected wait for
	// a start or restore; zero: 1024, and 90 seconds. Requests beyond them are refused.
	Waiting int
	MaxWait time.Duration
	// Host reads the free disk and memory; nil: of Dir and this machine.
	Host func() (sandbox.HostState, error)
	// Observe receives every finished step of a Boot's life; nil: none.
	Observe func(step Step, err error, took time.Duration)
	Log     *slog.Logger // may be nil
}

// Carrier carries images between this host and the process that keeps the Templates.
// Its methods are safe for concurrent use.
type Carrier interface {
	// Present returns once an image is on this host.
	Present(ctx context.Context, image string) error
	// Offer brings an image of this host to where the Templates are, if it is missing
	// there.
	Offer(ctx context.Context, image string) error
}

// allHere is the Carrier of a host that keeps the Templates itself.
type allHere struct{}

func (allHere) Present(context.Context, string) error { return nil }
func (allHere) Offer(context.Context, string) error   { return nil }

// Step is a timed step in the life of a Boot.
type Step string

const (
	StepQueue   Step = "queue"   // a request's wait until it may start or be restored
	StepStart   Step = "start"   // by the Engine, until the Guest answers
	StepRestore Step = "restore" // the same, from a saved state
	StepFetch   Step = "fetch"   // until a saved state is on the host
	StepBind    Step = "bind"
	// StepSaveQueue is a request's wait until its Boot may be saved.
	StepSaveQueue Step = "save_queue"
	StepSave      Step = "save"
	StepStop      Step = "stop"
)

// observe starts timing a step; call the returned function with the step's result.
func (n *Node) observe(step Step) func(error) {
	began := time.Now()
	return func(err error) { n.cfg.Observe(step, err, time.Since(began)) }
}

// Node is one host. It implements sandbox.Nodes for its own name. Use Open.
type Node struct {
	cfg      Config
	engine   sandbox.Engine
	features sandbox.Features
	log      *slog.Logger
	journal  journal
	queue    *queue // of cold starts and restores
	late     *queue // of restores whose state is still on its way
	claims   *queue // of Boots that are bound out of a Pool
	saves    *queue // of Boots being saved
	host     *hostGauge
	pools    []*pool
	reports  reports
	carrying chan struct{} // holds one for each export and import in progress
	sent     *bases        // of states that went to other Nodes
	kept     *bases        // of states that come from them
	volumes  volumes
	homes    *bridge.Homes // serves Boots on other Nodes
	holder   string        // of the Lease

	displaced atomic.Bool // another host has the Lease
	term      *term
	settling  chan struct{} // holds one while settleFence works
	ending    chan struct{} // holds one while endTaken works

	mu       sync.Mutex
	boots    map[string]*boot     // every Boot of this Node, by ID
	owners   map[string]*boot     // bound Boots by Sandbox ID
	left     map[string]departure // bound Boots that ended lately, by Boot ID
	gone     chan struct{}        // closed when a Boot is gone, and then replaced
	arriving map[string]*arrival  // starts in progress by Sandbox ID
	// leaving are the Tenants of the states that leave this Node, by Snapshot, for leaveTime.
	leaving map[string]sandbox.TenantID
	fence   fence // highest Boot number seen of each Sandbox

	wg sync.WaitGroup // short work that events begin
}

var _ sandbox.Nodes = (*Node)(nil)

// bootState is where a Boot is in its life on this Node.
type bootState int

const (
	starting bootState = iota // the Engine starts it
	parked                    // blank, in a Pool
	giving                    // being given to a Sandbox
	bound                     // a Sandbox's
	stopping                  // being destroyed
)

// boot is one Boot. Fields from state on are guarded by Node.mu.
type boot struct {
	id    string
	image string
	shape sandbox.Shape
	guest GuestControl

	state     bootState
	owner     owner  // while given, bound or stopping
	pooled    bool   // it came from a Pool
	held      bool   // started from a saved state, not thawed yet
	dead      bool   // it ended while being started or given
	paused    bool   // saved and frozen, about to be stopped
	fenced    bool   // frozen by settleFence
	refreeze  bool   // the fence could not freeze it yet
	epoch     int64  // of the Node's Lease when it got its owner; 0: not known
	relieving bool   // its Guest is being asked to free memory
	unmount   func() // stops serving its Volumes; nil: not served

	changing sync.Mutex // held while a change is sent to the Boot; taken before Node.mu
}

// owner is the Sandbox that a Boot belongs to.
type owner struct {
	ref     sandbox.BootRef
	network sandbox.NetworkPolicy
	secrets bool // it has some; the journal does not keep them
	volumes mounted
	// revision of the Binding in force.
	revision int64
}

// Open returns a Node that has recovered every Boot an earlier process left: bound ones
// keep their Sandboxes, blank ones return to their Pools, the rest are destroyed. It
// takes the Node's Lease first: Conflict while another host has it. No background work runs until Run.
func Open(ctx context.Context, cfg Config) (*Node, error) {
	n, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	if n.features, err = n.engine.Probe(ctx); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	if n.holder, err = durable.Identity(identityFile(cfg.Dir)); err != nil {
		return nil, fmt.Errorf("the identity of the node: %w", err)
	}
	if err := n.takeLease(ctx); err != nil {
		return nil, fmt.Errorf("take the lease: %w", err)
	}
	if err := n.recover(ctx); err != nil {
		return nil, fmt.Errorf("take up running boots: %w", err)
	}
	if err := n.moveFence(ctx); err != nil {
		n.log.Warn("opening the fence failed; will retry", telemetry.KeyError, err)
	}
	return n, nil
}

// prepare makes a Node without Boots.
func prepare(cfg Config) (*Node, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.ColdStarts <= 0 {
		cfg.ColdStarts = runtime.GOMAXPROCS(0)
	}
	if cfg.Saves <= 0 {
		cfg.Saves = max(runtime.GOMAXPROCS(0), 2)
	}
	if cfg.Waiting <= 0 {
		cfg.Waiting = 1024
	}
	if cfg.MaxWait <= 0 {
		cfg.MaxWait = 90 * time.Second
	}
	if cfg.Host == nil {
		cfg.Host = hostStateOf(cfg.Dir)
	}
	if cfg.Carrier == nil {
		cfg.Carrier = allHere{}
	}
	if cfg.Homes == nil {
		cfg.Homes = noHomes{}
	}
	if cfg.Observe == nil {
		cfg.Observe = func(Step, error, time.Duration) {}
	}
	if cfg.OnEnd == nil {
		cfg.OnEnd = func(context.Context, sandbox.BootEnd) error { return nil }
	}
	j, err := openJournal(filepath.Join(cfg.Dir, "boots"))
	if err != nil {
		return nil, err
	}
	starts := queueConfig{
		slots: cfg.ColdStarts, maxAhead: cfg.Waiting, maxWait: cfg.MaxWait,
		tooLong: "too many sandboxes wait to be started or resumed; try again later",
	}
	claims := starts
	claims.slots *= claimsPerStart
	claims.noReturn = true // they start cold, or had no time left
	late := starts
	late.slots *= latePerStart
	late.reserved = 1
	n := &Node{
		cfg: cfg, engine: cfg.Engine, log: cfg.Log, journal: j,
		queue:  newQueue(starts),
		late:   newQueue(late),
		claims: newQueue(claims),
		saves: newQueue(queueConfig{
			slots: cfg.Saves + 1, reserved: 1, maxAhead: cfg.Waiting, maxWait: saveWait,
			tooLong: "too many of your sandboxes wait to be saved; try again later",
		}),
		host:     &hostGauge{read: cfg.Host},
		reports:  newReports(),
		boots:    map[string]*boot{},
		owners:   map[string]*boot{},
		left:     map[string]departure{},
		leaving:  map[string]sandbox.TenantID{},
		gone:     make(chan struct{}),
		arriving: map[string]*arrival{},
		carrying: make(chan struct{}, carriers),
		sent:     newBases(),
		kept:     newBases(),
		term:     &term{after: cfg.FenceAfter, fencer: cfg.Fencer},
		settling: make(chan struct{}, 1),
		ending:   make(chan struct{}, 1),
		volumes:  cfg.Volumes,
		homes:    bridge.NewHomes(bridge.Config{Node: cfg.Name, ForBoot: cfg.Volumes.ForBoot, Records: cfg.Homes, Log: cfg.Log}),
	}
	for _, c := range cfg.Pools {
		n.pools = append(n.pools, newPool(n, c))
	}
	return n, nil
}

// Run keeps Pools filled, renews the Lease and reports ends, until ctx ends or the Engine
// can no longer be watched. Boots outlive it.
func (n *Node) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.watch(ctx) })
	g.Go(func() error { return n.keepLease(ctx) })
	g.Go(func() error { return n.report(ctx) })
	g.Go(func() error { return n.keepCompared(ctx) })
	for _, p := range n.pools {
		g.Go(func() error { return p.keep(ctx) })
	}
	g.Go(func() error { return n.cleanVolumes(ctx) })
	g.Go(func() error { return n.homes.Run(ctx) })
	n.mountRecovered()
	err := g.Wait()
	n.unmountAll()
	n.wg.Wait()
	return err
}

// newBoot makes the Node's record of a Boot; it starts nothing.
func (n *Node) newBoot(id, image string, shape sandbox.Shape) *boot {
	dial := func(ctx context.Context, port uint16) (net.Conn, error) { return n.engine.Dial(ctx, id, port) }
	return &boot{id: id, image: image, shape: shape, guest: n.cfg.Guest(dial)}
}

// check returns Unavailable for a Node that is not this one.
func (n *Node) check(node string) error {
	if node != n.cfg.Name {
		return sandbox.Errorf(sandbox.Unavailable, "no node %q here", node)
	}
	return nil
}

// Dial implements sandbox.Nodes.
func (n *Node) Dial(ctx context.Context, node string, to sandbox.BootRef, port uint16) (net.Conn, error) {
	if err := n.check(node); err != nil {
		return nil, err
	}
	if _, err := n.boundTo(to); err != nil {
		return nil, err
	}
	return n.engine.Dial(ctx, to.BootID, port)
}

// NetworkLog implements sandbox.Nodes.
func (n *Node) NetworkLog(ctx context.Context, node string, of sandbox.BootRef) (sandbox.NetworkLog, error) {
	if err := n.check(node); err != nil {
		return sandbox.NetworkLog{}, err
	}
	if _, err := n.boundTo(of); err != nil {
		return sandbox.NetworkLog{}, err
	}
	return n.engine.NetworkLog(ctx, of.BootID)
}

// Usage implements sandbox.Nodes.
func (n *Node) Usage(ctx context.Context, node string, of sandbox.BootRef) (sandbox.Usage, error) {
	if err := n.check(node); err != nil {
		return sandbox.Usage{}, err
	}
	if _, err := n.boundTo(of); err != nil {
		return sandbox.Usage{}, err
	}
	return n.engine.Usage(ctx, of.BootID)
}

// boundTo returns the running Boot of a Sandbox; its ref must equal to.
func (n *Node) boundTo(to sandbox.BootRef) (*boot, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	b := n.owners[to.SandboxID]
	switch {
	case b == nil || b.state != bound || b.owner.ref.Tenant != to.Tenant:
		return nil, sandbox.Errorf(sandbox.NotFound, "the sandbox does not run here")
	case b.owner.ref != to:
		return nil, sandbox.Errorf(sandbox.Conflict, "the sandbox runs as another boot")
	}
	return b, nil
}

// Boots implements sandbox.Nodes. It includes Boots that are being stopped, and dead ones
// until their report is accepted.
func (n *Node) Boots(_ context.Context, node string) ([]sandbox.BoundBoot, error) {
	if err := n.check(node); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []sandbox.BoundBoot
	for _, b := range n.owners {
		all = append(all, sandbox.BoundBoot{BootRef: b.owner.ref, Revision: b.owner.revision})
	}
	return append(all, n.reports.boots()...), nil
}

// Stats implements sandbox.Nodes. A Node is ready once every Pool has been filled to its
// minimum, and stays ready while Pools can be refilled: a burst that drains them makes
// the Node slower, not unready.
func (n *Node) Stats(_ context.Context, node string) (sandbox.NodeStats, error) {
	if err := n.check(node); err != nil {
		return sandbox.NodeStats{}, err
	}
	stats := sandbox.NodeStats{Node: n.cfg.Name, Engine: n.features, Full: n.host.admit(false) != nil, Images: n.images()}
	stats.Wait, stats.Turn, stats.Waiting = n.queue.forecast()
	stats.Host, _ = n.host.now() // zero: not known
	n.mu.Lock()
	defer n.mu.Unlock()
	stats.Bound = len(n.owners)
	if n.displaced.Load() {
		stats.NotReady = append(stats.NotReady, displacedReason)
	}
	if n.term.fenced() {
		stats.NotReady = append(stats.NotReady, fencedReason)
	}
	for _, p := range n.pools {
		stats.Pools = append(stats.Pools, p.stats())
		if why := p.notReady(); why != "" {
			stats.NotReady = append(stats.NotReady, why)
		}
	}
	stats.Ready = len(stats.NotReady) == 0
	return stats, nil
}

// images returns the digests of the images on this host; empty: not known.
func (n *Node) images() []string {
	if n.cfg.Held == nil {
		return nil
	}
	digests, err := n.cfg.Held()
	if err != nil {
		n.log.Warn("listing the images of this host failed", telemetry.KeyError, err)
	}
	return digests[:min(len(digests), sandbox.MaxNodeImages)]
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

// uncancelled is a context for cleanup that outlasts the request.
func uncancelled(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
}

// detailOf is the public part of err.
func detailOf(err error) string {
	var e *sandbox.Error
	if errors.As(err, &e) {
		return e.Detail
	}
	return "an internal error"
}
