package replication

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// collectBatch bounds the blobs that are deleted at a time.
	collectBatch = 200
	// collectLimit bounds one batch, from before the records say what it deletes until its
	// last request to Blobs has ended.
	collectLimit = 10 * time.Second
	// usualSettle is the default of CollectorConfig.Settle.
	usualSettle = collectLimit + 5*time.Second
	// collectEvery is the interval of looks for something to delete.
	collectEvery = 5 * time.Second
)

// CollectorConfig configures a Collector.
type CollectorConfig struct {
	// Records are the records of the process that leads: a former leader's writes are refused.
	Records sandbox.CopyGarbage
	Blobs   sandbox.Blobs // nil: the Collector only tells that something waits
	// Settle is the pause before the first deletion. It is longer than a batch of a former
	// leader may take, which would delete a pack that was put again. Zero: 15 s.
	Settle time.Duration
	Every  time.Duration // zero: 5 s
	Log    *slog.Logger
}

// Collector deletes the copies that nothing needs any more and the packs that no copy uses.
// Only the session manager that leads runs one. A blob is deleted before its record, so a
// crash leaves a record that says what to delete.
type Collector struct {
	cfg    CollectorConfig
	counts *CollectorCounts
}

// CollectorCounts count the work of all Collectors of a process.
type CollectorCounts struct{ Copies, Packs, Failed atomic.Int64 }

// NewCollector returns a Collector that adds to counts.
func NewCollector(cfg CollectorConfig, counts *CollectorCounts) *Collector {
	cfg.Settle, cfg.Every = cmp.Or(cfg.Settle, usualSettle), cmp.Or(cfg.Every, collectEvery)
	return &Collector{cfg: cfg, counts: counts}
}

// Run collects until ctx ends.
func (c *Collector) Run(ctx context.Context) error {
	failing, told := false, false
	every := c.cfg.Every
	if c.cfg.Blobs == nil {
		every = idle
	}
	for wait := c.cfg.Settle; ; wait = every {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		if c.cfg.Blobs == nil {
			if !told {
				told = c.tell(ctx)
			}
			continue
		}
		err := c.collect(ctx)
		if err != nil && ctx.Err() == nil {
			c.counts.Failed.Add(1)
			if !failing {
				c.cfg.Log.WarnContext(ctx, "deleting copies that nothing needs failed; will retry", telemetry.KeyError, err)
			}
		}
		failing = err != nil
	}
}

// tell reports whether something waits for a Collector with Blobs, and logs that.
func (c *Collector) tell(ctx context.Context) bool {
	copies, err := c.cfg.Records.CopiesLeft(ctx, 1)
	if err != nil || len(copies) == 0 {
		return false
	}
	c.cfg.Log.WarnContext(ctx, "copies of deleted snapshots stay in the blob store: set CLOUD_SANDBOX_BLOBS for each session-manager too")
	return true
}

// collect deletes all that can be deleted now. A blob that cannot be deleted holds up no
// other one.
func (c *Collector) collect(ctx context.Context) error {
	copies, packs := 0, 0
	defer func() {
		if copies+packs > 0 {
			c.cfg.Log.InfoContext(ctx, "deleted copies that nothing needs", "copies", copies, "packs", packs)
		}
	}()
	for {
		someCopies, copiesErr := c.copies(ctx)
		somePacks, packsErr := c.packs(ctx)
		copies, packs = copies+someCopies, packs+somePacks
		if someCopies+somePacks == 0 || ctx.Err() != nil {
			return errors.Join(copiesErr, packsErr)
		}
	}
}

// copies deletes the lists of a batch of copies, and then their records, which releases their
// packs. It returns how many it deleted.
func (c *Collector) copies(ctx context.Context) (n int, err error) {
	limited, cancel := context.WithTimeout(ctx, collectLimit)
	defer cancel()
	left, err := c.cfg.Records.CopiesLeft(limited, collectBatch)
	if err != nil {
		return 0, err
	}
	gone, failed := deleteEach(limited, c.cfg.Blobs, left, sandbox.CopyRef.List)
	for _, ref := range gone {
		for more := true; more; {
			if more, err = c.cfg.Records.DropCopy(ctx, ref); err != nil {
				return n, err
			}
		}
		n++
		c.counts.Copies.Add(1)
	}
	return n, failed
}

// packs deletes a batch of packs, and then their records.
func (c *Collector) packs(ctx context.Context) (int, error) {
	limited, cancel := context.WithTimeout(ctx, collectLimit)
	defer cancel()
	left, err := c.cfg.Records.PacksLeft(limited, collectBatch)
	if err != nil || len(left) == 0 {
		return 0, err
	}
	gone, failed := deleteEach(limited, c.cfg.Blobs, left, func(name string) string { return name })
	if len(gone) > 0 {
		if err := c.cfg.Records.DropPacks(ctx, gone); err != nil {
			return 0, err
		}
		c.counts.Packs.Add(int64(len(gone)))
	}
	return len(gone), failed
}

// deleteEach deletes the blob of each item. It returns the items whose blobs are gone. All
// requests have ended then.
func deleteEach[T any](ctx context.Context, blobs sandbox.Blobs, all []T, name func(T) string) (gone []T, err error) {
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(gets)
	for _, item := range all {
		g.Go(func() error {
			if err := blobs.Delete(ctx, name(item)); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			gone = append(gone, item)
			return nil
		})
	}
	err = g.Wait() // the first of the errors
	return gone, err
}
