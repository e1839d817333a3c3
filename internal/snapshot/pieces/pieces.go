// Package pieces cuts streams into pieces, so that streams with common content have
// pieces in common. The sentry host packs saved states into them, and offload copies
// states in them; each keeps the pieces and the lists of them in a form of its own.
package pieces

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
)

// A stream is cut where its bytes say so, not at offsets: inserted or removed bytes
// move all that follow, and change the pieces around them alone.
const (
	// MinBytes is how much a piece has at least, but for the last of a stream.
	MinBytes = 8 << 10
	// MaxBytes is how much it has at most.
	MaxBytes = 128 << 10
	// cutMask has 14 bits: beyond MinBytes a piece has 16 KiB more on average. They
	// are the highest ones, which depend on the window before.
	cutMask = 1<<14 - 1
	cutTop  = 64 - 14
	window  = 64
)

// readAhead is how many of the largest pieces are read at once.
const readAhead = 8

// An ID names a piece within its group.
type ID [sha256.Size]byte

func (id ID) String() string { return hex.EncodeToString(id[:]) }

// A Piece is an entry of a list.
type Piece struct {
	ID    ID
	Bytes int
}

// Possible reports whether a stream may have been cut into a piece of this length,
// which a damaged list does not say.
func (p Piece) Possible() bool { return p.Bytes >= 1 && p.Bytes <= MaxBytes }

// gear has a number for each byte value that looks random and is always the same: lists
// from before share nothing with those that other numbers cut.
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

// cut returns how many bytes of b are its first piece, or zero when more could
// belong to it. atEnd: there are no more.
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

// Each calls use with each piece of what r gives; use must not keep it. The first
// error, of r or of use, ends it.
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
