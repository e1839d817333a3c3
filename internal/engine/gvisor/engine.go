// Package gvisor is the default Engine: every Boot is a gVisor sentry of its
// own, started by the sentry host, with one link into a link shard.
//
// The package has no privileges and links no part of runsc: it speaks to the sentry host
// and to the shards over Unix sockets. It keeps a copy of every link's host end, so that
// a dead shard is replaced and its Boots notice only broken connections.
package gvisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/builds"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/client"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// Config of an Engine.
type Config struct {
	Socket string // of the sentry host
	// Earlier says how to reach the sentry hosts of earlier builds. Zero: no such hosts.
	Earlier Earlier
	// Network is the operator's settings for link shards. If they are Fenced, a shard that
	// starts before the first call of FenceAt carries nothing until then.
	Network link.Settings
	// SavedCache bounds the saved states that stay unpacked, in bytes, and PackAfter is
	// the unused time after which a state is packed. Both zero: no state is packed.
	SavedCache int64
	PackAfter  time.Duration
	// CPU limits the features that new Boots see.
	CPU sandbox.CPULimit
	// Host is the name of this host in errors; empty: "this host".
	Host string
	// Spares is how many empty sentries may wait for the next starts.
	Spares int
	// Revoked returns the newest list of revoked sentry hosts of the cluster, as JSON that
	// its authority signed. Nil, or an empty list: none is known.
	Revoked func() []byte
	// BuildKey returns the newest statement of which key signs the cluster's builds, an
	// installation.BuildKey as JSON. Nil, or an empty text: none is known.
	BuildKey func() []byte
	// Builds has the programs of earlier builds; nil: only those on this host can be used.
	Builds *builds.Store
	Log    *slog.Logger
}

const (
	// linksPerShard is how many links one shard carries.
	linksPerShard = 256
	// bootTimeout bounds the wait for a Guest to answer.
	bootTimeout = 20 * time.Second
	// lateBootTimeout is the same bound for a Guest whose memory is still on its way. It is
	// shorter than the two minutes that a resume may take.
	lateBootTimeout = 100 * time.Second
	// reachTime bounds the wait of a starting server for the sentry host of an earlier
	// build.
	reachTime = 30 * time.Second
	// undoTimeout bounds an attempt to undo a failed start.
	undoTimeout = 15 * time.Second
	// noticed bounds the time in which the launcher notices a build that was fetched.
	noticed = 5 * time.Second
	// firstPause and mostPause bound the pause between attempts.
	firstPause, mostPause = 50 * time.Millisecond, 2 * time.Second
)

// Engine runs Boots in gVisor. Use Open.
type Engine struct {
	cfg    Config
	events chan sandbox.BootEvent

	own *host               // sentry host of this build
	cpu sandbox.CPUFeatures // that new Boots see; empty: all of the host

	mu      sync.Mutex
	earlier map[string]*host // the needed ones of earlier builds, by build
	boots   map[string]*boot
	ending  map[string]sandbox.BootStatus // Boots whose end Watch has not handled yet; nil while it does not run
	shards  map[cable]*shard
	gone    map[string]departed // Boots that ended lately
	closed  bool
	fenceAt *time.Duration // of the last FenceAt; nil: none
	beside  sync.WaitGroup // goroutines that watch earlier hosts, pass on the key of builds, or retry an undo

	closing  chan struct{} // closed with the engine
	fetching chan struct{} // holds one while a build is fetched
}

// cable identifies a shard: by number, and the sentry host that started it.
type cable struct {
	host   *host
	number int
}

// departed is the traffic of a Boot that has ended.
type departed struct {
	sandbox.Traffic
	at time.Time
}

var _ sandbox.Engine = (*Engine)(nil)

// boot is a running or starting Boot. Its fields but frozen, network, secrets and limits
// are set before it is published; those are guarded by Engine.mu.
type boot struct {
	host    *host // the host of its sentry
	image   string
	shape   sandbox.Shape
	from    string // saved state that it started from
	shard   *shard
	hostEnd *os.File
	frozen  bool          // guarded by Engine.mu
	started bool          // guarded by Engine.mu: Start has returned without error
	gone    chan struct{} // closed if it ends before Start has returned
	linked  bool          // guarded by Engine.mu: its shard is to have its link
	network sandbox.NetworkPolicy
	secrets sandbox.SecretBinding
	limits  sandbox.Limits
}

// shard is one link shard and its client. client is nil until it is connected.
type shard struct {
	host   *host // that started it
	number int
	links  int // guarded by Engine.mu: links carried and being added

	mu     sync.Mutex // held while connecting and recovering
	client *link.Client
}

// Open connects to the running sentry hosts and adopts every Boot. Boots whose link is
// lost for good are ended.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	e := &Engine{cfg: cfg, events: make(chan sandbox.BootEvent, 1024), earlier: map[string]*host{}, boots: map[string]*boot{}, shards: map[cable]*shard{}, gone: map[string]departed{}, closing: make(chan struct{}), fetching: make(chan struct{}, 1)}
	e.own = e.newHost("", cfg.Socket)
	if err := e.limitCPU(ctx); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	hosts := []*host{e.own}
	for _, build := range cfg.Earlier.Running {
		h, err := e.reach(ctx, build)
		if err != nil {
			cfg.Log.Error("the sentry host of an earlier build does not come back; its boots are lost", telemetry.KeyBuild, build, telemetry.KeyError, err)
			continue // one build's sandboxes must not block all others
		}
		hosts = append(hosts, h)
	}
	if err := e.adopt(ctx, hosts); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	for _, h := range hosts { // the adopted Boots hold them
		e.release(h)
	}
	if cfg.BuildKey != nil {
		e.beside.Go(e.passBuildKeys)
	}
	return e, nil
}

// limitCPU sets the features that new Boots see. A limit that this host cannot keep is an
// error: states would claim to need less than their programs use.
func (e *Engine) limitCPU(ctx context.Context) error {
	if e.cfg.CPU == (sandbox.CPULimit{}) {
		return nil
	}
	own, err := e.own.connected(ctx)
	if err != nil {
		return err
	}
	if own.Info.HideableCPU == "" {
		return errors.New("limit the CPU features of sandboxes: this host cannot hide any, because the CPU or the hypervisor does not let the instruction CPUID fault (cpuid_fault in /proc/cpuinfo)")
	}
	if e.cpu, err = e.cfg.CPU.Of(own.Info.CPU, own.Info.HideableCPU); err != nil {
		return fmt.Errorf("limit the CPU features of sandboxes: %w", err)
	}
	return nil
}

// Close closes all connections and files without ending any Boot.
func (e *Engine) Close() error {
	e.mu.Lock()
	if !e.closed {
		close(e.closing)
	}
	e.closed = true
	hosts := append(slices.Collect(maps.Values(e.earlier)), e.own)
	shards, boots := e.shards, e.boots
	e.earlier, e.shards, e.boots = map[string]*host{}, map[cable]*shard{}, map[string]*boot{}
	e.mu.Unlock()
	var errs []error
	for _, h := range hosts {
		errs = append(errs, h.close())
	}
	e.beside.Wait()
	for _, s := range shards {
		s.mu.Lock()
		if s.client != nil {
			errs = append(errs, s.client.Close())
		}
		s.mu.Unlock()
	}
	for _, b := range boots {
		errs = append(errs, b.hostEnd.Close())
	}
	return errors.Join(errs...)
}

// Probe reports the sentry host's gVisor.
func (e *Engine) Probe(ctx context.Context) (sandbox.Features, error) {
	host, err := e.own.connected(ctx)
	if err != nil {
		return sandbox.Features{}, err
	}
	return sandbox.Features{Name: "gvisor", Version: host.Info.Engine, Build: host.Info.Build, Pause: host.Info.Version >= sentryhost.PauseVersion, CPU: host.Info.CPU, GuestCPU: sentryhost.NeededCPU(cmp.Or(e.cpu, host.Info.CPU))}, nil
}

// List returns the running Boots.
func (e *Engine) List(context.Context) ([]sandbox.BootStatus, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []sandbox.BootStatus
	for id, b := range e.boots {
		if b.started {
			out = append(out, b.status(id))
		}
	}
	for _, s := range e.ending {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b sandbox.BootStatus) int { return compare(a.ID, b.ID) })
	return out, nil
}

// status describes b for List. The caller holds Engine.mu.
func (b *boot) status(id string) sandbox.BootStatus {
	return sandbox.BootStatus{ID: id, Image: b.image, Shape: b.shape, Network: b.network, Limits: b.limits, From: b.from}
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Usage reports the resource usage of a Boot.
func (e *Engine) Usage(ctx context.Context, id string) (sandbox.Usage, error) {
	b, err := e.find(id)
	if err != nil {
		return sandbox.Usage{}, err
	}
	host, err := b.host.connected(ctx)
	if err != nil {
		return sandbox.Usage{}, err
	}
	return host.Usage(ctx, id)
}

func (e *Engine) find(id string) (*boot, error) {
	if !sandbox.ValidBootID(id) {
		return nil, sandbox.Errorf(sandbox.Invalid, "%q is not a boot ID", id)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	b := e.boots[id]
	if b == nil || !b.started {
		return nil, sandbox.Errorf(sandbox.NotFound, "no boot %s runs here", id)
	}
	return b, nil
}

// Dial connects to a port of a Boot through its link.
func (e *Engine) Dial(ctx context.Context, id string, port uint16) (net.Conn, error) {
	b, err := e.find(id)
	if err != nil {
		return nil, err
	}
	return e.dial(ctx, b.shard, id, port)
}

// dial connects through the shard.
func (e *Engine) dial(ctx context.Context, s *shard, id string, port uint16) (net.Conn, error) {
	var conn net.Conn
	err := e.onShard(ctx, s, func(c *link.Client) (err error) {
		conn, err = c.DialGuest(ctx, id, port)
		return err
	})
	return conn, err
}

// onShard calls an idempotent method of a shard. If the shard ends meanwhile, it is
// replaced and called once more.
func (e *Engine) onShard(ctx context.Context, s *shard, ask func(*link.Client) error) error {
	for attempt := 0; ; attempt++ {
		c, err := e.shardClient(ctx, s)
		if err != nil {
			return err
		}
		if err = ask(c); err == nil || attempt > 0 || !broken(c) {
			return err
		}
	}
}

// broken reports whether a shard's connection is gone.
func broken(c *link.Client) bool {
	select {
	case <-c.Done():
		return true
	default:
		return false
	}
}

// SetNetwork changes the policy of a Boot's link.
func (e *Engine) SetNetwork(ctx context.Context, id string, policy sandbox.NetworkPolicy) error {
	if !policy.Valid() {
		return sandbox.Errorf(sandbox.Invalid, "%q is not a network policy", policy)
	}
	return e.relink(ctx, id, func(b *boot) { b.network = policy }, func(c *link.Client) error { return c.SetPolicy(ctx, id, policy) })
}

// SetSecrets changes the secret headers that a Boot's link adds to requests.
func (e *Engine) SetSecrets(ctx context.Context, id string, secrets sandbox.SecretBinding) error {
	return e.relink(ctx, id, func(b *boot) { b.secrets = secrets }, func(c *link.Client) error { return c.SetSecrets(ctx, id, secrets) })
}

// relink records the new setting of a Boot's link, and applies it to the link's shard. A
// concurrent replacement of the shard applies the record.
func (e *Engine) relink(ctx context.Context, id string, note func(*boot), tell func(*link.Client) error) error {
	b, err := e.find(id)
	if err != nil {
		return err
	}
	e.mu.Lock()
	note(b)
	e.mu.Unlock()
	return e.onShard(ctx, b.shard, tell)
}

// NetworkLog asks the link shard.
func (e *Engine) NetworkLog(ctx context.Context, id string) (sandbox.NetworkLog, error) {
	b, err := e.find(id)
	if err != nil {
		return sandbox.NetworkLog{}, err
	}
	var log sandbox.NetworkLog
	err = e.onShard(ctx, b.shard, func(c *link.Client) (err error) {
		log, err = c.Log(ctx, id)
		return err
	})
	return log, err
}

// NetworkCounts sums the decisions of the running link shards since they began; limited
// counts the refused DNS queries over a limit.
func (e *Engine) NetworkCounts(ctx context.Context) (allowed, refused, limited int64) {
	e.mu.Lock()
	shards := slices.Collect(maps.Values(e.shards))
	e.mu.Unlock()
	for _, s := range shards {
		s.mu.Lock()
		c := s.client
		s.mu.Unlock()
		if c == nil {
			continue
		}
		if stats, err := c.Stats(ctx); err == nil {
			allowed += stats.Allowed
			refused += stats.Refused
			limited += stats.Limited
		}
	}
	return allowed, refused, limited
}

// depart remembers the traffic of a Boot that has ended, and forgets old ones.
func (e *Engine) depart(id string, carried sandbox.Traffic) {
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.gone, func(_ string, d departed) bool { return now.Sub(d.at) > sandbox.TrafficMemory })
	if carried != (sandbox.Traffic{}) {
		e.gone[id] = departed{carried, now}
	}
}

// Traffic asks the link shards. A shard of an earlier version reports nothing.
func (e *Engine) Traffic(ctx context.Context) (map[string]sandbox.Traffic, error) {
	all := map[string]sandbox.Traffic{}
	e.mu.Lock()
	shards := slices.Collect(maps.Values(e.shards))
	for id, d := range e.gone {
		all[id] = d.Traffic
	}
	e.mu.Unlock()
	for _, s := range shards {
		c, err := e.shardClient(ctx, s)
		if err != nil {
			return nil, err
		}
		links, err := c.Traffic(ctx)
		if err != nil && !errors.Is(err, sandbox.Unsupported) {
			return nil, err
		}
		for _, l := range links {
			all[l.BootID] = sandbox.Traffic{Sent: l.Sent, Received: l.Received, Refused: l.Refused}
		}
	}
	return all, nil
}

// SetLimits changes a Boot's limits at the sentry host, and its bandwidth at the link
// shard.
func (e *Engine) SetLimits(ctx context.Context, id string, limits sandbox.Limits) error {
	b, err := e.find(id)
	if err != nil {
		return err
	}
	if err := b.shape.CheckLimits(limits); err != nil {
		return err
	}
	host, err := b.host.connected(ctx)
	if err != nil {
		return err
	}
	if err := host.Limit(ctx, id, limits); err != nil {
		return err
	}
	e.mu.Lock()
	before := b.limits.Bandwidth
	b.limits = limits // before the link: a concurrent replacement of the shard applies it
	e.mu.Unlock()
	if limits.Bandwidth == before {
		return nil
	}
	return e.onShard(ctx, b.shard, func(c *link.Client) error { return c.SetBandwidth(ctx, id, limits.Bandwidth) })
}

// Watch passes events on until ctx ends. It reconnects to a lost sentry host, and reports
// the Boots that ended meanwhile.
func (e *Engine) Watch(ctx context.Context, handle func(sandbox.BootEvent)) error {
	watchCtx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	e.setEnding(map[string]sandbox.BootStatus{})
	defer e.setEnding(nil)
	wg.Go(func() { e.own.keepConnected(watchCtx) })
	for {
		select {
		case ev := <-e.events:
			handle(ev)
			e.unlist(ev)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (e *Engine) setEnding(boots map[string]sandbox.BootStatus) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ending = boots
}

// unlist takes a Boot off the list after the event of its end.
func (e *Engine) unlist(ev sandbox.BootEvent) {
	if ev.Kind != sandbox.BootEnded {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.ending, ev.ID)
}

// bootEvent handles an event of the sentry host. It runs in the connection's reader, so
// another goroutine frees the link.
func (e *Engine) bootEvent(ev sandbox.BootEvent) {
	if ev.Kind != sandbox.BootEnded {
		e.publish(ev)
		return
	}
	e.mu.Lock()
	b := e.boots[ev.ID]
	known := b != nil && b.started
	if b != nil && !known && b.gone != nil {
		close(b.gone)
		b.gone = nil
	}
	if known {
		delete(e.boots, ev.ID)
		if e.ending != nil {
			e.ending[ev.ID] = b.status(ev.ID)
		}
	}
	e.mu.Unlock()
	if !known {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
		defer cancel()
		e.freeLink(ctx, ev.ID, b)
		e.releaseHosts(b)
		e.publish(ev)
	}()
}

func (e *Engine) publish(ev sandbox.BootEvent) {
	select {
	case e.events <- ev:
	default:
		e.unlist(ev)
		e.cfg.Log.Error("dropping an event, because the engine has no watcher", telemetry.KeyBoot, ev.ID, "kind", string(ev.Kind))
	}
}

// Start boots an image and waits for the Guest.
func (e *Engine) Start(ctx context.Context, id string, spec sandbox.BootSpec) error {
	if !sandbox.ValidBootID(id) {
		return sandbox.Errorf(sandbox.Invalid, "%q is not a boot ID", id)
	}
	if err := spec.Shape.Check(); err != nil {
		return err
	}
	if spec.From != "" {
		if !sandbox.ValidSnapshotID(spec.From) {
			return sandbox.Errorf(sandbox.Invalid, "%.80q is not a snapshot ID", spec.From)
		}
	}
	h, revoke, err := e.hostFor(ctx, spec.From)
	if err != nil {
		return err
	}
	defer revoke()
	b, guestEnd, err := e.reserve(id, spec, h)
	if err != nil {
		e.release(h)
		return err
	}
	defer guestEnd.Close()
	if err := e.launch(ctx, id, b, guestEnd); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		if stopErr := e.discard(undo, id, b); stopErr != nil {
			e.cfg.Log.Warn("cleaning up a failed start failed; will retry", telemetry.KeyBoot, id, telemetry.KeyError, stopErr)
			e.retryUntilDone("the boot "+id, func(ctx context.Context) error { return e.discard(ctx, id, b) })
		}
		return err
	}
	e.mu.Lock()
	b.started = true
	e.mu.Unlock()
	return nil
}

// reserve makes the link and publishes the ID, so that a second Start is a Conflict. The
// Boot then holds its host.
func (e *Engine) reserve(id string, spec sandbox.BootSpec, h *host) (*boot, *os.File, error) {
	hostEnd, guestEnd, err := link.Pair()
	if err != nil {
		return nil, nil, fmt.Errorf("make a link: %w", err)
	}
	if hostEnd, err = link.Kept(hostEnd); err != nil {
		guestEnd.Close()
		return nil, nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.boots[id] != nil || e.closed {
		hostEnd.Close()
		guestEnd.Close()
		return nil, nil, sandbox.Errorf(sandbox.Conflict, "the boot %s runs already", id)
	}
	b := &boot{host: h, image: spec.Image, shape: spec.Shape, from: spec.From, hostEnd: hostEnd, network: sandbox.NetworkNone, limits: spec.Shape.Limits(), gone: make(chan struct{})}
	b.shard = e.roomyShard()
	b.shard.links++
	e.boots[id] = b
	return b, guestEnd, nil
}

// roomyShard returns the lowest shard of this build with room. The caller holds e.mu.
func (e *Engine) roomyShard() *shard {
	for n := 0; ; n++ {
		s := e.shards[cable{e.own, n}]
		if s == nil {
			s = &shard{host: e.own, number: n}
			e.shards[cable{e.own, n}] = s
		}
		if s.links < linksPerShard {
			return s
		}
	}
}

// launch plugs the link in and starts the sentry concurrently, then waits for the Guest.
func (e *Engine) launch(ctx context.Context, id string, b *boot, guestEnd *os.File) error {
	host, err := b.host.connected(ctx)
	if err != nil {
		return err
	}
	plugged := make(chan error, 1)
	go func() { plugged <- e.plug(ctx, id, b) }()
	r := sentryhost.StartRequest{ID: id, Image: b.image, Shape: b.shape, From: b.from}
	if b.host == e.own {
		r.Spares, r.CPU = e.cfg.Spares, e.cpu
	}
	started, err := host.Start(ctx, r, guestEnd, b.hostEnd)
	if plugErr := <-plugged; err == nil && plugErr != nil {
		err = fmt.Errorf("plug the link in: %w", plugErr)
	}
	if err != nil {
		return err
	}
	if started.Shape != (sandbox.Shape{}) {
		e.mu.Lock()
		b.shape, b.limits = started.Shape, started.Shape.Limits()
		e.mu.Unlock()
	}
	limit := bootTimeout
	if started.Arrives {
		limit = lateBootTimeout
	}
	return e.waitForGuest(ctx, id, b, started.SavedAt, limit)
}

// plug gives a shard the link of a Boot that starts. From now on a replacement of the
// shard gets the link too.
func (e *Engine) plug(ctx context.Context, id string, b *boot) error {
	e.mu.Lock()
	b.linked = true
	e.mu.Unlock()
	return e.onShard(ctx, b.shard, func(c *link.Client) error {
		err := c.Add(ctx, id, b.hostEnd, sandbox.NetworkNone)
		if sandbox.CodeOf(err) == sandbox.Conflict {
			return nil // connecting plugged it in already
		}
		return err
	})
}

// waitForGuest dials the Guest until it answers, and sends it the time of its save. A
// port without a listener refuses at once, so the pauses are short and few.
func (e *Engine) waitForGuest(asker context.Context, id string, b *boot, savedAt time.Time, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(asker, limit)
	defer cancel()
	guest := client.New(func(ctx context.Context, port uint16) (net.Conn, error) {
		return e.dial(ctx, b.shard, id, port)
	})
	defer guest.Close()
	e.mu.Lock()
	gone := b.gone
	e.mu.Unlock()
	for {
		err := guest.NotifyRestored(ctx, savedAt)
		if err == nil {
			return nil
		}
		select {
		case <-gone:
			return sandbox.Errorf(sandbox.Unavailable, "the sandbox ended while it started: try again").WithCause(err)
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			if asker.Err() != nil {
				return errors.Join(asker.Err(), err)
			}
			return sandbox.Errorf(sandbox.Unavailable, "the sandbox did not come up within %d seconds: try again", int(limit.Seconds())).WithCause(err)
		}
	}
}

// Stop ends a Boot and frees its resources.
func (e *Engine) Stop(ctx context.Context, id string, grace time.Duration) error {
	if !sandbox.ValidBootID(id) {
		return sandbox.Errorf(sandbox.Invalid, "%q is not a boot ID", id)
	}
	e.mu.Lock()
	b := e.boots[id]
	mine := b != nil && b.started
	frozen := mine && b.frozen
	if mine {
		b.started = false // from now on find does not return it
	}
	e.mu.Unlock()
	if !mine {
		// Not ours, or being stopped by another call: the sentry host waits for that one.
		h := e.own
		if b != nil {
			h = b.host
		}
		host, err := h.connected(ctx)
		if err != nil {
			return err
		}
		return host.Stop(ctx, id)
	}
	if grace > 0 && !frozen { // a frozen Guest cannot
		e.askToEnd(ctx, id, b, grace)
	}
	if err := e.discard(ctx, id, b); err != nil {
		e.mu.Lock()
		b.started = true // still there: a later Stop tries again
		e.mu.Unlock()
		return err
	}
	return nil
}

// askToEnd gives the Guest grace to end its Processes.
func (e *Engine) askToEnd(ctx context.Context, id string, b *boot, grace time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	guest := client.New(func(ctx context.Context, port uint16) (net.Conn, error) {
		return e.dial(ctx, b.shard, id, port)
	})
	defer guest.Close()
	if err := guest.Shutdown(ctx, grace); err != nil && ctx.Err() == nil {
		e.cfg.Log.Info("asking the guest to shut down failed", telemetry.KeyBoot, id, telemetry.KeyError, err)
	}
}

// discard ends the sentry, if it exists, and unplugs the link.
func (e *Engine) discard(ctx context.Context, id string, b *boot) error {
	host, err := b.host.connected(ctx)
	if err != nil {
		return err
	}
	if err := host.Stop(ctx, id); err != nil {
		return err
	}
	e.freeLink(ctx, id, b)
	e.mu.Lock()
	if e.boots[id] == b {
		delete(e.boots, id)
	}
	e.mu.Unlock()
	e.releaseHosts(b)
	return nil
}

// releaseHosts releases the sentry hosts of a removed Boot.
func (e *Engine) releaseHosts(b *boot) {
	e.release(b.shard.host)
	e.release(b.host)
}

// freeLink unplugs a link and closes our copy. A shard that cannot be reached has no
// links any more.
func (e *Engine) freeLink(ctx context.Context, id string, b *boot) {
	e.mu.Lock()
	b.linked = false
	e.mu.Unlock()
	if c, err := e.shardClient(ctx, b.shard); err == nil {
		last, err := c.Remove(ctx, id)
		e.depart(id, sandbox.Traffic{Sent: last.Sent, Received: last.Received, Refused: last.Refused})
		if err != nil && sandbox.CodeOf(err) != sandbox.NotFound {
			e.cfg.Log.Warn("unplugging a link failed", telemetry.KeyBoot, id, telemetry.KeyError, err)
		}
	}
	b.hostEnd.Close()
	e.mu.Lock()
	b.shard.links--
	e.mu.Unlock()
}
