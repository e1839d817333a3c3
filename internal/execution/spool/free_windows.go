package spool

import (
	"os"

	"golang.org/x/sys/windows"
)

// freeAt returns the free bytes of a folder's disk.
func freeAt(dir string) (int64, error) {
	name, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return 0, err
	}
	var free uint64
	if err := windows.GetDiskFreeSpaceEx(name, &free, nil, nil); err != nil {
		return 0, os.NewSyscallError("GetDiskFreeSpaceEx", err)
	}
	return int64(free), nil
}
