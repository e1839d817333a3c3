// Package chunks splits streams into content-defined chunks, so that streams with common
// content have chunks in common. The sentry host packs saved states into chunks, and
// package replication copies states in them. Each stores chunks and lists in its own format.
package chunks

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
)

// Cuts depend on the content, not on offsets: inserted or removed bytes change only the
// chunks around them.
const (
	// MinBytes is the minimum size of a chunk, except the last of a stream.
	MinBytes = 8 << 10
	// MaxBytes is the maximum size of a chunk.
	MaxBytes = 128 << 10
	// cutMask has 14 bits: a chunk has on average 16 KiB more than MinBytes. They are the
	// highest bits of the hash, which depend on the whole window.
	cutMask = 1<<14 - 1
	cutTop  = 64 - 14
	window  = 64
)

// readAhead is the size of the read buffer, in chunks of MaxBytes.
const readAhead = 8

// An ID identifies a chunk within its group.
type ID [sha256.Size]byte

func (id ID) String() string { return hex.EncodeToString(id[:]) }

// A Chunk is an entry of a list.
type Chunk struct {
	ID    ID
	Bytes int
}

// Possible reports whether cut can produce a chunk of this length. A damaged list may
// hold others.
func (c Chunk) Possible() bool { return c.Bytes >= 1 && c.Bytes <= MaxBytes }

// gear holds a fixed pseudo-random number for each byte value. With other numbers, new
// chunks would share nothing with the chunks of existing lists.
var gear = func() (gear [256]uint64) {
	x := uint64(0x9e3779b97f4a7c15)
	for i := range gear { // splitmix64
		x += 0x9e3779b97f4a7c15
		z := x
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		gear[i] = z ^ z>>31
	}
	return gear
}()

// cut returns the length of the first chunk of b, or zero when more bytes could belong to
// it. atEnd: b is the end of the stream.
func cut(b []byte, atEnd bool) int {
	h := uint64(0)
	most := min(len(b), MaxBytes)
	for i := MinBytes - window; i < most; i++ {
		h = h<<1 + gear[b[i]]
		if i >= MinBytes && h>>cutTop&cutMask == 0 {
			return i + 1
		}
	}
	if most == MaxBytes || atEnd {
		return most
	}
	return 0
}

// Each calls use with each chunk of r; use must not keep it. The first error, of r or of
// use, ends it.
func Each(r io.Reader, use func([]byte) error) error {
	buf := make([]byte, 0, readAhead*MaxBytes)
	for {
		n, err := io.ReadFull(r, buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		atEnd := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !atEnd {
			return err
		}
		rest := buf
		for len(rest) > 0 {
			n := cut(rest, atEnd)
			if n == 0 {
				break
			}
			if err := use(rest[:n]); err != nil {
				return err
			}
			rest = rest[n:]
		}
		buf = buf[:copy(buf[:cap(buf)], rest)]
		if atEnd {
			return nil
		}
	}
}
