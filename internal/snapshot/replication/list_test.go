package replication

import (
	"bytes"
	"slices"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/snapshot/chunks"
)

func TestDecodeList(t *testing.T) {
	good := list{Name: "s", Bytes: 30, Sum: make([]byte, 32), Packs: []string{"a", "b"}, places: []place{{pack: 1, offset: 5, Chunk: chunks.Chunk{Bytes: 10}}, {pack: 0, Chunk: chunks.Chunk{Bytes: 20}}}}
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
		"no length":    func(l *list) { l.places[0].Bytes, l.Bytes = 0, 20 },
		"too long":     func(l *list) { l.places[0].Bytes, l.Bytes = chunks.MaxBytes+1, chunks.MaxBytes+21 },
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
	l := list{Name: "s", Bytes: 10, Sum: make([]byte, 32), Packs: []string{"a"}, places: []place{{Chunk: chunks.Chunk{Bytes: 10}}}}
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
			if p.pack < 0 || p.pack >= len(l.Packs) || p.offset < 0 || p.Bytes < 1 || p.offset+p.Bytes > packBytes {
				t.Fatalf("a place that is none: %+v", p)
			}
		}
	})
}
