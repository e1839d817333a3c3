//go:build unix

package config

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Served reports whether a server, or a role of one, uses the data folder now: it has
// the folder's lock. A start waits for longer than this takes the lock.
func Served(data string) bool {
	f, err := os.Open(filepath.Join(data, LockFile))
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}
