package template

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	compactEvery = time.Minute
	// unusedFor is how long the whole file of a delta image stays after its last use.
	unusedFor = 10 * time.Minute
)

// A Compactor stores images that were made by changing another one as deltas to it. Only
// one Compactor may run for a Store, across processes.
type Compactor struct {
	Store *Store
	Log   *slog.Logger

	whole map[string]bool // digests of images whose delta would be too large
}

// Run compacts every minute until ctx ends.
func (c *Compactor) Run(ctx context.Context) {
	tick := time.NewTicker(compactEvery)
	defer tick.Stop()
	for {
		if err := c.compact(ctx, unusedFor); err != nil && ctx.Err() == nil {
			c.Log.Warn("compacting template images failed; will retry", telemetry.KeyError, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// compact processes all images once.
func (c *Compactor) compact(ctx context.Context, unused time.Duration) error {
	bases := map[string]string{}
	err := c.Store.eachRef(nil, func(i Image) {
		if i.Base != "" && ValidDigest(i.Digest) && ValidDigest(i.Base) {
			bases[i.Digest] = i.Base
		}
	})
	if err != nil {
		return err
	}
	var failed []error
	for _, digest := range basesFirst(bases) {
		if c.whole[digest] {
			continue
		}
		is, err := c.Store.images().Shrink(ctx, digest, bases[digest], c.Store.lockImages)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch {
		case errors.Is(err, sandbox.NotFound): // one of the images was removed meanwhile
		case err != nil:
			failed = append(failed, fmt.Errorf("shrink the image %s: %w", digest, err))
		case !is:
			if c.whole == nil {
				c.whole = map[string]bool{}
			}
			c.whole[digest] = true
		}
	}
	freed, err := c.Store.images().Evict(ctx, unused)
	if freed > 0 {
		c.Log.Debug("whole files of template images were evicted", "bytes", freed)
	}
	return errors.Join(append(failed, err)...)
}

// basesFirst orders images so that each comes after its base. The base is then already
// processed: if it became a delta, the image uses the delta's base, otherwise the base
// itself.
func basesFirst(bases map[string]string) []string {
	var order []string
	seen := map[string]bool{}
	var visit func(digest string)
	visit = func(digest string) {
		base, ok := bases[digest]
		if !ok || seen[digest] {
			return
		}
		seen[digest] = true
		visit(base)
		order = append(order, digest)
	}
	for digest := range bases {
		visit(digest)
	}
	return order
}
