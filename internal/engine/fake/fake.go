// Package fake is an Engine in memory, for tests of code that uses Engines. Its Boots are
// goroutines: they serve a small HTTP control service on sandbox.GuestPort (see Guest)
// and echo on every other port.
package fake

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Image is the only image of an Engine when New is given none.
const Image = "sha256:fake"

// DefaultCPU are the CPU features of a new Engine's host.
const DefaultCPU sandbox.CPUFeatures = "avx sse"

// Hooks let a test make an Engine slow or make it fail. Fields may be nil; they are set
// before the Engine is used.
type Hooks struct {
	// Start runs before a Boot starts; its error fails the start.
	Start func(ctx context.Context, id string) error
	// Started runs once a Boot has started.
	Started func(id string)
	// Stop runs before a Boot stops; its error fails the stop.
	Stop func(ctx context.Context, id string) error
	// SetNetwork runs before a policy changes; its error fails the change.
	SetNetwork func(ctx context.Context, id string, policy sandbox.NetworkPolicy) error
	SetSecrets func(ctx context.Context, id string, secrets sandbox.SecretBinding) error
	// SetLimits runs before limits change; its error fails the change.
	SetLimits func(ctx context.Context, id string, limits sandbox.Limits) error
	// Event runs before Watch handles an event.
	Event func(sandbox.BootEvent)
	// Traffic returns the traffic of Boots; nil: none.
	Traffic func() map[string]sandbox.Traffic
	// Save runs before a Boot is saved; its error fails the save.
	Save func(ctx context.Context, id, name string) error
	// Freeze and Thaw run before a Boot is frozen or thawed; their error fails the call.
	Freeze, Thaw func(ctx context.Context, id string) error
	// DeleteSaved runs before a saved state is removed; its error fails it.
	DeleteSaved func(ctx context.Context, name string) error
}

// Engine is a sandbox.Engine in memory. Use New. Its methods are safe for
// concurrent use.
type Engine struct {
	Hooks Hooks
	// CPU are the features that the host reports; New sets DefaultCPU. Set it before the
	// Engine is used. Empty: the host reports none, and starts from any state.
	CPU    sandbox.CPUFeatures
	images []string
	host   *host
	events chan sandbox.BootEvent
}

var (
	_ sandbox.Engine = (*Engine)(nil)
	_ sandbox.Pauser = (*Engine)(nil)
	_ sandbox.Fencer = (*Engine)(nil)
)

// host is the state that survives Reopen.
type host struct {
	began    time.Time
	mu       sync.Mutex
	fenceAt  time.Duration // zero: never
	boots    map[string]*boot
	ending   map[string]sandbox.BootStatus // Boots whose end Watch has not handled yet; nil while it does not run
	starting map[string]bool
	saved    map[string]saved
	arriving map[string]*arrival // states that arrive, by name
	replicas map[string]saved    // of states with a group, also once they are deleted
	brought  []string            // images that were imported with saved states
	watcher  *Engine             // receives the events
}

// New returns an Engine on a host of its own that can start from images; from Image when
// none is given.
func New(images ...string) *Engine {
	return open(&host{began: time.Now(), boots: map[string]*boot{}, starting: map[string]bool{}, saved: map[string]saved{}, arriving: map[string]*arrival{}, replicas: map[string]saved{}}, images)
}

func open(h *host, images []string) *Engine {
	if len(images) == 0 {
		images = []string{Image}
	}
	e := &Engine{CPU: DefaultCPU, images: images, host: h, events: make(chan sandbox.BootEvent, 4096)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watcher = e
	return e
}

func (e *Engine) hasImage(image string) bool {
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	return slices.Contains(e.images, image) || slices.Contains(e.host.brought, image)
}

// Reopen returns a new Engine over the Boots of e, like a restarted process; e must not
// be used again.
func (e *Engine) Reopen() *Engine {
	again := open(e.host, e.images)
	again.Hooks, again.CPU = e.Hooks, e.CPU
	return again
}

// Probe implements sandbox.Engine.
func (e *Engine) Probe(ctx context.Context) (sandbox.Features, error) {
	return sandbox.Features{Name: "fake", Version: "1", Build: build, Pause: true, CPU: e.CPU, GuestCPU: e.CPU}, ctx.Err()
}

// Start implements sandbox.Engine.
func (e *Engine) Start(ctx context.Context, id string, spec sandbox.BootSpec) (err error) {
	if !sandbox.ValidBootID(id) {
		return badID()
	}
	if err := spec.Shape.Check(); err != nil {
		return err
	}
	from, err := e.host.load(spec)
	if err != nil {
		return err
	}
	if spec.From != "" {
		spec.Shape = from.Shape
		if err := e.admitCPU(from.CPU); err != nil {
			return err
		}
	}
	if !e.hasImage(spec.Image) {
		return sandbox.Errorf(sandbox.NotFound, "no such image")
	}
	if err := e.host.reserve(id); err != nil {
		return err
	}
	defer func() { e.host.release(id) }()
	if e.Hooks.Start != nil {
		if err := e.Hooks.Start(ctx, id); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	b := newBoot(id, spec, from)
	if !from.Memory {
		b.cpu = e.CPU
	}
	e.host.add(b)
	if e.Hooks.Started != nil {
		e.Hooks.Started(id)
	}
	return nil
}

func badID() error { return sandbox.Errorf(sandbox.Invalid, "that is not a boot ID") }

func noBoot() error { return sandbox.Errorf(sandbox.NotFound, "no such boot") }

func (h *host) reserve(id string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.boots[id] != nil || h.starting[id] {
		return sandbox.Errorf(sandbox.Conflict, "the boot runs already")
	}
	h.starting[id] = true
	return nil
}

func (h *host) release(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.starting, id)
}

func (h *host) add(b *boot) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.boots[b.id] = b
}

// take removes a Boot and returns it, or nil.
func (h *host) take(id string) *boot {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.boots[id]
	delete(h.boots, id)
	return b
}

// end is take for a Boot that ends by itself: it stays listed while its event is not
// handled.
func (h *host) end(id string) *boot {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.boots[id]
	delete(h.boots, id)
	if b != nil && h.ending != nil {
		h.ending[id] = b.status()
	}
	return b
}

func (h *host) setEnding(boots map[string]sandbox.BootStatus) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ending = boots
}

func (h *host) unlist(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.ending, id)
}

func (h *host) find(id string) (*boot, error) {
	if !sandbox.ValidBootID(id) {
		return nil, badID()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if b := h.boots[id]; b != nil {
		return b, nil
	}
	return nil, noBoot()
}

// Stop implements sandbox.Engine.
func (e *Engine) Stop(ctx context.Context, id string, _ time.Duration) error {
	if !sandbox.ValidBootID(id) {
		return badID()
	}
	if e.Hooks.Stop != nil {
		if err := e.Hooks.Stop(ctx, id); err != nil {
			return err
		}
	}
	if b := e.host.take(id); b != nil {
		b.close()
	}
	return nil
}

// List implements sandbox.Engine.
func (e *Engine) List(ctx context.Context) ([]sandbox.BootStatus, error) {
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	var all []sandbox.BootStatus
	for _, b := range e.host.boots {
		all = append(all, b.status())
	}
	all = slices.AppendSeq(all, maps.Values(e.host.ending))
	slices.SortFunc(all, func(a, b sandbox.BootStatus) int { return strings.Compare(a.ID, b.ID) })
	return all, ctx.Err()
}

// Dial implements sandbox.Engine.
func (e *Engine) Dial(ctx context.Context, id string, port uint16) (net.Conn, error) {
	b, err := e.host.find(id)
	if err != nil {
		return nil, err
	}
	if err := e.host.fenced(); err != nil {
		return nil, err
	}
	conn, err := b.dial(ctx, port)
	if err != nil {
		return nil, err
	}
	return &fencedConn{Conn: conn, host: e.host}, nil
}

// FenceClock implements sandbox.Fencer.
func (e *Engine) FenceClock() time.Duration { return time.Since(e.host.began) }

// FenceAt implements sandbox.Fencer.
func (e *Engine) FenceAt(ctx context.Context, at time.Duration) error {
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	e.host.fenceAt = at
	return ctx.Err()
}

// fenced returns the error of a Boot that is cut off.
func (h *host) fenced() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fenceAt != 0 && time.Since(h.began) >= h.fenceAt {
		return sandbox.Errorf(sandbox.Unavailable, "the boot is cut off")
	}
	return nil
}

// A fencedConn ends with the next byte once its Boot is cut off.
type fencedConn struct {
	net.Conn
	host *host
}

func (c *fencedConn) Read(p []byte) (int, error) { return c.pass(c.Conn.Read, p) }

func (c *fencedConn) Write(p []byte) (int, error) { return c.pass(c.Conn.Write, p) }

func (c *fencedConn) pass(bytes func([]byte) (int, error), p []byte) (int, error) {
	if err := c.host.fenced(); err != nil {
		c.Close()
		return 0, err
	}
	return bytes(p)
}

// SetNetwork implements sandbox.Engine.
func (e *Engine) SetNetwork(ctx context.Context, id string, policy sandbox.NetworkPolicy) error {
	b, err := e.host.find(id)
	if err != nil {
		return err
	}
	if !policy.Valid() {
		return sandbox.Errorf(sandbox.Invalid, "no such network policy")
	}
	if e.Hooks.SetNetwork != nil {
		if err := e.Hooks.SetNetwork(ctx, id, policy); err != nil {
			return err
		}
	}
	b.setNetwork(policy)
	return ctx.Err()
}

// SetSecrets implements sandbox.Engine.
func (e *Engine) SetSecrets(ctx context.Context, id string, secrets sandbox.SecretBinding) error {
	b, err := e.host.find(id)
	if err != nil {
		return err
	}
	if e.Hooks.SetSecrets != nil {
		if err := e.Hooks.SetSecrets(ctx, id, secrets); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.secrets = secrets
	return ctx.Err()
}

// Secrets returns the secrets that were set for a Boot.
func (e *Engine) Secrets(id string) sandbox.SecretBinding {
	b, err := e.host.find(id)
	if err != nil {
		return sandbox.SecretBinding{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.secrets
}

// NetworkLog implements sandbox.Engine: nothing connects here.
func (e *Engine) NetworkLog(_ context.Context, id string) (sandbox.NetworkLog, error) {
	_, err := e.host.find(id)
	return sandbox.NetworkLog{}, err
}

// Traffic implements sandbox.Engine with Hooks.Traffic.
func (e *Engine) Traffic(ctx context.Context) (map[string]sandbox.Traffic, error) {
	if e.Hooks.Traffic != nil {
		return e.Hooks.Traffic(), ctx.Err()
	}
	return nil, ctx.Err()
}

// SetLimits implements sandbox.Engine.
func (e *Engine) SetLimits(ctx context.Context, id string, limits sandbox.Limits) error {
	b, err := e.host.find(id)
	if err != nil {
		return err
	}
	if err := b.spec.Shape.CheckLimits(limits); err != nil {
		return err
	}
	if e.Hooks.SetLimits != nil {
		if err := e.Hooks.SetLimits(ctx, id, limits); err != nil {
			return err
		}
	}
	b.setLimits(limits)
	return ctx.Err()
}

// Usage implements sandbox.Engine.
func (e *Engine) Usage(_ context.Context, id string) (sandbox.Usage, error) {
	_, err := e.host.find(id)
	return sandbox.Usage{}, err
}

// Watch implements sandbox.Engine.
func (e *Engine) Watch(ctx context.Context, handle func(sandbox.BootEvent)) error {
	e.host.setEnding(map[string]sandbox.BootStatus{})
	defer e.host.setEnding(nil)
	for {
		select {
		case event := <-e.events:
			if e.Hooks.Event != nil {
				e.Hooks.Event(event)
			}
			handle(event)
			e.host.unlist(event.ID)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Kill ends a Boot from outside, like a crash, and sends an event with cause to the
// watcher; an unknown id does nothing.
func (e *Engine) Kill(id string, cause sandbox.Cause) {
	b := e.host.end(id)
	if b == nil {
		return
	}
	b.close()
	e.tell(sandbox.BootEvent{ID: id, Kind: sandbox.BootEnded, Cause: cause})
}

// FillMemory sends the event that a Boot's memory is used up.
func (e *Engine) FillMemory(id string) {
	e.tell(sandbox.BootEvent{ID: id, Kind: sandbox.BootMemoryFull})
}

func (e *Engine) tell(event sandbox.BootEvent) {
	e.host.mu.Lock()
	watcher := e.host.watcher
	e.host.mu.Unlock()
	select {
	case watcher.events <- event:
	default: // no watcher, as while the process is down
		e.host.unlist(event.ID)
	}
}

// Guest returns a Boot's Guest, to inspect or to break it; nil for an unknown id.
func (e *Engine) Guest(id string) *Guest {
	b, err := e.host.find(id)
	if err != nil {
		return nil
	}
	return b.guest
}

// Close ends every Boot.
func (e *Engine) Close() {
	e.host.mu.Lock()
	boots := e.host.boots
	e.host.boots = map[string]*boot{}
	e.host.mu.Unlock()
	for _, b := range boots {
		b.close()
	}
}

// boot is one running Boot.
type boot struct {
	id    string
	spec  sandbox.BootSpec
	cpu   sandbox.CPUFeatures // that its processes see
	guest *Guest
	ports *listener // of the Guest's control service
	done  chan struct{}
	wg    sync.WaitGroup

	mu      sync.Mutex
	network sandbox.NetworkPolicy
	secrets sandbox.SecretBinding
	limits  sandbox.Limits
	held    bool
	conns   []net.Conn // of echoes, closed with the Boot
}

func newBoot(id string, spec sandbox.BootSpec, from saved) *boot {
	b := &boot{id: id, spec: spec, ports: newListener(), done: make(chan struct{}), network: sandbox.NetworkNone, limits: spec.Shape.Limits()}
	b.guest = &Guest{state: from.state.clone()}
	b.held, b.cpu = from.Memory, from.CPU
	b.wg.Go(func() { b.guest.serve(b.ports) })
	return b
}

func (b *boot) status() sandbox.BootStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	return sandbox.BootStatus{ID: b.id, Image: b.spec.Image, Shape: b.spec.Shape, Network: b.network, Limits: b.limits, From: b.spec.From}
}

func (b *boot) setNetwork(policy sandbox.NetworkPolicy) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.network = policy
}

func (b *boot) setLimits(limits sandbox.Limits) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limits = limits
}

func (b *boot) dial(ctx context.Context, port uint16) (net.Conn, error) {
	near, far := net.Pipe()
	if port == sandbox.GuestPort {
		select {
		case b.ports.conns <- far:
			return near, nil
		case <-b.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return nil, noBoot()
	}
	if !b.echo(far) {
		return nil, noBoot()
	}
	return near, nil
}

// echo echoes on conn until conn or the Boot ends; false when the Boot has ended.
func (b *boot) echo(conn net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.done:
		return false
	default:
	}
	b.conns = append(b.conns, conn)
	b.wg.Go(func() {
		_, _ = io.Copy(conn, conn)
		_ = conn.Close()
	})
	return true
}

// close ends the Boot and waits for its goroutines.
func (b *boot) close() {
	b.mu.Lock()
	close(b.done)
	for _, c := range b.conns {
		_ = c.Close()
	}
	b.mu.Unlock()
	_ = b.ports.Close()
	b.wg.Wait()
}

// listener hands out connections that dial made.
type listener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newListener() *listener {
	return &listener{conns: make(chan net.Conn), done: make(chan struct{})}
}

var errListenerClosed = errors.New("the boot has ended")

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, errListenerClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *listener) Addr() net.Addr { return addr{} }

type addr struct{}

func (addr) Network() string { return "fake" }
func (addr) String() string  { return "fake" }
