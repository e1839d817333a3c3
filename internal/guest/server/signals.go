package server

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ownSignals are the signals that this program or its runtime uses. By signal 33
// the runtime has every thread make a system call.
var ownSignals = []syscall.Signal{
	unix.SIGKILL, unix.SIGSTOP, unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGTRAP, unix.SIGABRT,
	unix.SIGPIPE, unix.SIGCHLD, unix.SIGURG, unix.SIGPROF, unix.SIGUSR1, 32, 33, 34,
}

// LeaveSignals resets every signal that this program does not use to the kernel's
// default, which for PID 1 is to ignore it. The runtime handles all of them, and
// each child resets each one before it executes another program: fifty system calls
// in every start of a Process.
func LeaveSignals() {
	const signals = 64
	var leave []os.Signal
	for s := syscall.Signal(1); s <= signals; s++ {
		if !slices.Contains(ownSignals, s) {
			leave = append(leave, s)
		}
	}
	signal.Ignore(leave...) // the runtime releases them
	var byDefault [32]byte  // struct sigaction of rt_sigaction(2): SIG_DFL is zero
	const maskBytes = 8
	for _, s := range leave {
		// Not SIG_IGN, which signal.Ignore set: children would inherit it.
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s.(syscall.Signal)), uintptr(unsafe.Pointer(&byDefault)), 0, maskBytes, 0, 0)
	}
}
