package server

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
)

// Starts from one state read its files once. A change of a file makes the next start read
// them again.
func TestProofOfWholeFiles(t *testing.T) {
	dir := t.TempDir()
	m := &sentryhost.Manifest{Name: sandbox.NewSnapshotID()}
	var files []*os.File
	for _, name := range []string{"checkpoint.img", "pages.img"} {
		f, err := os.Create(filepath.Join(dir, name))
		must(t, err)
		t.Cleanup(func() { f.Close() })
		_, err = f.WriteString("the pages of " + name)
		must(t, err)
		sum, err := sumUp(f, 0)
		must(t, err)
		sum.Name = name
		m.Files, files = append(m.Files, sum), append(files, f)
	}
	h := &Host{proofs: map[string]*proof{}}
	proven := func() *proof { h.mu.Lock(); defer h.mu.Unlock(); return h.proofs[m.Name] }

	for again := true; again; again = marksOf(files, time.Now()) != nil { // this took too long
		h.proofs = map[string]*proof{}
		for _, f := range files {
			_, err := f.WriteAt([]byte("t"), 0) // as before
			must(t, err)
		}
		must(t, h.whole(m, files)())
		if proven() != nil && marksOf(files, time.Now()) == nil {
			t.Error("files that have only just changed are taken to be whole later on")
		}
	}
	settled(t, files)
	must(t, h.whole(m, files)())
	first := proven()
	if first == nil {
		t.Fatal("nothing is remembered")
	}
	must(t, h.whole(m, files)())
	if proven() != first {
		t.Error("the files were read again")
	}

	other := *m
	other.Files = []sentryhost.SavedFile{m.Files[0], {Name: "pages.img", Bytes: m.Files[1].Bytes, CRC: m.Files[1].CRC + 1}}
	if err := h.whole(&other, files)(); !errors.Is(err, sandbox.ErrDamaged) {
		t.Errorf("another manifest: %v", err)
	}
	must(t, h.whole(m, files)())

	// Change one bit and restore the modification time.
	info, err := files[1].Stat()
	must(t, err)
	_, err = files[1].WriteAt([]byte("T"), 0)
	must(t, err)
	must(t, os.Chtimes(files[1].Name(), info.ModTime(), info.ModTime()))
	settled(t, files)
	if err := h.whole(m, files)(); !errors.Is(err, sandbox.ErrDamaged) {
		t.Errorf("a file that was changed: %v", err)
	}
	if proven() != nil {
		t.Error("what is damaged is remembered")
	}
	_, err = files[1].WriteAt([]byte("t"), 0)
	must(t, err)
	settled(t, files)
	must(t, h.whole(m, files)())

	h.mu.Lock()
	last := h.proofs[m.Name]
	last.until = time.Now().Add(-time.Nanosecond)
	h.mu.Unlock()
	must(t, h.whole(m, files)())
	if proven() == last {
		t.Error("a proof holds after its time")
	}
}

// settled waits until a further change of the files must change their times.
func settled(t *testing.T, files []*os.File) {
	t.Helper()
	for late := time.Now().Add(10 * time.Second); marksOf(files, time.Now()) == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("the files do not settle")
		}
	}
}
