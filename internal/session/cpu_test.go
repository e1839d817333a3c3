package session_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// onThree is onTwo with a third Node c. Only the Node b lacks avx512f.
func onThree(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	on(t, []string{"a", "b", "c"}, func(t *testing.T, w *world) {
		for node, cpu := range map[string]sandbox.CPUFeatures{"a": "avx512f sse", "b": "sse", "c": "avx512f sse"} {
			w.nodes.setCPU(node, cpu)
		}
		test(t, w)
	})
}

// lacks fails the test unless err is a Conflict that names the missing feature.
func lacks(t *testing.T, what string, err error, text string) {
	t.Helper()
	if !errors.Is(err, sandbox.Conflict) || !errors.Is(err, sandbox.ErrCPU) || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "try again") {
		t.Errorf("%s = %v, want a conflict about the CPU with %q", what, err, text)
	}
}

// A state moves only to a Node with the CPU features that it needs, however it moves.
func TestMovesToACPUThatFits(t *testing.T) {
	onThree(t, func(t *testing.T, w *world) {
		sb := w.paused("one")
		snap, err := w.store.SnapshotByID(t.Context(), sb.Snapshot)
		if err != nil || snap.CPU != "avx512f sse" {
			t.Fatalf("saved as %+v, %v", snap, err)
		}
		w.full("a")
		running, err := w.m.Resume(t.Context(), "t", sb.ID)
		if err != nil || running.Boot.Node != "c" || w.nodes.recall(running) != "one" {
			t.Fatalf("resumed as %+v, %v", running, err)
		}
		w.full()
		w.setDraining("c", true)
		w.pass(2 * time.Minute)
		if sb, err := w.m.Get(t.Context(), "t", sb.ID); err != nil || sb.Boot.Node != "a" || sb.State != sandbox.Running {
			t.Errorf("after the drain: %+v, %v", sb, err)
		}
	})
}

// Where no Node with room has the features, nothing moves, and the error says why.
func TestStaysWhereTheCPUFits(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		w.nodes.setCPU("a", "avx512f sse")
		w.nodes.setCPU("b", "sse")
		running := w.create("t", sandbox.CreateRequest{Name: "two", Timeout: time.Hour})
		paused := w.paused("one")
		w.setDraining("a", true)
		w.pass(2 * time.Minute)
		for _, sb := range []sandbox.Sandbox{running, paused} {
			if now, err := w.m.Get(t.Context(), "t", sb.ID); err != nil || now.Boot.Node != "a" || now.State != sb.State {
				t.Errorf("after the drain: %+v, %v", now, err)
			}
		}
		if n := w.nodes.exportsOf("a"); n != 0 {
			t.Errorf("%d states were carried for nothing", n)
		}
		w.setDraining("a", false)
		w.full("a")
		if _, err := w.m.Resume(t.Context(), "t", paused.ID); !errors.Is(err, sandbox.Exhausted) {
			t.Errorf("Resume = %v, want exhausted: the node may have room later", err)
		}
		w.full()
		w.again(paused.ID, "a")
	})
}

// A Node that came back on another CPU refuses its states by the features that it lacks.
// With another Node that has them, they start there.
func TestNodeOnAnotherCPU(t *testing.T) {
	onThree(t, func(t *testing.T, w *world) {
		sb := w.paused("one")
		w.nodes.setCPU("a", "sse")
		w.nodes.setCPU("c", "sse")
		_, err := w.m.Resume(t.Context(), "t", sb.ID)
		lacks(t, "Resume", err, "this state needs CPU features that a lacks: avx512f")
		_, err = w.m.Create(t.Context(), "t", sandbox.CreateRequest{Snapshot: sb.Snapshot})
		lacks(t, "Create", err, "avx512f")
		forks, err := w.m.Fork(t.Context(), "t", sb.ID, sandbox.ForkRequest{Count: 1})
		if err != nil || len(forks) != 1 {
			t.Fatalf("Fork = %+v, %v", forks, err)
		}
		lacks(t, "Fork", forks[0].Err, "avx512f")
		if now, err := w.m.Get(t.Context(), "t", sb.ID); err != nil || now.State != sandbox.Paused {
			t.Errorf("after the refusals: %+v, %v", now, err)
		}
		w.nodes.setCPU("c", "avx512f sse")
		running, err := w.m.Resume(t.Context(), "t", sb.ID)
		if err != nil || running.Boot.Node != "c" || w.nodes.recall(running) != "one" {
			t.Errorf("resumed as %+v, %v", running, err)
		}
	})
}

// A Sandbox whose Node is away cannot resume on a CPU that lacks features, not even from a
// replica.
func TestAwayFromItsCPU(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		w.nodes.setCPU("a", "avx512f sse")
		w.nodes.setCPU("b", "sse")
		sb := w.paused("one")
		w.nodes.copyOut()
		w.vanish("a")
		_, err := w.m.Resume(t.Context(), "t", sb.ID)
		if !errors.Is(err, sandbox.Unavailable) || !strings.Contains(err.Error(), "is away, and no node has the CPU features") {
			t.Errorf("Resume = %v", err)
		}
		w.comeBack("a")
		if running, err := w.m.Resume(t.Context(), "t", sb.ID); err != nil || running.Boot.Node != "a" {
			t.Errorf("resumed as %+v, %v", running, err)
		}
	})
}

// An import goes to a Node that has the features, by the head of the file.
func TestImportForACPU(t *testing.T) {
	onThree(t, func(t *testing.T, w *world) {
		sb := w.paused("one")
		var file bytes.Buffer
		if err := w.m.ExportSnapshot(t.Context(), "t", sb.Snapshot, false, &file); err != nil {
			t.Fatal(err)
		}
		w.nodes.setCPU("a", "sse")
		snap, err := w.m.ImportSnapshot(t.Context(), "t", sandbox.ImportRequest{}, bytes.NewReader(file.Bytes()))
		if err != nil || snap.Node != "c" || snap.CPU != "avx512f sse" {
			t.Errorf("imported as %+v, %v", snap, err)
		}
		w.nodes.setCPU("c", "sse")
		_, err = w.m.ImportSnapshot(t.Context(), "t", sandbox.ImportRequest{}, bytes.NewReader(file.Bytes()))
		lacks(t, "ImportSnapshot", err, "no node has the CPU features")
	})
}
