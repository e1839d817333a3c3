package server

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// drainTime is how long output is still read once the program has ended and its
	// pipes are empty: what comes then is from something that it left behind.
	drainTime = 100 * time.Millisecond
	// longestDrain bounds it in all, for what never ceases to write.
	longestDrain = 2 * time.Second
)

// Drained waits for the output of a program that has ended: until read is closed,
// which says that all was read, or until pipes have been empty for a while. On a
// busy machine the readers may get their turn long after the end. stop ends the
// wait; nil never does.
func Drained(read, stop <-chan struct{}, pipes ...*os.File) {
	tick := time.NewTicker(drainTime)
	defer tick.Stop()
	for end := time.Now().Add(longestDrain); ; {
		select {
		case <-read:
			return
		case <-stop:
			return
		case <-tick.C:
		}
		if !anyHolds(pipes) || time.Now().After(end) {
			return
		}
	}
}

// anyHolds reports whether a pipe has bytes that nobody has read.
func anyHolds(pipes []*os.File) bool {
	for _, f := range pipes {
		if f == nil {
			continue
		}
		raw, err := f.SyscallConn()
		if err != nil {
			continue // its reader has closed it, at its end
		}
		held := 0
		err = raw.Control(func(fd uintptr) { held, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
		if err == nil && held > 0 {
			return true
		}
	}
	return false
}
