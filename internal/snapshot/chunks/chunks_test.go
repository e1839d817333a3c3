package chunks

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

func cutUp(t *testing.T, r io.Reader) (all [][]byte) {
	t.Helper()
	if err := Each(r, func(b []byte) error {
		all = append(all, bytes.Clone(b))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestEach(t *testing.T) {
	for _, n := range []int{0, 1, MinBytes - 1, MinBytes, MaxBytes, readAhead * MaxBytes, readAhead*MaxBytes + 1, 3<<20 + 7} {
		for name, content := range map[string][]byte{"random": random(n), "zeros": make([]byte, n)} {
			chunks := cutUp(t, bytes.NewReader(content))
			if !bytes.Equal(slices.Concat(chunks...), content) {
				t.Errorf("%d of %s: together the chunks are something else", n, name)
			}
			for i, p := range chunks {
				if !(Chunk{Bytes: len(p)}).Possible() || i < len(chunks)-1 && len(p) < MinBytes {
					t.Errorf("%d of %s: chunk %d has %d bytes", n, name, i, len(p))
				}
			}
			for name, r := range map[string]io.Reader{
				"in halves": iotest.HalfReader(bytes.NewReader(content)), "with the end": iotest.DataErrReader(bytes.NewReader(content)),
			} {
				if got := cutUp(t, r); !slices.EqualFunc(got, chunks, bytes.Equal) {
					t.Errorf("%d read %s: other chunks", n, name)
				}
			}
		}
	}
	if n := len(cutUp(t, bytes.NewReader(random(8<<20)))); n < 200 || n > 600 {
		t.Errorf("8 MiB are %d chunks", n)
	}
}

// Chunk boundaries do not change between versions. Otherwise chunks of earlier versions
// would not be deduplicated.
func TestCutsStay(t *testing.T) {
	var lengths []int
	for _, p := range cutUp(t, bytes.NewReader(random(200<<10))) {
		lengths = append(lengths, len(p))
	}
	if want := []int{9861, 10660, 39966, 14900, 31480, 16528, 13228, 40765, 23275, 4137}; !slices.Equal(lengths, want) {
		t.Errorf("200 KiB are cut into %v, want %v", lengths, want)
	}
}

// An insertion changes only the chunks around it.
func TestCutsFindTheirWay(t *testing.T) {
	content := random(4 << 20)
	known := map[string]bool{}
	for _, p := range cutUp(t, bytes.NewReader(content)) {
		known[string(p)] = true
	}
	unknown := 0
	for _, p := range cutUp(t, io.MultiReader(strings.NewReader("before"), bytes.NewReader(content[:1<<20]), strings.NewReader("between"), bytes.NewReader(content[1<<20:]))) {
		if !known[string(p)] {
			unknown++
		}
	}
	if unknown > 6 {
		t.Errorf("%d chunks changed of %d", unknown, len(known))
	}
}

func TestEachFails(t *testing.T) {
	broken := errors.New("broken")
	if err := Each(io.MultiReader(strings.NewReader("one "), iotest.ErrReader(broken)), func([]byte) error { return nil }); !errors.Is(err, broken) {
		t.Errorf("reading: %v", err)
	}
	calls := 0
	if err := Each(bytes.NewReader(random(1<<20)), func([]byte) error { calls++; return broken }); !errors.Is(err, broken) || calls != 1 {
		t.Errorf("using: %v after %d calls", err, calls)
	}
}

func TestPossible(t *testing.T) {
	for n, want := range map[int]bool{-1: false, 0: false, 1: true, MaxBytes: true, MaxBytes + 1: false} {
		if got := (Chunk{Bytes: n}).Possible(); got != want {
			t.Errorf("%d bytes: %t", n, got)
		}
	}
}
