// Package pieces splits streams into content-defined chunks, so that streams with common
// content have pieces in common. The sentry host packs saved states into pieces, and
// offload copies states in them. Each stores pieces and lists in its own format.
package pieces

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
)

// Cuts depend on the content, not on offsets: inserted or removed bytes change only the
// pieces around them.
const (
	// MinBytes is the minimum size of a piece, except the last of a stream.
	MinBytes = 8 << 10
	// MaxBytes is the maximum size of a piece.
	MaxBytes = 128 << 10
	// cutMask has 14 bits: a piece has on average 16 KiB more than MinBytes. They are the
	// highest bits of the hash, which depend on the whole window.
	cutMask = 1<<14 - 1
	cutTop  = 64 - 14
	window  = 64
)

// readAhead is the size of the read buffer, in pieces of MaxBytes.
const readAhead = 8

// An ID identifies a piece within its group.
type ID [sha256.Size]byte

func (id ID) String() string { return hex.EncodeToString(id[:]) }

// A Piece is an entry of a list.
type Piece struct {
	ID    ID
	Bytes int
}

// Possible reports whether cut can produce a piece of this length. A damaged list may
// hold others.
func (p Piece) Possible() bool { return p.Bytes >= 1 && p.Bytes <= MaxBytes }

// gear holds a fixed pseudo-random number for each byte value. With other numbers, new
// pieces would share nothing with those of existing lists.
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

// cut returns the length of the first piece of b, or zero when more bytes could belong to
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

// Each calls use with each piece of r; use must not keep it. The first error, of r or of
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
