package link

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// streamBuffer is the size of each direction's buffer of a stream, in bytes.
const streamBuffer = 512 << 10

// Stream makes a stream between two processes of the host: ours to use, theirs to hand
// out. The caller closes both.
func Stream() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a stream: %w", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "stream")
	f := os.NewFile(uintptr(fds[0]), "stream")
	defer f.Close() // FileConn has a copy of its own
	for _, fd := range fds {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, streamBuffer) // capped at the system's bound
	}
	conn, err := net.FileConn(f)
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("make a stream: %w", err)
	}
	return conn.(*net.UnixConn), theirs, nil
}
