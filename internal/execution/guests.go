package execution

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/after"
)

const (
	maxGuests = 4096 // clients kept at a time
	guestIdle = 2 * time.Minute
	sweepTime = 10 * time.Second
	asideTime = 2 * time.Second
)

// Guests caches a client for the Guest of each recently used Boot, so that requests share
// connections. Its methods are safe for concurrent use.
type Guests struct {
	sandboxes waker
	nodes     sandbox.BootDialer
	newGuest  NewGuest
	uses      uses

	mu     sync.Mutex
	byID   map[string]*openGuest // by Sandbox ID
	swept  time.Time
	closed bool

	asides sync.WaitGroup
}

// waker is the part of the session manager that finds and wakes Sandboxes and records
// their use.
type waker interface {
	Get(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error)
	Settled(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error)
	Resume(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error)
	Used(ctx context.Context, uses []sandbox.Use) error
}

type openGuest struct {
	guest Guest
	boot  sandbox.Boot
	used  time.Time
}

// NewGuests returns Guests that reach Boots through nodes. newGuest makes
// their clients.
func NewGuests(sandboxes waker, nodes sandbox.BootDialer, newGuest NewGuest) *Guests {
	return &Guests{
		sandboxes: sandboxes, nodes: nodes, newGuest: newGuest, byID: map[string]*openGuest{},
		uses: uses{busy: map[string]int{}, used: map[string]sandbox.Use{}, last: map[string]time.Time{}},
	}
}

// Open returns a Tenant's running Sandbox and the client of its Guest. A Sandbox that
// is paused, or about to be, is resumed first, unless it is to stay paused. The Sandbox
// counts as used until ctx ends, so ctx must be the context of one request. Open
// returns NotFound for a Sandbox that is absent or another Tenant's and Conflict for
// one that is not running.
func (g *Guests) Open(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, Guest, error) {
	sb, err := g.sandboxes.Get(ctx, tenant, idOrName)
	if err != nil {
		return sb, nil, Absent(idOrName, err)
	}
	if sb, err = g.Wake(ctx, sb); err != nil {
		return sb, nil, err
	}
	g.uses.begin(ctx, sb.ID)
	return sb, g.of(sb), nil
}

// Wake returns sb once it runs. Concurrent requests for a paused Sandbox share one resume
// in the session manager. A Sandbox that is to stay paused is not resumed; if it is
// already resuming, Wake waits for that.
func (g *Guests) Wake(ctx context.Context, sb sandbox.Sandbox) (_ sandbox.Sandbox, err error) {
	if sb.State == sandbox.Running {
		return sb, nil
	}
	id := sb.ID
	g.Forget(id)
	if sb.StayPaused && sb.Live() {
		if sb, err = g.sandboxes.Settled(ctx, sb.Tenant, id); err != nil {
			return sb, Absent(id, err)
		}
	}
	switch {
	case sb.State == sandbox.Running:
		return sb, nil
	case !sb.Live():
		return sb, errNotRunning(sb)
	case sb.StayPaused:
		return sb, sandbox.Errorf(sandbox.Conflict, "the sandbox is %s and does not wake by itself: resume it", sb.State)
	}
	running, err := g.sandboxes.Resume(ctx, sb.Tenant, id)
	return running, Absent(id, err)
}

// Warm connects to the Guest of a Sandbox that the request of ctx has just created,
// while its client reads the answer and writes the first request.
func (g *Guests) Warm(ctx context.Context, sb sandbox.Sandbox) {
	after.Answer(ctx, func() {
		g.aside(func(ctx context.Context) { _ = g.of(sb).Warm(ctx) }) // an error shows again in the first call
	})
}

// aside runs do in the background; only Close waits for it. Its context lasts asideTime.
func (g *Guests) aside(do func(context.Context)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	g.asides.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), asideTime)
		defer cancel()
		do(ctx)
	})
}

// Absent replaces every NotFound about a Sandbox by the same error, which contains only
// the ID or name that the client sent. So it does not depend on the owner or the layers
// below. Other errors are returned unchanged.
func Absent(idOrName string, err error) error {
	if sandbox.CodeOf(err) == sandbox.NotFound { // not of a cause
		return sandbox.Errorf(sandbox.NotFound, "no sandbox %.64q; `cloud-sandbox ls` and GET /api/v1/sessions list yours", idOrName).WithCause(err)
	}
	return err
}

func errNotRunning(sb sandbox.Sandbox) error {
	if sb.Ended != nil {
		return sandbox.Errorf(sandbox.Conflict, "the sandbox ended at %s: %s", sb.Ended.At.UTC().Format(time.RFC3339), sb.Ended.Cause)
	}
	return sandbox.Errorf(sandbox.Conflict, "the sandbox is not running, it is %s", sb.State)
}

// of returns the client of sb's current Boot.
func (g *Guests) of(sb sandbox.Sandbox) Guest {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	g.sweep(now)
	o := g.byID[sb.ID]
	if o != nil && o.boot != sb.Boot {
		o.guest.Close()
		o = nil
	}
	if o == nil {
		o = &openGuest{guest: g.newGuest(sb.ID, g.dial(sb)), boot: sb.Boot}
		g.byID[sb.ID] = o
	}
	o.used = now
	return o.guest
}

// errUnreached is in the Cause of a call that was not sent because its Guest was not
// reached.
var errUnreached = errors.New("nothing was sent")

// begun returns the error of a call that may have had an effect. It does not advise to
// retry, unless the Guest was not reached.
func begun(err error) error {
	if errors.Is(err, errUnreached) {
		return err
	}
	return sandbox.Begun(err)
}

// dial connects to one Boot, and not to a later one of the Sandbox. If the Boot is gone
// or replaced, the error is Unavailable, because the request is not at fault.
func (g *Guests) dial(sb sandbox.Sandbox) Dial {
	ref := sandbox.BootRef{BootID: sb.Boot.ID, SandboxID: sb.ID, Number: sb.Boot.Number, Tenant: sb.Tenant}
	return func(ctx context.Context, port uint16) (net.Conn, error) {
		conn, err := g.nodes.Dial(ctx, sb.Boot.Node, ref, port)
		if err != nil {
			return nil, sandbox.Errorf(sandbox.Unavailable, "the sandbox does not answer").WithCause(errors.Join(errUnreached, err))
		}
		return conn, nil
	}
}

// sweep drops clients that were idle for guestIdle, and the oldest when there are too
// many. The lock is held.
func (g *Guests) sweep(now time.Time) {
	if now.Sub(g.swept) >= sweepTime {
		g.swept = now
		for id, o := range g.byID {
			if now.Sub(o.used) > guestIdle {
				g.drop(id, o)
			}
		}
	}
	if len(g.byID) < maxGuests {
		return
	}
	var oldest string
	for id, o := range g.byID {
		if oldest == "" || o.used.Before(g.byID[oldest].used) {
			oldest = id
		}
	}
	g.drop(oldest, g.byID[oldest])
}

func (g *Guests) drop(id string, o *openGuest) {
	delete(g.byID, id)
	o.guest.Close()
}

// Forget drops the client of a Sandbox, which has ended or does not answer. A
// later Open makes a new one.
func (g *Guests) Forget(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if o := g.byID[id]; o != nil {
		g.drop(id, o)
	}
}

// Close drops all clients.
func (g *Guests) Close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.asides.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, o := range g.byID {
		g.drop(id, o)
	}
}
