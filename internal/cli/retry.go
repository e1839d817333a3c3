package cli

import (
	"context"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Pauses between tries to reach a server that is away.
const (
	firstPause = 200 * time.Millisecond
	lastPause  = 2 * time.Second
	giveUp     = time.Minute
)

// retry calls try, and again while it fails as Unavailable, with pauses that
// grow, until the server was away for giveUp. try says whether anything came of
// it; what never began is not tried again. before is told of the failures in a
// row.
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
