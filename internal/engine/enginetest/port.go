package enginetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

func (s *suite) porter(t *testing.T) sandbox.Porter {
	t.Helper()
	p, ok := s.engine.(sandbox.Porter)
	if !ok {
		t.Fatal("the engine saves, and is no Porter")
	}
	return p
}

func (s *suite) export(t *testing.T, name string) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := s.porter(t).ExportSaved(t.Context(), name, false, &out); err != nil {
		t.Fatalf("ExportSaved: %v", err)
	}
	return out.Bytes()
}

// exportAndImport: an imported state equals the exported one.
func exportAndImport(t *testing.T, s *suite) {
	origin := s.start(t)
	s.Pause.Remember(t, s.engine, origin, "one")
	s.Pause.WriteFile(t, s.engine, origin, "two")
	memory, savedMemory := s.save(t, origin, true)
	files, savedFiles := s.save(t, origin, false)
	s.stop(t, origin)
	taken := map[string]string{}
	for name, saved := range map[string]sandbox.Saved{memory: savedMemory, files: savedFiles} {
		out := s.export(t, name)
		if err := s.pauser().DeleteSaved(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		to := sandbox.NewSnapshotID()
		got, err := s.porter(t).ImportSaved(t.Context(), to, iotest.HalfReader(bytes.NewReader(out)))
		if err != nil {
			t.Fatalf("ImportSaved: %v", err)
		}
		if got.Memory != saved.Memory || got.Build != saved.Build || got.Image != saved.Image || got.Shape != saved.Shape || got.Bytes <= 0 || got.Digest == "" {
			t.Errorf("imported %+v, want %+v", got, saved)
		}
		_, err = s.porter(t).ImportSaved(t.Context(), to, bytes.NewReader(out))
		codetest.Want(t, "ImportSaved under a name that is taken", err, sandbox.Conflict)
		taken[name] = to
		t.Cleanup(func() { _ = s.pauser().DeleteSaved(context.WithoutCancel(t.Context()), to) })
	}
	s.lists(t, taken[memory], taken[files])
	id := s.from(t, taken[memory])
	s.startedFrom(t, id, taken[memory])
	s.recalls(t, id, "one")
	s.holdsFile(t, id, "two")
	s.stop(t, id)
	s.holdsFile(t, s.from(t, taken[files]), "two")
}

// importRefused: an incomplete or changed export is refused, and leaves nothing.
func importRefused(t *testing.T, s *suite) {
	origin := s.start(t)
	name, _ := s.save(t, origin, false)
	out := s.export(t, name)
	codetest.Want(t, "ExportSaved of what is not there", s.porter(t).ExportSaved(t.Context(), sandbox.NewSnapshotID(), false, io.Discard), sandbox.NotFound)
	codetest.Want(t, "ExportSaved of nonsense", s.porter(t).ExportSaved(t.Context(), "../"+name, false, io.Discard), sandbox.Invalid)
	_, err := s.porter(t).ImportSaved(t.Context(), "../"+name, bytes.NewReader(out))
	codetest.Want(t, "ImportSaved as nonsense", err, sandbox.Invalid)
	for what, in := range map[string][]byte{
		"nothing": nil, "something else": []byte("hello"), "its first byte": out[:1], "its half": out[:len(out)/2], "all but one": out[:len(out)-2],
		"more": append(bytes.Clone(out), "more"...),
	} {
		_, err := s.porter(t).ImportSaved(t.Context(), sandbox.NewSnapshotID(), bytes.NewReader(in))
		codetest.Want(t, "ImportSaved of "+what, err, sandbox.Invalid)
	}
	broken := errors.New("the sender left")
	for _, n := range []int{0, 2, len(out) / 2, len(out)} {
		from := io.MultiReader(bytes.NewReader(out[:n]), iotest.ErrReader(broken))
		if _, err := s.porter(t).ImportSaved(t.Context(), sandbox.NewSnapshotID(), from); !errors.Is(err, broken) {
			t.Errorf("ImportSaved of one who left after %d bytes = %v", n, err)
		}
	}
	s.lists(t, name)
	s.Pause.Damage(t, s.engine, name)
	codetest.Want(t, "ExportSaved of what is damaged", s.porter(t).ExportSaved(t.Context(), name, false, io.Discard), sandbox.Conflict)
	s.asked(t, origin)
}

// shareSaved: a state has one group, and sharing does not change it.
func shareSaved(t *testing.T, s *suite) {
	sharer, ok := s.engine.(sandbox.Deduplicator)
	if !ok {
		t.Fatal("the engine saves, and is no Deduplicator")
	}
	origin := s.start(t)
	s.Pause.WriteFile(t, s.engine, origin, "two")
	name, _ := s.save(t, origin, false)
	for range 2 {
		if err := sharer.ShareSaved(t.Context(), name, "t"); err != nil {
			t.Errorf("ShareSaved: %v", err)
		}
	}
	codetest.Want(t, "ShareSaved with others", sharer.ShareSaved(t.Context(), name, "u"), sandbox.Conflict)
	codetest.Want(t, "ShareSaved of what is not there", sharer.ShareSaved(t.Context(), sandbox.NewSnapshotID(), "t"), sandbox.NotFound)
	s.holdsFile(t, s.from(t, name), "two")
}
