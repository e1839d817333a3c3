package images

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
)

func unlocked() (func(), error) { return func() {}, nil }

// put stores a whole image and returns its digest.
func (f Folder) put(t *testing.T, image []byte) string {
	t.Helper()
	sum := sha256.Sum256(image)
	digest := hex.EncodeToString(sum[:])
	if err := os.WriteFile(f.Path(digest), image, 0o644); err != nil {
		t.Fatal(err)
	}
	return digest
}

// random is some blocks that nothing else is equal to.
func random(seed uint64, blocks int) []byte {
	b := make([]byte, blocks*blockSize)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(b)
	return b
}

func (f Folder) files(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(string(f), "*.*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		all[i] = filepath.Ext(all[i])
	}
	slices.Sort(all)
	return all
}

func (f Folder) shrink(t *testing.T, digest, from string) bool {
	t.Helper()
	is, err := f.Shrink(t.Context(), digest, from, unlocked)
	if err != nil {
		t.Fatal(err)
	}
	return is
}

// reads opens an image and compares all of it.
func (f Folder) reads(t *testing.T, digest string, want []byte) *os.File {
	t.Helper()
	file, err := f.Open(t.Context(), digest)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(file)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes that are the image: %v, %v", len(got), bytes.Equal(got, want), err)
	}
	return file
}

// Images of every likeness come back as they were, from whatever they were made.
func TestDeltas(t *testing.T) {
	base := random(1, 400)
	block := func(from []byte, n int) []byte { return from[n*blockSize : (n+1)*blockSize] }
	moved := slices.Concat(random(2, 3), base[100*blockSize:], base[:100*blockSize], random(3, 1))
	backwards := []byte{}
	for n := 399; n >= 0; n-- {
		backwards = append(backwards, block(base, n)...)
	}
	for name, tt := range map[string]struct {
		image []byte
		delta bool
		most  int64 // bytes of the delta
	}{
		"a longer one":        {slices.Concat(base, random(4, 2)), true, 16384},
		"a shorter one":       {base[:200*blockSize], true, 8192},
		"moved":               {moved, true, 24576},
		"backwards":           {backwards, true, 16384},
		"one block, repeated": {bytes.Repeat(block(base, 7), 300), true, 8192},
		"half of it new":      {slices.Concat(base[:200*blockSize], random(5, 200)), true, 210 * blockSize},
		"all of it new":       {random(6, 400), false, 0},
		"no whole blocks":     {slices.Concat(base, []byte("x")), false, 0},
		"empty":               {nil, true, 8192},
	} {
		t.Run(name, func(t *testing.T) {
			f := Folder(t.TempDir())
			from := f.put(t, base)
			digest := f.put(t, tt.image)
			if is := f.shrink(t, digest, from); is != tt.delta {
				t.Fatalf("there is a delta: %v", is)
			}
			if freed, err := f.Evict(t.Context(), 0); err != nil || tt.delta != (freed == int64(len(tt.image)) && !exists(f.Path(digest))) && len(tt.image) > 0 {
				t.Fatalf("%d bytes were freed, %v", freed, err)
			}
			if n, err := f.Stored(digest); err != nil || tt.delta && n > tt.most {
				t.Errorf("%d bytes are stored, %v", n, err)
			}
			f.reads(t, digest, tt.image).Close()
			f.reads(t, from, base).Close()
		})
	}
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// The base of a delta's delta is the base of both, and a base stays whole.
func TestChains(t *testing.T) {
	f := Folder(t.TempDir())
	base := random(1, 100)
	second, third := slices.Concat(base, random(2, 2)), slices.Concat(random(3, 1), base, random(2, 2))
	a, b, c := f.put(t, base), f.put(t, second), f.put(t, third)
	if !f.shrink(t, b, a) || !f.shrink(t, c, b) || f.shrink(t, a, c) {
		t.Error("other images became deltas")
	}
	if bases, err := f.Bases(); err != nil || len(bases) != 2 || bases[b] != a || bases[c] != a {
		t.Errorf("%v, %v", bases, err)
	}
	if _, err := f.Evict(t.Context(), 0); err != nil || !slices.Equal(f.files(t), []string{".delta", ".delta", ".erofs"}) {
		t.Errorf("%v, %v", f.files(t), err)
	}
	f.reads(t, c, third).Close()
}

// An open file stays, and so does a file that was opened lately.
func TestEvict(t *testing.T) {
	f := Folder(t.TempDir())
	base := random(1, 100)
	image := slices.Concat(base, random(2, 2))
	from, digest := f.put(t, base), f.put(t, image)
	f.shrink(t, digest, from)
	open := f.reads(t, digest, image)
	for _, unused := range []time.Duration{0, time.Hour} {
		if freed, err := f.Evict(t.Context(), unused); err != nil || freed != 0 {
			t.Errorf("unused for %s: %d bytes were freed, %v", unused, freed, err)
		}
		open.Close()
	}
	if freed, err := f.Evict(t.Context(), 0); err != nil || freed != int64(len(image)) {
		t.Errorf("%d bytes were freed, %v", freed, err)
	}
	open = f.reads(t, digest, image) // made anew
	if freed, err := f.Evict(t.Context(), 0); err != nil || freed != 0 {
		t.Errorf("%d bytes were freed, %v", freed, err)
	}
	open.Close()
	// Files of a killed process, and of an earlier boot of the machine, are removed.
	left, earlier := filepath.Join(string(f), ".expanding-1"), filepath.Join(string(f), expandedFolder, "earlier", "x.erofs")
	if err := errors.Join(os.WriteFile(left, base, 0o600), os.MkdirAll(filepath.Dir(earlier), 0o755), os.WriteFile(earlier, base, 0o644)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Evict(t.Context(), time.Hour); err != nil || exists(left) || exists(earlier) {
		t.Errorf("%v; they are there: %v, %v", err, exists(left), exists(earlier))
	}
}

// What is opened to copy can be claimed, and keeps its content when it is evicted or removed.
func TestOpenToCopy(t *testing.T) {
	f := Folder(t.TempDir())
	base := random(1, 100)
	image := slices.Concat(base, random(2, 2))
	from, digest := f.put(t, base), f.put(t, image)
	for _, step := range []string{"whole", "delta"} {
		if step == "delta" {
			f.shrink(t, digest, from)
			if _, err := f.Evict(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
		}
		open, err := f.OpenToCopy(t.Context(), digest)
		if err != nil {
			t.Fatal(err)
		}
		release, err := f.Claim(digest)
		if err != nil {
			t.Fatalf("%s: %v", step, err)
		}
		if step == "delta" {
			if err := f.Remove(digest); err != nil {
				t.Error(err)
			}
		}
		release()
		if got, err := io.ReadAll(open); err != nil || !bytes.Equal(got, image) {
			t.Errorf("%s: read %d bytes, %v", step, len(got), err)
		}
		open.Close()
	}
	if _, err := f.OpenToCopy(t.Context(), digest); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("opened a removed image: %v", err)
	}
}

// An open image cannot be removed, and an image that is being removed cannot be opened.
func TestClaim(t *testing.T) {
	f := Folder(t.TempDir())
	base := random(1, 100)
	image := slices.Concat(base, random(2, 2))
	from, digest := f.put(t, base), f.put(t, image)
	for _, step := range []string{"whole", "delta", "only a delta"} {
		switch step {
		case "delta":
			f.shrink(t, digest, from)
		case "only a delta":
			if _, err := f.Evict(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
		}
		open := f.reads(t, digest, image)
		if _, err := f.Claim(digest); !errors.Is(err, sandbox.Conflict) {
			t.Errorf("%s: claimed while it is open: %v", step, err)
		}
		open.Close()
		release, err := f.Claim(digest)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Open(t.Context(), digest); !errors.Is(err, sandbox.NotFound) {
			t.Errorf("%s: opened while it is claimed: %v", step, err)
		}
		release()
	}
	release, err := f.Claim(digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Remove(digest); err != nil || f.Has(digest) {
		t.Errorf("%v, it is there: %v", err, f.Has(digest))
	}
	release()
	if _, err := f.Open(t.Context(), digest); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("opened: %v", err)
	}
	if _, err := f.Stored(digest); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("stored: %v", err)
	}
}

// Many open an image while it is evicted again and again: each has all of it.
func TestOpenWhileEvicted(t *testing.T) {
	f := Folder(t.TempDir())
	base := random(1, 50)
	image := slices.Concat(base, random(2, 2))
	from, digest := f.put(t, base), f.put(t, image)
	f.shrink(t, digest, from)
	ctx, stop := context.WithCancel(t.Context())
	var evicting, opening sync.WaitGroup
	evicting.Go(func() {
		for ctx.Err() == nil {
			if _, err := f.Evict(context.Background(), 0); err != nil {
				t.Error(err)
			}
		}
	})
	for range 4 {
		opening.Go(func() {
			for range 200 {
				file, err := f.Open(t.Context(), digest)
				if err != nil {
					t.Error(err)
					return
				}
				var st unix.Stat_t
				got, err := io.ReadAll(file)
				if err = errors.Join(err, unix.Fstat(int(file.Fd()), &st)); err != nil || !bytes.Equal(got, image) || st.Nlink == 0 {
					t.Errorf("%d bytes, %d names, %v", len(got), st.Nlink, err)
				}
				file.Close()
			}
		})
	}
	opening.Wait()
	stop()
	evicting.Wait()
}

// A delta that is damaged makes no image.
func TestBrokenDelta(t *testing.T) {
	f := Folder(t.TempDir())
	base := random(1, 100)
	from, digest := f.put(t, base), f.put(t, slices.Concat(base, random(2, 2)))
	f.shrink(t, digest, from)
	good, err := os.ReadFile(f.delta(digest))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Evict(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{0, 9, 20, 60, len(good) - 1} {
		bad := bytes.Clone(good)
		bad[at] ^= 1
		if err := os.WriteFile(f.delta(digest), bad, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Open(t.Context(), digest); !errors.Is(err, errBroken) {
			t.Errorf("byte %d is another: %v", at, err)
		}
	}
	for _, n := range []int{0, 5, 50, len(good) - 1} {
		if err := os.WriteFile(f.delta(digest), good[:n], 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Open(t.Context(), digest); !errors.Is(err, errBroken) {
			t.Errorf("%d bytes of it: %v", n, err)
		}
	}
	if err := os.WriteFile(f.delta(digest), good, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(f.Path(from)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Open(t.Context(), digest); err == nil {
		t.Error("opened without its base")
	}
}
