package changes_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/cloud-sandbox/cloud-sandbox/internal/snapshot/changes"
)

// random returns n bytes that are the same in each run.
func random(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// index returns an Index of b, and checks that b was copied.
func index(t *testing.T, b []byte) *changes.Index {
	t.Helper()
	var copied bytes.Buffer
	x, err := changes.NewIndex(&copied, bytes.NewReader(b))
	if err != nil || !bytes.Equal(copied.Bytes(), b) {
		t.Fatalf("NewIndex copied %d bytes of %d, %v", copied.Len(), len(b), err)
	}
	return x
}

// written returns the difference of b from the stream of x.
func written(t *testing.T, b []byte, x *changes.Index) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := changes.Write(&out, bytes.NewReader(b), x); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestChanges(t *testing.T) {
	base := random(1, 4<<20)
	x := index(t, base)
	inside := bytes.Clone(base)
	copy(inside[2<<20:], random(2, 1000))
	for name, tt := range map[string]struct {
		stream []byte
		most   int // bytes of the difference
	}{
		"nothing":             {nil, 16},
		"the same":            {base, 64},
		"some bytes differ":   {inside, 400 << 10},
		"some are inserted":   {append(append(bytes.Clone(base[:1<<20]), random(3, 5000)...), base[1<<20:]...), 400 << 10},
		"another order":       {append(bytes.Clone(base[2<<20:]), base[:2<<20]...), 600 << 10},
		"all of it differs":   {random(4, 3<<20), 3<<20 + 4096},
		"zeros, of one chunk": {make([]byte, 1<<20), 1<<20 + 4096},
	} {
		out := written(t, tt.stream, x)
		if len(out) > tt.most {
			t.Errorf("%s: the difference has %d bytes, want at most %d", name, len(out), tt.most)
		}
		for reader, from := range map[string]io.Reader{"": bytes.NewReader(out), ", byte by byte": iotest.OneByteReader(bytes.NewReader(out))} {
			got, err := io.ReadAll(changes.NewReader(from, bytes.NewReader(base), int64(len(base))))
			if err != nil || !bytes.Equal(got, tt.stream) {
				t.Errorf("%s%s: read %d bytes of %d, %v", name, reader, len(got), len(tt.stream), err)
			}
		}
	}
}

func TestReaderRefuses(t *testing.T) {
	base := random(1, 1<<20)
	out := written(t, append(bytes.Clone(base), random(2, 10_000)...), index(t, base))
	read := func(from io.Reader, size int64) error {
		_, err := io.ReadAll(changes.NewReader(from, bytes.NewReader(base), size))
		return err
	}
	for cut := range len(out) {
		if cut > 100 && cut%997 > 0 {
			continue
		}
		if err := read(bytes.NewReader(out[:cut]), int64(len(base))); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("the first %d bytes: %v", cut, err)
		}
	}
	ours := errors.New("ours")
	if err := read(io.MultiReader(bytes.NewReader(out[:50]), iotest.ErrReader(ours)), int64(len(base))); !errors.Is(err, ours) {
		t.Errorf("an error of its source: %v", err)
	}
	for name, bad := range map[string][]byte{
		"another magic":      []byte("CSBXCHNX\x00"),
		"an unknown part":    []byte("CSBXCHNG\x03"),
		"a part of no bytes": []byte("CSBXCHNG\x01\x00\x00\x00\x00"),
		"a huge part":        []byte("CSBXCHNG\x01\xff\xff\xff\xff"),
		"beyond the base":    []byte("CSBXCHNG\x02\x00\x00\x00\x00\x00\x0f\xff\xff\x00\x00\x00\x00\x00\x00\x00\x02"),
		"before the base":    []byte("CSBXCHNG\x02\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x02"),
		"an endless range":   []byte("CSBXCHNG\x02\x00\x00\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff"),
	} {
		if err := read(bytes.NewReader(bad), int64(len(base))); !errors.Is(err, changes.ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := read(bytes.NewReader(out), 1000); !errors.Is(err, changes.ErrMalformed) {
		t.Errorf("a base that is too short: %v", err)
	}
}

// The reader gets the first parts while the writer still reads, also if nothing has changed.
func TestPartsAreSentAtOnce(t *testing.T) {
	for name, base := range map[string][]byte{"random": random(1, 16<<20), "repeated": bytes.Repeat(random(2, 1<<20), 16)} {
		t.Run(name, func(t *testing.T) {
			x := index(t, base)
			synctest.Test(t, func(t *testing.T) { // which fails if all wait
				received, send := io.Pipe()
				more, feed := io.Pipe()
				written := make(chan error, 1)
				go func() { written <- changes.Write(send, more, x) }()
				go func() { _, _ = feed.Write(base[:8<<20]) }()
				r := changes.NewReader(received, bytes.NewReader(base), int64(len(base)))
				got := make([]byte, 4<<20)
				if _, err := io.ReadFull(r, got); err != nil || !bytes.Equal(got, base[:4<<20]) {
					t.Fatalf("the first part: %v", err)
				}
				feed.CloseWithError(errors.New("ours"))
				received.Close()
				if err := <-written; err == nil {
					t.Error("Write succeeded")
				}
			})
		})
	}
}

func TestWriterFails(t *testing.T) {
	ours := errors.New("ours")
	x := index(t, nil)
	if err := changes.Write(failing{ours}, bytes.NewReader(random(1, 1<<20)), x); !errors.Is(err, ours) {
		t.Errorf("Write = %v", err)
	}
	if err := changes.Write(io.Discard, iotest.ErrReader(ours), x); !errors.Is(err, ours) {
		t.Errorf("Write = %v", err)
	}
	if _, err := changes.NewIndex(failing{ours}, bytes.NewReader([]byte("x"))); !errors.Is(err, ours) {
		t.Errorf("NewIndex = %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// FuzzReader reads nonsense: it must end, and read no more than its parts say.
func FuzzReader(f *testing.F) {
	base := random(1, 100_000)
	f.Add([]byte("CSBXCHNG\x01\x00\x00\x00\x01a\x02\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x03\x00"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		n, err := io.Copy(io.Discard, changes.NewReader(bytes.NewReader(raw), bytes.NewReader(base), int64(len(base))))
		if most := int64(len(raw)) * int64(len(base)); n > most {
			t.Errorf("%d bytes came of %d, %v", n, len(raw), err)
		}
	})
}

func BenchmarkWrite(b *testing.B) {
	base := random(1, 64<<20)
	x, err := changes.NewIndex(io.Discard, bytes.NewReader(base))
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(base)))
	for b.Loop() {
		if err := changes.Write(io.Discard, bytes.NewReader(base), x); err != nil {
			b.Fatal(err)
		}
	}
}
