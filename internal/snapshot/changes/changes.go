// Package changes writes a stream as its difference from an earlier one that the receiver
// keeps, such as a saved state as its difference from an earlier state of the same Boot.
// Unlike lists of chunks in S3, it needs no names that outlast the transfer.
//
//	magic    8 bytes, "CSBXCHNG"
//	parts    each a byte that says which:
//	  1      4 bytes of length, big endian as all numbers, and that many bytes
//	  2      8 bytes of offset and 8 of length: a range of the earlier stream
//	  0      the end
//
// It carries no checksum: the reader of the stream must verify it.
package changes

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/cloud-sandbox/cloud-sandbox/internal/snapshot/chunks"
)

const magic = "CSBXCHNG"

const (
	partEnd = iota
	partBytes
	partRange
)

// maxChunks bounds the memory of an Index, which is some 100 bytes for each. The first 16 GiB
// of a stream have so many on average. The rest of a longer one counts as changed.
const maxChunks = 700_000

// An Index knows where in a stream which content is. It is safe for concurrent use once it is
// returned.
type Index struct {
	at map[chunks.ID]int64
}

// NewIndex copies from to to, and returns an Index of the stream.
func NewIndex(to io.Writer, from io.Reader) (*Index, error) {
	x := &Index{at: map[chunks.ID]int64{}}
	end := int64(0)
	err := chunks.Each(from, func(b []byte) error {
		if id := chunks.ID(sha256.Sum256(b)); len(x.at) < maxChunks {
			x.at[id] = end
		}
		end += int64(len(b))
		_, err := to.Write(b)
		return err
	})
	if err != nil {
		return nil, err
	}
	return x, nil
}

// promptly is how many bytes of the stream Write reads before it sends the parts that they gave,
// so that the reader works at the same time.
const promptly = 4 << 20

// Write writes the difference of from from the stream that base is of.
func Write(to io.Writer, from io.Reader, base *Index) error {
	w := &writer{to: bufio.NewWriterSize(to, 2*chunks.MaxBytes)}
	w.put([]byte(magic))
	unsent := 0
	err := chunks.Each(from, func(b []byte) error {
		at, same := base.at[sha256.Sum256(b)]
		if same {
			w.addRange(at, int64(len(b)))
		} else {
			w.addBytes(b)
		}
		if unsent += len(b); unsent >= promptly {
			unsent = 0
			w.endRange()
			w.flush()
		}
		return w.err
	})
	if err != nil {
		return err
	}
	w.endRange()
	w.put([]byte{partEnd})
	w.flush()
	return w.err
}

// writer writes parts. It joins ranges that follow each other.
type writer struct {
	to            *bufio.Writer
	offset, bytes int64 // of the range that is not written yet
	err           error // the first one
}

func (w *writer) put(b []byte) {
	if w.err == nil {
		_, w.err = w.to.Write(b)
	}
}

func (w *writer) flush() {
	if w.err == nil {
		w.err = w.to.Flush()
	}
}

func (w *writer) addRange(offset, n int64) {
	if w.bytes > 0 && w.offset+w.bytes == offset {
		w.bytes += n
		return
	}
	w.endRange()
	w.offset, w.bytes = offset, n
}

func (w *writer) endRange() {
	if w.bytes == 0 {
		return
	}
	head := binary.BigEndian.AppendUint64([]byte{partRange}, uint64(w.offset))
	w.put(binary.BigEndian.AppendUint64(head, uint64(w.bytes)))
	w.bytes = 0
}

func (w *writer) addBytes(b []byte) {
	w.endRange()
	w.put(binary.BigEndian.AppendUint32([]byte{partBytes}, uint32(len(b))))
	w.put(b)
}

// ErrMalformed is the error of a Reader whose stream no Write has written, or not with this
// base.
var ErrMalformed = errors.New("not a difference from the base")

// A Reader reads the stream that Write was given. It returns the errors of its sources,
// io.ErrUnexpectedEOF, or ErrMalformed.
type Reader struct {
	from  *bufio.Reader
	base  io.ReaderAt
	size  int64 // of base
	begun bool
	part  *exactly // the rest of the present part; nil: none
	err   error
}

// NewReader returns a Reader of the difference from. base is the earlier stream, and size its
// bytes.
func NewReader(from io.Reader, base io.ReaderAt, size int64) *Reader {
	return &Reader{from: bufio.NewReaderSize(from, 2*chunks.MaxBytes), base: base, size: size}
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for r.err == nil {
		if r.part == nil {
			if r.err = r.next(); r.err != nil {
				break
			}
		}
		n, err := r.part.Read(p)
		if err == io.EOF {
			r.part, err = nil, nil
		}
		r.err = err
		if n > 0 {
			return n, nil
		}
	}
	return 0, r.err
}

// exactly reads n bytes, or fails with io.ErrUnexpectedEOF.
type exactly struct {
	from io.Reader
	left int64
}

func (e *exactly) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n, err := e.from.Read(p[:min(int64(len(p)), e.left)])
	e.left -= int64(n)
	if err == io.EOF {
		err = nil
		if n == 0 {
			err = io.ErrUnexpectedEOF
		}
	}
	return n, err
}

// next begins the next part. After the last it returns io.EOF.
func (r *Reader) next() error {
	if !r.begun {
		var head [len(magic)]byte
		if err := r.fill(head[:]); err != nil {
			return err
		}
		if string(head[:]) != magic {
			return fmt.Errorf("%w: it begins with %q", ErrMalformed, head)
		}
		r.begun = true
	}
	var head [16]byte
	if err := r.fill(head[:1]); err != nil {
		return err
	}
	switch kind := head[0]; kind {
	case partEnd:
		return io.EOF
	case partBytes:
		if err := r.fill(head[:4]); err != nil {
			return err
		}
		n := binary.BigEndian.Uint32(head[:])
		if n == 0 || n > chunks.MaxBytes {
			return fmt.Errorf("%w: a part of %d bytes", ErrMalformed, n)
		}
		r.part = &exactly{r.from, int64(n)}
	case partRange:
		if err := r.fill(head[:]); err != nil {
			return err
		}
		offset, n := int64(binary.BigEndian.Uint64(head[:])), int64(binary.BigEndian.Uint64(head[8:]))
		if offset < 0 || n <= 0 || n > r.size || offset > r.size-n {
			return fmt.Errorf("%w: %d bytes at %d of %d", ErrMalformed, n, offset, r.size)
		}
		r.part = &exactly{io.NewSectionReader(r.base, offset, n), n}
	default:
		return fmt.Errorf("%w: a part of kind %d", ErrMalformed, kind)
	}
	return nil
}

// fill reads all of p.
func (r *Reader) fill(p []byte) error {
	_, err := io.ReadFull(r.from, p)
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
