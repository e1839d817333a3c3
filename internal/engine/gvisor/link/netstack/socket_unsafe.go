package netstack

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// sendmsg and recvmsg never wait, even if another holder of the socket has made it
// blocking. x/sys has both, but allocates for each call.

func sendmsg(fd uintptr, iovecs []unix.Iovec) (int, error) {
	var msg unix.Msghdr
	msg.Iov = unsafe.SliceData(iovecs)
	msg.SetIovlen(len(iovecs))
	n, _, errno := unix.Syscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&msg)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// recvmsg with MSG_TRUNC returns a packet's whole length, which may exceed the buffers.
// The kernel drops descriptors that are sent with it.
func recvmsg(fd uintptr, iovecs []unix.Iovec, flags uintptr) (int, error) {
	var msg unix.Msghdr
	msg.Iov = unsafe.SliceData(iovecs)
	msg.SetIovlen(len(iovecs))
	n, _, errno := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&msg)), unix.MSG_DONTWAIT|flags)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
