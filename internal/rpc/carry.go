package rpc

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// carryBytes is the size of one copy buffer, in bytes.
const carryBytes = 128 << 10

var buffers = sync.Pool{New: func() any { return new([carryBytes]byte) }}

// carry copies bytes both ways until both directions have ended, or one has failed, and
// closes both connections. It closes the write side of a direction that ends.
func carry(a, b net.Conn) {
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		both.Go(func() {
			if err := move(way[1], way[0]); err == nil {
				err = closeWrite(way[1])
				if err == nil {
					return
				}
			}
			a.Close()
			b.Close()
		})
	}
	both.Wait()
	a.Close()
	b.Close()
}

func closeWrite(c net.Conn) error {
	half, ok := c.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

// move copies from src until its end. While it waits for bytes it holds no buffer: most
// streams are idle.
func move(dst, src net.Conn) error {
	if s, ok := src.(*stream); ok {
		if err := s.flushHead(dst); err != nil {
			return err
		}
		src = s.Conn
	}
	if s, ok := dst.(*stream); ok {
		dst = s.Conn
	}
	if c, ok := src.(*tls.Conn); ok {
		return moveSecure(dst, c)
	}
	if c, ok := src.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			return moveReady(dst, raw)
		}
	}
	buf := buffers.Get().(*[carryBytes]byte)
	defer buffers.Put(buf)
	_, err := io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, buf[:])
	return err
}

// moveReady copies from src and takes a buffer only when src is readable.
func moveReady(dst io.Writer, src syscall.RawConn) error {
	for {
		var n int
		var buf *[carryBytes]byte
		var readErr error
		err := src.Read(func(fd uintptr) bool {
			buf = buffers.Get().(*[carryBytes]byte)
			for {
				n, readErr = unix.Read(int(fd), buf[:])
				if readErr != unix.EINTR {
					break
				}
			}
			if readErr == unix.EAGAIN {
				buffers.Put(buf)
				return false
			}
			return true
		})
		if err != nil {
			return err
		}
		if n > 0 {
			_, err = dst.Write(buf[:n])
		}
		buffers.Put(buf)
		switch {
		case readErr != nil:
			return readErr
		case n == 0 || err != nil:
			return err
		}
	}
}

const (
	// idleBytes is the size of the buffer of a TLS stream that waits, recordBytes the most
	// that one read of TLS returns, and busyBytes the size of a read that more will follow.
	idleBytes   = 512
	recordBytes = 16 << 10
	busyBytes   = 4 << 10
)

var records = sync.Pool{New: func() any { return new([recordBytes]byte) }}

// moveSecure copies from a TLS connection, which has no descriptor to wait on. It waits
// with a small buffer, and takes a large one while a read fills it.
func moveSecure(dst io.Writer, src *tls.Conn) error {
	var small [idleBytes]byte
	for {
		n, err := src.Read(small[:])
		if n > 0 {
			if _, err := dst.Write(small[:n]); err != nil {
				return err
			}
		}
		if err == nil && n == len(small) {
			err = moveRecords(dst, src)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// moveRecords copies whole records until a short one.
func moveRecords(dst io.Writer, src *tls.Conn) error {
	buf := records.Get().(*[recordBytes]byte)
	defer records.Put(buf)
	for {
		n, err := src.Read(buf[:])
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				return err
			}
		}
		if err != nil || n < busyBytes {
			return err
		}
	}
}

// flushHead writes the bytes that were buffered together with the request.
func (s *stream) flushHead(dst io.Writer) error {
	r, ok := s.head.(interface {
		Buffered() int
		Peek(int) ([]byte, error)
	})
	if !ok || r.Buffered() == 0 {
		return nil
	}
	early, err := r.Peek(r.Buffered())
	if err != nil {
		return err
	}
	_, err = dst.Write(early)
	return err
}
