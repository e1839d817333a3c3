package gvisor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/mod/semver"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// Earlier tells how to reach the sentry hosts of earlier builds. They run Boots that were
// saved with another version of gVisor than ours, and Boots from before an upgrade.
type Earlier struct {
	Running []string // builds with running Boots
	// Socket returns the socket of a build's sentry host. Need returns the socket of the
	// launcher where an open connection keeps that sentry host running.
	Socket, Need func(build string) string
	// OldestGVisor is the oldest version that Boots are started with; empty: any.
	OldestGVisor string
}

// host is one sentry host and the connection to it.
type host struct {
	engine *Engine
	build  string // empty: this one
	socket string

	// For earlier builds only:
	users   int                // guarded by Engine.mu: Boots in it, links in its shards, states shared with it, and calls
	stop    context.CancelFunc // ends its keepConnected
	sharing sync.Mutex         // held while states are shared with it and revoked
	shared  map[string]int     // guarded by sharing: starts in progress, by state

	connecting chan struct{} // holds one while a caller connects

	mu     sync.Mutex
	client *sentryhost.Client // nil until it is connected
	need   net.Conn           // keeps it running; nil: our own, or not requested yet
	swept  bool               // leftover states of an earlier build's host were deleted
	closed bool
}

func (e *Engine) newHost(build, socket string) *host {
	return &host{engine: e, build: build, socket: socket, connecting: make(chan struct{}, 1), shared: map[string]int{}, stop: func() {}}
}

// connected returns the connection to the sentry host, and dials again after it was
// lost. It starts the sentry host of an earlier build if necessary.
func (h *host) connected(ctx context.Context) (*sentryhost.Client, error) {
	if c := h.current(); c != nil {
		return c, nil
	}
	select {
	case h.connecting <- struct{}{}:
		defer func() { <-h.connecting }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if c := h.current(); c != nil {
		return c, nil // another caller was quicker
	}
	if err := h.sayNeeded(ctx); err != nil {
		return nil, err
	}
	e := h.engine
	c, err := sentryhost.Dial(ctx, h.socket, sentryhost.Events{Boot: e.bootEvent, ShardEnd: func(n int) { e.shardEnded(h, n) }})
	if err != nil {
		return nil, err
	}
	if err := h.greet(ctx, c); err != nil {
		c.Close()
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		c.Close()
		return nil, sandbox.Errorf(sandbox.Unavailable, "the engine is closed")
	}
	h.client = c
	return c, nil
}

// current returns the connection unless it is lost.
func (h *host) current() *sentryhost.Client {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.client == nil {
		return nil
	}
	select {
	case <-h.client.Done():
		return nil
	default:
		return h.client
	}
}

// greet subscribes to events, and sends our sentry host the cache policy. The sentry
// host of an earlier build keeps no states: greet deletes its states that an earlier
// server did not import.
func (h *host) greet(ctx context.Context, c *sentryhost.Client) error {
	if err := c.Watch(ctx); err != nil {
		return err
	}
	if h.build == "" {
		return h.setCache(ctx, c)
	}
	if h.swept || c.Info.Version < sentryhost.PauseVersion {
		return nil
	}
	names, err := c.ListSaved(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := c.DeleteSaved(ctx, name); err != nil {
			return err
		}
	}
	h.swept = true
	return nil
}

// setCache sets how saved states are kept.
func (h *host) setCache(ctx context.Context, c *sentryhost.Client) error {
	cfg := h.engine.cfg
	if cfg.SavedCache == 0 && cfg.PackAfter == 0 {
		return nil
	}
	return c.SetCache(ctx, sentryhost.CacheRequest{Bytes: cfg.SavedCache, PackAfterSeconds: int64(cfg.PackAfter / time.Second)})
}

// sayNeeded has the launcher start the sentry host of an earlier build, and keep it
// running until close. It does so once. The caller must be the only one that connects.
func (h *host) sayNeeded(ctx context.Context) error {
	h.mu.Lock()
	said := h.build == "" || h.need != nil
	h.mu.Unlock()
	if said {
		return nil
	}
	conn, err := h.dialNeed(ctx)
	if errors.Is(err, os.ErrNotExist) {
		return sandbox.Errorf(sandbox.Conflict, "build %s of Cloud Sandbox is not here any more", h.build).WithCause(err)
	}
	if err == nil {
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		var answer [1]byte
		_, err = conn.Read(answer[:])
		if !stop() {
			err = errors.Join(err, ctx.Err())
		}
		if err == nil && answer[0] != sentryhost.Ready {
			err = fmt.Errorf("the launcher said %q", answer[:])
		}
		if err != nil {
			conn.Close()
		}
	}
	if err != nil {
		return sandbox.Errorf(sandbox.Unavailable, "the sentry host of build %s of Cloud Sandbox does not start", h.build).WithCause(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.need = conn
	if h.closed {
		return conn.Close()
	}
	return nil
}

// dialNeed connects to the launcher's socket for the build. The launcher may take a moment
// to notice a build that was fetched just now.
func (h *host) dialNeed(ctx context.Context) (net.Conn, error) {
	for late := time.Now().Add(noticed); ; {
		conn, err := new(net.Dialer).DialContext(ctx, "unixpacket", h.engine.cfg.Earlier.Need(h.build))
		if !errors.Is(err, os.ErrNotExist) || time.Now().After(late) {
			return conn, err
		}
		select {
		case <-time.After(firstPause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// close releases the sentry host, for good.
func (h *host) close() error {
	h.stop()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	var errs []error
	if h.client != nil {
		errs = append(errs, h.client.Close())
	}
	if h.need != nil {
		errs = append(errs, h.need.Close())
	}
	return errors.Join(errs...)
}

// keepConnected redials the sentry host whenever the connection ends, until ctx ends. A
// new sentry host may have found Boots dead.
func (h *host) keepConnected(ctx context.Context) {
	log := h.engine.cfg.Log.With("build", h.build)
	pause := firstPause
	for ctx.Err() == nil {
		c, err := h.connected(ctx)
		if err == nil {
			if err = h.compare(ctx, c); err == nil {
				pause = firstPause
				select {
				case <-c.Done():
					if ctx.Err() == nil {
						log.Warn("the connection to the sentry host was lost")
					}
				case <-ctx.Done():
				}
				continue
			}
		}
		if ctx.Err() == nil {
			log.Warn("connecting to the sentry host failed", telemetry.KeyError, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, mostPause)
	}
}

// retryUntilDone retries undo in the background until it succeeds or the engine is
// closed. After a close, the next engine finds the remains.
func (e *Engine) retryUntilDone(what string, undo func(context.Context) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	e.beside.Go(func() {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		e.beside.Go(func() {
			defer cancel()
			select {
			case <-e.closing:
			case <-ctx.Done():
			}
		})
		began := time.Now()
		said := began
		for pause := firstPause; ; pause = min(2*pause, mostPause) {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
			attempt, end := context.WithTimeout(ctx, undoTimeout)
			err := undo(attempt)
			end()
			if err == nil {
				e.cfg.Log.Info("deferred cleanup succeeded", "what", what, "took", time.Since(began))
				return
			}
			if pause == mostPause && time.Since(said) > time.Minute {
				said = time.Now()
				e.cfg.Log.Warn("deferred cleanup failed again; will retry", "what", what, "since", began, telemetry.KeyError, err)
			}
		}
	})
}

// compare ends the Boots that the sentry host should run and does not, and gives it
// copies of the links of the others.
func (h *host) compare(ctx context.Context, c *sentryhost.Client) error {
	e := h.engine
	links := map[string]*os.File{}
	e.mu.Lock() // before the list, which may lack Boots that start meanwhile
	for id, b := range e.boots {
		if b.host == h && b.started {
			links[id] = b.hostEnd
		}
	}
	e.mu.Unlock()
	running, err := c.List(ctx)
	if err != nil {
		return err
	}
	alive := map[string]bool{}
	for _, b := range running {
		alive[b.ID] = true
	}
	var lost []string
	for id := range links {
		if !alive[id] {
			lost = append(lost, id)
			delete(links, id)
		}
	}
	for id, f := range links {
		// A sentry host that has a copy ignores another one. A Boot that ends just now
		// has closed its link; that error is harmless.
		if err := c.ReturnLink(ctx, id, f); err != nil && ctx.Err() == nil {
			e.cfg.Log.Info("handing a link to the sentry host failed", telemetry.KeyBoot, id, telemetry.KeyError, err)
		}
	}
	for _, id := range lost {
		e.bootEvent(sandbox.BootEvent{ID: id, Kind: sandbox.BootEnded, Cause: sandbox.CauseEngineLost})
	}
	return nil
}

// hold returns the sentry host of an earlier build; the caller releases it.
func (e *Engine) hold(build string) (*host, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.cfg.Earlier.Need == nil {
		return nil, sandbox.Errorf(sandbox.Unavailable, "build %s of Cloud Sandbox cannot be reached", build)
	}
	h := e.earlier[build]
	if h == nil {
		h = e.newHost(build, e.cfg.Earlier.Socket(build))
		var ctx context.Context
		ctx, h.stop = context.WithCancel(context.Background())
		e.beside.Go(func() { h.keepConnected(ctx) })
		e.earlier[build] = h
	}
	h.users++
	return h, nil
}

// holdToo holds a held host once more.
func (e *Engine) holdToo(h *host) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h.users++
}

// reach holds the sentry host of an earlier build, which must answer within reachTime.
func (e *Engine) reach(ctx context.Context, build string) (*host, error) {
	h, err := e.hold(build)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	if _, err := h.connected(ctx); err != nil {
		e.release(h)
		return nil, err
	}
	return h, nil
}

// release releases one hold of a sentry host. After the last one, the sentry host of an
// earlier build is closed.
func (e *Engine) release(h *host) {
	if h == e.own {
		return
	}
	e.mu.Lock()
	h.users--
	last := h.users == 0 && e.earlier[h.build] == h
	if last {
		delete(e.earlier, h.build)
	}
	e.mu.Unlock()
	if !last {
		return
	}
	if err := h.close(); err != nil {
		e.cfg.Log.Warn("letting go of the sentry host of an earlier build failed", telemetry.KeyBuild, h.build, telemetry.KeyError, err)
	}
}

// hostFor returns and holds the sentry host that starts from a saved state; ours when
// from is empty. The caller calls revoke after the start, and releases the host after the
// Boot.
func (e *Engine) hostFor(ctx context.Context, from string) (h *host, revoke func(), err error) {
	nothing := func() {}
	if from == "" {
		return e.own, nothing, nil
	}
	own, err := e.pausing(ctx, e.own)
	if err != nil {
		return nil, nil, err
	}
	home, err := e.homeOf(ctx, own, from)
	if err != nil || home.Build == "" {
		return e.own, nothing, err
	}
	if err := e.admitGVisor(from, home); err != nil {
		return nil, nil, err
	}
	if h, err = e.hold(home.Build); err != nil {
		return nil, nil, err
	}
	if revoke, err = h.share(ctx, own, from); err != nil {
		e.release(h)
		return nil, nil, err
	}
	return h, revoke, nil
}

// homeOf returns the build that starts from a saved state, after it has fetched its programs
// if they are not here.
func (e *Engine) homeOf(ctx context.Context, own *sentryhost.Client, from string) (sentryhost.HomeReply, error) {
	home, err := own.Home(ctx, from)
	if err == nil {
		err = e.admitCPU(own, home.CPU)
	}
	if err != nil || home.Lacks == "" {
		return home, err
	}
	if err := e.admitGVisor(from, home); err != nil {
		return home, err
	}
	if e.cfg.Builds == nil {
		return home, sandbox.Errorf(sandbox.Conflict, "the saved state %s holds memory of build %.80s of Cloud Sandbox, with gVisor %.80s, and that build is not here: start from it where that build is, or from a state of files alone", from, home.Lacks, home.Engine)
	}
	if err := e.fetchBuild(ctx, home.Lacks); err != nil {
		return home, err
	}
	lacked := home.Lacks
	if home, err = own.Home(ctx, from); err == nil && home.Lacks != "" {
		err = sandbox.Errorf(sandbox.Unavailable, "build %.80s of Cloud Sandbox, which the saved state %s needs, was fetched and is not here any more: try again", lacked, from)
	}
	return home, err
}

// admitGVisor returns Conflict if the operator forbids starts with the gVisor of a state.
func (e *Engine) admitGVisor(from string, home sentryhost.HomeReply) error {
	if oldest := e.cfg.Earlier.OldestGVisor; oldest != "" && semver.Compare(home.Engine, oldest) < 0 {
		return sandbox.Errorf(sandbox.Conflict, "the saved state %s holds memory of gVisor %.80s, and this server starts nothing with one older than %s: start from a state of files alone", from, home.Engine, oldest)
	}
	return nil
}

// share has our sentry host put a state where the earlier build's finds it, until the last
// start from it is over. The caller holds h; share holds it until the state is revoked.
func (h *host) share(ctx context.Context, own *sentryhost.Client, name string) (revoke func(), err error) {
	if _, err := h.connected(ctx); err != nil {
		return nil, err
	}
	h.engine.holdToo(h)
	h.sharing.Lock()
	h.shared[name]++
	err = own.ShareWithEarlier(ctx, sentryhost.EarlierRequest{Name: name, Build: h.build})
	h.sharing.Unlock()
	revoke = func() { h.revoke(ctx, name) }
	if err != nil { // the state may be shared, or be shared yet
		revoke()
		return nil, err
	}
	return revoke, nil
}

// revoke revokes the state when no other start needs it, with retries until done, and
// then releases the host.
func (h *host) revoke(ctx context.Context, name string) {
	h.sharing.Lock()
	if h.shared[name]--; h.shared[name] == 0 {
		delete(h.shared, name)
	}
	h.sharing.Unlock()
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	err := h.takeBack(undo, name)
	if err == nil {
		h.engine.release(h)
		return
	}
	h.engine.cfg.Log.Warn("revoking a shared state failed; will retry", telemetry.KeyBuild, h.build, telemetry.KeySnapshot, name, telemetry.KeyError, err)
	h.engine.retryUntilDone("the shared saved state "+name, func(ctx context.Context) error {
		err := h.takeBack(ctx, name)
		if err == nil {
			h.engine.release(h)
		}
		return err
	})
}

// takeBack revokes a state unless a start needs it; that start revokes it at its end.
func (h *host) takeBack(ctx context.Context, name string) error {
	h.sharing.Lock()
	defer h.sharing.Unlock()
	if h.shared[name] > 0 {
		return nil
	}
	own, err := h.engine.own.connected(ctx)
	if err != nil {
		return err
	}
	return own.RevokeFromEarlier(ctx, sentryhost.EarlierRequest{Name: name, Build: h.build})
}

// hosts returns the held sentry hosts of earlier builds.
func (e *Engine) hosts() []*host {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Values(e.earlier))
}
