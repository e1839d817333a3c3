//go:build linux

// Package early does one small thing of a sentry's binary before the packages of
// gVisor make themselves ready, which takes several milliseconds of a processor. While a
// sentry starts it has a child, this binary too, that waits to unmount its /proc. Go
// makes packages ready in the order of their import paths, as far as what they import is
// ready: this one imports hardly anything, and comes before nearly all of gVisor.
package early

import (
	"os"
	"syscall"
)

// What gVisor starts to unmount a folder has these arguments, and the folder.
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

// unmount unmounts dir when a byte comes by syncFile, and ends the process. It returns
// where the kernel cannot close what came along by mistake: main can, and does the same.
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
		if n != len(b) { // who would have told is gone
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
