package session

import (
	"context"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const (
	// attempts is how often a write that loses a race is tried, each time with a fresh
	// record.
	attempts = 16
	// attemptPause bounds the random pause before an attempt. Different pauses let one of
	// several writers succeed each time.
	attemptPause = 64 * time.Millisecond
)

// tries yields the attempts at a write that may lose a race: the first at once, later
// ones after a growing random pause. It ends early when ctx ends.
func tries(ctx context.Context) iter.Seq[int] {
	return func(yield func(int) bool) {
		limit := time.Millisecond
		for i := range attempts {
			if i > 0 {
				select {
				case <-ctx.Done():
					return
				case <-time.After(rand.N(limit)):
				}
				limit = min(2*limit, attemptPause)
			}
			if !yield(i) {
				return
			}
		}
	}
}

func errRaced() error {
	return sandbox.Errorf(sandbox.Conflict, "the sandbox is being changed by others; try again")
}
