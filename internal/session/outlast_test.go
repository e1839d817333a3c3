package session_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// A resume whose client leaves is canceled, unless it finishes soon or another client
// waits for it.
func TestResumeThatNobodyWaitsFor(t *testing.T) {
	for _, tt := range []struct {
		name   string
		takes  time.Duration
		others bool
		want   sandbox.State
	}{
		{"soon done", 8 * time.Second, false, sandbox.Running},
		{"not soon", 40 * time.Second, false, sandbox.Paused},
		{"not soon, and others want it", 40 * time.Second, true, sandbox.Running},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				sb := w.create("t", sandbox.CreateRequest{})
				w.nodes.remember(sb, "x")
				w.pause(sb.ID)
				starts := w.slowStarts(tt.takes)
				client, leave := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				wg.Go(func() { _, _ = w.m.Resume(client, "t", sb.ID) })
				synctest.Wait()
				if tt.others {
					wg.Go(func() {
						if _, err := w.m.Resume(t.Context(), "t", sb.ID); err != nil {
							t.Errorf("another's Resume: %v", err)
						}
					})
					synctest.Wait()
				}
				leave()
				wg.Wait()
				if got := w.record(sb.ID).State; got != tt.want || starts.Load() != 1 {
					t.Errorf("it is %s after %d starts, want %s", got, starts.Load(), tt.want)
				}
				w.nodes.mend()
				if resumed := w.resume(sb.ID); w.nodes.recall(resumed) != "x" {
					t.Errorf("afterwards its memory holds %q", w.nodes.recall(resumed))
				}
				w.reconcile()
			})
		})
	}
}
