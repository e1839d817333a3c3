// Package decompress reads compressed archives of clients.
package decompress

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Reader decompresses gzip and zstd, and returns other bytes unchanged.
func Reader(r io.Reader) (io.Reader, error) {
	const window = 64 << 20 // bounds the window that a zstd frame may request
	buffered := bufio.NewReaderSize(r, 64<<10)
	head, _ := buffered.Peek(4) // a shorter archive is rejected later
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, sandbox.Errorf(sandbox.Invalid, "the archive is not whole").WithCause(err)
		}
		return compressed{z}, nil
	case bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(buffered, zstd.WithDecoderMaxWindow(window), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, sandbox.Errorf(sandbox.Invalid, "the archive is not whole").WithCause(err)
		}
		return compressed{z.IOReadCloser()}, nil
	}
	return buffered, nil
}

// compressed returns decompression errors as Invalid, because the client sent the
// archive.
type compressed struct{ io.Reader }

func (c compressed) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = sandbox.Errorf(sandbox.Invalid, "the archive cannot be decompressed").WithCause(err)
	}
	return n, err
}
