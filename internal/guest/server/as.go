package server

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// As calls f on a thread that has the rights of u, so that the kernel checks every
// path and every race as it would for the user's own program. Goroutines that f
// starts do not have these rights. As returns when f has returned. Signals are
// blocked during f: on a Volume a signal would end any call with EINTR although the
// operation may have been done, so that it could not be repeated.
func As(u User, f func() error) error {
	if os.Geteuid() != 0 {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		// The runtime makes new threads from a clean one while this one is locked,
		// and throws this one away when it ends locked.
		runtime.LockOSThread()
		before, err := holdSignals()
		if err == nil && u.UID != 0 {
			err = borrow(u)
		}
		if err == nil {
			err = call(f)
		}
		if giveBack() == nil && unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// holdSignals blocks all signals on this thread except the signals that its own faults
// raise, and signal 33: with it the runtime makes every thread perform a system call.
func holdSignals() (before unix.Sigset_t, err error) {
	var held unix.Sigset_t
	held.Val[0] = ^uint64(0) // signals are counted from 1
	const everyThread = 33
	for _, s := range []syscall.Signal{unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGTRAP, unix.SIGABRT, everyThread} {
		held.Val[0] &^= 1 << (s - 1)
	}
	err = unix.PthreadSigmask(unix.SIG_SETMASK, &held, &before)
	return before, err
}

// call turns a panic into an error: it would end the Guest, and with it the
// Sandbox.
func call(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return f()
}

// keep leaves an ID as it is.
const keep = ^uintptr(0)

// borrow gives this thread the rights of u. The real and saved user stay root, so
// that no process of the Sandbox may signal or trace the thread.
func borrow(u User) error {
	if err := setGroups(u.Groups); err != nil {
		return fmt.Errorf("take the groups of %s: %w", u.Name, err)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, keep, uintptr(u.GID), keep); errno != 0 {
		return fmt.Errorf("take the group of %s: %w", u.Name, errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(u.UID), keep); errno != 0 {
		return fmt.Errorf("take the rights of %s: %w", u.Name, errno)
	}
	return nil
}

// giveBack gives this thread the rights of root again.
func giveBack() error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, 0, keep); errno != 0 {
		return errno
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, keep, 0, keep); errno != 0 {
		return errno
	}
	return setGroups(nil)
}

// setGroups is unix.Setgroups for this thread alone.
func setGroups(groups []uint32) error {
	var first unsafe.Pointer
	if len(groups) > 0 {
		first = unsafe.Pointer(&groups[0])
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(first), 0); errno != 0 {
		return errno
	}
	return nil
}
