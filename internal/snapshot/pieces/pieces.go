// Package pieces reads streams piece by piece, where a piece ends being somebody
// else's rule.
package pieces

import (
	"errors"
	"io"
)

// Cut returns how many bytes of b are its first piece, or zero when more could
// belong to it. atEnd: there are no more, and it is zero for nothing only.
type Cut func(b []byte, atEnd bool) int

// readAhead is how many of the largest pieces are read at once.
const readAhead = 8

// Each calls use with each piece of what r gives; use must not keep it. Of most
// bytes, which is more than zero, cut makes a piece or several. The first error,
// of r or of use, ends it.
func Each(r io.Reader, most int, cut Cut, use func([]byte) error) error {
	buf := make([]byte, 0, readAhead*most)
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
