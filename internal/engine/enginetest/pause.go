package enginetest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

// Pause is the suite's access to the inside of Boots, for the cases about saved states.
type Pause struct {
	// Ask calls the Guest of a Boot and returns nil when it answers.
	Ask func(ctx context.Context, e sandbox.Engine, id string) error
	// Remember stores a value in the memory of a program in a Boot; Recall reads it.
	Remember func(t *testing.T, e sandbox.Engine, id, value string)
	Recall   func(t *testing.T, e sandbox.Engine, id string) string
	// WriteFile and ReadFile do so with a file.
	WriteFile func(t *testing.T, e sandbox.Engine, id, value string)
	ReadFile  func(t *testing.T, e sandbox.Engine, id string) string
	// Need makes a saved state need one more CPU feature; nil: states do not stay on the
	// host.
	Need func(t *testing.T, e sandbox.Engine, name, feature string)
	// Damage corrupts a saved state.
	Damage func(t *testing.T, e sandbox.Engine, name string)
}

// standstill is how long a frozen Guest is watched for a wrong answer.
const standstill = 200 * time.Millisecond

func (s *suite) pauser() sandbox.Pauser { return s.engine.(sandbox.Pauser) }

func (s *suite) save(t *testing.T, id string, memory bool) (string, sandbox.Saved) {
	t.Helper()
	name := sandbox.NewSnapshotID()
	saved, err := s.pauser().Save(t.Context(), id, name, memory)
	if err != nil {
		t.Fatalf("Save: %v", err)
	}
	t.Cleanup(func() { _ = s.pauser().DeleteSaved(context.WithoutCancel(t.Context()), name) })
	return name, saved
}

// from starts a Boot from a saved state and continues it.
func (s *suite) from(t *testing.T, name string) string {
	t.Helper()
	id := sandbox.NewBootID()
	spec := s.spec()
	spec.From = name
	if err := s.engine.Start(t.Context(), id, spec); err != nil {
		t.Fatalf("Start from a saved state: %v", err)
	}
	t.Cleanup(func() { _ = s.engine.Stop(context.WithoutCancel(t.Context()), id, 0) })
	s.asked(t, id)
	s.thaw(t, id)
	return id
}

func (s *suite) freeze(t *testing.T, id string) {
	t.Helper()
	if err := s.pauser().Freeze(t.Context(), id); err != nil {
		t.Fatalf("Freeze: %v", err)
	}
}

func (s *suite) thaw(t *testing.T, id string) {
	t.Helper()
	if err := s.pauser().Thaw(t.Context(), id); err != nil {
		t.Fatalf("Thaw: %v", err)
	}
}

// asked fails the test unless the Guest answers.
func (s *suite) asked(t *testing.T, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), s.Wait)
	defer cancel()
	if err := s.Pause.Ask(ctx, s.engine, id); err != nil {
		t.Errorf("the guest does not answer: %v", err)
	}
}

// frozen fails the test if the Guest answers.
func (s *suite) frozen(t *testing.T, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), standstill)
	defer cancel()
	if err := s.Pause.Ask(ctx, s.engine, id); err == nil {
		t.Error("the guest of a frozen boot answers")
	}
}

func (s *suite) recalls(t *testing.T, id, want string) {
	t.Helper()
	if got := s.Pause.Recall(t, s.engine, id); got != want {
		t.Errorf("the memory of %s holds %q, want %q", id, got, want)
	}
}

func (s *suite) holdsFile(t *testing.T, id, want string) {
	t.Helper()
	if got := s.Pause.ReadFile(t, s.engine, id); got != want {
		t.Errorf("the file in %s holds %q, want %q", id, got, want)
	}
}

func (s *suite) lists(t *testing.T, want ...string) {
	t.Helper()
	got, err := s.pauser().ListSaved(t.Context())
	if err != nil {
		t.Fatalf("ListSaved: %v", err)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("ListSaved = %v, want %v", got, want)
	}
}

// startedFrom checks the listed origin of a Boot.
func (s *suite) startedFrom(t *testing.T, id, name string) {
	t.Helper()
	for _, b := range s.list(t) {
		if b.ID == id && (b.From != name || b.Image != s.Image || b.Shape != s.Shape) {
			t.Errorf("listed as %+v, want from %q", b, name)
		}
	}
}

// pauseTold: an Engine is a Pauser exactly when its Features say Pause.
func pauseTold(t *testing.T, s *suite) {
	f, err := s.engine.Probe(t.Context())
	if _, can := s.engine.(sandbox.Pauser); err != nil || can != f.Pause || can != (s.Pause != nil) {
		t.Errorf("Probe = %+v, %v, and the engine can: %t", f, err, can)
	}
}

func freezeThaw(t *testing.T, s *suite) {
	id := s.start(t)
	s.Pause.Remember(t, s.engine, id, "one")
	for range 2 {
		s.thaw(t, id) // of a running Boot
		s.freeze(t, id)
		s.freeze(t, id)
		s.frozen(t, id)
		s.thaw(t, id)
		s.thaw(t, id)
		s.asked(t, id)
	}
	s.recalls(t, id, "one")
	s.freeze(t, id)
	s.stop(t, id)
	s.gone(t, id)
	for what, err := range map[string]error{
		"Freeze": s.pauser().Freeze(t.Context(), id),
		"Thaw":   s.pauser().Thaw(t.Context(), id),
	} {
		codetest.Want(t, what+" of an unknown boot", err, sandbox.NotFound)
	}
	codetest.Want(t, "Freeze of nonsense", s.pauser().Freeze(t.Context(), "../b"), sandbox.Invalid)
	codetest.Want(t, "Thaw of nonsense", s.pauser().Thaw(t.Context(), "../b"), sandbox.Invalid)
}

// saveMemory: a Boot that starts from a state has all of it, and is independent.
func saveMemory(t *testing.T, s *suite) {
	origin := s.start(t)
	s.Pause.Remember(t, s.engine, origin, "one")
	s.Pause.WriteFile(t, s.engine, origin, "two")
	name, saved := s.save(t, origin, true)
	if !saved.Memory || saved.Bytes <= 0 || saved.Build == "" || saved.Image != s.Image || saved.Shape != s.Shape || saved.Digest == "" {
		t.Errorf("Saved = %+v", saved)
	}
	s.asked(t, origin)
	s.recalls(t, origin, "one")
	s.Pause.Remember(t, s.engine, origin, "later")
	s.Pause.WriteFile(t, s.engine, origin, "later")

	first := s.from(t, name)
	s.startedFrom(t, first, name)
	s.startedFrom(t, origin, "")
	s.recalls(t, first, "one")
	s.holdsFile(t, first, "two")
	s.Pause.Remember(t, s.engine, first, "its own")
	s.Pause.WriteFile(t, s.engine, first, "its own")
	s.stop(t, origin)

	second := s.from(t, name)
	s.recalls(t, second, "one")
	s.holdsFile(t, second, "two")
	s.recalls(t, first, "its own")
	s.holdsFile(t, first, "its own")

	// A restored Boot can be saved, its state outlives it, and it ends like any other.
	again, _ := s.save(t, first, true)
	s.stop(t, first)
	s.gone(t, first)
	third := s.from(t, again)
	s.recalls(t, third, "its own")
	if _, err := s.engine.Usage(t.Context(), third); err != nil {
		t.Errorf("Usage: %v", err)
	}
	if err := s.engine.SetLimits(t.Context(), third, halved(s.Shape)); err != nil {
		t.Errorf("SetLimits: %v", err)
	}
}

func saveFiles(t *testing.T, s *suite) {
	origin := s.start(t)
	s.Pause.WriteFile(t, s.engine, origin, "two")
	name, saved := s.save(t, origin, false)
	if saved.Memory || saved.Bytes <= 0 || saved.Image != s.Image || saved.Shape != s.Shape || saved.Digest == "" {
		t.Errorf("Saved = %+v", saved)
	}
	s.asked(t, origin)
	s.Pause.WriteFile(t, s.engine, origin, "later")
	id := s.from(t, name)
	s.startedFrom(t, id, name)
	s.holdsFile(t, id, "two")
	s.Pause.WriteFile(t, s.engine, id, "three")
	again, _ := s.save(t, id, false)
	s.stop(t, id)
	s.holdsFile(t, s.from(t, again), "three")
	s.holdsFile(t, origin, "later")
}

// savePause: a frozen Boot stays frozen when it is saved.
func savePause(t *testing.T, s *suite) {
	id := s.start(t)
	s.Pause.Remember(t, s.engine, id, "one")
	s.freeze(t, id)
	name, saved := s.save(t, id, true)
	s.frozen(t, id)
	// A repeated Save returns the same result, also after the Boot was continued.
	for range 2 {
		again, err := s.pauser().Save(t.Context(), id, name, true)
		if err != nil || again != saved {
			t.Errorf("Save again = %+v, %v, want %+v", again, err, saved)
		}
		s.thaw(t, id)
		s.asked(t, id)
		s.recalls(t, id, "one")
	}
	s.Pause.Remember(t, s.engine, id, "later")
	s.stop(t, id)
	s.recalls(t, s.from(t, name), "one")
}

func saveRefused(t *testing.T, s *suite) {
	first, second := s.start(t), s.start(t)
	s.Pause.Remember(t, s.engine, first, "one")
	name, saved := s.save(t, first, true)
	_, err := s.pauser().Save(t.Context(), second, name, true)
	codetest.Want(t, "Save of another boot under the same name", err, sandbox.Conflict)
	for _, bad := range []string{"", "s", "../../etc", sandbox.NewBootID(), sandbox.NewSnapshotID() + "/"} {
		_, err := s.pauser().Save(t.Context(), first, bad, true)
		codetest.Want(t, "Save under a bad name", err, sandbox.Invalid)
		codetest.Want(t, "DeleteSaved of a bad name", s.pauser().DeleteSaved(t.Context(), bad), sandbox.Invalid)
	}
	_, err = s.pauser().Save(t.Context(), sandbox.NewBootID(), sandbox.NewSnapshotID(), true)
	codetest.Want(t, "Save of an unknown boot", err, sandbox.NotFound)
	_, err = s.pauser().Save(t.Context(), "b", sandbox.NewSnapshotID(), true)
	codetest.Want(t, "Save of nonsense", err, sandbox.Invalid)
	s.lists(t, name)
	for _, id := range []string{first, second} {
		s.asked(t, id)
	}
	if again, err := s.pauser().Save(t.Context(), first, name, true); err != nil || again != saved {
		t.Errorf("Save again = %+v, %v, want %+v", again, err, saved)
	}
}

// saveCanceled: cancelled at any moment, a save succeeds or leaves nothing, and the Boot
// runs on.
func saveCanceled(t *testing.T, s *suite) {
	id := s.start(t)
	s.Pause.Remember(t, s.engine, id, "one")
	began := time.Now()
	s.save(t, id, true)
	took := time.Since(began)
	for i := range 4 {
		ctx, cancel := context.WithTimeout(t.Context(), took*time.Duration(i)/4)
		name := sandbox.NewSnapshotID()
		_, err := s.pauser().Save(ctx, id, name, true)
		cancel()
		s.asked(t, id)
		if _, retryErr := s.pauser().Save(t.Context(), id, name, true); retryErr != nil {
			t.Errorf("Save after one that was given up (%v) = %v", err, retryErr)
		}
		s.recalls(t, s.from(t, name), "one")
		if err := s.pauser().DeleteSaved(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	s.recalls(t, id, "one")
}

// startForLess starts a Boot with less memory than the saved one: it has the Shape of the
// saved one, and its limits can be lowered.
func startForLess(t *testing.T, s *suite) {
	origin := s.start(t)
	s.Pause.Remember(t, s.engine, origin, "one")
	name, _ := s.save(t, origin, true)
	less := s.spec()
	less.From = name
	less.Shape.MemoryBytes = halved(s.Shape).MemoryBytes
	id := sandbox.NewBootID()
	if err := s.engine.Start(t.Context(), id, less); err != nil {
		t.Fatalf("Start for less memory than was saved: %v", err)
	}
	t.Cleanup(func() { _ = s.engine.Stop(context.WithoutCancel(t.Context()), id, 0) })
	s.asked(t, id)
	if err := s.engine.SetLimits(t.Context(), id, halved(s.Shape)); err != nil {
		t.Errorf("SetLimits: %v", err)
	}
	s.thaw(t, id)
	s.startedFrom(t, id, name)
	s.recalls(t, id, "one")
}

func startFromRefused(t *testing.T, s *suite) {
	origin := s.start(t)
	name, _ := s.save(t, origin, true)
	other := s.spec()
	other.Shape.DiskBytes *= 2
	more := s.spec()
	more.Shape.MemoryBytes *= 2
	elsewhere := s.spec()
	elsewhere.Image = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	damaged, _ := s.save(t, origin, true)
	s.Pause.Damage(t, s.engine, damaged)
	files, _ := s.save(t, origin, false)
	s.Pause.Damage(t, s.engine, files)
	for _, tt := range []struct {
		what string
		spec sandbox.BootSpec
		from string
		want sandbox.Code
	}{
		{"a name of another form", s.spec(), "../" + name, sandbox.Invalid},
		{"no state", s.spec(), sandbox.NewSnapshotID(), sandbox.NotFound},
		{"another shape", other, name, sandbox.Conflict},
		{"a shape with more memory", more, name, sandbox.Conflict},
		{"another image", elsewhere, name, sandbox.Conflict},
		{"a damaged state", s.spec(), damaged, sandbox.Conflict},
		{"damaged files", s.spec(), files, sandbox.Conflict},
	} {
		id := sandbox.NewBootID()
		tt.spec.From = tt.from
		err := s.engine.Start(t.Context(), id, tt.spec)
		codetest.Want(t, "Start from "+tt.what, err, tt.want)
		if (tt.from == damaged || tt.from == files) && !errors.Is(err, sandbox.ErrDamaged) {
			t.Errorf("Start from %s = %v, want one that says so", tt.what, err)
		}
		s.gone(t, id)
	}
	s.asked(t, origin)
}

// lackingCPU: a state with memory records the CPU features that its Boot saw. One that
// needs a feature which this host lacks is refused, with its name.
func lackingCPU(t *testing.T, s *suite) {
	f, err := s.engine.Probe(t.Context())
	if err != nil || f.CPU == "" || f.GuestCPU == "" || f.CPU.Check() != nil || len(f.CPU.Lacks(f.GuestCPU)) > 0 {
		t.Fatalf("Probe = %+v, %v, want CPU features", f, err)
	}
	origin := s.start(t)
	s.Pause.Remember(t, s.engine, origin, "one")
	name, saved := s.save(t, origin, true)
	files, savedFiles := s.save(t, origin, false)
	if saved.CPU != f.GuestCPU || savedFiles.CPU != "" {
		t.Errorf("saved with the CPU features %q, and files alone with %q, want %q and none", saved.CPU, savedFiles.CPU, f.GuestCPU)
	}
	restored := s.from(t, name)
	if _, again := s.save(t, restored, true); again.CPU != saved.CPU {
		t.Errorf("a restored boot is saved with %q, want %q", again.CPU, saved.CPU)
	}
	if s.Pause.Need == nil {
		return
	}
	const feature = "imaginary"
	s.Pause.Need(t, s.engine, name, feature)
	out := s.export(t, name)
	spec := s.spec()
	spec.From = name
	id := sandbox.NewBootID()
	before, err := s.pauser().ListSaved(t.Context())
	codetest.OK(t, "ListSaved", err)
	_, importErr := s.porter(t).ImportSaved(t.Context(), sandbox.NewSnapshotID(), bytes.NewReader(out))
	for call, err := range map[string]error{"Start": s.engine.Start(t.Context(), id, spec), "ImportSaved": importErr} {
		codetest.Want(t, call+" of a state that needs another CPU", err, sandbox.Conflict)
		if !errors.Is(err, sandbox.ErrCPU) || !strings.Contains(err.Error(), feature) || strings.Contains(err.Error(), "sse") {
			t.Errorf("%s of a state that needs another CPU = %v, want one that names %s alone", call, err, feature)
		}
	}
	s.gone(t, id)
	s.lists(t, before...)
	s.asked(t, s.from(t, files))
	s.asked(t, origin)
}

func deleteSaved(t *testing.T, s *suite) {
	s.lists(t)
	origin := s.start(t)
	s.Pause.Remember(t, s.engine, origin, "one")
	first, _ := s.save(t, origin, true)
	second, _ := s.save(t, origin, false)
	s.lists(t, first, second)
	started := s.from(t, first)
	for range 2 {
		if err := s.pauser().DeleteSaved(t.Context(), first); err != nil {
			t.Errorf("DeleteSaved: %v", err)
		}
	}
	s.lists(t, second)
	spec := s.spec()
	spec.From = first
	codetest.Want(t, "Start from a deleted state", s.engine.Start(t.Context(), sandbox.NewBootID(), spec), sandbox.NotFound)
	s.recalls(t, started, "one")
	if err := s.pauser().DeleteSaved(t.Context(), second); err != nil {
		t.Errorf("DeleteSaved: %v", err)
	}
	s.lists(t)
}

func savedAfterRestart(t *testing.T, s *suite) {
	running, frozen := s.start(t), s.start(t)
	s.Pause.Remember(t, s.engine, running, "one")
	s.Pause.Remember(t, s.engine, frozen, "two")
	s.freeze(t, frozen)
	name, saved := s.save(t, frozen, true)
	s.engine = s.Reopen(t, s.engine)
	s.lists(t, name)
	s.asked(t, running)
	s.frozen(t, frozen)
	if again, err := s.pauser().Save(t.Context(), frozen, name, true); err != nil || again != saved {
		t.Errorf("Save again = %+v, %v, want %+v", again, err, saved)
	}
	restored := s.from(t, name)
	s.recalls(t, restored, "two")
	s.engine = s.Reopen(t, s.engine)
	s.startedFrom(t, restored, name)
	s.recalls(t, restored, "two")
	s.thaw(t, frozen)
	s.asked(t, frozen)
	s.recalls(t, frozen, "two")
	other, _ := s.save(t, running, true)
	s.recalls(t, s.from(t, other), "one")
}

func restoreMany(t *testing.T, s *suite) {
	origin := s.start(t)
	s.Pause.Remember(t, s.engine, origin, "one")
	name, _ := s.save(t, origin, true)
	var wg sync.WaitGroup
	for range s.Parallel {
		wg.Go(func() {
			id := sandbox.NewBootID()
			spec := s.spec()
			spec.From = name
			if err := s.engine.Start(t.Context(), id, spec); err != nil {
				t.Errorf("Start from a saved state: %v", err)
				return
			}
			if err := s.pauser().Thaw(t.Context(), id); err != nil {
				t.Errorf("Thaw: %v", err)
			}
			s.recalls(t, id, "one")
			if err := s.engine.Stop(t.Context(), id, 0); err != nil {
				t.Errorf("Stop: %v", err)
			}
		})
	}
	wg.Wait()
	s.recalls(t, origin, "one")
}
