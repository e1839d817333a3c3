package contexts

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	readSize = 32 << 10
	// maxRest bounds the bytes that settle reads from a stream: as many as a pipe
	// can hold.
	maxRest = 1 << 20
	// lineWait is how long an unfinished line waits for its rest, from a program
	// that writes a line in several pieces.
	lineWait = 10 * time.Millisecond
)

// stream is one output of a worker. It is always read, even if the output is
// dropped: processes that the worker left behind must not block.
type stream struct {
	file   *os.File
	closed chan struct{} // at the end of the output
	lines  bool          // an unfinished line waits up to lineWait for its rest

	mu   sync.Mutex // held from a read until its data was passed on
	buf  []byte
	sink func([]byte) // nil: output is dropped
}

func newStream(f *os.File) *stream {
	return &stream{file: f, closed: make(chan struct{}), buf: make([]byte, readSize)}
}

// to sends further output to sink, once the call of the previous sink has returned.
func (s *stream) to(sink func([]byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sink = sink
}

// run reads until every writer has closed the stream.
func (s *stream) run() {
	defer close(s.closed)
	defer s.file.Close()
	raw, err := s.file.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) (over bool) {
		for {
			if n, err := s.pass(fd); err != nil || n == 0 {
				return !errors.Is(err, unix.EAGAIN)
			}
		}
	})
}

// pass reads once and passes the data on. It does not block, because the poller's
// descriptors do not, except for lineWait if lines is set.
func (s *stream) pass(fd uintptr) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		n, err := unix.Read(int(fd), s.buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n > 0 && s.lines {
			n = s.line(fd, n)
		}
		if n > 0 && s.sink != nil {
			s.sink(s.buf[:n])
		}
		return n, err
	}
}

// line reads more data after the first n bytes until they end with a line break,
// and returns the new length.
func (s *stream) line(fd uintptr, n int) int {
	for until := time.Now().Add(lineWait); n < len(s.buf) && s.buf[n-1] != '\n'; {
		left := time.Until(until)
		if left <= 0 {
			return n
		}
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left/time.Millisecond)+1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || ready == 0 {
			return n
		}
		more, err := unix.Read(int(fd), s.buf[n:])
		if err != nil || more == 0 {
			return n // the next read returns the same error
		}
		n += more
	}
	return n
}

// settle returns when all data that was written before the call has been passed on.
func (s *stream) settle() {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		for total := 0; total < maxRest; {
			n, err := s.pass(fd)
			if err != nil || n == 0 {
				return
			}
			total += n
		}
	})
}
