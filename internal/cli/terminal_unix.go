//go:build unix

package cli

import (
	"errors"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// showsControl does nothing here: terminals interpret control sequences without it.
func showsControl() {}

// sizeOf returns the descriptor to query for the size of the terminal of in.
func sizeOf(in int) int { return in }

// watchSize signals that the terminal's size may have changed, until stop is called.
func (t *terminal) watchSize() (resized <-chan struct{}, stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGWINCH)
	all := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-signals:
			case <-done:
				return
			}
			select {
			case all <- struct{}{}:
			default: // a pending signal says the same
			}
		}
	}()
	return all, func() {
		signal.Stop(signals)
		close(done)
	}
}

// waiter waits for input and can be interrupted.
type waiter struct{ wake, ended *os.File }

func newWaiter() (waiter, error) {
	r, w, err := os.Pipe()
	return waiter{r, w}, err
}

// wait returns true once fd can be read, and false once end was called.
func (w waiter) wait(fd int) bool {
	for {
		wake := int(w.wake.Fd())
		var ready unix.FdSet // poll(2) of macOS does not support terminals
		ready.Set(fd)
		ready.Set(wake)
		if _, err := unix.Select(max(fd, wake)+1, &ready, nil, nil, nil); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return true // the read will report it
		}
		return !ready.IsSet(wake)
	}
}

// end interrupts the wait, and waits until reading is closed.
func (w waiter) end(reading <-chan struct{}) {
	w.ended.Close()
	<-reading
	w.wake.Close()
}
