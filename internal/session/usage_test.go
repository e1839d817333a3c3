package session_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// charged checks the running time that was charged for a Sandbox.
func (w *world) charged(what, id string, want time.Duration) {
	w.t.Helper()
	day := sandbox.DayOf(time.Now())
	page, err := w.store.Usage(w.t.Context(), sandbox.UsageQuery{Sandbox: id, From: day - 2, To: day + 2})
	if err != nil {
		w.t.Fatal(err)
	}
	var got float64
	for _, r := range page.Rows {
		got += r.Seconds
	}
	if math.Abs(got-want.Seconds()) > 1e-3 {
		w.t.Errorf("%s: %vs were counted, want %v", what, got, want)
	}
}

// A Sandbox is charged for while it runs, also across a crash of the session manager, but
// not while it is paused.
func TestUsageIsExact(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		w.pass(10 * time.Second)
		w.pause(sb.ID)
		w.charged("paused", sb.ID, 10*time.Second)
		w.pass(time.Hour)
		w.reconcile()
		w.resume(sb.ID)
		w.pass(5 * time.Second)
		w.reconcile()
		w.charged("counted as it runs", sb.ID, 15*time.Second)

		w.m = w.manager(w.store, w.nodes) // after a crash
		w.pass(20 * time.Second)
		w.reconcile()
		w.charged("after a crash", sb.ID, 35*time.Second)
		if _, err := w.m.End(t.Context(), "t", sb.ID, sandbox.CauseReleased); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Hour)
		w.reconcile()
		w.charged("ended", sb.ID, 35*time.Second)
	})
}

func TestUsageOfLostBoots(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		told, found, down := w.create("t", sandbox.CreateRequest{}), w.create("t", sandbox.CreateRequest{}), w.create("t", sandbox.CreateRequest{})
		w.pass(30 * time.Second)
		w.reconcile()
		w.pass(10 * time.Second)
		end := w.nodes.lose(local, told.Boot.ID, sandbox.CauseOOM)
		w.nodes.lose(local, found.Boot.ID, "")
		w.pass(time.Hour) // no report arrives meanwhile
		if err := w.m.BootEnded(t.Context(), end); err != nil {
			t.Fatal(err)
		}
		w.charged("one whose end was told", told.ID, 40*time.Second)
		w.reconcile()
		w.charged("one that was found missing", found.ID, 30*time.Second)
		w.charged("one that ran on", down.ID, time.Hour+40*time.Second)
		w.nodes.lose(local, down.Boot.ID, "")
		w.pass(time.Hour)
		if _, err := w.m.EndAll(t.Context(), "", sandbox.CauseOperator); err != nil {
			t.Fatal(err)
		}
		w.charged("one that the operator found dead", down.ID, time.Hour+40*time.Second)
	})
}

// A Sandbox that is lost with its Node is charged for until the Node last renewed its Lease.
func TestUsageOfLostNodes(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		w.pass(30 * time.Second)
		w.vanish(sb.Boot.Node)
		if err := w.store.SetLost(t.Context(), sb.Boot.Node, 0, true); err != nil {
			t.Fatal(err)
		}
		w.pass(2 * nodesEvery)
		if got := w.record(sb.ID); got.State != sandbox.Ended || got.Ended.Cause != sandbox.CauseNodeLost {
			t.Fatalf("it is %+v", got)
		}
		w.charged("lost", sb.ID, 30*time.Second)
		w.comeBack(sb.Boot.Node)
	})
}

// Concurrent pauses and reconciles charge a Sandbox once.
func TestUsageOfMovesAtOnce(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		for range 5 {
			w.pass(time.Second)
			done := make(chan error, 20)
			for i := range cap(done) {
				go func() {
					var err error
					if i%2 == 0 {
						_, err = w.m.Pause(t.Context(), "t", sb.ID, false)
					} else {
						err = w.m.Reconcile(t.Context())
					}
					done <- err
				}()
			}
			for range cap(done) {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			synctest.Wait()
			w.pass(time.Minute)
			w.resume(sb.ID)
		}
		w.pause(sb.ID)
		w.charged("paused", sb.ID, 5*time.Second)
		w.reconcile()
	})
}
