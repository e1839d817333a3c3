package enginetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

// whole is content that is all there, until it is cancelled.
type whole struct {
	all       []byte
	once      sync.Once
	cancelled chan struct{}
}

func newWhole(all []byte) *whole { return &whole{all: all, cancelled: make(chan struct{})} }

func (w *whole) ReadAt(p []byte, off int64) (int, error) {
	select {
	case <-w.cancelled:
		return 0, errors.New("it was cancelled")
	default:
		return bytes.NewReader(w.all).ReadAt(p, off)
	}
}

func (w *whole) Prefer(int64, int64) {}

func (w *whole) Bytes() int64 { return int64(len(w.all)) }
func (w *whole) Cancel()      { w.once.Do(func() { close(w.cancelled) }) }

// arrive begins the arrival of a state, and returns where its end is told.
func (s *suite) arrive(t *testing.T, name string, content []byte) (sandbox.Saved, <-chan error, error) {
	t.Helper()
	arriver, ok := s.engine.(sandbox.Arriver)
	if !ok {
		t.Skip("the engine starts from whole states only")
	}
	arrived := make(chan error, 1)
	saved, err := arriver.ArriveSaved(t.Context(), name, newWhole(content), func(err error) { arrived <- err })
	if errors.Is(err, sandbox.Unsupported) {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = s.pauser().DeleteSaved(context.WithoutCancel(t.Context()), name) })
	return saved, arrived, err
}

// told returns how an arrival ended.
func (s *suite) told(t *testing.T, arrived <-chan error) (err error) {
	t.Helper()
	s.within(t, "the end of the arrival", func() bool {
		select {
		case err = <-arrived:
			return true
		default:
			return false
		}
	})
	return err
}

// startWhileArriving: Boots start from a state that arrives, which then is as any other.
func startWhileArriving(t *testing.T, s *suite) {
	origin := s.start(t)
	s.Pause.Remember(t, s.engine, origin, "one")
	s.Pause.WriteFile(t, s.engine, origin, "two")
	name, saved := s.save(t, origin, true)
	out := s.export(t, name)
	s.stop(t, origin)
	if err := s.pauser().DeleteSaved(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	to := sandbox.NewSnapshotID()
	got, arrived, err := s.arrive(t, to, out)
	if err != nil {
		t.Fatalf("ArriveSaved: %v", err)
	}
	if got.Memory != saved.Memory || got.Build != saved.Build || got.Image != saved.Image || got.Shape != saved.Shape || got.Bytes <= 0 || got.Digest == "" {
		t.Errorf("it arrives as %+v, want %+v", got, saved)
	}
	early := s.from(t, to)
	s.startedFrom(t, early, to)
	if err := s.told(t, arrived); err != nil {
		t.Errorf("the arrival ended with %v", err)
	}
	s.lists(t, to)
	for _, id := range []string{early, s.from(t, to)} {
		s.recalls(t, id, "one")
		s.holdsFile(t, id, "two")
	}
	_, _, err = s.arrive(t, to, out)
	codetest.Want(t, "ArriveSaved under a name that is taken", err, sandbox.Conflict)
	imported := sandbox.NewSnapshotID()
	if _, err := s.porter(t).ImportSaved(t.Context(), imported, bytes.NewReader(s.export(t, to))); err != nil {
		t.Errorf("it cannot be exported and imported: %v", err)
	}
	t.Cleanup(func() { _ = s.pauser().DeleteSaved(context.WithoutCancel(t.Context()), imported) })
}

// arrivalRefused: what is not an export does not arrive, and leaves nothing.
func arrivalRefused(t *testing.T, s *suite) {
	origin := s.start(t)
	name, _ := s.save(t, origin, true)
	out := s.export(t, name)
	_, _, err := s.arrive(t, "../"+name, out)
	codetest.Want(t, "ArriveSaved as nonsense", err, sandbox.Invalid)
	for what, in := range map[string][]byte{"nothing": nil, "something else": []byte("hello"), "its first byte": out[:1]} {
		if _, _, err := s.arrive(t, sandbox.NewSnapshotID(), in); !errors.Is(err, sandbox.Invalid) && !errors.Is(err, io.EOF) {
			t.Errorf("ArriveSaved of %s = %v", what, err)
		}
	}
	for what, in := range map[string][]byte{"all but two bytes": out[:len(out)-2], "more": append(bytes.Clone(out), "more"...)} {
		to := sandbox.NewSnapshotID()
		_, arrived, err := s.arrive(t, to, in)
		if err == nil {
			err = s.told(t, arrived)
		}
		if err == nil {
			t.Errorf("%s arrived", what)
		}
	}
	s.lists(t, name)
	s.asked(t, origin)
}
