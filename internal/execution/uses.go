package execution

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// tellTime bounds one telling of uses.
const tellTime = 5 * time.Second

// uses gathers, in memory, which Sandboxes are used and the last of what they
// wrote, until it is told to the session manager.
type uses struct {
	mu   sync.Mutex
	busy map[string]int         // requests under way by Sandbox ID
	used map[string]sandbox.Use // since it was last told
	last map[string]time.Time   // when each was last used, of those lately

	telling sync.Mutex // held while one telling is under way
}

// begin notes a request on a Sandbox. As long as ctx lasts the Sandbox is in
// use.
func (u *uses) begin(ctx context.Context, id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.note(id, nil)
	if ctx.Done() == nil {
		return
	}
	u.busy[id]++
	context.AfterFunc(ctx, func() { u.end(id) })
}

func (u *uses) end(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.note(id, nil)
	if u.busy[id]--; u.busy[id] == 0 {
		delete(u.busy, id)
	}
}

// wrote notes what a Process of a Sandbox wrote.
func (u *uses) wrote(id string, output []byte) {
	if len(output) == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.note(id, output)
}

// note adds to what is told next. The lock is held.
func (u *uses) note(id string, output []byte) {
	use := u.used[id]
	use.SandboxID, use.Output = id, sandbox.KeepTail(use.Output, output)
	u.used[id] = use
	u.last[id] = time.Now()
}

// since returns the Sandboxes that were used after t, or are in use, and forgets
// when others were.
func (u *uses) since(t time.Time) map[string]bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	lately := map[string]bool{}
	for id, at := range u.last {
		if lately[id] = true; u.busy[id] == 0 && at.Before(t) {
			delete(u.last, id)
			delete(lately, id)
		}
	}
	return lately
}

// take returns what is to be told now.
func (u *uses) take() []sandbox.Use {
	u.mu.Lock()
	defer u.mu.Unlock()
	for id := range u.busy {
		u.note(id, nil)
	}
	all := make([]sandbox.Use, 0, len(u.used))
	for _, use := range u.used {
		all = append(all, use)
	}
	clear(u.used)
	return all
}

// Use notes that a Sandbox is used, as long as ctx lasts, by a request that does
// not Open it.
func (g *Guests) Use(ctx context.Context, id string) { g.uses.begin(ctx, id) }

// UsedWithin returns the Sandboxes that were used within d before now, and have
// been in every such call before: it is for one caller, with one d.
func (g *Guests) UsedWithin(d time.Duration) map[string]bool { return g.uses.since(time.Now().Add(-d)) }

// Peek returns the client of the Guest of a Sandbox that runs, which does not
// count as used by it.
func (g *Guests) Peek(sb sandbox.Sandbox) Guest { return g.of(sb) }

// Wrote notes what a Process of a Sandbox wrote, for its certificate.
func (g *Guests) Wrote(sandboxID string, output []byte) { g.uses.wrote(sandboxID, output) }

// TellUse tells the session manager now which Sandboxes were used since it was
// last told. What cannot be told is dropped: a Sandbox in use is told of again.
func (g *Guests) TellUse(ctx context.Context) error {
	g.uses.telling.Lock()
	defer g.uses.telling.Unlock()
	all := g.uses.take()
	if len(all) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellTime)
	defer cancel()
	return g.sandboxes.Used(ctx, all)
}

// KeepTelling tells every sandbox.UseEvery until ctx ends, and then once more.
func (g *Guests) KeepTelling(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(sandbox.UseEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		if err := g.TellUse(ctx); err != nil {
			log.Warn("reporting the use of sandboxes failed; will retry", telemetry.KeyError, err.Error())
		}
	}
}
