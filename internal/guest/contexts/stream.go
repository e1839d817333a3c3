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
	// maxRest bounds what is read of a stream to be level with a frame: as much
	// as a pipe can hold.
	maxRest = 1 << 20
	// lineWait is how long the beginning of a line waits for more, where a program
	// writes it in pieces at once.
	lineWait = 10 * time.Millisecond
)

// stream is one output of a worker. It is always read, also when nobody wants
// it: what the worker left behind must not stand still.
type stream struct {
	file   *os.File
	closed chan struct{} // when nothing comes any more
	lines  bool          // a line that has begun is waited for, for lineWait

	mu   sync.Mutex // held from a read until what it gave has been passed on
	buf  []byte
	sink func([]byte) // nil: what comes is dropped
}

func newStream(f *os.File) *stream {
	return &stream{file: f, closed: make(chan struct{}), buf: make([]byte, readSize)}
}

// to sends what comes from now on to sink, once it is no longer in the one
// before.
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

// pass reads once and passes on what came. It does not block, as the poller's
// descriptors do not, but for lineWait where lines are wanted.
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

// line reads on behind the first n bytes until they end with a line, and returns how
// many there are then.
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
			return n // the next read says the same
		}
		n += more
	}
	return n
}

// settle returns when everything that was written before it was called has been
// passed on.
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
