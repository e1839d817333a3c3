package server

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// stderrName is the name of the in-memory file that is a sentry's stderr. A sentry writes
// only the Go runtime's panic message there. The file counts as the sentry's own memory,
// so it can fill nothing else.
const stderrName = "last-words"

// maxCrashStderr bounds the reported bytes: the reason and the stack of the panicking goroutine
// come first.
const maxCrashStderr = 4 << 10

// newStderr makes the file, and returns the path by which runsc opens it.
func newStderr() (f *os.File, path string, err error) {
	fd, err := unix.MemfdCreate(stderrName, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, "", os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), stderrName), fmt.Sprintf("/proc/self/fd/%d", fd), nil
}

// crashStderr returns a sentry's crash stderr; empty when it wrote none, or the file is not
// held.
func (b *boot) crashStderr() string {
	if b.stderr == nil {
		return ""
	}
	said, _ := io.ReadAll(io.NewSectionReader(b.stderr, 0, maxCrashStderr))
	return strings.TrimSpace(strings.ToValidUTF8(string(said), "?"))
}

// howEnded describes how a process ended, for people; empty when it is not known.
func howEnded(status unix.WaitStatus, reaped bool) string {
	switch {
	case !reaped: // another process's child
		return ""
	case status.Signaled():
		return "signal " + unix.SignalName(status.Signal())
	default:
		return fmt.Sprintf("exit status %d", status.ExitStatus())
	}
}
