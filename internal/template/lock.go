package template

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockPoll is how often a waiting builder looks again: flock cannot be
// interrupted when ctx ends.
const lockPoll = 200 * time.Millisecond

// lock waits until this builder alone may build name. waiting is called once
// if another builds it now. The lock ends with release or with the process.
func (s *Store) lock(ctx context.Context, name string, waiting func()) (release func(), err error) {
	f, err := os.OpenFile(s.path("locks", name+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock template: %w", err)
	}
	if err := f.Chmod(0o644); err != nil { // readers look, whatever the umask
		f.Close()
		return nil, fmt.Errorf("lock template: %w", err)
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for tries := 0; ; tries++ {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock template: %w", err)
		}
		if tries == 1 { // the first refusal may be a reader's short look
			waiting()
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
}

// building reports whether a builder holds the lock of name.
func (s *Store) building(name string) bool {
	f, err := os.Open(s.path("locks", name+".lock"))
	if err != nil {
		return false
	}
	defer f.Close() // ends the shared lock
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	return errors.Is(err, unix.EWOULDBLOCK)
}
