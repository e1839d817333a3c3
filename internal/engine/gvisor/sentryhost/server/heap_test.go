package server

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
)

func TestHeapWanted(t *testing.T) {
	for _, tt := range []struct{ anonymous, want int64 }{
		{0, 0},
		{sentryMemory, 0},
		{sentryMemory + 1, heapStep},
		{sentryMemory + heapStep, heapStep},
		{sentryMemory + heapStep + 1, 2 * heapStep},
	} {
		if got := heapWanted(tt.anonymous); got != tt.want {
			t.Errorf("heapWanted(%d) = %d, want %d", tt.anonymous, got, tt.want)
		}
	}
}

// A process without a handler for a signal is not sent that signal.
func TestCatches(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	must(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if catches(cmd.Process.Pid, sentryhost.SignalWork) {
		t.Error("sleep catches real-time signals")
	}
	if !catches(os.Getpid(), unix.SIGURG) { // the Go runtime preempts with it
		t.Error("a Go program does not catch SIGURG")
	}
}

// A Boot with more files and descriptors than its limits have room for can be saved with
// and without memory, runs on, and can be started from either state.
func manyAreSaved(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	c := r.start(id, withMemory(128))
	c.Timeout = patience * 5
	b := r.host.boots[id]
	if got := get(t, c, "/files?n=80000"); got != "<nil>" {
		t.Fatalf("files = %q", got)
	}
	if got := get(t, c, "/sockets?n=5000"); got != "<nil>" {
		t.Fatalf("sockets = %q", got)
	}
	const want = "80000 files, true"
	for _, memory := range []bool{true, false} {
		name := sandbox.NewSnapshotID()
		_, err := r.host.save(sentryhost.SaveRequest{ID: id, Name: name, Memory: memory})
		if err != nil {
			t.Fatalf("save, with memory %t: %v", memory, err)
		}
		if got := get(t, c, "/count"); got != want {
			t.Errorf("after the save there are %s", got)
		}
		again := sandbox.NewBootID()
		from, _ := r.startAs(sentryhost.StartRequest{ID: again, Image: "test", Shape: withMemory(128), From: name})
		from.Timeout = c.Timeout
		must(t, r.host.thaw(again))
		if got := get(t, from, "/count"); memory && got != want || !memory && got != "80000 files, false" {
			t.Errorf("what started from it, with memory %t, has %s", memory, got)
		}
		must(t, r.host.stop(t.Context(), again))
		must(t, r.host.deleteSaved(name))
	}
	select {
	case <-b.gone:
		t.Errorf("the sentry ended: %s", b.how)
	default:
	}
	must(t, r.host.stop(t.Context(), id))
}

// If the host has too little memory for a save, the freeze and the save are refused and
// the Boot runs on.
func noMemoryToSave(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	c := r.start(id, withMemory(256))
	c.Timeout = patience * 5
	if got := get(t, c, "/files?n=30000"); got != "<nil>" {
		t.Fatalf("files = %q", got)
	}
	free := r.host.memoryFree
	defer func() { r.host.memoryFree = free }()
	r.host.memoryFree = func() int64 { return workMargin + 64<<20 }
	if err := r.host.freeze(id); !errors.Is(err, sandbox.Exhausted) || r.host.boots[id].record.Frozen {
		t.Errorf("freeze = %v, frozen %t", err, r.host.boots[id].record.Frozen)
	}
	_, err := r.host.save(sentryhost.SaveRequest{ID: id, Name: sandbox.NewSnapshotID(), Memory: true})
	if !errors.Is(err, sandbox.Exhausted) {
		t.Errorf("save = %v", err)
	}
	if got := get(t, c, "/ping"); got != "pong" || r.host.borrowed != 0 {
		t.Errorf("ping = %q, borrowed %d", got, r.host.borrowed)
	}
	r.host.memoryFree = free
	name := sandbox.NewSnapshotID()
	_, err = r.host.save(sentryhost.SaveRequest{ID: id, Name: name, Memory: true})
	must(t, err)
	must(t, r.host.deleteSaved(name))
	must(t, r.host.stop(t.Context(), id))
}

// A Boot with more files than its memory limit has room for gets a higher limit, until the
// files are removed. The next sentry host keeps that limit.
func heapGetsRoom(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	c := r.start(id, withMemory(128))
	c.Timeout = patience * 5
	b := r.host.boots[id]
	hard := b.group.Limit()
	if got := get(t, c, "/files?n=120000"); got != "<nil>" {
		t.Fatalf("files = %q", got)
	}
	if b.heap.Load() == 0 || b.group.Limit() != hard+b.heap.Load() {
		t.Errorf("the heap got %d, and the limit went from %d to %d", b.heap.Load(), hard, b.group.Limit())
	}
	old := *r
	r.open()
	defer old.waitGone(id)
	b = r.host.boots[id]
	if b.heap.Load() == 0 {
		t.Error("the next host gives it no room")
	}
	if got := get(t, c, "/remove"); got != "<nil>" {
		t.Fatalf("remove = %q", got)
	}
	// The limit follows the allowance.
	for end := time.Now().Add(patience); (b.heap.Load() > 0 || b.group.Limit() != hard) && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		get(t, c, "/files?n=100") // the guest's garbage is collected as it allocates
	}
	if b.heap.Load() != 0 || b.group.Limit() != hard {
		t.Errorf("afterwards it has %d, and the limit is %d, not %d", b.heap.Load(), b.group.Limit(), hard)
	}
	must(t, r.host.stop(t.Context(), id))
}
