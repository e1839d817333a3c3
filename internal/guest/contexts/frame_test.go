package contexts

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
)

func TestFrames(t *testing.T) {
	for _, texts := range [][]string{{""}, {"done", "0"}, {"result", "1", "text/plain", strings.Repeat("é", 1000)}, {"\x00", "\xff"}} {
		var b bytes.Buffer
		if err := writeFrame(&b, texts...); err != nil {
			t.Fatal(err)
		}
		if got, err := readFrame(&b); err != nil || !slices.Equal(got, texts) || b.Len() != 0 {
			t.Errorf("%q = %q, %v, %d bytes left", texts, got, err, b.Len())
		}
	}
	for name, tt := range map[string]struct {
		data string
		want error
	}{
		"nothing":                {"", io.EOF},
		"half a length":          {"\x00\x00", io.ErrUnexpectedEOF},
		"no text":                {"\x00\x00\x00\x00", errFrame},
		"huge":                   {"\xff\xff\xff\xff", errFrame},
		"cut off":                {"\x00\x00\x00\x09\x00\x00\x00\x05ab", io.ErrUnexpectedEOF},
		"a text beyond the end":  {"\x00\x00\x00\x05\x00\x00\x00\x02a", errFrame},
		"half a length of text":  {"\x00\x00\x00\x02\x00\x00", errFrame},
		"a text of 4 GiB":        {"\x00\x00\x00\x04\xff\xff\xff\xff", errFrame},
		"more texts than it may": {string(binary.BigEndian.AppendUint32(nil, 4*(maxTexts+1))) + strings.Repeat("\x00", 4*(maxTexts+1)), errFrame},
	} {
		if _, err := readFrame(strings.NewReader(tt.data)); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
}

// Whatever a worker says is a frame within its bounds, or an error; it ends
// nothing but the worker.
func FuzzWorkerFrames(f *testing.F) {
	var b bytes.Buffer
	_ = writeFrame(&b, "result", "1", "text/plain", "42")
	_ = writeFrame(&b, "error", "E", "value", "traceback")
	_ = writeFrame(&b, "dropped")
	_ = writeFrame(&b, "done", "0")
	f.Add(b.Bytes())
	f.Add([]byte("\x00\x00\x00\x04\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r told
		w := &worker{cell: newCell(Request{}, 1, lifetime{}, nil, &r)}
		for s := range w.out {
			w.out[s] = newStream(nil)
			close(w.out[s].closed) // nothing was printed
		}
		in := bytes.NewReader(data)
		for {
			texts, err := readFrame(in)
			if err != nil {
				return
			}
			if len(texts) == 0 || len(texts) > maxTexts {
				t.Fatalf("%d texts", len(texts))
			}
			_ = w.hear(texts) // without a pipe for it, an acknowledgement is an error
			if len(r.results) > maxResults || len(r.errs) > maxErrors {
				t.Fatalf("%d results, %d errors", len(r.results), len(r.errs))
			}
		}
	})
}
