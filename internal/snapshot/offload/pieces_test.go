package offload

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/snapshot/pieces"
)

func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

func cutUp(t *testing.T, content []byte) (all [][]byte) {
	t.Helper()
	if err := pieces.Each(bytes.NewReader(content), maxPiece, newCutter().cut, func(b []byte) error {
		all = append(all, bytes.Clone(b))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestCutter(t *testing.T) {
	for _, n := range []int{0, 1, minPiece - 1, minPiece, maxPiece, 10 * maxPiece, 3<<20 + 7} {
		for name, content := range map[string][]byte{"random": random(n), "zeros": make([]byte, n)} {
			pieces := cutUp(t, content)
			if !bytes.Equal(slices.Concat(pieces...), content) {
				t.Errorf("%d of %s: together the pieces are something else", n, name)
			}
			for i, p := range pieces {
				if len(p) == 0 || len(p) > maxPiece || i < len(pieces)-1 && len(p) <= minPiece-1 {
					t.Errorf("%d of %s: piece %d has %d bytes", n, name, i, len(p))
				}
			}
		}
	}
	if n := len(cutUp(t, random(8<<20))); n < 200 || n > 600 {
		t.Errorf("8 MiB are %d pieces", n)
	}
}

// What is inserted changes the pieces around it alone.
func TestCutterFindsItsWay(t *testing.T) {
	content := random(4 << 20)
	known := map[string]bool{}
	for _, p := range cutUp(t, content) {
		known[string(p)] = true
	}
	unknown := 0
	for _, p := range cutUp(t, slices.Concat([]byte("before"), content[:1<<20], []byte("between"), content[1<<20:])) {
		if !known[string(p)] {
			unknown++
		}
	}
	if unknown > 6 {
		t.Errorf("%d pieces changed of %d", unknown, len(known))
	}
}

func TestDecodeList(t *testing.T) {
	good := list{Name: "s", Bytes: 30, Sum: make([]byte, 32), Packs: []string{"a", "b"}, places: []place{{pack: 1, offset: 5, length: 10}, {pack: 0, length: 20}}}
	raw, err := good.encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeList(raw, "s")
	if err != nil || len(got.places) != 2 || got.places[0] != good.places[0] {
		t.Fatalf("decoded %+v, %v", got, err)
	}
	if _, err := decodeList(raw, "other"); err == nil {
		t.Error("the list of another state was taken")
	}
	for n := range raw {
		if _, err := decodeList(raw[:n], "s"); err == nil {
			t.Errorf("the first %d bytes were taken", n)
		}
	}
	if _, err := decodeList(append(bytes.Clone(raw), 0), "s"); err == nil {
		t.Error("one byte more was taken")
	}
	for name, change := range map[string]func(*list){
		"no such pack": func(l *list) { l.places[0].pack = 2 },
		"no length":    func(l *list) { l.places[0].length, l.Bytes = 0, 20 },
		"too long":     func(l *list) { l.places[0].length, l.Bytes = maxPiece+1, maxPiece+21 },
		"beyond":       func(l *list) { l.places[0].offset = packBytes },
		"another sum":  func(l *list) { l.Bytes++ },
		"no checksum":  func(l *list) { l.Sum = nil },
	} {
		bad := good
		bad.places = slices.Clone(good.places)
		change(&bad)
		raw, err := bad.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeList(raw, "s"); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func FuzzDecodeList(f *testing.F) {
	l := list{Name: "s", Bytes: 10, Sum: make([]byte, 32), Packs: []string{"a"}, places: []place{{length: 10}}}
	raw, err := l.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		l, err := decodeList(raw, "s")
		if err != nil {
			return
		}
		for _, p := range l.places {
			if p.pack < 0 || p.pack >= len(l.Packs) || p.offset < 0 || p.length < 1 || p.offset+p.length > packBytes {
				t.Fatalf("a place that is none: %+v", p)
			}
		}
	})
}
