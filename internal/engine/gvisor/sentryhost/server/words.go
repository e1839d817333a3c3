package server

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// wordsName is the name of the file in memory that a sentry's stderr is. A sentry
// writes there only what the Go runtime says of a panic. What it writes counts as
// its own memory, so it cannot fill anything with it.
const wordsName = "last-words"

// maxWords is how many bytes of them are told: the reason, and the stack of who
// met it, come first.
const maxWords = 4 << 10

// newWords makes the file, and returns the path that runsc opens it by.
func newWords() (f *os.File, path string, err error) {
	fd, err := unix.MemfdCreate(wordsName, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, "", os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), wordsName), fmt.Sprintf("/proc/self/fd/%d", fd), nil
}

// lastWords is what a sentry said before it ended; empty when it said nothing, or
// nobody kept it.
func (b *boot) lastWords() string {
	if b.words == nil {
		return ""
	}
	said, _ := io.ReadAll(io.NewSectionReader(b.words, 0, maxWords))
	return strings.TrimSpace(strings.ToValidUTF8(string(said), "?"))
}

// howEnded tells how a process ended, for people; empty when it is not known.
func howEnded(status unix.WaitStatus, reaped bool) string {
	switch {
	case !reaped: // somebody else's child
		return ""
	case status.Signaled():
		return "signal " + unix.SignalName(status.Signal())
	default:
		return fmt.Sprintf("exit status %d", status.ExitStatus())
	}
}
