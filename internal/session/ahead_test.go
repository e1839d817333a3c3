package session_test

import (
	"context"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// The state of a large Sandbox goes ahead of it, and what it remembers since then follows. If
// it cannot go ahead, or its changes do not fit, all of the state follows.
func TestSendAhead(t *testing.T) {
	broken := sandbox.Errorf(sandbox.Unavailable, "broken")
	for name, tt := range map[string]struct {
		small   bool
		faults  func(*faults)
		carried int // exports
		changed int // states that were made from changes
	}{
		"large":                      {carried: 2, changed: 1},
		"small":                      {small: true, carried: 1},
		"a node of a former version": {faults: func(f *faults) { f.onUsage = func() error { return broken } }, carried: 1},
		"a base that is not kept":    {faults: func(f *faults) { f.onKeepBase = func(string) error { return broken } }, carried: 2},
		"changes that do not fit": {faults: func(f *faults) {
			f.onImportChanges = func() error { return sandbox.Errorf(sandbox.Invalid, "the changes do not fit the base") }
		}, carried: 3},
		"a save that fails": {faults: func(f *faults) {
			f.onSave = func(_ context.Context, r sandbox.SaveRequest) error {
				if !r.Freeze {
					return broken
				}
				return nil
			}
		}, carried: 1},
	} {
		t.Run(name, func(t *testing.T) {
			onTwo(t, func(t *testing.T, w *world) {
				sb := w.create("t", sandbox.CreateRequest{Timeout: 5 * time.Hour})
				w.nodes.remember(sb, "before")
				w.nodes.large = !tt.small
				w.nodes.fail(func(f *faults) {
					f.onKeepBase = func(string) error { w.nodes.remember(sb, "since"); return nil }
					f.onSaved = func(r sandbox.SaveRequest) error {
						if !r.Leaves {
							t.Errorf("the node packs what leaves it: %+v", r)
						}
						return nil
					}
					if tt.faults != nil {
						tt.faults(f)
					}
				})
				w.setDraining("a", true)
				w.pass(time.Minute) // for another attempt
				want := "before"
				if tt.changed > 0 || name == "changes that do not fit" { // then it leaves with the next attempt
					want = "since"
				}
				if now := w.record(sb.ID); now.State != sandbox.Running || now.Boot.Node != "b" || w.nodes.recall(now) != want || !now.Deadline.Equal(sb.Deadline) {
					t.Errorf("it is %+v and remembers %q, want %q", now, w.nodes.recall(now), want)
				}
				if carried, changed := w.nodes.moved("a"); carried != tt.carried || changed != tt.changed {
					t.Errorf("%d states left the node and %d were made from changes, want %d and %d", carried, changed, tt.carried, tt.changed)
				}
				if n := w.savedOn("a"); n != 0 {
					t.Errorf("%d states are left", n)
				}
			})
		})
	}
}

// A Sandbox is not frozen if meanwhile no Node takes it any more.
func TestSendAheadToANodeThatFills(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{Timeout: 5 * time.Hour})
		w.nodes.remember(sb, "one")
		w.nodes.large = true
		w.nodes.fail(func(f *faults) { f.onKeepBase = func(string) error { w.reportFull("b", true); return nil } })
		w.setDraining("a", true)
		if now := w.record(sb.ID); now.State != sandbox.Running || now.Version != sb.Version {
			t.Errorf("it is %+v", now)
		}
		if n := w.savedOn("a"); n != 0 {
			t.Errorf("%d states are left", n)
		}
		w.reportFull("b", false)
		w.pass(20 * time.Minute)
		if now := w.record(sb.ID); now.State != sandbox.Running || now.Boot.Node != "b" || w.nodes.recall(now) != "one" {
			t.Errorf("then it is %+v", now)
		}
	})
}

// While the state of a Sandbox goes ahead, it can be used like any other.
func TestSendAheadHoldsNobody(t *testing.T) {
	for name, use := range map[string]func(t *testing.T, w *world, sb sandbox.Sandbox){
		"ended": func(t *testing.T, w *world, sb sandbox.Sandbox) {
			if _, err := w.m.End(t.Context(), "t", sb.ID, sandbox.CauseReleased); err != nil {
				t.Error(err)
			}
		},
		"paused": func(t *testing.T, w *world, sb sandbox.Sandbox) {
			if _, err := w.m.Pause(t.Context(), "t", sb.ID, false); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			onTwo(t, func(t *testing.T, w *world) {
				sb := w.create("t", sandbox.CreateRequest{Timeout: 5 * time.Hour})
				w.nodes.remember(sb, "one")
				w.nodes.large = true
				w.nodes.fail(func(f *faults) { f.onKeepBase = func(string) error { use(t, w, sb); return nil } })
				w.setDraining("a", true)
				now := w.record(sb.ID)
				switch name {
				case "ended":
					if now.State != sandbox.Ended {
						t.Errorf("it is %+v", now)
					}
				case "paused":
					if now.State != sandbox.Paused || now.Boot.Node != "b" {
						t.Errorf("it is %+v", now)
					}
				}
				if n := w.savedOn("a"); n != 0 {
					t.Errorf("%d states are left", n)
				}
			})
		})
	}
}
