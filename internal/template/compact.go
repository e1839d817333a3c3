package template

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const (
	compactEvery = time.Minute
	// unusedFor is how long the whole file of an image stays that is kept as a delta,
	// after it was last started from.
	unusedFor = 10 * time.Minute
)

// A Compactor keeps the images that were made by changing another one as deltas to it.
// Of those that use one Store only one may run at a time, in whatever process.
type Compactor struct {
	Store *Store
	Log   *slog.Logger

	whole map[string]bool // digests of images of which a delta is not worth it
}

// Run compacts every minute until ctx ends.
func (c *Compactor) Run(ctx context.Context) {
	tick := time.NewTicker(compactEvery)
	defer tick.Stop()
	for {
		if err := c.compact(ctx, unusedFor); err != nil && ctx.Err() == nil {
			c.Log.Warn("compacting template images failed; will retry", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// compact looks at all images once.
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
	for digest, base := range bases {
		if c.whole[digest] {
			continue
		}
		is, err := c.Store.images().Shrink(ctx, digest, base, c.Store.lockImages)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch {
		case errors.Is(err, sandbox.NotFound): // one of both was removed meanwhile
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
