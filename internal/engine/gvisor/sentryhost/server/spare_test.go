package server

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
)

// like returns a request for a start. It asks for one pre-warmed sentry (spare) for later
// starts like it.
func like(from string) sentryhost.StartRequest {
	return sentryhost.StartRequest{ID: sandbox.NewBootID(), Image: "test", Shape: withMemory(256), From: from, Spares: 1}
}

// waiting starts the wanted spares and returns the only one.
func (r *rig) waiting() *boot {
	r.t.Helper()
	r.host.refill(r.t.Context())
	if n := len(r.host.spares); n != 1 {
		r.t.Fatalf("%d sentries wait, want 1", n)
	}
	return r.host.spares[0]
}

// noneWaits ends the spares.
func (r *rig) noneWaits() {
	r.host.mu.Lock()
	r.host.wanted = nil
	r.host.mu.Unlock()
	r.host.refill(r.t.Context())
}

// A start takes a spare that fits. The Boot then behaves like any other.
func sparesAreTaken(t *testing.T, r *rig) {
	defer r.noneWaits()
	r.startAs(like(""))
	spare := r.waiting()
	second := like("")
	c, reply := r.startAs(second)
	b := r.host.boots[second.ID]
	if b != spare || b.record.ID != second.ID || b.record.name() == second.ID || !reply.SavedAt.IsZero() {
		t.Fatalf("it is in %s as %+v, told %v", b.record.name(), b.record, reply.SavedAt)
	}
	procs, err := b.group.Procs()
	if err != nil || len(procs) == 0 {
		t.Errorf("its group holds %v, %v", procs, err)
	}
	get(t, c, "/bomb?mb=1")
	must(t, r.host.freeze(second.ID))
	must(t, r.host.thaw(second.ID))
	name := sandbox.NewSnapshotID()
	_, err = r.host.save(sentryhost.SaveRequest{ID: second.ID, Name: name, Memory: true})
	must(t, err)
	m, _, err := r.host.readManifest(name)
	if err != nil || m.Boot != second.ID {
		t.Fatalf("saved as %+v, %v", m, err)
	}
	must(t, r.host.stop(t.Context(), second.ID))
	must(t, r.host.stop(t.Context(), second.ID))

	// A start from memory needs another kind of spare, and its reply has the time of the
	// save.
	first := like(name)
	if _, reply := r.startAs(first); !reply.SavedAt.IsZero() || r.host.boots[first.ID].spare != nil {
		t.Errorf("one that no sentry waits for is told %v", reply.SavedAt)
	}
	restored := like(name)
	if spare := r.waiting(); !spare.spare.memory {
		t.Errorf("%+v waits", spare.spare.kind)
	}
	if _, reply := r.startAs(restored); !reply.SavedAt.Equal(m.SavedAt) || r.host.boots[restored.ID].spare == nil {
		t.Errorf("told %v, saved at %v", reply.SavedAt, m.SavedAt)
	}
	must(t, r.host.thaw(restored.ID))
	must(t, r.host.deleteSaved(name))
}

// A spare does not keep its image in use. It is not taken when it is dead or its image has
// changed, nor by a start that wants no spares or another Shape.
func sparesOfNoUse(t *testing.T, r *rig) {
	defer r.noneWaits()
	image := filepath.Join(r.cfg.Images, "other.erofs")
	raw, err := os.ReadFile(filepath.Join(r.cfg.Images, "test.erofs"))
	must(t, err)
	must(t, os.WriteFile(image, raw, 0o644))
	of := func() sentryhost.StartRequest {
		q := like("")
		q.Image = "other"
		return q
	}
	stops := func(q sentryhost.StartRequest, took bool) {
		t.Helper()
		r.startAs(q)
		if spare := r.host.boots[q.ID].spare != nil; spare != took {
			t.Errorf("it has a sentry that waited: %t, want %t", spare, took)
		}
		must(t, r.host.stop(t.Context(), q.ID))
	}
	stops(of(), false)
	waits := r.waiting()
	f, err := os.Open(image)
	must(t, err)
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("the image is in use: %v", err)
	}
	f.Close()
	none := of()
	none.Spares = 0
	stops(none, false)
	other := of()
	other.Shape.Pids++
	stops(other, false)
	if again := r.waiting(); again == waits || again.spare.shape != other.Shape {
		t.Error("the one that waits is not like the last start")
	}
	stops(other, true)

	dead := r.waiting()
	must(t, unix.Kill(dead.record.Pid, unix.SIGKILL))
	<-dead.gone
	other.ID = sandbox.NewBootID()
	stops(other, false)

	replaced := r.waiting()
	must(t, os.WriteFile(image+".new", raw, 0o644))
	must(t, os.Rename(image+".new", image))
	other.ID = sandbox.NewBootID()
	stops(other, false)
	<-replaced.gone

	removed := r.waiting()
	must(t, os.Remove(image))
	r.host.refill(t.Context())
	<-removed.gone
	if n := len(r.host.spares); n != 0 {
		t.Errorf("%d wait for an image that is gone", n)
	}
}

// A new sentry host adopts a Boot that was started from a spare, and ends the waiting
// spares.
func newHostEndsSpares(t *testing.T, r *rig) {
	first, second := like(""), like("")
	r.startAs(first)
	r.waiting()
	c, _ := r.startAs(second)
	waits := r.waiting()
	before := r.host.boots[second.ID].record
	r.open()
	for _, b := range r.host.list() {
		if b.ID == second.ID && b.Pid != before.Pid {
			t.Errorf("taken up as %+v, it was %+v", b, before)
		}
	}
	if n := len(r.host.list()); n != 2 {
		t.Errorf("%d boots were taken up, want 2", n)
	}
	if got := get(t, c, "/ping"); got != "pong" {
		t.Errorf("the guest answers %q", got)
	}
	r.host.strays.Wait()
	select {
	case <-waits.gone:
	case <-time.After(patience):
		t.Error("one that waited lives on")
	}
}
