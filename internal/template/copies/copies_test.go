package copies

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/blobs/disk"
	"github.com/cloud-sandbox/cloud-sandbox/internal/blobs/seal"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/builder/buildertest"
)

// partBytes is the size of parts here.
const partBytes = 1 << 10

// shelf keeps images in memory.
type shelf map[string][]byte

// add adds an image of random bytes and returns its version.
func (s shelf) add(size int) string {
	content := make([]byte, size)
	source := rand.NewChaCha8([32]byte{byte(size), byte(len(s))})
	_, _ = source.Read(content) // never fails
	sum := sha256.Sum256(content)
	version := hex.EncodeToString(sum[:])
	s[version] = content
	return version
}

func (s shelf) OpenToCopy(_ context.Context, version string) (io.ReadCloser, int64, error) {
	content, ok := s[version]
	if !ok {
		return nil, 0, sandbox.Errorf(sandbox.NotFound, "no image")
	}
	return io.NopCloser(bytes.NewReader(content)), int64(len(content)), nil
}

func (s shelf) ListImages() (all []string, err error) {
	for version := range s {
		all = append(all, version)
	}
	return all, nil
}

// limited is Blobs whose requests fail after some.
type limited struct {
	sandbox.Blobs
	mu            sync.Mutex
	puts, deletes int // that still succeed; negative: all do
	put           []string
}

func (l *limited) allow(left *int) error {
	if *left == 0 {
		return sandbox.Errorf(sandbox.Unavailable, "no answer")
	}
	*left--
	return nil
}

func (l *limited) Put(ctx context.Context, name string, content []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.allow(&l.puts); err != nil {
		return err
	}
	l.put = append(l.put, name)
	return l.Blobs.Put(ctx, name, content)
}

func (l *limited) Delete(ctx context.Context, name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.allow(&l.deletes); err != nil {
		return err
	}
	return l.Blobs.Delete(ctx, name)
}

// world is a Keeper's surroundings.
type world struct {
	t      *testing.T
	images shelf
	blobs  *limited
	folder string // of the blobs
	dir    string // of the records
	needed string // the image that a Sandbox needs
	err    error  // of the question who needs an image
}

func newWorld(t *testing.T) *world {
	t.Helper()
	folder := t.TempDir()
	return &world{
		t: t, images: shelf{}, blobs: &limited{Blobs: disk.Open(folder), puts: -1, deletes: -1},
		folder: folder, dir: filepath.Join(t.TempDir(), "records"),
	}
}

func key(b byte) []byte { return bytes.Repeat([]byte{b}, seal.KeyBytes) }

// keeper returns a Keeper, as after a restart.
func (w *world) keeper(keys ...byte) *Keeper {
	w.t.Helper()
	k, err := NewKeeper(w.config(w.copies(keys...)))
	codetest.OK(w.t, "NewKeeper", err)
	return k
}

func (w *world) config(c *Copies) KeeperConfig {
	return KeeperConfig{
		Copies: c, Images: w.images, Dir: w.dir, Log: slog.New(slog.DiscardHandler),
		Needed: func(_ context.Context, version string) (bool, error) { return version == w.needed, w.err },
	}
}

func (w *world) copies(keys ...byte) *Copies {
	w.t.Helper()
	if len(keys) == 0 {
		keys = []byte{1}
	}
	var all [][]byte
	for _, b := range keys {
		all = append(all, key(b))
	}
	c, err := Open(w.blobs, all)
	codetest.OK(w.t, "Open", err)
	c.part = partBytes
	return c
}

// holds checks that the copy of an image has its content.
func (w *world) holds(version string, keys ...byte) {
	w.t.Helper()
	image, size, err := w.copies(keys...).OpenImage(w.t.Context(), version)
	codetest.OK(w.t, "OpenImage", err)
	defer image.Close()
	got, err := io.ReadAll(image)
	if err != nil || size != int64(len(w.images[version])) || !bytes.Equal(got, w.images[version]) {
		w.t.Errorf("the copy of %d bytes has %d, and says %d: %v", len(w.images[version]), len(got), size, err)
	}
}

func (w *world) lacks(version string, keys ...byte) {
	w.t.Helper()
	codetest.Want(w.t, "OpenImage", openErr(w.t, w.copies(keys...), version), sandbox.NotFound)
}

func openErr(t *testing.T, c *Copies, version string) error {
	image, _, err := c.OpenImage(t.Context(), version)
	if err == nil {
		defer image.Close()
		_, err = io.Copy(io.Discard, image)
	}
	return err
}

// files are the paths of all blobs.
func (w *world) files() (all []string) {
	w.t.Helper()
	err := filepath.WalkDir(w.folder, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all = append(all, path)
		}
		return err
	})
	codetest.OK(w.t, "WalkDir", err)
	return all
}

// Images of all sizes are copied, and without the key the store shows no image's version.
func TestCopies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, size := range []int{1, partBytes - 1, partBytes, 2*partBytes + 1} {
		w.images.add(size)
	}
	k := w.keeper()
	k.step(t.Context())
	if k.Waiting() != 0 || k.Counts().Copied.Load() != 4 {
		t.Errorf("%d wait, and %d are copied", k.Waiting(), k.Counts().Copied.Load())
	}
	for version, content := range w.images {
		w.holds(version)
		w.lacks(version, 2)
		for _, file := range w.files() {
			raw, err := os.ReadFile(file)
			if err != nil || strings.Contains(file, version) || len(content) > 100 && bytes.Contains(raw, content[:100]) {
				t.Errorf("%s has the version %s in it: %v", file, version, err)
			}
		}
	}
	w.lacks(strings.Repeat("0", 64))
	puts := len(w.blobs.put)
	k.step(t.Context())
	w.keeper().step(t.Context())
	if len(w.blobs.put) != puts {
		t.Errorf("copied again: %q", w.blobs.put[puts:])
	}
	if _, err := Open(w.blobs, nil); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("Open without a key: %v", err)
	}
}

// A copy that was interrupted is no copy. The next attempt puts what is missing.
func TestInterruptedCopy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		version := w.images.add(3 * partBytes)
		w.blobs.puts = 2
		k := w.keeper()
		k.step(t.Context())
		w.lacks(version)
		if k.Waiting() != 1 || k.Counts().CopyFailed.Load() != 1 {
			t.Errorf("%d wait, and %d failed", k.Waiting(), k.Counts().CopyFailed.Load())
		}
		w.blobs.puts = -1
		k.step(t.Context())
		w.lacks(version) // it is not tried again at once
		w.blobs.puts = 1
		time.Sleep(retryAfter)
		k.step(t.Context())
		w.lacks(version) // all of its parts, but not its list
		w.blobs.puts = -1
		w.keeper().step(t.Context())
		w.holds(version)
		seen := map[string]bool{}
		for _, name := range w.blobs.put {
			if seen[name] {
				t.Errorf("%s was put twice", name)
			}
			seen[name] = true
		}
		if len(seen) != 4 {
			t.Errorf("put: %q", w.blobs.put)
		}
	})
}

// The copy of a removed image stays for a while, and its deletion goes on after a crash.
func TestRemovedImage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		version, other := w.images.add(2*partBytes), w.images.add(10)
		content := w.images[version]
		k := w.keeper()
		k.step(t.Context())
		after := func(k *Keeper, d time.Duration) {
			time.Sleep(d)
			k.step(t.Context())
		}
		delete(w.images, version)
		after(k, 0)
		after(k, usualGrace-time.Second)
		w.images[version] = content
		w.holds(version)
		after(k, time.Minute) // it has come back
		delete(w.images, version)
		after(k, 0)
		w.images[version] = content
		w.holds(version)
		delete(w.images, version)

		w.blobs.deletes = 2
		after(k, usualGrace)
		w.lacks(version)
		if k.Counts().DeleteFailed.Load() != 1 || len(w.files()) != 3 {
			t.Errorf("%d failed, and %q are left", k.Counts().DeleteFailed.Load(), w.files())
		}
		w.blobs.deletes = -1
		k = w.keeper()
		after(k, 0)
		after(k, usualGrace)
		if k.Counts().Deleted.Load() != 1 || len(w.files()) != 2 {
			t.Errorf("%d are deleted, and %q are left", k.Counts().Deleted.Load(), w.files())
		}
		w.holds(other)
		if left, err := os.ReadDir(w.dir); err != nil || len(left) != 1 {
			t.Errorf("records: %v, %v", left, err)
		}
	})
}

// stuck is Blobs of which one kind of request has no end.
type stuck struct {
	sandbox.Blobs
	kind string
}

func (s stuck) wait(ctx context.Context, kind string) error {
	if kind != s.kind {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (s stuck) Put(ctx context.Context, name string, content []byte) error {
	if err := s.wait(ctx, "put"); err != nil {
		return err
	}
	return s.Blobs.Put(ctx, name, content)
}

func (s stuck) Get(ctx context.Context, name string) ([]byte, error) {
	if err := s.wait(ctx, "get"); err != nil {
		return nil, err
	}
	return s.Blobs.Get(ctx, name)
}

func (s stuck) Size(ctx context.Context, name string) (int64, error) {
	if err := s.wait(ctx, "size"); err != nil {
		return 0, err
	}
	return s.Blobs.Size(ctx, name)
}

func (s stuck) Delete(ctx context.Context, name string) error {
	if err := s.wait(ctx, "delete"); err != nil {
		return err
	}
	return s.Blobs.Delete(ctx, name)
}

// No request to a store that is stuck lasts for ever.
func TestStuckStore(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"put", "get", "size", "delete"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			version := w.images.add(2 * partBytes)
			if kind == "size" { // of parts that are there
				w.blobs.puts = 1
				w.keeper().step(t.Context())
				w.blobs.puts = -1
			}
			store := w.blobs.Blobs
			w.blobs.Blobs = stuck{store, kind}
			k := w.keeper()
			began := time.Now()
			k.step(t.Context())
			if kind == "delete" {
				delete(w.images, version)
				k.step(t.Context())
				time.Sleep(usualGrace)
				began = time.Now()
				k.step(t.Context())
			}
			if n := k.Counts().CopyFailed.Load() + k.Counts().DeleteFailed.Load(); n != 1 || time.Since(began) != requestLimit {
				t.Errorf("%s: %d attempts failed, after %s", kind, n, time.Since(began))
			}
		})
	}
}

// An image that comes back while its copy is being deleted is copied again, wherever the
// deletion stopped.
func TestHalfDeletedCopy(t *testing.T) {
	t.Parallel()
	for deletes := range 4 {
		for _, restarted := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				version := w.images.add(3 * partBytes)
				content := w.images[version]
				k := w.keeper()
				k.step(t.Context())
				delete(w.images, version)
				k.step(t.Context())
				w.blobs.deletes = deletes
				time.Sleep(usualGrace)
				k.step(t.Context())
				if k.Counts().DeleteFailed.Load() != 1 {
					t.Fatalf("%d deletions failed", k.Counts().DeleteFailed.Load())
				}
				w.images[version] = content
				if restarted {
					k = w.keeper()
				}
				time.Sleep(retryAfter)
				k.step(t.Context())
				if k.Waiting() != 0 {
					t.Errorf("%d wait after %d deletes", k.Waiting(), deletes)
				}
				w.holds(version)
			})
		}
	}
}

// The copy of an image that a Sandbox needs stays. So does a copy while the records do not
// answer whether its image is needed.
func TestNeededImage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		version := w.images.add(10)
		k := w.keeper()
		k.step(t.Context())
		delete(w.images, version)
		later := func(d time.Duration) int {
			k.step(t.Context())
			time.Sleep(d)
			k.step(t.Context())
			return len(w.files())
		}
		w.needed = version
		if n := later(usualGrace); n != 2 || k.Counts().DeleteFailed.Load() != 0 {
			t.Errorf("%d blobs are left of an image that is needed, and %d deletions failed", n, k.Counts().DeleteFailed.Load())
		}
		w.needed, w.err = "", errors.New("no session-manager")
		if n := later(usualGrace); n != 2 || k.Counts().DeleteFailed.Load() != 1 {
			t.Errorf("%d blobs are left without an answer, and %d deletions failed", n, k.Counts().DeleteFailed.Load())
		}
		w.err = nil
		if n := later(retryAfter); n != 0 || k.Counts().Deleted.Load() != 1 {
			t.Errorf("%d blobs are left in the end", n)
		}
	})
}

// held is Blobs whose first Put says that it has begun and waits.
type held struct {
	sandbox.Blobs
	once        sync.Once
	begun, goOn chan struct{}
}

func (h *held) Put(ctx context.Context, name string, content []byte) error {
	h.once.Do(func() {
		close(h.begun)
		<-h.goOn
	})
	return h.Blobs.Put(ctx, name, content)
}

// A Template is removed while its image is being copied, and the copy is still whole.
func TestRemoveDuringCopy(t *testing.T) {
	t.Parallel()
	w, templates, ctx := newWorld(t), buildertest.New(t), t.Context()
	version := w.images.add(8 << 20) // far more than a socket holds
	codetest.OK(t, "StoreImage", templates.StoreImage(ctx, version, 8<<20, bytes.NewReader(w.images[version])))
	codetest.OK(t, "Keep", templates.Keep(ctx, "t", "web", version))
	slow := &held{Blobs: w.blobs.Blobs, begun: make(chan struct{}), goOn: make(chan struct{})}
	cfg := w.config(w.copies())
	cfg.Images, cfg.Copies.blobs, cfg.Copies.part = templates, slow, 1<<20
	k, err := NewKeeper(cfg)
	codetest.OK(t, "NewKeeper", err)
	done := make(chan error, 1)
	go func() { done <- k.copy(ctx, version) }()
	<-slow.begun
	gone, err := templates.Remove(ctx, "t", "web")
	left, listErr := templates.ListImages()
	close(slow.goOn)
	if err != nil || listErr != nil || slices.Contains(left, version) {
		t.Errorf("removed %+v, %v; images: %q, %v", gone, err, left, listErr)
	}
	codetest.OK(t, "copy", <-done)
	w.holds(version)
}

// An image that does not have its hash is not copied, and nothing is left of it.
func TestDamagedImage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	version, other := w.images.add(100), w.images.add(200)
	w.images[version] = []byte("something else")
	k := w.keeper()
	k.step(t.Context())
	w.lacks(version)
	w.holds(other)
	if k.Waiting() != 1 || k.Counts().CopyFailed.Load() != 1 || len(w.files()) != 2 {
		t.Errorf("%d wait, %d failed, and there are %q", k.Waiting(), k.Counts().CopyFailed.Load(), w.files())
	}
	if left, err := os.ReadDir(w.dir); err != nil || len(left) != 1 {
		t.Errorf("records: %v, %v", left, err)
	}
}

// The parts of a damaged image are put anew once it is repaired, also if they could not be
// deleted, and the next attempt was interrupted.
func TestRepairedImage(t *testing.T) {
	t.Parallel()
	for deletes := range 6 {
		for _, restarted := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				version := w.images.add(3 * partBytes)
				content := w.images[version]
				w.images[version] = append([]byte("damage"), content...) // one more part
				w.blobs.deletes = deletes
				k := w.keeper()
				again := func() {
					if restarted {
						k = w.keeper()
					}
					time.Sleep(retryDamaged)
					k.step(t.Context())
				}
				k.step(t.Context())
				time.Sleep(retryAfter)
				puts := len(w.blobs.put)
				k.step(t.Context())
				if len(w.blobs.put) != puts {
					t.Errorf("a damaged image was put again after a minute: %q", w.blobs.put[puts:])
				}
				w.images[version] = content
				w.blobs.puts = 1
				again()
				w.lacks(version)
				w.blobs.puts = -1
				again()
				w.holds(version)
				delete(w.images, version)
				w.blobs.deletes = -1
				k.step(t.Context())
				time.Sleep(usualGrace)
				k.step(t.Context())
				if len(w.files()) != 0 {
					t.Errorf("after %d deletes %q are left", deletes, w.files())
				}
			})
		}
	}
}

// A copy that someone changed is not read.
func TestDamagedCopy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	version := w.images.add(2 * partBytes)
	w.keeper().step(t.Context())
	id := w.copies().masters[0].idOf(version)
	first, second := filepath.Join(w.folder, partName(id, 0)), filepath.Join(w.folder, partName(id, 1))
	one, err := os.ReadFile(first)
	codetest.OK(t, "ReadFile", err)
	for name, change := range map[string]func() error{
		"a part for another": func() error { return os.WriteFile(second, one, 0o600) },
		"a part is shorter":  func() error { return os.Truncate(second, 10) },
		"a part is gone":     func() error { return os.Remove(second) },
		"the list":           func() error { return os.Truncate(filepath.Join(w.folder, listName(id)), 40) },
	} {
		raw, err := os.ReadFile(second)
		codetest.OK(t, "ReadFile", err)
		listed, err := os.ReadFile(filepath.Join(w.folder, listName(id)))
		codetest.OK(t, "ReadFile", err)
		codetest.OK(t, name, change())
		if err := openErr(t, w.copies(), version); !errors.Is(err, sandbox.ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		codetest.OK(t, "WriteFile", os.WriteFile(second, raw, 0o600))
		codetest.OK(t, "WriteFile", os.WriteFile(filepath.Join(w.folder, listName(id)), listed, 0o600))
	}
	w.holds(version)
}

// The copy with an earlier key that was deleted by half is made again when that key is the
// first again.
func TestFormerKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	version := w.images.add(2 * partBytes)
	w.keeper(1).step(t.Context())
	w.blobs.deletes = 2
	w.keeper(2, 1).step(t.Context())
	w.holds(version, 2)
	w.lacks(version, 1)
	w.blobs.deletes = -1
	w.keeper(1, 2).step(t.Context())
	w.holds(version, 1)
	w.lacks(version, 2)
}

// With a new first key images are copied again, and the copies with the other key deleted.
func TestAnotherKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	version := w.images.add(partBytes + 1)
	w.keeper(1).step(t.Context())
	w.holds(version, 2, 1)
	w.keeper(2, 1).step(t.Context())
	w.holds(version, 2)
	w.lacks(version, 1)
	if len(w.files()) != 3 {
		t.Errorf("blobs: %q", w.files())
	}
}

// With another store, or one that lost a list, images are copied again. A store that does
// not answer at the start is asked again.
func TestAnotherStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		version, other := w.images.add(2*partBytes), w.images.add(10)
		w.keeper().step(t.Context())
		id := w.copies().masters[0].idOf(version)
		codetest.OK(t, "Remove", os.Remove(filepath.Join(w.folder, listName(id))))
		w.blobs.put = nil
		w.keeper().step(t.Context())
		if !slices.Equal(w.blobs.put, []string{listName(id)}) {
			t.Errorf("put after a list was lost: %q", w.blobs.put)
		}
		w.holds(version)

		w.folder = t.TempDir()
		w.blobs.Blobs = silent{}
		k := w.keeper()
		k.step(t.Context())
		if k.Waiting() != 2 || k.Counts().CopyFailed.Load() != 2 {
			t.Errorf("%d wait for a silent store, and %d failed", k.Waiting(), k.Counts().CopyFailed.Load())
		}
		w.blobs.Blobs = disk.Open(w.folder)
		time.Sleep(retryAfter)
		k.step(t.Context())
		w.holds(version)
		w.holds(other)
		if k.Waiting() != 0 || k.Counts().Copied.Load() != 2 {
			t.Errorf("%d wait, and %d are copied", k.Waiting(), k.Counts().Copied.Load())
		}
		k = w.keeper()
		k.step(t.Context())
		if k.Waiting() != 0 || k.Counts().Copied.Load() != 0 {
			t.Errorf("then %d wait, and %d are copied", k.Waiting(), k.Counts().Copied.Load())
		}
	})
}

// silent is a store that does not answer.
type silent struct{ sandbox.Blobs }

func (silent) Size(context.Context, string) (int64, error) {
	return 0, sandbox.Errorf(sandbox.Unavailable, "no answer")
}

// An image whose record cannot be read is copied again, and the others are not.
func TestBadRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	version, gone := w.images.add(1), w.images.add(2)
	w.images.add(3)
	w.keeper().step(t.Context())
	delete(w.images, gone)
	for _, name := range []string{version, gone} {
		codetest.OK(t, "WriteFile", os.WriteFile(filepath.Join(w.dir, name), []byte("{"), 0o600))
	}
	var log bytes.Buffer
	cfg := w.config(w.copies())
	cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	k, err := NewKeeper(cfg)
	codetest.OK(t, "NewKeeper", err)
	for _, name := range []string{version, gone} {
		if !strings.Contains(log.String(), name) {
			t.Errorf("the log does not name the record %s: %s", name, log.String())
		}
	}
	k.step(t.Context())
	w.holds(version)
	if k.Waiting() != 0 || k.Counts().Copied.Load() != 1 {
		t.Errorf("%d wait, and %d were copied again", k.Waiting(), k.Counts().Copied.Load())
	}
	raw, err := os.ReadFile(filepath.Join(w.dir, version))
	if err != nil || !bytes.Contains(raw, []byte(`"ready":true`)) {
		t.Errorf("the new record is %q, %v", raw, err)
	}
}

// An image of several whole parts is read in pieces of any size, and no more of it is in
// memory than a part.
func TestWholeParts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	version := w.images.add(maxPart + 10)
	c, err := Open(w.blobs, [][]byte{key(1)})
	codetest.OK(t, "Open", err)
	k, err := NewKeeper(w.config(c))
	codetest.OK(t, "NewKeeper", err)
	k.step(t.Context())
	w.holds(version)
	if len(w.files()) != 3 {
		t.Errorf("blobs: %q", w.files())
	}
}

// Run copies an image without being asked, and ends with its context.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := w.keeper()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		version := w.images.add(10)
		w.blobs.puts = 0 // at first
		go func() { done <- k.Run(ctx) }()
		synctest.Wait()
		w.blobs.mu.Lock()
		w.blobs.puts = -1
		w.blobs.mu.Unlock()
		time.Sleep(retryAfter + usualEvery)
		synctest.Wait()
		w.holds(version)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
}
