//go:build linux

// Package early runs a small task of a sentry's binary before gVisor's packages
// initialize, which takes several milliseconds of CPU. A starting sentry has a child,
// this binary too, that waits to unmount its /proc. Go initializes packages in the order
// of their import paths, once their imports are initialized: this one imports hardly
// anything, and comes before nearly all of gVisor.
package early

import (
	"os"
	"syscall"
)

// gVisor's unmount process has these arguments, and the folder.
const (
	command  = "umount"
	syncFlag = "--sync-fd=3"
	syncFile = 3
)

func init() {
	if len(os.Args) == 4 && os.Args[1] == command && os.Args[2] == syncFlag {
		unmount(os.Args[3])
	}
}

// unmount unmounts dir when a byte arrives on syncFile, and ends the process. It returns
// if the kernel cannot close stray inherited descriptors: main can, and does the same.
func unmount(dir string) {
	const closeRange = 436 // the same for all architectures
	if _, _, errno := syscall.Syscall(closeRange, syncFile+1, ^uintptr(0)>>32, 0); errno != 0 {
		return
	}
	var b [1]byte
	for {
		n, err := syscall.Read(syncFile, b[:])
		if err == syscall.EINTR {
			continue
		}
		if n != len(b) { // the writer is gone
			os.Exit(1)
		}
		break
	}
	if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
		_, _ = os.Stderr.WriteString("sentry: unmount " + dir + ": " + err.Error() + "\n")
		os.Exit(1)
	}
	os.Exit(0)
}
