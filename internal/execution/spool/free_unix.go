//go:build unix

package spool

import (
	"os"

	"golang.org/x/sys/unix"
)

// freeAt returns the free bytes of a folder's disk.
func freeAt(dir string) (int64, error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return 0, os.NewSyscallError("statfs", err)
	}
	return int64(disk.Bavail) * int64(disk.Bsize), nil
}
