package cli

import (
	"context"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Backoff of tries to reach a server.
const (
	firstPause = 200 * time.Millisecond
	lastPause  = 2 * time.Second
	giveUp     = time.Minute
)

// retry calls try again while it fails as Unavailable, with growing backoff, until
// the server has been away for giveUp. try reports whether the server took up the
// work; work that never began is not retried. before is called with the number of
// failures in a row.
func retry(ctx context.Context, try func() (came bool, err error), before func(failed int)) error {
	pause, failed, began := firstPause, 0, false
	var since time.Time
	for {
		came, err := try()
		if came {
			pause, failed, began, since = firstPause, 0, true, time.Now()
		}
		if !errors.Is(err, sandbox.Unavailable) || !began || time.Since(since) > giveUp {
			return err
		}
		failed++
		before(failed)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, lastPause)
	}
}
