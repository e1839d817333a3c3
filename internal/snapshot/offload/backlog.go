package offload

import (
	"context"
	"errors"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// Owned says to whom a saved state belongs.
type Owned struct {
	Group string
	Bytes int64     // on the host
	At    time.Time // it was saved
}

// takeUp has all states on the host be copied that have no record: those that were
// saved before there were copies. They wait until what is saved now was copied, and
// then for their turns: see Config.BacklogRate.
func (e *Engine) takeUp(ctx context.Context) error {
	if e.cfg.Owner == nil {
		return nil
	}
	names, err := e.inner.ListSaved(ctx)
	if err != nil {
		return err
	}
	taken := 0
	for _, name := range names {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if e.find(name) != nil || e.isDeleting(name) {
			continue
		}
		owned, err := e.cfg.Owner(ctx, name)
		if err == nil {
			err = e.add(ctx, record{Name: name, Group: owned.Group, Bytes: owned.Bytes, Backlog: true}, owned.At)
		}
		switch {
		case err == nil:
			taken++
		case errors.Is(err, sandbox.NotFound): // of nobody, in the making, or deleted just now
		case errors.Is(err, sandbox.Conflict):
			e.cfg.Log.WarnContext(ctx, "queueing a saved state for a copy failed", telemetry.KeySnapshot, name, telemetry.KeyError, err)
		default:
			return err
		}
	}
	if taken > 0 {
		e.cfg.Log.InfoContext(ctx, "queued earlier snapshots for copies", "snapshots", taken)
	}
	return nil
}

// paced notes that a state of the backlog was worked on: the next one waits until
// both together are as slow as they should be.
func (e *Engine) paced(s *state, began time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !s.Backlog || e.cfg.BacklogRate <= 0 {
		return
	}
	e.backlogAt = began.Add(time.Duration(float64(s.Bytes) / float64(e.cfg.BacklogRate) * float64(time.Second)))
}

// Ranks order what there is to do: deletions make room, and somebody may count on
// what was saved just now.
const (
	deletingRank = iota
	savedRank
	backlogRank
)

func (s *state) rank() int {
	switch {
	case s.Deleting:
		return deletingRank
	case s.Backlog:
		return backlogRank
	}
	return savedRank
}
