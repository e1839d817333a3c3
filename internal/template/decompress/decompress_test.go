package decompress

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/cloud-sandbox/cloud-sandbox"
)

func TestReader(t *testing.T) {
	plain := bytes.Repeat([]byte("a tar, or not "), 1000)
	var gz, zst bytes.Buffer
	g := gzip.NewWriter(&gz)
	_, _ = g.Write(plain)
	_ = g.Close()
	z, _ := zstd.NewWriter(&zst)
	_, _ = z.Write(plain)
	_ = z.Close()
	for name, in := range map[string][]byte{"plain": plain, "gzip": gz.Bytes(), "zstd": zst.Bytes(), "short": plain[:2], "empty": nil} {
		r, err := Reader(bytes.NewReader(in))
		if err != nil {
			t.Fatal(err)
		}
		want := plain
		if len(in) <= 2 {
			want = in
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	if _, err := Reader(bytes.NewReader([]byte{0x1f, 0x8b, 1, 2})); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("half a gzip = %v", err)
	}
}
