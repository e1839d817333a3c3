// Package frames marks where a stream ends inside of another one, so that more can follow
// it: as frames of a length in four bytes and that many bytes. The last frame is empty.
package frames

import (
	"encoding/binary"
	"errors"
	"io"
)

const (
	headBytes = 4
	// maxFrame bounds the bytes of one frame that Encode makes.
	maxFrame = 64 << 10
)

// Encode returns a reader of the frames of r. After an error of r, it returns this
// error without the last frame: then Decode fails too.
func Encode(r io.Reader) io.Reader { return &encoder{r: r} }

type encoder struct {
	r    io.Reader
	rest []byte // of the current frame
	err  error
}

func (f *encoder) Read(p []byte) (int, error) {
	if len(f.rest) == 0 && f.err == nil {
		frame := make([]byte, headBytes+maxFrame)
		n, err := f.fill(frame[headBytes:])
		binary.BigEndian.PutUint32(frame, uint32(n))
		if f.rest = frame[:headBytes+n]; err != nil {
			f.err = err
			if n > 0 && errors.Is(f.err, io.EOF) {
				f.rest = append(f.rest, 0, 0, 0, 0)
			}
		}
		if f.err != nil && !errors.Is(f.err, io.EOF) {
			f.rest = nil // the reader fails too, because the final frame is missing
		}
	}
	if len(f.rest) == 0 {
		return 0, f.err
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}

// fill reads until p is full. Unlike io.ReadFull it returns the reader's own error: an
// io.ErrUnexpectedEOF of the reader is a failure, and its io.EOF is the end.
func (f *encoder) fill(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var read int
		read, err = f.r.Read(p[n:])
		n += read
	}
	return n, err
}

// Decode returns a reader of the bytes that Encode read. It reads the frames of r up to
// the last, and leaves the bytes after it. Frames that break off are
// io.ErrUnexpectedEOF.
func Decode(r io.Reader) io.Reader { return &decoder{r: r} }

type decoder struct {
	r    io.Reader
	left uint32 // bytes left in the current frame
	over bool
}

func (u *decoder) Read(p []byte) (int, error) {
	if u.over || len(p) == 0 {
		return 0, endIf(u.over)
	}
	if u.left == 0 {
		var head [headBytes]byte
		if _, err := io.ReadFull(u.r, head[:]); err != nil {
			return 0, io.ErrUnexpectedEOF
		}
		if u.left = binary.BigEndian.Uint32(head[:]); u.left == 0 {
			u.over = true
			return 0, io.EOF
		}
	}
	n, err := u.r.Read(p[:min(uint32(len(p)), u.left)])
	u.left -= uint32(n)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func endIf(over bool) error {
	if over {
		return io.EOF
	}
	return nil
}
