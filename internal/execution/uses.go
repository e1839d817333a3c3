package execution

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// tellTime bounds one report of uses.
const tellTime = 5 * time.Second

// uses collects, in memory, the used Sandboxes and their last output until the next
// report to the session manager.
type uses struct {
	mu   sync.Mutex
	busy map[string]int         // requests in progress, by Sandbox ID
	used map[string]sandbox.Use // since the last report
	last map[string]time.Time   // last use, of recently used Sandboxes

	telling sync.Mutex // held during a report
}

// begin records a request on a Sandbox. The Sandbox is in use until ctx ends.
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

// wrote records output of a Process of a Sandbox.
func (u *uses) wrote(id string, output []byte) {
	if len(output) == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.note(id, output)
}

// note adds to the next report. The lock is held.
func (u *uses) note(id string, output []byte) {
	use := u.used[id]
	use.SandboxID, use.Output = id, sandbox.KeepTail(use.Output, output)
	u.used[id] = use
	u.last[id] = time.Now()
}

// since returns the Sandboxes that were used after t or are in use, and forgets the
// others' last use.
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

// take returns the uses to report now.
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

// Use records the use of a Sandbox, until ctx ends, by a request that does not Open it.
func (g *Guests) Use(ctx context.Context, id string) { g.uses.begin(ctx, id) }

// UsedWithin returns the Sandboxes that were used within d before now. It forgets older
// uses, so it is for one caller with a constant d.
func (g *Guests) UsedWithin(d time.Duration) map[string]bool { return g.uses.since(time.Now().Add(-d)) }

// Peek returns the client of the Guest of a running Sandbox, without counting as use.
func (g *Guests) Peek(sb sandbox.Sandbox) Guest { return g.of(sb) }

// Wrote records output of a Process of a Sandbox, for its termination record.
func (g *Guests) Wrote(sandboxID string, output []byte) { g.uses.wrote(sandboxID, output) }

// TellUse reports to the session manager which Sandboxes were used since the last report.
// A failed report is dropped; a Sandbox in use is in the next report again.
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

// KeepTelling reports every sandbox.UseEvery until ctx ends, and then once more.
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
