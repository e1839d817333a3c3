package server

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// OutputPipe makes a pipe that a program writes to. ours is read without
// blocking a thread; theirs is for Start, and for unix.Close after it. os.Pipe
// makes three times as many system calls, and each costs tens of microseconds
// here.
func OutputPipe() (ours *os.File, theirs int, err error) {
	r, w, err := pipe()
	if err != nil {
		return nil, -1, err
	}
	return unblocked(r, unix.O_RDONLY), w, nil
}

// InputPipe makes a pipe that a program reads from.
func InputPipe() (ours *os.File, theirs int, err error) {
	r, w, err := pipe()
	if err != nil {
		return nil, -1, err
	}
	return unblocked(w, unix.O_WRONLY), r, nil
}

func pipe() (r, w int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, fmt.Errorf("make a pipe: %w", err)
	}
	return p[0], p[1], nil
}

// unblocked wraps a descriptor of ours, which has these flags, as a file that waits
// in the poller.
func unblocked(fd, flags int) *os.File {
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags|unix.O_NONBLOCK)
	return os.NewFile(uintptr(fd), "pipe")
}

// noInput is the standard input of programs without input: an empty file.
var noInput = sync.OnceValues(func() (int, error) {
	fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	return fd, nil
})

// openTerminal makes a terminal for a user. ours waits in the poller; theirs is
// for Start, and for unix.Close after it.
func openTerminal(u User, cols, rows uint16) (ours *os.File, theirs int, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("make a terminal: %w", err)
	}
	ours = os.NewFile(uintptr(fd), "terminal")
	defer func() {
		if err != nil {
			ours.Close()
		}
	}()
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, -1, fmt.Errorf("unlock a terminal: %w", err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, -1, fmt.Errorf("number a terminal: %w", err)
	}
	path := fmt.Sprintf("/dev/pts/%d", number)
	if theirs, err = unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err != nil {
		return nil, -1, fmt.Errorf("open a terminal: %w", err)
	}
	_ = unix.Fchown(theirs, int(u.UID), int(u.GID)) // if this fails, only programs that open it by name are affected
	if err := ResizeTerminal(ours, cols, rows); err != nil {
		unix.Close(theirs)
		return nil, -1, err
	}
	return ours, theirs, nil
}

// ResizeTerminal changes a terminal's size; zeros leave it.
func ResizeTerminal(terminal *os.File, cols, rows uint16) error {
	if cols == 0 || rows == 0 {
		return nil
	}
	raw, err := terminal.SyscallConn()
	if err != nil {
		return fmt.Errorf("resize a terminal: %w", err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: cols, Row: rows})
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("resize a terminal: %w", err)
	}
	return nil
}

// StartTerminal starts a command on a terminal of its own, and returns our end.
func (g *Guest) StartTerminal(c Command, cols, rows uint16) (*Job, *os.File, error) {
	ours, theirs, err := openTerminal(c.User, cols, rows)
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(theirs)
	job, err := g.StartJob(c, []int{theirs, theirs, theirs}, true)
	if err != nil {
		ours.Close()
		return nil, nil, err
	}
	return job, ours, nil
}
