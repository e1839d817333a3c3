package cli

import (
	"os"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/term"
)

// showsControl makes the console interpret control sequences.
func showsControl() {
	out := windows.Handle(os.Stdout.Fd())
	var mode uint32
	if windows.GetConsoleMode(out, &mode) == nil {
		_ = windows.SetConsoleMode(out, mode|windows.ENABLE_PROCESSED_OUTPUT|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING)
	}
}

// sizeOf returns the descriptor to query for the size of the terminal of in: the
// console's output.
func sizeOf(int) int { return int(os.Stdout.Fd()) }

// sizeLook is the interval at which the size of the console is polled: Windows sends
// no signal for it.
const sizeLook = 500 * time.Millisecond

// watchSize signals that the terminal's size has changed, until stop is called.
func (t *terminal) watchSize() (resized <-chan struct{}, stop func()) {
	all := make(chan struct{}, 1)
	done := make(chan struct{})
	if !term.IsTerminal(sizeOf(t.fd)) {
		return nil, func() {}
	}
	go func() {
		look := time.NewTicker(sizeLook)
		defer look.Stop()
		for last := t.size(); ; {
			select {
			case <-look.C:
			case <-done:
				return
			}
			if now := t.size(); now != last {
				last = now
				select {
				case all <- struct{}{}:
				default: // a pending signal says the same
				}
			}
		}
	}()
	return all, func() { close(done) }
}

// waiter cannot interrupt a read of a console or a pipe here: a read that has begun
// ends with the program, or takes the next key.
type waiter struct{}

func newWaiter() (waiter, error) { return waiter{}, nil }

func (waiter) wait(int) bool { return true }

func (waiter) end(<-chan struct{}) {}
