package gvisor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
)

var _ sandbox.Fencer = (*Engine)(nil)

// closedAt is a time that has passed.
const closedAt = 1

// FenceClock is CLOCK_BOOTTIME, which link shards use too.
func (e *Engine) FenceClock() time.Duration { return link.SinceBoot() }

// FenceAt tells all link shards the time. Each of them has a clock of its own, so that the
// fence closes without us.
func (e *Engine) FenceAt(ctx context.Context, at time.Duration) error {
	e.mu.Lock()
	e.fenceAt = at
	var shards []*shard
	for _, s := range e.shards {
		shards = append(shards, s)
	}
	e.mu.Unlock()
	errs := make([]error, len(shards))
	var work sync.WaitGroup
	for i, s := range shards {
		work.Go(func() {
			c, err := e.shardClient(ctx, s)
			if err == nil {
				err = c.CloseAt(ctx, at, false)
			}
			if err != nil {
				errs[i] = fmt.Errorf("set the fence of link shard %d: %w", s.number, err)
			}
		})
	}
	work.Wait()
	return errors.Join(errs...)
}

// fence tells a shard the time of FenceAt, before it gets links. Before the first FenceAt a
// shard that has a time keeps it, because an earlier process may have set it.
func (e *Engine) fence(ctx context.Context, c *link.Client) error {
	e.mu.Lock()
	at := e.fenceAt
	e.mu.Unlock()
	var err error
	switch {
	case at != 0:
		err = c.CloseAt(ctx, at, false)
	case e.cfg.Network.Fenced:
		err = c.CloseAt(ctx, closedAt, true)
	}
	if sandbox.CodeOf(err) == sandbox.Unsupported { // FenceAt says so
		return nil
	}
	return err
}
