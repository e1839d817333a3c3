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

// Guests keeps a client of the Guest of each Boot that was used lately, so that
// requests share connections. Its methods are safe for concurrent use.
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

// waker is the part of the session manager that finds and wakes Sandboxes, and is told
// which of them are used.
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

// Open returns a Tenant's running Sandbox and the client of its Guest. One that is
// paused, or about to be, resumes first, unless it is to stay so. The Sandbox
// counts as used for as long as ctx lasts, which is therefore that of one
// request. It returns NotFound for one that is absent or another Tenant's and Conflict for
// one that does not run.
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

// Wake returns sb once it runs. Of many requests that come while it is paused
// the session manager lets one resume it, and the others wait for that. One that is to
// stay paused is only waited for, if it is on its way to run.
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
		g.aside(func(ctx context.Context) { _ = g.of(sb).Warm(ctx) }) // the first call will tell what is wrong
	})
}

// aside does something that nobody waits for but Close. Its context lasts asideTime.
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

// Absent makes every NotFound about a Sandbox the same, whoever owns it and
// whatever the layers below say: it repeats the ID or name that the client asked for
// and nothing else. Other errors stay as they are.
func Absent(idOrName string, err error) error {
	if sandbox.CodeOf(err) == sandbox.NotFound { // not of something that only caused it
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

// of returns the client of sb's present Boot.
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

// errUnreached is in the Cause of a call that was not sent: its Guest was not reached.
var errUnreached = errors.New("nothing was sent")

// begun returns the error of a call that may have had an effect. It has no advice to
// repeat the call, unless the Guest was not reached.
func begun(err error) error {
	if errors.Is(err, errUnreached) {
		return err
	}
	return sandbox.Begun(err)
}

// dial reaches one Boot, and no other that the Sandbox may have later. That the
// Boot is gone, or is another one, is no fault of the request.
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

// sweep drops what was not used for a while, and the oldest when there are too
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
