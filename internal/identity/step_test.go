package identity

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Failures in a row are told of once, and what was seen last is written at the end.
func TestInStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		ctx, cancel := context.WithCancel(t.Context())
		flushed, refreshed, told := 0, 0, 0
		flush := func(ctx context.Context) error {
			flushed++
			return ctx.Err()
		}
		refresh := func(context.Context) error {
			if refreshed++; refreshed == 2 || refreshed == 3 || refreshed == 5 {
				return broken
			}
			return nil
		}
		done := make(chan error)
		go func() {
			done <- InStep(ctx, flush, refresh, func(err error) {
				if told++; !errors.Is(err, broken) {
					t.Errorf("told of %v", err)
				}
			})
		}()
		time.Sleep(6*RefreshEvery + RefreshEvery/2)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) || refreshed != 6 || flushed != 7 || told != 2 {
			t.Errorf("%v: refreshed %d times, flushed %d times and told of %d failures", err, refreshed, flushed, told)
		}
	})
}
