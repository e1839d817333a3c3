// Package identity keeps the records of callers in step with the Store.
package identity

import (
	"cmp"
	"context"
	"errors"
	"time"
)

const (
	// RefreshEvery is how often the Store is polled for changes: another process's change
	// applies within it, this one's at once.
	RefreshEvery = time.Second
	// RefreshLimit bounds one poll.
	RefreshLimit = 5 * time.Second
)

// InStep writes pending records with flush and reads changes with refresh, every
// RefreshEvery until ctx ends, and then flushes once more. It calls failing with the
// first error of several in a row.
func InStep(ctx context.Context, flush, refresh func(context.Context) error, failing func(error)) error {
	tick := time.NewTicker(RefreshEvery)
	defer tick.Stop()
	failed := false
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), RefreshLimit)
			defer cancel()
			return cmp.Or(flush(last), ctx.Err())
		}
		err := errors.Join(flush(ctx), refresh(ctx))
		if err != nil && !failed && ctx.Err() == nil {
			failing(err)
		}
		failed = err != nil
	}
}

// Now is the time in the Store's precision.
func Now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
