package server

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/snapshot/chunks"
)

// packHost is a portHost that packs.
func packHost(t *testing.T) *Host {
	h := portHost(t)
	h.log, h.packSoon = slog.New(slog.NewTextHandler(t.Output(), nil)), make(chan struct{}, 1)
	return h
}

// pages returns n random pages.
func pages(seed byte, n int) []byte {
	b := make([]byte, n*pageBytes)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// stateWith saves a state with known memory.
func stateWith(t *testing.T, h *Host, memory []byte, group string) *sentryhost.Manifest {
	t.Helper()
	return layeredStateWith(t, h, 0, memory, group)
}

// layeredStateWith is stateWith whose memory begins with a layer in place.
func layeredStateWith(t *testing.T, h *Host, layer int64, memory []byte, group string) *sentryhost.Manifest {
	t.Helper()
	m := &sentryhost.Manifest{
		Name: sandbox.NewSnapshotID(), Boot: sandbox.NewBootID(), Memory: true, Build: "build", Engine: h.engineVersion(),
		Image: "image", Shape: sandbox.DefaultShape(),
	}
	d, err := h.newDraft(m, int64(len(memory)), 0)
	must(t, err)
	for i, f := range d.files {
		content := memory
		if i < len(d.files)-1 {
			content = []byte("small " + m.Name)
		}
		_, err := f.Write(content)
		must(t, err)
	}
	d.layer = layer
	_, err = d.finish()
	must(t, err)
	if group != "" {
		must(t, h.share(sentryhost.ShareRequest{Name: m.Name, Group: group}))
	}
	return m
}

// opens fails the test unless a state opens unchanged.
func opens(t *testing.T, h *Host, m *sentryhost.Manifest, memory []byte) {
	t.Helper()
	files, done, err := h.openReady(m)
	if err != nil {
		t.Errorf("open %s: %v", m.Name, err)
		return
	}
	defer done()
	defer closeAll(files)
	must(t, verify(m, files))
	got, err := os.ReadFile(files[len(files)-1].Name())
	if err != nil || !bytes.Equal(got, memory) {
		t.Errorf("%s has %d bytes of memory, %v", m.Name, len(got), err)
	}
}

// stored returns the total size of all chunks.
func stored(t *testing.T, h *Host) (total int64) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(h.cfg.Saved, chunksName), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		total += info.Size()
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return total
}

// A state packed by an earlier version, with chunks cut at pages, still opens after the
// same memory is packed by this version.
func TestChunksOfEarlierVersionsOpen(t *testing.T) {
	h := packHost(t)
	memory := pages(1, 1000)
	before, now := stateWith(t, h, memory, "t"), stateWith(t, h, memory, "t")
	p, err := h.newPacker(before.Name)
	must(t, err)
	defer p.close()
	for i, f := range p.files {
		content := make([]byte, before.Files[i].Bytes)
		_, err := f.ReadAt(content, 0)
		must(t, err)
		for chunk := range slices.Chunk(content, 2*pageBytes) {
			must(t, p.add(chunk))
		}
	}
	must(t, p.finish())
	must(t, h.pack(now.Name))
	for _, m := range []*sentryhost.Manifest{before, now} {
		must(t, h.evict(m))
		opens(t, h, m, memory)
	}
}

// Content shared by states of a group is stored once, at any offset. A start from a packed
// state gets the same content.
func TestPackedStatesShare(t *testing.T) {
	h := packHost(t)
	memory := pages(1, 2000)
	changed := slices.Concat(pages(2, 3), memory[:500*pageBytes], pages(3, 5), memory[510*pageBytes:])
	first, second := stateWith(t, h, memory, "t"), stateWith(t, h, changed, "t")
	alone := stateWith(t, h, memory, "")
	must(t, h.pack(first.Name))
	one := stored(t, h)
	must(t, h.pack(second.Name))
	both := stored(t, h)
	if most := int64(len(memory)) * 11 / 10; one > most || both-one > 40*chunks.MaxBytes {
		t.Errorf("the first takes %d bytes, the second %d more, of %d", one, both-one, len(memory))
	}
	for _, m := range []*sentryhost.Manifest{first, second, alone} {
		must(t, h.evict(m))
	}
	if h.hasFiles(first) || h.hasFiles(second) || !h.hasFiles(alone) {
		t.Error("what is packed keeps its files, or what is not loses them")
	}
	opens(t, h, first, memory)
	opens(t, h, second, changed)
	opens(t, h, alone, memory)

	// Another group shares nothing.
	other := stateWith(t, h, memory, "other")
	must(t, h.pack(other.Name))
	if added := stored(t, h) - both; added < one*9/10 {
		t.Errorf("a state of another group takes %d bytes more", added)
	}
	if err := h.share(sentryhost.ShareRequest{Name: first.Name, Group: "other"}); !errors.Is(err, sandbox.Conflict) {
		t.Errorf("a state changes its group: %v", err)
	}
	must(t, h.share(sentryhost.ShareRequest{Name: first.Name, Group: "t"}))

	// The second state is whole without the first. After all are deleted, no chunk is
	// left.
	must(t, h.evict(second))
	for _, m := range []*sentryhost.Manifest{first, other, second} {
		must(t, h.deleteSaved(m.Name))
		must(t, h.sweepChunks())
		if m == first {
			opens(t, h, second, changed)
			must(t, h.evict(second))
		}
	}
	if left := stored(t, h); left != 0 {
		t.Errorf("%d bytes are left", left)
	}
}

// The least recently used states are packed first, until the cache is small enough.
// States unused for long are packed in any case.
func TestPackOnce(t *testing.T) {
	h := packHost(t)
	now := time.Now()
	var all []*sentryhost.Manifest
	for i := range 4 {
		m := stateWith(t, h, pages(byte(i), 100), "t")
		at := now.Add(-time.Duration(4-i) * time.Hour)
		must(t, os.Chtimes(filepath.Join(h.savedDir(m.Name), groupFile), at, at))
		all = append(all, m)
	}
	there := func(what string, want ...bool) {
		t.Helper()
		for i, m := range all {
			if h.hasFiles(m) != want[i] {
				t.Errorf("%s: the files of state %d are there: %t", what, i, !want[i])
			}
		}
	}
	must(t, h.packOnce(t.Context(), now))
	there("before anybody said how", true, true, true, true)
	must(t, h.setCache(sentryhost.CacheRequest{Bytes: 3 * 110 * pageBytes, PackAfterSeconds: 1000 * 60 * 60}))
	must(t, h.packOnce(t.Context(), now))
	there("with room for three", false, true, true, true)
	must(t, h.setCache(sentryhost.CacheRequest{Bytes: 1 << 40, PackAfterSeconds: int64(150 * time.Minute / time.Second)}))
	must(t, h.packOnce(t.Context(), now))
	there("two hours and a half", false, false, true, true)
	opens(t, h, all[0], pages(0, 100))
	must(t, h.packOnce(t.Context(), now))
	there("one that was used", true, false, true, true)

	files, done, err := h.openReady(all[2])
	must(t, err)
	must(t, h.setCache(sentryhost.CacheRequest{}))
	must(t, h.packOnce(t.Context(), now))
	there("while a boot starts", false, false, true, false)
	closeAll(files)
	done()
	must(t, h.packOnce(t.Context(), now))
	there("without a cache", false, false, false, false)
	for i, m := range all {
		opens(t, h, m, pages(byte(i), 100))
	}
	for _, bad := range []sentryhost.CacheRequest{{Bytes: -1}, {PackAfterSeconds: -1}} {
		if err := h.setCache(bad); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("a cache of %+v: %v", bad, err)
		}
	}
}

// A deletion removes what one before has left when it failed, also if the state itself is gone.
func TestDeletionAfterAFailedOne(t *testing.T) {
	h := packHost(t)
	for _, there := range []bool{true, false} {
		m := stateWith(t, h, pages(1, 5), "t")
		left := filepath.Join(h.cfg.Saved, asidePrefix+m.Name+"-gone")
		must(t, os.MkdirAll(filepath.Join(left, "more"), 0o700))
		if !there {
			must(t, os.RemoveAll(h.savedDir(m.Name)))
		}
		must(t, h.deleteSaved(m.Name))
		if all, err := os.ReadDir(h.cfg.Saved); err != nil || slices.ContainsFunc(all, func(e os.DirEntry) bool { return strings.Contains(e.Name(), m.Name) }) {
			t.Errorf("left are %v, %v", all, err)
		}
	}
}

// No Boot starts from a damaged state, and packing it fails.
func TestDamagedChunks(t *testing.T) {
	h := packHost(t)
	spoilt := stateWith(t, h, pages(9, 50), "t")
	must(t, os.WriteFile(filepath.Join(h.savedDir(spoilt.Name), "pages.img"), make([]byte, 50*pageBytes), 0o600))
	if err := h.pack(spoilt.Name); !errors.Is(err, sandbox.Conflict) || stored(t, h) != 0 {
		t.Errorf("what is damaged is packed: %v, %d bytes", err, stored(t, h))
	}
	must(t, h.deleteSaved(spoilt.Name))
	for what, spoil := range map[string]func(m *sentryhost.Manifest, chunk string){
		"a chunk is gone":    func(_ *sentryhost.Manifest, chunk string) { must(t, os.Remove(chunk)) },
		"a chunk is another": func(_ *sentryhost.Manifest, chunk string) { must(t, os.WriteFile(chunk, []byte("x"), 0o600)) },
		"the list is cut off": func(m *sentryhost.Manifest, _ string) {
			rewrite(t, h, m, func(b []byte) []byte { return b[:len(b)-1] })
		},
		"the list is too long": func(m *sentryhost.Manifest, _ string) {
			rewrite(t, h, m, func(b []byte) []byte { return append(b, b...) })
		},
		"the list names huge chunks": func(m *sentryhost.Manifest, _ string) {
			rewrite(t, h, m, func(b []byte) []byte { b[32] = 0xff; return b })
		},
		"the group is gone": func(m *sentryhost.Manifest, _ string) {
			must(t, os.Remove(filepath.Join(h.savedDir(m.Name), groupFile)))
		},
	} {
		m := stateWith(t, h, pages(1, 300), "t")
		must(t, h.pack(m.Name))
		must(t, h.evict(m))
		lists, err := h.readChunks(m)
		must(t, err)
		spoil(m, h.chunkPath(groupName("t"), lists[len(lists)-1][0].ID))
		if _, _, err := h.openReady(m); !errors.Is(err, sandbox.Conflict) || !errors.Is(err, sandbox.ErrDamaged) {
			t.Errorf("%s: %v", what, err)
		}
		if h.hasFiles(m) {
			t.Errorf("%s: files were made of it", what)
		}
		must(t, h.deleteSaved(m.Name))
		h.setDirty()
		must(t, h.sweepChunks())
		if left, err := filepath.Glob(filepath.Join(h.cfg.Saved, asidePrefix+"*")); err != nil || len(left) > 0 || stored(t, h) != 0 {
			t.Errorf("%s: left %v, %d bytes, %v", what, left, stored(t, h), err)
		}
	}
}

// A Boot can take its layer back, and write to it, while its state is packed or exported.
// The pack or export then fails, because its file no longer belongs to the state.
func TestLayerIsTakenBackMeanwhile(t *testing.T) {
	const layer = 40 * pageBytes
	memory := pages(7, 100)
	for name, read := range map[string]func(h *Host, m *sentryhost.Manifest) (finish func() error){
		"pack": func(h *Host, m *sentryhost.Manifest) func() error {
			p, err := h.newPacker(m.Name)
			must(t, err)
			return func() error {
				defer p.close()
				return p.pack()
			}
		},
		"export": func(h *Host, m *sentryhost.Manifest) func() error {
			files, done, err := h.openReady(m)
			must(t, err)
			return func() error {
				defer done()
				defer closeAll(files)
				return h.checkSummed(m, files)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := packHost(t)
			m := layeredStateWith(t, h, layer, memory, "t")
			upper, err := os.OpenFile(filepath.Join(h.savedDir(m.Name), "pages.img"), os.O_RDWR, 0)
			must(t, err)
			defer upper.Close()
			b := &boot{upper: upper, record: record{Given: &given{To: m.Name, Bytes: layer, Size: layer}}}
			finish := read(h, m)
			unlock := h.lockStand(b)
			must(t, h.takeLayer(b))
			unlock()
			_, err = upper.WriteAt(pages(8, 40), 0)
			must(t, err)
			must(t, upper.Truncate(int64(len(memory)))) // restores the original length
			if err := finish(); !errors.Is(err, sandbox.Unavailable) || h.isPacked(m.Name) {
				t.Errorf("%v, packed %t", err, h.isPacked(m.Name))
			}
			must(t, h.pack(m.Name))
			must(t, h.evict(m))
			opens(t, h, m, memory)
			// A read of a state that is deleted meanwhile fails with NotFound.
			gone := layeredStateWith(t, h, layer, memory, "t")
			finish = read(h, gone)
			must(t, h.deleteSaved(gone.Name))
			if err := finish(); !errors.Is(err, sandbox.NotFound) {
				t.Errorf("of one that was deleted: %v", err)
			}
		})
	}
}

// Packing a state replaces damaged chunks. Earlier states with these chunks are whole
// again.
func TestPackingReplacesDamagedChunks(t *testing.T) {
	h := packHost(t)
	memory := pages(1, 300)
	first := stateWith(t, h, memory, "t")
	must(t, h.pack(first.Name))
	lists, err := h.readChunks(first)
	must(t, err)
	must(t, os.WriteFile(h.chunkPath(groupName("t"), lists[len(lists)-1][0].ID), []byte("x"), 0o600))
	second := stateWith(t, h, memory, "t")
	must(t, h.pack(second.Name))
	for _, m := range []*sentryhost.Manifest{second, first} {
		must(t, h.evict(m))
		opens(t, h, m, memory)
	}
}

func rewrite(t *testing.T, h *Host, m *sentryhost.Manifest, edit func([]byte) []byte) {
	t.Helper()
	path := filepath.Join(h.savedDir(m.Name), chunksName)
	raw, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, edit(raw), 0o600))
}

// A crashed sentry host leaves unlisted chunks, incomplete files, or a list that was not
// renamed into place. None of them breaks later packing.
func TestPackingThatWasCut(t *testing.T) {
	h := packHost(t)
	memory := pages(1, 300)
	m := stateWith(t, h, memory, "t")
	must(t, h.pack(m.Name))
	list, half := filepath.Join(h.savedDir(m.Name), chunksName), filepath.Join(h.savedDir(m.Name), asidePrefix+chunksName)
	must(t, os.Rename(list, half))
	must(t, os.Mkdir(filepath.Join(h.cfg.Saved, asidePrefix+m.Name+"-chunks-1"), 0o700))
	h.removeDrafts()
	h.setDirty()
	must(t, h.sweepChunks())
	if left := stored(t, h); left != 0 {
		t.Errorf("%d bytes are left that no list names", left)
	}
	opens(t, h, m, memory)
	must(t, h.pack(m.Name))
	must(t, os.Remove(filepath.Join(h.savedDir(m.Name), "pages.img"))) // evicted half way
	opens(t, h, m, memory)
	must(t, h.evict(m))
	opens(t, h, m, memory)
	if names, err := h.listSaved(); err != nil || !slices.Equal(names, []string{m.Name}) {
		t.Errorf("saved are %v, %v", names, err)
	}
}
