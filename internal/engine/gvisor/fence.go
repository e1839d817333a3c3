package gvisor

import (
	"context"
	"errors"
	"fmt"
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
// fence closes without us. It returns when ctx ends, also if a shard is being replaced.
func (e *Engine) FenceAt(ctx context.Context, at time.Duration) error {
	e.mu.Lock()
	e.fenceAt = &at
	var shards []*shard
	for _, s := range e.shards {
		if s.links > 0 || s.isConnected() {
			shards = append(shards, s)
		}
	}
	e.mu.Unlock()
	results := make(chan error, len(shards))
	for _, s := range shards {
		go func() {
			c, err := e.shardClient(ctx, s)
			if err == nil {
				err = c.CloseAt(ctx, at, false)
			}
			if err != nil {
				err = fmt.Errorf("set the fence of link shard %d: %w", s.number, err)
			}
			results <- err
		}()
	}
	var errs []error
	for range shards {
		select {
		case err := <-results:
			errs = append(errs, err)
		case <-ctx.Done():
			return errors.Join(append(errs, ctx.Err())...)
		}
	}
	return errors.Join(errs...)
}

// isConnected reports whether the connection to s works, as far as that is known without
// waiting. A shard without links that is not connected gets its time when it is needed.
func (s *shard) isConnected() bool {
	if !s.mu.TryLock() {
		return false
	}
	defer s.mu.Unlock()
	return s.client != nil && !broken(s.client)
}

// fence tells a shard the time of FenceAt, before it gets links. Before the first FenceAt a
// shard that has a time keeps it, because an earlier process may have set it.
func (e *Engine) fence(ctx context.Context, c *link.Client) error {
	e.mu.Lock()
	at := e.fenceAt
	e.mu.Unlock()
	var err error
	switch {
	case at != nil:
		err = c.CloseAt(ctx, *at, false)
	case e.cfg.Network.Fenced:
		err = c.CloseAt(ctx, closedAt, true)
	}
	if sandbox.CodeOf(err) == sandbox.Unsupported { // FenceAt says so
		return nil
	}
	return err
}
