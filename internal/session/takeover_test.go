package session_test

import (
	"errors"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// fenceAfter of the Nodes here. The Manager looks each nodesEvery, a minute.
const fenceAfter = 5 * time.Minute

// fall has Node a, which fences itself, go silent.
func (w *world) fall(after time.Duration) {
	w.t.Helper()
	w.nodes.setAway("a", true)
	if _, err := w.store.RenewLease(w.t.Context(), sandbox.NodeRecord{Name: "a", Engine: "fake", FenceAfter: after}, -time.Second); err != nil {
		w.t.Fatal(err)
	}
}

// The Sandboxes of a Node that has certainly fenced itself start elsewhere, without an
// operator.
func TestSilentNodeIsTakenOver(t *testing.T) {
	for _, tt := range []struct {
		name  string
		after time.Duration // FenceAfter of the Node
		until func(w *world)
		want  bool
	}{
		{"it stays silent", fenceAfter, func(w *world) { w.pass(fenceAfter + 2*nodesEvery) }, true},
		{"not before it is fenced", fenceAfter, func(w *world) { w.pass(fenceAfter - nodesEvery) }, false},
		{"it does not fence itself", 0, func(w *world) { w.pass(10 * fenceAfter) }, false},
		{"it was back for a moment", fenceAfter, func(w *world) {
			w.pass(fenceAfter - nodesEvery)
			w.lease("a", time.Second)
			w.fall(fenceAfter)
			w.pass(fenceAfter - nodesEvery)
		}, false},
		{"an earlier program renewed its lease", fenceAfter, func(w *world) {
			w.lease("a", -time.Second)
			w.pass(10 * fenceAfter)
		}, false},
		{"the database was away meanwhile", fenceAfter, func(w *world) {
			w.pass(fenceAfter - nodesEvery)
			w.store.blind.Store(true)
			w.pass(2 * nodesEvery)
			w.store.blind.Store(false)
			w.pass(fenceAfter - nodesEvery)
		}, false},
		{"no other node is there", fenceAfter, func(w *world) {
			w.lease("b", -time.Second)
			w.pass(10 * fenceAfter)
			w.lease("b", 24*time.Hour) // the first one that comes back gets nothing of the others
			w.pass(fenceAfter - nodesEvery)
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onTwo(t, func(t *testing.T, w *world) {
				sb := w.create("t", sandbox.CreateRequest{Timeout: 10 * time.Hour, OnTimeout: sandbox.OnTimeoutPause, CheckpointEvery: 5 * time.Hour})
				w.nodes.remember(sb, "saved")
				w.snapshot(sb.ID, "")
				w.nodes.copyOut()
				w.fall(tt.after)
				tt.until(w)
				running, err := w.m.Resume(t.Context(), "t", sb.ID)
				switch {
				case tt.want && (err != nil || running.Boot.Node != "b" || w.nodes.recall(running) != "saved"):
					t.Errorf("resumed as %+v, %v, want on the other node", running, err)
				case !tt.want && !errors.Is(err, sandbox.Unavailable):
					t.Errorf("Resume = %+v, %v, want Unavailable", running, err)
				}
				w.comeBack("a")
				w.pass(5 * time.Minute) // no start can be under way
			})
		})
	}
}
