package replication

import (
	"context"
	"errors"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// Owned describes the owner and size of a saved state.
type Owned struct {
	Group string
	Bytes int64     // on the host
	At    time.Time // of the save
}

// takeUp queues all states on the host without a record, which were saved before copying
// was enabled. Newly saved states are copied first; then the backlog is copied at
// Config.BacklogRate.
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
		case errors.Is(err, sandbox.NotFound): // without an owner, not ready, or just deleted
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

// paced sets when the next state of the backlog may start, so that the average rate stays
// at BacklogRate.
func (e *Engine) paced(s *state, began time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !s.Backlog || e.cfg.BacklogRate <= 0 {
		return
	}
	e.backlogAt = began.Add(time.Duration(float64(s.Bytes) / float64(e.cfg.BacklogRate) * float64(time.Second)))
}

// Ranks order the work: deletions first, because they free space, then new states, which
// a user may rely on soon, then the backlog.
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
