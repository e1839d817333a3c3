package server

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ownSignals are those that this program or its runtime waits for. 33 is how the
// runtime has every thread make a system call.
var ownSignals = []syscall.Signal{
	unix.SIGKILL, unix.SIGSTOP, unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGTRAP, unix.SIGABRT,
	unix.SIGPIPE, unix.SIGCHLD, unix.SIGURG, unix.SIGPROF, unix.SIGUSR1, 32, 33, 34,
}

// LeaveSignals gives every signal that this program does not need back to the
// kernel's default, which for PID 1 is to ignore it. The runtime holds all of
// them, and each child sets each one back before it becomes another program:
// fifty system calls that every start of a Process would wait for.
func LeaveSignals() {
	const signals = 64
	var leave []os.Signal
	for s := syscall.Signal(1); s <= signals; s++ {
		if !slices.Contains(ownSignals, s) {
			leave = append(leave, s)
		}
	}
	signal.Ignore(leave...) // the runtime lets go of them
	var byDefault [32]byte  // struct sigaction of rt_sigaction(2): SIG_DFL is zero
	const maskBytes = 8
	for _, s := range leave {
		// Children inherit what is ignored, but not what is left to the kernel.
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s.(syscall.Signal)), uintptr(unsafe.Pointer(&byDefault)), 0, maskBytes, 0, 0)
	}
}
