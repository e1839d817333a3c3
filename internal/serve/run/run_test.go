package run_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/serve/run"
)

// journal collects what happened, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(s string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, s)
}

// obedient runs until told to stop, then takes a second.
func (j *journal) obedient(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		<-ctx.Done()
		time.Sleep(time.Second)
		j.add(name)
		return ctx.Err()
	}
}

func TestWait(t *testing.T) {
	broken := errors.New("broken")
	for _, tt := range []struct {
		name string
		last func(context.Context) error // started after "a" and "b"
		stop time.Duration               // when ctx ends
		want error
	}{
		{"stopped from outside", func(ctx context.Context) error { <-ctx.Done(); return nil }, time.Second, nil},
		{"a part fails", func(context.Context) error { time.Sleep(time.Second); return broken }, time.Hour, broken},
		{"a part is done early", func(context.Context) error { return nil }, time.Second, nil},
		{"a part fails while it stops", func(ctx context.Context) error { <-ctx.Done(); return broken }, time.Second, broken},
		{"a part gives up with a context error", func(context.Context) error { return context.Canceled }, time.Hour, context.Canceled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), tt.stop)
				defer cancel()
				var j journal
				var parts run.Parts
				parts.Start("a", j.obedient("a"))
				parts.Start("b", j.obedient("b"))
				parts.Start("c", tt.last)
				if err := parts.Wait(ctx); !errors.Is(err, tt.want) || tt.want == nil && err != nil {
					t.Errorf("Wait = %v, want %v", err, tt.want)
				}
				if !slices.Equal(j.lines, []string{"b", "a"}) {
					t.Errorf("stopped in the order %v, want b before a", j.lines)
				}
			})
		})
	}
}

func TestWaitForNothing(t *testing.T) {
	var parts run.Parts
	if err := parts.Wait(t.Context()); err != nil {
		t.Errorf("Wait = %v", err)
	}
	parts.Start("quick", func(context.Context) error { return nil })
	if err := parts.Wait(t.Context()); err != nil {
		t.Errorf("Wait = %v", err)
	}
}

func TestWaitNamesWhatDoesNotStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		release := make(chan struct{})
		var parts run.Parts
		parts.Start("stubborn", func(context.Context) error { <-release; return nil })
		err := parts.Wait(ctx)
		close(release)
		if err == nil || !strings.Contains(err.Error(), "stubborn did not stop") {
			t.Errorf("Wait = %v", err)
		}
	})
}
