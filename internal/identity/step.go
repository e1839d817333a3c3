// Package identity keeps the records of callers in step with the Store.
package identity

import (
	"cmp"
	"context"
	"errors"
	"time"
)

const (
	// RefreshEvery is how often the Store is asked for changes: a change by another
	// process holds within it, a change by this one at once.
	RefreshEvery = time.Second
	// RefreshLimit bounds the question.
	RefreshLimit = 5 * time.Second
)

// InStep writes what was seen with flush and reads what was changed with refresh, every
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

// Now is the time as the Store keeps it.
func Now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
