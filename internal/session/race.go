package session

import (
	"context"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const (
	// attempts is how often a write that lost a race is tried with the record
	// read anew.
	attempts = 16
	// attemptPause bounds the pause before an attempt: between writers that wait
	// for different times, one gets through each time.
	attemptPause = 64 * time.Millisecond
)

// tries yields the attempts at a write that may lose a race against others, at
// once the first, later ones after a random pause that grows. It ends early when
// ctx does.
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
