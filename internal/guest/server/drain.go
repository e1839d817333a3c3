package server

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// drainTime is how long output is still read once the program has ended and its
// pipes are empty. Later output comes from processes that it left behind.
const drainTime = 100 * time.Millisecond

// A Tap reads one output of a program to its end.
type Tap struct {
	file *os.File
	size int

	mu     sync.Mutex // held while bytes are in no pipe any more and not passed on yet
	passed atomic.Int64
}

// NewTap takes our side of a pipe or a terminal; size is the maximum of one read,
// in bytes.
func NewTap(f *os.File, size int) *Tap { return &Tap{file: f, size: size} }

// Run passes all output to pass, up to the end. The slice is valid only until pass
// returns.
func (t *Tap) Run(pass func([]byte)) {
	raw, err := t.file.SyscallConn()
	if err != nil {
		return // it has been closed
	}
	blocks := false // as does a terminal after a call of Fd
	_ = raw.Control(func(fd uintptr) {
		flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
		blocks = err == nil && flags&unix.O_NONBLOCK == 0
	})
	buf := make([]byte, t.size)
	_ = raw.Read(func(fd uintptr) (over bool) {
		for {
			if blocks && !ready(int(fd)) {
				return false
			}
			n, err := t.take(int(fd), buf, pass)
			if errors.Is(err, unix.EAGAIN) {
				return false
			}
			if err != nil || n <= 0 { // EIO is a terminal's end
				return true
			}
		}
	})
}

// ready reports whether a read would not wait.
func ready(fd int) bool {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		if !errors.Is(err, unix.EINTR) {
			return n > 0 || err != nil
		}
	}
}

// take reads the bytes that are available, once, and passes them on.
func (t *Tap) take(fd int, buf []byte, pass func([]byte)) (n int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		n, err = unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n > 0 {
			pass(buf[:n])
			t.passed.Add(int64(n))
		}
		return n, err
	}
}

// held is how many bytes wait to be read.
func (t *Tap) held() (n int) {
	raw, err := t.file.SyscallConn()
	if err != nil {
		return 0 // its reader has closed it, at its end
	}
	_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	return n
}

// written returns how many bytes were written to it, or a little more: never less.
func (t *Tap) written() int64 {
	held := int64(t.held()) // first: bytes that are read meanwhile then count twice instead of never
	return t.passed.Load() + int64(t.size) + held
}

// level reports whether this many bytes were passed on, or all that exist.
func (t *Tap) level(written int64) bool {
	if t.passed.Load() >= written {
		return true
	}
	if !t.mu.TryLock() {
		return false
	}
	defer t.mu.Unlock()
	return t.held() == 0
}

// Drained waits until the output of a program that has ended was passed on. It
// returns when read is closed, which says that all was read, or after a while once
// none of the program's own output is in transit. On a busy machine the readers may
// be scheduled long after the end, and the consumer of their output may be slow.
// Output of processes that the program left behind is not waited for. stop ends the
// wait; a nil stop never does.
func Drained(read, stop <-chan struct{}, taps ...*Tap) {
	written := make([]int64, len(taps))
	for i, t := range taps {
		written[i] = t.written()
	}
	tick := time.NewTicker(drainTime)
	defer tick.Stop()
	for level := false; !level; {
		select {
		case <-read:
			return
		case <-stop:
			return
		case <-tick.C:
		}
		level = true
		for i, t := range taps {
			level = t.level(written[i]) && level
		}
	}
}
