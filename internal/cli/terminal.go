package cli

import (
	"context"
	"io"
	"os"

	"golang.org/x/term"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// terminal is the command's input; is reports whether it is a terminal.
type terminal struct {
	in       io.Reader
	fd       int // of in; -1: in is not a file
	is       bool
	original *term.State
}

func openTerminal(in io.Reader) *terminal {
	t := &terminal{in: in, fd: -1}
	if f, ok := in.(*os.File); ok {
		t.fd = int(f.Fd())
		if state, err := term.GetState(t.fd); err == nil {
			t.is, t.original = true, state
		}
	}
	return t
}

// raw passes on every key as it is typed, including Ctrl-C, until restore is called.
func (t *terminal) raw() error {
	if !t.is {
		return nil
	}
	_, err := term.MakeRaw(t.fd)
	if err == nil {
		showsControl()
	}
	return err
}

func (t *terminal) restore() {
	if t.is {
		_ = term.Restore(t.fd, t.original)
	}
}

// size returns the terminal's size; without a terminal, a default.
func (t *terminal) size() v1.TerminalSize {
	if t.is {
		if cols, rows, err := term.GetSize(sizeOf(t.fd)); err == nil && cols > 0 && rows > 0 {
			return v1.TerminalSize{Cols: min(cols, 4096), Rows: min(rows, 4096)}
		}
	}
	return v1.TerminalSize{Cols: 80, Rows: 24}
}

// keys reads typed input into the channel, which is closed at the end, until stop is
// called. stop waits for the reader, where a read can be interrupted.
func (t *terminal) keys() (typed <-chan []byte, stop func(), err error) {
	w, err := newWaiter()
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	all := make(chan []byte)
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		defer close(all)
		t.read(ctx, w, all)
	}()
	return all, func() {
		cancel()
		w.end(reading)
	}, nil
}

// pieceSize is the most input that one read returns, in bytes.
const pieceSize = 64 << 10

func (t *terminal) read(ctx context.Context, w waiter, all chan<- []byte) {
	for (t.fd < 0 || w.wait(t.fd)) && ctx.Err() == nil { // a reader without a file descriptor ends its reads by itself
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
