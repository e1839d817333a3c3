package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// terminal is where a person types, if it is one.
type terminal struct {
	in       io.Reader
	fd       int // of in; -1: in is no file
	is       bool
	original unix.Termios
}

func openTerminal(in io.Reader) *terminal {
	t := &terminal{in: in, fd: -1}
	if f, ok := in.(*os.File); ok {
		t.fd = int(f.Fd())
		if state, err := unix.IoctlGetTermios(t.fd, unix.TCGETS); err == nil {
			t.is, t.original = true, *state
		}
	}
	return t
}

// raw passes every key on as it is typed, Ctrl-C too, until restore is called.
func (t *terminal) raw() error {
	if !t.is {
		return nil
	}
	state := t.original
	state.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	state.Oflag &^= unix.OPOST
	state.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	state.Cflag = state.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	state.Cc[unix.VMIN], state.Cc[unix.VTIME] = 1, 0
	return unix.IoctlSetTermios(t.fd, unix.TCSETS, &state)
}

func (t *terminal) restore() {
	if t.is {
		_ = unix.IoctlSetTermios(t.fd, unix.TCSETS, &t.original)
	}
}

// size is that of the terminal, or that of an old one when there is none.
func (t *terminal) size() v1.TerminalSize {
	if t.is {
		if s, err := unix.IoctlGetWinsize(t.fd, unix.TIOCGWINSZ); err == nil && s.Col > 0 && s.Row > 0 {
			return v1.TerminalSize{Cols: min(int(s.Col), 4096), Rows: min(int(s.Row), 4096)}
		}
	}
	return v1.TerminalSize{Cols: 80, Rows: 24}
}

// keys reads what is typed into the channel, which is closed at the end, until
// stop is called. stop waits for the reading to end.
func (t *terminal) keys() (typed <-chan []byte, stop func(), err error) {
	wakeRead, wakeWrite, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	all := make(chan []byte)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(all)
		t.read(ctx, int(wakeRead.Fd()), all)
	})
	return all, func() {
		cancel()
		wakeWrite.Close() // wakes the poll
		reading.Wait()
		wakeRead.Close()
	}, nil
}

// pieceSize bounds what is read here at a time, in bytes.
const pieceSize = 64 << 10

func (t *terminal) read(ctx context.Context, wake int, all chan<- []byte) {
	for t.wait(wake) && ctx.Err() == nil {
		piece := make([]byte, pieceSize)
		n, err := t.in.Read(piece)
		if n > 0 {
			select {
			case all <- piece[:n]:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// wait returns true once something can be read, and false once wake is closed.
func (t *terminal) wait(wake int) bool {
	if t.fd < 0 {
		return true // no file: its reads end by themselves
	}
	for {
		fds := []unix.PollFd{{Fd: int32(t.fd), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return true // the read will tell
		}
		if fds[1].Revents != 0 {
			return false
		}
		if fds[0].Revents != 0 {
			return true
		}
	}
}
