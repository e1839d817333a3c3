package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

// Bounds of the wait for a Pool.
const (
	poolTime = 2 * time.Minute
	poolPace = 10 * time.Millisecond
)

// settle waits until the Pools are full again and no Boot is starting.
func (m *Meter) settle(ctx context.Context) error {
	if m.PoolSize == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, poolTime, fmt.Errorf("the pool does not fill to %d", m.PoolSize))
	defer cancel()
	tick := time.NewTicker(poolPace)
	defer tick.Stop()
	for {
		idle, starting, err := poolState(ctx, m.Client)
		if err != nil {
			return err
		}
		if idle >= m.PoolSize && starting == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func poolState(ctx context.Context, c *client.Client) (idle, starting int, err error) {
	pools, err := c.Pools(ctx)
	for _, p := range pools {
		idle, starting = idle+p.Idle, starting+p.Starting
	}
	return idle, starting, err
}

// PoolSize returns the number of Boots to which the Pools are refilled: zero without
// Pools.
func PoolSize(ctx context.Context, c *client.Client) (int, error) {
	pools, err := c.Pools(ctx)
	n := 0
	for _, p := range pools {
		n += p.Min
	}
	return n, err
}
