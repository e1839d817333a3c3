package replication_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/fake"
	"github.com/cloud-sandbox/cloud-sandbox/internal/snapshot/replication"
)

// late is an engine that hands arrivals to the test.
type late struct {
	*fake.Engine
	begun chan *lateState
}

type lateState struct {
	name    string
	content sandbox.Arrival
	arrived func(error)
}

func (l late) ArriveSaved(_ context.Context, name string, content sandbox.Arrival, arrived func(error)) (sandbox.Saved, error) {
	l.begun <- &lateState{name, content, arrived}
	return sandbox.Saved{Bytes: content.Bytes(), Image: fake.Image}, nil
}

// DeleteSaved gives up what arrives: no Boot needs it.
func (l late) DeleteSaved(ctx context.Context, name string) error {
	select {
	case s := <-l.begun:
		s.content.Cancel()
		go s.arrived(errors.New("deleted"))
	default:
	}
	return l.Engine.DeleteSaved(ctx, name)
}

// end imports what has arrived, and ends the arrival.
func (s *lateState) end(t *testing.T, w *world) {
	t.Helper()
	_, err := w.inner.ImportSaved(t.Context(), s.name, io.NewSectionReader(s.content, 0, s.content.Bytes()))
	s.arrived(err)
	if err != nil {
		t.Error(err)
	}
}

// gated are Blobs whose packs arrive one by one.
type gated struct {
	sandbox.Blobs
	pass chan struct{} // a pack for each; closed: all
}

func (g gated) Get(ctx context.Context, name string) ([]byte, error) {
	if len(packs([]string{name})) > 0 {
		select {
		case <-g.pass:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return g.Blobs.Get(ctx, name)
}

// lateWorld is a world with such an engine and Blobs, and a state of text, which is not on the
// host.
func lateWorld(t *testing.T, text string) (w *world, l late, g gated, name string) {
	t.Helper()
	w = open(t, 1)
	name = w.save(t, text, "t")
	w.evicted(t, 0)
	w.stop()
	g = gated{w.blobs, make(chan struct{})}
	w.cfg.Blobs, w.cfg.DiskBytes = g, 0 // it stays when it is here
	l = w.late(t)
	return w, l, g, name
}

// late opens the engine again, over one that hands arrivals to the test.
func (w *world) late(t *testing.T) late {
	t.Helper()
	w.stop()
	w.inner = w.inner.Reopen()
	l := late{w.inner, make(chan *lateState, 1)}
	w.startOver(t, l)
	return l
}

// What is read comes first, and no start waits for the rest.
func TestHeldWhileItArrives(t *testing.T) {
	w, l, g, name := lateWorld(t, much(34<<20, 7)) // nine packs
	began := time.Now()
	for range 2 {
		hold, err := w.HoldSaved(t.Context(), name, false)
		if err != nil || !hold.Arrives {
			t.Fatalf("held: %+v, %v", hold, err)
		}
		defer hold.Release()
	}
	s := <-l.begun
	last := make(chan error, 1)
	go func() {
		s.content.Prefer(s.content.Bytes()-1, 1)
		_, err := s.content.ReadAt(make([]byte, 1), s.content.Bytes()-1)
		last <- err
	}()
	select {
	case err := <-last:
		t.Fatalf("a read of what has not arrived: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	for range 9 {
		g.pass <- struct{}{}
	}
	if err := <-last; err != nil {
		t.Errorf("a read of the end: %v", err)
	}
	if s := w.Stats(); s.Away != 1 || s.Fetched != 0 {
		t.Errorf("after %v: %+v", time.Since(began), s)
	}
	close(g.pass)
	s.end(t, w)
	w.until(t, "it has arrived", func(s replication.Stats) bool { return s.Here == 1 && s.Fetched == 1 })
	if n, err := s.content.ReadAt(make([]byte, 10), s.content.Bytes()); n != 0 || err == nil {
		t.Errorf("a read after the end: %d, %v", n, err)
	}
}

// What has begun to arrive is asked for again while the Blobs are away.
func TestArrivesLater(t *testing.T) {
	text := much(9<<20, 7)
	w, l, g, name := lateWorld(t, text)
	hold, err := w.HoldSaved(t.Context(), name, false)
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Release()
	s := <-l.begun
	w.blobs.set(true)
	close(g.pass)
	first := make(chan error, 1)
	go func() {
		_, err := s.content.ReadAt(make([]byte, 1), 0)
		first <- err
	}()
	select {
	case err := <-first:
		t.Fatalf("a read while the blobs are away: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	w.blobs.set(false)
	if err := <-first; err != nil {
		t.Error(err)
	}
	s.end(t, w)
	if got, err := w.file(t, name); err != nil || got != text {
		t.Errorf("it holds %d bytes, %v", len(got), err)
	}
}

// A pack that is damaged ends the arrival.
func TestDamagedArrival(t *testing.T) {
	w, l, g, name := lateWorld(t, much(9<<20, 7))
	w.spoil(t, "/p/")
	if _, err := w.HoldSaved(t.Context(), name, false); err != nil {
		t.Fatal(err)
	}
	s := <-l.begun
	close(g.pass)
	_, err := io.Copy(io.Discard, io.NewSectionReader(s.content, 0, s.content.Bytes()))
	if !errors.Is(err, sandbox.ErrDamaged) {
		t.Errorf("reads: %v", err)
	}
	s.arrived(err)
	w.until(t, "it failed", func(s replication.Stats) bool { return s.FetchFailed == 1 && s.Away == 1 })
}

// A deleted state is given up while it arrives, and only then its copy goes.
func TestDeletedWhileItArrives(t *testing.T) {
	w, l, _, name := lateWorld(t, much(9<<20, 7))
	if _, err := w.HoldSaved(t.Context(), name, false); err != nil {
		t.Fatal(err)
	}
	s := <-l.begun
	l.begun <- s // for DeleteSaved
	if err := w.DeleteSaved(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if _, err := s.content.ReadAt(make([]byte, 1), 0); err == nil {
		t.Error("it still arrives")
	}
	w.left(t, 1) // the key
}

// The next process continues an arrival, so that the Boots which need it go on.
func TestArrivalContinues(t *testing.T) {
	text := much(9<<20, 7)
	w, l, g, name := lateWorld(t, text)
	if _, err := w.HoldSaved(t.Context(), name, false); err != nil {
		t.Fatal(err)
	}
	first := <-l.begun
	close(g.pass)
	l = w.late(t)
	first.content.Cancel() // as the end of its process does
	first.arrived(errors.New("cut"))
	s := <-l.begun
	if s.name != name {
		t.Errorf("%s arrives", s.name)
	}
	s.end(t, w)
	if got, err := w.file(t, name); err != nil || got != text {
		t.Errorf("it holds %d bytes, %v", len(got), err)
	}
	w.late(t) // nothing to continue
	w.until(t, "it is here", func(s replication.Stats) bool { return s.Here == 1 })
}

// A state of another host has a copy of its own before it arrives, so the other one can go.
func TestFetchedWhileItArrives(t *testing.T) {
	text := much(9<<20, 7)
	a, b, from := onTwo(t, text)
	b.stop()
	g := gated{b.blobs, make(chan struct{})}
	b.cfg.Blobs = g
	l := b.late(t)
	to := sandbox.NewSnapshotID()
	if err := insert(t.Context(), b.store, b.cfg.Node, to, "t"); err != nil {
		t.Fatal(err)
	}
	saved, err := b.FetchSaved(t.Context(), to, from, "t")
	if err != nil || saved.Bytes == 0 {
		t.Fatalf("FetchSaved = %+v, %v", saved, err)
	}
	if err := b.ShareSaved(t.Context(), to, "t"); err != nil {
		t.Error(err)
	}
	if _, err := b.store.FindCopy(t.Context(), "t", to); err != nil {
		t.Errorf("its copy: %v", err)
	}
	codetest.Want(t, "FetchSaved again", codetest.ErrOf(b.FetchSaved(t.Context(), to, from, "t")), sandbox.Conflict)
	if err := a.DeleteSaved(t.Context(), from); err != nil {
		t.Fatal(err)
	}
	a.until(t, "deleted", func(s replication.Stats) bool { return s.Deleted == 1 })
	time.Sleep(50 * time.Millisecond) // the collector looks every few milliseconds
	s := <-l.begun
	close(g.pass)
	s.end(t, b)
	if got, err := b.file(t, to); err != nil || got != text {
		t.Errorf("it holds %d bytes, %v", len(got), err)
	}
	if put := b.Stats().PutBytes; put > 1<<20 {
		t.Errorf("%d bytes were put for the copy of a copy", put)
	}
	var out bytes.Buffer
	if err := b.ExportSaved(t.Context(), to, false, &out); err != nil || out.Len() < 9<<20 {
		t.Errorf("it is exported in %d bytes, %v", out.Len(), err)
	}
}

// A caller that needs all of a state waits for an arrival that begins meanwhile, and fetches
// nothing itself.
func TestWholeHoldWaitsForTheArrival(t *testing.T) {
	w, l, g, name := lateWorld(t, much(9<<20, 7))
	close(g.pass)
	w.blobs.set(true) // the first one holds the state's lock while it asks for the list
	var holding sync.WaitGroup
	hold := func(whole bool) {
		holding.Go(func() {
			for {
				hold, err := w.HoldSaved(t.Context(), name, whole)
				if err == nil {
					t.Cleanup(hold.Release)
					return
				}
				if !errors.Is(err, sandbox.Unavailable) {
					t.Errorf("held: %v", err)
					return
				}
			}
		})
	}
	for range 4 {
		hold(false)
		hold(true)
	}
	held := make(chan struct{})
	go func() {
		holding.Wait()
		close(held)
	}()
	w.blobs.set(false)
	select {
	case s := <-l.begun:
		s.end(t, w)
	case <-held: // a whole hold was the first
	}
	<-held
	if s := w.Stats(); s.Fetched != 1 || s.Here != 1 {
		t.Errorf("%+v", s)
	}
}

// An arrival that cannot continue does not keep the state from being deleted.
func TestDeletedWhenItCannotContinue(t *testing.T) {
	w, l, g, name := lateWorld(t, much(9<<20, 7))
	close(g.pass)
	if _, err := w.HoldSaved(t.Context(), name, false); err != nil {
		t.Fatal(err)
	}
	first := <-l.begun
	w.spoil(t, "/s/")
	l = w.late(t)
	first.content.Cancel()
	first.arrived(errors.New("cut"))
	codetest.Want(t, "a start", codetest.ErrOf(w.HoldSaved(t.Context(), name, false)), sandbox.Conflict)
	for end := time.Now().Add(wait); w.DeleteSaved(t.Context(), name) != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it cannot be deleted")
		}
	}
}

// A state that its host refuses is a Conflict, not something to try again.
func TestArrivalOfUntrusted(t *testing.T) {
	w, _, g, name := lateWorld(t, "x")
	close(g.pass)
	w.stop()
	w.inner = w.inner.Reopen()
	w.startOver(t, denying{w.inner})
	codetest.Want(t, "a start", codetest.ErrOf(w.HoldSaved(t.Context(), name, false)), sandbox.Conflict)
}

type denying struct{ *fake.Engine }

func (denying) ArriveSaved(context.Context, string, sandbox.Arrival, func(error)) (sandbox.Saved, error) {
	return sandbox.Saved{}, sandbox.Errorf(sandbox.Denied, "it is of a host that is not trusted")
}

// If the process ends while it continues an arrival, the next one continues.
func TestArrivalContinuesTwice(t *testing.T) {
	text := much(9<<20, 7)
	w, l, g, name := lateWorld(t, text)
	if _, err := w.HoldSaved(t.Context(), name, false); err != nil {
		t.Fatal(err)
	}
	first := <-l.begun
	close(g.pass)
	w.stop()
	first.content.Cancel()
	first.arrived(errors.New("cut"))
	w.inner = w.inner.Reopen()
	begun := make(chan struct{})
	w.startOver(t, hanging{w.inner, begun})
	<-begun
	l = w.late(t)
	s := <-l.begun
	s.end(t, w)
	if got, err := w.file(t, name); err != nil || got != text {
		t.Errorf("it holds %d bytes, %v", len(got), err)
	}
}

// hanging is an engine that does not come to take a state.
type hanging struct {
	*fake.Engine
	begun chan struct{}
}

func (h hanging) ArriveSaved(ctx context.Context, _ string, _ sandbox.Arrival, _ func(error)) (sandbox.Saved, error) {
	close(h.begun)
	<-ctx.Done()
	return sandbox.Saved{}, ctx.Err()
}

// What is preferred comes first, and the rest one by one meanwhile.
func TestPreferredComesFirst(t *testing.T) {
	w, l, g, name := lateWorld(t, much(60<<20, 7))
	if _, err := w.HoldSaved(t.Context(), name, false); err != nil {
		t.Fatal(err)
	}
	s := <-l.begun
	g.pass <- struct{}{} // the first
	s.content.Prefer(s.content.Bytes()-1, 1)
	s.content.Prefer(-1, 1)
	s.content.Prefer(s.content.Bytes(), 1)
	s.content.Prefer(0, 0)
	last := make(chan error, 1)
	go func() {
		_, err := s.content.ReadAt(make([]byte, 1), s.content.Bytes()-1)
		last <- err
	}()
	passed := 1
	for waits := true; waits; {
		select {
		case err := <-last:
			waits = false
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Second): // for the read, which may just be served
			g.pass <- struct{}{}
			passed++
		}
	}
	if passed > 8 {
		t.Errorf("%d of 16 packs came before the preferred one", passed)
	}
	close(g.pass)
	s.end(t, w)
}

// A start of a state that is deleted while it would begin to arrive ends, and does not spin.
func TestDeletedBeforeItArrives(t *testing.T) {
	w, l, _, name := lateWorld(t, "x")
	w.blobs.set(true)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			hold, err := w.HoldSaved(t.Context(), name, false)
			if err == nil {
				hold.Release()
			}
		})
	}
	wg.Go(func() {
		if err := w.DeleteSaved(t.Context(), name); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
	select {
	case <-l.begun:
		t.Error("it arrives")
	default:
	}
}

// More states than there are turns are fetched from another host at the same time.
func TestManyFetchedWhileTheyArrive(t *testing.T) {
	_, b, from := onTwo(t, "text")
	const many = 20
	var wg sync.WaitGroup
	for range many {
		to := sandbox.NewSnapshotID()
		if err := insert(t.Context(), b.store, b.cfg.Node, to, "t"); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			if _, err := b.FetchSaved(ctx, to, from, "t"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	b.until(t, "all are here", func(s replication.Stats) bool { return s.Here == many })
}
