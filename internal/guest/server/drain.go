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
// pipes are empty: what comes then is from something that it left behind.
const drainTime = 100 * time.Millisecond

// A Tap is one output of a program, which is read to its end.
type Tap struct {
	file *os.File
	size int

	mu     sync.Mutex // held while bytes are in no pipe any more and not passed on yet
	passed atomic.Int64
}

// NewTap is for our side of a pipe or a terminal; size is the most that is read of
// it at once.
func NewTap(f *os.File, size int) *Tap { return &Tap{file: f, size: size} }

// Run has pass take all that comes, to the end. What it is given is its own only
// until it returns.
func (t *Tap) Run(pass func([]byte)) {
	raw, err := t.file.SyscallConn()
	if err != nil {
		return // it has been closed
	}
	blocks := false // as does a terminal whose number somebody asked for
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

// take reads once, what is there, and passes it on.
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

// written is how much has been written to it, or a little more: never less.
func (t *Tap) written() int64 {
	held := int64(t.held()) // first: what is read meanwhile counts twice then, not never
	return t.passed.Load() + int64(t.size) + held
}

// level reports whether so much has been passed on, or all that there is.
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

// Drained waits until the output of a program that has ended was passed on: until
// read is closed, which says that all was read, or for a while and until nothing
// of its own is on its way. On a busy machine the readers may get their turn long
// after the end, and who takes what they read may be slow. What something that the
// program left behind writes is not waited for. stop ends the wait; nil never does.
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
