package gvisor

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

// arriving is content of an exported state. A part in the middle does not arrive before hurry is
// called: a Boot runs without it, as the middle of a large value is there.
type arriving struct {
	all  []byte
	open chan struct{} // closed to let the rest arrive

	hurrying  chan struct{}
	halted    atomic.Bool // nothing arrives until open is closed
	wrong     atomic.Bool // the last byte of each read is another
	asked     atomic.Int64
	preferred atomic.Bool // a part after the beginning was
	once      sync.Once
	cancel    chan struct{}
}

// withheld is the size of that part, for which fewer reads wait than are awaited at a time.
const withheld = 2 << 20

func newArriving(all []byte) *arriving {
	return &arriving{all: all, open: make(chan struct{}), hurrying: make(chan struct{}), cancel: make(chan struct{})}
}

// arrivalOf exports a state.
func arrivalOf(t *testing.T, e *Engine, name string) *arriving {
	t.Helper()
	var all bytes.Buffer
	if err := e.ExportSaved(t.Context(), name, false, &all); err != nil {
		t.Fatal(err)
	}
	return newArriving(all.Bytes())
}

var errNotComing = errors.New("this part does not come")

func (a *arriving) hurry() { close(a.hurrying) }

func (a *arriving) Prefer(off, _ int64) { a.preferred.Store(a.preferred.Load() || off > 1<<20) }

func (a *arriving) ReadAt(p []byte, off int64) (int, error) {
	a.asked.Add(int64(len(p)))
	if middle := int64(len(a.all)) / 2; off < middle+withheld && off+int64(len(p)) > middle {
		select {
		case <-a.hurrying:
		case <-a.open:
		case <-a.cancel:
			return 0, errNotComing
		}
	}
	if a.halted.Load() {
		select {
		case <-a.open:
		case <-a.cancel:
			return 0, errNotComing
		}
	}
	n, err := bytes.NewReader(a.all).ReadAt(p, off)
	if n > 0 && a.wrong.Load() {
		p[n-1] ^= 1
	}
	return n, err
}

func (a *arriving) Bytes() int64 { return int64(len(a.all)) }
func (a *arriving) Cancel()      { a.once.Do(func() { close(a.cancel) }) }

// arrive begins the arrival of a state as name, and returns where its end is told.
func arrive(t *testing.T, e *Engine, name string, from *arriving) (sandbox.Saved, <-chan error) {
	t.Helper()
	arrived := make(chan error, 1)
	saved, err := e.ArriveSaved(t.Context(), name, from, func(err error) { arrived <- err })
	if err != nil {
		t.Fatal(err)
	}
	return saved, arrived
}

// goesOn checks that an arrival has not ended.
func goesOn(t *testing.T, arrived <-chan error) {
	t.Helper()
	select {
	case err := <-arrived:
		t.Fatalf("the arrival ended with %v", err)
	default:
	}
}

func within(t *testing.T, arrived <-chan error) error {
	t.Helper()
	select {
	case err := <-arrived:
		return err
	case <-time.After(time.Minute):
		t.Fatal("the end of the arrival was not told")
		return nil
	}
}

// grow gives a Boot 200 MiB in memory, and grown says whether they are still the same.
const (
	grow  = "import os\nvalue = os.urandom(200 << 20)\nimport hashlib\nsum = hashlib.md5(value).hexdigest()"
	grown = "print(hashlib.md5(value).hexdigest() == sum)"
)

// Boots start from a state while it arrives. What they read first comes first, and all of it
// is right.
func TestStartWhileStateArrives(t *testing.T) {
	s := newStage(t)
	e := s.open(t)
	defer endAll(t, e)
	id, name := s.startBound(t, e), sandbox.NewSnapshotID()
	python(t, e, id, grow)
	sh(t, e, id, "cd /workspace && head -c 40M /dev/urandom >f")
	want := sh(t, e, id, sums)
	s.pauseAs(t, e, id, name)
	if s.layerOf(t, name) == 0 {
		t.Fatal("the layer is not in place")
	}
	exported := arrivalOf(t, e, name).all
	if err := e.Stop(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	if err := e.DeleteSaved(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{name, sandbox.NewSnapshotID()} { // as its own name, and as another one
		began := time.Now()
		content := newArriving(exported)
		saved, arrived := arrive(t, e, name, content)
		first, second := s.startFrom(t, e, name), s.startFrom(t, e, name)
		t.Logf("two boots run after %v", time.Since(began))
		python(t, e, first, "print(1 + 1)")
		t.Logf("the first execution ended after %v", time.Since(began))
		goesOn(t, arrived)
		content.hurry()
		for _, id := range []string{first, second} {
			if got := python(t, e, id, grown); got != "True" {
				t.Errorf("other values in memory: %q", got)
			}
			if got := sh(t, e, id, sums); got != want {
				t.Error("the files are others")
			}
		}
		if err := within(t, arrived); err != nil {
			t.Fatal(err)
		}
		t.Logf("all had arrived after %v", time.Since(began))
		names, err := e.ListSaved(t.Context())
		if err != nil || !slices.Contains(names, name) {
			t.Errorf("saved states: %v, %v", names, err)
		}
		later := s.startFrom(t, e, name)
		if got := sh(t, e, later, sums); got != want {
			t.Error("the files of a later start are others")
		}
		running := sandbox.NewSnapshotID()
		if again, err := e.Save(t.Context(), first, running, true); err != nil || again.Digest == saved.Digest {
			t.Errorf("Save = %+v, %v", again, err)
		}
		for _, id := range []string{first, second, later} {
			if err := e.Stop(t.Context(), id, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Boots whose state does not arrive whole end, and leave nothing.
func TestStateDoesNotArrive(t *testing.T) {
	s := newStage(t)
	e := s.open(t)
	defer endAll(t, e)
	id, name := s.startBound(t, e), sandbox.NewSnapshotID()
	python(t, e, id, grow)
	s.pauseAs(t, e, id, name)
	for what, spoil := range map[string]func(*arriving){
		"the rest never comes": func(a *arriving) { a.Cancel() },
		"the rest is other bytes": func(a *arriving) {
			a.wrong.Store(true)
			close(a.open)
		},
	} {
		t.Run(what, func(t *testing.T) {
			content, as := arrivalOf(t, e, name), sandbox.NewSnapshotID()
			_, arrived := arrive(t, e, as, content)
			twin := s.startFrom(t, e, as)
			content.halted.Store(true)
			goesOn(t, arrived)
			codetest.Want(t, "Freeze", e.Freeze(t.Context(), twin), sandbox.Unavailable)
			codetest.Want(t, "Save", codetest.ErrOf(e.Save(t.Context(), twin, sandbox.NewSnapshotID(), true)), sandbox.Unavailable)
			spoil(content)
			if err := within(t, arrived); err == nil {
				t.Error("it arrived")
			}
			for end := time.Now().Add(time.Minute); runs(t, e, twin); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the boot lives on")
				}
			}
			if names, err := e.ListSaved(t.Context()); err != nil || slices.Contains(names, as) {
				t.Errorf("saved states: %v, %v", names, err)
			}
			if left, _ := filepath.Glob(filepath.Join(s.dir, "saved", ".*")); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
	t.Run("a start waits for it", func(t *testing.T) {
		content, as := arrivalOf(t, e, name), sandbox.NewSnapshotID()
		_, arrived := arrive(t, e, as, content)
		content.halted.Store(true)
		started := make(chan error, 1)
		go func() {
			started <- e.Start(t.Context(), sandbox.NewBootID(), sandbox.BootSpec{Image: s.image, Shape: sandbox.DefaultShape(), From: as})
		}()
		for !content.preferred.Load() {
			select {
			case err := <-started:
				t.Fatalf("it started without its memory, %v", err)
			case <-time.After(time.Millisecond):
			}
		}
		content.Cancel()
		_ = within(t, arrived)
		codetest.Want(t, "Start", <-started, sandbox.Unavailable)
	})
	t.Run("deleted before a boot starts", func(t *testing.T) {
		content, as := arrivalOf(t, e, name), sandbox.NewSnapshotID()
		_, arrived := arrive(t, e, as, content)
		content.halted.Store(true)
		if err := e.DeleteSaved(t.Context(), as); err != nil {
			t.Fatal(err)
		}
		if err := within(t, arrived); err == nil {
			t.Error("it arrived")
		}
		err := e.Start(t.Context(), sandbox.NewBootID(), sandbox.BootSpec{Image: s.image, Shape: sandbox.DefaultShape(), From: as})
		codetest.Want(t, "Start", err, sandbox.NotFound)
	})
	t.Run("deleted while a boot needs it", func(t *testing.T) {
		content, as := arrivalOf(t, e, name), sandbox.NewSnapshotID()
		_, arrived := arrive(t, e, as, content)
		twin := s.startFrom(t, e, as)
		content.halted.Store(true)
		goesOn(t, arrived)
		content.hurry()
		if err := e.DeleteSaved(t.Context(), as); err != nil {
			t.Fatal(err)
		}
		close(content.open)
		if got := python(t, e, twin, grown); got != "True" {
			t.Errorf("other values in memory: %q", got)
		}
		_ = within(t, arrived)
		if names, err := e.ListSaved(t.Context()); err != nil || slices.Contains(names, as) {
			t.Errorf("saved states: %v, %v", names, err)
		}
	})
}

// If the server ends while a state arrives, the next one continues, and the Boots go on. If
// the sentry host ends, these Boots end too.
func TestArrivalOutlivesServer(t *testing.T) {
	s := newStage(t)
	s.stop()
	parts := filepath.Join(filepath.Dir(os.Getenv("CLOUD_SANDBOX_E2E")), "stage")
	s.startHost(t, parts, "test")
	e := s.open(t)
	id, name := s.startBound(t, e), sandbox.NewSnapshotID()
	python(t, e, id, grow)
	s.pauseAs(t, e, id, name)
	begin := func() (as, twin string, arrived <-chan error) {
		as = sandbox.NewSnapshotID()
		content := arrivalOf(t, e, name)
		_, arrived = arrive(t, e, as, content)
		twin = s.startFrom(t, e, as)
		content.halted.Store(true)
		return as, twin, arrived
	}
	as, twin, arrived := begin()
	_ = e.Close()
	e = s.open(t)
	goesOn(t, arrived) // to the process that ended nothing is told
	again := arrivalOf(t, e, name)
	again.hurry()
	_, arrived = arrive(t, e, as, again)
	if got := python(t, e, twin, grown); got != "True" {
		t.Errorf("other values in memory: %q", got)
	}
	if err := within(t, arrived); err != nil {
		t.Error(err)
	}
	if asked := again.asked.Load(); asked >= int64(len(again.all)) {
		t.Errorf("%d bytes were sent again", asked)
	}

	as, twin, arrived = begin()
	s.killHost(t)
	if err := within(t, arrived); err == nil {
		t.Error("it arrived")
	}
	s.startHost(t, parts, "test")
	_ = e.Close()
	e = s.open(t)
	defer endAll(t, e)
	if runs(t, e, twin) {
		t.Error("a boot without all of its memory lives")
	}
	if names, err := e.ListSaved(t.Context()); err != nil || slices.Contains(names, as) {
		t.Errorf("saved states: %v, %v", names, err)
	}
}

// runs reports whether a Boot runs.
func runs(t *testing.T, e *Engine, id string) bool {
	t.Helper()
	all, err := e.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(all, func(b sandbox.BootStatus) bool { return b.ID == id })
}
